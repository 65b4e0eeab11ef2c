"""A check's page for `doctor explain`: the docstring of its module, wrapped, headings set apart.

What its fix says of being carried out beside a living hermes goes in before the last heading.
"""

from __future__ import annotations

import re
import textwrap

from hermes_doctor.engine.model import Check, Safety
from hermes_doctor.report.ink import Ink

#: The headings of every page, in their order.
HEADINGS = ("What it finds", "Why it matters", "How it decides", "Fix", "Fix safety", "Upstream")
#: The heading of the last part of a fix's page.
LIVE = "Beside a living hermes (--live)"

_BULLET = re.compile(r"(\s*(?:[-*•]|\d+[.)])\s+)")
_FIXES = {
    Safety.SAFE: "mends safely",
    Safety.UNSAFE: "mends with --unsafe",
    Safety.NONE: "reported only",
}


def page(check: Check, width: int, ink: Ink, fix_page: str = "") -> str:
    """Return the page, wrapped at ``width`` columns; ``fix_page`` is the docstring of its fix."""
    lines = [f"{ink.bold(check.name)}   {check.severity.label} · {_FIXES[check.fix]}", ""]
    for block in parts(check, fix_page):
        if is_heading(block):
            lines += ["", ink.bold(block[0])]
        else:
            lines += _wrap(block, width)
    return "\n".join(re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip().splitlines()) + "\n"


def parts(check: Check, fix_page: str = "") -> list[list[str]]:
    """Return the page in pieces: headings, paragraphs, list items and blank lines ([])."""
    live = fix_page.partition(f"\n{LIVE}\n")[2].strip()
    found: list[list[str]] = []
    for block in _blocks(check.page):
        if block == [HEADINGS[-1]] and live:
            found += [[LIVE], live.splitlines(), []]
        found.append(block)
    return found


def is_heading(block: list[str]) -> bool:
    """Whether a piece of a page is a heading."""
    return len(block) == 1 and (block[0] in HEADINGS or block[0] == LIVE)


def is_item(block: list[str]) -> bool:
    """Whether a piece of a page is an item of a list."""
    return bool(block) and _BULLET.match(block[0]) is not None


def _blocks(text: str) -> list[list[str]]:
    """Cut a page into headings, paragraphs, list items and blank lines ([])."""
    blocks: list[list[str]] = []
    fresh = True
    for line in text.strip().splitlines():
        line = line.rstrip()
        if not line or line in HEADINGS:
            blocks.append([line] if line else [])
            fresh = True
        elif fresh or _BULLET.match(line):
            blocks.append([line])
            fresh = False
        else:
            blocks[-1].append(line)
    return blocks


def _wrap(block: list[str], width: int) -> list[str]:
    if not block:
        return [""]
    bullet = _BULLET.match(block[0])
    indent = " " * (len(bullet[1]) if bullet else len(block[0]) - len(block[0].lstrip()))
    text = " ".join(line.strip() for line in block)
    first = bullet[1] if bullet else indent
    if bullet:
        text = text[len(bullet[1].lstrip()) :]
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
