"""`doctor scan --format ...` through the installed command, on a damaged home, a healthy one and none."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import apsw
import cmarkgfm
import pytest
import xmlschema
from prometheus_client.parser import text_string_to_metric_families

from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.report.formats import COMMON, SCAN
from tests.cli.support import MODULE, ROOT, doctor, environment, valid
from tests.debian import debian_program


def as_json(folder: Path, *targets: Path) -> Any:
    return valid(doctor(folder, "scan", *targets, "--json").stdout, "scan")


@pytest.mark.parametrize("name", SCAN)
def test_each_format_is_named_in_the_help_and_has_its_module(tmp_path: Path, damaged: Path, name: str) -> None:
    done = doctor(tmp_path, "scan", damaged, "--format", name)
    assert (done.returncode, done.stderr) == (1, "")
    assert "open-zombies" in done.stdout
    assert name in doctor(tmp_path, "scan", "--help").stdout


@pytest.mark.parametrize("name", SCAN)
def test_nothing_private_is_told_and_what_acts_is_made_visible(tmp_path: Path, damaged: Path, name: str) -> None:
    connection = apsw.Connection(str(damaged))
    connection.execute("UPDATE messages SET content = 'topsecret'")
    connection.execute("UPDATE sessions SET title = 'topsecret ' || id WHERE title IS NOT NULL")
    connection.execute("UPDATE sessions SET id = ? WHERE id = 'empty-1'", ["odd\x1b[31m\u202e\x07<b>]]>&|`*x"])
    connection.close()
    folder = damaged.parent.rename(tmp_path / 'red\x1b[31m \u202e<b>"&')
    done = doctor(tmp_path, "scan", folder, "--limit", "99", "--format", name)
    assert (done.returncode, done.stderr) == (1, "")
    assert "topsecret" not in done.stdout
    assert all(line.isprintable() for line in done.stdout.replace("\t", "").splitlines())
    if name == "junit":
        assert "odd\\x1b[31m\\u202e\\x07<b>]]>&|`*x" in "".join(ElementTree.fromstring(done.stdout).itertext())
    elif name == "markdown":
        assert "``odd\\x1b[31m\\u202e\\x07<b>]]>&|`*x``" in done.stdout
    elif name == "html":
        assert "odd\\x1b[31m\\u202e\\x07&lt;b&gt;]]&gt;&amp;|`*x" in done.stdout
    elif name == "ndjson":
        keys = [line.get("key") for line in map(json.loads, done.stdout.splitlines())]
        assert "odd\x1b[31m\u202e\x07<b>]]>&|`*x" in keys
    elif name == "prometheus":
        [family] = [f for f in text_string_to_metric_families(done.stdout) if f.name.endswith("_size_bytes")]
        assert family.samples[0].labels["store"] == f'{tmp_path}/red\\x1b[31m \\u202e<b>"&/state.db'


@pytest.mark.parametrize(
    "command", [["scan"], ["fix"], ["compact"], ["rescue", "STORE"], ["undo", "RUN"], ["checks"]], ids=" ".join
)
def test_an_unknown_format_is_a_usage_error_that_lists_those_known(tmp_path: Path, command: list[str]) -> None:
    done = doctor(tmp_path, *command, "--format", "yaml")
    assert (done.returncode, done.stdout) == (2, "")
    known = SCAN if command == ["scan"] else COMMON
    assert f"'yaml' is not one of {', '.join(map(repr, known))}." in done.stderr


def test_json_and_another_format_contradict_each_other(tmp_path: Path) -> None:
    done = doctor(tmp_path, "scan", "--json", "--format", "ndjson")
    assert (done.returncode, done.stdout) == (2, "")
    assert "contradict" in done.stderr


def test_lines_of_several_stores_amount_to_the_document(tmp_path: Path, damaged: Path) -> None:
    nowhere = tmp_path / "nowhere.db"
    done = doctor(tmp_path, "scan", damaged, nowhere, "--format", "ndjson")
    lines = [valid(line, "scan-lines") for line in done.stdout.splitlines()]
    whole = as_json(tmp_path, damaged, nowhere)
    assert (done.returncode, lines[-1]["exit_code"], whole["exit_code"]) == (4, 4, 4)
    for kind in ("finding", "check"):
        for database in whole["databases"]:
            told = [line for line in lines if line["type"] == kind and line["path"] == database["path"]]
            assert [line["check"] for line in told] == [each["check"] for each in database[f"{kind}s"]]
    assert [line["condition"] for line in lines if line["type"] == "store"] == ["readable", "missing"]


def test_a_junit_report_says_of_each_check_and_store_what_the_document_does(tmp_path: Path, damaged: Path) -> None:
    nowhere = tmp_path / "nowhere.db"
    arguments = ("scan", damaged, nowhere, "--fail-on", "error", "--format", "junit")
    done = doctor(tmp_path, *arguments)
    schema = xmlschema.XMLSchema(Path(__file__).parents[1] / "report" / "junit-10.xsd")
    schema.validate(done.stdout)
    suites = ElementTree.fromstring(done.stdout)
    whole = as_json(tmp_path, damaged, nowhere)
    assert [suite.attrib["name"] for suite in suites] == [database["path"] for database in whole["databases"]]
    for suite, database in zip(suites, whole["databases"], strict=True):
        cases = {case.attrib["name"]: [child.tag for child in case] for case in suite.findall("testcase")}
        assert cases.pop("store") == ([] if database["condition"] == "readable" else ["error"])
        worst = {f["check"] for f in database["findings"] if f["severity"] == "error"}
        assert cases == {
            check["check"]: ["failure"] if check["check"] in worst else ["skipped"] * (check["status"] == "skipped")
            for check in database["checks"]
        }
        assert (worst == set()) is (database["condition"] != "readable")


def test_a_page_in_markdown_counts_as_the_document_does(tmp_path: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "scan", damaged, "--format", "markdown", "--limit", "1")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("# doctor scan, ")
    [database] = as_json(tmp_path, damaged)["databases"]
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert {row[0]: [int(cell) for cell in row[2:5]] for row in rows} == {
        check["check"]: [check["count"], check["safe"], check["count"] - check["safe"]]
        for check in database["checks"]
        if check["count"]
    }
    assert sum(line.startswith("- `") for line in done.stdout.splitlines()) == len(rows)
    assert "\n## `~/damaged/state.db`\n" in done.stdout
    html = cmarkgfm.github_flavored_markdown_to_html(done.stdout)
    assert (html.count("<table>"), html.count("<h1>"), html.count("<h2>"), html.count("<h3>")) == (1, 1, 1, len(rows))


def test_lines_to_a_reader_who_has_seen_enough(tmp_path: Path, damaged: Path) -> None:
    command = " ".join([*MODULE, "scan", str(damaged), "--format", "ndjson", "| head -n 1"])
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert json.loads(done.stdout)["type"] == "start"
    assert done.stderr == ""


def test_figures_agree_with_the_document(tmp_path: Path, damaged: Path) -> None:
    nowhere = tmp_path / "nowhere.db"
    done = doctor(tmp_path, "scan", damaged, nowhere, "--format", "prometheus")
    whole = as_json(tmp_path, damaged, nowhere)
    found: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families(done.stdout):
        if family.name == "hermes_doctor_findings":
            for sample in family.samples:
                labels = sample.labels
                found[labels["store"], labels["check"], labels["severity"]] = sample.value
    told = Counter(
        (database["path"], finding["check"], finding["severity"])
        for database in whole["databases"]
        for finding in database["findings"]
    )
    assert {key: count for key, count in found.items() if count} == told
    ran = {(d["path"], c["check"]) for d in whole["databases"] for c in d["checks"] if c["status"] == "ran"}
    assert {key[:2] for key in found} == ran
    assert "hermes_doctor_scan_exit_code 4\n" in done.stdout
    assert (
        f'hermes_doctor_store_condition{{store="{nowhere}",profile="default",condition="missing"}} 1\n' in done.stdout
    )


def test_a_file_for_the_textfile_collector(tmp_path: Path, damaged: Path) -> None:
    folder = tmp_path / "textfile"
    folder.mkdir()
    file = folder / "doctor.prom"
    file.write_text("of yesterday")
    file.chmod(0o600)
    done = doctor(tmp_path, "scan", damaged, "--format", "prometheus", "--output", file)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    # Another user's node_exporter has to read it; a report of any other format stays its owner's.
    assert [(path.name, path.stat().st_mode & 0o777) for path in folder.iterdir()] == [("doctor.prom", 0o644)]
    promtool = debian_program("promtool", "prometheus")
    checked = subprocess.run([promtool, "check", "metrics"], input=file.read_text(), capture_output=True, text=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    doctor(tmp_path, "scan", damaged, "--format", "ndjson", "--output", file)
    assert file.stat().st_mode & 0o777 == 0o600


def test_figures_of_a_scan_that_failed_leave_the_old_ones(tmp_path: Path, damaged: Path) -> None:
    file = tmp_path / "doctor.prom"
    file.write_text("of yesterday")
    done = doctor(tmp_path, "scan", damaged, "--format", "prometheus", "--check", "xyzzy", "--output", file)
    assert done.returncode == 2
    assert file.read_text() == "of yesterday"


@contextmanager
def collected(folder: Path) -> Iterator[str]:
    """What the real node_exporter, run by another user, says of the files in a folder."""
    exporter = debian_program("prometheus-node-exporter")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [exporter, "--collector.disable-defaults", "--collector.textfile", "--web.listen-address", address]
    process = subprocess.Popen(
        [*command, f"--collector.textfile.directory={folder}"],
        stderr=subprocess.PIPE,
        text=True,
        user=65534 if os.geteuid() == 0 else None,
    )
    try:
        assert process.stderr is not None
        # It says so when it listens.
        for said in process.stderr:
            if "Listening" in said or "TLS is disabled" in said:
                break
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            yield answer.read().decode("utf-8")
    finally:
        process.kill()
        process.communicate()


def test_the_real_collector_reads_the_file(tmp_path: Path, damaged: Path) -> None:
    # The collector's user may not look into the test's own folder.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        doctor(tmp_path, "scan", damaged, "--format", "prometheus", "--output", folder / "doctor.prom")
        with collected(folder) as text:
            assert "node_textfile_scrape_error 0\n" in text
            samples = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
            ours = text_string_to_metric_families((folder / "doctor.prom").read_text("utf-8"))
            assert {sample.name for family in ours for sample in family.samples} < samples


def readme_shows() -> Iterator[tuple[str, list[str]]]:
    """The last command and the lines of each example of the README that shows a report."""
    text = (ROOT / "README.md").read_text("utf-8").partition("\n## Reports for programs\n")[2]
    for block in re.findall(r"```console\n(.*?)```", text.partition("\n## Beside")[0], re.DOTALL):
        command = re.findall(r"^\$ (doctor .*)", block, re.MULTILINE)[0]
        yield command, [line for line in block.splitlines() if line[:1] not in ("$", "…")]


def alike(text: str, home: Path) -> str:
    """The text without what differs from run to run."""
    text = text.replace(str(home), "/home/me")
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d|(?<=time=\")[\d.]+|(?<=_seconds )[\d.]+", "…", text)


@pytest.mark.parametrize("name", ["ndjson", "markdown", "junit", "prometheus"])
def test_the_readme_shows_what_is_printed(tmp_path: Path, name: str) -> None:
    make_demo_home(tmp_path / ".hermes")
    [(command, shown)] = [example for example in readme_shows() if f"--format {name}" in example[0]]
    words = command.partition(" |")[0].partition(" --output")[0].split()
    done = doctor(tmp_path, *words[1:])
    printed = alike(done.stdout, tmp_path).splitlines()
    if name == "ndjson":
        found = [line for line in map(json.loads, done.stdout.splitlines()) if line["type"] == "finding"]
        printed = [f"{line['check']}\t{line['key']}" for line in found[:2]]
    assert shown
    assert [line for line in alike("\n".join(shown), tmp_path).splitlines() if line not in printed] == []
