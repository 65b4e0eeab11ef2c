"""Writing JSON documents piece by piece, so that memory does not grow with them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def utc(seconds: float) -> str:
    """Return a time, in seconds since the epoch, as documents show it: ``2026-11-29T21:00:00Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def opened(value: Mapping[str, object]) -> str:
    """Return an object as JSON without its closing brace, to be carried on."""
    return dump(value)[:-1]


def dump(value: Mapping[str, object]) -> str:
    """Return the object as strict JSON on one line."""
    # ASCII only: the document reads the same whatever the encoding of the stream is.
    return json.dumps(plain(value), ensure_ascii=True, allow_nan=False)


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
