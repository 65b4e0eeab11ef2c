"""Messages as transcripts tell them: when two are the same, and the row that a release would write of one.

A snapshot (0.13.0 to 0.20.6) and a line of a diverted transcript (0.21.5 on) hold the message as the agent has it in
memory; a row holds it as the release's flush writes it. Both are brought to one form to be compared.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from hermes_doctor.store.cells import BadText, Cell
from hermes_doctor.store.clocks import trusted
from hermes_doctor.store.shape import Shape

#: Before a content that is no plain text (all releases).
STRUCTURED = "\x00json:"
#: The gateway's note of which tools a chat began with (0.13.0 on): bookkeeping, which newer releases do not store.
_META = "session_meta"
#: A key of every line that a release diverts (0.21.5 on), and one that only 0.22.2 on writes.
_DIVERTED, _DIVERTED_LATELY = "_compressed_summary", "effect_disposition"
#: The mark on a message that was written to the store, on which snapshots of 0.18.0 on tell it.
_WRITTEN = "_db_persisted"

_IMAGES = frozenset({"image", "image_url", "input_image"})
_SURROGATES = re.compile("[\ud800-\udfff]")
_REASONING = ("reasoning_details", "codex_reasoning_items", "codex_message_items")

Message = Mapping[str, Any]


def is_message(record: object) -> bool:
    """Whether a record of a transcript is a message."""
    return isinstance(record, dict) and isinstance(record.get("role"), str) and record["role"] != _META


def is_diverted(record: object) -> bool:
    """Whether it is a line that a release wrote because its store was replaced or broken (0.21.5 on)."""
    return isinstance(record, dict) and _DIVERTED in record


def is_diverted_lately(record: object) -> bool:
    """Whether such a line is of 0.22.2 or newer."""
    return is_diverted(record) and isinstance(record, dict) and _DIVERTED_LATELY in record


def was_written(record: object) -> bool:
    """Whether a snapshot says of the message that it was in the store (0.18.0 on)."""
    return isinstance(record, dict) and bool(record.get(_WRITTEN))


def likeness(role: Cell, content: Any, calls: Any, call_id: Any) -> int:
    """Return a number that is the same for the same message, told by a transcript or by its row (64 bits of a hash)."""
    # Here, and not with the others: OpenSSL comes with it, and few homes have transcripts to compare.
    from hashlib import blake2b

    parts = [_plain(role), _words(content), _calls(calls), _plain(call_id) or None]
    text = json.dumps(parts, ensure_ascii=True, default=str)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def likeness_of(message: Message) -> int:
    """Return the likeness of a message of a transcript."""
    return likeness(message["role"], message.get("content"), message.get("tool_calls"), message.get("tool_call_id"))


def time_of(message: Message) -> float | None:
    """Return when a message was said, in seconds since the epoch, as far as the transcript tells it."""
    at = message.get("timestamp")
    if not isinstance(at, str):
        return trusted(at)
    try:
        # Without a zone it is the local time of who wrote it (the gateway's transcripts, up to 0.15).
        return trusted(datetime.datetime.fromisoformat(at).timestamp())
    except (ValueError, OverflowError, OSError):
        return None


def calls_in(message: Message) -> int:
    """Return how much the message adds to its session's count of calls."""
    calls = _list_of(message.get("tool_calls"))
    return len(calls) if isinstance(calls, list) else 0 if calls is None else 1


