"""`deploy/prometheus`: each alert comes when it should and not before, on figures as the doctor writes them."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.model import ExitCode, Severity
from hermes_doctor.engine.scan import Muted, StoreScan
from hermes_doctor.host.bundle import Condition
from hermes_doctor.report.model import RunEnd, RunStart
from hermes_doctor.report.prometheus import FAMILIES, ScanMetrics
from tests.cli.support import ROOT, doctor
from tests.debian import debian_program
from tests.report.support import make_check, make_finding, make_scan

FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "hermes-state-doctor.rules.yml"
DASHBOARD = FOLDER / "grafana-dashboard.json"

#: Ten days of a sample each hour.
STEP, STEPS = 3600, 240
HOST = {"job": "node", "instance": "alpha:9100"}

#: What a case changes: a family, with the value of one of its labels where it has several series, and the values.
Changes = Mapping[tuple[str, str], str]
#: A time, and the alerts that fire then.
Fires = Mapping[str, set[str]]


def _steps(hours: float) -> int:
    return int(hours * 3600 / STEP)


def _jump(before: float, after: float, hours: float = 192) -> str:
    """One value, and from so many hours on another."""
    return f"{before:g}x{_steps(hours) - 1} {after:g}x{STEPS - _steps(hours)}"


CASES: dict[str, tuple[Changes, Fires]] = {
    "a healthy host": ({}, {"0m": set(), "9d": set()}),
    "damaged": ({("store_condition", "damaged"): "0 1x9"}, {"0m": set(), "1h": {"HermesStoreDamaged"}}),
    "unreadable": ({("store_condition", "unreadable"): "1x9"}, {"0m": {"HermesStoreDamaged"}}),
    "missing": ({("store_condition", "missing"): "1x9"}, {"0m": set(), "1h": {"HermesStoreMissing"}}),
    "not one of hermes": ({("store_condition", "not-hermes"): "1x9"}, {"0m": set(), "1h": {"HermesStoreMissing"}}),
    "left in a write": (
        {("store_condition", "needs-recovery"): f"1x{STEPS}"},
        {"35h": set(), "37h": {"HermesStoreNeedsRecovery"}},
    ),
    "a newer hermes": (
        {("store_condition", "newer-schema"): f"1x{STEPS}"},
        {"35h": set(), "37h": {"HermesStoreNewerThanDoctor"}},
    ),
    "an error": ({("findings", "error"): "0 1x9"}, {"0m": set(), "1h": {"HermesStoreErrors"}}),
    "a warning": ({("findings", "warning"): f"1x{STEPS}"}, {"37h": set()}),
    "errors of a muted check": ({("check_muted_findings", "error"): f"5x{STEPS}"}, {"37h": set()}),
    "nine more warnings": ({("findings", "warning"): _jump(3, 12)}, {"8d1h": set()}),
    "ten more warnings": (
        {("findings", "warning"): _jump(3, 13)},
        {"8d": set(), "8d1h": {"HermesStoreWarningsGrow"}},
    ),
    "fewer warnings": ({("findings", "warning"): _jump(30, 3)}, {"8d1h": set()}),
    "a store that grows by half and more": (
        {("store_size_bytes", ""): _jump(1e9, 1.6e9)},
        {"8d": set(), "8d1h": {"HermesStoreGrowsFast"}},
    ),
    "a store that grows by less": ({("store_size_bytes", ""): _jump(1e9, 1.4e9)}, {"8d1h": set()}),
    "a small store that grows": ({("store_size_bytes", ""): _jump(1e6, 9e8)}, {"8d1h": set()}),
    "a doctor that failed": ({("scan_exit_code", ""): "3x9"}, {"0m": {"HermesDoctorFailed"}}),
    "findings, damage and a stop are told of elsewhere": (
        {("scan_exit_code", ""): "1x9 4x9 7x9"},
        {"0m": set(), "12h": set(), "24h": set()},
    ),
    "a check that failed": ({("check_failed", ""): "1x9"}, {"0m": set(), "1h": {"HermesDoctorCheckFailed"}}),
    "a night that was stopped": ({("store_scan_stopped", ""): f"1x{_steps(35)} 0x400"}, {"34h": set(), "40h": set()}),
    "two nights that were stopped": (
        {("store_scan_stopped", ""): f"1x{STEPS}"},
        {"35h": set(), "37h": {"HermesDoctorStopped"}},
    ),
    "stores whose turn does not come": (
        {("scan_stores_unread", ""): f"2x{STEPS}"},
        {"35h": set(), "37h": {"HermesDoctorStopped"}},
    ),
    "a scan that is no longer started": (
        {("scan_timestamp_seconds", ""): f"0x{STEPS}"},
        {"36h": set(), "37h": {"HermesDoctorOld"}},
    ),
    "figures that are gone": (
        {("scan_timestamp_seconds", ""): f"0+{STEP}x{_steps(48)} stale"},
        {"48h": set(), "49h": set(), "50h": {"HermesDoctorSilent"}},
    ),
    "a host that is gone": (
        {("scan_timestamp_seconds", ""): f"0+{STEP}x{_steps(48)} stale", ("up", ""): f"1x{_steps(48)} 0x400"},
        {"50h": set()},
    ),
}


def figures(*scans: StoreScan) -> str:
    """What the doctor writes of these stores."""
    stream = io.StringIO()
    report = ScanMetrics(stream)
    report.begin(RunStart("0.1.0", "3.54.1", 0.0))
    for scan in scans:
        with scan.findings:
            report.store(scan)
    report.end(RunEnd(0.25, ExitCode.CLEAN, []))
    return stream.getvalue()


def healthy() -> str:
    """A store in which nothing was found; one more check is muted."""
    scan = make_scan(checks=[make_check(), make_check("bad-rows", Severity.ERROR), make_check("muted", Severity.ERROR)])
    scan.checks[2].muted = Muted(0.0, 2e9)
    return figures(scan)


def series(text: str, changes: Changes) -> list[dict[str, str]]:
    """The figures as promtool takes them, as a host's node_exporter gives them; all changes must be of use."""
    unused = dict(changes)
    found: list[tuple[str, dict[str, str], float]] = [("up", {}, 1.0)]
    for family in text_string_to_metric_families(text):
        found += [(family.name, sample.labels, sample.value) for sample in family.samples]
    told = []
    for name, labels, value in found:
        short = name.removeprefix("hermes_doctor_")
        values = f"0+{STEP}x{STEPS}" if short == "scan_timestamp_seconds" else f"{value:g}x{STEPS}"
        for (family_, label), other in changes.items():
            # Of the families of findings and failures, those of the muted check are not meant.
            of_muted = labels.get("check") == "muted" and family_ != "check_muted_findings"
            if family_ == short and label in ("", *labels.values()) and not of_muted:
                values = other
                unused.pop((family_, label), None)
        pairs = ",".join(f"{key}={json.dumps(word)}" for key, word in (HOST | labels).items())
        told.append({"series": f"{name}{{{pairs}}}", "values": values})
    assert not unused
    return told


