"""Chats that carry an end although messages still come in: routed, ended by accident, used since.

Who ends a session says little of whether it is over. A deliberate boundary (/new, /resume, a reset) is one in every
release. An automatic end (a reaper, an eviction, a lost connection) and the close of a program that had handed the
chat on to another are accidents where the chat still leads there and has gone on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import LATEST
from hermes_doctor.store.lineage import AUTOMATIC_REASONS, RESET_REASONS, Edge, edge_sql, has_lineage
from hermes_doctor.store.liveness import live_work, routes
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: What the program itself writes when it is closed, or its work done: only who still routes the session may clear it
#: (upstream 107187). Reasons of other writers (``compute_host_...``, the web API's own) count as deliberate.
EXPLICIT_CLOSES = frozenset({"cli_close", "tui_close", "webhook_complete", "cron_complete"})

#: From which schema on the gateway itself reopens a chat that ended so (0.18.0; 0.19.0; 0.20.6), found by key or peer.
_REOPENED_FROM = {"agent_close": 17, "ws_orphan_reap": 22, "superseded_by_resume": 26, "startup_orphan_reap": 26}
#: From here on also one that was handed over, whatever its reason (0.21.5).
_HANDED_OVER_REOPENED_FROM = 30

#: From here on not where another row of the chat was reset since (0.20.6).
_FENCED_FROM = 26

_COLUMNS = (
    "id",
    "source",
    "session_key",
    "chat_id",
    "started_at",
    "last_activity_at",
    "ended_at",
    "end_reason",
    "handoff_state",
)

_AT_ONCE = 300


class WrongEnd(NamedTuple):
    """A chat that was ended although it goes on.

    ``heals``: the store's release opens it again by itself. ``obstacle``: why its end must not be cleared here.
    """

    session: Key
    ended_at: float
    end_reason: str
    handed_over: bool
    heals: bool
    obstacle: str | None


def wrong_ends(view: StoreView, keys: Sequence[Key] | None = None) -> Iterator[WrongEnd]:
    """Give the routed sessions (of these ids, or of all) that an accident ended and that have gone on since.

    Only what is proven: a route that can be seen, a message that is younger than the end, and no row in which the
    conversation could go on instead.
    """
    shape = view.shape
    if not has_lineage(shape) or not shape.has("sessions", "started_at", "ended_at", "end_reason"):
        return
    if not shape.has("messages", "session_id", "timestamp"):
        return
    columns = ", ".join(shape.column("sessions", name, alias="s") for name in _COLUMNS)
    leading = view.once(_led_to)
    asked = list(leading) if keys is None else [key for key in keys if key in leading]
    for start in range(0, len(asked), _AT_ONCE):
        among, cells = in_keys("s.id", asked[start : start + _AT_ONCE])
        for values in view.rows(f"SELECT {columns} FROM sessions s WHERE {among} AND {_wrong(shape)}", cells):
            yield _wrong_end(view, dict(zip(_COLUMNS, values, strict=True)))


def _wrong_end(view: StoreView, row: Mapping[str, Cell]) -> WrongEnd:
    session, ended_at, reason = row["id"], row["ended_at"], row["end_reason"]
    assert isinstance(ended_at, int | float)
    assert isinstance(reason, str)
    handed_over = row["handoff_state"] == "completed"
    obstacle = None
    if _is_taken_over(view, row):
        obstacle = "another session of the same chat has begun or was ended on purpose since"
    elif (sign := live_work(view, session)) is not None:
        obstacle = f"{sign}: look again when that is over"
    version = view.shape.version
    reopened = version >= _REOPENED_FROM.get(reason, version + 1)
    reopened |= handed_over and version >= _HANDED_OVER_REOPENED_FROM
    heals = obstacle is None and reopened and bool(row["session_key"] or row["chat_id"]) and not _is_fenced(view, row)
    return WrongEnd(session, float(ended_at), reason, handed_over, heals, obstacle)


def _wrong(shape: Shape) -> str:
    """Return SQL over a row ``s`` of sessions: an accident ended it, it went on, and goes on nowhere else."""
    handoff = shape.column("sessions", "handoff_state", alias="s")
    active = shape.column("messages", "active", alias="m", absent="1")
    return f"""typeof(s.ended_at) IN ('integer', 'real') AND s.ended_at > 0 AND s.ended_at < {LATEST}
        AND (s.end_reason IN ({_listed(AUTOMATIC_REASONS)})
             OR (s.end_reason IN ({_listed(EXPLICIT_CLOSES)}) AND {handoff} = 'completed'))
        AND EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id
                    AND m.timestamp > s.ended_at AND m.timestamp < {LATEST} AND {active} = 1)
        AND NOT EXISTS (SELECT 1 FROM sessions c WHERE c.parent_session_id = s.id AND c.id <> s.id
                        AND {edge_sql(shape, "c", "s")} IN ('{Edge.CONTINUATION}', '{Edge.SUBAGENT}'))"""


def _is_taken_over(view: StoreView, row: Mapping[str, Cell]) -> bool:
    """Whether a row of the same chat began after this one ended, or was ended on purpose since."""
    ended = row["ended_at"]
    return bool(row["session_key"]) and _has_other(
        view,
        row,
        f"session_key = ? AND (started_at > ? OR (ended_at > ? AND end_reason IN ({_listed(RESET_REASONS)})))",
        (row["session_key"], ended, ended),
    )


def _is_fenced(view: StoreView, row: Mapping[str, Cell]) -> bool:
    """Whether the gateway leaves the chat over because another row of it was reset after this one's last activity.

    It goes by the row's own clocks, not by its messages (0.20.6 on), so it may see a reset where there is none.
    """
    if view.shape.version < _FENCED_FROM:
        return False
    newest = row["started_at"] if row["last_activity_at"] is None else row["last_activity_at"]
    reset = f"ended_at > ? AND end_reason IN ({_listed(RESET_REASONS)})"
    if row["session_key"]:
        return _has_other(view, row, f"session_key = ? AND {reset}", (row["session_key"], newest))
    return _has_other(view, row, f"source = ? AND chat_id = ? AND {reset}", (row["source"], row["chat_id"], newest))


def _has_other(view: StoreView, row: Mapping[str, Cell], condition: str, values: tuple[Cell, ...]) -> bool:
    among, cells = in_keys("id", [row["id"]])
    return bool(view.rows(f"SELECT 1 FROM sessions WHERE {condition} AND NOT ({among}) LIMIT 1", (*values, *cells)))


def _led_to(view: StoreView) -> frozenset[Key]:
    """Return the sessions to which chats lead now.

    An entry of ``gateway_routing`` names earlier sessions, too (``prev_session_id``): only its own counts here. The
    file, which is all that releases up to 0.18.0 have, counts where the table has no entries.
    """
    found: set[Key] = set()
    entries: list[Cell] = []
    if view.shape.has("gateway_routing", "entry_json"):
        entries = [row[0] for row in view.rows("SELECT entry_json FROM gateway_routing")]
    for entry in entries:
        try:
            value = json.loads(entry) if isinstance(entry, str) else None
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("session_id"), str):
            found.add(value["session_id"])
    if view.shape.has("telegram_dm_topic_bindings", "session_id"):
        found.update(row[0] for row in view.rows("SELECT session_id FROM telegram_dm_topic_bindings"))
    if not entries:
        found |= routes(view).ids
    return frozenset(found - {None})


def _listed(reasons: frozenset[str]) -> str:
    return ", ".join(f"'{reason}'" for reason in sorted(reasons))
