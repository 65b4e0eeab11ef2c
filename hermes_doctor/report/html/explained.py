"""A check's page, the one that `doctor explain` shows, as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from hermes_doctor.engine.model import Check
from hermes_doctor.report.html.markup import Markup, join, tag
from hermes_doctor.report.page import is_heading, is_item, parts

_QUOTED = re.compile(r"`([^`]+)`")
_ITEM = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+")


def explained(check: Check) -> Markup:
    """Return the page of a check; what its fix says of a living hermes goes in as for `doctor explain`."""
    from hermes_doctor.catalogue import catalogue

    fix = catalogue().fixes.get(check.name)
    return tag("div", *_blocks(parts(check, "" if fix is None else fix.page)), class_="page")


def _blocks(pieces: list[list[str]]) -> Iterator[Markup]:
    for items, some in groupby((piece for piece in pieces if piece), is_item):
        if items:
            yield tag("ul", *(tag("li", _words(_ITEM.sub("", _line(piece), count=1))) for piece in some))
            continue
        for piece in some:
            yield tag("h5", piece[0]) if is_heading(piece) else tag("p", _words(_line(piece)))


def _line(piece: list[str]) -> str:
    return " ".join(line.strip() for line in piece)


def _words(line: str) -> Markup:
    """Return a line with its names of columns and commands set apart."""
    plain = iter(_QUOTED.split(line))
    return join(part if not place % 2 else tag("code", part) for place, part in enumerate(plain))