def expected(query: str, at: str, alerts: set[str]) -> dict[str, Any]:
    return {
        "expr": query,
        "eval_time": at,
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(alerts)],
    }


def verdict(folder: Path, tests: list[dict[str, Any]], rules: Path = RULES) -> tuple[int, str]:
    """What promtool says of the rules."""
    promtool = debian_program("promtool", "prometheus")
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1h",
        "tests": [{"interval": "1h", **test} for test in tests],
    }
    path = folder / "tests.yml"
    path.write_text(yaml.safe_dump(document))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def alert_tests(*cases: str) -> list[dict[str, Any]]:
    query = 'max by (alertname) (ALERTS{alertstate="firing"})'
    text = healthy()
    return [
        {
            "input_series": series(text, changes),
            "promql_expr_test": [expected(query, at, alerts) for at, alerts in fires.items()],
        }
        for changes, fires in (CASES[case] for case in cases or CASES)
    ]


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def test_promtool_takes_the_rules() -> None:
    promtool = debian_program("promtool", "prometheus")
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(rules())} rules found" in done.stdout


def test_each_alert_is_in_the_readme() -> None:
    rows = re.findall(r"^\| (`Hermes.*?) \| (\w+) \|", (FOLDER.parent / "README.md").read_text(), re.MULTILINE)
    listed = {(name, severity) for names, severity in rows for name in re.findall(r"`(\w+)`", names)}
    assert listed == {(rule["alert"], rule["labels"]["severity"]) for rule in rules()}


