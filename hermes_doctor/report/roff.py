"""Writing a man page: sections, paragraphs and lists in roff, with the macros of man(7)."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: What is set in bold in the midst of a text: what stands in backquotes, and options.
_BOLD = re.compile(r"`([^`\n]+)`|(?<![\w`-])(--?[a-z][a-z-]*)")


class ManPage:
    """A page that is put together from its top to its end."""

    def __init__(self, title: str, section: int, source: str, book: str) -> None:
        """Begin a page; ``source``: the program and its version, ``book``: what the page is a part of."""
        heads = (title.upper(), str(section), "", source, book)
        self._lines = [".TH " + " ".join(f'"{_escaped(head)}"' for head in heads), ".nh", ".ad l"]

    def section(self, title: str) -> None:
        """Begin a section."""
        self._lines.append(f'.SH "{_escaped(title.upper())}"')

    def part(self, title: str) -> None:
        """Begin a part of a section."""
        self._lines.append(f'.SS "{_escaped(title)}"')

    def paragraph(self, text: str) -> None:
        """Write a paragraph, wrapped by whoever shows it."""
        self._lines += [".PP", _set(text)]

    def item(self, name: str, text: str) -> None:
        """Write an item of a list: its name in bold, and what is said of it set in."""
        self._lines += [".TP", f"\\fB{_escaped(name)}\\fR", _set(text)]

    def verbatim(self, lines: Iterable[str]) -> None:
        """Write lines as they are, set in."""
        self._lines += [".PP", ".RS 4", ".nf", *(_guarded(_escaped(line)) for line in lines), ".fi", ".RE"]

    def prose(self, text: str) -> None:
        r"""Write a help text as click has it: paragraphs with empty lines between, ``\b`` above what is verbatim."""
        for block in re.split(r"\n\s*\n", text.strip()):
            first, *rest = block.split("\n")
            if first.strip() == "\b":
                self.verbatim(rest)
            else:
                self.paragraph(" ".join(block.split()))

    def text(self) -> str:
        """Return the whole page."""
        return "\n".join(self._lines) + "\n"


def _set(text: str) -> str:
    """Return a text on one line, with what is to be bold in bold."""
    pieces, place = [], 0
    for found in _BOLD.finditer(text):
        pieces += [_escaped(text[place : found.start()]), f"\\fB{_escaped(found[1] or found[2])}\\fR"]
        place = found.end()
    return _guarded("".join([*pieces, _escaped(text[place:])]))


def _escaped(text: str) -> str:
    """Return text without anything that roff would take for its own, and in ASCII."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)


def _guarded(line: str) -> str:
    """Return a line that roff does not take for a request."""
    return f"\\&{line}" if line.startswith((".", "'")) else line
