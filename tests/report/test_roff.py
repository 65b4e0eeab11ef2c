"""Text comes out of roff as it went in."""

from __future__ import annotations

import subprocess

from hermes_doctor.report.roff import ManPage
from tests.debian import debian_program

HOSTILE = (
    "A \\ and \\fB and \\n(ab and \\*(rq.",
    ".SH is no request here",
    "'br is none either",
    "an \"x\" and 'y' and `z` and -- and --fail-on=error - and - minus",
    "% and ~ and ^ and · and … and 漢 and é",
)


def shown(page: ManPage) -> str:
    """What a reader gets, who wants no bold letters and has a wide terminal."""
    groff = debian_program("groff", "groff-base")
    command = [groff, "-man", "-Tutf8", "-ww", "-P-c", "-P-bou", "-rLL=200n"]
    done = subprocess.run(command, input=page.text(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_nothing_in_a_text_is_taken_for_markup() -> None:
    page = ManPage("x", 1, "x 1.0", "Things")
    page.section('Some "quoted" title')
    for text in HOSTILE:
        page.paragraph(text)
        page.item(f"{text} item", text)
    page.verbatim(HOSTILE)
    text = shown(page)
    assert 'SOME "QUOTED" TITLE' in text
    for expected in HOSTILE:
        plain = expected.replace("`z`", "z")
        assert [line.strip() for line in text.splitlines()].count(plain) == 2 + (plain == expected), expected
        assert text.count(f"{plain} item") + text.count(f"{expected} item") >= 1


def test_what_is_bold() -> None:
    page = ManPage("x", 1, "x 1.0", "Things")
    page.paragraph("Type `doctor fix` or --apply, and so-called words stay.")
    assert "\\fBdoctor fix\\fR or \\fB\\-\\-apply\\fR, and so\\-called words" in page.text()


def test_prose_is_taken_as_click_takes_it() -> None:
    page = ManPage("x", 1, "x 1.0", "Things")
    page.prose("One\nparagraph.\n\n\b\n  as it\n    is\n\nAnother.")
    text = shown(page)
    assert "One paragraph." in text
    assert "as it\n" in text.replace("  ", "")
    assert text.index("as it") < text.index("Another.")
