"""The page: what stands in it, and that nothing in a store can be more than text there."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from hermes_doctor.catalogue import catalogue
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.model import ExitCode, Safety, Severity
from hermes_doctor.engine.scan import Muted, ScanOptions, StoreScan, scan_store
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.report.html.markup import Markup, ascii_only, tag, text
from hermes_doctor.report.html.scan import ScanHtml
from hermes_doctor.report.layout import Look
from hermes_doctor.report.model import Illustrated, RunEnd, RunStart
from tests.report.support import make_check, make_finding, make_scan, report_on

PAGE = """Rows that are odd.

What it finds
Rows of `sessions` that are odd:
- one kind,
  which takes a second line
- and <b>another</b>

Upstream
Issue 1.
"""


class Read(HTMLParser):
    """The page as a browser takes it: its text, its elements, and what it would fetch."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._text: list[str] = []
        self._raw = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._raw = tag == "style"
        self.tags.append((tag, dict(attrs)))
        self._text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        self._text += [] if self._raw else [data]

    @property
    def text(self) -> str:
        return " ".join("".join(self._text).split())

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def written(*scans: StoreScan, end: RunEnd | None = None, **look: object) -> str:
    stream = io.StringIO()
    page = ScanHtml(stream, Look(**look))  # type: ignore[arg-type]  # Look's own keywords
    report_on(page, *scans, start=RunStart("0.9", "3.99", 1_764_500_000.0), end=end)
    return stream.getvalue()


def test_it_begins_with_what_is_wrong_and_what_to_do() -> None:
    checks = [make_check(), make_check("loose-ends", Severity.ERROR)]
    found = [make_finding(key=f"s{place}") for place in range(5)]
    found.append(
        make_finding("loose-ends", severity=Severity.ERROR, fix=Safety.NONE, action=None, refusal="it is held")
    )
    end = RunEnd(0.4, ExitCode.FINDINGS, (), ["doctor fix '/a b (c)' (shows what would be done)", "doctor explain x"])
    page = Read(written(make_scan(found, checks), end=end, limit=2))
    assert page.text.index("6 faults in this store, and 5 of them mend safely.") < page.text.index("What to do next")
    assert "Something is lost, hidden or refused now: rows that are odd" in page.text
    assert "Shows what would be done. doctor fix '/a b (c)' doctor explain x " in page.text
    # What is worst comes first, however the checks are listed.
    assert page.text.index("loose-ends error") < page.text.index("odd-rows warning")
    assert "3 more; doctor scan --json lists all of them." in page.text
    assert "Not mended: it is held." in page.text
    assert "s1 It is odd. Mends safely: make it even." in page.text
    assert "s2" not in page.text


def test_it_needs_nothing_but_itself_and_runs_nothing() -> None:
    page = written(make_scan([make_finding()]))
    read = Read(page)
    assert {name for name, _ in read.tags} & {"script", "img", "iframe", "object", "form", "base"} == set()
    assert [link["href"] for link in read.all("link")] == ["data:,"]
    assert all((link["href"] or "").startswith("#") for link in read.all("a"))
    assert {
        name for _, attributes in read.tags for name in attributes if name.startswith("on") or name == "style"
    } == set()
    [policy] = [each["content"] or "" for each in read.all("meta") if each.get("http-equiv")]
    style = page.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "unsafe" not in policy
    assert not re.search(r"url\(|@import|https?:", style)
    assert page.isascii()


HOSTILE = "</code><script>alert(1)</script>\" onload='x' \u202e\x1b[31m\x00&lt;"


def test_whatever_a_store_holds_stays_text() -> None:
    finding = make_finding(
        key=HOSTILE,
        session=HOSTILE,
        summary=HOSTILE,
        action=HOSTILE,
        detail={"steps": [HOSTILE]},
    )
    scan = make_scan(
        [finding],
        ref=StoreRef(Path(f"/srv/{HOSTILE.replace('/', '').replace(chr(0), '')}/state.db"), None, HOSTILE),
        reason=HOSTILE,
        trace=[HOSTILE],
    )
    page = written(scan, end=RunEnd(0.1, ExitCode.FINDINGS, [Path(HOSTILE)], [f"doctor fix {HOSTILE}"]))
    read = Read(page)
    assert read.all("script") == []
    assert not any("onload" in attributes for _, attributes in read.tags)
    shown = "</code><script>alert(1)</script>\" onload='x' \\u202e\\x1b[31m\\x00&lt;"
    assert read.text.count(shown) >= 6
    assert not set("\x00\x1b\u202e") & set(page + read.text)


def test_headings_tables_and_pictures_can_be_followed_without_seeing_them(tmp_path: Path) -> None:
    reporter, page = demo_page(tmp_path)
    assert isinstance(reporter, Illustrated)
    read = Read(page)
    levels = [int(name[1]) for name, _ in read.tags if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))
    assert all(head.get("scope") for head in read.all("th"))
    assert all(svg.get("aria-hidden") == "true" or svg.get("aria-label") for svg in read.all("svg"))
    assert [len(read.all(name)) for name in ("header", "main", "footer")] == [1, 1, 1]
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {(link["href"] or "")[1:] for link in read.all("a")} <= set(ids)
    assert read.all("html") == [{"lang": "en", "dir": "ltr"}]


