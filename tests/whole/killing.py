"""Killing a doctor in the middle of its work, and what must hold afterwards.

`agreement` reads the journal and the store with nothing of the doctor's own code, so that the two cannot be wrong
together.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from hermes_doctor.engine.steps import Step
from tests.oracle.home import Home
from tests.whole.breaking import leave_free_pages
from tests.whole.damaged import damaged
from tests.whole.identical import Image, difference, image_of, index_faults
from tests.whole.runner import Doctors, Ended
from tests.whole.support import fingerprint

#: (release, journal mode): the mode that the release makes by itself, and the other one.
STORES = (("0.19.0", "wal"), ("0.22.2", "delete"), ("0.19.0", "delete"), ("0.22.2", "wal"))

#: What a scan reaches, what a backup does, what a run reaches once, what each of its transactions does, what settling
#: does, what taking back reaches once and does with each transaction and with a file, and what compacting reaches.
SCAN = (Step.SCANNING, Step.SCANNED)
BACKUP = (Step.BACKING_UP, Step.BACKUP_COPIED, Step.BACKUP_NAMED, Step.BACKED_UP)
ONCE = (Step.LOCKED, Step.FINISHED)
EACH = (Step.BEGUN, Step.MENDED, Step.CHANGESET, Step.PENDING, Step.COMMITTED, Step.APPLIED)
SETTLE = (Step.SETTLING, Step.SETTLED)
UNDO_ONCE = (Step.UNDO_LOCKED, Step.UNDO_MARKED)
UNDO = (Step.UNDO_BEGUN, Step.UNDO_RESTORED, Step.UNDO_COMMITTED, Step.UNDONE)
UNDO_FILE = (Step.UNDO_COPIED,)
COMPACT = (Step.COMPACT_LOCKED, Step.COMPACT_CHECKED, Step.COMPACTED, Step.COMPACT_CUT, Step.COMPACT_VERIFIED)
#: A transaction in the middle of a run: several rows of another kind than the first.
LATER = 12

#: A row's place: table, and the key's cells; and its cells by column, None where there is no such row.
_Place = tuple[str, tuple[tuple[str, object], ...]]
_Image = dict[str, object] | None


#: What may lie in a home after a doctor's work that did not before: its own records, locks, and the log.
_MAY_STAY = re.compile(
    r"doctor(/doctor\.db|/doctor\.lock|/backups(/state-[-\d]+\.db)?)?|state\.db(-wal|-shm|\.auto-maintenance\.lock)"
)


@dataclass
class Patient:
    """A damaged home and how it was."""

    home: Home
    doctors: Doctors
    #: The journal mode of its store.
    mode: str
    before: Image
    #: What SQLite's checks say of it, see `soundness`.
    sound: list[str]
    #: The names of its files.
    files: set[str]

    def scan(self, **how: Any) -> Ended:
        """Look at all of it."""
        return self.doctors.run("scan", self.home.path, "--json", "--fail-on", "never", **how)

    def fix(self, *narrowed: str, backup: str = "never", **how: Any) -> Ended:
        """Mend all of it; ``how`` is what `Doctors.run` takes."""
        options = ("--apply", "--unsafe", "--yes", "--json", "--backup", backup, *narrowed)
        return self.doctors.run("fix", self.home.path, *options, **how)

    def undo(self, run: str, **how: Any) -> Ended:
        """Take a run back."""
        return self.doctors.run("undo", run, self.home.path, "--apply", "--json", **how)

    def compact(self, **how: Any) -> Ended:
        """Write the store's file anew."""
        return self.doctors.run("compact", self.home.path, "--apply", "--json", **how)

    def assert_sound(self) -> None:
        """SQLite's checks say no more than they did before."""
        assert (said := soundness(self.home)) == self.sound, said

    def assert_same(self) -> None:
        """No row is another one than at first, none is lost and none is new."""
        assert (differs := difference(self.before, image_of(self.home.store))) == [], differs

    def assert_tidy(self) -> None:
        """Nothing lies there that is not to stay: not in the home, and no private copy elsewhere."""
        left = {name for name in _names(self.home.path) - self.files if not _MAY_STAY.fullmatch(name)}
        assert left == set(), left
        assert (copies := list(self.doctors.temporary.iterdir())) == [], copies

    def runs(self) -> list[str]:
        """The runs that the journal knows, newest first."""
        return [str(run) for (run,) in journal(self.home, "SELECT run FROM runs ORDER BY at DESC, run DESC")]

    def finish(self, backup: str = "never") -> None:
        """The same command finishes: all is mended, and the journal says what is in the store."""
        done = self.fix(backup=backup)
        assert done.code == 0, (done.out, done.err)
        assert done.json()["mendable"] == 0
        left = {(each["check"], each["fix"]) for each in self.scan().json()["findings"]}
        assert not [each for each in left if each[1] != "none"], left
        self.assert_sound()
        # Killed after the last transaction's commit, nothing is left to mend: the undoing settles it, see there.
        assert (wrong := agreement(self.home, stopped=done.json()["outcome"] == "nothing-to-do")) == [], wrong
        self.assert_tidy()

    def undo_all(self) -> None:
        """Taking back all runs gives the store as it was, and the journal says so."""
        for run in self.runs():
            done = self.undo(run)
            assert done.code == 0, (done.out, done.err)
        self.assert_same()
        states = {state for (state,) in journal(self.home, "SELECT DISTINCT state FROM changesets")}
        assert states <= {"undone", "not-applied"}, states
        self.assert_sound()
        self.assert_tidy()


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@contextmanager
def patient(templates: Path, doctors: Doctors, version: str, mode: str, place: Path | None = None) -> Iterator[Patient]:
    """A fresh damaged home, in memory where the machine has such a folder: a kill asks nothing of the disk."""
    with tempfile.TemporaryDirectory(dir=place or _fast()) as folder:
        home = damaged(templates, Path(folder) / "home", version, mode)
        sound = soundness(home)
        assert all(line == "ok" or "trigram" in line for line in sound), sound
        yield Patient(home, doctors, mode, image_of(home.store), sound, _names(home.path))
        assert home.journal_mode() == mode


