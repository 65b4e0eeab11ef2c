"""Routes, bindings, delegations and usage of sessions that are gone.

What it finds
Rows that name a session which has no row: a chat's route in `gateway_routing`, a topic's binding in
`telegram_dm_topic_bindings`, a background delegation in `async_delegations`, and usage counted in
`session_model_usage`. Also the two tables whose key is an old one: `gateway_routing` without
`scope`, or with rows that have none, and `session_model_usage` without `task`.

Why it matters
Up to 0.21.5 the next message of a chat that is routed to nowhere brings the deleted session back to
life, empty, under its old id; 0.22.2 begins a new one. Usage of nobody is counted in insights, and
has made a release fail when it renewed the table's key. With the old keys no route can be saved, or
no usage is counted.

How it decides
By the ids alone. A route to a session that has ended is none of these: the gateway mends it itself.
Nor is one that was written in the last hour, since its session may still be on its way, nor a chat
of another profile, whose sessions are in that profile's store. Locks and leases expire, and are
left to stale-locks.

Fix
Usage of a session that is gone is deleted. Everything else is reported with what to type: a route
holds counters and what was queued for its chat, and only hermes knows what becomes of that.

Fix safety
Unsafe: what was spent is then counted nowhere. Refused while messages of the session are left, from
which it can be rebuilt (orphan-messages).

Upstream
Issues 84696 (a crash between route and row), 42422 (a deleted session comes back), 73541 (routes
without a scope), 73823 (usage without a task), 75194 (orphan usage). Renewed keys: 0.20.0 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Row, RowRule, Safety, Severity
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import HOUR, trusted
from hermes_doctor.store.hermes_command import hermes
from hermes_doctor.store.orphans import DELEGATION, ROUTE, TOPIC, USAGE, Link, has_messages, is_orphan, named_in
from hermes_doctor.store.view import StoreView

NAME = "dangling-routes"

#: A route younger than this, in seconds, may be there before its session.
YOUNG_SECONDS = HOUR

#: The keys that a release could not work with, by table: the column that the old key lacks. 0.20.0 and newer renew both
#: when they open a store for writing, which this command does (others only read, in 0.22.2).
_NEW_IN_KEY = {"gateway_routing": "scope", "session_model_usage": "task"}


def _route(row: Row, view: StoreView) -> Finding | None:
    updated = trusted(row["updated_at"])
    if _of_another_profile(row["session_key"], view.profile):
        return None
    if updated is not None and view.now - updated < view.idle_limit(YOUNG_SECONDS):
        return None
    return _finding(ROUTE, row, Severity.WARNING, "a chat is routed to a session that is gone: send /new in that chat")


def _topic(row: Row, _view: StoreView) -> Finding:
    return _finding(TOPIC, row, Severity.WARNING, "a topic is bound to a session that is gone: send /new in that topic")


def _delegation(row: Row, _view: StoreView) -> Finding:
    return _finding(DELEGATION, row, Severity.INFO, "a delegation of a session that is gone: hermes drops it in time")


def _usage(row: Row, view: StoreView) -> Finding:
    session = named_in(row, USAGE)
    refusal = None
    if has_messages(view, session):
        refusal = "messages of the session are left, so it can be rebuilt first: doctor explain orphan-messages"
    return _finding(USAGE, row, Severity.WARNING, "usage of a session that is gone", refusal=refusal, deletable=True)


def _finding(
    link: Link,
    row: Row,
    severity: Severity,
    summary: str,
    *,
    refusal: str | None = None,
    deletable: bool = False,
) -> Finding:
    can_be_done = deletable and refusal is None
    return Finding(
        check=NAME,
        severity=severity,
        table=link.table,
        key=None,
        session=named_in(row, link),
        summary=summary,
        detail={"column": link.column},
        fix=Safety.UNSAFE if can_be_done else Safety.NONE,
        action="delete the usage" if can_be_done else None,
        refusal=refusal,
    )


def _of_another_profile(session_key: Cell, profile: str) -> bool:
    """Whether a chat's key, ``agent:<profile>:<platform>:…``, is of a profile that has a store of its own."""
    if not isinstance(session_key, str) or not session_key.startswith("agent:"):
        return False
    return session_key.split(":")[1] not in ("main", profile)


def _old_key(table: str) -> Callable[[StoreView, Sequence[Key] | None], Iterator[Finding]]:
    """Return the rule that finds a table whose key is an old one: one finding for the table, without a key."""

    def find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
        if keys is not None and None not in keys:
            return
        new = _NEW_IN_KEY[table]
        key = [column.lower() for column in view.shape.tables[table].primary_key]
        without = _without(view, table, new)
        if new in key and not without:
            return
        yield Finding(
            check=NAME,
            severity=Severity.WARNING,
            table=table,
            key=None,
            session=None,
            summary=f"its key is an old one: {hermes(view)} sessions repair-routing (0.20.6 or newer) renews it",
            detail={"primary_key": key, "lacks": new, "rows_without": without},
        )

    return find


def _without(view: StoreView, table: str, column: str) -> int:
    """How many rows have NULL where the key has that column; 0 where the table has no such column."""
    if not view.shape.has(table, column):
        return 0
    counted = view.reader.value(f"SELECT count(*) FROM {table} WHERE {view.shape.column(table, column)} IS NULL")
    return counted if isinstance(counted, int) else 0


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="routes, bindings, delegations and usage of sessions that are gone",
    meaning="chats that lead nowhere, and costs of sessions that are gone",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=(
        RowRule(ROUTE.table, (ROUTE.column, "session_key", "updated_at"), is_orphan(ROUTE), _route),
        RowRule(TOPIC.table, (TOPIC.column,), is_orphan(TOPIC), _topic),
        RowRule(DELEGATION.table, (DELEGATION.column,), is_orphan(DELEGATION), _delegation),
        RowRule(USAGE.table, (USAGE.column,), is_orphan(USAGE), _usage),
        RelationRule("gateway_routing", _old_key("gateway_routing")),
        RelationRule("session_model_usage", _old_key("session_model_usage")),
    ),
)
