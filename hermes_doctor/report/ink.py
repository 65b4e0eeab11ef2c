"""Colour. It only helps: everything that it says stands there in words too."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_doctor.engine.model import Severity

_OF_SEVERITY = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.INFO: "36"}


@dataclass(frozen=True)
class Ink:
    """Colours text where ``colored`` is set, else gives it back as it is."""

    colored: bool = False

    def bold(self, text: str) -> str:
        """Return the text in bold."""
        return self._paint(text, "1")

    def of(self, severity: Severity, text: str) -> str:
        """Return the text in the colour of a severity."""
        return self._paint(text, _OF_SEVERITY[severity])

    def good(self, text: str) -> str:
        """Return the text in the colour of health."""
        return self._paint(text, "32")

    def bad(self, text: str) -> str:
        """Return the text in the colour of damage."""
        return self._paint(text, "1;31")

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colored and text else text
