"""Stores built out of random histories, and faults planted into them at random.

Many histories go into one store, since a release takes long to start; none of them knows of the others. Where
something is wrong with such a store, :func:`smallest` looks for the single history, the deeds and the faults in it
that show it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import apsw
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.oracle.deeds import KINDS, Chat, Deed, History, Teller
from tests.oracle.history import DAY, HOUR, MINUTE
from tests.oracle.home import CallError, Home, OracleError
from tests.oracle.process import HermesProcess
from tests.oracle.releases import Release
from tests.oracle.steps import Step, call, sql

#: For how long, in seconds, the smallest history is looked for.
PATIENCE: Final = 200


@dataclass(frozen=True)
class Fault:
    """A fault to be planted: the kind, and numbers that choose the chat and the way."""

    kind: str
    chat: int = 0
    how: int = 0


@dataclass(frozen=True)
class Tale:
    """A history, and what is planted into it when it has ended."""

    history: History
    faults: tuple[Fault, ...] = ()


def _deeds(*deeds: tuple[str, int, int]) -> tuple[Deed, ...]:
    return tuple(Deed(kind, chat, how) for kind, chat, how in deeds)


_CHAIN: Final = ("0.13.0", "0.16.0", "0.19.0", "0.22.2")

#: By what releases make wrong: the release or chain that does it, and the deeds by which.
EXAMPLES: Final[dict[str, tuple[tuple[str, ...], tuple[tuple[Deed, ...], ...]]]] = {
    "a fork wraps": (("0.20.0",), (_deeds(("start", 0, 3), ("fork", 0, 0)),)),
    "a copy stays wrapped": (
        ("0.20.0",),
        (_deeds(("start", 0, 3), ("talk", 0, 3), ("fork", 0, 0), ("compact", 0, 1)),),
    ),
    "a branch loses columns": (("0.20.0",), (_deeds(("start", 0, 4), ("talk", 0, 3), ("branch", 0, 0)),)),
    "rewound rows brought back": (
        ("0.20.6",),
        (_deeds(("start", 0, 0), ("talk", 0, 0), ("rewind", 0, 0), ("restore", 0, 0)),),
    ),
    "a delegate stays open": (("0.17.0",), (_deeds(("start", 0, 0), ("delegate", 0, 0)),)),
    "left without a word": (("0.16.0",), (_deeds(("look_in", 0, 0)),)),
    "a window left without a word": (("0.22.2",), (_deeds(("look_in", 0, 1)),)),
    "a continuation deleted": (
        ("0.22.2",),
        (_deeds(("start", 0, 0), ("talk", 0, 0), ("rotate", 0, 0), ("delete", 1, 0)),),
    ),
    "a routed chat deleted": (("0.22.2",), (_deeds(("start", 0, 2), ("delete", 0, 0)),)),
    "a branched parent opened again": (
        ("0.13.0",),
        (_deeds(("start", 0, 0), ("branch", 0, 0), ("resume", 0, 0)),),
    ),
    "a branch of an open window": (("0.15.2",), (_deeds(("start", 0, 1), ("branch", 0, 0)),)),
    "the upgrade marks it": (_CHAIN, (_deeds(("start", 1, 0), ("talk", 0, 0)), (), (), ())),
    "a rotation leaves the routing": (
        ("0.19.0",),
        (_deeds(("start", 0, 1), ("branch", 0, 0), ("rotate", 1, 0)),),
    ),
    "an import leaves the routing": (
        ("0.22.2",),
        (_deeds(("start", 0, 2), ("talk", 0, 0), ("rotate", 0, 0), ("reset", 0, 0), ("import", 0, 0)),),
    ),
    "a delegate without a mark": (
        _CHAIN,
        (_deeds(("start", 0, 2), ("delegate", 0, 0)), _deeds(("rotate", 0, 0)), (), ()),
    ),
    "closed after a handoff": (("0.13.0",), (_deeds(("start", 0, 0), ("hand_off", 0, 1)),)),
}


def examples(life: Sequence[str]) -> dict[str, Tale]:
    """What these releases make wrong, by its name."""
    return {name: Tale(History(stages)) for name, (own, stages) in EXAMPLES.items() if own == tuple(life)}


@dataclass
class Told:
    """A store that was lived in: who lived in it, and what its last release said of it at the end."""

    home: Home
    releases: tuple[Release, ...]
    tellers: tuple[Teller, ...]
    listed: list[str]
    replayed: dict[str, Any]

    @property
    def release(self) -> Release:
        return self.releases[-1]


def drawn(number: int, stages: int, start: int) -> list[Tale]:
    """So many tales of that many releases each, always the same ones for the same ``start``."""
    deeds = st.builds(
        Deed,
        kind=st.sampled_from(KINDS),
        chat=st.integers(0, 7),
        how=st.integers(0, 7),
        pause=st.sampled_from([MINUTE, 10 * MINUTE, 3 * HOUR, DAY, 3 * DAY]),
    )
    histories = st.builds(
        History,
        stages=st.tuples(*[st.lists(deeds, min_size=4, max_size=12).map(tuple)] * stages),
        rest=st.sampled_from([MINUTE, 20 * MINUTE, 3 * HOUR, 2 * DAY, 15 * DAY]),
    )
    faults = st.builds(Fault, kind=st.sampled_from(sorted(PLANTERS)), chat=st.integers(0, 7), how=st.integers(0, 7))
    tale = st.builds(Tale, history=histories, faults=st.lists(faults, max_size=4).map(tuple))
    # One at a time: what is drawn in a row is much alike, and the first one is simple.
    return [_drawn(tale, 1000 * start + n) for n in range(number)]


def _drawn(tales: st.SearchStrategy[Tale], start: int) -> Tale:
    found: list[Tale] = []

    @seed(start)
    @settings(
        max_examples=3,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(tales)
    def collect(tale: Tale) -> None:
        found.append(tale)

    collect()
    return found[-1]


def tell(home: Home, releases: Sequence[Release], tales: Sequence[Tale]) -> Told:
    """Live through all tales in a new home, each release in one process."""
    now = time.time()
    tellers = tuple(Teller(f"h{n:03}", tale.history, releases, now) for n, tale in enumerate(tales))
    said: list[Any] = []
    for number, release in enumerate(releases):
        with HermesProcess(home, release, timeout=120) as hermes:
            rows = hermes.step(sql("SELECT id, model_config, end_reason FROM sessions"))
            delegates = {row[0] for row in rows if "_delegate_from" in json.loads(row[1] or "{}")}
            ends = {row[0]: row[2] for row in rows}
            for teller in tellers:
                for chat in teller.chats:
                    # The windows' server ends what it has open when its process ends.
                    chat.ended = ends[chat.id]
                steps = teller.stage(number, delegates)
                teller.learn(steps, _asked(hermes, steps))
            there = dict(hermes.step(sql("SELECT id, parent_session_id FROM sessions")))
            known = {chat.id: chat for teller in tellers for chat in teller.chats}
            assert there.keys() == known.keys(), (
                f"hermes {release}: not what the deeds made: {there.keys() ^ known.keys()}"
            )
            for session, chat in known.items():
                # The gateway's chats have parents of its own choice.
                chat.parent = known.get(there[session])
            if number == len(releases) - 1:
                said = _asked(hermes, look(sorted(known)))
    return Told(home, tuple(releases), tellers, _ids(said[0]), dict(zip(sorted(known), said[1:], strict=True)))


def look(sessions: Sequence[str]) -> list[Step]:
    """What a person sees: the list, archived chats too, and each of these chats."""
    return [call("list_sessions_rich", limit=100_000), *(call("get_messages_as_conversation", s) for s in sessions)]


def look_again(home: Home, told: Told) -> tuple[list[str], dict[str, Any]]:
    """The same of a copy of the store, by the last release."""
    sessions = sorted(told.replayed)
    values = home.run(told.release, look(sessions))
    return _ids(values[0]), dict(zip(sessions, values[1:], strict=True))


def _ids(listed: Any) -> list[str]:
    return sorted(row["id"] for row in listed)


def _asked(hermes: HermesProcess, steps: Sequence[Step]) -> list[Any]:
    """All answers; what a release raised fails the test."""
    for step in steps:
        hermes.send(step)
    values = []
    for step in steps:
        values.append(hermes.receive())
        if isinstance(values[-1], CallError):
            raise OracleError(f"hermes {hermes.release}: {step} raised {values[-1]}")
    return values


# -- faults -----------------------------------------------------------------------------------------------------


@dataclass
class Site:
    """A store in which faults are planted, and the chats of one tale in it."""

    store: apsw.Connection
    teller: Teller
    release: Release
    now: float
    columns: dict[str, set[str]]
    #: What must be found: the check, and the session.
    expected: list[tuple[str, str]] = field(default_factory=list)
    #: Sessions with a fault: a second one could hide the first.
    hurt: list[str] = field(default_factory=list)
    #: Those with one that says whether, and where, they are listed. What two of these come to is anybody's guess.
    moved: set[str] = field(default_factory=set)
    count: int = 0

    def has(self, table: str, *columns: str) -> bool:
        return table in self.columns and self.columns[table].issuperset(columns)

    def run(self, statement: str, *values: Any) -> list[Any]:
        return self.store.execute(statement, values).fetchall()

    def chosen(self, fault: Fault, fits: Callable[[Chat], bool] = lambda chat: True) -> Chat | None:
        fitting = [chat for chat in self.teller.chats if fits(chat) and self.row(chat) is not None]
        return fitting[fault.chat % len(fitting)] if fitting else None

    def moving(self, fault: Fault, fits: Callable[[Chat], bool]) -> Chat | None:
        """The same, for a fault of a session's place among the others."""
        chat = self.chosen(fault, lambda chat: chat.id not in self.moved and fits(chat))
        if chat is not None:
            self.moved.add(chat.id)
        return chat

    def row(self, chat: Chat) -> tuple[Any, ...] | None:
        found = self.run("SELECT source, started_at, ended_at, end_reason FROM sessions WHERE id = ?", chat.id)
        return found[0] if found else None

    def over(self, chat: Chat) -> bool:
        """Whether it was closed, and has been still for so long that nothing spares it."""
        return (
            chat.ended in ("cli_close", "tui_close", "tui_shutdown", "cron_complete")
            and chat.source in ("cli", "tui", "cron")
            and chat.key is None
            and not chat.handed
            and self.teller.clock < self.now - DAY
        )

    def alone(self, chat: Chat) -> bool:
        """Whether it is nobody's child and nobody's parent."""
        return chat.parent is None and self.childless(chat)

    def goes_on_once(self, chat: Chat) -> bool:
        """Whether it was compressed, and nothing but its continuation hangs on it."""
        return chat.ended == "compression" and [c.goes_on for c in self.teller.chats if c.parent is chat] == [True]

    def childless(self, chat: Chat) -> bool:
        return not any(other.parent is chat for other in self.teller.chats)

    def settable(self, chat: Chat) -> bool:
        """Whether its messages can be set aside.

        Where any change of a row writes its text into the index anew (up to 0.19.0), one with a NUL in it is left.
        """
        structured = any(isinstance(message["content"], list) for message, _state in chat.rows)
        return not structured or not self.run(
            "SELECT 1 FROM sqlite_schema WHERE name = 'messages_fts_trigram_update' AND sql NOT LIKE '%UPDATE OF%'"
        )

    def finds(self, check: str, session: str) -> None:
        self.expected.append((check, session))
        self.hurt.append(session)

    def new(self) -> str:
        self.count += 1
        return f"{self.teller.name}-planted-{self.count}"


