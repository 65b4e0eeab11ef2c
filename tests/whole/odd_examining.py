"""What has to hold of the doctor on any file whatever, however odd, hostile or damaged.

A scan and a plan end with a code of the contract, tell no defect of the doctor, show nothing that acts on a terminal,
and change nothing in the folder. A run of all fixes leaves the file as sound as before, a second run of it finds
nothing new to mend, and undoing it gives the logically identical store.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from hermes_doctor.cli.run import run
from tests.cli.support import valid
from tests.whole.identical import difference, image_of, index_faults
from tests.whole.odd_stores import ACTING

#: What a terminal acts on, or a reader does not see. A report has no need of any but line ends.
_ACTING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
#: Words of what must never be said.
_DEFECT = re.compile(r"Traceback|defect of the doctor|Error at (hermes_doctor|checks|fixes)")
_OF_INDEX = re.compile(r"(check of|texts of|\w+ in) messages_fts|what could be read was")
#: What is not an outcome of looking: 2 is a usage error, 3 a defect.
_LOOKS = frozenset({0, 1, 4})
_CHANGES = frozenset({0, 1, 4, 5})


@dataclass
class Verdict:
    """What became of one store. ``wrong``: one line for each promise that was broken."""

    wrong: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    found: int = 0
    mended: int = 0
    seconds: float = 0.0
    peak_megabytes: float = 0.0


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def doctor(folder: Path, *arguments: str | Path) -> Ended:
    """Run a command in this process, its output to files in ``folder``; the process's own is put back."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    out, err = folder / "out", folder / "err"
    try:
        for number, name in ((1, out), (2, err)):
            opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, number)
            os.close(opened)
        code = run([str(argument) for argument in arguments])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
    return Ended(code, out.read_text("utf-8", "surrogateescape"), err.read_text("utf-8", "surrogateescape"))


