"""Cases of lineage-gaps, as data: rows of a store, and what must be said of them.

In a case sessions go by short names; in the store each has the case's name before it. A text cell that begins with
``@`` stands for the id of the session of that name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hermes_doctor.engine.model import Bucket
from hermes_doctor.store.lineage_faults import Kind
from tests.oracle.home import Home
from tests.oracle.releases import Release
from tests.oracle.steps import Step, open_store, sql, sql_many

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

SAFE, UNSAFE, REFUSED, REPORT = Bucket.SAFE, Bucket.UNSAFE, Bucket.REFUSED, Bucket.REPORT


@dataclass(frozen=True)
class Session:
    """One row of sessions. Times are seconds before now. ``cells`` overrides any column, ``marks`` model_config's."""

    name: str
    parent: str | None = None
    source: str = "cli"
    started: float = 10 * DAY
    ended: float | None = None
    reason: str | None = None
    said: str = "ua"
    said_ago: float | None = None
    marks: Mapping[str, str] = field(default_factory=dict)
    cells: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """What the check says of a session. ``reopen``: how a closed parent is mended."""

    kind: Kind
    bucket: Bucket
    reopen: bool | None = None


@dataclass(frozen=True)
class Case:
    """Rows and what is found among them, by session name. ``since``, ``until``: releases that can show it."""

    name: str
    sessions: tuple[Session, ...]
    found: Mapping[str, Expected] = field(default_factory=dict)
    rows: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    in_file: str | None = None
    since: str = "0.13.0"
    until: str = "99"

    def suits(self, release: Release) -> bool:
        """Whether that release's stores can show the case."""
        return release.since(self.since) and (self.until == "99" or not release.since(self.until))

    def id(self, name: str) -> str:
        """The id in the store of the session that the case calls so."""
        return f"{self.name}: {name}"


def compressed(name: str, parent: str | None = None, *, ended: float = 9 * DAY, **more: Any) -> Session:
    """A session that was ended by compression."""
    return Session(name, parent, ended=ended, reason="compression", **more)


def chain(links: int) -> tuple[Session, ...]:
    """A compression chain of so many links, its tip open."""
    middle = [compressed(f"{n}", f"{n - 1}" if n else None, said="u") for n in range(links)]
    return (*middle, Session(f"{links}", f"{links - 1}", started=8 * DAY))


def lock(session: str, expires: float | str, table: str = "compression_locks", key: str = "session_id") -> Any:
    """A lock row, or a lease row; ``expires``: seconds from now, or a cell as it is."""
    at = ("ago", -expires) if isinstance(expires, float) else expires
    return table, {key: session, "holder": "pid=1:turn=x", "acquired_at": ("ago", 60.0), "expires_at": at}


def route(session: str) -> tuple[str, dict[str, Any]]:
    """A row of gateway_routing that leads to the session."""
    entry = {"session_key": "agent:main:telegram:dm:1", "session_id": session}
    return "gateway_routing", {"session_key": session, "entry_json": entry, "updated_at": ("ago", 60.0)}


def _gap(name: str, *children: Session, reopen: bool = False, ago: float = 9 * DAY, **more: Any) -> Case:
    return Case(name, (compressed("p", ended=ago), *children), {"p": Expected(Kind.CLOSED, SAFE, reopen)}, **more)


def _missing(
    name: str, bucket: Bucket, *, rows: Any = (), in_file: str | None = None, since: str = "0.13.0", **row: Any
) -> Case:
    return Case(
        name,
        (Session("c", "gone", ended=2 * DAY, reason="cli_close", **row),),
        {"c": Expected(Kind.MISSING_PARENT, bucket)},
        rows,
        in_file,
        since,
    )


def _stub(parent: str = "p", **more: Any) -> Session:
    cells: dict[str, Any] = {"said": "", "started": 3 * DAY} | more
    return Session("stub", parent, **cells)


LIVE_LEASE = lock("@root", 200.0, "session_turn_leases", "conversation_id")

