"""What open-zombies must find and what it must leave: one case a row, planted through each release's own calls.

A case plants its rows under a name of its own into a home that it shares with the others, so that one start of a
release serves them all, and says what is to be found of them. Wrong variants of the check run through the same cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.history import MODEL_CONFIG
from tests.oracle.releases import RELEASES, Release, get
from tests.oracle.steps import Step, blob, call, clock, ref, sql, use

MINUTE = 60.0
HOUR = 3600.0
DAY = 86_400.0

SAFE = ("warning", "safe")
UNSAFE = ("warning", "unsafe")
REPORT = ("warning", "none")

#: What is to be found of a case: by the part of the session's name behind the case's, (severity, fix).
Expected = dict[str, tuple[str, str]]

Verdict = tuple[str, str] | None


@dataclass
class Plot:
    """Collects the steps of one case. ``now``: the moment that the scan will take for the present."""

    case: str
    release: Release
    now: float
    steps: list[Step] = field(default_factory=list)

    def id(self, part: str = "") -> str:
        return f"{self.case}{'/' + part if part else ''}"

    def at(self, ago: float) -> None:
        self.steps.append(clock(self.now - ago))

    def do(self, name: str, *args: Any, keep: str | None = None, **kwargs: Any) -> None:
        self.steps.append(call(name, *args, keep=keep, **kwargs))

    def sql(self, statement: str, *args: Any) -> None:
        self.steps.append(sql(statement, *args))

    def row(self, part: str = "", source: str = "cli", *, ago: float = 3 * DAY, **columns: Any) -> str:
        """A row that began so long ago; what the release's create_session does not take is set by SQL."""
        session = self.id(part)
        later = {name: columns.pop(name) for name in ("session_key",) if name in columns}
        self.at(ago)
        self.do("create_session", session, source, model="test-model", **columns)
        for name, value in later.items():
            self.set(part, name, value)
        return session

    def say(self, part: str = "", *, ago: float = 3 * DAY, role: str = "user") -> None:
        self.at(ago)
        self.do("append_message", self.id(part), role, "hello")

    def set(self, part: str, column: str, value: Any) -> None:
        self.sql(f"UPDATE sessions SET {column} = ? WHERE id = ?", value, self.id(part))

    def message_at(self, part: str, value: Any) -> None:
        """The time of all messages of the session."""
        self.sql("UPDATE messages SET timestamp = ? WHERE session_id = ?", value, self.id(part))

    def end(self, part: str, reason: str, *, ago: float) -> None:
        self.at(ago)
        self.do("end_session", self.id(part), reason)

    def compress(self, parent: str, child: str, *, ago: float, source: str = "cli") -> None:
        """The conversation goes on in a child row."""
        self.end(parent, "compression", ago=ago)
        self.row(child, source, ago=ago, parent_session_id=self.id(parent))


@dataclass(frozen=True)
class Case:
    """``expected`` may ask the release. ``since`` and ``until``: the releases that can show it, both included."""

    name: str
    plant: Callable[[Plot], None]
    expected: Callable[[Release], Expected]
    since: str = "0.13.0"
    until: str = "0.22.2"

    def shown_by(self, release: Release) -> bool:
        return get(self.since).order <= release.order <= get(self.until).order


CASES: list[Case] = []


def case(
    name: str,
    expected: Expected | Verdict | Callable[[Release], Expected | Verdict] = None,
    *,
    since: str = "0.13.0",
    until: str = "0.22.2",
) -> Callable[[Callable[[Plot], None]], Callable[[Plot], None]]:
    """Adds a case; a verdict alone is that of the session without a part, None: nothing is found."""

    def add(plant: Callable[[Plot], None]) -> Callable[[Plot], None]:
        def wanted(release: Release) -> Expected:
            found = expected(release) if callable(expected) else expected
            return {} if found is None else found if isinstance(found, dict) else {"": found}

        CASES.append(Case(name, plant, wanted, since, until))
        return plant

    return add


def planted(release: Release, now: float) -> list[Step]:
    """The steps of all cases that the release can show."""
    return steps_of({each.name: each.plant for each in CASES if each.shown_by(release)}, release, now)


def steps_of(plants: Mapping[str, Callable[[Plot], None]], release: Release, now: float) -> list[Step]:
    """The steps that plant cases, by their names; the clock goes right again behind them."""
    steps: list[Step] = []
    for name, plant in plants.items():
        plot = Plot(name, release, now)
        plant(plot)
        steps += plot.steps
    return [*steps, clock(None)]


