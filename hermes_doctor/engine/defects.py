"""Naming a defect of the doctor: what kind of exception, and where. Never its own text, which may quote a store."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


class OthersDefectError(Exception):
    """A defect of a check that another package brings; the exception that it raised is the cause."""

    def __init__(self, package: str) -> None:
        super().__init__(package)
        self.package = package


def defect(error: BaseException) -> str:
    """Return the exception's type and the place where it was raised; in another package's check, whose that is."""
    if isinstance(error, OthersDefectError) and error.__cause__ is not None:
        import traceback

        raised = error.__cause__
        frame = traceback.extract_tb(raised.__traceback__)[-1]
        return f"a mistake of {error.package}: {type(raised).__name__} at {Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__} at {place_of(error)}"


def place_of(error: BaseException) -> str:
    """Return file and line of the innermost of our own frames."""
    # Here, and not with the others: it is only needed where something has gone wrong.
    import traceback

    place = "an unknown place"
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_relative_to(_ROOT):
            place = f"{path.relative_to(_ROOT)}:{frame.lineno}"
    return place
