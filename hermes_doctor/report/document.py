"""Writing JSON documents piece by piece, so that memory does not grow with them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: ASCII only: the document reads the same whatever the encoding of the stream is.
_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False)
#: How half a character stands in that, and a whole one of which there are two halves.
_HALF = "\\ud"


def utc(seconds: float) -> str:
    """Return a time, in seconds since the epoch, as documents show it: ``2026-11-29T21:00:00Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def opened(value: Mapping[str, object]) -> str:
    """Return an object as JSON without its closing brace, to be carried on."""
    return dump(value)[:-1]


def dump(value: Mapping[str, object]) -> str:
    """Return the object as strict JSON on one line."""
    with suppress(TypeError, ValueError):
        # Nearly everything is plain already: to make it so would take as long again.
        text = _ENCODER.encode(value)
        if _HALF not in text:
            return text
    return _ENCODER.encode(plain(value))


def plain(value: Any) -> object:
    """Return the value as strict JSON can hold it: no infinite numbers, no half characters."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    if isinstance(value, Path):
        return plain(str(value))
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value
