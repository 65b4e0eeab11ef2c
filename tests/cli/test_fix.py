"""`doctor fix` through the installed command: the plan, the work, the way back, and all that may stand in the way."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner, Result

from hermes_doctor.cli.app import app
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine import apply
from hermes_doctor.engine.plan import StoreFix
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.host.locks import doctor_lock
from tests.cli.changing import contents, journal_of, many_zombies, superseded_chat, value
from tests.cli.support import doctor, listing, start, valid

ZOMBIES = "SELECT count(*) FROM sessions WHERE ended_at IS NULL AND id LIKE 'zombie_%'"


def run(*arguments: str | Path, env: dict[str, str | None] | None = None) -> Result:
    """One command in this process, its index of runs in nobody's folder."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)


@pytest.fixture(autouse=True)
def _own_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def planned(*arguments: str | Path) -> Any:
    [database] = valid(run("fix", *arguments, "--json").stdout, "fix")["databases"]
    return database


def states(database: Any) -> dict[str, int]:
    counted: dict[str, int] = {}
    for change in database["changes"]:
        counted[change["state"]] = counted.get(change["state"], 0) + 1
    return counted


def test_the_whole_way_there_and_back(tmp_path: Path, damaged: Path) -> None:
    home = damaged.parent
    before, files = contents(damaged), listing(home)
    assert doctor(tmp_path, "scan", home).returncode == 1

    plan = doctor(tmp_path, "fix", home)
    assert (plan.returncode, plan.stderr) == (1, "")
    assert "17 rows would be mended. Nothing was changed." in plan.stdout
    assert "Next: doctor fix" in plan.stdout
    assert listing(home) == files
    assert not list((tmp_path / ".local").rglob("runs.db"))

    applied = doctor(tmp_path, "fix", home, "--apply")
    assert (applied.returncode, applied.stderr) == (0, "")
    assert "17 rows mended" in applied.stdout
    mended = contents(damaged)
    assert mended != before
    assert doctor(tmp_path, "scan", home).returncode == 0

    again = doctor(tmp_path, "fix", home, "--apply")
    assert again.returncode == 0
    assert re.fullmatch(r"~/damaged/state.db   nothing to do · .*\n", again.stdout)
    assert contents(damaged) == mended

    listed = valid(doctor(tmp_path, "runs", "--json").stdout, "runs")["runs"]
    assert [(each["applied"], each["state"], each["path"]) for each in listed] == [(17, "done", str(damaged))]
    name = listed[0]["run"]

    files = listing(home)
    back = doctor(tmp_path, "undo", name)
    assert back.returncode == 1
    assert "17 rows would be put back. Nothing was changed." in back.stdout
    assert listing(home) == files
    done = doctor(tmp_path, "undo", name, "--apply")
    assert (done.returncode, done.stderr) == (0, "")
    assert "17 rows put back" in done.stdout
    assert contents(damaged) == before
    assert doctor(tmp_path, "scan", home).returncode == 1
    assert doctor(tmp_path, "undo", name, "--apply").returncode == 0
    assert contents(damaged) == before


def test_the_commands_that_are_named_next_work(tmp_path: Path) -> None:
    make_demo_home(tmp_path / "a home's $name" / "x y")

    def type_what_is_named(printed: str, more: str = "") -> str:
        line = next(line for line in printed.splitlines() if line.startswith("Next: "))
        command = line.removeprefix("Next: doctor ").split(" (")[0]
        done = doctor(tmp_path, f"{sys.executable} -m hermes_doctor {command}{more}", command=["sh", "-c"])
        assert done.stderr == ""
        return done.stdout

    plan = doctor(tmp_path, "fix", tmp_path / "a home's $name" / "x y").stdout
    mended = type_what_is_named(plan)
    assert "17 rows mended" in mended
    back = type_what_is_named(mended)
    assert "17 rows would be put back" in back
    assert "17 rows put back" in type_what_is_named(back)


