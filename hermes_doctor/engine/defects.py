"""Naming a defect of the doctor: what kind of exception, and where. Never its own text, which may quote a store."""

from __future__ import annotations

import traceback
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def defect(error: BaseException) -> str:
    """Return the exception's type and the place where it was raised."""
    return f"{type(error).__name__} at {place_of(error)}"


def place_of(error: BaseException) -> str:
    """Return file and line of the innermost of our own frames."""
    place = "an unknown place"
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_relative_to(_ROOT):
            place = f"{path.relative_to(_ROOT)}:{frame.lineno}"
    return place