def expected_of(release: Release) -> dict[str, tuple[str, str]]:
    """All that is to be found in a home with all cases: session -> (severity, fix)."""
    found: dict[str, tuple[str, str]] = {}
    for each in CASES:
        if each.shown_by(release):
            plot = Plot(each.name, release, 0.0)
            found |= {plot.id(part): verdict for part, verdict in each.expected(release).items()}
    return found


def before_aging_from_the_close(release: Release) -> tuple[str, str]:
    """What is past its retention by every clock may be pruned once it is ended, up to schema 29."""
    return SAFE if release.schema >= 30 else UNSAFE


# --- thresholds, a minute before and after each, by source, on each clock ------------------------------------------


def _silent(source: str, ago: float) -> Callable[[Plot], None]:
    """A row without messages: its start is all that there is."""

    def plant(plot: Plot) -> None:
        plot.row("", source, ago=ago)

    return plant


def _said(source: str, ago: float) -> Callable[[Plot], None]:
    """An old row whose newest message decides; its row says nothing of the last activity."""

    def plant(plot: Plot) -> None:
        plot.row("", source, ago=ago + 2 * DAY)
        plot.say(ago=ago + DAY)
        plot.say(ago=ago, role="assistant")
        if plot.release.since("0.20.0"):
            plot.set("", "last_activity_at", None)

    return plant


def _active(source: str, ago: float) -> Callable[[Plot], None]:
    """An old row with old messages; its last activity decides (0.20.0 on)."""

    def plant(plot: Plot) -> None:
        plot.row("", source, ago=ago + 2 * DAY)
        plot.say(ago=ago + DAY)
        plot.set("", "last_activity_at", plot.now - ago)

    return plant


def _standing(release: Release, severity: str, *, past_retention: bool) -> tuple[str, str]:
    if release.schema <= 25 or (past_retention and release.schema < 30):
        return severity, "unsafe"
    return severity, "safe"


def _thresholds() -> None:
    clocks = ((_silent, "start", "0.13.0"), (_said, "message", "0.13.0"), (_active, "activity", "0.20.0"))
    for make, clock_name, since in clocks:

        def add(
            source: str,
            label: str,
            ago: float,
            expected: Any,
            make: Any = make,
            kind: str = clock_name,
            since: str = since,
        ) -> None:
            case(f"{source} {label} by {kind}", expected, since=since)(make(source, ago))

        for source in ("cli", "cron", "kanban", "subagent", "tool", "oneshot"):
            add(source, "59 minutes", HOUR - MINUTE, None)
            add(source, "61 minutes", HOUR + MINUTE, SAFE)
        for source in ("tui", "desktop"):
            add(source, "a minute under 6 hours", 6 * HOUR - MINUTE, None)
            add(source, "a minute over 6 hours", 6 * HOUR + MINUTE, SAFE)
        for source in ("api_server", "acp"):
            add(source, "a minute under a day", DAY - MINUTE, None)
            add(source, "a minute over a day", DAY + MINUTE, lambda r: _standing(r, "info", past_retention=False))
            # Where the activity decides, the messages are a day older: past the retention by which 0.20 prunes.
            prunable = make is _active
            add(
                source,
                "a minute under 90 days",
                90 * DAY - MINUTE,
                lambda r, prunable=prunable: _standing(r, "info", past_retention=prunable),
            )
            add(
                source,
                "a minute over 90 days",
                90 * DAY + MINUTE,
                lambda r: _standing(r, "warning", past_retention=True),
            )
        add("recovered", "a minute under 90 days", 90 * DAY - MINUTE, None)
        add("recovered", "a minute over 90 days", 90 * DAY + MINUTE, before_aging_from_the_close)
        for source in ("unknown", "webui", "local", "_health_probe"):
            add(source, "a minute under a day", DAY - MINUTE, None)
            add(source, "a minute over a day", DAY + MINUTE, REPORT)


_thresholds()


# --- clocks that are no evidence --------------------------------------------------------------------------------


def _absurd_start(value: Any) -> Callable[[Plot], None]:
    def plant(plot: Plot) -> None:
        plot.row()
        plot.say()
        plot.set("", "started_at", value)

    return plant


def _absurd_message(value: Any) -> Callable[[Plot], None]:
    def plant(plot: Plot) -> None:
        plot.row()
        plot.say(ago=2 * DAY)
        plot.message_at("", value)
        plot.say(ago=2 * DAY)

    return plant


def _absurd_activity(value: Any) -> Callable[[Plot], None]:
    def plant(plot: Plot) -> None:
        plot.row()
        plot.set("", "last_activity_at", value)

    return plant