def test_plan_and_work_as_json(damaged: Path) -> None:
    result = run("fix", damaged, "--json")
    document = valid(result.stdout, "fix")
    assert (result.exit_code, document["exit_code"], document["outcome"]) == (1, 1, "planned")
    assert (document["applied"], document["not_reached"]) == (False, [])
    [database] = document["databases"]
    assert states(database) == {"planned": 17}
    assert (database["run"], database["backup"], database["journal"]) == (None, None, None)
    assert (database["found"], database["fixed"], database["left"], database["mendable"]) == (17, 0, 17, 17)
    assert (database["transactions"], database["hold_seconds"]) == (0, None)
    assert database["backup_planned"] == {"made": True, "bytes": damaged.stat().st_size, "why_not": None}
    assert {"check": "open-zombies", "table": "sessions", "key": "killed-in-march"}.items() <= next(
        change for change in database["changes"] if change["key"] == "killed-in-march"
    ).items()

    result = run("fix", damaged, "--json", "--apply")
    document = valid(result.stdout, "fix")
    assert (result.exit_code, document["exit_code"], document["outcome"]) == (0, 0, "fixed")
    [database] = document["databases"]
    assert states(database) == {"applied": 17}
    assert (database["found"], database["fixed"], database["left"], database["mendable"]) == (17, 17, 0, 0)
    assert database["transactions"] > 0
    assert 0 < database["hold_seconds"]["median"] <= database["hold_seconds"]["longest"]
    assert Path(database["backup"]).is_file()
    with journal_of(damaged) as journal:
        assert [database["run"]] == [name for (name,) in journal.execute("SELECT run FROM runs")]
    assert database["journal"] == str(damaged.parent / "doctor" / "doctor.db")

    result = run("fix", damaged, "--json", "--apply")
    document = valid(result.stdout, "fix")
    assert (result.exit_code, document["outcome"]) == (0, "nothing-to-do")
    assert document["databases"][0]["run"] is None


def test_what_the_doctor_makes_is_private(tmp_path: Path, damaged: Path) -> None:
    assert run("fix", damaged, "--apply").exit_code == 0
    ours = damaged.parent / "doctor"
    folders = [ours, ours / "backups", tmp_path / "state" / "hermes-state-doctor"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * 3
    files = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    assert {path.name for path in files} >= {"doctor.db", "runs.db"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_backup_always_and_never(damaged: Path) -> None:
    plan = run("fix", damaged, "--backup", "never")
    assert "There will be no backup (--backup never)" in plan.output
    assert "--backup never --apply (mends it)" in plan.output
    run("fix", damaged, "--backup", "never", "--apply", "--check", "orphan-stubs")
    assert not (damaged.parent / "doctor" / "backups").exists()
    run("fix", damaged, "--backup", "always", "--apply")
    [backup] = (damaged.parent / "doctor" / "backups").iterdir()
    # It is of before the second run, and of after the first.
    assert value(backup, "SELECT count(*) FROM sessions WHERE id LIKE 'empty-%'") == 0
    assert value(backup, "SELECT ended_at FROM sessions WHERE id = 'killed-in-march'") is None


def test_check_and_skip_narrow(damaged: Path) -> None:
    assert {change["check"] for change in planned(damaged, "--check", "double-encoded")["changes"]} == {
        "double-encoded"
    }
    skipped = planned(damaged, "--skip", "double-encoded")
    assert {change["check"] for change in skipped["changes"]} == {"lineage-gaps", "open-zombies", "orphan-stubs"}
    result = run("fix", damaged, "--apply", "--check", "orphan-stubs")
    assert result.exit_code == 0
    assert "3 rows mended" in result.output
    assert planned(damaged)["found"] == 14


def test_idle_raises_a_threshold(damaged: Path) -> None:
    assert planned(damaged, "--check", "open-zombies")["found"] == 8
    assert 0 < planned(damaged, "--check", "open-zombies", "--idle", "60h")["found"] < 8
    done = run("fix", damaged, "--check", "open-zombies", "--idle", "60h", "--apply")
    assert done.exit_code == 0
    assert value(damaged, "SELECT ended_at FROM sessions WHERE id = 'cron_backup_01'") is None
    assert value(damaged, "SELECT ended_at FROM sessions WHERE id = 'cron_backup_07'") is not None


@pytest.mark.parametrize("name", ["APPLY", "UNSAFE", "YES"])
def test_the_environment_never_applies(damaged: Path, name: str) -> None:
    superseded_chat(damaged)
    files = listing(damaged.parent)
    result = run("fix", damaged, "--json", env={f"HERMES_DOCTOR_FIX_{name}": "1"})
    document = valid(result.stdout, "fix")
    assert (document["applied"], document["outcome"]) == (False, "planned")
    assert states(document["databases"][0])["refused"] == 1
    assert listing(damaged.parent) == files
    # The environment does set what is harmless.
    assert valid(run("fix", damaged, env={"HERMES_DOCTOR_FIX_JSON": "1"}).stdout, "fix")["exit_code"] == 1


def test_yes_of_the_environment_answers_nothing(damaged: Path) -> None:
    assert run("fix", damaged, "--apply", "--unsafe", env={"HERMES_DOCTOR_FIX_YES": "1"}).exit_code == 2


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--live=yes", "--live"),
        ("--fail-on=never", "--fail-on"),
        ("--backup=sometimes", "sometimes"),
        ("--check=open-zombie", "Did you mean open-zombies?"),
        ("--idle=90", "as in 90m"),
        ("--apply=yes", "--apply"),
        ("--format=xml", "xml"),
    ],
)
def test_what_fix_does_not_take(damaged: Path, option: str, said: str) -> None:
    result = run("fix", damaged, option)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


