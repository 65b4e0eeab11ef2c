"""What can befall a store while a doctor is at work on it, at one of its numbered steps, and how that must end.

The doctor stops itself there (SIGSTOP), the mishap comes, and the doctor goes on. Then everything is put back as it
was at that moment, and must be as after a kill: nothing lost, and the same command does the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from hermes_doctor.engine.steps import Step
from tests.whole import killing
from tests.whole.breaking import at_rest, leave_free_pages
from tests.whole.killing import LATER, Patient, agreement
from tests.whole.runner import Ended

NOBODY = 65534
_BESIDE = ("", "-wal", "-shm", "-journal")

#: The steps at which something still can go wrong with the store, for each command.
STEPS: dict[str, tuple[tuple[Step, int], ...]] = {
    "scan": ((Step.SCANNING, 1), (Step.SCANNED, 1)),
    "backup": ((Step.BACKING_UP, 1), (Step.BACKUP_COPIED, 1), (Step.BACKED_UP, 1)),
    "fix": (
        (Step.LOCKED, 1),
        *((step, LATER) for step in (Step.BEGUN, Step.MENDED, Step.PENDING, Step.COMMITTED, Step.APPLIED)),
    ),
    "undo": (
        (Step.UNDO_LOCKED, 1),
        *((step, 5) for step in (Step.UNDO_BEGUN, Step.UNDO_RESTORED, Step.UNDO_COMMITTED)),
    ),
    "compact": tuple((step, 1) for step in (Step.COMPACT_LOCKED, Step.COMPACT_CHECKED, Step.COMPACTED)),
}


def replaced(store: Path) -> None:
    """Another store is moved to its place: a backup that was put back."""
    aside = store.with_name("incoming")
    connection = apsw.Connection(str(aside))
    connection.execute("CREATE TABLE sessions(id TEXT PRIMARY KEY, source, started_at)")
    connection.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, session_id, role)")
    connection.close()
    for suffix in _BESIDE[1:]:
        Path(f"{store}{suffix}").unlink(missing_ok=True)
    aside.replace(store)


def deleted(store: Path) -> None:
    """Somebody removes it, log and all."""
    for suffix in _BESIDE:
        Path(f"{store}{suffix}").unlink(missing_ok=True)


def halved(store: Path) -> None:
    """Half of it is cut off."""
    os.truncate(store, store.stat().st_size // 8192 * 4096)


def emptied(store: Path) -> None:
    """All of it is."""
    os.truncate(store, 0)


def without_log(store: Path) -> None:
    """Somebody removes the log, or the journal, only."""
    for suffix in _BESIDE[1:]:
        Path(f"{store}{suffix}").unlink(missing_ok=True)


#: Each mishap, and the exit codes with which a doctor that writes may end. Without its rollback journal SQLite may say
#: that the disk is at fault.
MISHAPS: dict[Callable[[Path], None], frozenset[int]] = {
    replaced: frozenset({7}),
    deleted: frozenset({4}),
    halved: frozenset({4}),
    emptied: frozenset({4}),
    without_log: frozenset({0, 3, 7}),
}


def may_end(command: str, step: Step, mode: str, mishap: Callable[[Path], None]) -> frozenset[int]:
    """With which exit codes a command may end after a mishap at a step."""
    if command == "scan":
        # It looks again, and tells of what is there then.
        return frozenset({0}) if mishap is replaced else MISHAPS[mishap] - {7}
    if step is Step.COMPACTED and mode == "wal" and mishap in (halved, emptied):
        # All pages are in the log, and come to the store from there.
        return frozenset({0})
    return MISHAPS[mishap]


@dataclass(frozen=True)
class Snapshot:
    """The files of a store at one moment."""

    files: dict[str, bytes]

    @classmethod
    def of(cls, store: Path) -> Snapshot:
        """Read them; whoever has them open is stopped."""
        paths = {suffix: Path(f"{store}{suffix}") for suffix in ("", "-wal", "-journal")}
        return cls({suffix: path.read_bytes() for suffix, path in paths.items() if path.exists()})

    def put_back(self, store: Path) -> None:
        """Lay them there again; the log's index is made anew."""
        deleted(store)
        for suffix, content in self.files.items():
            Path(f"{store}{suffix}").write_bytes(content)


def start(sick: Patient, command: str, run: str | None = None, **how: Any) -> Ended:
    """Let a command do its work."""
    if command == "undo":
        assert run is not None
        return sick.undo(run, **how)
    act: dict[str, Callable[..., Ended]] = {
        "scan": sick.scan,
        "backup": partial(sick.fix, backup="always"),
        "fix": sick.fix,
        "compact": sick.compact,
    }
    return act[command](**how)


def prepare(sick: Patient, command: str) -> str | None:
    """Bring a home to where the command has something to do; return the run that an undo is to take back."""
    at_rest(sick.home.store)
    if command == "undo":
        assert sick.fix().code == 0
        return sick.runs()[0]
    if command == "compact":
        leave_free_pages(sick.home.store)
    return None