def test_each_alert_comes_when_it_should(tmp_path: Path) -> None:
    fired = set().union(*(alerts for _, fires in CASES.values() for alerts in fires.values()))
    assert fired == {rule["alert"] for rule in rules()}
    code, said = verdict(tmp_path, alert_tests())
    assert code == 0, said


@pytest.mark.parametrize(
    ("case", "old", "new"),
    [
        ("a newer hermes", "for: 36h", "for: 34h"),
        ("a scan that is no longer started", "> 36 * 3600", "> 34 * 3600"),
        ("ten more warnings", ">= 10", "> 10"),
        ("nine more warnings", ">= 10", ">= 9"),
        ("a store that grows by less", "> 1.5 *", "> 1.3 *"),
        ("a small store that grows", "> 1e9", "> 1e8"),
        ("a warning", 'findings{severity="error"}', 'findings{severity=~"error|warning"}'),
        ("errors of a muted check", "(hermes_doctor_findings{", "(hermes_doctor_check_muted_findings{"),
        ("unreadable", "damaged|unreadable", "damaged"),
        ("a host that is gone", " and on (job, instance) up == 1", ""),
    ],
)
def test_a_rule_that_is_off_is_found_out(tmp_path: Path, case: str, old: str, new: str) -> None:
    text = RULES.read_text()
    assert old in text
    changed = tmp_path / "rules.yml"
    changed.write_text(text.replace(old, new))
    assert "FAILED" in verdict(tmp_path, alert_tests(case), changed)[1]


def test_a_real_scan_is_told_of_check_by_check_until_it_is_muted(tmp_path: Path) -> None:
    store = make_demo_home(tmp_path / "home")
    scanned = doctor(tmp_path, "scan", store, "--format", "prometheus", "--output", "doctor.prom")
    assert scanned.returncode == 1, scanned.stderr
    before = (tmp_path / "doctor.prom").read_text()
    muted = doctor(tmp_path, "mute", "double-encoded")
    assert muted.returncode == 0, muted.stderr
    doctor(tmp_path, "scan", store, "--format", "prometheus", "--output", "doctor.prom")
    after = (tmp_path / "doctor.prom").read_text()
    query = 'count by (alertname, check, instance, store, profile) (ALERTS{alertstate="firing"})'

    def fires(*checks: str) -> list[dict[str, Any]]:
        more = f'instance="alpha:9100",store="{store}",profile="default"'
        labels = [f'{{alertname="HermesStoreErrors",check="{check}",{more}}}' for check in checks]
        samples = [{"labels": each, "value": 1} for each in labels]
        return [{"expr": query, "eval_time": "3h", "exp_samples": samples}]

    code, said = verdict(
        tmp_path,
        [
            {"input_series": series(before, {}), "promql_expr_test": fires("double-encoded", "lineage-gaps")},
            {"input_series": series(after, {}), "promql_expr_test": fires("lineage-gaps")},
        ],
    )
    assert code == 0, said


