"""Cases of counter-drift, crossed-ends and wrongly-ended: what is found of each row, and what a mended row holds.

All cases of a release lie in one home that is built once per test run, planted through the release's own calls as far
as they go. Wrong variants of checks and fixes run through the same tables.
"""

from __future__ import annotations

import json
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from hermes_doctor.engine.cure import Mending
from hermes_doctor.engine.model import Check, Finding
from hermes_doctor.engine.rows import ask, find
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.shape import read_shape
from hermes_doctor.store.view import StoreView
from tests.checks.support import built_once, findings_of
from tests.checks.zombie_cases import DAY, HOUR, MINUTE, Plot, Verdict, steps_of
from tests.fixes.support import Patient
from tests.oracle.history import CALLS
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, ref, use
from tests.store.views import view_of

DRIFT, CROSSED, WRONG = "counter-drift", "crossed-ends", "wrongly-ended"

#: The releases whose stores differ in what these checks ask: no rewinds, no call index, counters that a rewind leaves.
SHOWN = tuple(get(version) for version in ("0.13.0", "0.18.2", "0.20.0", "0.22.2"))

SAFE, UNSAFE, LEFT = ("warning", "safe"), ("warning", "unsafe"), ("warning", "none")
NOTED, NOTED_SAFE = ("info", "none"), ("info", "safe")

#: What a row holds once it is mended, by column; a callable asks the row as it was.
After = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One row of a check's table. ``verdict``: what is found of it; ``after``: what mending makes of it."""

    check: str
    name: str
    plant: Callable[[Plot], None]
    verdict: Callable[[Release], Verdict]
    after: After | None
    since: str
    until: str

    def shown_by(self, release: Release) -> bool:
        return get(self.since).order <= release.order <= get(self.until).order


CASES: list[Case] = []


def case(
    check: str,
    name: str,
    verdict: Verdict | Callable[[Release], Verdict] = None,
    *,
    after: After | None = None,
    since: str = "0.13.0",
    until: str = "0.22.2",
) -> Callable[[Callable[[Plot], None]], Callable[[Plot], None]]:
    def add(plant: Callable[[Plot], None]) -> Callable[[Plot], None]:
        wanted = verdict if callable(verdict) else lambda _release: verdict
        CASES.append(Case(check, f"{check}: {name}", plant, wanted, after, since, until))
        return plant

    return add


