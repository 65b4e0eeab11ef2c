"""Checks that other packages bring: the example as its user installs it, and packages that do everything wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from checks import CHECKS
from tests.cli.support import ROOT, doctor
from tests.oracle.home import Home
from tests.oracle.steps import call, sql
from tests.whole.identical import difference, image_of

NAME = "example/old-tool-runs"
DAY = 86400.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages, with the example installed by pip."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*pip, str(folder), str(ROOT / "examples" / "hermes-doctor-example")], check=True, timeout=120)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two runs of tools, both over for 100 days, of which one is pinned; and one that ended yesterday."""
    home, now = Home(tmp_path / "home"), time.time()
    steps = [call("create_session", name, "tool") for name in ("old", "pinned", "recent")]
    steps += [call("append_message", name, "user", "hello") for name in ("old", "pinned", "recent")]
    ended = "UPDATE sessions SET started_at = ?1, ended_at = ?1, last_activity_at = ?1, end_reason = 'done'"
    steps += [
        sql("UPDATE messages SET timestamp = ?", now - 100 * DAY),
        sql(ended, now - 100 * DAY),
        sql(f"{ended} WHERE id = 'recent'", now - DAY),
        sql("UPDATE sessions SET pinned = 1 WHERE id = 'pinned'"),
    ]
    home.run("0.22.2", steps)
    return home.store


def run(folder: Path, site: Path, *arguments: str | Path) -> tuple[int, str, str]:
    done = doctor(folder, *arguments, extra={"PYTHONPATH": f"{ROOT}:{site}"})
    return done.returncode, done.stdout, done.stderr


def test_the_example_finds_mends_and_takes_back_as_our_own_do(tmp_path: Path, site: Path, store: Path) -> None:
    before = image_of(store)
    code, listed, _said = run(tmp_path, site, "checks", "--json")
    assert (code, {"check": NAME, "fix": "unsafe"}.items() <= json.loads(listed)["checks"][-1].items()) == (0, True)
    code, page, _said = run(tmp_path, site, "explain", NAME)
    assert (code, "Runs of tools that ended long ago" in page) == (0, True)

    code, scanned, said = run(tmp_path, site, "scan", "--check", NAME, "--fail-on", "info", "--json", store)
    findings = json.loads(scanned)["databases"][0]["findings"]
    assert (code, said) == (1, "")
    assert [(each["key"], each["fix"], each["summary"]) for each in findings] == [
        ("old", "unsafe", "ended 100 days ago and not archived")
    ]

    code, applied, _said = run(tmp_path, site, "fix", "--check", NAME, "--apply", "--json", store)
    assert (code, json.loads(applied)["outcome"]) == (0, "nothing-to-do")
    assert difference(before, image_of(store)) == []
    unsafely = ("fix", "--check", NAME, "--apply", "--unsafe", "--yes", "--json", store)
    code, applied, _said = run(tmp_path, site, *unsafely)
    [done] = json.loads(applied)["databases"]
    assert (code, [(each["key"], each["state"]) for each in done["changes"]]) == (0, [("old", "applied")])
    archived = [(row["id"], row["archived"]) for row in image_of(store).table("sessions")]
    assert sorted(archived) == [(b"old", 1), (b"pinned", 0), (b"recent", 0)]
    code, again, _said = run(tmp_path, site, *unsafely)
    assert (code, json.loads(again)["outcome"]) == (0, "nothing-to-do")

    # Taken back without the package, too: the journal needs no check.
    assert doctor(tmp_path, "undo", done["run"], "--apply", store).returncode == 0
    assert difference(before, image_of(store)) == []


def test_without_the_package_its_check_is_unknown(tmp_path: Path, store: Path) -> None:
    done = doctor(tmp_path, "scan", "--check", NAME, store)
    assert (done.returncode, f"there is no check '{NAME}'" in done.stderr) == (2, True)


#: One module that brings what no package should.
WRONG = """
from dataclasses import replace
from hermes_doctor.plugin import *

def found(view, keys):
    yield Finding("somebody-else", Severity.ERROR, "messages", "s1", "s1", "found", fix=Safety.SAFE, action="do it")

def writes(view, keys):
    view.reader.connection.execute("DELETE FROM messages")
    yield from ()

def check(name, rule, fix=Safety.SAFE):
    return Check(name, Severity.ERROR, "wrong", "wrong", fix, "", rule)

def judge(row, view):
    raise ZeroDivisionError("a mistake")

def mend(mending, finding):
    mending.set("sessions", finding.key, to={"archived": 1}, expects={})

SAFE = check("wrong/safe", RelationRule("sessions", found)), Fix("wrong/safe", Phase.TAKE, False, "", mend)
NO_FIX = check("wrong/no-fix", RelationRule("sessions", found))
WRITES = check("wrong/writes", RelationRule("sessions", writes))
NO_SQL = check("wrong/no-sql", RowRule("messages", ("id",), lambda shape: "no sql at all", judge))
MISTAKE = check("wrong/mistake", RowRule("messages", ("id",), lambda shape: "1", judge))
NO_CHECK = "a text"
OTHER_NAME = SAFE
STRANGER = replace(NO_FIX, name="stranger/no-fix")
OURS = replace(NO_FIX, name="open-zombies")
"""

