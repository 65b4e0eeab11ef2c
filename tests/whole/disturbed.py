"""Doctors that are disturbed from outside: by signals at any moment, by streams that are closed, by one another.

Each is the real program in a process of its own, from the start of its interpreter to its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from hermes_doctor.engine.steps import Step
from tests.whole.breaking import at_rest, leave_free_pages
from tests.whole.killing import LATER, Patient, agreement
from tests.whole.mishaps import prepare, start, wait_until_stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
#: Exit codes of commands that nothing disturbs, and of such as were stopped.
CODES = {"scan": (1, 7), "backup": (0, 7), "fix": (0, 7), "undo": (0, 7), "compact": (0, 7)}


def words(sick: Patient, command: str, run: str | None) -> list[str]:
    """What is typed for a command."""
    home = str(sick.home.path)
    fix = ["fix", home, "--apply", "--unsafe", "--yes", "--json", "--backup"]
    typed = {
        "scan": ["scan", home, "--json"],
        "backup": [*fix, "always"],
        "fix": [*fix, "never"],
        "undo": ["undo", str(run), home, "--apply", "--json"],
        "compact": ["compact", home, "--apply", "--json"],
    }
    return typed[command]


def begin(sick: Patient, typed: Sequence[str], **settings: object) -> subprocess.Popen[str]:
    """Start the installed command."""
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]  # with whatever settings
        [sys.executable, "-P", "-m", "hermes_doctor", *typed],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **settings},
        text=True,
        cwd="/",
        env=os.environ | _environment(sick),
    )


def _environment(sick: Patient) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(sick.home.path.parent / "state"), "TMPDIR": str(sick.doctors.temporary)}


def seconds_of(sick: Patient, command: str) -> float:
    """How long a command takes, the start of its interpreter and all."""
    run = prepare(sick, command)
    begun = time.monotonic()
    working = begin(sick, words(sick, command, run))
    working.communicate(timeout=300)
    assert working.returncode in CODES[command]
    return time.monotonic() - begun


def signalled(sick: Patient, command: str, number: signal.Signals, after: float, again: float | None) -> str:
    """Send a signal that many seconds after the start, perhaps once more, and see what comes of it; say what did."""
    run = prepare(sick, command)
    working = begin(sick, words(sick, command, run))
    for pause in (after, *([again] if again is not None else [])):
        with contextlib.suppress(subprocess.TimeoutExpired):
            working.wait(pause)
        # A process that has ended is still ours until it is waited for, which send_signal() knows.
        working.send_signal(number)
    out, err = working.communicate(timeout=300)
    code = working.returncode
    # Up to the first line of ours the interpreter ends as any does; nothing has begun by then.
    by_python = number is signal.SIGINT and err.endswith("KeyboardInterrupt\n") and "/hermes_doctor/" not in err
    early = not out and (by_python or (code == -number and not err))
    if early:
        err = ""
    assert code in CODES[command] or early, (code, out[-500:], err[-500:])
    assert code != 7 or number is not signal.SIGPIPE
    assert "Traceback" not in err, err
    assert "Exception" not in err, err
    assert len(err.splitlines()) <= 1, err
    if not early and err == "":
        document = json.loads(out)
        assert document["exit_code"] == code
        assert (document["outcome"] == "stopped") == (code == 7)
    finish(sick, command)
    return "early" if early else "stopped" if code == 7 else "through"


def finish(sick: Patient, command: str) -> None:
    """See that nothing is lost, nothing left behind, and the same command does the rest."""
    sick.assert_sound()
    assert agreement(sick.home) == []
    if command in ("scan", "compact"):
        sick.assert_same()
    if command == "undo":
        sick.undo_all()
    elif command in ("fix", "backup"):
        sick.finish()
        sick.undo_all()
    else:
        assert (sick.scan() if command == "scan" else sick.compact()).code == 0
        sick.assert_same()
    sick.assert_tidy()


def closed_output(sick: Patient, command: str, how: str) -> None:
    """Run a command whose reader goes away, whose output is closed, or full, or whose input is closed."""
    run = prepare(sick, command)
    typed = " ".join(f"'{word}'" for word in words(sick, command, run))
    doctor = f"'{sys.executable}' -P -m hermes_doctor {typed}"
    shell = {
        "head": f"{doctor} | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}",
        "true": f"{doctor} | true; exit ${{PIPESTATUS[0]}}",
        "closed": f"{doctor} >&-",
        "full": f"{doctor} >/dev/full",
        "no input": f"{doctor} <&- >/dev/null",
    }[how]
    done = subprocess.run(
        ["bash", "-c", shell],
        capture_output=True,
        text=True,
        cwd="/",
        env=os.environ | _environment(sick),
        timeout=300,
        check=False,
    )
    usual = CODES[command][0]
    codes = {"head": {7, usual}, "true": {7}, "closed": {usual}, "full": {3}, "no input": {usual}}[how]
    assert done.returncode in codes, (done.returncode, done.stderr)
    assert len(done.stderr.splitlines()) == (how == "full"), done.stderr
    assert "Traceback" not in done.stderr
    finish(sick, command)


def random_signals(sick: Patient, command: str, seconds: float, chance: random.Random) -> str:
    """Send a random signal at a random moment, every third time two."""
    again = chance.choice((None, None, chance.uniform(0, 0.05)))
    return signalled(sick, command, chance.choice(SIGNALS), chance.uniform(0, seconds), again)


#: A step in the midst of each command's work.
MIDST = {
    "scan": (Step.SCANNING, 1),
    "backup": (Step.BACKUP_COPIED, 1),
    "fix": (Step.BEGUN, LATER),
    "undo": (Step.UNDO_RESTORED, 5),
    "compact": (Step.COMPACT_CHECKED, 1),
}


def two_at_once(sick: Patient, first: str, second: str) -> tuple[int, str]:
    """Run a command while another one is stopped in the midst of its work; return its exit code and what it said.

    Both do their work whole, or the second is sent away; the first then does the rest.
    """
    met: list[tuple[int, str, str]] = []
    step, count = MIDST[first]
    at_rest(sick.home.store)
    if "undo" in (first, second):
        # A part of it, so that there is something left for a repair.
        assert sick.fix(*([] if first == "undo" else ["--check", "double-encoded"])).code == 0
    if "compact" in (first, second):
        leave_free_pages(sick.home.store)
    run = sick.runs()[0] if first == "undo" else None

    def meanwhile(pid: int) -> None:
        wait_until_stopped(pid)
        names = sick.runs()
        other = begin(sick, words(sick, second, names[0] if names else None))
        out, err = other.communicate(timeout=300)
        met.append((other.returncode, out, err))
        os.kill(pid, signal.SIGCONT)

    done = start(sick, first, run, kill_at=f"{step}:{count}:STOP", started=meanwhile)
    code, out, err = met[0]
    assert "Traceback" not in out + err + done.out + done.err
    assert len(err.splitlines()) <= 1, err
    assert done.code in (0, 7), (done.code, done.out[-800:])
    sick.assert_sound()
    assert agreement(sick.home) == []
    told = json.loads(out)["databases"] if out else []
    return code, str(told[0].get("reason")) if told else err
