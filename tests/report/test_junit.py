"""`doctor scan --format junit`: valid by the schema of Jenkins, and green just where the exit code is 0."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import junitparser
import pytest
import xmlschema
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_doctor.engine.model import ExitCode, Safety, Severity
from hermes_doctor.engine.scan import Muted, StoreScan
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.report.junit import ScanJunit
from hermes_doctor.report.layout import Look
from hermes_doctor.report.model import RunEnd, RunStart
from hermes_doctor.report.words import key_text, visible
from tests.report.support import make_check, make_finding, make_scan, peak_of, report_on

#: Of Jenkins's xunit plugin, as it is (MIT).
_SCHEMA = Path(__file__).with_name("junit-10.xsd")


@cache
def schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(_SCHEMA)


def text_of(
    *scans: StoreScan, fail_on: Severity | None = Severity.WARNING, limit: int = 3, unread: Sequence[Path] = ()
) -> str:
    stream = io.StringIO()
    report = ScanJunit(stream, Look(limit=limit))
    report_on(
        report,
        *scans,
        start=RunStart("0.1.0", "3.54.1", 1796072400.9, fail_on=fail_on),
        end=RunEnd(0.4142, ExitCode.FINDINGS, unread),
    )
    return stream.getvalue()


def read(text: str) -> list[ElementTree.Element]:
    """The suites, whose sums are right, of a report that is valid and in ASCII."""
    assert text.isascii()
    schema().validate(text)
    suites = list(ElementTree.fromstring(text))
    for suite in suites:
        assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
        for sums, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[sums]) == len(suite.findall(f"testcase/{kind}"))
        # Ant's older schema wants these, in this order.
        assert [child.tag for child in suite if child.tag != "testcase"] == ["properties", "system-out", "system-err"]
        assert {"package", "id", "hostname", "timestamp", "time"} <= set(suite.attrib)
        assert all(len(case) <= 1 for case in suite.findall("testcase"))
    return suites


def outcome(suite: ElementTree.Element, name: str) -> tuple[str, dict[str, str], str]:
    """What became of a test case: passed, or the element that says otherwise, with its attributes and text."""
    [case] = [case for case in suite.findall("testcase") if case.attrib["name"] == name]
    assert case.attrib["classname"] == suite.attrib["name"]
    return (case[0].tag, dict(case[0].attrib), case[0].text or "") if len(case) else ("passed", {}, "")


def test_what_a_store_comes_to() -> None:
    names = ["odd-rows", "good-rows", "little-rows", "blind-rows", "broken-rows", "quiet-rows"]
    found = [
        *[make_finding(key=f"s{n}", session=None) for n in range(3)],
        make_finding(fix=Safety.NONE, refusal="no"),
        make_finding("little-rows", severity=Severity.INFO),
        make_finding("quiet-rows"),
    ]
    scan = make_scan(found, [make_check(name) for name in names], seconds=1234.5)
    scan.checks[3].skip("nothing to look at")
    scan.checks[4].fail("it broke")
    scan.checks[5].muted = Muted(1796000000.0, 1797000000.0)
    [suite] = read(text_of(scan, limit=2))
    assert [case.attrib["name"] for case in suite.findall("testcase")] == ["store", *names]
    assert (suite.attrib["name"], suite.attrib["timestamp"]) == ("/srv/hermes/state.db", "2026-11-30T21:00:00")
    assert suite.attrib["time"] == "1234.500"
    kind, attributes, text = outcome(suite, "odd-rows")
    assert (kind, attributes) == ("failure", {"type": "warning", "message": "4 findings, 3 mend safely"})
    assert "s0: it is odd. Mends safely: make it even." in text
    assert "s1: it is odd." in text
    assert "… and 2 more\nNext: doctor explain odd-rows" in text
    assert "s2" not in text
    assert outcome(suite, "store")[0] == outcome(suite, "good-rows")[0] == outcome(suite, "little-rows")[0] == "passed"
    assert suite.findtext("system-out") == "little-rows: 1 finding, 1 mends safely"
    assert outcome(suite, "blind-rows") == ("skipped", {"message": "nothing to look at"}, "")
    assert outcome(suite, "broken-rows") == ("error", {"type": "failed", "message": "it broke"}, "")
    kind, attributes, text = outcome(suite, "quiet-rows")
    assert kind == "skipped"
    assert attributes["message"].startswith("muted until 2026-12-1")
    assert attributes["message"].endswith(": 1 finding, 1 mends safely not counted")


def test_a_store_that_cannot_be_read_is_an_error() -> None:
    scan = make_scan(condition=Condition.DAMAGED, reason="its head is gone", next_step="restore it")
    scan.checks[0].skip("the store was not read")
    [suite, unread] = read(text_of(scan, unread=[Path("/srv/other/state.db")]))
    assert outcome(suite, "store") == ("error", {"type": "damaged", "message": "its head is gone"}, "Next: restore it")
    assert unread.attrib["name"] == "/srv/other/state.db"
    assert outcome(unread, "store")[:2] == (
        "error",
        {"type": "stopped", "message": "the scan was stopped before it was read"},
    )


def test_readers_of_such_reports_understand_it(tmp_path: Path) -> None:
    scan = make_scan([make_finding(), make_finding("even-rows", severity=Severity.INFO)])
    (tmp_path / "report.xml").write_text(text_of(scan, make_scan(condition=Condition.MISSING)))
    report = junitparser.JUnitXml.fromfile(str(tmp_path / "report.xml"))
    results = [(case.name, [type(result).__name__ for result in case.result]) for suite in report for case in suite]
    assert results == [
        ("store", []),
        ("odd-rows", ["Failure"]),
        ("even-rows", []),
        ("store", ["Error"]),
        ("odd-rows", []),
    ]


@settings(deadline=None, max_examples=150)
@given(
    found=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(list(Severity))), max_size=4),
    statuses=st.tuples(*[st.sampled_from(["ran", "failed"])] * 2),
    muted=st.booleans(),
    stopped=st.none() | st.just("the time was up"),
    condition=st.sampled_from(list(Condition)),
    fail_on=st.none() | st.sampled_from(list(Severity)),
)
def test_it_is_green_just_where_the_exit_code_is_0(
    found: list[tuple[str, Severity]],
    statuses: tuple[str, str],
    muted: bool,
    stopped: str | None,
    condition: Condition,
    fail_on: Severity | None,
) -> None:
    findings = [make_finding(check, severity=severity) for check, severity in found]
    scan = make_scan(findings, [make_check("a"), make_check("b")], stopped=stopped, condition=condition)
    for result, status in zip(scan.checks, statuses, strict=True):
        if status == "failed":
            result.fail("it broke")
    scan.checks[0].muted = Muted(0.0, 1797000000.0) if muted else None
    code = scan.exit_code(fail_on)
    red = ElementTree.fromstring(text_of(scan, fail_on=fail_on)).findall("testsuite/testcase/*")
    assert (code == ExitCode.CLEAN) is all(element.tag == "skipped" for element in red)


@settings(deadline=None, max_examples=40)
@given(odd=st.text(st.characters(codec=None), max_size=20))
def test_whatever_a_store_holds_is_valid_and_visible(odd: str) -> None:
    ref = StoreRef(Path("/srv") / (odd.replace("\0", "") or "x") / "state.db", None, odd)
    scan = make_scan([make_finding(key=f"({odd}", session=None, summary=odd, action=odd)], ref=ref, reason=odd)
    scan.findings.add(make_finding())
    [suite] = read(text_of(scan))
    assert suite.attrib["name"] == visible(str(ref.path))
    line = outcome(suite, "odd-rows")[2].splitlines()[1]
    assert line == f"{key_text(f'({odd}')}: {visible(odd)}. Mends safely: {visible(odd)}."


def test_memory_does_not_grow_with_the_findings() -> None:
    def peak(count: int) -> int:
        return peak_of(ScanJunit(io.StringIO(), Look()), count)

    peak(10)
    assert peak(5000) < 2 * peak(50) + 50_000


def test_the_schema_would_notice() -> None:
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        read(text_of(make_scan()).replace("testcase", "textcase"))
