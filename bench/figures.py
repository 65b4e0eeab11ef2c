"""A measured figure beside what was promised of it: what every part of the bench hands back."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Figure:
    """One measured thing.

    ``value`` is a number in ``unit`` (``times``, ``MB``, ``ms``, ``s``, ``%``, ``rows``, ...), or None where there is
    nothing to measure yet; ``note`` then says why. ``target`` is the promise in words (``at most 1.3``), empty where
    nothing was promised; ``met`` then is None, as it is for what was not measured.
    """

    name: str
    value: float | None
    unit: str = ""
    target: str = ""
    met: bool | None = None
    note: str = ""

    @property
    def shown(self) -> str:
        """The value as it is printed and recorded, with its unit."""
        if self.value is None:
            return "not measured"
        return f"{number(self.value)} {self.unit}".strip()


def at_most(name: str, value: float | None, limit: float, unit: str = "", note: str = "") -> Figure:
    """Return a figure that may not be above the limit."""
    met = None if value is None else value <= limit
    return Figure(name, value, unit, f"at most {number(limit)}", met, note)


def at_least(name: str, value: float | None, limit: float, unit: str = "", note: str = "") -> Figure:
    """Return a figure that may not be below the limit."""
    met = None if value is None else value >= limit
    return Figure(name, value, unit, f"at least {number(limit)}", met, note)


def plain(name: str, value: float | None, unit: str = "", note: str = "") -> Figure:
    """Return a figure of which nothing was promised."""
    return Figure(name, value, unit, note=note)


def unpromised(figure: Figure) -> Figure:
    """Return the figure without its promise, for a case to which that does not apply."""
    return replace(figure, target="", met=None)


def number(value: float) -> str:
    """A number with as many digits as say something: 1,234 or 12.3 or 1.23 or 0.0123."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"