def test_what_an_alert_says(tmp_path: Path) -> None:
    scan = make_scan([make_finding("bad-rows", severity=Severity.ERROR)] * 3, [make_check("bad-rows", Severity.ERROR)])
    labels = HOST | {"store": "/srv/hermes/state.db", "profile": "default", "check": "bad-rows", "severity": "warning"}
    errors = {
        "eval_time": "37h",
        "alertname": "HermesStoreErrors",
        "exp_alerts": [
            {
                "exp_labels": labels,
                "exp_annotations": {
                    "summary": "bad-rows: 3 found in /srv/hermes/state.db on alpha:9100",
                    "description": "Errors cost somebody a conversation, or a part of one. On the host: doctor explain"
                    " bad-rows, doctor fix /srv/hermes/state.db (shows what would be done)",
                },
            }
        ],
    }
    old = {
        "eval_time": "37h",
        "alertname": "HermesDoctorOld",
        "exp_alerts": [
            {
                "exp_labels": HOST | {"severity": "warning"},
                "exp_annotations": {
                    "summary": "alpha:9100 was last scanned 1d 13h 0m 0s ago",
                    "description": "The figures of this host are old, and so is all that other alerts say of it."
                    " Look at what starts the scan there.",
                },
            }
        ],
    }
    given = series(figures(scan), {("scan_timestamp_seconds", ""): f"0x{STEPS}"})
    code, said = verdict(tmp_path, [{"input_series": given, "alert_rule_test": [errors, old]}])
    assert code == 0, said


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return document


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def test_what_is_asked_for_is_what_the_doctor_writes() -> None:
    asked = [*(rule["expr"] for rule in rules()), *queries()]
    asked += [each["query"]["query"] for each in dashboard()["templating"]["list"] if each["type"] == "query"]
    figures_ = {name for text in asked for name in re.findall(r"hermes_doctor_(\w+)", text)}
    assert figures_ <= set(FAMILIES)
    conditions = [found for text in asked for found in re.findall(r'condition=~?"([^"]*)"', text)]
    assert set("|".join(conditions).split("|")) == {each.value for each in Condition} - {"readable"}
    severities = {each for text in asked for each in re.findall(r'severity=~?"([^"]*)"', text)}
    assert severities <= {each.label for each in Severity}


def test_prometheus_reads_each_query_of_the_dashboard(tmp_path: Path) -> None:
    promtool = debian_program("promtool", "prometheus")
    recorded = [
        {"record": f"query:{number}", "expr": re.sub(r"\$\w+", ".*", query)} for number, query in enumerate(queries())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_queries_of_the_stores_have_an_answer_for_each_store(tmp_path: Path) -> None:
    text = figures(
        make_scan([make_finding("bad-rows", severity=Severity.ERROR)], [make_check("bad-rows", Severity.ERROR)])
    )
    [table] = [panel for panel in dashboard()["panels"] if (panel["type"], panel["title"]) == ("table", "Stores")]
    asked = [
        {
            "expr": f"count({re.sub(r'[$][a-z]+', '.*', target['expr'])})",
            "eval_time": "2h",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        # Of warnings there is no sample: no such check looked.
        for target in table["targets"]
        if 'severity="warning"' not in target["expr"]
    ]
    assert len(asked) == 7
    code, said = verdict(tmp_path, [{"input_series": series(text, {}), "promql_expr_test": asked}])
    assert code == 0, said


def test_the_dashboard_is_bound_to_no_grafana() -> None:
    board = dashboard()
    assert board.get("id") is None
    assert {source["uid"] for source in datasources(board)} == {"${datasource}"}
    names = {each["name"] for each in board["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", " ".join([*queries(), *map(json.dumps, datasources(board))]))) == names
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        cells = {(column, row) for column in range(x, x + w) for row in range(y, y + h)}
        assert x + w <= 24
        assert not cells & taken
        taken |= cells
        assert panel["description"]


def datasources(part: object) -> Iterator[dict[str, str]]:
    """All that the dashboard says of where it gets its data."""
    if isinstance(part, dict):
        if isinstance(part.get("datasource"), dict):
            yield part["datasource"]
        for each in part.values():
            yield from datasources(each)
    elif isinstance(part, list):
        for each in part:
            yield from datasources(each)
