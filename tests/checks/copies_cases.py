"""Cases of replayed-blocks and archived-copies, as data: the rows of a session, and which of them are copies.

A row is a word: ``A``, ``B``, ... is a message of its own with a time of its own, one second behind the one before it;
the same word again is the same message of the same time, in whatever session. ``-A``: it was rewound; ``~A``: a
compaction put it away. ``A.column``: the same, but for that column. ``S`` is a summary, ``=A`` has the time of ``Z``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import apsw

from hermes_doctor.engine.model import Check, Finding
from hermes_doctor.engine.rows import ask, find
from hermes_doctor.store.reader import Pace
from hermes_doctor.store.view import StoreView
from tests.checks.support import Planted, by_key, findings_of
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import open_store
from tests.store.views import view_of
from tests.whole.identical import Image

DAY = 86_400.0
CALLS = '[{"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]'


@dataclass(frozen=True)
class CopyCase:
    """A session's rows, and the places (from 0) of its copies.

    ``copies``: those that the fix sets aside. ``doubted``: those that are only told. ``refused``: proof, but left as
    they are. ``cells``: what the rows of a word hold. ``session``: other columns of the session. ``guard``: the table
    of a lease or lock on it.
    """

    name: str
    rows: str
    copies: tuple[int, ...] = ()
    doubted: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    since: str = "0.13.0"
    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    session: Mapping[str, Any] = field(default_factory=dict)
    guard: str | None = None

    @property
    def words(self) -> list[str]:
        return self.rows.split()

    def in_release(self, release: Release) -> CopyCase:
        """The case as it is judged there: up to 0.19 rows with a picture are not written to."""
        if release.since("0.20.0") or PICTURE not in self.cells.values():
            return self
        return replace(self, copies=(), refused=self.copies)

    def undamaged(self) -> CopyCase:
        """The session as it was before the copies were written that the fix sets aside."""
        kept = " ".join(word for place, word in enumerate(self.words) if place not in self.copies)
        return CopyCase(f"{self.name}, undamaged", kept, since=self.since, cells=self.cells)


TOOL = {"role": "tool", "content": "ok", "tool_call_id": "call_1", "tool_name": "ls"}
PICTURE = {"content": '\x00json:[{"type": "image_url", "image_url": {"url": "data:,AAAA"}}]'}
CALLING = {"role": "assistant", "content": None, "tool_calls": CALLS}

MARKED = {"S": {"_compressed_summary": 1}}

#: Another cell for each column, as long as the one that the word has.
OTHER: dict[str, Any] = {
    "role": "User",
    "content": "words",
    "tool_calls": CALLS.replace("call_1", "call_2"),
    "tool_call_id": "call_2",
    "tool_name": "rm",
    "finish_reason": "halt",
    "reasoning": "Thought",
    "reasoning_details": '[{"a": 2}]',
    "codex_reasoning_items": '[{"b": 2}]',
    "timestamp": 0.5,
    "token_count": 99,
    "message_uid": "f" * 32,
}
FULL = {
    "role": "user",
    "content": "wards",
    "tool_calls": CALLS,
    "tool_call_id": "call_1",
    "tool_name": "ls",
    "finish_reason": "stop",
    "reasoning": "thought",
    "reasoning_details": '[{"a": 1}]',
    "codex_reasoning_items": '[{"b": 1}]',
    "token_count": 7,
}
#: A copy may differ in these alone.
FREE = ("token_count", "message_uid")


def _but_for(column: str) -> CopyCase:
    copies = (2, 3) if column in FREE else ()
    return CopyCase(
        f"but for {column}",
        f"A B A.{column} B.{column}",
        copies,
        cells={"A": FULL, "B": FULL},
        since="0.22.2" if column == "message_uid" else "0.13.0",
    )


REPLAYS: tuple[CopyCase, ...] = (
    CopyCase("all of it twice", "A B C A B C", (3, 4, 5)),
    CopyCase("with each turn anew", "A B A B C D A B C D E F", (2, 3, 6, 7, 8, 9)),
    CopyCase("a piece behind other words", "A B C D B C E", (4, 5)),
    CopyCase("three times at once", "A B A B A B", (2, 3, 4, 5)),
    CopyCase("a part of it that stood apart", "A B C D A D", (4, 5)),
    CopyCase("calls and answers", "A B T A B T", (3, 4, 5), cells={"B": CALLING, "T": TOOL}),
    CopyCase("pictures", "A B A B", (2, 3), cells={"B": PICTURE}),
    CopyCase("no text", "A B A B", (2, 3), cells={"B": {"content": b"\xff\xfe"}}),
    CopyCase("numbers", "A B A B", (2, 3), cells={"B": {"content": 7}}),
    CopyCase("of one time, among others", "=A =B C =A =B C", (3, 4, 5)),
    CopyCase("after the end", "A B A B", (2, 3), session={"ended_at": 1.7e9, "end_reason": "cli_close"}),
    CopyCase("behind its own summary", "S A B A B", (3, 4), cells={"S": {"content": "[CONTEXT COMPACTION — x"}}),
    CopyCase("a summary, too", "S A B S A B", (3, 4, 5), cells={"S": {"content": "[CONTEXT SUMMARY]: x"}}),
    CopyCase("partly rewound", "A B C -A -B C", (5,), since="0.16.0"),
    CopyCase("partly rewound at the end", "A B C A -B -C", (3,), since="0.16.0"),
    CopyCase("counted wrongly", "A B A B", (2, 3), session={"message_count": 9, "tool_call_count": 5}),
    CopyCase("before a summary", "A B C S B C", refused=(4, 5), cells={"S": {"content": "[CONTEXT COMPACTION — x"}}),
    CopyCase("before a marked one", "A B S A B", refused=(3, 4), since="0.20.6", cells=MARKED),
    CopyCase("a turn is running", "A B A B", refused=(2, 3), guard="session_turn_leases", since="0.20.6"),
    CopyCase("being compressed", "A B A B", refused=(2, 3), guard="compression_locks", since="0.16.0"),
    CopyCase("one row", "A B C B D", doubted=(3,)),
    CopyCase("one row, 32 times", "A " + "T " * 32, doubted=tuple(range(2, 33)), cells={"T": TOOL}),
    CopyCase("one row each", "A B C A X B D", doubted=(3, 5)),
    CopyCase("the other way round", "A B C D C B", doubted=(4, 5)),
    CopyCase("short answers", "A B C D", cells={word: {"role": "user", "content": "yes"} for word in "ABCD"}),
    CopyCase("one constant call id", "A T B U C V", cells=dict.fromkeys("TUV", TOOL) | dict.fromkeys("ABC", CALLING)),
    CopyCase("all of one time", "=A =B =A =B =C =A =B", cells={"C": {"content": "a longer one"}}),
    CopyCase("all of one time and length", "=A =C =A =C =A"),
    CopyCase("one of a shared time", "=A =B C =A D"),
    CopyCase("rewound and said again", "-A -B A B", since="0.16.0"),
    CopyCase("rewound copies", "A B -A -B", since="0.16.0"),
    CopyCase("archived copies", "~A ~B S A B", since="0.18.0"),
    CopyCase("archived behind", "A B ~A ~B", since="0.18.0"),
    *(_but_for(column) for column in OTHER),
)

ARCHIVED: tuple[CopyCase, ...] = (
    CopyCase("a tail that stayed", "~A ~B ~C S B C", (1, 2)),
    CopyCase("three compactions", "~A ~B ~C ~R ~B ~C ~S B C D", (1, 2, 4, 5)),
    CopyCase("archived behind it", "A B ~A", (2,)),
    CopyCase("calls and answers", "~A ~B ~T S B T", (1, 2), cells={"B": CALLING, "T": TOOL}),
    CopyCase("pictures", "~A ~B S A B", (0, 1), cells={"A": PICTURE, "B": {"content": b"\xff"}}),
    CopyCase("of one time", "~=A ~=B S =B", (1,)),
    CopyCase("a turn is running", "~A S A", refused=(0,), guard="session_turn_leases", since="0.20.6"),
    CopyCase("being compressed", "~A S A", refused=(0,), guard="compression_locks"),
    CopyCase("nothing stayed", "~A ~B S C"),
    CopyCase("archived twice, live no more", "~A ~B ~S ~A ~B T"),
    CopyCase("taken back", "~A ~B S -A -B"),
    CopyCase("superseded already", "-A -B S A B"),
    *(
        CopyCase(
            f"but for {column}",
            f"~A S A.{column}",
            (0,) if column in FREE else (),
            cells={"A": FULL},
            since="0.22.2" if column == "message_uid" else "0.18.0",
        )
        for column in OTHER
    ),
)


def places_of(rows: Iterable[tuple[Any, ...]]) -> dict[Any, int]:
    """The place of each message in its session, by id; ``rows``: ids and sessions, in the order of the ids."""
    before: Counter[Any] = Counter()
    places = {}
    for message, session in rows:
        places[message] = before[session]
        before[session] += 1
    return places


def found_in(home: Home, version: str, cases: tuple[CopyCase, ...], check: Check) -> Planted[CopyCase]:
    """The cases that the release can show, planted, and what the check finds of them."""
    now = time.time()
    chosen = plant(home, version, now, cases)
    return Planted(home, now, tuple(chosen), tuple(findings_of(home.store, check, home=home.path, now=now)))


def wrong_cases(store: Planted[CopyCase], check: Check, look: Callable[[StoreView], Iterable[Any]]) -> dict[str, Any]:
    """The sessions of which something else is said than is wanted: the places of copies, of doubts, of refusals.

    ``look``: the rule's groups of copies; those of a rule that knows no doubt are all certain.
    """
    said: dict[Any, tuple[set[int], set[int], set[int]]] = {}
    with view_of(store.home.store, home=store.home.path, now=store.now) as view:
        places = places_of(view.rows("SELECT id, session_id FROM messages ORDER BY id"))
        for group in look(view):
            (finding,) = ask(check, [group.ids[0]], view)
            kind = 1 if not getattr(group, "certain", True) else 2 if finding.refusal else 0
            said.setdefault(group.session, (set(), set(), set()))[kind].update(places[each] for each in group.ids)
    wanted = {
        case.name: (set(case.copies), set(case.doubted), set(case.refused))
        for case in store.cases
        if case.copies or case.doubted or case.refused
    }
    return {name: said.get(name) for name in said.keys() | wanted.keys() if said.get(name) != wanted.get(name)}


def asked(store: Planted[CopyCase], check: Check) -> list[list[Finding]]:
    """What the check finds: of each message alone, of many together, and in short statements only."""
    with view_of(store.home.store, home=store.home.path, now=store.now) as view:
        ids = [row[0] for row in view.rows("SELECT id FROM messages")]
        alone = [finding for key in ids for finding in ask(check, [key], view)]
        together = [found for n in range(0, len(ids), 100) for found in ask(check, ids[n : n + 100], view)]
        # Somebody may be waiting.
        view.reader.pace, view.reader.rests = Pace.SLICED, False
        return [by_key(found) for found in (alone, together, list(find([check], view)))]


def by_session(image: Image) -> dict[str, list[tuple[Any, Any]]]:
    """Where the rows of each session stand, in the order of their ids: `active` and `compacted`."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for row in sorted(image.table("messages"), key=lambda row: int(str(row["id"]))):
        session = row["session_id"]
        assert isinstance(session, bytes)
        found.setdefault(session.decode(), []).append((row["active"], row.get("compacted", 0)))
    return found


