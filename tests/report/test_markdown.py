"""`doctor scan --format markdown`, as GitHub's own renderer reads it."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cmarkgfm
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hermes_doctor.engine.memory import Memory
from hermes_doctor.engine.model import ExitCode, Safety, Severity
from hermes_doctor.engine.scan import Muted, StoreScan
from hermes_doctor.engine.since_last import SinceLast
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.report.layout import Look
from hermes_doctor.report.markdown import ScanMarkdown, code, inline, line
from hermes_doctor.report.model import RunEnd
from hermes_doctor.report.words import visible
from tests.report.support import make_check, make_finding, make_scan, peak_of, report_on


class _Page(HTMLParser):
    """What is on a page: the text, and the tags that begin; ``seen``: the text of each piece by its innermost tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self.seen: list[tuple[str, str]] = []
        self._open = [""]
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        self._open += [] if tag in ("hr", "br", "img") else [tag]

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data
        if data.strip():
            self.seen.append((self._open[-1], data))


def page(markdown: str) -> _Page:
    return _Page(cmarkgfm.github_flavored_markdown_to_html(markdown))


def text_of(*scans: StoreScan, end: RunEnd | None = None, limit: int = 3, quiet: bool = False) -> str:
    stream = io.StringIO()
    report = ScanMarkdown(stream, Look(limit=limit, quiet=quiet))
    report_on(report, *scans, end=end)
    return stream.getvalue()


def test_what_a_person_sees() -> None:
    found = [
        *[make_finding(key=f"s{n}") for n in range(3)],
        make_finding(fix=Safety.NONE, refusal="the store is of another kind"),
        make_finding(
            "bad-rows", table="messages", key=7, severity=Severity.ERROR, detail={"steps": ["do `this`", "then that"]}
        ),
    ]
    scan = make_scan(found, [make_check(), make_check("bad-rows", Severity.ERROR), make_check("sick")])
    scan.checks[2].fail("it broke")
    end = RunEnd(0.4, ExitCode.FINDINGS, [], ["doctor fix (shows what would be done)", "doctor explain bad-rows"])
    expected = """\
# doctor scan, 2026-11-30 21:00 UTC

## `/srv/hermes/state.db`

schema 22 · 3,049 sessions · 61,465 messages · 1.4 GB · nobody has it open

- sick could not be checked in full: it broke

| check | severity | found | mends safely | needs you | what it means |
|---|---|--:|--:|--:|---|
| bad-rows | error | 1 | 1 | 0 | MEANING |
| odd-rows | warning | 4 | 3 | 1 | MEANING |

### bad-rows

- `message 7 of session s1`: it is odd. Mends safely: make it even.
  1. `` do `this` ``
  2. `then that`

### odd-rows

- `s0`: it is odd. Mends safely: make it even.
- `s1`: it is odd. Mends safely: make it even.
- … and 2 more

---

5 findings (1 error, 4 warnings), 4 of them mend safely. Read in 0.4 s, nothing was changed.

Next: `doctor fix` (shows what would be done), `doctor explain bad-rows`
"""
    meaning = make_check().meaning
    assert text_of(scan, end=end, limit=2) == expected.replace("MEANING", meaning)


def test_a_healthy_store_and_one_that_is_missing() -> None:
    nowhere = StoreRef(Path("/nowhere"), None, "")
    missing = make_scan(condition=Condition.MISSING, reason="there is none", next_step="name another", ref=nowhere)
    end = RunEnd(0.4, ExitCode.DAMAGED, [Path("/srv/unread/state.db")])
    text = text_of(make_scan(), missing, end=end)
    assert "\n**healthy** · schema 22 · 3,049 sessions" in text
    assert "## `/nowhere`\n\n**missing**\n\n- there is none\n- Next: name another\n" in text
    assert "\nNot read, because the scan was stopped: `/srv/unread/state.db`\n" in text
    assert "\n2 stores looked at in 0.4 s, nothing was changed.\n" in text


def test_a_store_that_was_read_in_part_or_written_to_meanwhile_is_healthy_all_the_same(tmp_path: Path) -> None:
    since = SinceLast(Memory(tmp_path), tmp_path / "state.db", None, read=2, known=7)
    for changes in ({"since_last": since}, {"consistent": False}):
        text = text_of(make_scan(**changes))
        assert "\n**healthy** · schema 22" in text
        assert ("2 messages read" in text, "wrote to it" in text) == ("since_last" in changes, "consistent" in changes)
        assert len(text_of(make_scan(**changes), quiet=True).splitlines()) == 1


def test_quiet_does_not_tell_of_what_is_muted() -> None:
    for found in ([make_finding()], [make_finding(), make_finding("bad-rows")]):
        scan = make_scan(found)
        scan.checks[0].muted = Muted(1796000000.0, 1797000000.0)
        told = text_of(scan, quiet=True).splitlines()
        assert ("### bad-rows" in told, len(told) == 1) == (len(found) == 2, len(found) == 1)