def demo_page(folder: Path, limit: int = 3) -> tuple[ScanHtml, str]:
    stream = io.StringIO()
    reporter = ScanHtml(stream, Look(limit=limit))
    reporter.past = lambda _store: {
        "open-zombies": [(1.0, 3), (2.0, 40)],
        "bloat": [(1.0, 1)],
        "wal-health": [],
        "no-check": [(1.0, 1)],
    }
    reporter.begin(RunStart("0.9", "3.99", 1_764_500_000.0))
    store = make_demo_home(folder / "demo")
    scan = scan_store(StoreRef(store, store.parent, "default"), catalogue().checks, ScanOptions(), None, reporter.look)
    with scan.findings:
        reporter.store(scan)
    reporter.end(RunEnd(0.1, ExitCode.FINDINGS))
    return reporter, stream.getvalue()


def test_the_pictures_say_in_words_what_they_show(tmp_path: Path) -> None:
    _, page = demo_page(tmp_path)
    read = Read(page).text
    assert "10 sessions open, by source and by when they were last used." in read
    assert "cron 1 6 0" in read
    assert re.search(r"messages table [\d.]+ KB \d+%", read)
    assert "open-zombies 3 8" in read.split("How it has gone")[1]
    assert 'aria-label="3 scans: 3 at first, 40 at most, 8 now"' in page
    # What was looked at once only has no history.
    assert re.findall(r"(\S+) \d+ \d+", read.split("first now")[1].split("One by one")[0]) == [
        "open-zombies",
        "bloat",
    ]
    # The page of each check that found something stands there once, as `doctor explain` shows it.
    assert read.count("Why it matters") == 4


def test_a_page_of_a_check_as_html() -> None:
    page = written(make_scan([make_finding()], [make_check(page=PAGE)]))
    assert "<h5>What it finds</h5><p>Rows of <code>sessions</code> that are odd:</p>" in page
    assert "<ul><li>one kind, which takes a second line</li><li>and &lt;b&gt;another&lt;/b&gt;</li></ul>" in page


def test_the_second_store_refers_to_the_page_with_the_first() -> None:
    check = make_check(page=PAGE)
    others = StoreRef(Path("/srv/hermes/profiles/work/state.db"), None, "work")
    page = written(make_scan([make_finding()], [check]), make_scan([make_finding()], [check], ref=others))
    assert page.count("What it finds") == 1
    assert 'href="#store-1-odd-rows-page"' in page
    assert "2 faults in 2 stores, and all of them mend safely." in page
    assert '<a href="#store-2">/srv/hermes/profiles/work/state.db</a>' in page


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "All is well with this store."),
        ({"condition": Condition.DAMAGED, "reason": "page 3 is torn"}, "This store is damaged."),
        ({"condition": Condition.UNREADABLE}, "This store cannot be read."),
        ({"condition": Condition.NOT_HERMES}, "This store is not a store of hermes."),
        ({"stopped": "the time was up"}, "Nothing wrong was found, but not everything could be looked at."),
    ],
)
def test_the_verdict_without_findings(changes: dict[str, object], verdict: str) -> None:
    page = Read(written(make_scan(**changes)))  # type: ignore[arg-type]  # StoreScan's own keywords
    assert verdict in page.text
    assert str(changes.get("reason", "")).lower() in page.text.lower()


def test_what_is_good_to_know_is_no_fault() -> None:
    info = make_finding("good-news", severity=Severity.INFO, fix=Safety.NONE, action=None)
    checks = [make_check("good-news", Severity.INFO), make_check()]
    assert (
        "Nothing is broken in this store; 1 thing may be good to know." in Read(written(make_scan([info], checks))).text
    )
    text = Read(written(make_scan([info, make_finding()], checks))).text
    assert "1 fault in this store, and it mends safely." in text
    assert "found 1 mend safely 1 need you 0 good to know 1" in text
    assert "Needs you" not in text


def test_several_stores_of_which_some_cannot_be_read() -> None:
    scans = [make_scan(condition=each, next_step=f"see to {each}") for each in (Condition.DAMAGED, Condition.MISSING)]
    end = RunEnd(0.1, ExitCode.DAMAGED, (), ["doctor fix (shows what would be done)"])
    text = Read(written(make_scan(), *scans, end=end)).text
    assert "2 of 3 stores are damaged or missing." in text
    assert text.index("/srv/hermes/state.db (damaged): see to damaged") < text.index("doctor fix")


def test_what_is_muted_is_shown_and_does_not_count() -> None:
    scan = make_scan([make_finding()])
    scan.checks[0].muted = Muted(0.0, 4_000_000_000.0)
    text = Read(written(scan)).text
    assert "Nothing is wrong with this store but what is muted." in text
    assert "1 finding is muted and not counted here." in text
    assert "muted until 2096-10-02" in text


def test_only_markup_is_not_escaped() -> None:
    assert tag("p", "<&\u202e", Markup("<br>"), title='"', hidden=True, id=None) == (
        '<p title="&quot;" hidden>&lt;&amp;\\u202e<br></p>'
    )
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert ascii_only(text("é…")) == "&#233;&#8230;"