def settle_in(folder: Path) -> None:
    """Let this process keep the doctor's own notes in ``folder``, and take its sources from where they are.

    For a process that does nothing else: standard output is spoken in UTF-8, whatever somebody has put in its place.
    """
    os.environ |= {"XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder), "HERMES_HOME": str(folder / "none")}
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", line_buffering=True)


def opened_by(folder: Path, *commands: Sequence[str | Path]) -> list[str]:
    """Run commands in a process of their own; return every path that it opened, listed or changed, as Python tells."""
    told = folder / "opened"
    child = os.fork()
    if child == 0:
        try:
            settle_in(folder)
            seen: list[str] = []
            sys.addaudithook(lambda event, args: seen.extend(_paths(event, args)))
            for command in commands:
                doctor(folder, *command)
            told.write_text(json.dumps(seen))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    paths: list[str] = json.loads(told.read_text())
    return paths


def _paths(event: str, arguments: tuple[object, ...]) -> Iterator[str]:
    if event == "open" or event.startswith(("os.", "shutil.", "tempfile.", "sqlite3.connect")):
        yield from (os.fsdecode(each) for each in arguments if isinstance(each, str | bytes | os.PathLike))


def examine(store: Path, aside: Path, seed: int, *, share: float, brief: bool = False) -> Verdict:
    """Hold the doctor to its promises on one store, which lies in a folder of its own.

    ``aside``: a folder for what is said. ``share``: of the stores on which all fixes are tried, too. ``brief``: scan
    or plan, not both.
    """
    chance = random.Random(seed)
    verdict = Verdict()
    started = time.process_time()
    _look(store, aside, chance, verdict, brief=brief)
    if chance.random() < share and not verdict.wrong:
        _change(store, aside, verdict)
    verdict.seconds = time.process_time() - started
    verdict.peak_megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return verdict


def _look(store: Path, aside: Path, chance: random.Random, verdict: Verdict, *, brief: bool) -> None:
    """Scan and plan, and see that nothing is changed."""
    before = _listing(store.parent)
    deep = ["--deep"] if chance.random() < 0.2 else []
    if chance.random() < 0.1:
        _look_at_one(store, aside, chance, verdict)
    commands = (["scan", *deep], ["fix", *(["--unsafe"] if chance.random() < 0.7 else []), *deep])
    for command in [chance.choice(commands)] if brief else commands:
        json_wanted = chance.random() < 0.7
        ended = doctor(aside, *command, *(["--json"] if json_wanted else ["--limit", "50"]), store)
        verdict.codes.append(ended.code)
        name = " ".join(command)
        judge(verdict, name, ended, _LOOKS)
        if json_wanted:
            document = _document(verdict, name, ended, command[0], checked=chance.random() < 0.2)
            if command[0] == "scan" and document:
                verdict.found += sum(check["count"] for check in document["databases"][0]["checks"])
        after = _listing(store.parent)
        if after != before:
            changed = sorted(set(before.items()) ^ set(after.items()))
            verdict.wrong.append(f"{name} changed {sorted({each[0] for each in changed})}")


def _look_at_one(store: Path, aside: Path, chance: random.Random, verdict: Verdict) -> None:
    """Ask about a single session, there or not, by an id that may be anything."""
    session = chance.choice(("s1", "s2", "absent", *(text for text in ACTING if "\0" not in text)))
    ended = doctor(aside, "lineage", *chance.choice(([], ["--json"])), "--", session, store)
    judge(verdict, f"lineage {session!r}", ended, _LOOKS | {2})


def judge(verdict: Verdict, name: str, ended: Ended, allowed: frozenset[int]) -> None:
    """Note what a command must not have said, and how it must not have ended."""
    said = ended.out + ended.err
    if ended.code not in allowed:
        verdict.wrong.append(f"{name} ended with {ended.code}: {_last(ended.err or ended.out)}")
    if told := _DEFECT.search(said):
        verdict.wrong.append(f"{name} said {said[max(0, told.start() - 80) : told.end() + 120]!r}")
    acting = _ACTING.search(said)
    if acting:
        verdict.wrong.append(
            f"{name} showed {acting[0]!r} in {said[max(0, acting.start() - 60) : acting.end() + 20]!r}"
        )


def _document(verdict: Verdict, name: str, ended: Ended, schema: str, *, checked: bool) -> dict[str, Any]:
    """The JSON document that was said; by the shipped schema, where it is to be ``checked``."""
    try:
        document = valid(ended.out, schema) if checked else json.loads(ended.out, parse_constant=_refuse)
    except Exception as error:  # whatever is wrong with it is told in one line
        verdict.wrong.append(f"{name}: no valid JSON: {str(error).splitlines()[0][:200]}")
        return {}
    assert isinstance(document, dict)
    for store in document["databases"]:
        if store.get("reason") and document.get("exit_code") == 3:
            verdict.wrong.append(f"{name} failed: {store['reason']}")
        verdict.wrong += [
            f"{name}: {check['check']} failed: {check['reason']}"
            for check in store.get("checks", ())
            if check["status"] == "failed" and store["condition"] not in ("damaged", "unreadable")
        ]
        verdict.wrong += [
            f"{name}: {change['check']} of {change['key']!r} failed: {change['reason']}"
            for change in store.get("changes", ())
            if change["state"] == "failed" and "stands in its way" not in change["reason"]
        ]
    return document


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _change(store: Path, aside: Path, verdict: Verdict) -> None:
    """Mend all, mend again, take it back."""
    outside = _listing(store.parent.parent, but_for=store.parent)
    before, sound, in_step = _image(store), _faults(store), _in_step(store)
    first = doctor(aside, "fix", "--apply", "--unsafe", "--yes", "--json", "--backup", "never", store)
    verdict.codes.append(first.code)
    judge(verdict, "apply", first, _CHANGES)
    document = _document(verdict, "apply", first, "fix", checked=True)
    if not document or first.code == 4:
        return
    (database,) = document["databases"]
    verdict.mended = sum(change["state"] == "applied" for change in database["changes"])
    new = _faults(store) - sound
    if new:
        verdict.wrong.append(f"apply made the file less sound: {sorted(new)[:3]}")
    # The places of rows that cannot be told apart may have moved.
    second = doctor(aside, "fix", "--apply", "--unsafe", "--yes", "--json", "--backup", "never", store)
    judge(verdict, "second run", second, _CHANGES)
    again = _document(verdict, "second run", second, "fix", checked=False)
    applied = [c for one in (document, again) if one for c in one["databases"][0]["changes"] if c["state"] == "applied"]
    if again and first.code != 5:
        changed = [each for each in again["databases"][0]["changes"] if each["state"] == "applied"]
        verdict.wrong += [f"second run: {each['check']} of {each['key']!r} again" for each in changed[:3]]
    for run_name in (again["databases"][0]["run"] if again else None, database["run"]):
        if run_name is None:
            continue
        undone = doctor(aside, "undo", run_name, store, "--apply", "--json")
        judge(verdict, "undo", undone, frozenset({0}))
        _document(verdict, "undo", undone, "undo", checked=True)
    if before is not None:
        after = _image(store)
        lines = ["the store cannot be read any more"] if after is None else _differences(before, after)
        if not in_step or any(each["check"] == "search-index" for each in applied):
            # Derived from the rows: where it was out of step before, there is nothing to take back.
            lines = [line for line in lines if not _OF_INDEX.match(line)]
        verdict.wrong += [f"undo: {line}" for line in lines[:5]]
    if _listing(store.parent.parent, but_for=store.parent) != outside:
        verdict.wrong.append("something outside the store's folder was changed")


def _listing(folder: Path, *, but_for: Path | None = None) -> dict[str, tuple[int, int, str]]:
    """Every file in the folder: size, modification time, content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if but_for is not None and path.is_relative_to(but_for):
            continue
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            # A folder's time moves when something is made in it and taken away again.
            found[str(path)] = (status.st_size, status.st_mtime_ns, content)
    return found


_Image = tuple[str, Any]


def _image(store: Path) -> _Image | None:
    """All that can be told of a store; where its indexes cannot be asked, its rows alone."""
    try:
        return "whole", image_of(store)
    except (apsw.Error, sqlite3.Error, UnicodeDecodeError, IndexError, OverflowError):
        pass
    try:
        return "rows", _rows(store)
    except (apsw.Error, UnicodeDecodeError):
        return None


def _in_step(store: Path) -> bool:
    """Whether the search indexes hold what they should, as far as that can be told."""
    try:
        return not index_faults(store)
    except (apsw.Error, sqlite3.Error, UnicodeDecodeError, IndexError, OverflowError):
        return False


def _differences(before: _Image, after: _Image) -> list[str]:
    if before[0] != after[0]:
        return [f"what could be read was {before[0]}, and is {after[0]}"]
    if before[0] == "whole":
        return difference(before[1], after[1])
    return [f"rows of {name} differ" for name in before[1] if before[1][name] != after[1].get(name)]


def _rows(store: Path) -> dict[str, list[str]]:
    """Every row of every table but those of the indexes, as SQLite writes it."""
    found: dict[str, list[str]] = {}
    with _copied(store) as connection:
        listed = connection.execute("SELECT CAST(name AS BLOB) FROM pragma_table_list WHERE type = 'table'").fetchall()
        for (raw,) in listed:
            assert isinstance(raw, bytes)
            name = raw.decode("utf-8", "replace")
            if name.lower().startswith("sqlite_"):
                continue
            table = '"' + name.replace('"', '""') + '"'
            try:
                columns = connection.execute("SELECT name FROM pragma_table_xinfo(?)", (name,)).fetchall()
                cells = ", ".join(f"quote({_quoted(str(c))})" for (c,) in columns)
                found[name] = sorted(str(row) for row in connection.execute(f"SELECT {cells} FROM {table}"))
            except (apsw.Error, UnicodeDecodeError):
                continue
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _faults(store: Path) -> frozenset[str]:
    """What SQLite's own check says of the file, without numbers: rows and pages have moved."""
    try:
        with _copied(store) as connection:
            told = [str(row[0]) for row in connection.execute("PRAGMA main.integrity_check")]
    except (apsw.Error, UnicodeDecodeError) as error:
        told = [type(error).__name__]
    return frozenset(re.sub(r"\d+", "N", line) for line in told if line != "ok")


@contextlib.contextmanager
def _copied(store: Path) -> Iterator[apsw.Connection]:
    copy = store.parent.parent / "aside-copy.db"
    try:
        for suffix in ("", "-wal", "-journal"):
            source = store.with_name(store.name + suffix)
            if source.exists():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        with closing(apsw.Connection(str(copy))) as connection:
            connection.create_collation("STRANGE", lambda a, b: (a > b) - (a < b))
            yield connection
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            copy.with_name(copy.name + suffix).unlink(missing_ok=True)


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else ""


__all__: Sequence[str] = ("Verdict", "doctor", "examine", "settle_in")
