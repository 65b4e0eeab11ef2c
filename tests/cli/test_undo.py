"""`doctor undo` through the command: naming a run, the plan, the work, what changed since, what stands in the way."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner, Result

from hermes_doctor.cli.app import app
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.host.locks import doctor_lock
from tests.cli.changing import contents, journal_of, many_zombies, value
from tests.cli.support import doctor, listing, start, valid


@pytest.fixture(autouse=True)
def _own_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "nobody"))


def run(*arguments: str | Path, env: dict[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)


def mend(store: Path, *more: str) -> str:
    """Mends, and returns the name of the run."""
    [database] = valid(run("fix", store, "--apply", "--json", *more).stdout, "fix")["databases"]
    assert database["outcome"] == "fixed"
    return str(database["run"])


def write(store: Path, *statements: str) -> None:
    connection = apsw.Connection(str(store))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def undone(*arguments: str | Path) -> tuple[int, Any]:
    result = run("undo", *arguments, "--json")
    [database] = valid(result.stdout, "undo")["databases"]
    return result.exit_code, database


def states(database: Any) -> dict[str, int]:
    counted: dict[str, int] = {}
    for change in database["changes"]:
        counted[change["state"]] = counted.get(change["state"], 0) + 1
    return counted


def test_plan_and_work_as_json(damaged: Path) -> None:
    before = contents(damaged)
    name = mend(damaged)
    files = listing(damaged.parent)
    code, database = undone(name)
    assert (code, states(database)) == (1, {"planned": 17})
    assert (database["run"], database["path"]) == (name, str(damaged))
    assert (database["found"], database["fixed"], database["left"], database["transactions"]) == (17, 0, 17, 0)
    assert listing(damaged.parent) == files

    code, database = undone(name, "--apply")
    assert (code, states(database)) == (0, {"restored": 17})
    assert (database["found"], database["fixed"], database["left"]) == (17, 17, 0)
    assert database["hold_seconds"]["longest"] > 0
    assert contents(damaged) == before

    code, database = undone(name, "--apply")
    assert (code, database["outcome"], database["changes"]) == (0, "nothing-to-do", [])
    assert "undone just now" in run("undo", name).output


def test_a_beginning_is_enough_where_only_one_run_has_it(damaged: Path) -> None:
    first = mend(damaged, "--check", "orphan-stubs")
    second = mend(damaged, "--check", "open-zombies")
    assert undone(second)[1]["run"] == second
    common = next(n for n in range(len(first), 0, -1) if second.startswith(first[:n]))
    longest = run("undo", first[:common])
    assert longest.exit_code == 2
    assert "is the beginning of 2 runs" in longest.stderr
    assert first in longest.stderr
    assert undone(first[: common + 1])[1]["run"] == first


def test_an_unknown_run_is_a_usage_error_that_names_the_newest(damaged: Path) -> None:
    name = mend(damaged)
    typo = name[:-1] + ("0" if name[-1] != "0" else "1")
    result = run("undo", typo)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"Did you mean {name}?" in result.stderr
    assert run("undo", "").exit_code == 2
    assert run("undo").exit_code == 2


def test_where_no_run_is_known(tmp_path: Path, damaged: Path) -> None:
    result = run("undo", "20261129-210000-7f3a", damaged)
    assert result.exit_code == 2
    assert "there is no run" in result.stderr
    assert listing(damaged.parent).keys() == {"config.yaml", "state.db"}
    assert not (tmp_path / "state").exists()


def test_a_target_is_needed_only_where_the_index_is_gone(tmp_path: Path, damaged: Path) -> None:
    name = mend(damaged)
    assert undone(name)[0] == 1
    shutil.rmtree(tmp_path / "state")
    assert run("undo", name).exit_code == 2
    assert undone(name, damaged)[0] == 1
    assert undone(name, damaged.parent)[0] == 1
    # This host's own store needs no index.
    assert run("undo", name, env={"HERMES_HOME": str(damaged.parent)}).exit_code == 1


def test_a_home_that_was_moved(tmp_path: Path, damaged: Path) -> None:
    before = contents(damaged)
    name = mend(damaged)
    moved = tmp_path / "elsewhere"
    damaged.parent.rename(moved)
    assert run("undo", name).exit_code == 2
    assert undone(name, moved, "--apply")[0] == 0
    assert contents(moved / "state.db") == before


def test_another_store_in_its_place_is_named_as_that(tmp_path: Path, damaged: Path) -> None:
    name = mend(damaged)
    other = make_demo_home(tmp_path / "other")
    write(other, "UPDATE sessions SET id = 'x-' || id, started_at = started_at - 1")
    damaged.write_bytes(other.read_bytes())
    for more, code in (([], 0), (["--apply"], 1)):
        result = run("undo", name, *more)
        shown = " ".join(result.stdout.split())
        assert result.exit_code == code
        assert "this is not the store that the run changed: move that one to this place, then try again." in shown
        assert "open-zombies: this is another store: left as it is" in shown
        assert "changed since the run" not in shown


def test_stores_in_one_folder_share_a_journal_and_keep_their_runs_apart(damaged: Path) -> None:
    other = damaged.with_name("other.db")
    shutil.copy(damaged, other)
    before = contents(other)
    name = mend(damaged)
    second = mend(other)
    mended = contents(damaged)
    assert undone(second, "--apply")[1]["path"] == str(other)
    assert contents(other) == before
    assert contents(damaged) == mended
    assert run("undo", name, other).exit_code == 2


def test_what_changed_since_stays(damaged: Path) -> None:
    name = mend(damaged)
    write(
        damaged,
        "UPDATE sessions SET end_reason = 'cli_close' WHERE id = 'killed-in-march'",
        "UPDATE sessions SET title = 'a new one' WHERE id = 'cron_backup_01'",
    )
    code, database = undone(name)
    assert (code, states(database)) == (1, {"planned": 16, "changed-since": 1})
    code, database = undone(name, "--apply")
    assert (code, database["outcome"], states(database)) == (1, "partly-fixed", {"restored": 16, "changed-since": 1})
    assert value(damaged, "SELECT end_reason FROM sessions WHERE id = 'killed-in-march'") == "cli_close"
    assert value(damaged, "SELECT title FROM sessions WHERE id = 'cron_backup_01'") == "a new one"
    assert value(damaged, "SELECT ended_at FROM sessions WHERE id = 'cron_backup_01'") is None
    shown = run("undo", name).output
    assert "1 of open-zombies: changed since the run: left as it is (killed-in-march)" in " ".join(shown.split())


def test_a_newer_run_is_named_where_it_stands_over_an_older_one(damaged: Path) -> None:
    before = contents(damaged)
    first = mend(damaged, "--check", "open-zombies")
    write(damaged, "UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = 'killed-in-march'")
    second = mend(damaged, "--check", "open-zombies")
    shown = run("undo", first)
    assert f"Next: doctor undo {second} (a newer run that may have changed the same rows)" in shown.output
    named = " ".join(run("undo", first, damaged).output.split())
    assert f"Next: doctor undo {second} {damaged} (a newer run that may have changed the same rows)" in named
    assert undone(second, "--apply")[0] == 0
    write(damaged, "UPDATE sessions SET ended_at = 1, end_reason = 'x' WHERE id = 'killed-in-march'")
    assert "newer run" not in run("undo", first).output
    write(damaged, "UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = 'killed-in-march'")
    undone(first, "--apply")
    assert contents(damaged) == before


def test_the_environment_never_applies(damaged: Path) -> None:
    name = mend(damaged)
    files = listing(damaged.parent)
    assert run("undo", name, env={"HERMES_DOCTOR_UNDO_APPLY": "1"}).exit_code == 1
    assert listing(damaged.parent) == files


def test_another_doctor_is_let_work(damaged: Path) -> None:
    name = mend(damaged)
    mended = contents(damaged)
    with doctor_lock(damaged.parent / "doctor"):
        code, database = undone(name, "--apply")
    assert (code, database["outcome"]) == (6, "refused")
    assert contents(damaged) == mended


def test_a_newer_schema_is_refused(damaged: Path) -> None:
    name = mend(damaged)
    write(damaged, "UPDATE schema_version SET version = 99")
    code, database = undone(name)
    assert code == 1
    assert "upgrade the doctor" in database["would_be_refused"]
    assert undone(name, "--apply")[0] == 5


def test_a_store_that_is_gone(damaged: Path) -> None:
    name = mend(damaged)
    damaged.unlink()
    code, database = undone(name, damaged)
    assert (code, database["condition"]) == (4, "missing")
    assert "Missing: " in run("undo", name, damaged).output


def test_a_forgotten_run(damaged: Path) -> None:
    name = mend(damaged)
    assert run("runs", "forget", name, "--yes").exit_code == 0
    code, database = undone(name, "--apply")
    assert (code, database["outcome"]) == (5, "refused")
    assert "forgotten" in database["reason"]


def test_a_journal_that_cannot_be_read(damaged: Path) -> None:
    name = mend(damaged)
    (damaged.parent / "doctor" / "doctor.db").write_bytes(b"these are notes" * 1000)
    result = run("undo", name)
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr


def test_output_never_replaces_the_store(damaged: Path) -> None:
    name = mend(damaged)
    assert run("undo", name, "--output", damaged).exit_code == 2


def test_nothing_private_is_printed(damaged: Path) -> None:
    write(damaged, "UPDATE messages SET content = 'topsecret'")
    name = mend(damaged)
    for words in (["--limit", "99"], ["--json"], ["--apply", "--limit", "99"]):
        assert "topsecret" not in run("undo", name, *words).output


def test_a_stop_comes_after_the_present_transaction(tmp_path: Path, damaged: Path) -> None:
    many_zombies(damaged, 2000)
    before = contents(damaged)
    name = mend(damaged)
    process = start(tmp_path, "undo", name, damaged, "--apply", "--json")
    deadline = time.monotonic() + 60
    with journal_of(damaged) as journal:
        while not journal.execute("SELECT count(*) FROM changesets WHERE state = 'undone'").fetchone()[0]:
            assert process.poll() is None, "it was done before it could be stopped"
            assert time.monotonic() < deadline
            time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=60)
    document = valid(stdout, "undo")
    assert (process.returncode, document["outcome"], stderr) == (7, "stopped", "")
    [database] = document["databases"]
    assert 0 < database["fixed"] < 2017
    code, rest = undone(name, "--apply")
    assert (code, rest["fixed"]) == (0, 2017 - database["fixed"])
    assert contents(damaged) == before
    past = valid(run("runs", damaged, "--json").stdout, "runs")["runs"]
    assert [each["undone"] for each in past] == [True]


def test_through_the_installed_command(tmp_path: Path) -> None:
    store = make_demo_home(tmp_path / "made")
    doctor(tmp_path, "fix", store, "--apply")
    [past] = valid(doctor(tmp_path, "runs", "--json").stdout, "runs")["runs"]
    done = doctor(tmp_path, "undo", past["run"], "--apply")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Run {past['run']} of " in done.stdout
    assert "17 rows put back" in done.stdout