FAULTS: tuple[Case, ...] = (
    *(
        _missing(f"a {source} chat without its parent", SAFE, source=source)
        for source in ("cli", "tui", "desktop", "telegram", "webhook")
    ),
    _missing("a branch whose parent is gone", SAFE, source="api_server", said="a", marks={"_branched_from": "@gone"}),
    _missing("a reset chat whose parent is gone", SAFE, source="webui", said="", marks={"_reset_from": "@gone"}),
    _missing("a chat with an inherited branch mark", SAFE, marks={"_branched_from": "@other"}),
    _missing("a delegate whose parent is gone", REPORT, marks={"_delegate_from": "@gone"}),
    _missing("a delegate's continuation, parent gone", REPORT, marks={"_delegate_from": "@other"}),
    *(
        _missing(f"a {source} run whose parent is gone", REPORT, source=source)
        for source in ("subagent", "tool", "cron", "api_server", "unknown")
    ),
    _missing("a run with a branch mark of another", REPORT, source="webui", marks={"_branched_from": "@other"}),
    _missing("a branched run whose parent is gone", REPORT, source="subagent", marks={"_branched_from": "@gone"}),
    _missing("nothing of a person's, parent gone", REPORT, said="a"),
    _missing("no messages, parent gone", REPORT, said=""),
    _missing(
        "parent gone, its messages left",
        REFUSED,
        rows=(("messages", {"session_id": "@gone", "role": "user", "content": "x", "timestamp": ("ago", DAY)}),),
    ),
    _missing(
        "parent gone, its usage left",
        REFUSED,
        rows=(
            (
                "session_model_usage",
                {
                    "session_id": "@gone",
                    "model": "m",
                    "billing_provider": "",
                    "billing_base_url": "",
                    "billing_mode": "",
                },
            ),
        ),
        since="0.19.0",
    ),
    _missing("parent gone, still routed", REFUSED, rows=(route("@gone"),), since="0.18.2"),
    _missing("parent gone, routed in the file", REFUSED, in_file="gone"),
    _missing("an empty text for a parent", SAFE, cells={"parent_session_id": ""}),
    _missing("a parent that is a blob", SAFE, cells={"parent_session_id": {"blob": "ff00"}}),
    _gap("goes on nowhere"),
    _gap("goes on nowhere, used lately", reopen=True, ago=3 * HOUR),
    Case(
        "goes on nowhere, said lately", (compressed("p", said_ago=2 * HOUR),), {"p": Expected(Kind.CLOSED, SAFE, True)}
    ),
    Case(
        "goes on nowhere, active lately",
        (compressed("p", cells={"last_activity_at": ("ago", HOUR)}),),
        {"p": Expected(Kind.CLOSED, SAFE, True)},
        since="0.20.0",
    ),
    Case(
        "goes on nowhere, from the future", (compressed("p", said_ago=-DAY),), {"p": Expected(Kind.CLOSED, SAFE, True)}
    ),
    _gap("goes on nowhere, routed", reopen=True, rows=(route("@p"),), since="0.18.2"),
    _gap("goes on nowhere, routed in the file", reopen=True, in_file="p"),
    _gap("only a branch", Session("b", "p", started=5 * DAY, marks={"_branched_from": "@p"})),
    _gap("only a delegate", Session("d", "p", source="subagent", marks={"_delegate_from": "@p"})),
    _gap("only a reset chat", Session("r", "p", started=5 * DAY, marks={"_reset_from": "@p"})),
    _gap("only a tool's", Session("t", "p", source="tool")),
    _gap("only a run lock that is over", rows=(lock("@p", -MINUTE),), since="0.16.0"),
    _gap(
        "only a lease that is over",
        rows=(lock("@p", -MINUTE, "session_turn_leases", "conversation_id"),),
        since="0.20.6",
    ),
    Case(
        "the last of three was deleted",
        (compressed("root"), compressed("p", "root", ended=8 * DAY)),
        {"p": Expected(Kind.CLOSED, SAFE, False)},
    ),
    *(
        Case(
            f"goes on nowhere, its end {name}",
            (compressed("p", cells={"ended_at": cell}),),
            {"p": Expected(Kind.CLOSED, REFUSED)},
        )
        for name, cell in (("is text", "yesterday"), ("is absurd", 5e246), ("is zero", 0.0))
    ),
    Case(
        "goes on in an empty row", (compressed("p"), _stub()), {"p": Expected(Kind.EMPTY_CONTINUATION, UNSAFE, False)}
    ),
    Case(
        "goes on in an empty row that ended",
        (compressed("p"), _stub(ended=2 * DAY, reason="agent_close")),
        {"p": Expected(Kind.EMPTY_CONTINUATION, UNSAFE, False)},
    ),
    Case(
        "goes on in an empty row with an inherited mark",
        (compressed("p"), _stub(marks={"_delegate_from": "@other"})),
        {"p": Expected(Kind.EMPTY_CONTINUATION, UNSAFE, False)},
    ),
    Case(
        "an empty row behind a chain",
        (compressed("root"), compressed("p", "root"), _stub()),
        {"p": Expected(Kind.EMPTY_CONTINUATION, UNSAFE, False)},
    ),
    Case(
        "an empty row that a chat is routed to",
        (compressed("p"), _stub()),
        {"p": Expected(Kind.EMPTY_CONTINUATION, REFUSED)},
        (route("@stub"),),
        since="0.18.2",
    ),
    Case(
        "an empty row that the file routes to",
        (compressed("p"), _stub()),
        {"p": Expected(Kind.EMPTY_CONTINUATION, REFUSED)},
        in_file="stub",
    ),
    Case("its own parent", (Session("s", "s", ended=DAY, reason="cli_close"),), {"s": Expected(Kind.OWN_PARENT, SAFE)}),
    Case("its own parent, open", (Session("s", "s"),), {"s": Expected(Kind.OWN_PARENT, SAFE)}),
    Case("its own parent, compressed", (compressed("s", "s"),), {"s": Expected(Kind.OWN_PARENT, SAFE)}),
    Case(
        "two that are each other's parent",
        (compressed("b", "a"), compressed("a", "b")),
        {"a": Expected(Kind.LOOP, REPORT)},
    ),
    Case(
        "a loop of three with a tail",
        (Session("c", "b"), Session("a", "c"), Session("b", "a"), Session("tail", "b"), Session("end", "tail")),
        {"a": Expected(Kind.LOOP, REPORT)},
    ),
    Case(
        "its own delegate", (Session("a", marks={"_delegate_from": "@a"}),), {"a": Expected(Kind.DELEGATE_LOOP, REPORT)}
    ),
    Case(
        "delegates of each other",
        (Session("b", marks={"_delegate_from": "@a"}), Session("a", marks={"_delegate_from": "@b"})),
        {"a": Expected(Kind.DELEGATE_LOOP, REPORT)},
    ),
    Case(
        "goes on twice",
        (
            compressed("p"),
            Session("c", "p", started=8 * DAY),
            Session("d", "p", started=7 * DAY, ended=DAY, reason="ws_orphan_reap"),
        ),
        {"p": Expected(Kind.SEVERAL, REPORT)},
    ),
    Case(
        "goes on twice, once empty",
        (compressed("p"), Session("c", "p", started=8 * DAY), _stub()),
        {"p": Expected(Kind.SEVERAL, REPORT)},
    ),
    Case("more links than any release follows", chain(1001), {"0": Expected(Kind.LONG_CHAIN, REPORT)}, since="0.22.2"),
    Case(
        "180 links, in a release that follows 100", chain(180), {"0": Expected(Kind.LONG_CHAIN, REPORT)}, until="0.22.2"
    ),
    Case(
        "101 links, in a release that follows 100", chain(101), {"0": Expected(Kind.LONG_CHAIN, REPORT)}, until="0.22.2"
    ),
)

