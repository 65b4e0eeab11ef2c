"""What ``doctor rescue`` saves of damaged stores, beside ``sqlite3 .recover`` and hermes's own ``sessions recover``.

``python -m bench.rescue [--seeds 1] [--release 0.22.2] [--damage NAME] [--jobs 2] [--record]`` damages stores that real
releases made, in each way that tests/whole/breaking.py knows, and has all three save what they can, each from a copy of
its own. A message counts where every column is as it was; whatever else is handed out is wrong, and counts as lost. It
ends with 1 where the doctor saves fewer messages than one of the others, or breaks a promise (tests/whole/rescued.py),
and says by which command that comes again.

Most of the time goes into waiting for a disk: ``TMPDIR=/dev/shm`` spares that.

``--shell``: the ``sqlite3`` to take, by default the newest on the path whose ``.recover`` works. Debian's does not, for
its library has no ``sqlite_dbpage``; its source package, compiled with ``-DSQLITE_ENABLE_DBPAGE_VTAB``, does.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from bench.kept import copy_of, kept_store
from bench.results import record
from tests.oracle import wheels
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST, Release, get
from tests.oracle.steps import call
from tests.whole.breaking import NothingToDamageError, at_rest
from tests.whole.rescued import Rescued, before_of, judged, unsound, whole_chats
from tests.whole.saving import (
    Rows,
    bundle_hash,
    candidates,
    copy_bundle,
    count,
    recovered_by_hermes,
    recovered_by_shell,
    rows_of,
    shell_that_recovers,
    version_of,
)
from tests.whole.support import doctor, scan
from tests.whole.to_be_wrecked import ALL, Sound, Wrecked, delete_chats, lived_in, wreck
from tests.whole.traces import still_there

#: Who saves.
OURS: Final = "ours"
SHELL: Final = "recover"
HERMES: Final = "upstream"
WAYS = (OURS, SHELL, HERMES)

#: Stores that were lived in, by the releases that had them.
LIVED = (
    ("0.13.0",),
    ("0.16.0",),
    ("0.18.2",),
    ("0.19.0",),
    ("0.20.6",),
    ("0.21.5",),
    ("0.22.2",),
    ("0.13.0", "0.16.0", "0.19.0", "0.22.2"),
    ("0.19.0", "0.22.2", "0.19.0"),
)
#: Large ones, by release, and their messages.
LARGE = ("0.19.0", "0.22.2")
MESSAGES = 10_000
#: Chats that are deleted from a large one.
DELETED = 60
#: At most as many chats are replayed.
REPLAYED = 100

NAMES = (*("+".join(versions) for versions in LIVED), *(f"{version}-{MESSAGES}" for version in LARGE))


@dataclass(frozen=True)
class Task:
    """One store, to be damaged in one way by one seed."""

    sound: Sound
    damage: str
    seed: int
    ways: tuple[str, ...]
    shell: Path | None

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return f"{self.sound.name} {self.damage} {self.seed}"

    @property
    def again(self) -> str:
        """What is typed to have it again."""
        return f"python -m bench.rescue --store {self.sound.name} --damage {self.damage} --seed {self.seed}"


@dataclass
class Came:
    """What came of a task.

    ``rows``: how many there were, by table; ``saved``: how many are intact, and how many wrong, by way and table.
    ``there``: messages that are still somewhere in the file (tests/whole/traces.py). ``named``: of our wrong messages
    those that the report names as doubtful or cut. ``nothing``: why there was nothing to damage.
    """

    task: Task
    rows: dict[str, int] = field(default_factory=dict)
    saved: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    there: int = 0
    named: int = 0
    replayed: int = 0
    faults: list[str] = field(default_factory=list)
    nothing: str | None = None

    def intact(self, way: str, table: str = "messages") -> int:
        """How many rows that way saved."""
        return self.saved[way][table][0]

    def below(self, table: str = "messages") -> list[str]:
        """Whom the doctor is below, with both figures."""
        if OURS not in self.saved:
            return []
        ours = self.intact(OURS, table)
        others = {way: self.intact(way, table) for way in self.saved if way != OURS}
        return [f"{ours:,} of {self.rows[table]:,}, {way} {n:,}" for way, n in others.items() if n > ours]


class State:
    """What came of tasks, remembered in a file, so that a run that was broken off can be carried on."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = [] if file is None or not file.exists() else file.read_text("utf-8").splitlines()
        self._known: dict[str, dict[str, Any]] = dict(map(json.loads, lines))

    def of(self, task: Task) -> Came | None:
        """Return what came of a task, None where it was not done yet."""
        told = self._known.get(task.name)
        return None if told is None else Came(task, **told)

    def note(self, came: Came) -> None:
        """Remember what came of a task."""
        if self._file is not None:
            told = {name: value for name, value in vars(came).items() if name != "task"}
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([came.task.name, told]) + "\n")