for _name, _value in (("0.0", 0.0), ("text", "yesterday"), ("5e246", 5e246), ("negative", -1.0), ("bytes", blob(b"x"))):
    case(f"start {_name}")(_absurd_start(_value))
    case(f"activity {_name}", since="0.20.0")(_absurd_activity(_value))
for _name, _value in (("text", "yesterday"), ("5e246", 5e246), ("bytes", blob(b"x"))):
    case(f"message {_name} beside a good one")(_absurd_message(_value))


@case("only message 0.0")
def _(plot: Plot) -> None:
    plot.row()
    plot.say()
    plot.message_at("", 0.0)


@case("start in 1970")
def _(plot: Plot) -> None:
    plot.row()
    plot.set("", "started_at", 3600.0)


@case("start in the future")
def _(plot: Plot) -> None:
    plot.row()
    plot.say()
    plot.set("", "started_at", plot.now + DAY)


@case("message in the future")
def _(plot: Plot) -> None:
    plot.row()
    plot.say()
    plot.message_at("", plot.now + HOUR)


@case("activity in the future", since="0.20.0")
def _(plot: Plot) -> None:
    plot.row()
    plot.set("", "last_activity_at", plot.now + HOUR)


@case("fresh branch with copied messages")
def _(plot: Plot) -> None:
    plot.row("parent", ago=41 * DAY)
    plot.say("parent", ago=40 * DAY)
    plot.end("parent", "branched", ago=10 * MINUTE)
    config = MODEL_CONFIG | {"_branched_from": plot.id("parent")}
    plot.row("", ago=10 * MINUTE, parent_session_id=plot.id("parent"), model_config=config)
    plot.say(ago=40 * DAY)
    plot.say(ago=40 * DAY, role="assistant")


@case("cron row in which a person is at work")
def _(plot: Plot) -> None:
    plot.row("", "cron", ago=2 * DAY)
    plot.say(ago=2 * DAY)
    plot.say(ago=5 * MINUTE)


# --- the fix's safety ---------------------------------------------------------------------------------------------


@case("old start, used two days ago", lambda r: UNSAFE if r.schema <= 22 else SAFE)
def _(plot: Plot) -> None:
    plot.row(ago=100 * DAY)
    plot.say(ago=2 * DAY)


@case("young start, copied old messages", lambda r: UNSAFE if 25 <= r.schema < 30 else SAFE)
def _(plot: Plot) -> None:
    plot.row(ago=2 * DAY)
    plot.say(ago=100 * DAY)


@case("past its retention by all clocks", before_aging_from_the_close)
def _(plot: Plot) -> None:
    plot.row(ago=100 * DAY)
    plot.say(ago=100 * DAY)


@case("no end but a reason", REPORT)
def _(plot: Plot) -> None:
    plot.row()
    plot.set("", "end_reason", "cli_close")


# --- rows that are ended, or kept ------------------------------------------------------------------------------------


@case("ended")
def _(plot: Plot) -> None:
    plot.row()
    plot.end("", "cli_close", ago=3 * DAY)


@case("pinned", since="0.20.0")
def _(plot: Plot) -> None:
    plot.row(ago=30 * DAY)
    plot.do("set_session_pinned", plot.id(), True)


def _forked(mark: dict[str, str] | None = None) -> Callable[[Plot], None]:
    """A chat that goes on in an open row, and in another that was ended; ``mark``: of the other."""

    def plant(plot: Plot) -> None:
        plot.row(ago=9 * DAY)
        plot.say(ago=9 * DAY)
        plot.compress("", "open", ago=8 * DAY)
        plot.say("open", ago=8 * DAY)
        config = mark and {name: plot.id(part) for name, part in mark.items()}
        plot.row("other", ago=7 * DAY, parent_session_id=plot.id(), model_config=config)
        plot.say("other", ago=7 * DAY)
        plot.end("other", "ws_orphan_reap", ago=6 * DAY)

    return plant


case("one of two continuations", {"open": UNSAFE})(_forked())
case("the only continuation beside a branch", {"open": SAFE})(_forked({"_branched_from": ""}))


@case("pin on the row that it continues", since="0.20.0")
def _(plot: Plot) -> None:
    plot.row("parent", ago=30 * DAY)
    plot.compress("parent", "", ago=29 * DAY)
    plot.set("parent", "pinned", 1)


@case("handoff", {"failed": SAFE, "completed": SAFE})
def _(plot: Plot) -> None:
    for state in ("pending", "running", "failed", "completed"):
        plot.row(state)
        plot.set(state, "handoff_state", state)