LOOK_ALIKES: tuple[Case, ...] = (
    Case("a chat that goes on", (compressed("p"), Session("c", "p", started=9 * DAY))),
    Case(
        "a delegate that goes on, its mark inherited",
        (
            Session("r"),
            compressed("p", "r", source="subagent", marks={"_delegate_from": "@r"}),
            Session("c", "p", source="subagent", marks={"_delegate_from": "@r"}),
        ),
    ),
    Case("goes on in a closed session", (compressed("p"), Session("c", "p", ended=DAY, reason="cli_close"))),
    Case("a child that started before its parent ended", (compressed("p"), Session("c", "p", started=9 * DAY + 20.0))),
    Case(
        "a child that started long before its parent ended",
        (compressed("p", ended=DAY), Session("c", "p", started=9 * DAY)),
    ),
    Case(
        "a rotation",
        (
            Session("p", ended=DAY, reason="session_reset", source="telegram"),
            Session("c", "p", source="telegram", marks={"_reset_from": "@p"}, started=DAY),
        ),
    ),
    Case("a rotation that nothing follows", (Session("p", ended=DAY, reason="session_reset", source="telegram"),)),
    Case(
        "closed like any other",
        tuple(
            Session(reason, ended=DAY, reason=reason)
            for reason in ("cli_close", "branched", "new_session", "orphaned_compression", "startup_orphan_reap")
        ),
    ),
    Case(
        "a branch beside the continuation",
        (
            compressed("p"),
            Session("c", "p", started=8 * DAY),
            Session("b", "p", started=7 * DAY, marks={"_branched_from": "@p"}),
        ),
    ),
    Case(
        "a delegate and a tool's beside the continuation",
        (
            compressed("p"),
            Session("c", "p", started=8 * DAY),
            Session("d", "p", started=8 * DAY, marks={"_delegate_from": "@p"}),
            Session("t", "p", source="tool", started=8 * DAY),
        ),
    ),
    Case(
        "delegates of an old release beside the continuation",
        (
            compressed("p", ended=2 * DAY),
            *(Session(f"d{n}", "p", started=5 * DAY, ended=4 * DAY, reason="cli_close") for n in range(3)),
            Session("c", "p", started=2 * DAY),
        ),
    ),
    Case("an old branch", (Session("p", ended=3 * DAY, reason="branched"), Session("b", "p", started=2 * DAY))),
    Case("in the middle of a rotation", (compressed("p", ended=2 * MINUTE),)),
    Case("ended in the future", (compressed("p", ended=-DAY),)),
    Case("being compressed", (compressed("p"),), rows=(lock("@p", 200.0),), since="0.16.0"),
    Case("a lock that says not when it ends", (compressed("p"),), rows=(lock("@p", "soon"),), since="0.16.0"),
    Case(
        "a lock that never ends",
        (compressed("p"),),
        rows=(("compression_locks", {"session_id": "@p", "holder": "x", "acquired_at": 0.0, "expires_at": 5e246}),),
        since="0.16.0",
    ),
    Case("a turn runs in its chain", (compressed("root"), compressed("p", "root")), rows=(LIVE_LEASE,), since="0.20.6"),
    Case(
        "a turn runs in a branch's chain",
        (Session("r"), compressed("root", "r", marks={"_branched_from": "@r"}), compressed("p", "root")),
        rows=(LIVE_LEASE,),
        since="0.20.6",
    ),
    Case(
        "a turn runs above an empty row",
        (compressed("root"), compressed("p", "root"), _stub()),
        rows=(LIVE_LEASE,),
        since="0.20.6",
    ),
    Case(
        "a branch's lease is its root's",
        (Session("root"), compressed("p", "root", marks={"_branched_from": "@root"})),
        rows=(LIVE_LEASE,),
        since="0.20.6",
    ),
    Case("the continuation's lock", (compressed("p"), _stub()), rows=(lock("@stub", 200.0),), since="0.16.0"),
    Case("a reason without an end", (Session("p", reason="compression"),)),
    Case("an empty row, but fresh", (compressed("p"), _stub(started=2 * HOUR))),
    Case("an empty row with a name", (compressed("p"), _stub(cells={"title": "mine"}))),
    Case(
        "an empty row that goes on",
        (compressed("p"), compressed("stub", "p", said="", started=3 * DAY), Session("c", "stub", started=2 * DAY)),
    ),
    Case("an empty row that cost something", (compressed("p"), _stub(cells={"input_tokens": 12}))),
    Case("an empty row of unknown age", (compressed("p"), _stub(cells={"started_at": "long ago"}))),
    Case("a count of 0, but messages", (compressed("p"), Session("c", "p", cells={"message_count": 0}))),
    Case(
        "only rewound messages",
        (
            compressed("p"),
            Session("c", "p", said="x"),
        ),
        since="0.16.0",
    ),
    Case("an empty row nothing was compressed into", (Session("p", ended=DAY, reason="cli_close"), _stub())),
    Case("marks that are no JSON", (compressed("p"), Session("c", "p", cells={"model_config": "{_delegate_from"}))),
    Case("marks in a blob", (compressed("p"), Session("c", "p", cells={"model_config": {"blob": "7b7d"}}))),
    Case(
        "a mark that is a list",
        (compressed("p"), Session("c", "p", cells={"model_config": '{"_delegate_from": ["@p"]}'})),
    ),
    Case("marks inside a list", (compressed("p"), Session("c", "p", cells={"model_config": '["_delegate_from"]'}))),
    Case(
        "delegates of delegates",
        (
            Session("a"),
            Session("b", "a", marks={"_delegate_from": "@a"}),
            Session("c", "b", marks={"_delegate_from": "@b"}),
            Session("d", "c", marks={"_delegate_from": "@c"}),
        ),
    ),
    Case("hidden by an upgrade", (Session("a", marks={"_delegate_from": "__orphaned__"}),)),
    Case("a delegate whose parent was deleted by hermes", (Session("a", marks={"_delegate_from": "@gone"}),)),
    Case("100 links", chain(100)),
    Case("1000 links", chain(1000), since="0.22.2"),
    Case("180 links, in a release that follows 1000", chain(180), since="0.22.2"),
)