def make_sounds(folder: Path, kept: Path, names: Sequence[str]) -> Iterator[Sound]:
    """Make the sound stores of these names. ``kept``: where large ones are kept from one run to the next."""
    for versions in LIVED:
        if "+".join(versions) in names:
            yield lived_in(folder / "+".join(versions), *versions)
    for version in LARGE:
        name = f"{version}-{MESSAGES}"
        if name in names:
            home = Home(copy_of(kept_store(kept, version, MESSAGES), folder / name).parent)
            found = rows_of(home.store, "sessions")
            assert found is not None
            ids = sorted(key[1].decode() for key in found.keys if isinstance(key, tuple))
            deleted = delete_chats(home, get(version), random.Random(1).sample(ids, DELETED))
            at_rest(home.store)
            yield Sound(name, get(version), home.store, deleted)


def carry_out(task: Task, keep: Path | None = None) -> Came:
    """Damage the store, have it saved in each way, and judge that. ``keep``: a folder for all the files."""
    came = Came(task)
    with tempfile.TemporaryDirectory(prefix="rescue-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary) if keep is None else keep / f"{task.sound.name}-{task.damage}-{task.seed}"
        try:
            wrecked = wreck(task.sound.store, task.damage, task.seed, folder / "wreck")
        except NothingToDamageError as error:
            came.nothing = str(error)
            return came
        before = before_of(wrecked)
        came.rows = {table: len(rows.rows) for table, rows in before.items()}
        came.there = len(still_there(wrecked.before, "messages", wrecked.damaged))
        try:
            if SHELL in task.ways and task.shell is not None:
                output = recovered_by_shell(task.shell, wrecked.damaged, folder / SHELL)
                came.saved[SHELL] = _saved(before, output)
            if HERMES in task.ways:
                output = recovered_by_hermes(wrecked.damaged, folder / HERMES, task.shell)
                came.saved[HERMES] = _saved(before, output)
            if OURS in task.ways:
                _rescue(task, wrecked, before, folder / OURS, came)
        except Exception as error:  # whatever it is, it is told, and the others go on
            came.faults.append(f"the bench failed: {error!r} {traceback.format_exc()[-600:]}")
    return came


def _saved(before: Mapping[str, Rows], output: Path | None) -> dict[str, tuple[int, int]]:
    counted = {table: count(rows, candidates(rows, output)) for table, rows in before.items()}
    return {table: (len(each.intact), len(each.wrong)) for table, each in counted.items()}


def _rescue(task: Task, wrecked: Wrecked, before: Mapping[str, Rows], folder: Path, came: Came) -> None:
    folder.mkdir()
    output = folder / "new" / "state.db"
    output.parent.mkdir()
    hashes = bundle_hash(wrecked.damaged)
    # The real command in a process of its own, with nobody's settings.
    surroundings = {"XDG_STATE_HOME": str(folder / "state"), "HERMES_HOME": str(folder / "no home")}
    done = doctor("rescue", "--json", wrecked.damaged, output, environment=surroundings, timeout=600)
    deleted = task.sound.deleted["messages"]
    rescued = judged(wrecked, before, deleted, hashes, done.returncode, done.stdout, output)
    came.faults += rescued.faults
    came.faults += [f"it said: {done.stderr[-500:]}"] if rescued.faults and done.stderr else []
    came.saved[OURS] = {table: (len(each.intact), len(each.wrong)) for table, each in rescued.counted.items()}
    came.named = len(rescued.unsure)
    if rescued.output is not None:
        (database,) = scan(rescued.output, codes=(0, 1, 4))
        came.faults += unsound(database)
        _replay(task, wrecked, before, rescued, folder, came)


def _replay(
    task: Task, wrecked: Wrecked, before: Mapping[str, Rows], rescued: Rescued, folder: Path, came: Came
) -> None:
    """Have the release, and the newest, replay the chats of which every message was saved, from before and now."""
    chats = sorted(whole_chats(before["messages"], rescued))
    random.Random(task.seed).shuffle(chats)
    chats = chats[:REPLAYED]
    came.replayed = len(chats)
    uids = _uids(before["messages"])
    for release in dict.fromkeys((task.sound.release, NEWEST)):
        was = _replays(wrecked.before, release, tuple(chats), folder / f"before-{release}")
        now = _replays(rescued.output or wrecked.before, release, tuple(chats), folder / f"now-{release}")
        other = [chat for chat in chats if _told_alike(was[chat], uids) != _told_alike(now[chat], uids)]
        if other:
            came.faults.append(f"{release} replays {len(other)} of {len(chats)} chats otherwise: {other[0]}")


def _uids(before: Rows) -> set[str]:
    if "message_uid" not in before.columns:
        return set()
    place = before.columns.index("message_uid")
    uids = (row[place] for row in before.rows.values())
    return {uid[1].decode() for uid in uids if isinstance(uid, tuple)}


def _told_alike(replay: object, uids: set[str]) -> object:
    """A replay without the numbers that an upgrade made up just now."""
    if not isinstance(replay, list):
        return replay
    return [{name: value for name, value in told.items() if name != "message_uid" or value in uids} for told in replay]


def _replays(store: Path, release: Release, chats: tuple[str, ...], folder: Path) -> dict[str, Any]:
    home = Home(copy_bundle(store, folder).parent)
    steps = [call("get_messages_as_conversation", chat) for chat in chats]
    return dict(zip(chats, home.run(release, steps, check=False, timeout=300), strict=True))


@dataclass
class Line:
    """One line of the table: a damage, and what came of it in all files."""

    damage: str
    all: list[Came]

    @property
    def cells(self) -> list[str]:
        """The columns."""
        came = self.all
        wrong = {way: sum(each.saved[way]["messages"][1] for each in came if way in each.saved) for way in WAYS}
        unnamed = wrong[OURS] - sum(each.named for each in came)
        return [
            self.damage,
            f"{len(came)}",
            f"{sum(each.rows['messages'] for each in came):,}",
            _share([(each.there, each.rows["messages"]) for each in came]),
            *(
                _share([(each.intact(way), each.rows["messages"]) for each in came if way in each.saved])
                for way in WAYS
            ),
            f"{wrong[OURS] - unnamed} + {unnamed}",
            f"{wrong[SHELL]:,}",
            f"{wrong[HERMES]:,}",
            f"{sum(bool(each.below()) for each in came) or ''}",
        ]


HEADINGS = (
    *("damage", "files", "messages", "still there", "doctor rescue", ".recover", "sessions recover"),
    *("wrong, ours: named + not", "wrong, .recover", "wrong, sessions recover", "files below"),
)

TEXT = """
Messages of which every column is as before, summed over the files; in brackets the smallest and the median share of a
file, in percent. *Still there*: messages whose pages are in what is left, byte for byte. *Wrong*: rows that were not
so, or not there any more; *named*: those that the report calls doubtful or cut. Deleted chats lie in the free pages of
every store, and `.recover` hands them out.
"""


def _share(saved: Sequence[tuple[int, int]]) -> str:
    """How many altogether, and of which share of a file at least and in the middle; each is of so many."""
    if not saved:
        return ""
    shares = [100 * count / rows for count, rows in saved]
    total = sum(count for count, _ in saved)
    return f"{total:,} ({_percent(min(shares))} / {_percent(statistics.median(shares))})"


def _percent(share: float) -> str:
    # 99.96 is not all.
    return "100" if share == 100 else f"{min(share, 99.9):.1f}" if share > 99 else f"{share:.0f}"


def table(came: Sequence[Came]) -> str:
    """The table in Markdown."""
    lines = [Line(damage, [each for each in came if each.task.damage == damage]) for damage in ALL]
    rows = [HEADINGS, ["---"] * len(HEADINGS), *(line.cells for line in lines if line.all)]
    if came:
        rows.append(Line("all", list(came)).cells)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def missed(came: Sequence[Came]) -> list[str]:
    """Every file of which the doctor saves less than another, or breaks a promise, and how to have it again."""
    lines = []
    for each in came:
        told = [f"BELOW: {line}" for line in each.below()] + [f"BROKEN: {fault}" for fault in each.faults]
        lines += [f"{line}  ({each.task.again})" for line in told]
    return lines


@click.command(help=__doc__)
@click.option("--seeds", default=1, show_default=True, help="Seeds for each damage of each store.")
@click.option("--seed", "first", default=1, show_default=True, help="The first of them.")
@click.option("--store", "names", multiple=True, type=click.Choice(NAMES), help="Only this store (repeatable).")
@click.option("--release", "releases", multiple=True, help="Only stores that this release had last (repeatable).")
@click.option("--damage", "damages", multiple=True, type=click.Choice(list(ALL)), help="Only this one (repeatable).")
@click.option("--only", "ways", default=",".join(WAYS), show_default=True, help="Who saves, with commas between.")
@click.option("--shell", type=click.Path(path_type=Path, exists=True), help="The sqlite3 to take.")
@click.option("--jobs", default=len(os.sched_getaffinity(0)), show_default=True, help="Processes at a time.")
@click.option("--stores", type=click.Path(path_type=Path), help="Keep the large stores in this folder.")
@click.option("--state", type=click.Path(path_type=Path), help="A file that remembers what is done.")
@click.option("--keep", type=click.Path(path_type=Path), help="Leave all files of each in this folder.")
@click.option("--record", "to_record", is_flag=True, help="Write the table into bench/RESULTS.md.")
def main(
    seeds: int,
    first: int,
    names: tuple[str, ...],
    releases: tuple[str, ...],
    damages: tuple[str, ...],
    ways: str,
    shell: Path | None,
    jobs: int,
    stores: Path | None,
    state: Path | None,
    keep: Path | None,
    to_record: bool,
) -> None:
    """Run it; the exit code is 1 where the doctor is below anybody, or broke a promise."""
    began = time.monotonic()
    wheels.ensure()
    chosen = tuple(ways.split(","))
    shell = (shell or shell_that_recovers()) if SHELL in chosen or HERMES in chosen else None
    if shell is None and SHELL in chosen:
        print("no sqlite3 on the path has a .recover that works: nothing is compared with it", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="rescue-") as temporary:
        folder = Path(temporary)
        wanted = [each for each in names or NAMES if not releases or _release_of(each) in releases]
        sound = list(make_sounds(folder / "sound", stores or folder / "kept", wanted))
        tasks = [
            Task(each, damage, seed, chosen, shell)
            for each in sound
            for damage in damages or ALL
            for seed in range(first, first + seeds)
        ]
        memory = State(state)
        came = [known for known in map(memory.of, tasks) if known is not None]
        with ProcessPoolExecutor(jobs) as pool:
            left = [task for task in tasks if memory.of(task) is None]
            for done in as_completed([pool.submit(carry_out, task, keep) for task in left]):
                came.append(done.result())
                memory.note(came[-1])
                for line in missed(came[-1:]):
                    print(line, flush=True)
                if len(came) % 10 == 0:
                    print(f"{len(came)} of {len(tasks)}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    came.sort(key=lambda each: (NAMES.index(each.task.sound.name), list(ALL).index(each.task.damage), each.task.seed))
    there = [each for each in came if each.nothing is None]
    told = _told(there, len(sound), seeds, shell)
    print(table(there))
    print("\n".join(told))
    print(f"{time.monotonic() - began:.0f} s")
    if to_record:
        lines = "\n".join(f"- {line}" for line in told)
        record("rescue", "What is saved of damaged stores", [], text=f"{table(there)}\n{TEXT}\n{lines}")
    if missed(came):
        sys.exit(1)


def _release_of(name: str) -> str:
    return name.split("+")[-1].split("-")[0]


def _told(came: Sequence[Came], stores: int, seeds: int, shell: Path | None) -> list[str]:
    """What is said below the table."""
    lines = [
        f"{stores} stores, {seeds} seeds: {len(came)} damaged files",
        ".recover of " + ("no sqlite3" if shell is None else f"sqlite3 {'.'.join(map(str, version_of(shell)))}"),
        f"{sum(each.replayed for each in came):,} chats of which every message was saved were replayed, by the release"
        " of the store and by the newest",
    ]
    for way in WAYS:
        sessions = [each.saved[way]["sessions"] for each in came if way in each.saved and "sessions" in each.rows]
        intact, wrong = (sum(each[n] for each in sessions) for n in (0, 1))
        rows = sum(each.rows.get("sessions", 0) for each in came if way in each.saved)
        lines += [f"sessions, {way}: {intact:,} of {rows:,} intact, {wrong:,} wrong"] if sessions else []
    below = Counter(each.task.damage for each in came if each.below("sessions"))
    if below:
        damages = ", ".join(f"{damage} {n}" for damage, n in below.items())
        lines.append(f"fewer intact sessions than another: {damages}")
    return [*lines, *missed(came)]


if __name__ == "__main__":
    main()