def row_of(message: Message, session: str, at: float, shape: Shape) -> dict[str, Cell]:
    """Return the row that the release's flush would write of the message, in the columns that the store has."""
    assistant = message["role"] == "assistant"
    calls = _list_of(message.get("tool_calls"))
    row: dict[str, Cell] = {
        "session_id": session,
        "role": _clean(message["role"]),
        "content": stored_content(message.get("content")),
        "tool_call_id": _text(message.get("tool_call_id")),
        "tool_calls": json.dumps(calls) if calls else None,
        "tool_name": _text(message.get("tool_name")),
        "effect_disposition": _text(message.get("effect_disposition")),
        "timestamp": at,
        "token_count": _integer(message.get("token_count")),
        "finish_reason": _text(message.get("finish_reason")),
        "reasoning": _text(message.get("reasoning")) if assistant else None,
        "reasoning_content": _text(message.get("reasoning_content")) if assistant else None,
        "platform_message_id": _text(message.get("platform_message_id") or message.get("message_id")),
        "observed": int(bool(message.get("observed"))),
        "_compressed_summary": int(bool(message.get("_compressed_summary"))),
        "active": 1,
        "api_content": _text(message.get("api_content")),
        "display_kind": _text(message.get("display_kind")),
        "display_metadata": _document(message.get("display_metadata"), dict),
        "message_uid": _text(message.get("message_uid")) or None,
        "absorbed_message_uids": _document(message.get("_absorbed_message_uids"), list),
        "tool_call_uids": _document(message.get("_tool_call_uids"), dict, sort_keys=True),
        "tool_call_uid": _text(message.get("_tool_call_uid")) or None,
    }
    for column in _REASONING:
        value = message.get(column) if assistant else None
        row[column] = None if not value else _clean(value) if isinstance(value, str) else json.dumps(value)
    return {column: cell for column, cell in row.items() if shape.has("messages", column)}


def _words(content: Any) -> str:
    """Return a content in the form in which all are compared."""
    if isinstance(content, BadText):
        content = content.decode("utf-8", "replace")
    if isinstance(content, str) and content.startswith(STRUCTURED):
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(content[len(STRUCTURED) :])
    words = _projected(content)
    return "" if words is None else words.strip() if isinstance(words, str) else json.dumps(words, default=str)


def _projected(content: Any) -> Any:
    """Return what a flush keeps of a content: of parts the texts, and a word for each picture (0.15 on)."""
    if isinstance(content, dict) and content.get("_multimodal"):
        return str(content.get("text_summary") or "")
    if not isinstance(content, list):
        return content
    parts = [part for part in content if isinstance(part, dict)]
    kept = [
        str(part.get("text", "")) if part.get("type") == "text" else "[screenshot]"
        for part in parts
        if part.get("type") == "text" or part.get("type") in _IMAGES
    ]
    return "\n".join(kept) if kept else None


def stored_content(content: Any) -> Cell:
    """Return the cell that the release's flush would write of a content."""
    content = _projected(content)
    if isinstance(content, str) and not content.startswith(STRUCTURED):
        return _clean(content)
    if content is None or (isinstance(content, int | float) and not isinstance(content, bool)):
        return content
    return STRUCTURED + json.dumps(content)


def _calls(calls: Any) -> list[list[Any]]:
    """Return what tells calls apart: the id, the name and the arguments of each."""
    told = []
    listed = _list_of(calls)
    for call in listed if isinstance(listed, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        inner: Mapping[str, Any] = function if isinstance(function, dict) else call if isinstance(call, dict) else {}
        own = call.get("id") or call.get("call_id") if isinstance(call, dict) else None
        told.append([own, inner.get("name"), inner.get("arguments")])
    return told


def _list_of(calls: Any) -> Any:
    if not isinstance(calls, str):
        return None if isinstance(calls, bytes) else calls
    try:
        return json.loads(calls)
    except (ValueError, RecursionError):
        return []


def _document(value: Any, kind: Callable[..., Any], **options: bool) -> str | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return json.dumps(value, **options) if value and type(value) is kind else None  # type: ignore[arg-type]  # of json


def _plain(cell: Any) -> Any:
    return cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell


def _clean(text: str) -> str:
    return _SURROGATES.sub("\ufffd", text)


def _text(value: Any) -> Cell:
    if isinstance(value, str):
        return _clean(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _integer(value: Any) -> Cell:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
