"""`doctor scan --format prometheus`: what a reader of the format makes of it, and what promtool says of it."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from hermes_doctor.engine.model import ExitCode, Safety, Severity
from hermes_doctor.engine.scan import CheckResult, Muted, StoreScan
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.report.model import RunEnd
from hermes_doctor.report.prometheus import FAMILIES, ScanMetrics
from hermes_doctor.report.words import visible
from tests.debian import debian_program
from tests.report.support import make_check, make_finding, make_scan, peak_of, report_on

Samples = dict[str, dict[tuple[str, ...], float]]


def text_of(*scans: StoreScan, code: ExitCode = ExitCode.FINDINGS, stream: io.TextIOBase | None = None) -> str:
    target = stream or io.StringIO()
    report = ScanMetrics(target)  # type: ignore[arg-type]  # a text stream
    report_on(report, *scans, end=RunEnd(0.4142, code, [Path("/srv/unread/state.db")]))
    return target.getvalue() if isinstance(target, io.StringIO) else ""


def stores_in(text: str) -> list[str]:
    """The names of the stores, as a reader of the format gets them."""
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return [sample.labels["store"] for sample in families["hermes_doctor_store_size_bytes"].samples]


def read(text: str) -> Samples:
    """What a reader of the format gets: family -> the labels' values, without store and profile -> the value."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        assert family.documentation == FAMILIES[family.name.removeprefix("hermes_doctor_")]
        for sample in family.samples:
            labels = tuple(value for name, value in sample.labels.items() if name not in ("store", "profile"))
            told = samples.setdefault(family.name.removeprefix("hermes_doctor_"), {})
            assert labels not in told
            told[labels] = sample.value
    return samples


def test_what_a_store_comes_to() -> None:
    error, info = make_check("bad-rows", Severity.ERROR), make_check("good-rows", Severity.INFO)
    found = [
        *[make_finding(fix=Safety.UNSAFE)] * 2,
        make_finding(severity=Severity.INFO),
        make_finding("bad-rows", severity=Severity.ERROR, fix=Safety.NONE, refusal="no"),
        make_finding("bad-rows", severity=Severity.ERROR, fix=Safety.NONE),
    ]
    scan = make_scan(found, [make_check(), error, info, make_check("blind")], seconds=0.25, held="yes")
    scan.checks[1].fail("it broke")
    scan.checks[3].skip("nothing to look at")
    scan.checks[0].seconds = 0.125
    samples = read(text_of(scan))
    assert samples["info"] == {("0.1.0", "3.54.1"): 1}
    assert samples["scan_timestamp_seconds"] == {(): 1796072400.9}
    assert samples["scan_duration_seconds"] == {(): 0.414}
    assert {name for (name,), value in samples["store_condition"].items() if value} == {"readable"}
    assert len(samples["store_condition"]) == len(Condition)
    assert samples["store_schema_version"] == {(): 22}
    assert samples["store_size_bytes"] == {(): 1503238553}
    assert (samples["store_sessions"], samples["store_messages"]) == ({(): 3049}, {(): 61465})
    assert (samples["store_held"], samples["store_scan_stopped"]) == ({(): 1}, {(): 0})
    assert samples["store_scan_duration_seconds"] == {(): 0.25}
    assert samples["store_findings"] == {("safe",): 1, ("unsafe",): 2, ("refused",): 1, ("none",): 1}
    assert samples["findings"] == {
        ("odd-rows", "info"): 1,
        ("odd-rows", "warning"): 2,
        ("bad-rows", "error"): 2,
        ("good-rows", "info"): 0,
    }
    assert samples["check_failed"] == {("odd-rows",): 0, ("bad-rows",): 1, ("good-rows",): 0}
    assert samples["check_duration_seconds"] == {("odd-rows",): 0.125, ("bad-rows",): 0, ("good-rows",): 0}