@dataclass(frozen=True)
class Scene:
    """A home with all cases of one release; ``now``: the moment that the doctor takes for the present."""

    home: Home
    release: Release
    now: float

    @property
    def cases(self) -> list[Case]:
        return [each for each in CASES if each.shown_by(self.release)]

    @property
    def patient(self) -> Patient:
        """The store as something to be mended, at the real time: each run must be later than the one before."""
        return Patient(self.home.store, self.home.path)

    def findings(self, check: Check) -> dict[str, Finding]:
        found = findings_of(self.home.store, check, home=self.home.path, now=self.now)
        assert len({finding.key for finding in found}) == len(found)
        return {str(finding.key): finding for finding in found}

    def found(self, check: Check) -> dict[str, Verdict]:
        return {key: (f.severity.label, str(f.fix)) for key, f in self.findings(check).items()}

    def judged_otherwise_alone(self, check: Check) -> list[Any]:
        """The sessions of which the rule says something else when it is asked about them, or about all by name."""
        with view_of(self.home.store, home=self.home.path, now=self.now) as view:
            everything = {finding.key: finding for finding in find([check], view)}
            keys = [row[0] for row in view.rows("SELECT id FROM sessions")]
            named = {finding.key: finding for finding in ask(check, keys, view)}
            return [
                key for key in keys if list(ask(check, [key], view)) != [f for f in everything.values() if f.key == key]
            ] + [key for key in named.keys() | everything.keys() if named.get(key) != everything.get(key)]

    def expected(self, check: Check) -> dict[str, Verdict]:
        wanted = {each.name: each.verdict(self.release) for each in self.cases if each.check == check.name}
        return {name: verdict for name, verdict in wanted.items() if verdict is not None}

    def after(self, check: Check) -> dict[str, dict[str, Any]]:
        """What all rows hold once everything of that check is mended, from what they hold now."""
        rows = self.rows()
        for each in self.cases:
            if each.check == check.name and (each.verdict(self.release) or LEFT)[1] != "none":
                assert each.after is not None, each.name
                for column, value in each.after.items():
                    follows = rows[f"{each.name}/next"]["started_at"] if value is CHILD_START else value
                    rows[each.name][column] = follows
        return rows

    def copy(self, folder: Path) -> Scene:
        """The same in a folder of its own, to be changed."""
        return Scene(Home(shutil.copytree(self.home.path, folder / "home")), self.release, self.now)

    def rows(self) -> dict[str, dict[str, Any]]:
        """All rows of sessions by id."""
        connection = apsw.Connection(str(self.home.store), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            cursor = connection.execute("SELECT * FROM sessions")
            names = [column[0] for column in cursor.get_description()]
            return {str(row[names.index("id")]): dict(zip(names, row, strict=True)) for row in cursor}
        finally:
            connection.close()

    @contextmanager
    def mending(self) -> Iterator[Mending]:
        """A fix's way in, to this store, inside a transaction that is taken back."""
        connection = apsw.Connection(str(self.home.store))
        try:
            connection.execute("BEGIN IMMEDIATE")
            view = StoreView(Reader(connection, Pace.FREE), read_shape(connection), self.now, "no", self.home.path)
            yield Mending(view, connection)
            connection.execute("ROLLBACK")
        finally:
            connection.close()


def scene(shared_folder: Path, release: Release) -> Scene:
    """The home of that release, built by whoever asks first; looking leaves no trace in it."""

    def build(home: Home) -> float:
        now = time.time()
        home.run(release, planted(release, now))
        return now

    home, now = built_once(shared_folder / "ends-and-counts" / release.version, build)
    return Scene(home, release, now)


def planted(release: Release, now: float) -> list[Step]:
    return steps_of({each.name: each.plant for each in CASES if each.shown_by(release)}, release, now)


# counter-drift ------------------------------------------------------------------------------------------------------


def chat(p: Plot, *, calls: int = 2) -> None:
    """A chat of four rows, one of them with so many calls, ended."""
    p.row()
    p.do("append_message", p.id(), "user", "which files are there?", keep=f"{p.id()} first")
    listed: dict[str, Any] = {"tool_calls": [dict(CALLS[0]) for _ in range(calls)]} if calls else {}
    p.do("append_message", p.id(), "assistant", "", **listed)
    p.do("append_message", p.id(), "tool", "a.txt", tool_call_id="call_1", tool_name="terminal")
    p.do("append_message", p.id(), "user", "thanks", keep=f"{p.id()} last")
    p.end("", "cli_close", ago=2 * DAY)


def counting(messages: Any, calls: Any) -> Callable[[Plot], None]:
    def plant(p: Plot) -> None:
        chat(p)
        p.set("", "message_count", messages)
        p.set("", "tool_call_count", calls)

    return plant


RECOUNTED: After = {"message_count": 4, "tool_call_count": 2}

for _name, _messages, _calls, _verdict in (
    ("right", 4, 2, None),
    ("one message too few", 3, 2, SAFE),
    ("one message too many", 5, 2, NOTED_SAFE),
    ("no messages, it says", 0, 2, SAFE),
    ("NULL messages", None, 2, SAFE),
    ("no number of messages", "many", 2, SAFE),
    ("one call too few", 4, 1, SAFE),
    ("one call too many", 4, 3, NOTED_SAFE),
    ("NULL calls", 4, None, SAFE),
    ("too many messages, too few calls", 9, 0, SAFE),
    ("fewer than none", -1, 2, SAFE),
):
    case(DRIFT, _name, _verdict, after=RECOUNTED)(counting(_messages, _calls))


@case(DRIFT, "NULL for nothing", NOTED_SAFE, after={"message_count": 0, "tool_call_count": 0})
def _null_for_nothing(p: Plot) -> None:
    p.row()
    p.end("", "cli_close", ago=2 * DAY)
    p.set("", "message_count", None)


@case(DRIFT, "NULL calls of a chat without any", NOTED_SAFE, after={"message_count": 4, "tool_call_count": 0})
def _null_calls(p: Plot) -> None:
    chat(p, calls=0)
    p.set("", "tool_call_count", None)


@case(DRIFT, "a value that is no list", None)
def _no_list(p: Plot) -> None:
    p.row()
    p.do("append_message", p.id(), "assistant", "", tool_calls={"id": "call_1"})
    p.end("", "cli_close", ago=2 * DAY)


@case(DRIFT, "calls of another role", None)
def _other_role(p: Plot) -> None:
    p.row()
    p.do("append_message", p.id(), "session_meta", "", tool_calls=[dict(CALLS[0])])
    p.end("", "cli_close", ago=2 * DAY)


@case(DRIFT, "calls of another role, left out", None)
def _other_role_left_out(p: Plot) -> None:
    _other_role(p)
    p.set("", "tool_call_count", 0)


def wrapped(calls: int) -> Callable[[Plot], None]:
    """Two calls in a string of JSON, and a counter."""

    def plant(p: Plot) -> None:
        chat(p)
        p.sql("UPDATE messages SET tool_calls = ? WHERE session_id = ? AND tool_calls IS NOT NULL", _twice(), p.id())
        p.set("", "tool_call_count", calls)

    return plant


def _twice() -> str:
    return json.dumps(json.dumps([CALLS[0], CALLS[0]]))


case(DRIFT, "a list in a string counts as one", None)(wrapped(1))
case(DRIFT, "a list in a string counts as its length", None)(wrapped(2))
case(DRIFT, "a list in a string does not count as three", NOTED_SAFE, after=RECOUNTED)(wrapped(3))
case(DRIFT, "a list in a string does not count as none", SAFE, after=RECOUNTED)(wrapped(0))


@case(DRIFT, "calls that are no JSON", None)
def _no_json(p: Plot) -> None:
    chat(p)
    p.sql("UPDATE messages SET tool_calls = '[{' WHERE session_id = ? AND tool_calls IS NOT NULL", p.id())


@case(DRIFT, "calls that are no JSON, a wrong count of messages", SAFE, after=RECOUNTED)
def _no_json_either(p: Plot) -> None:
    _no_json(p)
    p.set("", "message_count", 1)


def rewound(messages: int | None) -> Callable[[Plot], None]:
    """A chat of which /undo took back the last row; ``messages``: another count than the release left."""

    def plant(p: Plot) -> None:
        chat(p)
        p.do("rewind_to_message", p.id(), ref(f"{p.id()} last"))
        if messages is not None:
            p.set("", "message_count", messages)

    return plant


RECOUNTED_REWOUND: After = {"message_count": 3, "tool_call_count": 2}

for _name, _count, _verdict in (
    ("rewound, as the release left it", None, None),
    ("rewound, active rows", 3, None),
    ("rewound, all rows", 4, None),
    ("rewound, fewer than active", 2, SAFE),
    ("rewound, more than all", 5, NOTED_SAFE),
):
    case(DRIFT, _name, _verdict, since="0.16.0", after=RECOUNTED_REWOUND)(rewound(_count))


@case(DRIFT, "all rewound, calls too", None, since="0.16.0")
def _all_rewound(p: Plot) -> None:
    chat(p)
    p.do("rewind_to_message", p.id(), ref(f"{p.id()} first"))


def compacted(messages: int | None) -> Callable[[Plot], None]:
    def plant(p: Plot) -> None:
        chat(p)
        p.do("archive_and_compact", p.id(), [{"role": "user", "content": "a summary"}])
        if messages is not None:
            p.set("", "message_count", messages)

    return plant


case(DRIFT, "compacted, as the release left it", None, since="0.18.0")(compacted(None))
case(
    DRIFT,
    "compacted rows counted, too",
    NOTED_SAFE,
    since="0.18.0",
    after={"message_count": 1, "tool_call_count": 0},
)(compacted(5))


# crossed-ends -------------------------------------------------------------------------------------------------------


def crossed(ended_ago: float | None, reason: str | None, *, started: Any = None) -> Callable[[Plot], None]:
    """A chat that began three days ago, with these ends."""

    def plant(p: Plot) -> None:
        p.row()
        p.say()
        p.set("", "ended_at", None if ended_ago is None else p.now - ended_ago)
        p.set("", "end_reason", reason)
        if started is not None:
            p.set("", "started_at", started)

    return plant


for _name, _ended, _reason, _started, _verdict in (
    ("open", None, None, None, None),
    ("ended", 2 * DAY, "cli_close", None, None),
    ("a reason without an end", None, "cli_close", None, LEFT),
    ("an empty reason without an end", None, "", None, LEFT),
    ("an end without a reason", 2 * DAY, None, None, LEFT),
    ("an end with an empty reason", 2 * DAY, "", None, LEFT),
    ("an end an hour before the start", 3 * DAY + HOUR, "cli_close", None, LEFT),
    ("an end 61 seconds before the start", 3 * DAY + 61, "cli_close", None, LEFT),
    ("an end 50 seconds before the start", 3 * DAY + 50, "cli_close", None, NOTED),
    ("no reason, and before the start", 3 * DAY + 50, None, None, LEFT),
    ("an absurd start", 2 * DAY, "cli_close", 5e246, None),
    ("a start that is text", 2 * DAY, "cli_close", "soon", None),
    ("compressed without an end, going on nowhere", None, "compression", None, LEFT),
):
    case(CROSSED, _name, _verdict)(crossed(_ended, _reason, started=_started))


@case(CROSSED, "an end in 1970", LEFT)
def _in_1970(p: Plot) -> None:
    crossed(0, "cli_close")(p)
    p.set("", "ended_at", 0.0)


def goes_on(
    p: Plot, *, end: Any = None, ago: float = 5 * DAY, child_ago: float = 4 * DAY, said: bool = True, **child: Any
) -> None:
    """A compressed chat and its continuation, which began so long ago; ``end``: what stands for the parent's end."""
    p.row("", ago=ago)
    p.say("", ago=ago)
    p.compress("", "next", ago=child_ago)
    if said:
        p.say("next", ago=child_ago - HOUR)
    p.end("next", "cli_close", ago=child_ago - 2 * HOUR)
    p.set("", "ended_at", end)
    for column, value in child.items():
        p.set("next", column, value)


#: The time at which the continuation began, and so the end of the row before it.
CHILD_START = object()
ENDED: After = {"ended_at": CHILD_START, "end_reason": "compression"}

case(CROSSED, "compressed without an end", SAFE, after=ENDED)(lambda p: goes_on(p))
case(CROSSED, "compressed, ended before its start", SAFE, after=ENDED)(lambda p: goes_on(p, end=p.now - 6 * DAY))
case(CROSSED, "compressed, ended before its start, old", SAFE, after=ENDED)(
    lambda p: goes_on(p, end=1.0, ago=100 * DAY, child_ago=99 * DAY)
)
case(CROSSED, "compressed without an end, past the retention", UNSAFE, after=ENDED)(
    lambda p: goes_on(p, ago=91 * DAY, child_ago=90 * DAY)
)
case(CROSSED, "compressed without an end, going on in an empty row", LEFT)(lambda p: goes_on(p, said=False))
case(CROSSED, "compressed without an end, continued before it began", LEFT)(
    lambda p: goes_on(p, started_at=p.now - 6 * DAY)
)
case(CROSSED, "compressed without an end, going on in a delegate", LEFT)(
    lambda p: goes_on(p, model_config=json.dumps({"_delegate_from": p.id()}))
)


@case(CROSSED, "compressed without an end, going on twice", LEFT)
def _twice_on(p: Plot) -> None:
    goes_on(p)
    p.row("other", ago=4 * DAY, parent_session_id=p.id())
    p.say("other")
    p.end("other", "cli_close", ago=3 * DAY)


def still_used(late: float) -> Callable[[Plot], None]:
    def plant(p: Plot) -> None:
        goes_on(p)
        p.message_at("", p.now - 4 * DAY + late)

    return plant


case(CROSSED, "compressed without an end, used 6 minutes longer", LEFT)(still_used(6 * MINUTE))
case(CROSSED, "compressed without an end, used 4 minutes longer", SAFE, after=ENDED)(still_used(4 * MINUTE))


# wrongly-ended ------------------------------------------------------------------------------------------------------


def peer(case_name: str) -> dict[str, str]:
    """Who chats in that case."""
    return {
        "platform": "telegram",
        "chat_id": str(zlib.crc32(case_name.encode())),
        "user_id": "u1",
        "chat_type": "dm",
    }


def key_of(case_name: str) -> Step:
    """The key of that case's chat, as its release spells it."""
    return ref(f"{case_name} route", "session_key")


def routed(
    p: Plot,
    reason: str,
    *,
    handed_over: bool = False,
    goes_on: bool = True,
    is_routed: bool = True,
    keyed: bool = False,
    noted: bool = True,
) -> None:
    """A chat that the gateway was switched to, ended for that reason four days ago, with a message a day later.

    ``keyed``: whether the row says whose chat it is (0.18.0 on). ``noted``: whether the row notes its activity, too
    (0.20.0 on).
    """
    source = "cli" if handed_over else "telegram"
    p.row("", source, ago=6 * DAY)
    p.say("", ago=6 * DAY)
    if is_routed:
        p.steps.append(use("gateway_message", keep=f"{p.case} route", **peer(p.case)))
        p.steps.append(use("gateway_switch", session_key=key_of(p.case), session_id=p.id()))
    if handed_over:
        p.set("", "handoff_state", "completed")
    if p.release.since("0.18.0"):
        p.set("", "session_key", key_of(p.case) if keyed else None)
        p.set("", "chat_id", peer(p.case)["chat_id"] if keyed else None)
    p.end("", reason, ago=4 * DAY)
    if goes_on:
        p.say("", ago=3 * DAY)
        if noted and p.release.since("0.20.0"):
            p.do("touch_session_activity", p.id())


def heals_from(schema: int) -> Callable[[Release], Verdict]:
    return lambda release: NOTED if release.schema >= schema else UNSAFE


REOPENED: After = {"ended_at": None, "end_reason": None}

for _reason in ("tui_shutdown", "ws_disconnect", "idle_timeout", "lru_evict"):
    case(WRONG, f"{_reason}, and no gateway mends it", UNSAFE, after=REOPENED)(
        lambda p, reason=_reason: routed(p, reason, keyed=True)  # type: ignore[misc]  # bound for the loop
    )
for _reason, _schema in (("agent_close", 17), ("ws_orphan_reap", 22), ("startup_orphan_reap", 26)):
    case(WRONG, f"{_reason}, keyed", heals_from(_schema), after=REOPENED)(
        lambda p, reason=_reason: routed(p, reason, keyed=True)  # type: ignore[misc]  # bound for the loop
    )
case(
    WRONG,
    "agent_close, keyed, with activity that nobody noted",
    lambda release: NOTED if 17 <= release.schema < 26 else UNSAFE,
    after=REOPENED,
)(lambda p: routed(p, "agent_close", keyed=True, noted=False))
case(WRONG, "agent_close, without a key", UNSAFE, after=REOPENED)(lambda p: routed(p, "agent_close"))
case(WRONG, "cli_close after a handoff", heals_from(30), after=REOPENED)(
    lambda p: routed(p, "cli_close", handed_over=True, keyed=True)
)
case(WRONG, "tui_close after a handoff, without a key", UNSAFE, after=REOPENED)(
    lambda p: routed(p, "tui_close", handed_over=True)
)
case(WRONG, "cli_close without a handoff", None)(lambda p: routed(p, "cli_close", keyed=True))
for _reason, _until in (
    *((reason, "0.22.2") for reason in ("session_reset", "session_switch", "new_session", "daily", "branched", "own")),
    # From 0.20.0 on nothing can be written to such a row.
    ("compression", "0.19.0"),
):
    case(WRONG, f"a decision: {_reason}", None, until=_until)(
        lambda p, reason=_reason: routed(p, reason, handed_over=True)  # type: ignore[misc]  # bound for the loop
    )
case(WRONG, "nothing since", None)(lambda p: routed(p, "tui_shutdown", goes_on=False))
case(WRONG, "nothing leads to it", None)(lambda p: routed(p, "tui_shutdown", is_routed=False))


@case(WRONG, "an end that is no time", None)
def _no_time(p: Plot) -> None:
    routed(p, "tui_shutdown")
    p.set("", "ended_at", "yesterday")


@case(WRONG, "what came since was rewound", None, since="0.16.0")
def _rewound_since(p: Plot) -> None:
    routed(p, "tui_shutdown")
    p.sql("UPDATE messages SET active = 0 WHERE session_id = ? AND timestamp > ?", p.id(), p.now - 3.5 * DAY)


@case(WRONG, "a child that may continue it", None)
def _continued(p: Plot) -> None:
    routed(p, "tui_shutdown")
    p.row("next", "telegram", ago=3 * DAY, parent_session_id=p.id())
    p.say("next")


@case(WRONG, "a branch of it", UNSAFE, after=REOPENED)
def _with_branch(p: Plot) -> None:
    routed(p, "tui_shutdown")
    p.row("next", "telegram", ago=3 * DAY, parent_session_id=p.id(), model_config={"_branched_from": p.id()})
    p.say("next")


@case(WRONG, "another has its chat", LEFT, since="0.18.0")
def _taken_over(p: Plot) -> None:
    routed(p, "tui_shutdown", keyed=True)
    p.row("next", "telegram", ago=3.5 * DAY)
    p.set("next", "session_key", key_of(p.case))
    p.say("next")


@case(WRONG, "another of its chat was reset since", LEFT, since="0.18.0")
def _reset_since(p: Plot) -> None:
    p.row("before", "telegram", ago=8 * DAY)
    routed(p, "tui_shutdown", keyed=True)
    p.set("before", "session_key", key_of(p.case))
    p.end("before", "session_reset", ago=2 * DAY)


@case(WRONG, "another of its chat was there before", UNSAFE, since="0.18.0", after=REOPENED)
def _before(p: Plot) -> None:
    p.row("before", "telegram", ago=8 * DAY)
    p.end("before", "session_reset", ago=7 * DAY)
    routed(p, "tui_shutdown", keyed=True)
    p.set("before", "session_key", key_of(p.case))


@case(WRONG, "a turn is running in it", LEFT, since="0.20.6")
def _leased(p: Plot) -> None:
    routed(p, "tui_shutdown")
    p.sql("INSERT INTO session_turn_leases VALUES (?, 'pid=1:turn=t', ?, ?)", p.id(), p.now, p.now + DAY)


@case(WRONG, "only an earlier session of a chat", None, since="0.18.2")
def _previous(p: Plot) -> None:
    routed(p, "tui_shutdown", is_routed=False)
    entry = json.dumps({"session_id": "somebody else", "prev_session_id": p.id()})
    p.sql("INSERT INTO gateway_routing (scope, session_key, entry_json, updated_at) VALUES ('x', 'k', ?, 1.0)", entry)