ENTRIES = {
    "wrong/safe": "wrong:SAFE",
    "wrong/no-fix": "wrong:NO_FIX",
    "wrong/writes": "wrong:WRITES",
    "wrong/no-sql": "wrong:NO_SQL",
    "wrong/mistake": "wrong:MISTAKE",
    "wrong/no-check": "wrong:NO_CHECK",
    "wrong/other-name": "wrong:OTHER_NAME",
    "wrong/no-module": "not_there:CHECK",
    "wrong/Shouting": "wrong:SAFE",
    "stranger/no-fix": "wrong:STRANGER",
    "open-zombies": "wrong:OURS",
}


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A folder with that package as an installer leaves it."""
    folder = tmp_path / "wrong"
    about = folder / "hermes_doctor_wrong-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "wrong.py").write_text(WRONG)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hermes-doctor-wrong\nVersion: 1.0\n")
    entries = "".join(f"{name} = {target}\n" for name, target in ENTRIES.items())
    (about / "entry_points.txt").write_text(f"[hermes_doctor.checks]\n{entries}")
    return folder


def by_check(document: str) -> dict[str, Any]:
    return {each["check"]: each for each in json.loads(document)["databases"][0]["checks"]}


def test_what_others_get_wrong_costs_none_but_themselves(tmp_path: Path, wrong: Path, store: Path) -> None:
    before = image_of(store)
    code, document, said = run(tmp_path, wrong, "scan", "--json", store)
    results = by_check(document)
    assert [name for name in results if "/" not in name] == [check.name for check in CHECKS]
    assert {results[check.name]["status"] for check in CHECKS} == {"ran"}
    assert code == 3
    reasons = {name: result["reason"] for name, result in results.items() if result["status"] == "failed"}
    assert list(reasons) == ["wrong/mistake", "wrong/no-sql", "wrong/writes"]
    mistake = "a mistake of hermes-doctor-wrong: "
    assert {name: reason.removeprefix(mistake).split(" at ")[0] for name, reason in reasons.items()} == {
        "wrong/mistake": "ZeroDivisionError",
        "wrong/no-sql": "SQLError",
        "wrong/writes": "ReadOnlyError",
    }
    line = WRONG.splitlines().index('    raise ZeroDivisionError("a mistake")') + 1
    assert reasons["wrong/mistake"] == f"{mistake}ZeroDivisionError at wrong.py:{line}"
    found = {name: (results[name]["unsafe"], results[name]["report"]) for name in ("wrong/safe", "wrong/no-fix")}
    assert found == {"wrong/safe": (1, 0), "wrong/no-fix": (0, 1)}
    assert difference(before, image_of(store)) == []
    left_out = [line.split(" of hermes-doctor-wrong is left out: ") for line in said.splitlines()]
    assert {name.removeprefix("doctor: the check "): reason.split(". Next")[0] for name, reason in left_out} == {
        "open-zombies": "its name is taken",
        "stranger/no-fix": "its name has to be wrong/ and then words in lower case, with hyphens",
        "wrong/Shouting": "its name has to be wrong/ and then words in lower case, with hyphens",
        "wrong/no-check": "it leads to no Check, nor to a pair of a Check and its Fix",
        "wrong/no-module": "ModuleNotFoundError: No module named 'not_there'",
        "wrong/other-name": "its Check, its Fix and its entry point have different names",
    }


def test_a_fix_of_others_is_never_safe_and_its_check_writes_nothing_in_its_transaction(
    tmp_path: Path, wrong: Path, store: Path
) -> None:
    (wrong / "wrong.py").write_text(
        WRONG
        + textwrap.dedent("""
        def sneaks(view, keys):
            if keys is not None:
                view.reader.connection.execute("DELETE FROM messages")
            yield Finding("wrong/safe", Severity.ERROR, "sessions", "old", "old", "found", fix=Safety.SAFE)

        SAFE = check("wrong/safe", RelationRule("sessions", sneaks)), SAFE[1]
        """)
    )
    rows = len(image_of(store).table("messages"))
    chosen = ("fix", "--check", "wrong/safe", "--apply", "--json")
    code, document, _said = run(tmp_path, wrong, *chosen, store)
    assert (code, json.loads(document)["outcome"]) == (0, "nothing-to-do")
    code, document, _said = run(tmp_path, wrong, *chosen, "--unsafe", "--yes", store)
    assert code == 3
    assert len(image_of(store).table("messages")) == rows
    connection = apsw.Connection(str(store))
    assert connection.execute("SELECT sum(archived) FROM sessions").get == 0
    connection.close()
