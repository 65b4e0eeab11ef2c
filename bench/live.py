"""Mending beside a living hermes, with the real thing: ``python -m bench.live --minutes 3 --release 0.19.0``.

Several processes of the real SessionDB append, rewind, compact, rotate and search without pause on a store of thousands
of faults. Phases in which they are alone alternate with phases in which `doctor fix --apply --live` mends what was
planted since; their writes are timed in both. Each time a first doctor is killed somewhere on its way. In the end every
row that was there before, and all that they wrote, is compared with what is in the store. Ends with 1 where something
failed, was lost or is left.

0.19.0 runs on the SQLite of this Python and makes its store in WAL mode, whatever that is. 0.22.2 does so only on a
SQLite without the WAL-reset bug, so it is given one (pysqlite3's), as a host that is up to date has it.
"""

from __future__ import annotations

import json
import os
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import apsw
import click

from bench.figures import Figure, at_most, plain
from bench.results import machine, record, table, versions
from hermes_doctor.engine.journal import Journal
from hermes_doctor.host.live_files import Generation, generation
from tests.oracle import wheels
from tests.oracle.home import environment
from tests.oracle.releases import Release, get

WORKER = Path(__file__).with_name("hermes_at_work.py")
#: Releases that make a WAL store only on a SQLite that is fit.
FIT = frozenset({"0.20.0", "0.20.6", "0.21.5", "0.22.2"})
DAY = 86400.0

CALLS = json.dumps([{"id": "call_1", "function": {"name": "terminal", "arguments": "{}"}}])
ITEMS = json.dumps([{"type": "reasoning", "encrypted_content": "x" * 80}], separators=(",", ": "))


class Hermes:
    """One process of a release at work; a context manager that ends it in good order."""

    def __init__(self, home: Path, release: Release, seed: int) -> None:
        fit = ["fit"] if release.version in FIT else []
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), str(home), str(seed), *fit],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            cwd=home,
            env=environment(home, release),
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, step: dict[str, Any]) -> None:
        """Send a step without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(step) + "\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = 120) -> Any:
        """Return the next answer; raises RuntimeError with what the release raised."""
        answer = json.loads(self._answers.get(timeout=seconds))
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    def step(self, step: dict[str, Any]) -> Any:
        """Carry out one step."""
        self.send(step)
        return self.answer()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        self.process.stdout.close()


@dataclass
class Planted:
    """Rows that were put into the store, as they are and as a repair leaves them; ``...`` stands for any time."""

    sessions: list[tuple[Any, ...]] = field(default_factory=list)
    messages: list[tuple[Any, ...]] = field(default_factory=list)
    locks: list[tuple[Any, ...]] = field(default_factory=list)
    #: By session: ended, end reason, messages counted, parent.
    wanted_sessions: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    #: By session: what its messages hold: role, content, tool calls, codex items, time.
    wanted_messages: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    faults: int = 0

    def chat(self, name: str, *, fault: str | None, turns: int = 2) -> None:
        """Add a chat of some days ago, with one fault or none."""
        began = time.time() - 5 * DAY
        ended: float | None = began + 60 * turns
        reason: str | None = "cli_close"
        counted, parent, items = 2 * turns, None, ITEMS
        wanted: tuple[Any, ...] = (ended, reason, counted, parent)
        match fault:
            case "open-zombies":
                ended, reason, wanted = None, None, (..., "startup_orphan_reap", counted, parent)
            case "counter-drift":
                counted = 0
            case "lineage-gaps":
                parent = name
            case "double-encoded":
                items = json.dumps(ITEMS)
            case "stale-locks":
                self.locks.append((name, f"pid=1:tid=1:agent=a:nonce={name}", began, began + 300))
        self.faults += fault is not None
        self.sessions.append((name, "cli", began, ended, reason, counted, turns, parent))
        self.wanted_sessions[name] = wanted
        for turn in range(turns):
            at = began + 60 * turn
            asked = (name, "user", f"{name} asks {turn}", None, None, at)
            told = (name, "assistant", f"{name} answers {turn}", CALLS, items, at + 30)
            self.messages += [asked, told]
            self.wanted_messages.setdefault(name, []).extend([asked[1:], (*told[1:4], ITEMS, told[5])])

    def steps(self) -> list[dict[str, Any]]:
        """The steps that put the rows there, for a release to carry out on its own connection."""
        many = {
            "INSERT INTO sessions (id, source, started_at, ended_at, end_reason, message_count, tool_call_count,"
            " parent_session_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?)": self.sessions,
            "INSERT INTO messages (session_id, role, content, tool_calls, codex_reasoning_items, timestamp)"
            " VALUES (?, ?, ?, ?, ?, ?)": self.messages,
            "INSERT INTO compression_locks (session_id, holder, acquired_at, expires_at)"
            " VALUES (?, ?, ?, ?)": self.locks,
        }
        return [{"sql": sql, "many": [list(row) for row in rows]} for sql, rows in many.items()]


KINDS = (
    *["double-encoded"] * 8,
    *["open-zombies"] * 6,
    *["counter-drift"] * 4,
    *["lineage-gaps", "stale-locks"],
)


def planted(name: str, faults: int, healthy: int = 0) -> Planted:
    """Make so many faults of all kinds, and chats without any."""
    rows = Planted()
    for n in range(healthy):
        rows.chat(f"{name}-well-{n}", fault=None, turns=5)
    for n in range(faults):
        rows.chat(f"{name}-ill-{n}", fault=KINDS[n % len(KINDS)])
    return rows


@dataclass
class Soak:
    """What a run came to. Times in seconds."""

    release: str
    faults: int = 0
    mended: int = 0
    left: int = 0
    runs: int = 0
    kills: int = 0
    codes: list[int] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    generations: set[Generation | None] = field(default_factory=set)
    holds: list[float] = field(default_factory=list)
    seconds: float = 0.0
    seconds_beside: float = 0.0
    written: int = 0

    def ratio(self, quantile: float = 0.99) -> float:
        """How many times as long a write takes at that quantile with us as without us."""
        return at(self.beside, quantile) / at(self.alone, quantile)


def at(seconds: Sequence[float], quantile: float) -> float:
    """The value at a quantile, by rank."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * quantile))] if ordered else 0.0


