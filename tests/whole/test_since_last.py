"""A scan since the last one finds just what a full one finds, whatever became of the store in between."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from checks import CHECKS
from hermes_doctor.engine import since_last
from hermes_doctor.engine.memory import Memory
from hermes_doctor.engine.model import Check, ExitCode, Finding, RelationRule, Row, RowRule, Safety, Severity
from hermes_doctor.engine.scan import ScanOptions, StoreScan, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store import file_mark, sifting, stretches
from hermes_doctor.store.reader import Reader
from hermes_doctor.store.shape import Table, read_shape
from hermes_doctor.store.stretches import Stretch
from hermes_doctor.store.view import StoreView
from tests.oracle.home import Home
from tests.oracle.steps import call, open_store
from tests.store.views import view_of

#: Lives of a store in each run; many more by HERMES_DOCTOR_HISTORIES.
LIVES = int(os.environ.get("HERMES_DOCTOR_HISTORIES", "1")) * 2
NIGHTS = 12
SESSIONS, ROWS = 40, 1500
NOW = time.time()


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small store has many; a neighbour's rows must still reach as far as rules look."""
    monkeypatch.setattr(stretches, "STRETCH_ROWS", 2 * sifting.REACH)


class Store:
    """A store in which much is wrong, the memory of its scans, and what may become of it in a day."""

    def __init__(self, home: Home, folder: Path, chance: random.Random) -> None:
        self.home, self.folder, self.chance = home, folder, chance
        self.path = home.store
        self.memory = Memory(folder)
        self.read = self.known = 0
        self.doubts: Counter[str] = Counter()
        self._copies: list[Path] = []
        with self.change() as connection:
            for number in range(SESSIONS):
                connection.execute(
                    "INSERT INTO sessions (id, source, started_at, ended_at, end_reason, message_count,"
                    " tool_call_count) VALUES (?, 'cli', ?, ?, 'cli_close', 0, 0)",
                    (f"s{number:03}", NOW - 90_000, NOW - 80_000),
                )
            self._say(connection, ROWS)

    @contextmanager
    def change(self) -> Iterator[apsw.Connection]:
        """A connection that is closed again: nobody has the store open while it is scanned."""
        connection = apsw.Connection(str(self.path))
        try:
            yield connection
        finally:
            connection.close()

    # ---- What scans say

    def scan(self, memory: Memory | None) -> tuple[Counter[tuple[object, ...]], StoreScan]:
        ref = StoreRef(self.path, self.home.path, "default")
        scan = scan_store(ref, CHECKS, ScanOptions(now=NOW, memory=memory))
        with scan.findings:
            found: Counter[tuple[object, ...]] = Counter()
            for finding in scan.findings:
                said = finding.severity, finding.summary, json.dumps(finding.detail)
                found[finding.check, *finding.row, *said] += 1
        assert scan.reason is None
        assert [(result.check.name, result.reason) for result in scan.checks if result.status == "failed"] == []
        return found, scan

    def compare(self) -> None:
        """Scan since the last time, then fully: both find the same."""
        found, scan = self.scan(self.memory)
        assert scan.since_last is not None
        assert scan.since_last.read + scan.since_last.known == scan.messages
        self.read += scan.since_last.read
        self.known += scan.since_last.known
        self.doubts[scan.since_last.doubt or ""] += 1
        everything, _ = self.scan(None)
        assert found == everything

    # ---- What becomes of it

    def nothing(self) -> None:
        pass

    def new_rows(self) -> None:
        with self.change() as connection:
            self._say(connection, self.chance.randint(1, 60))

    def rewritten(self) -> None:
        """Old rows hold something else, some of the very same length."""
        rewrites = (
            "UPDATE messages SET content = CAST(x'ff' || substr(CAST(content AS BLOB), 2) AS TEXT) WHERE id = ?",
            "UPDATE messages SET reasoning_details = '\"[]\"' WHERE id = ?",
            "UPDATE messages SET tool_calls = '[{' WHERE id = ?",
            "UPDATE messages SET content = 'x' || substr(content, 2) WHERE id = ?",
            "UPDATE messages SET role = 'tool' WHERE id = ?",
            "UPDATE messages SET active = 0 WHERE id = ?",
            "UPDATE messages SET timestamp = -1 WHERE id = ?",
            "UPDATE messages SET session_id = (SELECT id FROM sessions ORDER BY random() LIMIT 1) WHERE id = ?",
        )
        with self.change() as connection, connection:
            self._quietly(connection)
            for _ in range(self.chance.randint(1, 4)):
                connection.execute(self.chance.choice(rewrites), (self._some_row(connection),))

    def deleted(self) -> None:
        with self.change() as connection, connection:
            self._quietly(connection)
            begin = self._some_row(connection)
            connection.execute(
                "DELETE FROM messages WHERE id BETWEEN ? AND ?", (begin, begin + self.chance.randint(0, 30))
            )

    def put_between(self) -> None:
        """Rows where others were deleted, which is between stretches, too."""
        with self.change() as connection, connection:
            self._quietly(connection)
            for _ in range(5):
                begin = self._some_row(connection)
                connection.execute(
                    "INSERT OR IGNORE INTO messages (id, session_id, role, content, timestamp)"
                    " VALUES (?, 's001', 'user', 'between', ?)",
                    (begin - 1, NOW - 85_000),
                )

    def counted_anew(self) -> None:
        """The session rows change, the messages do not."""
        with self.change() as connection:
            connection.execute(
                "UPDATE sessions SET message_count = abs(random() % 50), ended_at = NULL WHERE id = 's003'"
            )

    def vacuumed(self) -> None:
        with self.change() as connection:
            connection.execute("VACUUM")

    def copied(self) -> None:
        """Somebody keeps a copy, and puts an earlier one back."""
        if self._copies and self.chance.random() < 0.6:
            self._replace(self.chance.choice(self._copies))
        copy = self.folder / f"copy-{len(self._copies)}.db"
        with self.change() as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        self._copies.append(copy)

    def in_the_log(self) -> None:
        """What is new stays in a log that nobody carries over."""
        with self.change() as connection:
            connection.pragma("journal_mode", "wal")
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._say(connection, 20)
            connection.execute("UPDATE messages SET active = 0 WHERE id = ?", (self._some_row(connection),))

    def out_of_the_log(self) -> None:
        with self.change() as connection:
            connection.pragma("journal_mode", "delete")

    def opened_by_a_newer_release(self) -> None:
        self.home.run("0.22.2", [call("append_message", "s002", "user", "still here")])

    def _replace(self, file: Path) -> None:
        for suffix in ("-wal", "-shm", "-journal"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        shutil.copy(file, self.path.with_suffix(".new"))
        self.path.with_suffix(".new").replace(self.path)

    @staticmethod
    def _some_row(connection: apsw.Connection) -> int:
        return int(str(connection.execute("SELECT id FROM messages ORDER BY random() LIMIT 1").get))

    @staticmethod
    def _quietly(connection: apsw.Connection) -> None:
        """Take the triggers of the index away: this is about the rows, and faster."""
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f'DROP TRIGGER "{name}"')

    def _say(self, connection: apsw.Connection, rows: int) -> None:
        with connection:
            self._quietly(connection)
            session = ""
            for number in range(rows):
                session = f"s{self.chance.randrange(SESSIONS):03}" if number % 16 == 0 else session
                calls = json.dumps([{"id": f"c{number}", "function": {"name": "f", "arguments": "{}"}}])
                role = ("user", "assistant", "tool", "assistant")[number % 4]
                connection.execute(
                    "INSERT INTO messages (session_id, role, content, tool_calls, tool_call_id, timestamp,"
                    " reasoning_details) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        session,
                        role,
                        "word " * int(self.chance.paretovariate(0.8) * 4 % 3000),
                        calls if number % 4 == 1 else None,
                        f"c{number - 1}" if role == "tool" else None,
                        NOW - 86_000 + number,
                        '"[]"' if self.chance.random() < 0.01 else None,
                    ),
                )


