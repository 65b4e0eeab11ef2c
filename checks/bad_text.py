r"""Text that is no text, or that stops some readers half-way.

What it finds
Rows with bytes that are no valid text in the store's encoding (half surrogate pairs stored as bytes
among them), with escapes of half a surrogate pair (`\ud800` to `\udfff`) in JSON, and with NUL
characters that are not hermes's own mark of structured content.

Why it matters
Bytes that are no text stop Python, and so hermes, in the middle of a query. In a message that is
live, the whole chat cannot be loaded or exported any more; in a chat's first prompt, or in any
column of a session, shared system prompt or route, the whole list of them cannot. These are errors.
Half a surrogate pair loads, but cannot be written: the chat's export and the dashboard's page of it
fail (a warning). Hermes itself replaces it before a chat is sent to a model; in the reasoning that
a model gets back it does no harm. A NUL loses nothing: previews and searches by LIKE end there, and
commands' output holds it now and then.

How it decides
Every byte is looked at, of text only: numbers and blobs are no fault of this kind. A scan looks at
the `content` of every message, for escapes at `tool_calls` and `display_metadata`, and at sessions,
prompts, routes, locks, leases, delegations, heartbeats and `state_meta`. The other columns of
messages, which programs fill, take longer than reading all the rest: they are looked at with
`doctor scan --deep`. A message that is put away (compacted or rewound) is read for history and
export only: a warning. Offsets are in bytes, in the text as stored. That a `model_config` with a
NUL is no JSON is another check's.

Fix
None: what the bytes once said cannot be known, and a guess would not be what was said. To get at
the rest of a chat, look at the row with another program than Python, such as the `sqlite3` shell,
on a copy of the store.

Fix safety
Nothing is changed.

Upstream
Issues 68254 and 80366 (surrogates from the output of tools; from 0.19.0 on they are replaced when a
message is written), 69672 (NUL and `json:` is structured content, no damage).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from hermes_doctor.engine.model import Check, Finding, RelationRule, Row, RowRule, Safety, Severity, Sieve
from hermes_doctor.store.cells import Key, quote
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.text_faults import (
    SUSPECTS,
    Fault,
    TextFault,
    escapes_sql,
    faults_of,
    gathered_sql,
    is_clean,
    suspect_row_sql,
    suspect_sql,
)
from hermes_doctor.store.view import StoreView

NAME = "bad-text"

#: The other columns of messages that hold what somebody said.
SAID = ("api_content", "reasoning", "reasoning_content")
#: Columns of JSON that are decoded for whoever wants to show or export a chat.
SHOWN = ("tool_calls", "display_metadata")
#: Columns of JSON that only the model gets back; hermes replaces half pairs in them.
SENT = ("reasoning_details", "codex_reasoning_items", "codex_message_items")
#: The other columns of text. `session_id` is looked at in `sessions`; that it names no session is another check's.
_NAMES = (
    *("role", "tool_call_id", "tool_name", "effect_disposition", "finish_reason", "platform_message_id"),
    *("display_kind", "message_uid", "absorbed_message_uids", "tool_call_uids", "tool_call_uid"),
)
_MESSAGE = ("content", *SAID, *SHOWN, *SENT, *_NAMES)

_SESSION = (
    *("id", "source", "created_source", "user_id", "session_key", "chat_id", "chat_type", "thread_id", "display_name"),
    *("origin_json", "model", "model_config", "system_prompt", "system_prompt_hash", "parent_session_id"),
    *("end_reason", "cwd", "git_branch", "git_repo_root", "billing_provider", "billing_base_url", "billing_mode"),
    *("cost_status", "cost_source", "pricing_version", "title", "title_source", "last_activity_description"),
    *("last_activity_provenance", "handoff_state", "handoff_platform", "handoff_error", "compression_failure_error"),
    *("profile_name", "transport_profile", "tool_names"),
)

#: The other tables that are looked at: their columns of text.
_SMALL: Mapping[str, tuple[str, ...]] = {
    "system_prompts": ("hash", "prompt"),
    "gateway_routing": ("scope", "session_key", "entry_json"),
    "compression_locks": ("session_id", "holder"),
    "session_turn_leases": ("conversation_id", "holder"),
    "gateway_heartbeats": ("backend_id", "profile", "host"),
    "state_meta": ("key", "value"),
    "async_delegations": (
        *("delegation_id", "origin_session", "origin_ui_session_id", "origin_session_id", "parent_session_id"),
        *("state", "event_json", "result_json", "delivery_state", "task_json", "delivery_claim"),
    ),
}
#: Tables that hermes reads as a whole list: one row that cannot be read costs all.
_LISTS = ("sessions", "system_prompts", "gateway_routing")
#: The column that names the session, by table.
_SESSION_COLUMN = {
    "messages": "session_id",
    "sessions": "id",
    "compression_locks": "session_id",
    "async_delegations": "parent_session_id",
}
_JSON = (*SHOWN, *SENT, "model_config", "origin_json", "entry_json", "event_json", "result_json", "task_json")
_UNREADABLE = (TextFault.BYTES, TextFault.SURROGATE)


def _judge(table: str, columns: Sequence[str]) -> Callable[[Row, StoreView], Finding | None]:
    """Return what decides about a row of that table, by all of its columns."""

    def judge(row: Row, view: StoreView) -> Finding | None:
        faults = faults_of(row, columns, _JSON, view.shape.encoding)
        return _finding(table, row, faults) if faults else None

    return judge


def _finding(table: str, row: Row, faults: Sequence[Fault]) -> Finding:
    # The worst says what the row is worth; of equal ones the first.
    worst = max(faults, key=lambda fault: _severity(table, row, fault))
    return Finding(
        check=NAME,
        severity=_severity(table, row, worst),
        table=table,
        key=None,
        session=row.get(_SESSION_COLUMN.get(table, "")),
        summary=_summary(table, row, worst),
        detail={
            "columns": list(dict.fromkeys(fault.column for fault in faults)),
            "kinds": list(dict.fromkeys(fault.kind.value for fault in faults)),
            "places": [f"{fault.column}: {fault.kind} at byte {fault.offset:,}" for fault in faults],
        },
    )


def _severity(table: str, row: Row, fault: Fault) -> Severity:
    put_away = table == "messages" and row["active"] == 0
    if fault.kind in _UNREADABLE:
        return Severity.ERROR if table in _LISTS or (table == "messages" and not put_away) else Severity.WARNING
    if fault.kind is TextFault.ESCAPE and not put_away and fault.column in ("content", *SHOWN):
        return Severity.WARNING
    return Severity.INFO


def _summary(table: str, row: Row, fault: Fault) -> str:
    if fault.kind is TextFault.NUL:
        return f"{fault.column} holds a NUL character, where previews and searches by LIKE end"
    if fault.kind is TextFault.ESCAPE:
        return f"{fault.column} holds half of a surrogate pair, which cannot be written out"
    cost = {
        "messages": "hermes cannot load the chat",
        "sessions": "hermes cannot load the session, nor a list with it",
        "system_prompts": "hermes cannot load the sessions that use it",
        "gateway_routing": "hermes cannot load its routes",
    }.get(table, "hermes cannot read the row")
    if table == "messages" and row["active"] == 0:
        cost = "hermes cannot show or export the whole chat"
    return f"{fault.column} holds bytes that are no text: {cost}"


def _any_of(*conditions: str | None) -> str | None:
    return " OR ".join(f"({condition})" for condition in conditions if condition) or None


def _message_condition(shape: Shape) -> str | None:
    return _any_of(suspect_sql(shape, "messages", ("content",)), escapes_sql(shape, "messages", SHOWN))


def _message_sieve(shape: Shape) -> Sieve | None:
    gathered = gathered_sql(shape, "messages", "content")
    if gathered is None:
        return None
    totals, others = gathered
    return Sieve(totals, _any_of(others, escapes_sql(shape, "messages", SHOWN)) or "0", is_clean)


def _deep_condition(shape: Shape) -> str | None:
    return _any_of(
        suspect_sql(shape, "messages", (*SAID, *SHOWN, *SENT, *_NAMES)), escapes_sql(shape, "messages", SENT)
    )


def _row_condition(table: str, columns: Sequence[str]) -> Callable[[Shape], str | None]:
    json = [column for column in columns if column in _JSON]
    return lambda shape: _any_of(suspect_row_sql(shape, table, columns), escapes_sql(shape, table, json))


def _deep(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    """Give the rows of messages with a fault that only `--deep` looks for, which the row rule does not suspect."""
    shape = view.shape
    elsewhere, here = _deep_condition(shape), _message_condition(shape) or "0"
    if not view.deep or elsewhere is None or not shape.has("messages", "id"):
        return
    for name, called in SUSPECTS.items():
        view.reader.define(name, called)
    table, condition = shape.tables["messages"], f"CASE WHEN {elsewhere} THEN ({here}) IS NOT TRUE END"
    listed = [shape.column("messages", column) for column in ("id", *_MESSAGE_ROW)]
    if keys is None:
        rows = view.reader.walk(table, listed, condition)
    else:
        among, cells = in_keys("id", [key for key in keys if key is not None])
        asked = f"SELECT {', '.join(listed)} FROM {quote(table.name)} WHERE {among} AND {condition}"
        rows = view.reader.rows(asked, cells)
    for key, *values in rows:
        finding = _judge_message(dict(zip(_MESSAGE_ROW, values, strict=True)), view)
        if finding is not None:
            yield replace(finding, key=key)


_MESSAGE_ROW = ("session_id", "active", *_MESSAGE)
_judge_message = _judge("messages", _MESSAGE)

CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="bytes that are no text, half surrogate pairs, NUL characters",
    meaning="chats and lists that hermes cannot load, export or search to their end",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=(
        RowRule("messages", _MESSAGE_ROW, _message_condition, _judge_message, SUSPECTS, _message_sieve, lasting=True),
        RelationRule("messages", _deep),
        *(
            RowRule(table, columns, _row_condition(table, columns), _judge(table, columns), SUSPECTS)
            for table, columns in {"sessions": _SESSION, **_SMALL}.items()
        ),
    ),
)