def rows_of(case: CopyCase, now: float) -> list[dict[str, Any]]:
    """The rows of a case as they are written, without columns that are the release's own."""
    return [_row(case, word, now) for word in case.words]


def _row(case: CopyCase, word: str, now: float) -> dict[str, Any]:
    state = {"-": (0, 0), "~": (0, 1)}.get(word[0], (1, 0))
    name, _, column = word.lstrip("-~").partition(".")
    letter = name.lstrip("=")
    at = ord("Z" if name.startswith("=") else letter)
    row: dict[str, Any] = {
        "role": "user" if ord(letter) % 2 else "assistant",
        "content": f"word {letter}",
        # With a fraction, as time.time() gives it.
        "timestamp": now - 10 * DAY + at + 0.123456,
        "active": state[0],
        "compacted": state[1],
    }
    row |= case.cells.get(letter, {})
    if column:
        row[column] = row["timestamp"] + OTHER[column] if column == "timestamp" else OTHER[column]
    return row


def plant(home: Home, release: Release | str, now: float, cases: tuple[CopyCase, ...]) -> list[CopyCase]:
    """Write the cases that the release can show into a fresh home, and what they were before the damage."""
    chosen = [case.in_release(get(release)) for case in cases if get(release).since(case.since)]
    home.run(release, [open_store()])
    with closing(apsw.Connection(str(home.store))) as connection, connection:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(messages)")}
        for case in (*chosen, *(case.undamaged() for case in chosen if case.copies)):
            rows = [{name: cell for name, cell in row.items() if name in columns} for row in rows_of(case, now)]
            live = [row for row in rows if row.get("active", 1)]
            session = {
                "id": case.name,
                "source": "cli",
                "started_at": now - 10 * DAY,
                "message_count": len(live),
                "tool_call_count": sum(row["role"] == "assistant" and bool(row.get("tool_calls")) for row in live),
                **case.session,
            }
            _insert(connection, "sessions", session)
            for row in rows:
                _insert(connection, "messages", {"session_id": case.name, **row})
            if case.guard is not None:
                key = "conversation_id" if case.guard == "session_turn_leases" else "session_id"
                guard = {key: case.name, "holder": "pid=1:x", "acquired_at": now, "expires_at": now + DAY}
                _insert(connection, case.guard, guard)
    return chosen


def _insert(connection: apsw.Connection, table: str, row: Mapping[str, Any]) -> None:
    marks = ", ".join("?" for _ in row)
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
