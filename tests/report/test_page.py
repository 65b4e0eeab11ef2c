"""The page of a check."""

from __future__ import annotations

from hermes_doctor.report.ink import Ink
from hermes_doctor.report.page import page
from tests.report.support import make_check

_PAGE = """Rows that are odd.

What it finds
Rows that are odd, in one way or
another, wherever they are.

Why it matters
- they confuse
  whoever counts them
- they cannot be halved

Fix
None.
"""


def test_paragraphs_are_wrapped_anew_and_lists_keep_their_items() -> None:
    assert (
        page(make_check(page=_PAGE), 34, Ink())
        == """\
odd-rows   warning · mends safely

Rows that are odd.

What it finds
Rows that are odd, in one way or
another, wherever they are.

Why it matters
- they confuse whoever counts them
- they cannot be halved

Fix
None.
"""
    )


def test_headings_are_bold_on_colour_and_only_they() -> None:
    text = page(make_check(page=_PAGE), 80, Ink(colored=True))
    bold = [line for line in text.splitlines() if "\x1b[1m" in line]
    assert bold == [
        "\x1b[1modd-rows\x1b[0m   warning · mends safely",
        "\x1b[1mWhat it finds\x1b[0m",
        "\x1b[1mWhy it matters\x1b[0m",
        "\x1b[1mFix\x1b[0m",
    ]
