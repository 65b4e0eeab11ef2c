"""Killing a doctor in the middle of its work, and what must hold afterwards.

`agreement` reads the journal and the store with nothing of the doctor's own code, so that the two cannot be wrong
together.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from hermes_doctor.engine.steps import Step
from tests.oracle.home import Home
from tests.whole.damaged import damaged
from tests.whole.identical import Image, difference, image_of, index_faults
from tests.whole.runner import Doctors, Ended

#: (release, journal mode): the mode that the release makes by itself, and the other one.
STORES = (("0.19.0", "wal"), ("0.22.2", "delete"), ("0.19.0", "delete"), ("0.22.2", "wal"))

#: What a run reaches once, what each of its transactions does, what settling does, and what taking back does.
ONCE = (Step.LOCKED, Step.BACKED_UP)
EACH = (Step.BEGUN, Step.MENDED, Step.CHANGESET, Step.PENDING, Step.COMMITTED, Step.APPLIED)
SETTLE = (Step.SETTLING, Step.SETTLED)
UNDO = (Step.UNDO_BEGUN, Step.UNDO_RESTORED, Step.UNDO_COMMITTED, Step.UNDONE)
#: A transaction in the middle of a run: several rows of another kind than the first.
LATER = 12

#: A row's place: table, and the key's cells; and its cells by column, None where there is no such row.
_Place = tuple[str, tuple[tuple[str, object], ...]]
_Image = dict[str, object] | None


@dataclass
class Patient:
    """A damaged home and how it was."""

    home: Home
    doctors: Doctors
    before: Image
    #: What SQLite's checks say of it, see `soundness`.
    sound: list[str]

    def fix(
        self,
        *narrowed: str,
        kill_at: str | None = None,
        backup: str = "never",
        after: Callable[[int], None] | None = None,
    ) -> Ended:
        """Mend all of it; ``kill_at`` or ``after`` end it by SIGKILL."""
        options = ("--apply", "--unsafe", "--yes", "--json", "--backup", backup, *narrowed)
        return self.doctors.run("fix", self.home.path, *options, kill_at=kill_at, started=after)

    def undo(self, run: str, *, kill_at: str | None = None, after: Callable[[int], None] | None = None) -> Ended:
        """Take a run back."""
        return self.doctors.run("undo", run, self.home.path, "--apply", "--json", kill_at=kill_at, started=after)

    def assert_sound(self) -> None:
        """SQLite's checks say no more than they did before."""
        assert soundness(self.home) == self.sound

    def runs(self) -> list[str]:
        """The runs that the journal knows, newest first."""
        return [str(run) for (run,) in journal(self.home, "SELECT run FROM runs ORDER BY at DESC, run DESC")]

    def finish(self) -> None:
        """The same command finishes: all is mended, and the journal says what is in the store."""
        done = self.fix()
        assert done.code == 0, (done.out, done.err)
        assert done.json()["mendable"] == 0
        scan = self.doctors.run("scan", self.home.path, "--json", "--fail-on", "never")
        left = {(each["check"], each["fix"]) for each in scan.json()["findings"]}
        assert not [each for each in left if each[1] != "none"], left
        self.assert_sound()
        assert agreement(self.home) == []

    def undo_all(self) -> None:
        """Taking back all runs gives the store as it was, and the journal says so."""
        for run in self.runs():
            done = self.undo(run)
            assert done.code == 0, (done.out, done.err)
        assert difference(self.before, image_of(self.home.store)) == []
        states = {state for (state,) in journal(self.home, "SELECT DISTINCT state FROM changesets")}
        assert states <= {"undone", "not-applied"}
        self.assert_sound()


@contextmanager
def patient(templates: Path, doctors: Doctors, version: str, mode: str) -> Iterator[Patient]:
    """A fresh damaged home, in memory where the machine has such a folder: a kill asks nothing of the disk."""
    with tempfile.TemporaryDirectory(dir=_fast()) as folder:
        home = damaged(templates, Path(folder) / "home", version, mode)
        sound = soundness(home)
        assert all(line == "ok" or "trigram" in line for line in sound), sound
        yield Patient(home, doctors, image_of(home.store), sound)
        assert home.journal_mode() == mode


def _fast() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def killed(ended: Ended) -> None:
    """Fail unless that was a kill: a step that was not reached proves nothing."""
    assert ended.code == -signal.SIGKILL, (ended.code, ended.out[-1000:], ended.err)