@case("routed chat, idle for ten days")
def _(plot: Plot) -> None:
    peer = {"platform": "telegram", "chat_id": plot.id(), "user_id": "u1", "chat_type": "dm"}
    plot.at(10 * DAY)
    plot.steps.append(use("gateway_message", keep=plot.id(), **peer))
    plot.do("append_message", ref(plot.id(), "session_id"), "user", "hello")


@case("chat handed to a cli session")
def _(plot: Plot) -> None:
    peer = {"platform": "telegram", "chat_id": plot.id(), "user_id": "u1", "chat_type": "dm"}
    plot.row()
    plot.at(2 * DAY)
    plot.steps.append(use("gateway_message", keep=plot.id(), **peer))
    plot.steps.append(use("gateway_switch", session_key=ref(plot.id(), "session_key"), session_id=plot.id()))


@case("topic binding", {"unbound": SAFE})
def _(plot: Plot) -> None:
    plot.row()
    plot.row("unbound")
    plot.do("apply_telegram_topic_migration")
    plot.do("enable_telegram_topic_mode", chat_id=plot.id(), user_id="u1")
    key = {"session_key": plot.id(), "session_id": plot.id()}
    plot.do("bind_telegram_topic", chat_id=plot.id(), thread_id="7", user_id="u1", **key)


# --- chats ----------------------------------------------------------------------------------------------------------


def _keyed(plot: Plot, part: str, *, ago: float, key: str, source: str = "telegram", **columns: Any) -> None:
    plot.row(part, source, ago=ago, session_key=key, **columns)
    plot.say(part, ago=ago)


@case("chat without a key")
def _(plot: Plot) -> None:
    for source in ("telegram", "webhook", "yuanbao", "irc"):
        plot.row(source, source, ago=80 * DAY)


@case("keyed row with no newer sibling", since="0.18.0")
def _(plot: Plot) -> None:
    _keyed(plot, "", ago=80 * DAY, key=plot.id())
    _keyed(plot, "other chat", ago=2 * DAY, key=plot.id("other"))


@case("chat taken over", {"old": UNSAFE, "older": UNSAFE}, since="0.18.0")
def _(plot: Plot) -> None:
    _keyed(plot, "older", ago=9 * DAY, key=plot.id())
    _keyed(plot, "old", ago=8 * DAY, key=plot.id())
    _keyed(plot, "new", ago=2 * DAY, key=plot.id())


@case("empty keys", since="0.18.0")
def _(plot: Plot) -> None:
    _keyed(plot, "old", ago=8 * DAY, key="")
    _keyed(plot, "new", ago=2 * DAY, key="")


@case("chat taken over within the day", since="0.18.0")
def _(plot: Plot) -> None:
    _keyed(plot, "old", ago=DAY - MINUTE, key=plot.id())
    _keyed(plot, "new", ago=HOUR, key=plot.id())


@case("newer sibling is its own delegate", since="0.18.0")
def _(plot: Plot) -> None:
    _keyed(plot, "", ago=8 * DAY, key=plot.id())
    config = MODEL_CONFIG | {"_delegate_from": plot.id()}
    _keyed(plot, "child", ago=8 * DAY - HOUR, key=plot.id(), parent_session_id=plot.id(), model_config=config)


@case("taken over, but routed again", since="0.18.2")
def _(plot: Plot) -> None:
    _keyed(plot, "old", ago=8 * DAY, key=plot.id())
    _keyed(plot, "new", ago=2 * DAY, key=plot.id())
    plot.sql(
        "INSERT INTO gateway_routing (scope, session_key, entry_json, updated_at) VALUES ('s', ?, ?, 1.0)",
        plot.id(),
        f'{{"session_key": "k", "session_id": "{plot.id("old")}"}}',
    )


# --- lineage --------------------------------------------------------------------------------------------------------


@case("tip below a closed parent that was used lately")
def _(plot: Plot) -> None:
    plot.row("parent")
    plot.say("parent", ago=10 * MINUTE)
    plot.compress("parent", "", ago=2 * DAY)


@case("tip of an old chain", SAFE)
def _(plot: Plot) -> None:
    plot.row("first", ago=9 * DAY)
    plot.compress("first", "second", ago=8 * DAY)
    plot.compress("second", "", ago=7 * DAY)
    plot.say(ago=6 * DAY)


@case("first row of the chain was used lately")
def _(plot: Plot) -> None:
    plot.row("first", ago=9 * DAY)
    plot.say("first", ago=10 * MINUTE)
    plot.compress("first", "second", ago=8 * DAY)
    plot.compress("second", "", ago=7 * DAY)


@case("absurd clock up the chain")
def _(plot: Plot) -> None:
    plot.row("first", ago=9 * DAY)
    plot.compress("first", "", ago=8 * DAY)
    plot.set("first", "started_at", "text")