CASES = (*FAULTS, *LOOK_ALIKES)

CaseT = TypeVar("CaseT", bound=Case)


def plant(home: Home, release: Release, now: float, cases: tuple[CaseT, ...]) -> tuple[CaseT, ...]:
    """Write the cases that this release's stores can show into a fresh home, in one process of the release."""
    suitable = tuple(case for case in cases if case.suits(release))
    steps: list[Step] = [open_store(), sql("PRAGMA foreign_keys=OFF")]
    routed: dict[str, dict[str, str]] = {}
    for case in suitable:
        steps += _steps(case, release, now)
        if case.in_file is not None:
            routed[case.name] = {"session_id": case.id(case.in_file)}
    (home.path / "sessions").mkdir(exist_ok=True)
    (home.path / "sessions" / "sessions.json").write_text(json.dumps(routed))
    home.run(release, steps)
    return suitable


def _steps(case: Case, release: Release, now: float) -> list[Step]:
    def cell(value: Any) -> Any:
        if isinstance(value, tuple):
            return now - value[1]
        if isinstance(value, str):
            return case.id(value[1:]) if value.startswith("@") else value
        if isinstance(value, dict) and "blob" not in value:
            return json.dumps({key: cell(inner) for key, inner in value.items()})
        return value

    sessions: dict[tuple[str, ...], list[list[Any]]] = {}
    messages: list[list[Any]] = []
    for row in case.sessions:
        cells = {
            "id": case.id(row.name),
            "source": row.source,
            "parent_session_id": None if row.parent is None else case.id(row.parent),
            "started_at": now - row.started,
            "ended_at": None if row.ended is None else now - row.ended,
            "end_reason": row.reason,
            "model_config": cell({"max_iterations": 90} | dict(row.marks)),
            **{column: cell(value) for column, value in row.cells.items()},
        }
        sessions.setdefault(tuple(cells), []).append(list(cells.values()))
        said = now - (row.started if row.said_ago is None else row.said_ago)
        for n, who in enumerate(row.said):
            role = {"u": "user", "a": "assistant", "x": "user"}[who]
            messages.append([case.id(row.name), role, f"{case.name} {n}", said + n / 10, int(who != "x")])
    steps = [_insert("sessions", columns, rows) for columns, rows in sessions.items()]
    columns: tuple[str, ...] = ("session_id", "role", "content", "timestamp", "active")
    if not release.since("0.16.0"):
        columns, messages = columns[:-1], [row[:-1] for row in messages]
    steps.append(_insert("messages", columns, messages))
    for table, extra in case.rows:
        steps.append(_insert(table, tuple(extra), [[cell(value) for value in extra.values()]]))
    return steps


def _insert(table: str, columns: tuple[str, ...], rows: list[list[Any]]) -> Step:
    marks = ", ".join("?" for _ in columns)
    return sql_many(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)