# --unsafe


def test_what_is_unsafe_waits_for_its_option(damaged: Path) -> None:
    superseded_chat(damaged)
    [left] = [change for change in planned(damaged)["changes"] if change["state"] == "refused"]
    assert (left["key"], left["reason"]) == ("old-chat", "is mended only with --unsafe")
    table = run("fix", damaged).output
    assert re.search(r"^open-zombies +9 +8 +0 +1$", table, re.MULTILINE)
    assert "--unsafe (shows the unsafe ones too)" in table
    # Only what was chosen counts: this one was not.
    assert run("fix", damaged, "--apply").exit_code == 0
    assert value(damaged, "SELECT ended_at FROM sessions WHERE id = 'old-chat'") is None
    rest = run("fix", damaged)
    assert rest.exit_code == 0
    assert "Nothing to do: what is named above is not mended by this command." in rest.output
    assert "--unsafe (shows the unsafe ones too)" in rest.output

    assert states(planned(damaged, "--unsafe")) == {"planned": 1}
    assert run("fix", damaged, "--unsafe", "--apply", "--yes").exit_code == 0
    assert value(damaged, "SELECT ended_at FROM sessions WHERE id = 'old-chat'") is not None
    assert value(damaged, "SELECT ended_at FROM sessions WHERE id = 'new-chat'") is None