def _fast() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def killed(ended: Ended) -> None:
    """Fail unless that was a kill: a step that was not reached proves nothing."""
    assert ended.code == -signal.SIGKILL, (ended.code, ended.out[-1000:], ended.err)


def kill_in_scan(sick: Patient, step: Step, count: int) -> None:
    """Kill a scan at a step, with a private copy where the store has a log: it changes nothing, and the copy goes."""
    sick.home.store.with_name("state.db-shm").unlink(missing_ok=True)
    before = fingerprint(sick.home.path)
    killed(sick.scan(kill_at=f"{step}:{count}"))
    assert bool(list(sick.doctors.temporary.iterdir())) == ("-wal" in sick.home.sidecars())
    assert fingerprint(sick.home.path) == before
    assert sick.scan().code == 0
    assert fingerprint(sick.home.path) == before
    sick.assert_tidy()


def kill_in_backup(sick: Patient, step: Step, count: int) -> None:
    """Kill a repair while it makes its backup: nothing is changed, and every backup that is there is whole."""
    killed(sick.fix(kill_at=f"{step}:{count}", backup="always"))
    sick.assert_same()
    sick.assert_sound()
    sick.finish(backup="always")
    backups = list((sick.home.path / "doctor" / "backups").iterdir())
    assert len(backups) == (1 if step in (Step.BACKING_UP, Step.BACKUP_COPIED) else 2)
    for backup in backups:
        assert difference(sick.before, image_of(backup)) == []
    sick.undo_all()


def kill_in_fix(sick: Patient, step: Step, count: int) -> None:
    """Kill a repair at a step, and see that nothing is lost and everything can be done and taken back."""
    killed(sick.fix(kill_at=f"{step}:{count}"))
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
    files = _lay_the_same_backup_twice(sick) if step in UNDO_FILE else {}
    assert sick.fix().code == 0
    assert all(not path.exists() for path in list(files)[:1])
    (run,) = sick.runs()
    killed(sick.undo(run, kill_at=f"{step}:{count}"))
    sick.assert_sound()
    assert agreement(sick.home, stopped=True) == []
    sick.undo_all()
    assert {path: path.read_bytes() for path in files} == files


def _lay_the_same_backup_twice(sick: Patient) -> dict[Path, bytes]:
    """Two equal backups of hermes's, of which a repair removes the older one."""
    names = [f"state.db.malformed-backup-2026090{day}_120000" for day in (1, 3)]
    files = {sick.home.store.with_name(name): b"the same" * 1000 for name in names}
    for path, content in files.items():
        path.write_bytes(content)
        path.chmod(0o600)
    sick.files |= set(names)
    return files


def kill_in_compact(sick: Patient, step: Step, count: int) -> None:
    """Kill a compacting; it changes no row, and the same command then does it."""
    leave_free_pages(sick.home.store)
    killed(sick.compact(kill_at=f"{step}:{count}"))
    sick.assert_same()
    sick.assert_sound()
    compact_to_the_end(sick)


