"""`doctor scan --format ndjson`: a line for each thing that the JSON document tells, and nothing else."""

from __future__ import annotations

import io
import json
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_doctor.engine.model import ExitCode, Safety
from hermes_doctor.engine.scan import StoreScan
from hermes_doctor.host.holders import Holder
from hermes_doctor.report.json import ScanJson
from hermes_doctor.report.model import RunEnd, RunStart, ScanReporter
from hermes_doctor.report.ndjson import ScanLines
from hermes_doctor.store.cells import Key
from tests.cli.support import valid
from tests.report.support import Discarding, make_finding, make_scan, peak_of

START = RunStart("0.1.0", "3.54.1", 1796072400.9)


def written(report: ScanReporter, *scans: StoreScan) -> None:
    report.begin(START)
    for scan in scans:
        report.store(scan)
    report.end(RunEnd(0.4142, ExitCode.FINDINGS))


def lines_of(*scans: StoreScan) -> list[Any]:
    stream = io.StringIO()
    written(ScanLines(stream), *scans)
    assert stream.getvalue().isascii()
    assert stream.getvalue().endswith("\n")
    return [valid(line, "scan-lines") for line in stream.getvalue()[:-1].split("\n")]


def put_together(lines: list[Any]) -> Any:
    """The document of `doctor scan --json` that the lines amount to."""
    document: Any = {"databases": []}
    for line in lines:
        kind = line.pop("type")
        if kind in ("start", "end"):
            document |= line
        elif kind == "store":
            document["databases"].append(line | {"findings": [], "checks": []})
        else:
            assert line.pop("path") == document["databases"][-1]["path"]
            if kind == "store-end":
                document["databases"][-1] |= line
            else:
                document["databases"][-1][f"{kind}s"].append(line)
    return document | {"format": "hermes-doctor.scan"}


def test_the_lines_amount_to_the_json_document() -> None:
    findings = [
        make_finding(detail={"source": "cron", "columns": ("a", "b"), "idle_seconds": 1.5, "seen": True}),
        make_finding("even-rows", fix=Safety.NONE, action=None, refusal="no"),
    ]
    scans = [
        make_scan(findings, held="yes", holders=(Holder(4711, "hermes"),)),
        make_scan(trace=["a file"], stopped="the time was up", consistent=False),
    ]
    lines = lines_of(*scans)
    assert [line["type"] for line in lines] == [
        *("start", "store", "finding", "finding", "check", "check", "store-end"),
        *("store", "check", "store-end", "end"),
    ]
    stream = io.StringIO()
    written(ScanJson(stream), *scans)
    assert put_together(lines) == json.loads(stream.getvalue())
    for scan in scans:
        scan.findings.close()


_CELLS = st.none() | st.integers() | st.floats() | st.binary(max_size=20) | st.text(st.characters(codec=None))


@settings(deadline=None, max_examples=20)
@given(key=_CELLS | st.tuples(_CELLS, _CELLS), source=st.text(st.characters(codec=None)), idle=st.floats())
def test_whatever_a_store_holds_stays_on_its_line(key: Key, source: str, idle: float) -> None:
    scan = make_scan([make_finding(key=key, detail={"source": source, "idle": idle, "odd": key})])
    with scan.findings:
        assert len(lines_of(scan)) == 6


def test_the_schema_would_notice() -> None:
    scan = make_scan(held="sideways")
    with scan.findings, pytest.raises(Exception, match="is not valid under any"):
        lines_of(scan)


def test_the_schema_describes_things_as_that_of_the_document_does() -> None:
    folder = files("hermes_doctor.report").joinpath("schemas")
    lines, whole = (json.loads(folder.joinpath(name).read_text("utf-8")) for name in ("scan-lines.json", "scan.json"))
    store = {**lines["$defs"]["store"]["properties"], **lines["$defs"]["store-end"]["properties"]}
    run = {**lines["$defs"]["start"]["properties"], **lines["$defs"]["end"]["properties"]}
    for ours, theirs, apart in (
        (lines["$defs"]["finding"]["properties"], whole["$defs"]["finding"]["properties"], set()),
        (lines["$defs"]["check"]["properties"], whole["$defs"]["check"]["properties"], set()),
        (store, whole["$defs"]["database"]["properties"], {"findings", "checks"}),
        (run, whole["properties"], {"databases", "format"}),
    ):
        assert {name: ours[name] for name in theirs if name not in apart} == {
            name: theirs[name] for name in theirs if name not in apart
        }
    for shared in ("cell", "count", "key", "severity"):
        assert lines["$defs"][shared] == whole["$defs"][shared]


class _Pipe(io.StringIO):
    """Tells what a reader at the other end would have by now."""

    arrived = ""

    def flush(self) -> None:
        self.arrived = self.getvalue()


def test_a_reader_gets_each_store_as_soon_as_it_is_done() -> None:
    pipe = _Pipe()
    report = ScanLines(pipe)
    report.begin(START)
    assert pipe.arrived.count("\n") == 1
    scan = make_scan([make_finding()])
    with scan.findings:
        report.store(scan)
    assert json.loads(pipe.arrived.splitlines()[-1])["type"] == "store-end"


def test_memory_does_not_grow_with_the_findings() -> None:
    def peak(count: int) -> int:
        return peak_of(ScanLines(Discarding()), count)

    peak(10)
    assert peak(5000) < 2 * peak(50) + 50_000
