"""JSON columns of messages that hold a string of JSON instead of the list or object itself.

What it finds
Message rows whose `tool_calls`, `reasoning_details`, `codex_reasoning_items`, `codex_message_items`
or `display_metadata` were encoded more than once: the cell is a JSON string, and inside it lies the
JSON that should be there. There is one layer too many for every time that a chat was forked.

Why it matters
Every release decodes these columns once. It then gets text where it wants a list and, without a
word, sends none of it to the model: a forked chat loses its reasoning when it is resumed, and
tool calls are not seen as calls. No release mends such rows where they lie; each copy of the
chat carries the damage on. `display_metadata` is the exception: two loads read one layer too many
through, but from 0.21.5 on SQL looks for its marks (reactions, delivered delegations, rows that
only the model sees) and does not see through a string. That alone is a warning.

How it decides
Text cells only. String layers are taken off until a list or an object comes out, and never past
the first. `tool_calls` and the two `codex` columns must come to a list, `display_metadata` to an
object, `reasoning_details` to either; a string that comes to anything else is no fault of this
kind and is left alone. So are `content`, `reasoning` and `reasoning_content`, which hold people's
and models' words and may look like anything. A cell of more than 64 MiB, more than 32 layers,
lists nested more than 500 deep, numbers that Python will not load, or text that UTF-8 cannot hold
is reported and not mended.

Fix
The innermost JSON goes into the cell just as it is, character by character: spacing, order,
doubled keys and numbers stay. The number of tool calls that a session counts is another check's.

Fix safety
Safe. The value is the one that was there before it was encoded again, and no release needs the
extra layers.

Upstream
Issues 57240 and 57248. Forking a chat through the API server (POST /api/sessions/{id}/fork) adds
a layer in 0.15.0 to 0.20.0; a script that feeds get_messages() to replace_messages() does so in
0.13.0 to 0.20.0. From 0.20.6 on the writer leaves strings as they are. `tool_calls` are doubled
only by callers of their own, up to 0.19.0.
"""

from __future__ import annotations

from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.store.nested_json import GOALS, Refusal, Unwrapped, is_string_sql, unwrap_cells
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

NAME = "double-encoded"

#: The one column of which every release reads one layer too many through.
_READ_THROUGH = "display_metadata"


def _condition(shape: Shape) -> str | None:
    """SQL that suspects text which begins like a JSON string, in the JSON columns that the store has."""
    columns = [shape.column("messages", column) for column in GOALS if shape.has("messages", column)]
    return " OR ".join(is_string_sql(column) for column in columns) or None


def _judge(row: Row, _view: StoreView) -> Finding | None:
    found = unwrap_cells(row)
    if not found:
        return None
    good = [column for column, result in found.items() if isinstance(result, Unwrapped)]
    refused = {column: result.reason for column, result in found.items() if isinstance(result, Refusal)}
    layers = max([result.layers for result in found.values() if isinstance(result, Unwrapped)], default=0)
    harmless = layers == 1 and list(found) == [_READ_THROUGH]
    detail: dict[str, str | int | list[str]] = {"columns": good, "layers": layers}
    if refused:
        detail["refused"] = list(refused)
    return Finding(
        check=NAME,
        severity=Severity.WARNING if harmless else Severity.ERROR,
        table="messages",
        key=None,
        session=row["session_id"],
        summary=_summary(list(found), layers),
        detail=detail,
        fix=Safety.SAFE if good else Safety.NONE,
        action=f"unwrap {', '.join(good)}" if good else None,
        refusal=None if good else "; ".join(f"{column}: {reason}" for column, reason in refused.items()),
    )


def _summary(columns: list[str], layers: int) -> str:
    times = {0: "", 1: "", 2: ", twice"}.get(layers, f", {layers} times")
    verb = "holds" if len(columns) == 1 else "hold"
    return f"{', '.join(columns)} {verb} JSON inside a string{times}"


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="JSON columns of messages that were encoded more than once",
    meaning="forked chats lose their reasoning when they are resumed",
    fix=Safety.SAFE,
    page=__doc__ or "",
    rule=RowRule("messages", ("session_id", *GOALS), _condition, _judge, lasting=True),
)
