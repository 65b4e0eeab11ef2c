"""HTML that cannot be broken out of: whatever is no `Markup` is text, and becomes such here and nowhere else."""

from __future__ import annotations

import html
from collections.abc import Iterable

from hermes_doctor.report.words import visible

#: Elements without content and without an end.
_VOID = frozenset({"br", "link", "meta"})


class Markup(str):
    """HTML that was made by this module, or is a constant of the program: it goes into the page as it is."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Return text as HTML: nothing in it is a tag, and what cannot be seen or turns the direction is made visible."""
    return Markup(html.escape(visible(value)))


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Return the parts one after the other, escaped where they are plain text."""
    return Markup(text(between).join(_safe(part) for part in parts))


def tag(element: str, /, *children: str, **attributes: str | int | float | bool | None) -> Markup:
    """Return an element. Children that are plain text are escaped.

    An attribute is called as in HTML, with ``_`` for ``-`` and one at the end where Python knows the word (``class_``).
    None and False leave it out, True gives its name alone.
    """
    written = "".join(_attribute(attribute, value) for attribute, value in attributes.items())
    if element in _VOID:
        return Markup(f"<{element}{written}>")
    return Markup(f"<{element}{written}>{join(children)}</{element}>")


def ascii_only(markup: Markup) -> str:
    """Return the same page in ASCII: it reads the same whatever the encoding of the stream is."""
    return markup.encode("ascii", "xmlcharrefreplace").decode()


def _safe(part: str) -> Markup:
    return part if isinstance(part, Markup) else text(part)


def _attribute(name: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    written = name.removesuffix("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{text(str(value))}"'