@case("branch of a parent that was used lately", SAFE)
def _(plot: Plot) -> None:
    plot.row("parent")
    plot.say("parent", ago=10 * MINUTE)
    plot.end("parent", "branched", ago=2 * DAY)
    config = MODEL_CONFIG | {"_branched_from": plot.id("parent")}
    plot.row("", ago=2 * DAY, parent_session_id=plot.id("parent"), model_config=config)


@case("fresh descendant")
def _(plot: Plot) -> None:
    plot.row()
    plot.row("child", "subagent", ago=2 * DAY, parent_session_id=plot.id())
    plot.row("grandchild", "subagent", ago=5 * MINUTE, parent_session_id=plot.id("child"))


@case("old descendants", {"": SAFE, "child": SAFE})
def _(plot: Plot) -> None:
    plot.row()
    plot.row("child", "subagent", ago=2 * DAY, parent_session_id=plot.id())
    plot.row("done", "subagent", ago=2 * DAY, parent_session_id=plot.id())
    plot.end("done", "agent_close", ago=2 * DAY)


@case("its own parent", SAFE)
def _(plot: Plot) -> None:
    plot.row()
    plot.set("", "parent_session_id", plot.id())


@case("two rows that are each other's parent", {"a": SAFE, "b": SAFE})
def _(plot: Plot) -> None:
    plot.row("a")
    plot.row("b", parent_session_id=plot.id("a"))
    plot.set("a", "parent_session_id", plot.id("b"))


@case("model_config that is no JSON", SAFE)
def _(plot: Plot) -> None:
    plot.row("parent", ago=9 * DAY)
    plot.compress("parent", "", ago=8 * DAY)
    plot.set("", "model_config", "{")


_LOCK = "INSERT INTO compression_locks (session_id, holder, acquired_at, expires_at) VALUES (?, 'x', 1.0, ?)"
_LEASE = "INSERT INTO session_turn_leases (conversation_id, holder, acquired_at, expires_at) VALUES (?, 'x', 1.0, ?)"


def _lineage(plot: Plot) -> None:
    """A chain of two, its open tip with an old delegate below."""
    plot.row("root", ago=9 * DAY)
    plot.compress("root", "", ago=8 * DAY)
    plot.row("child", "subagent", ago=8 * DAY, parent_session_id=plot.id())


@case("lock on a descendant", since="0.16.0")
def _(plot: Plot) -> None:
    _lineage(plot)
    plot.sql(_LOCK, plot.id("child"), plot.now + MINUTE)


@case("lock that has expired", {"": SAFE, "child": SAFE}, since="0.16.0")
def _(plot: Plot) -> None:
    _lineage(plot)
    plot.sql(_LOCK, plot.id("child"), plot.now - MINUTE)


@case("lock whose expiry is text", since="0.16.0")
def _(plot: Plot) -> None:
    _lineage(plot)
    plot.sql(_LOCK, plot.id("root"), "soon")


@case("lease on the root of the lineage", since="0.20.6")
def _(plot: Plot) -> None:
    _lineage(plot)
    plot.sql(_LEASE, plot.id("root"), plot.now + MINUTE)


@case("lease that has expired", {"": SAFE, "child": SAFE}, since="0.20.6")
def _(plot: Plot) -> None:
    _lineage(plot)
    plot.sql(_LEASE, plot.id("root"), plot.now - MINUTE)


def _delegation(plot: Plot, state: str, delivery: str) -> None:
    _lineage(plot)
    plot.sql(
        "INSERT INTO async_delegations (delegation_id, origin_session, parent_session_id, state, dispatched_at,"
        " updated_at, delivery_state) VALUES (?, '', ?, ?, 1.0, 1.0, ?)",
        plot.id(),
        plot.id("root"),
        state,
        delivery,
    )


@case("delegation that runs", since="0.19.0")
def _(plot: Plot) -> None:
    _delegation(plot, "running", "pending")


@case("delegation that is not delivered", since="0.19.0")
def _(plot: Plot) -> None:
    _delegation(plot, "completed", "pending")


@case("delegation that is over", {"": SAFE, "child": SAFE}, since="0.19.0")
def _(plot: Plot) -> None:
    _delegation(plot, "completed", "delivered")


@case("source that is bytes", REPORT)
def _(plot: Plot) -> None:
    plot.row()
    plot.set("", "source", blob(b"cli"))


@case("id with quotes and controls ' \" \u001b", SAFE)
def _(plot: Plot) -> None:
    plot.row()


assert len({each.name for each in CASES}) == len(CASES)
assert all(any(each.shown_by(release) for release in RELEASES) for each in CASES)
