"""``bench/RESULTS.md``: one section a command, between marks of its own, so that no command wipes another's results."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import apsw
import psutil

import hermes_doctor
from bench.figures import Figure
from bench.quotes import requote

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "RESULTS.md"
README = ROOT / "README.md"

_VERDICTS = {True: "yes", False: "**no**", None: ""}


def machine() -> str:
    """Cores, processor, memory and system of this machine, in one line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    return f"{cores} cores of {_processor()}, {memory:.0f} GB, {platform.system()} {platform.release()}"


def versions() -> str:
    """The doctor, Python, APSW and SQLite that were at work, in one line."""
    return (
        f"doctor {hermes_doctor.__version__}{_commit()}, Python {platform.python_version()}, "
        f"APSW {apsw.apsw_version()}, SQLite {apsw.sqlite_lib_version()}"
    )


def table(figures: Sequence[Figure]) -> str:
    """The figures as a table in Markdown."""
    rows = [("figure", "measured", "promised", "met", ""), ("---", "---", "---", "---", "---")]
    rows += [(each.name, each.shown, each.target, _VERDICTS[each.met], each.note) for each in figures]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def record(name: str, title: str, figures: Sequence[Figure], *, command: str | None = None, text: str = "") -> None:
    """Write a section into ``bench/RESULTS.md`` in place of what that section held; the other sections stay.

    What the README quotes is brought up to date with it.

    ``name``: of the section, kebab-case, one for each command. ``command``: what was typed, by default this very
    process's. ``text``: Markdown that goes below the table.
    """
    begin, end = _marks(name)
    parts = [
        f"## {title}",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, `{command or typed()}`  \n{machine()}  \n{versions()}",
        table(figures) if figures else "",
        text.strip(),
    ]
    section = f"{begin}\n" + "\n\n".join(filter(None, parts)) + f"\n{end}\n"
    before = RESULTS.read_text(encoding="utf-8")
    marked = re.compile(re.escape(begin) + ".*?" + re.escape(end) + "\n", re.DOTALL)
    found = marked.search(before)
    after = before[: found.start()] + section + before[found.end() :] if found else f"{before}\n{section}"
    RESULTS.write_text(after, encoding="utf-8")
    requote(README, RESULTS)


def section(name: str) -> str | None:
    """What a section holds now, None where it was never recorded."""
    begin, end = _marks(name)
    found = re.search(re.escape(begin) + "\n(.*?)" + re.escape(end), RESULTS.read_text(encoding="utf-8"), re.DOTALL)
    return found.group(1) if found else None


def typed() -> str:
    """The command of this process as a user types it."""
    main = sys.modules["__main__"].__spec__
    name = main.name.removesuffix(".__main__") if main is not None else Path(sys.argv[0]).name
    return shlex.join(["python", "-m", name, *sys.argv[1:]])


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- end of {name} -->"


def _processor() -> str:
    """The processor's own name where the system tells it."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else platform.processor() or platform.machine()


def _commit() -> str:
    """The commit that was measured, where this is a checkout."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return f" ({done.stdout.strip()})" if done.returncode == 0 else ""