def compact_to_the_end(sick: Patient) -> None:
    """The same command compacts it, whatever stopped it before."""
    done = sick.compact()
    assert (done.code, done.json()["outcome"] in ("compacted", "nothing-to-do")) == (0, True), (done.out, done.err)
    assert done.json()["after"] is None or done.json()["after"]["free_pages"] == 0
    sick.assert_same()
    sick.assert_sound()
    sick.assert_tidy()


#: The commands that are killed at random.
COMMANDS = ("scan", "backup", "fix", "undo", "compact")


@dataclass(frozen=True)
class Span:
    """How long a command is, unharmed: in seconds, and in stops where it enters or leaves the system."""

    seconds: float
    calls: int


def spans(sick: Patient) -> dict[str, Span]:
    """Let each of the commands work to its end, and measure it."""
    found: dict[str, Span] = {}

    def measure(command: str, act: Callable[..., Ended]) -> None:
        begun = time.monotonic()
        ended = act(kill_call=0)
        assert ended.code == 0, (ended.out, ended.err)
        found[command] = Span(time.monotonic() - begun, ended.calls)

    measure("scan", sick.scan)
    measure("backup", partial(sick.fix, backup="always"))
    sick.undo_all()
    measure("fix", sick.fix)
    measure("undo", partial(sick.undo, sick.runs()[0]))
    leave_free_pages(sick.home.store)
    measure("compact", sick.compact)
    return found


@dataclass
class RandomKills:
    """Kills commands at random moments: of their time, or of what they ask of the system, which are all alike likely.

    ``hits``: how many kills came before the command had ended, by command.
    """

    chance: random.Random
    spans: dict[str, Span]
    by_time: bool
    hits: Counter[str] = field(default_factory=Counter)

    def __call__(self, sick: Patient) -> None:
        """Kill each of the commands, some twice, and see that nothing is lost and each can be done to its end."""
        before = fingerprint(sick.home.path)
        self.kill("scan", sick.scan)
        assert fingerprint(sick.home.path) == before
        self.kill("backup", partial(sick.fix, backup="always"))
        self._look(sick)
        for _ in range(2):
            self.kill("fix", sick.fix)
            self._look(sick)
        sick.finish()
        for _ in range(2):
            if sick.runs():
                self.kill("undo", partial(sick.undo, sick.runs()[0]))
                self._look(sick)
        sick.undo_all()
        leave_free_pages(sick.home.store)
        for _ in range(2):
            self.kill("compact", sick.compact)
            sick.assert_same()
            sick.assert_sound()
        compact_to_the_end(sick)

    def kill(self, command: str, act: Callable[..., Ended]) -> None:
        """Kill one command."""
        span = self.spans[command]
        if self.by_time:
            seconds = self.chance.uniform(0, span.seconds)
            ended = act(started=lambda pid: _kill_after(pid, seconds))
        else:
            ended = act(kill_call=self.chance.randint(1, span.calls))
        assert ended.code in (-signal.SIGKILL, 0), (ended.code, ended.out[-1000:], ended.err)
        self.hits[command] += ended.code != 0
        if ended.code == 0 and not self.by_time:
            # A busy machine makes it longer than it is.
            self.spans[command] = replace(span, calls=ended.calls)

    def _look(self, sick: Patient) -> None:
        sick.assert_sound()
        assert (wrong := agreement(sick.home, stopped=True)) == [], wrong


def _kill_after(pid: int, seconds: float) -> None:
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


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
                restored |= {place: _put_back(restored, place, before) for place, before, _after in changes}
                continue
            if not changes:
                # Of a file, or of what is derived from the rows.
                unsettled += state == "pending"
                continue
            sides = {_side(connection, rows, *change) for change in changes}
            if state == "pending" or (state == "applied" and sides == {"before"}):
                unsettled += 1
            if state == "applied" and sides == {"before"}:
                # Taken back, but not settled: of a row that was changed twice it is the older change that counts.
                restored |= {place: _put_back(restored, place, before) for place, before, _after in changes}
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


def _put_back(restored: dict[_Place, _Image], place: _Place, before: _Image) -> _Image:
    """The row as taking a change back leaves it: what the change carries, over what a newer one has put back."""
    return None if before is None else {**(restored.get(place) or {}), **before}


def _holds(row: _Image, image: _Image) -> bool:
    if row is None or image is None:
        return row is image
    return all(type(row[name]) is type(value) and row[name] == value for name, value in image.items())