def test_what_is_not_known_has_no_sample() -> None:
    nothing: dict[str, Any] = {
        "schema_version": None,
        "bytes": None,
        "sessions": None,
        "messages": None,
        "held": "unknown",
    }
    scan = make_scan(condition=Condition.MISSING, reason="it is not there", **nothing)
    scan.checks[0].skip("the store was not read")
    samples = read(text_of(scan, code=ExitCode.DAMAGED))
    assert {name for (name,), value in samples["store_condition"].items() if value} == {"missing"}
    assert {name for name in samples if name.startswith(("store_", "check_", "findings"))} == {
        "store_condition",
        "store_findings",
        "store_scan_duration_seconds",
        "store_scan_stopped",
    }


def test_findings_of_a_muted_check_stand_apart() -> None:
    scan = make_scan([make_finding(), make_finding("even-rows")])
    scan.checks[0].muted = Muted(1796000000.0, 1797000000.0)
    samples = read(text_of(scan))
    assert samples["findings"] == {("odd-rows", "warning"): 0, ("even-rows", "warning"): 1}
    assert samples["check_muted_findings"] == {("odd-rows", "warning"): 1}
    assert samples["check_muted_until_timestamp_seconds"] == {("odd-rows",): 1797000000}
    assert samples["store_findings"][("safe",)] == 1


def at(path: str) -> StoreScan:
    return make_scan([make_finding()], ref=StoreRef(Path(path), None, "default"))


@settings(deadline=None, max_examples=100)
@given(name=st.text(st.characters(codec=None, exclude_characters="\0"), min_size=1, max_size=30))
def test_whatever_a_path_is_its_label_is_read_back(name: str) -> None:
    path = Path("/srv") / name / "state.db"
    text = text_of(at(str(path)))
    assert stores_in(text) == [visible(str(path))]
    assert all(line.isprintable() for line in text.split("\n"))


def test_stores_that_look_alike_are_told_apart() -> None:
    text = text_of(at("/srv/\x01/state.db"), at("/srv/\\x01/state.db"))
    assert stores_in(text) == ["/srv/\\x01/state.db", "/srv/\\x01/state.db'"]


def test_an_encoding_that_lacks_a_character_gets_a_valid_label() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1", errors="strict")
    text_of(at("/srv/süß-日/state.db"), stream=stream)
    stream.flush()
    assert stores_in(raw.getvalue().decode("latin-1")) == ["/srv/süß-\\u65e5/state.db"]


def test_promtool_finds_nothing_to_say() -> None:
    promtool = debian_program("promtool", "prometheus")
    muted = make_scan([make_finding()], ref=StoreRef(Path('/srv/"odd" \\n\n'), None, "work"))
    muted.checks[0].muted = Muted(1796000000.0, 1797000000.0)
    missing = make_scan(condition=Condition.MISSING, ref=StoreRef(Path("/nowhere"), None, ""))
    text = text_of(make_scan([make_finding(), make_finding("even-rows")]), muted, missing)
    assert {name for name in FAMILIES if f"# TYPE hermes_doctor_{name} gauge\n" in text} == set(FAMILIES)
    assert checked_by(promtool, text) == (0, "")
    # It would say so: of a name that it dislikes, and of a line that it cannot read.
    assert checked_by(promtool, text.replace("store_sessions", "store_sessions_total"))[0] != 0
    assert checked_by(promtool, text.replace('",profile', ",profile"))[0] != 0


def checked_by(promtool: str, text: str) -> tuple[int, str]:
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_memory_does_not_grow_with_the_findings() -> None:
    def peak(count: int) -> int:
        return peak_of(ScanMetrics(io.StringIO()), count)

    peak(10)
    assert peak(5000) < 2 * peak(50) + 50_000


@pytest.mark.parametrize("status", ["skipped", "failed", "ran"])
def test_a_check_that_did_not_look_has_no_sample(status: str) -> None:
    scan = make_scan()
    scan.checks = [CheckResult(make_check(), status)]  # type: ignore[arg-type]  # the words of the model
    assert ("findings" in read(text_of(scan))) is (status != "skipped")
