"""JSON columns that hold something else.

What it finds
Cells of messages, sessions and routes that should hold JSON and do not: no JSON at all, JSON of
the wrong kind (a list where an object belongs), blobs, numbers. In messages: `tool_calls`,
`reasoning_details`, the two `codex` columns, `display_metadata`, `absorbed_message_uids`,
`tool_call_uids`, and structured content (pictures) whose JSON is broken. In sessions:
`model_config` and `origin_json`. In `gateway_routing`: `entry_json`. Also messages that hold two
reactions of one author.

Why it matters
Hermes says nothing of most of them and reads on as if nothing was there. Calls that it cannot read
are not seen, and their answers hang loose. Reasoning is not sent to the model. Marks
(`display_metadata`) are not seen, so reactions are gone and hidden rows show. Structured content is
shown as its raw text. A route that cannot be read is left out by the gateway, which looks for the
session by the chat's other columns and writes the row anew, without what else was in it. Origins
are then taken from other columns.
Some make a reader fail. A `model_config` that is no JSON ends every list of sessions in 0.16.0 to
0.20.6 (0.16.0: on sessions with a parent), and up to there from 0.18.0 following a compressed chat
into such a session; in 0.21.5 and 0.22.2 the agent cannot list the latest sessions, and taking the
session up fails from 0.20.6 on. A number in `tool_calls` keeps a chat from being resumed (0.19.0
on). Blobs that are no text in calls or reasoning, and lists nested past Python's depth, keep it
from being loaded at all. `display_metadata` that is no JSON on a hidden row keeps results of
background work from being delivered (0.21.5 on).

How it decides
As hermes reads: Python's own JSON, which takes NaN and, in calls, reasoning and origins, blobs;
those are only noted. Where SQL reads (`model_config`, and marks from 0.21.5 on) NaN is no JSON.
Empty text and JSON's null are nothing, but for `model_config` (empty text is no JSON to a list),
routes, and marks of delivered results. Reasoning counts on the assistant's messages only. Not found
here: what comes out right once it is unwrapped (double-encoded), and text that is no text. An error
is what makes a reader fail, a warning what loses something, the rest is for information.

Fix
A `model_config` that is no JSON becomes NULL, as hermes leaves it where it has nothing to say. It
fills it in anew when the session is taken up. All else is reported only: what the cell should hold
is known to nobody.

Fix safety
Unsafe: the settings of the session, and whether it was a branch or a delegate, may still be told by
a person from the text. No release reads them there. The text stays in the journal, and undo puts it
back. A session in which a turn may be running is spared.

Upstream
Issue 108086 (broken configs and lists), 69672 (structured content). From 0.21.5 on most readers
guard themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.json_cells import (
    MESSAGE_COLUMNS,
    ORIGIN,
    ROUTE,
    Broken,
    Effect,
    Fault,
    broken_cell,
    broken_config,
    message_faults,
    suspect_content_sql,
    suspect_marks_sql,
    suspect_sql,
)
from hermes_doctor.store.nested_json import GOALS
from hermes_doctor.store.setting_aside import spared
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

NAME = "broken-json"

_SEVERITY = {Effect.NOTHING: Severity.INFO, Effect.LOSES: Severity.WARNING, Effect.FAILS: Severity.ERROR}

#: Columns that few messages have: together they are passed sooner.
_RARE = frozenset({"codex_message_items", "display_metadata", "absorbed_message_uids", "tool_call_uids"})

#: What is read of a message.
_MESSAGE = ("session_id", "role", "display_kind", "content", *MESSAGE_COLUMNS)

_WORDS = {
    Fault.NO_JSON: "is no JSON",
    Fault.WRONG_KIND: "is JSON of the wrong kind",
    Fault.NUMBER: "is a number",
    Fault.BLOB: "is a blob",
    Fault.UNLOADABLE: "makes Python's JSON reader fail",
    Fault.NOT_SQL: "is no JSON to SQL",
    Fault.TWICE: "holds two reactions of one author",
}


def _messages(shape: Shape) -> str | None:
    columns = {name: shape.column("messages", name) for name in MESSAGE_COLUMNS if shape.has("messages", name)}
    suspects = {
        name: suspect_sql(cell, MESSAGE_COLUMNS[name], may_be_wrapped=name in GOALS) for name, cell in columns.items()
    }
    if "display_metadata" in columns:
        suspects["display_metadata"] += f" OR {suspect_marks_sql(columns['display_metadata'])}"
    often = [sql for name, sql in suspects.items() if name not in _RARE]
    rare = [sql for name, sql in suspects.items() if name in _RARE]
    if rare:
        empty = " AND ".join(f"{cell} IS NULL" for name, cell in columns.items() if name in _RARE)
        often.append(f"CASE WHEN {empty} THEN 0 ELSE {' OR '.join(rare)} END")
    content = suspect_content_sql(shape)
    return " OR ".join([*often, *([content] if content else [])]) or None


def _sessions(shape: Shape) -> str | None:
    suspects = []
    if shape.has("sessions", "model_config"):
        config = shape.column("sessions", "model_config")
        suspects.append(
            f"CASE WHEN {config} IS NULL THEN 0 WHEN typeof({config}) <> 'text' THEN 1"
            f" WHEN NOT json_valid({config}) THEN 1 ELSE substr({config}, 1, 1) <> '{{' END"
        )
    if shape.has("sessions", "origin_json"):
        suspects.append(suspect_sql(shape.column("sessions", "origin_json"), ORIGIN))
    return " OR ".join(suspects) or None


def _routes(shape: Shape) -> str | None:
    if not shape.has("gateway_routing", "entry_json"):
        return None
    return suspect_sql(shape.column("gateway_routing", "entry_json"), ROUTE)


def _message(row: Row, view: StoreView) -> Finding | None:
    return _finding("messages", row["session_id"], message_faults(row, view.shape.version))


def _session(row: Row, view: StoreView) -> Finding | None:
    config = broken_config(view, row["model_config"], child=row["parent_session_id"] is not None)
    origin = broken_cell(ORIGIN, row["origin_json"])
    broken = {name: each for name, each in (("model_config", config), ("origin_json", origin)) if each is not None}
    if config is None or config.fault is not Fault.NO_JSON:
        return _finding("sessions", row["id"], broken)
    return _finding("sessions", row["id"], broken, fixable=True, refusal=spared(view, row["id"]))


def _route(row: Row, _view: StoreView) -> Finding | None:
    broken = broken_cell(ROUTE, row["entry_json"])
    return _finding("gateway_routing", None, {} if broken is None else {"entry_json": broken})


def _finding(
    table: str, session: Key, broken: Mapping[str, Broken], *, fixable: bool = False, refusal: str | None = None
) -> Finding | None:
    if not broken:
        return None
    mends = fixable and refusal is None
    return Finding(
        check=NAME,
        severity=_SEVERITY[max(each.effect for each in broken.values())],
        table=table,
        key=None,
        session=session,
        summary="; ".join(f"{name} {_WORDS[each.fault]}: {each.what}" for name, each in broken.items()),
        detail={"columns": list(broken), "kinds": [each.fault.value for each in broken.values()]},
        fix=Safety.UNSAFE if mends else Safety.NONE,
        action="set model_config to NULL" if mends else None,
        refusal=refusal,
    )


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="JSON columns that hold something else",
    meaning="what stands there is not read, and some of it makes hermes fail",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=(
        RowRule("messages", _MESSAGE, _messages, _message, lasting=True),
        RowRule("sessions", ("id", "parent_session_id", "model_config", "origin_json"), _sessions, _session),
        RowRule("gateway_routing", ("entry_json",), _routes, _route),
    ),
)