def test_unsafe_without_a_terminal_needs_yes(tmp_path: Path, damaged: Path) -> None:
    superseded_chat(damaged)
    files = listing(damaged.parent)
    done = doctor(tmp_path, "fix", damaged, "--apply", "--unsafe", stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Add --yes" in done.stderr
    assert listing(damaged.parent) == files


@pytest.mark.parametrize(("answer", "code", "ended"), [("y\n", 0, True), ("n\n", 1, False), ("\n", 1, False)])
def test_unsafe_asks_on_a_terminal(tmp_path: Path, damaged: Path, answer: str, code: int, ended: bool) -> None:
    superseded_chat(damaged)
    leading, following = os.openpty()
    try:
        process = start(tmp_path, "fix", damaged, "--apply", "--unsafe", stdin=following, stderr=following)
        asked = b""
        os.set_blocking(leading, False)
        while b"Go on?" not in asked:
            assert process.poll() is None, asked
            with contextlib.suppress(BlockingIOError):
                asked += os.read(leading, 1000)
            time.sleep(0.02)
        assert b"1 that are not safe in every case: open-zombies 1" in asked.replace(b"\r\n", b" ")
        assert process.poll() is None
        assert not (damaged.parent / "doctor").exists()
        os.write(leading, answer.encode())
        process.communicate(timeout=60)
    finally:
        os.close(leading)
        os.close(following)
    assert process.returncode == code
    assert (value(damaged, "SELECT ended_at FROM sessions WHERE id = 'old-chat'") is not None) is ended
    assert (damaged.parent / "doctor").exists() is ended


# What prune would take


def _aged_home(damaged: Path, config: str, schema: int) -> None:
    (damaged.parent / "config.yaml").write_text(config)
    connection = apsw.Connection(str(damaged))
    connection.execute("UPDATE schema_version SET version = ?", (schema,))
    connection.close()


def test_what_prune_would_take_is_said_before(damaged: Path) -> None:
    _aged_home(damaged, "sessions:\n  auto_prune: true\n  retention_days: 6\n", 29)
    # Ending these may cost them, so it is unsafe; they are nobody's loss before that.
    assert planned(damaged)["prune_forecast"] == {
        "sessions": 0,
        "messages": 0,
        "retention_days": 6.0,
        "pruning": "on",
    }
    forecast = planned(damaged, "--unsafe")["prune_forecast"]
    # cron_backup_07 with 2 messages, and killed-in-march with 4.
    assert (forecast["sessions"], forecast["messages"], forecast["pruning"]) == (2, 6, "on")
    table = " ".join(run("fix", damaged, "--unsafe").output.split())
    assert "hermes's next prune would then delete 2 sessions with 6 messages: older than 6 days" in table


def test_where_prune_is_off_that_is_said(damaged: Path) -> None:
    _aged_home(damaged, "sessions:\n  auto_prune: false\n  retention_days: 6\n", 29)
    assert planned(damaged)["prune_forecast"]["pruning"] == "off"
    table = " ".join(run("fix", damaged).output.split())
    assert "does not prune by itself here" in table
    assert "2 sessions with 6 messages" in table


def test_where_the_end_is_the_clock_nothing_is_lost(damaged: Path) -> None:
    _aged_home(damaged, "sessions:\n  auto_prune: true\n  retention_days: 6\n", 31)
    assert planned(damaged)["prune_forecast"]["sessions"] == 0
    assert "prune would" not in run("fix", damaged).output


# What stands in the way


_HOLD = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("SELECT count(*) FROM sessions").fetchall()
print("open", flush=True)
sys.stdin.read()
"""


def test_a_held_store_is_refused_and_the_plan_says_so(damaged: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(damaged)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        files = listing(damaged.parent)
        plan = run("fix", damaged, "--json")
        [database] = valid(plan.stdout, "fix")["databases"]
        assert (plan.exit_code, database["outcome"]) == (1, "planned")
        assert str(holder.pid) in database["would_be_refused"]
        assert "It would be refused now" in run("fix", damaged).output

        applied = run("fix", damaged, "--apply", "--json")
        [database] = valid(applied.stdout, "fix")["databases"]
        assert (applied.exit_code, database["outcome"]) == (5, "refused")
        assert str(holder.pid) in database["reason"]
        assert "Refused: " in run("fix", damaged, "--apply").output
        assert listing(damaged.parent) == files
    finally:
        holder.communicate()
    assert run("fix", damaged, "--apply").exit_code == 0


def test_another_doctor_is_let_work(damaged: Path) -> None:
    ours = damaged.parent / "doctor"
    ours.mkdir(mode=0o700)
    before = contents(damaged)
    with doctor_lock(ours):
        result = run("fix", damaged, "--apply", "--json")
    document = valid(result.stdout, "fix")
    assert (result.exit_code, document["outcome"]) == (6, "refused")
    assert f"process {os.getpid()}" in document["databases"][0]["reason"]
    assert contents(damaged) == before


def test_another_doctor_is_seen_by_whichever_link_the_store_is_named(damaged: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    alias = tmp_path / "elsewhere" / "alias.db"
    alias.symlink_to(damaged)
    ours = damaged.parent / "doctor"
    ours.mkdir(mode=0o700)
    with doctor_lock(ours):
        result = run("fix", alias, "--json")
    (database,) = valid(result.stdout, "fix")["databases"]
    assert f"process {os.getpid()} (doctor) is at work on this store" in str(database["would_be_refused"])


def test_a_newer_schema_is_planned_and_refused(damaged: Path) -> None:
    connection = apsw.Connection(str(damaged))
    connection.execute("UPDATE schema_version SET version = 99")
    connection.close()
    plan = run("fix", damaged, "--json")
    [database] = valid(plan.stdout, "fix")["databases"]
    assert plan.exit_code == 1
    assert "upgrade the doctor" in database["would_be_refused"]
    assert run("fix", damaged, "--apply").exit_code == 5


def test_several_stores_the_most_severe_counts(tmp_path: Path, damaged: Path) -> None:
    other = make_demo_home(tmp_path / "other")
    missing = tmp_path / "missing" / "state.db"
    result = run("fix", damaged, missing, other, "--apply", "--json")
    document = valid(result.stdout, "fix")
    assert (result.exit_code, document["outcome"]) == (4, "failed")
    first, second, third = document["databases"]
    assert (first["outcome"], second["outcome"], third["outcome"]) == ("fixed", "failed", "fixed")
    assert (second["condition"], second["exit_code"]) == ("missing", 4)
    assert second["reason"]
    assert first["run"] != third["run"]
    assert "Missing: " in run("fix", missing).output
    listed = valid(run("runs", "--json").stdout, "runs")["runs"]
    assert {each["path"] for each in listed} == {str(damaged), str(other)}


def test_a_defect_costs_one_store(tmp_path: Path, damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mends = apply.apply_store

    def defective(ref: StoreRef, *words: Any, **more: Any) -> StoreFix:
        if ref.path == damaged:
            raise LookupError("the words of topsecret")
        return mends(ref, *words, **more)

    monkeypatch.setattr(apply, "apply_store", defective)
    other = make_demo_home(tmp_path / "other")
    result = run("fix", damaged, other, "--apply", "--json")
    document = valid(result.stdout, "fix")
    assert (result.exit_code, document["outcome"]) == (3, "failed")
    first, second = document["databases"]
    assert "LookupError at tests/cli/test_fix.py" in first["reason"]
    assert "topsecret" not in result.output
    assert second["outcome"] == "fixed"


def test_nothing_private_is_printed(damaged: Path) -> None:
    connection = apsw.Connection(str(damaged))
    connection.execute("UPDATE messages SET content = 'topsecret'")
    connection.close()
    for words in (["--limit", "99"], ["--json"], ["--apply", "--limit", "99"]):
        assert "topsecret" not in run("fix", damaged, *words).output


def test_strange_ids_are_shown_safely(damaged: Path) -> None:
    connection = apsw.Connection(str(damaged))
    connection.execute("UPDATE sessions SET id = 'empty' || char(27) || '[31m' WHERE id = 'empty-1'")
    connection.close()
    for words in ([], ["--apply"]):
        shown = run("fix", damaged, *words).output
        assert "\x1b" not in shown
        assert "empty\\x1b[31m" in shown


def test_output_to_a_file(tmp_path: Path, damaged: Path) -> None:
    report = tmp_path / "plan.json"
    result = run("fix", damaged, "--json", "--output", report)
    assert (result.exit_code, result.output) == (1, "")
    assert valid(report.read_text(), "fix")["outcome"] == "planned"
    assert run("fix", damaged, "--apply", "--output", damaged).exit_code == 2


def test_quiet_says_little(damaged: Path) -> None:
    run("fix", damaged, "--apply", "--quiet")
    assert run("fix", damaged, "--quiet").output == ""


# Being stopped


def _wait_for_first_change(store: Path, process: Any) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "it was done before it could be stopped"
        # The journal is not there yet, or just being made.
        with contextlib.suppress(sqlite3.OperationalError), journal_of(store) as journal:
            if journal.execute("SELECT count(*) FROM changesets WHERE state = 'applied'").fetchone()[0]:
                return
        time.sleep(0.01)
    raise AssertionError("nothing was ever changed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_stop_comes_after_the_present_transaction(tmp_path: Path, damaged: Path, number: signal.Signals) -> None:
    many_zombies(damaged, 2000)
    before = contents(damaged)
    process = start(tmp_path, "fix", damaged, "--apply", "--json", "--check", "open-zombies")
    _wait_for_first_change(damaged, process)
    process.send_signal(number)
    if number is signal.SIGINT:
        # An impatient second one changes nothing.
        time.sleep(0.02)
        process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    document = valid(stdout, "fix")
    assert (process.returncode, document["outcome"], stderr) == (7, "stopped", "")
    [database] = document["databases"]
    fixed, left = database["fixed"], value(damaged, ZOMBIES)
    assert isinstance(left, int)
    assert 0 < fixed < 2008
    assert left > 0
    assert database["left"] == database["mendable"] == 2008 - fixed
    assert states(database) == {"applied": fixed, "planned": 2008 - fixed}
    assert number.name in database["reason"]
    with journal_of(damaged) as journal:
        assert journal.execute("SELECT DISTINCT state FROM changesets").fetchall() == [("applied",)]

    carried_on = run("fix", damaged, "--apply", "--json", "--check", "open-zombies")
    assert carried_on.exit_code == 0
    assert valid(carried_on.stdout, "fix")["databases"][0]["fixed"] == 2008 - fixed
    assert value(damaged, ZOMBIES) == 0
    for past in valid(run("runs", damaged, "--json").stdout, "runs")["runs"]:
        assert run("undo", past["run"], damaged, "--apply").exit_code == 0
    assert contents(damaged) == before


def test_a_stop_leaves_the_other_stores_alone(tmp_path: Path, damaged: Path) -> None:
    many_zombies(damaged, 2000)
    other = make_demo_home(tmp_path / "other")
    files = listing(other.parent)
    process = start(tmp_path, "fix", damaged, other, "--apply", "--json")
    _wait_for_first_change(damaged, process)
    process.send_signal(signal.SIGTERM)
    document = valid(process.communicate(timeout=60)[0], "fix")
    assert process.returncode == 7
    assert document["not_reached"] == [str(other)]
    assert listing(other.parent) == files


def _open_files(pid: int) -> Iterator[Path]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            yield entry.readlink()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_stop_before_the_first_write_leaves_no_run(tmp_path: Path, damaged: Path) -> None:
    # Reading so many takes a while.
    many_zombies(damaged, 30_000)
    before = contents(damaged)
    process = start(tmp_path, "fix", damaged, "--apply", "--json")
    deadline = time.monotonic() + 60
    while damaged not in _open_files(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    document = valid(process.communicate(timeout=120)[0], "fix")
    assert (process.returncode, document["outcome"]) == (7, "stopped")
    [database] = document["databases"]
    assert (database["run"], database["fixed"], database["backup"]) == (None, 0, None)
    assert contents(damaged) == before
    assert valid(run("runs", damaged, "--json").stdout, "runs")["runs"] == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_plan_is_broken_off_at_once(tmp_path: Path, damaged: Path) -> None:
    writer = apsw.Connection(str(damaged))
    writer.execute("BEGIN EXCLUSIVE")
    process = start(tmp_path, "fix", damaged, "--json")
    try:
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        writer.close()
    document = valid(stdout, "fix")
    assert (process.returncode, document["outcome"], document["databases"]) == (7, "stopped", [])
    assert document["not_reached"] == [str(damaged)]
    assert len(stderr.splitlines()) == 1


def test_the_host_is_meant_without_a_target(tmp_path: Path, damaged: Path) -> None:
    shutil.copytree(damaged.parent, tmp_path / ".hermes")
    done = doctor(tmp_path, "fix", "--apply")
    assert done.returncode == 0
    assert done.stdout.startswith("~/.hermes/state.db")
    assert "doctor undo" in done.stdout


@pytest.mark.parametrize("more", [[], ["--apply"]], ids=["plan", "apply"])
def test_a_journal_that_cannot_be_read(damaged: Path, more: list[str]) -> None:
    """It is the doctor's own file, but no defect of the program: it says which one, and what moving it away costs."""
    journal = damaged.parent / "doctor" / "doctor.db"
    journal.parent.mkdir(mode=0o700)
    journal.write_bytes(b"these are notes" * 1000)
    before = contents(damaged)
    [database] = valid((result := run("fix", damaged, *more, "--json")).stdout, "fix")["databases"]
    assert (result.exit_code, database["outcome"]) == (3, "failed")
    assert database["reason"] == (
        f"the doctor's own journal {journal} cannot be read (file is not a database): nothing was changed; move it "
        "aside, although what it holds can then not be undone, and type the same command again"
    )
    assert contents(damaged) == before
    journal.rename(journal.with_name("aside"))
    assert run("fix", damaged, "--apply").exit_code == 0
