"""The JSON documents: valid whatever a store holds, and written without piling up findings."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_doctor.engine.model import ExitCode, Safety
from hermes_doctor.engine.scan import Muted, StoreScan
from hermes_doctor.host.holders import Holder
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.report.json import ScanJson
from hermes_doctor.report.model import OUTCOMES, RunEnd
from hermes_doctor.store.cells import BadText, Key
from tests.cli.support import valid
from tests.report.support import Discarding, make_finding, make_scan, peak_of, report_on


def document(*scans: StoreScan, code: ExitCode = ExitCode.FINDINGS) -> Any:
    stream = io.StringIO()
    report = ScanJson(stream)
    report_on(report, *scans, end=RunEnd(0.4142, code))
    assert stream.getvalue().isascii()
    return valid(stream.getvalue(), "scan")


def test_what_a_store_comes_to() -> None:
    findings = [
        make_finding(detail={"source": "cron", "columns": ("a", "b"), "idle_seconds": 1.5, "seen": True}),
        make_finding(fix=Safety.UNSAFE),
        make_finding(fix=Safety.NONE, action=None, refusal="no"),
        make_finding(fix=Safety.NONE, action=None),
    ]
    whole = document(make_scan(findings, held="yes", holders=(Holder(4711, "hermes"),)))
    assert whole["started_at"] == "2026-11-30T21:00:00Z"
    assert (whole["seconds"], whole["outcome"], whole["exit_code"]) == (0.414, "findings", 1)
    [database] = whole["databases"]
    assert database["holders"] == [{"pid": 4711, "name": "hermes"}]
    assert database["findings"][0] == {
        "check": "odd-rows",
        "severity": "warning",
        "table": "sessions",
        "key": "s1",
        "session": "s1",
        "summary": "it is odd",
        "detail": {"source": "cron", "columns": ["a", "b"], "idle_seconds": 1.5, "seen": True},
        "fix": "safe",
        "action": "make it even",
        "refusal": None,
    }
    [check] = database["checks"]
    assert [check[name] for name in ("count", "safe", "unsafe", "refused", "report")] == [4, 1, 1, 1, 1]
    assert check["muted"] is None


@pytest.mark.parametrize("worse_than", [None, 3])
def test_a_check_that_is_muted_says_until_when(worse_than: int | None) -> None:
    scan = make_scan([make_finding()])
    scan.checks[0].muted = Muted(1796072400.0, 1796158800.0, worse_than)
    [check] = document(scan, code=ExitCode.CLEAN)["databases"][0]["checks"]
    assert check["muted"] == {
        "since": "2026-11-30T21:00:00Z",
        "until": "2026-12-01T21:00:00Z",
        "worse_than": worse_than,
    }
    assert check["count"] == 1


@pytest.mark.parametrize("code", list(OUTCOMES), ids=lambda code: code.name)
def test_every_outcome_goes_with_its_code(code: ExitCode) -> None:
    whole = document(code=code)
    assert (whole["outcome"], whole["exit_code"]) == (OUTCOMES[code], int(code))
    assert whole["databases"] == []


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("s1", "s1"),
        (2**63 - 1, 2**63 - 1),
        (None, None),
        (b"\x00\xff", {"blob": "00ff"}),
        (BadText(b"caf\xe9"), {"blob": "636166e9"}),
        (("default", 3, b"\x01"), ["default", 3, {"blob": "01"}]),
        (float("inf"), "inf"),
        ("half \ud83d", "half \\ud83d"),
    ],
)
def test_keys(key: Key, shown: object) -> None:
    [database] = document(make_scan([make_finding(key=key, session=key)]))["databases"]
    assert (database["findings"][0]["key"], database["findings"][0]["session"]) == (shown, shown)


_CELLS = st.none() | st.integers() | st.floats() | st.binary(max_size=20) | st.text(st.characters(codec=None))


@settings(deadline=None)
@given(key=_CELLS | st.tuples(_CELLS, _CELLS), source=st.text(st.characters(codec=None)), idle=st.floats())
def test_whatever_a_store_holds_comes_out_valid(key: Key, source: str, idle: float) -> None:
    document(make_scan([make_finding(key=key, detail={"source": source, "idle": idle, "odd": key})]))


def test_a_path_that_is_no_text() -> None:
    ref = StoreRef(Path(os.fsdecode(b"/srv/caf\xe9/state.db")), None, "default")
    [database] = document(make_scan(ref=ref))["databases"]
    assert (database["path"], database["home"]) == ("/srv/caf\\udce9/state.db", None)


def test_the_schema_would_notice() -> None:
    with pytest.raises(Exception, match="'sideways' is not one of"):
        document(make_scan(held="sideways"))


def test_memory_does_not_grow_with_the_findings() -> None:
    def peak(count: int) -> int:
        return peak_of(ScanJson(Discarding()), count)

    peak(10)
    assert peak(5000) < 2 * peak(50) + 50_000


def test_the_schemas_ship_in_the_package() -> None:
    from importlib.resources import files

    folder = files("hermes_doctor.report").joinpath("schemas")
    for name in ("scan.json", "checks.json"):
        assert json.loads(folder.joinpath(name).read_text("utf-8"))["$schema"].endswith("2020-12/schema")