def test_what_is_muted_is_told_to_whoever_did_not_ask_for_quiet() -> None:
    scan = make_scan([make_finding()])
    scan.checks[0].muted = Muted(1796000000.0, 1797000000.0)
    assert "| odd-rows | warning | 1 | 1 | 0 | muted |" in text_of(scan).splitlines()


@pytest.mark.parametrize("quiet", [False, True])
def test_a_store_of_which_a_check_failed_is_not_healthy(quiet: bool) -> None:
    scan = make_scan()
    scan.checks[0].status, scan.checks[0].reason = "failed", "it met what it does not know"
    text = text_of(scan, quiet=quiet)
    assert "healthy" not in text
    assert "it met what it does not know" in text


def test_quiet_says_only_what_is_wrong() -> None:
    text = text_of(make_scan(), make_scan(condition=Condition.MISSING, reason="there is none"), quiet=True)
    assert text.splitlines()[2:] == ["## `/srv/hermes/state.db`", "", "**missing**", "", "- there is none"]


def test_what_is_muted_says_so_and_counts_for_nothing() -> None:
    checks = [make_check(), make_check("even-rows"), make_check("calm")]
    scan = make_scan([make_finding(), make_finding("even-rows")], checks)
    for place in (0, 2):
        scan.checks[place].muted = Muted(1796000000.0, 1797000000.0)
    text = text_of(scan)
    assert "\n- 1 finding of odd-rows not counted: muted until 2026-12-1" in text
    assert "\n- 0 findings of calm not counted: muted until" in text
    assert "| odd-rows | warning | 1 | 1 | 0 | muted |" in text
    assert "\n1 finding (1 warning), it mends safely." in text
    assert "### odd-rows" not in text


#: What is markup to GitHub, a line each.
_MARKUP = r"""
- a
1. a
12) a
# a
> a
=== a
+ a
---
***
a_b _c_ __d__
*a* **b**
~~a~~
$a$
<b>
<!-- a -->
<https://a.example>
&amp;
&#65;
[a](b)
![a](b)
[a]: b
a | b
\\| a
``
` a `
  a
https://a.example/b
www.a.example
""".strip("\n").splitlines()

#: Text full of what means something to somebody.
_ODD = st.text(
    st.sampled_from("\\`*_[]()<>&|~$#!-+=.:;/'\"19 aw\n\t\x1b") | st.characters(codec=None), max_size=25
) | st.sampled_from(_MARKUP)


@settings(deadline=None, max_examples=300)
@given(text=_ODD)
def test_text_reads_as_it_is(text: str) -> None:
    # GitHub makes a link of an address for mail whatever stands around it; what it says is still the same.
    assume("@" not in text)
    begins = page(line(text))
    assert begins.text.strip() == visible(text).strip()
    assert set(begins.tags) <= {"p"}
    within = page(f"`x`{inline(text)}")
    assert within.text.strip() == f"x{visible(text)}".strip()
    assert within.tags == ["p", "code"]
    item = page(f"- {line(text)}")
    assert item.text.strip() == visible(text).strip()
    assert set(item.tags) <= {"ul", "li"}


@settings(deadline=None, max_examples=300)
@given(text=_ODD)
def test_code_reads_as_it_is(text: str) -> None:
    assume(visible(text) != "")
    for before in ("", "- ", "## "):
        shown = page(f"{before}{code(text)}")
        assert [piece for tag, piece in shown.seen if tag == "code"] == ([visible(text)] if text.strip(" ") else [])
        assert shown.text.strip("\n") == visible(text)


@settings(deadline=None, max_examples=60)
@given(odd=_ODD)
def test_whatever_a_store_holds_the_report_keeps_its_form(odd: str) -> None:
    assume("@" not in odd)
    tags = []
    for text in ("plain", odd):
        check = make_check()
        object.__setattr__(check, "meaning", f"means {text}")
        ref = StoreRef(Path("/srv") / (text.replace("\0", "").replace("/", "") + "x") / "state.db", None, "default")
        finding = make_finding(key=f"({text}", session=f"({text}", summary=text, action=f"do {text}")
        tags.append(page(text_of(make_scan([finding], [check], ref=ref, reason=f"of {text}"))).tags)
    assert tags[0] == tags[1]


def test_memory_does_not_grow_with_the_findings() -> None:
    def peak(count: int) -> int:
        return peak_of(ScanMarkdown(io.StringIO(), Look()), count)

    peak(10)
    assert peak(5000) < 2 * peak(50) + 50_000


@pytest.mark.parametrize(
    ("text", "escaped"),
    [("startup_orphan_reap", "startup_orphan_reap"), ("~/.hermes", "\\~/.hermes"), ("a - b: c", "a - b: c")],
)
def test_no_more_is_escaped_than_needs_it(text: str, escaped: str) -> None:
    assert line(text) == escaped