def interrupted(
    sick: Patient, command: str, step: Step, count: int, meanwhile: Callable[[], None], **how: Any
) -> tuple[Ended, Snapshot]:
    """Run a command, and have something happen at a step; return how it ended, and the store as it was then."""
    run = prepare(sick, command)
    seen: list[Snapshot] = []

    def act(pid: int) -> None:
        wait_until_stopped(pid)
        seen.append(Snapshot.of(sick.home.store))
        meanwhile()
        os.kill(pid, signal.SIGCONT)

    ended = start(sick, command, run, kill_at=f"{step}:{count}:STOP", started=act, **how)
    return ended, seen[0]


def wait_until_stopped(pid: int) -> None:
    """Wait until a process has stopped itself."""
    deadline = time.monotonic() + 60
    state = ""
    while state != "T":
        with contextlib.suppress(FileNotFoundError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert Path(f"/proc/{pid}").exists(), "it ended before it came to the step"
        assert state != "Z", "it ended before it came to the step"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def befall(sick: Patient, command: str, step: Step, count: int, mishap: Callable[[Path], None]) -> None:
    """Let a mishap befall a store, and see that the doctor says so in one line and nothing is lost by it."""
    after: list[bytes] = []

    def meanwhile() -> None:
        mishap(sick.home.store)
        after.append(sick.home.store.read_bytes() if sick.home.store.exists() else b"")

    ended, snapshot = interrupted(sick, command, step, count, meanwhile)
    codes = may_end(command, step, sick.mode, mishap)
    told = said(ended)
    assert ended.code in codes, (ended.code, codes, told)
    if mishap is replaced and command != "scan":
        assert "was replaced by another file meanwhile" in told
        assert sick.home.store.read_bytes() == after[0]
    elif command != "scan" and ended.code:
        assert told
    if ended.code or command == "scan":
        snapshot.put_back(sick.home.store)
    do_the_rest(sick, command)


def do_the_rest(sick: Patient, command: str) -> None:
    """With the store as it was, see that nothing is lost and the same command does the rest."""
    sick.assert_sound()
    assert agreement(sick.home, stopped=True) == []
    if command == "scan":
        sick.assert_same()
        assert sick.scan().code == 0
        sick.assert_tidy()
    elif command == "compact":
        sick.assert_same()
        killing.compact_to_the_end(sick)
    elif command == "undo":
        sick.undo_all()
    else:
        sick.finish()
        sick.undo_all()


def said(ended: Ended) -> str:
    """What a doctor said of how its work ended: one line, no traceback and no word of a defect."""
    for word in ("Traceback", "defect", "unexpected", "Exception"):
        assert word not in ended.out + ended.err, (ended.out[-1500:], ended.err)
    assert len(ended.err.splitlines()) <= 1, ended.err
    reason = json.loads(ended.out)["databases"][0]["reason"] or ""
    assert "\n" not in reason
    return str(reason)


def fill(disk: Path, leaving: int = 0) -> None:
    """Use up a disk, but for so many bytes."""
    status = os.statvfs(disk)
    free = status.f_bavail * status.f_frsize - leaving
    with (disk / "filler").open("ab", buffering=0) as filler:
        if free > 0:
            os.posix_fallocate(filler.fileno(), 0, free)


def fills_up(sick: Patient, disk: Path, command: str, step: Step, count: int, pages: int) -> int:
    """Let the disk be full but for so many pages from a step on; return the exit code."""
    ended, _snapshot = interrupted(sick, command, step, count, lambda: fill(disk, pages * 4096))
    told = said(ended)
    assert ended.code in ({0, 3, 5} if command == "backup" else {0, 3}), (ended.code, told)
    if ended.code:
        assert "disk is full" in told or "no room" in told or "cannot be written" in told, told
    (disk / "filler").unlink()
    do_the_rest(sick, command)
    return ended.code


def loses_its_rights(sick: Patient, command: str, step: Step, count: int) -> None:
    """Let the doctor, as somebody who is not root, lose the right to write where it is at work."""
    _give_to(sick, NOBODY)
    places = (sick.home.store, sick.home.path, sick.home.path / "doctor", sick.home.path / "doctor" / "doctor.db")
    modes: dict[Path, int] = {}

    def meanwhile() -> None:
        for place in places:
            if place.exists():
                modes[place] = place.stat().st_mode & 0o777
                place.chmod(0o500 if place.is_dir() else 0o400)

    ended, _snapshot = interrupted(sick, command, step, count, meanwhile, user=NOBODY)
    told = said(ended)
    assert ended.code in {0, 3, 5}, (ended.code, told)
    assert not ended.code or "\n" not in told
    for place, mode in modes.items():
        place.chmod(mode)
    _give_to(sick, 0)
    do_the_rest(sick, command)


def _give_to(sick: Patient, user: int) -> None:
    for folder in (sick.home.path.parent, sick.doctors.temporary.parent):
        folder.chmod(0o755)
        for path in (folder, *folder.rglob("*")):
            if not path.is_symlink():
                os.chown(path, user, user)