DEEDS: tuple[Callable[[Store], None], ...] = (
    *(Store.nothing, Store.new_rows, Store.new_rows, Store.rewritten, Store.rewritten, Store.deleted),
    *(Store.put_between, Store.counted_anew, Store.vacuumed, Store.copied, Store.in_the_log, Store.out_of_the_log),
    Store.opened_by_a_newer_release,
)


@pytest.fixture
def make(home: Home, tmp_path: Path) -> Callable[[int], Store]:
    def make(seed: int) -> Store:
        home.run("0.19.0", [open_store()])
        return Store(home, tmp_path / "state", random.Random(seed))

    (tmp_path / "state").mkdir()
    return make


@pytest.mark.parametrize("seed", range(LIVES))
def test_any_life(make: Callable[[int], Store], seed: int) -> None:
    store = make(seed)
    store.compare()
    lived: list[str] = []
    for _ in range(NIGHTS):
        deed = store.chance.choice(DEEDS)
        lived.append(deed.__name__)
        deed(store)
        store.compare()
    # It must not be right by reading everything each time.
    assert store.known > ROWS, (lived, store.doubts)


def test_nothing_new_is_read_of_a_store_as_it_was(
    make: Callable[[int], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []

    def looking(reader: Reader, table: Table, kept: Sequence[Stretch], *more: Any) -> stretches.Unchanged:
        looked_at.append(len(kept))
        return stretches.unchanged(reader, table, kept, *more)

    monkeypatch.setattr(since_last, "unchanged", looking)
    # However slow this is, the files have only just been written.
    monkeypatch.setattr(file_mark, "_SETTLED", 3600.0)
    store = make(100)
    store.compare()
    before = store.read
    store.compare()
    assert store.read == before
    assert len(looked_at) == 1
    # A day later the files alone are proof: no page is looked at.
    monkeypatch.setattr(file_mark, "_SETTLED", 0.0)
    store.compare()
    assert len(looked_at) == 2
    store.compare()
    assert store.read == before
    assert len(looked_at) == 2


def test_few_rows_are_read_for_few_that_are_new(make: Callable[[int], Store]) -> None:
    store = make(101)
    store.compare()
    assert store.read == ROWS
    for _ in range(3):
        with store.change() as connection:
            store._say(connection, 10)
        store.compare()
    # The last stretch and its neighbour, each night.
    assert store.read - ROWS < 3 * 6 * 2 * sifting.REACH


def test_a_row_may_become_wrong_by_its_neighbour_in_another_stretch(make: Callable[[int], Store]) -> None:
    """A prompt, or an answer, ends a stretch that stays as it is; the reply that began the next one is deleted."""
    store = make(105)
    store.compare()
    with view_of(store.path) as view:
        borders = [stretch.high for stretch in stretches.record(view.reader, view.shape.tables["messages"])]
    replies = []
    with store.change() as connection, connection:
        store._quietly(connection)
        for high in borders:
            roles = connection.execute(
                "SELECT group_concat(role) FROM messages WHERE id BETWEEN ? AND ?", (high, high + 2)
            ).get
            if roles in ("user,assistant,user", "tool,assistant,user"):
                replies.append(high + 1)
                connection.execute("DELETE FROM messages WHERE id = ?", (high + 1,))
    assert replies, "no border that shows it: choose another seed"
    store.compare()
    assert store.known > 0


def test_a_memory_that_is_broken_is_none(make: Callable[[int], Store]) -> None:
    store = make(102)
    store.compare()
    (file,) = store.folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"no database at all" * 100)
    store.compare()
    assert store.read == 2 * ROWS
    store.compare()
    assert store.read == 2 * ROWS


def test_what_is_kept_is_no_message(make: Callable[[int], Store]) -> None:
    store = make(103)
    with store.change() as connection:
        connection.execute(
            """UPDATE messages SET content = 'unspeakable ' || id, tool_calls = '["unspeakable"' WHERE id % 7 = 0"""
        )
    store.compare()
    (file,) = store.folder.iterdir()
    assert b"unspeakable" not in file.read_bytes()


def test_other_checks_are_another_question(make: Callable[[int], Store]) -> None:
    store = make(104)
    store.compare()
    ref = StoreRef(store.path, store.home.path, "default")
    some = [check for check in CHECKS if check.name in ("double-encoded", "bad-text")]
    with scan_store(ref, some, ScanOptions(now=NOW, memory=store.memory)).findings:
        pass
    store.compare()
    assert store.read == 2 * ROWS


def test_rules_over_single_messages_look_at_nothing_else(home: Home) -> None:
    """What a range comes to is kept as long as its rows are the same: no rule may look beyond them."""
    home.run("0.22.2", [open_store()])
    with apsw.Connection(str(home.store)) as connection:
        shape = read_shape(connection)
    connection.close()
    conditions = {
        check.name: rule.condition(shape)
        for check in CHECKS
        for rule in check.rules
        if isinstance(rule, RowRule) and rule.table == "messages"
    }
    assert len(conditions) > 4
    assert [name for name, condition in conditions.items() if "SELECT" in (condition or "").upper()] == []


HOLDER = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("SELECT count(*) FROM sessions").fetchall()
print("open", flush=True)
sys.stdin.read()
"""


def test_nothing_is_judged_inside_a_slice_while_somebody_may_wait(make: Callable[[int], Store]) -> None:
    store = make(108)
    with store.change() as connection:
        connection.pragma("journal_mode", "delete")
    judged = Counter[bool]()

    def judge(_row: Row, view: StoreView) -> None:
        judged[view.reader.connection.in_transaction] += 1

    rule = RowRule("messages", ("id",), lambda _shape: "1", judge)
    check = Check("every", Severity.INFO, "", "", Safety.NONE, "", rule)
    command = [sys.executable, "-c", HOLDER, str(store.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        ref = StoreRef(store.path, store.home.path, "default")
        for known in (0, ROWS):
            with scan_store(ref, [check], ScanOptions(memory=store.memory)) as scan:
                assert (scan.held, scan.journal_mode) == ("yes", "rollback")
                assert scan.since_last is not None
                assert scan.since_last.known == known
        holder.communicate()
    assert judged == {False: 2 * ROWS}


def test_what_was_found_while_somebody_wrote_is_not_kept(make: Callable[[int], Store]) -> None:
    """The stretches are of the rows before, what was found is of those after: an old copy may come back."""
    store = make(109)
    with store.change() as connection:
        connection.pragma("journal_mode", "delete")
        store._quietly(connection)
    writes: list[int] = []

    def judge(row: Row, _view: StoreView) -> Finding:
        if len(writes) < 1:
            with store.change() as connection:
                connection.execute("UPDATE messages SET active = 1 WHERE id = 1")
            writes.append(1)
        return Finding("every", Severity.INFO, "messages", None, None, f"message {row['id']!r}")

    rule = RowRule("messages", ("id",), lambda _shape: "1", judge, lasting=True)
    check = Check("every", Severity.INFO, "", "", Safety.NONE, "", rule)
    ref = StoreRef(store.path, store.home.path, "default")

    def kept() -> list[bool]:
        with scan_store(ref, [check], ScanOptions(memory=store.memory)) as scan:
            assert scan.since_last is not None
            assert len(scan.findings) == ROWS
            question = scan.since_last._question
        recalled = store.memory.recall(store.path, question)
        assert recalled is not None
        return [each.found is not None for each in recalled.kept]

    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        assert not any(kept())
        holder.communicate()
    # Now nobody writes.
    assert all(kept())


def test_what_is_found_by_the_row_alone_is_asked_once(make: Callable[[int], Store]) -> None:
    store = make(110)
    judged: list[object] = []

    def judge(row: Row, _view: StoreView) -> Finding | None:
        judged.append(row["id"])
        return Finding(
            "odd", Severity.INFO, "messages", None, row["session_id"], "odd", {"ids": ["a"]}, Safety.SAFE, "x"
        )

    rule = RowRule("messages", ("id", "session_id"), lambda _shape: "id % 2", judge, lasting=True)
    check = Check("odd", Severity.INFO, "", "", Safety.NONE, "", rule)
    ref = StoreRef(store.path, store.home.path, "default")
    found = []
    for _ in range(2):
        with scan_store(ref, [check], ScanOptions(memory=store.memory)) as scan:
            found.append(list(scan.findings))
    assert found[0] == found[1]
    assert len(judged) == len(found[0]) == ROWS // 2


def test_what_could_not_be_judged_is_asked_again(make: Callable[[int], Store]) -> None:
    store = make(111)

    def judge(row: Row, _view: StoreView) -> None:
        raise ValueError(f"message {row['id']!r}")

    rule = RowRule("messages", ("id",), lambda _shape: "id = 7", judge, lasting=True)
    check = Check("fails", Severity.INFO, "", "", Safety.NONE, "", rule)
    ref = StoreRef(store.path, store.home.path, "default")
    for _ in range(2):
        with scan_store(ref, [check], ScanOptions(memory=store.memory)) as scan:
            assert [result.status for result in scan.checks] == ["failed"]


def slow_check(seconds: float) -> Check:
    """A check that takes its time over each message that is read, and finds a few."""

    def slow(_cell: object) -> int:
        time.sleep(seconds)
        return 0

    def judge(row: Row, _view: StoreView) -> Finding:
        return Finding("slow", Severity.WARNING, "messages", None, None, f"message {row['id']!r}")

    return Check(
        "slow",
        Severity.WARNING,
        "",
        "",
        Safety.NONE,
        "",
        RowRule("messages", ("id",), lambda _shape: "doctor_slow(id) OR id % 50 = 0", judge, {"doctor_slow": slow}),
    )


def test_a_scan_that_is_stopped_in_time_is_gone_on_with(make: Callable[[int], Store]) -> None:
    store = make(106)
    ref = StoreRef(store.path, store.home.path, "default")
    check, scans = slow_check(0.001), list[StoreScan]()
    while not scans or scans[-1].stopped is not None:
        begun = time.monotonic()
        scan = scan_store(ref, [check], ScanOptions(memory=store.memory, deadline=begun + 0.6, threads=1))
        scans.append(scan)
        assert scan.since_last is not None
        with scan.findings:
            keys = [finding.key for finding in scan.findings]
        if scan.stopped is not None:
            assert scan.exit_code(Severity.INFO) is ExitCode.STOPPED
            assert f"of {ROWS:,}," in scan.stopped
            assert scan.checks[0].status == "skipped"
            # It takes the word of the others for what they read, and comes further.
            assert scan.since_last.known + scan.since_last.read > 0
        assert len(scans) < 20
    assert len(scans) > 2, "the machine is too fast for this test to show anything"
    knew = [scan.since_last.known for scan in scans if scan.since_last]
    assert knew == sorted(knew)
    assert keys == list(range(50, ROWS + 1, 50))


def test_a_long_statement_is_cut_off_in_time(make: Callable[[int], Store]) -> None:
    def find(view: StoreView, _keys: object) -> Iterator[Finding]:
        # Would take hours.
        view.rows("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
        yield from ()

    store = make(107)
    check = Check("endless", Severity.WARNING, "", "", Safety.NONE, "", RelationRule("sessions", find))
    begun = time.monotonic()
    scan = scan_store(
        StoreRef(store.path, store.home.path, "default"), [check], ScanOptions(deadline=time.monotonic() + 0.5)
    )
    scan.findings.close()
    assert scan.stopped is not None
    assert "1 of 1 checks did not come to their end" in scan.stopped
    assert time.monotonic() - begun < 30
    assert (scan.condition, scan.reason) == ("readable", None)