def kill_in_fix(sick: Patient, step: Step, count: int) -> None:
    """Kill a repair at a step, and see that nothing is lost and everything can be done and taken back."""
    killed(sick.fix(kill_at=f"{step}:{count}", backup="always" if step is Step.BACKED_UP else "never"))
    sick.assert_sound()
    assert agreement(sick.home, stopped=True) == []
    sick.finish()
    sick.undo_all()


def kill_in_settling(sick: Patient, step: Step, before: Step) -> None:
    """The same for the settling of what a first kill left, which is killed in turn."""
    killed(sick.fix(kill_at=f"{before}:{LATER}"))
    assert ("pending",) in journal(sick.home, "SELECT state FROM changesets")
    killed(sick.fix(kill_at=f"{step}:1"))
    sick.assert_sound()
    assert agreement(sick.home, stopped=True) == []
    sick.finish()
    sick.undo_all()


def kill_in_undo(sick: Patient, step: Step, count: int) -> None:
    """The same for taking back; the same command then does the rest of it."""
    assert sick.fix().code == 0
    (run,) = sick.runs()
    killed(sick.undo(run, kill_at=f"{step}:{count}"))
    sick.assert_sound()
    assert agreement(sick.home, stopped=True) == []
    sick.undo_all()


@dataclass
class Waiter:
    """Kills a doctor so many seconds after it has taken its lock."""

    home: Home
    seconds: float

    def __call__(self, pid: int) -> None:
        """Begin to wait, beside the process."""
        threading.Thread(target=self._wait, args=(pid,), daemon=True).start()

    def _wait(self, pid: int) -> None:
        if _wait_for_lock(self.home, pid):
            time.sleep(self.seconds)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass(frozen=True)
class Timing:
    """How long a repair and its being undone take, each from its lock to its end, in seconds."""

    fix: float
    undo: float


def timing(sick: Patient) -> Timing:
    """Mend it and take it back, and take the time."""
    fix = _seconds(sick, lambda watch: sick.fix(after=watch))
    (run,) = sick.runs()
    return Timing(fix, _seconds(sick, lambda watch: sick.undo(run, after=watch)))


def _seconds(sick: Patient, act: Callable[[Callable[[int], None]], Ended]) -> float:
    """How long a doctor is at work, from its lock to its end."""
    begun: list[float] = []

    def watch(pid: int) -> None:
        _wait_for_lock(sick.home, pid)
        begun.append(time.monotonic())

    _clear_lock(sick.home)
    ended = act(watch)
    assert ended.code == 0, (ended.out, ended.err)
    return time.monotonic() - begun[0]


def _wait_for_lock(home: Home, pid: int) -> bool:
    """Wait until the lock file holds a record, as it does while a doctor is at work; False where it ended first."""
    lock = home.path / "doctor" / "doctor.lock"
    while not (lock.exists() and lock.stat().st_size):
        if not _alive(pid):
            return False
        time.sleep(0.0005)
    return True


def _clear_lock(home: Home) -> None:
    """Take away a killed doctor's record: nobody has the lock, and what the file holds means nothing."""
    lock = home.path / "doctor" / "doctor.lock"
    if lock.exists():
        lock.write_bytes(b"")


def kill_at_random(sick: Patient, chance: random.Random, taken: Timing) -> int:
    """Kill the repair at a random moment, finish it, then kill its undoing; return how many kills hit the work."""
    hits = int(_hit(sick, sick.fix(after=Waiter(sick.home, chance.uniform(0, taken.fix)))))
    sick.assert_sound()
    assert agreement(sick.home, stopped=True) == []
    sick.finish()
    newest, *_ = sick.runs()
    _clear_lock(sick.home)
    hits += _hit(sick, sick.undo(newest, after=Waiter(sick.home, chance.uniform(0, taken.undo))))
    sick.assert_sound()
    assert agreement(sick.home, stopped=True) == []
    sick.undo_all()
    return hits


def _hit(sick: Patient, ended: Ended) -> bool:
    """Whether a doctor was killed at work: it had begun to change something, and was not through with it."""
    assert ended.code in (-signal.SIGKILL, 0), (ended.code, ended.out[-1000:], ended.err)
    return ended.code != 0 and bool(journal(sick.home, "SELECT 1 FROM changesets"))


def journal(home: Home, question: str) -> list[tuple[Any, ...]]:
    """Ask the doctor's journal something; empty where there is none yet. Reads a copy, hot journal and all."""
    source = home.path / "doctor" / "doctor.db"
    if not source.exists():
        return []
    with tempfile.TemporaryDirectory(dir=_fast()) as folder:
        copy = Path(folder) / "doctor.db"
        for suffix in ("", "-journal"):
            if source.with_name(source.name + suffix).exists():
                shutil.copy(source.with_name(source.name + suffix), copy.with_name(copy.name + suffix))
        connection = sqlite3.connect(copy)
        try:
            known = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            return connection.execute(question).fetchall() if {"runs", "changesets"} <= known else []
        finally:
            connection.close()