def plant(told: Told, tales: Sequence[Tale]) -> tuple[set[tuple[str, str]], set[str]]:
    """Plant the faults of all tales.

    Value: what must be found, by check and session, where no other fault could hide it; the sessions with several.
    """
    with closing(apsw.Connection(str(told.home.store))) as store:
        columns: dict[str, set[str]] = {}
        for table, column in store.execute(
            "SELECT t.name, c.name FROM pragma_table_list AS t, pragma_table_info(t.name) AS c WHERE t.type = 'table'"
        ):
            columns.setdefault(str(table), set()).add(str(column))
        expected: set[tuple[str, str]] = set()
        several: set[str] = set()
        if any(fault.kind == "null" for tale in tales for fault in tale.faults):
            _weaken(store)
        store.execute("BEGIN IMMEDIATE")
        for teller, tale in zip(told.tellers, tales, strict=True):
            site = Site(store, teller, told.release, time.time(), columns)
            for fault in tale.faults:
                PLANTERS[fault.kind](site, fault)
            several |= {session for session in site.hurt if site.hurt.count(session) > 1}
            expected |= {each for each in site.expected if each[1] not in several}
        store.execute("COMMIT")
    return expected, several


def _double(site: Site, fault: Fault) -> None:
    column = ("reasoning_details", "codex_reasoning_items", "codex_message_items", "tool_calls")[fault.how % 4]
    chat = site.chosen(fault, lambda chat: any(m.get(column) for m in chat.live))
    if chat is not None:
        for _ in range(1 + fault.how // 4):
            site.run(
                f"UPDATE messages SET {column} = json_quote({column}) WHERE session_id = ? AND {column} IS NOT NULL",
                chat.id,
            )
        site.finds("double-encoded", chat.id)


def _counter(site: Site, fault: Fault) -> None:
    chat = site.chosen(fault, lambda chat: bool(chat.live))
    column = ("message_count", "tool_call_count")[fault.how % 2]
    value = (None, -1, 1000, "many")[fault.how // 2]
    if chat is not None:
        site.run(f"UPDATE sessions SET {column} = ? WHERE id = ?", value, chat.id)
        site.finds("counter-drift", chat.id)


def _zombie(site: Site, fault: Fault) -> None:
    chat = site.moving(fault, lambda chat: site.over(chat) and bool(chat.live))
    if chat is not None:
        site.run("UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = ?", chat.id)
        pinned = site.has("sessions", "pinned") and site.run("SELECT 1 FROM sessions WHERE id = ? AND pinned", chat.id)
        # One with a continuation above or below goes by the newest of the chain.
        if not pinned and site.alone(chat):
            site.finds("open-zombies", chat.id)
        else:
            site.hurt.append(chat.id)


def _stub(site: Site, fault: Fault) -> None:
    stub, source = site.new(), ("cli", "tui", "cron", "subagent")[fault.how % 4]
    ended = (site.now - 3 * DAY, "cli_close") if fault.how // 4 else (None, None)
    site.run(
        "INSERT INTO sessions (id, source, started_at, ended_at, end_reason) VALUES (?, ?, ?, ?, ?)",
        stub,
        source,
        site.now - 3 * DAY - HOUR,
        *ended,
    )
    site.finds("orphan-stubs", stub)


def _parent(site: Site, fault: Fault) -> None:
    chat = site.moving(
        fault, lambda chat: chat.parent is None and chat.source in ("cli", "tui", "telegram") and bool(chat.live)
    )
    if chat is not None:
        parent = chat.id if fault.how % 2 else site.new()
        site.run("UPDATE sessions SET parent_session_id = ? WHERE id = ?", parent, chat.id)
        site.finds("lineage-gaps", chat.id)


def _gap(site: Site, fault: Fault) -> None:
    chat = site.moving(fault, lambda chat: site.over(chat) and site.alone(chat) and bool(chat.live))
    if chat is None:
        return
    site.run("UPDATE sessions SET end_reason = 'compression' WHERE id = ?", chat.id)
    site.finds("lineage-gaps", chat.id)
    if fault.how % 2:
        site.run(
            "INSERT INTO sessions (id, source, parent_session_id, started_at) VALUES (?, ?, ?, ?)",
            site.new(),
            chat.source,
            chat.id,
            site.now - (2 if fault.how % 4 == 1 else 5) * DAY,
        )


def _crossed(site: Site, fault: Fault) -> None:
    # Where something hangs on it, only the end of a compressed one follows from the rest.
    compressed = fault.how % 4 == 1
    chat = site.moving(
        fault, lambda chat: not chat.open and ((compressed and site.goes_on_once(chat)) or site.childless(chat))
    )
    if chat is not None:
        change = ("end_reason = NULL", "ended_at = NULL", "ended_at = started_at - 3600", "end_reason = ''")
        site.run(f"UPDATE sessions SET {change[fault.how % 4]} WHERE id = ?", chat.id)
        site.finds("crossed-ends", chat.id)


def _orphans(site: Site, fault: Fault) -> None:
    chat = site.moving(
        # A run, or what was put away, would be listed as it was not before: what is rebuilt is no more of either.
        fault,
        lambda chat: (
            site.alone(chat)
            and chat.key is None
            and bool(chat.live)
            and chat.source not in ("subagent", "cron")
            and not chat.archived
        ),
    )
    if chat is not None:
        site.run("DELETE FROM sessions WHERE id = ?", chat.id)
        site.finds("orphan-messages", chat.id)


def _lock(site: Site, fault: Fault) -> None:
    chat = site.chosen(fault)
    table, key = ("session_turn_leases", "conversation_id") if fault.how % 2 else ("compression_locks", "session_id")
    if chat is not None and site.has(table):
        site.run(
            f"INSERT OR REPLACE INTO {table} ({key}, holder, acquired_at, expires_at) VALUES (?, ?, ?, ?)",
            chat.id,
            "pid=1:tid=1:agent=7f00:nonce=0a1b2c3d",
            site.now - 3 * DAY,
            site.now - 2 * DAY,
        )
        site.expected.append(("stale-locks", chat.id))


def _handoff(site: Site, fault: Fault) -> None:
    chat = site.chosen(fault, lambda chat: site.teller.clock < site.now - HOUR and not chat.handed)
    if chat is not None:
        state = ("pending", "running")[fault.how % 2]
        site.run("UPDATE sessions SET handoff_state = ?, handoff_platform = 'telegram' WHERE id = ?", state, chat.id)
        site.finds("stale-handoffs", chat.id)


def _usage(site: Site, fault: Fault) -> None:
    if site.has("session_model_usage", "task"):
        nobody = site.new()
        site.run(
            "INSERT INTO session_model_usage (session_id, model, billing_provider, billing_base_url, billing_mode,"
            " task, input_tokens) VALUES (?, 'test-model', '', '', '', '', 5)",
            nobody,
        )
        site.finds("dangling-routes", nobody)


def _mark(site: Site, fault: Fault) -> None:
    """What the upgrade to schema 16 does to a chat, search index and all."""
    chat = site.moving(
        fault,
        lambda chat: (
            chat.parent is None
            and chat.source in ("cli", "tui")
            and site.alone(chat)
            and sum(message["role"] == "user" for message in chat.live) > 1
        ),
    )
    if chat is None or not site.release.since("0.17.0"):
        return
    if site.run("SELECT 1 FROM sqlite_schema WHERE name = 'messages_fts_trigram_src' AND sql LIKE '%subagent%'"):
        site.run(
            "INSERT INTO messages_fts_trigram (messages_fts_trigram, rowid, content, tool_name)"
            " SELECT 'delete', id, content, tool_name FROM messages_fts_trigram_src"
            " WHERE id IN (SELECT id FROM messages WHERE session_id = ?)",
            chat.id,
        )
    site.run(
        "UPDATE sessions SET model_config = json_set(coalesce(model_config, '{}'), '$._delegate_from', '__orphaned__')"
        " WHERE id = ?",
        chat.id,
    )
    site.finds("hidden-chats", chat.id)


def _titles(site: Site, fault: Fault) -> None:
    chats = [chat for chat in site.teller.chats if site.row(chat) is not None]
    if len(chats) > 1:
        # Whoever lost the index lost it for all.
        site.run("DROP INDEX IF EXISTS idx_sessions_title_unique")
        for chat in chats[:2]:
            site.run("UPDATE sessions SET title = ? WHERE id = ?", f"{site.teller.name} twice", chat.id)


def _delegation(site: Site, fault: Fault) -> None:
    if site.has("async_delegations", "delivery_state", "delivered_at"):
        old = site.now - 9 * DAY
        site.run(
            "INSERT INTO async_delegations (delegation_id, origin_session, state, dispatched_at, completed_at,"
            " updated_at, delivery_state, delivered_at) VALUES (?, '', 'completed', ?, ?, ?, 'delivered', ?)",
            site.new(),
            *(old,) * 4,
        )


def _weaken(store: apsw.Connection) -> None:
    """Let ``messages.active`` be NULL, as in stores whose columns an old release added."""
    before = str(store.execute("SELECT sql FROM sqlite_schema WHERE name = 'messages'").fetchall()[0][0])
    after = re.sub(r'(\bactive\b"? INTEGER) NOT NULL', r"\1", before)
    store.execute("PRAGMA writable_schema = ON")
    store.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'messages'", (after,))
    store.execute("PRAGMA writable_schema = RESET")


def _null(site: Site, fault: Fault) -> None:
    chat = site.chosen(
        fault,
        lambda chat: bool(chat.live) and all(state == "live" for _m, state in chat.rows) and site.settable(chat),
    )
    if chat is not None and site.has("messages", "active"):
        site.run(
            "UPDATE messages SET active = NULL WHERE id IN"
            " (SELECT id FROM messages WHERE session_id = ? ORDER BY id LIMIT 1 OFFSET ?)",
            chat.id,
            fault.how % len(chat.rows),
        )
        site.finds("hidden-by-null", chat.id)


def _copied(site: Site, chat: Chat, put: str) -> None:
    """Write the last live messages of a chat once more, all but for what is the row's own."""
    own = {"id", "message_uid", "display_identity", "display_order"}
    columns = ", ".join(sorted(site.columns["messages"] - own - {"active", "compacted"}))
    flags = "active, compacted" if site.has("messages", "compacted") else "active"
    site.run(
        f"INSERT INTO messages ({columns}, {flags}) SELECT {columns}, {put} FROM messages WHERE id IN"
        " (SELECT id FROM messages WHERE session_id = ? AND active = 1 ORDER BY id DESC LIMIT 4) ORDER BY id",
        chat.id,
    )


def _replay(site: Site, fault: Fault) -> None:
    chat = site.chosen(
        fault,
        lambda chat: (
            len(chat.live) > 1
            and not any(m.get("_compressed_summary") for m, _state in chat.rows)
            and site.settable(chat)
        ),
    )
    if chat is None or not site.has("messages", "active"):
        return
    for _ in range(1 + fault.how % 2):
        _copied(site, chat, "1, 0" if site.has("messages", "compacted") else "1")
        said = chat.live[-4:]
        site.run(
            "UPDATE sessions SET message_count = message_count + ?, tool_call_count = tool_call_count + ? WHERE id = ?",
            len(said),
            sum(len(message.get("tool_calls") or ()) for message in said),
            chat.id,
        )
    site.finds("replayed-blocks", chat.id)


def _archived(site: Site, fault: Fault) -> None:
    chat = site.chosen(fault, lambda chat: bool(chat.live) and site.settable(chat))
    if chat is not None and site.has("messages", "compacted"):
        _copied(site, chat, "0, 1")
        site.finds("archived-copies", chat.id)


def _config(site: Site, fault: Fault) -> None:
    chat = site.moving(fault, lambda chat: chat.source in ("cli", "tui", "telegram", "acp") and site.alone(chat))
    if chat is not None:
        broken = ("{", "", "[1, 2", "max_iterations: 90")[fault.how % 4]
        site.run("UPDATE sessions SET model_config = ? WHERE id = ?", broken, chat.id)
        site.finds("broken-json", chat.id)


PLANTERS: Final[dict[str, Callable[[Site, Fault], None]]] = {
    "double": _double,
    "counter": _counter,
    "zombie": _zombie,
    "stub": _stub,
    "parent": _parent,
    "gap": _gap,
    "crossed": _crossed,
    "orphans": _orphans,
    "lock": _lock,
    "handoff": _handoff,
    "usage": _usage,
    "mark": _mark,
    "titles": _titles,
    "delegation": _delegation,
    "null": _null,
    "replay": _replay,
    "archived": _archived,
    "config": _config,
}


# -- looking for the one that shows it --------------------------------------------------------------------------


def smallest(tales: Sequence[Tale], fails: Callable[[Sequence[Tale]], bool]) -> list[Tale]:
    """The tales cut down for as long as they still fail: to a single one, then deed by deed and fault by fault."""
    found = list(tales)
    end = time.monotonic() + PATIENCE
    while len(found) > 1:
        half = len(found) // 2
        part = next((part for part in (found[:half], found[half:]) if fails(part)), None)
        if part is None:
            break
        found = part
    cut = True
    while cut:
        cut = False
        for n, tale in enumerate(found):
            tried = ([*found[:n], shorter, *found[n + 1 :]] for shorter in _shorter(tale))
            less = next((some for some in tried if time.monotonic() > end or fails(some)), None)
            if time.monotonic() > end:
                return found
            if less is not None:
                found, cut = less, True
                break
    return found


def _shorter(tale: Tale) -> Iterator[Tale]:
    """The tale without some of its deeds or one of its faults: many deeds first, and those of the end first."""
    stages = tale.history.stages
    for share in (1, 2, 4, 12):
        for at, deeds in enumerate(stages):
            size = -(-len(deeds) // share)
            for n in reversed(range(0, len(deeds), max(1, size))):
                fewer = (*stages[:at], deeds[:n] + deeds[n + size :], *stages[at + 1 :])
                yield replace(tale, history=replace(tale.history, stages=fewer))
    for n in range(len(tale.faults)):
        yield replace(tale, faults=tale.faults[:n] + tale.faults[n + 1 :])