class _Watch:
    """Notes which files lie there, all the time; a context manager."""

    def __init__(self, store: Path, seen: set[Generation | None]) -> None:
        self._store, self._seen = store, seen
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._end.wait(0.02):
            self._seen.add(generation(self._store))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.set()
        self._thread.join()


def soak(
    folder: Path,
    version: str,
    *,
    seconds: float,
    workers: int = 3,
    faults: int = 400,
    healthy: int = 2000,
    least: float = 3.0,
    kills: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> Soak:
    """Run it for about that long. ``faults``: planted for each phase with us; ``least``: seconds of a phase alone.

    ``kills``: in each phase with us, a first doctor is killed.
    """
    release = get(version)
    home = folder / "home"
    home.mkdir(parents=True)
    store = home / "state.db"
    result = Soak(version)
    rows: list[Planted] = []
    with ExitStack() as living:
        keeper = living.enter_context(Hermes(home, release, 0))
        keeper.step({"open": True})
        _plant(keeper, planted("first", 0, healthy), rows)
        everybody = [living.enter_context(Hermes(home, release, seed + 1)) for seed in range(workers)]
        for hermes in everybody:
            hermes.step({"open": True})
        begun, length = time.monotonic(), least
        with _Watch(store, result.generations):
            while time.monotonic() - begun < seconds:
                _plant(keeper, planted(f"round-{len(rows)}", faults), rows)
                _work(everybody, folder / f"alone-{len(rows)}", partial(time.sleep, length), result.alone, result)
                started = time.monotonic()
                meanwhile = partial(_mend, store, folder, result, kills=kills)
                _work(everybody, folder / f"beside-{len(rows)}", meanwhile, result.beside, result)
                # The next phase alone is as long as this one was, so that whatever else the machine does meets both.
                length = max(least, min(time.monotonic() - started, 60.0))
                result.seconds_beside += time.monotonic() - started
                say(f"{time.monotonic() - begun:5.0f} s: {result.mended:,} mended, {len(result.errors)} errors")
            # Once more with nobody writing: what is left would be found now.
            result.left = _left(store, folder)
        result.seconds = time.monotonic() - begun
        wrote = [hermes.step({"wrote": True}) for hermes in everybody]
        result.lost += [f"{name} has a deleted file open" for name in _deleted(store, everybody)]
    result.faults = sum(each.faults for each in rows)
    result.written = sum(len(each["stored"]) for each in wrote)
    result.lost += [*_compared(store, rows, wrote)]
    return result


def _plant(hermes: Hermes, rows: Planted, into: list[Planted]) -> None:
    for step in rows.steps():
        if step["many"]:
            hermes.step(step)
    into.append(rows)


def _work(
    everybody: Sequence[Hermes], until: Path, meanwhile: Callable[[], object], times: list[float], result: Soak
) -> None:
    """Let all of them work while something is done, and take their times."""
    for hermes in everybody:
        hermes.send({"work": str(until)})
    try:
        meanwhile()
    finally:
        until.touch()
    for hermes in everybody:
        told = hermes.answer()
        times += told["writes"]
        result.errors += told["errors"]


def doctor(folder: Path, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """Run the installed command with --json; return its exit code and the store's part of the report."""
    with _started(folder, *arguments) as process:
        said, _ = process.communicate()
    return process.returncode, json.loads(said)["databases"][0]


def _started(folder: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hermes_doctor", *map(str, arguments), "--json"],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env=os.environ | {"XDG_STATE_HOME": str(folder / "state")},
    )


def _kill(store: Path, folder: Path, result: Soak) -> None:
    """Let a doctor begin, and kill it when it has mended some rows."""
    journal = store.parent / "doctor" / "doctor.db"
    with _started(folder, "fix", "--apply", "--live", store) as process:
        before = journal.stat().st_mtime_ns if journal.exists() else 0
        while process.poll() is None and (not journal.exists() or journal.stat().st_mtime_ns == before):
            time.sleep(0.05)
        time.sleep(random.uniform(0.5, 4))
        result.kills += process.poll() is None
        process.kill()


def _mend(store: Path, folder: Path, result: Soak, *, kills: bool) -> None:
    """Scan and mend, and again where the doctor gave way; with ``kills``, first of all one that does not get far."""
    before = _journaled(store)
    if kills:
        _kill(store, folder, result)
        result.mended += _journaled(store) - before
    for _try in range(5):
        code, told = doctor(folder, "fix", "--apply", "--live", store)
        result.runs += 1
        result.codes.append(code)
        result.mended += told["fixed"]
        result.holds += [told["hold_seconds"]["longest"]] if told["hold_seconds"] else []
        if code != 7:
            if code not in (0, 1):
                result.errors.append(f"doctor: {told['reason']}")
            return


def _journaled(store: Path) -> int:
    """How many rows all runs have mended, by their journal."""
    journal = Journal.beside(store)
    if journal is None:
        return 0
    with journal:
        return sum(sum(journal.mended(run.run).values()) for run in journal.runs())


def _left(store: Path, folder: Path) -> int:
    """How many findings of the planted kinds are left of planted rows."""
    _code, told = doctor(folder, "scan", store)
    kinds = set(KINDS)
    found = [each for each in told["findings"] if each["check"] in kinds]
    return sum("-ill-" in str(each["session"]) or "-ill-" in str(each["key"]) for each in found)


def _deleted(store: Path, everybody: Sequence[Hermes]) -> list[str]:
    """Name the processes that have a file of the store open which was deleted."""
    found = []
    for hermes in everybody:
        for entry in Path(f"/proc/{hermes.process.pid}/fd").iterdir():
            try:
                target = str(entry.readlink())
            except OSError:
                continue
            if target.startswith(str(store)) and target.endswith(" (deleted)"):
                found.append(f"process {hermes.process.pid}")
    return found


def _compared(store: Path, rows: Sequence[Planted], wrote: Sequence[dict[str, Any]]) -> list[str]:
    """Compare the store with all that was put into it; return what is lost or changed."""
    connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    lost: list[str] = []
    try:
        sessions = {row[0]: row[1:] for row in connection.execute(_SESSIONS)}
        messages: dict[str, list[tuple[Any, ...]]] = {}
        live: dict[str, list[list[str]]] = {}
        contents: set[str] = set()
        for session, active, *cells in connection.execute(_MESSAGES):
            messages.setdefault(session, []).append(tuple(cells))
            contents.add(cells[1])
            if active:
                live.setdefault(session, []).append(cells[:2])
        for each in rows:
            for name, wanted in each.wanted_sessions.items():
                if not _is_wanted(sessions.get(name), wanted):
                    lost.append(f"session {name}: {sessions.get(name)} instead of {wanted}")
            for name, told in each.wanted_messages.items():
                if messages.get(name) != told:
                    lost.append(f"messages of {name}")
            for name, *_ in each.locks:
                if connection.execute("SELECT 1 FROM compression_locks WHERE session_id = ?", (name,)).fetchone():
                    lost.append(f"lock of {name} is left")
        for worker in wrote:
            for name, told in worker["live"].items():
                if live.get(name, []) != told:
                    lost.append(f"chat {name}: {len(live.get(name, []))} live messages instead of {len(told)}")
            missing = set(worker["stored"]) - contents
            lost += [f"{len(missing)} messages are gone"] if missing else []
        (said,) = connection.execute("PRAGMA integrity_check(1)").fetchone() or ("nothing",)
        lost += [] if said == "ok" else [f"integrity_check: {said}"]
    finally:
        connection.close()
    return lost


_SESSIONS = "SELECT id, ended_at, end_reason, message_count, parent_session_id FROM sessions"
_MESSAGES = """
SELECT session_id, active, role, content, tool_calls, codex_reasoning_items, timestamp FROM messages ORDER BY id
"""


def _is_wanted(row: tuple[Any, ...] | None, wanted: tuple[Any, ...]) -> bool:
    if row is None:
        return False
    return all(there is not None if want is ... else there == want for there, want in zip(row, wanted, strict=True))


def figures(result: Soak) -> list[Figure]:
    """Return what was measured, beside what was promised."""
    milliseconds = 1000.0
    return [
        at_most(f"{result.release}: errors of hermes's", len(result.errors), 0),
        at_most(
            f"{result.release}: 99th percentile of its writes, with us against without",
            result.ratio(),
            2,
            "times",
            f"{at(result.beside, 0.99) * milliseconds:.0f} ms of {len(result.beside):,} writes against "
            f"{at(result.alone, 0.99) * milliseconds:.0f} ms of {len(result.alone):,}",
        ),
        plain(
            f"{result.release}: median of its writes, with us against without",
            result.ratio(0.5),
            "times",
            f"{statistics.median(result.beside) * milliseconds:.1f} ms against "
            f"{statistics.median(result.alone) * milliseconds:.1f} ms",
        ),
        plain(
            f"{result.release}: slowest write",
            max(result.beside) * milliseconds,
            "ms",
            f"{max(result.alone) * milliseconds:.0f} ms without us",
        ),
        at_most(f"{result.release}: rows lost or changed", len(result.lost), 0, "rows"),
        at_most(f"{result.release}: generations of the file seen", len(result.generations), 1),
        at_most(f"{result.release}: faults left of {result.faults:,}", result.left, 0),
        plain(
            f"{result.release}: longest hold of ours",
            max(result.holds, default=0.0) * milliseconds,
            "ms",
            f"{result.mended:,} rows mended in {result.runs} runs and {result.kills} that were killed, "
            f"at work for {result.seconds_beside:.0f} of {result.seconds:.0f} s",
        ),
    ]


@click.command()
@click.option("--minutes", default=3.0, show_default=True, help="About how long, for each release.")
@click.option("--release", "releases", multiple=True, default=("0.19.0", "0.22.2"), show_default=True)
@click.option("--workers", default=3, show_default=True, help="Processes of hermes.")
@click.option("--faults", default=150, show_default=True, help="Faults planted for each phase with us.")
@click.option("--healthy", default=4000, show_default=True, help="Chats without a fault beside them.")
@click.option("--kills/--no-kills", default=True, show_default=True, help="Kill a first doctor each time.")
@click.option("--record/--no-record", "keep", default=False, help="Write the figures into bench/RESULTS.md.")
def main(
    minutes: float, releases: tuple[str, ...], workers: int, faults: int, healthy: int, *, kills: bool, keep: bool
) -> None:
    """Mend beside a living hermes for minutes, and compare."""
    wheels.ensure()
    print(machine(), versions(), sep="\n")
    found: list[Figure] = []
    for version in releases:
        with tempfile.TemporaryDirectory() as folder:
            result = soak(
                Path(folder),
                version,
                seconds=60 * minutes,
                workers=workers,
                faults=faults,
                healthy=healthy,
                least=8.0,
                kills=kills,
                say=partial(print, version, flush=True),
            )
        for line in [*result.errors[:10], *result.lost[:10]]:
            print(f"  {line}")
        found += figures(result)
    print(table(found))
    if keep:
        record("live", "Mending beside a living hermes", found)
    sys.exit(any(figure.met is False for figure in found))


if __name__ == "__main__":
    main()