@contextmanager
def _store(home: Home) -> Iterator[apsw.Connection]:
    with tempfile.TemporaryDirectory(dir=_fast()) as folder:
        for suffix in ("", "-wal", "-journal"):
            source = home.store.with_name(home.store.name + suffix)
            if source.exists():
                shutil.copy(source, Path(folder) / source.name)
        connection = apsw.Connection(str(Path(folder) / home.store.name))
        try:
            yield connection
        finally:
            connection.close()


def soundness(home: Home) -> list[str]:
    """What SQLite's own check and those of the search index have to say.

    Of a healthy store not always nothing: a newer SQLite finds fault with the trigram index that the one of hermes's
    Python has made (upstream #69672).
    """
    with _store(home) as connection:
        said = connection.execute("PRAGMA integrity_check").fetchall()
    return [*(str(line) for (line,) in said), *index_faults(home.store)]


def agreement(home: Home, *, stopped: bool = False) -> list[str]:
    """Say where the journal says something else than the store holds, row by row, from the newest change back.

    ``stopped``: a kill came just before, so that one changeset may be pending (its rows all as before, or all as
    after), and one that is applied may have been taken back already.
    """
    wrong: list[str] = []
    # Rows as they were before the changes that have been looked at; and as what is undone must have left them.
    rows: dict[_Place, _Image] = {}
    restored: dict[_Place, _Image] = {}
    unsettled = 0
    entries = journal(home, 'SELECT number, state, changeset, "columns" FROM changesets ORDER BY number DESC')
    with _store(home) as connection:
        for number, state, changeset, columns in entries:
            changes = list(_changes(changeset, json.loads(columns)))
            if state == "undone":
                restored |= {place: before for place, before, _after in changes}
                continue
            sides = {_side(connection, rows, *change) for change in changes}
            if state == "pending" or (state == "applied" and sides == {"before"}):
                unsettled += 1
            if sides == {"after"} and state in ("applied", "pending"):
                rows |= {place: _overlaid(connection, rows, place, before) for place, before, _after in changes}
            elif sides != {"before"}:
                wrong.append(f"changeset {number} is {state}, its rows are as {sorted(sides)}")
        wrong += [
            f"{place} is not as before the change that was undone"
            for place, before in restored.items()
            if not _holds(_row(connection, {}, place), before)
        ]
    if unsettled > stopped:
        wrong.append(f"{unsettled} changesets are not settled")
    return wrong


def _changes(changeset: bytes, columns: dict[str, list[str]]) -> Iterator[tuple[_Place, _Image, _Image]]:
    """Each row's place, and its changed columns before and after."""
    for change in apsw.Changeset.iter(changeset):
        names = columns[change.name]

        def named(values: Any, names: list[str] = names) -> dict[str, object] | None:
            if values is None:
                return None
            pairs = zip(names, values, strict=True)
            return {name: value for name, value in pairs if value is not apsw.no_change}

        old, new = named(change.old), named(change.new)
        known = old or new or {}
        keys = {names[place]: known[names[place]] for place in sorted(change.pk_columns)}
        yield (change.name, tuple(keys.items())), old, new


def _side(connection: apsw.Connection, rows: dict[_Place, _Image], place: _Place, before: _Image, after: _Image) -> str:
    row = _row(connection, rows, place)
    if _holds(row, after):
        return "after"
    return "before" if _holds(row, before) else "neither"


def _row(connection: apsw.Connection, rows: dict[_Place, _Image], place: _Place) -> _Image:
    if place in rows:
        return rows[place]
    table, key = place
    where = " AND ".join(f'"{name}" IS ?' for name, _ in key)
    values = tuple(value for _, value in key)
    cursor = connection.execute(f'SELECT * FROM "{table}" WHERE {where}', values)
    row = cursor.fetchone()
    if row is None:
        return None
    described = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    return dict(zip([str(name) for (name,) in described], row, strict=True))


def _overlaid(connection: apsw.Connection, rows: dict[_Place, _Image], place: _Place, before: _Image) -> _Image:
    """The row as it was before a change: what the change carries, over what it holds now."""
    return None if before is None else {**(_row(connection, rows, place) or {}), **before}


def _holds(row: _Image, image: _Image) -> bool:
    if row is None or image is None:
        return row is image
    return all(type(row[name]) is type(value) and row[name] == value for name, value in image.items())
