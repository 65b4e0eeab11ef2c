"""`doctor compact`: what is printed, in words and as JSON, exit codes, and that only a typed --apply does anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner, Result

from hermes_doctor.cli.app import app
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine import compact as engine
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.host.locks import doctor_lock
from hermes_doctor.store import compaction
from tests.cli.support import doctor, listing, valid

KIB = 1024
#: What is deleted again, and so what is free: some pages more, of the table and of the list of free pages.
FREED = 400 * KIB


@pytest.fixture
def slack(tmp_path: Path) -> Path:
    """A store with free pages, alone in its home."""
    return loosened(make_demo_home(tmp_path / "home"))


def loosened(store: Path) -> Path:
    """Writes something that is large, and deletes it."""
    with closing(apsw.Connection(str(store))) as connection:
        connection.execute("CREATE TABLE large(it); INSERT INTO large VALUES (zeroblob(?))", (FREED,))
        connection.execute("DROP TABLE large")
    return store


def run(*arguments: str | Path, **settings: str) -> Result:
    done = CliRunner().invoke(app, ["compact", *map(str, arguments)], env=settings, auto_envvar_prefix="HERMES_DOCTOR")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def document(*arguments: str | Path) -> tuple[int, dict[str, object]]:
    """The exit code, and the document with its only database's fields over its own."""
    done = run(*arguments, "--json")
    whole = valid(done.stdout, "compact")
    assert whole["exit_code"] == done.exit_code
    (database,) = whole["databases"]
    assert (database["outcome"], database["exit_code"]) == (whole["outcome"], whole["exit_code"])
    return done.exit_code, whole | database


def test_plan_work_and_nothing_more_to_do(slack: Path) -> None:
    home, before = slack.parent, listing(slack.parent)
    code, plan = document(home)
    assert (code, plan["outcome"], plan["applied"], plan["after"], plan["gave_back"]) == (
        1,
        "planned",
        False,
        None,
        None,
    )
    assert isinstance(least := plan["gives_back_at_least"], int)
    assert FREED <= least < FREED + 8 * KIB
    assert listing(home) == before
    code, done = document(home, "--apply")
    assert (code, done["outcome"], done["gave_back"]) == (0, "compacted", least)
    assert slack.stat().st_size == before["state.db"][0] - least
    for words in ([], ["--apply"]):
        code, after = document(home, *words)
        assert (code, after["outcome"], after["gives_back_at_least"]) == (0, "nothing-to-do", 0)


def test_what_a_person_reads(slack: Path) -> None:
    plan = run(slack)
    assert plan.exit_code == 1
    assert "VACUUM would give back 404.0 KB at least" in plan.stdout
    assert "Room: it needs" in plan.stdout
    assert "Nothing was changed." in plan.stdout
    assert f"Next: doctor compact {slack} --apply (does it)" in plan.stdout.replace("\n", " ")
    done = run(slack, "--apply")
    assert done.exit_code == 0
    assert "Given back: 404.0 KB." in done.stdout
    assert "Verified: SQLite finds it sound" in done.stdout
    assert "1 store compacted" in done.stdout
    assert "nothing to do" in run(slack).stdout
    assert run(slack, "--quiet").stdout == ""
    assert max(map(len, (plan.stdout + done.stdout).splitlines())) <= 80 + len(str(slack))


def test_more_taken_up_than_before_is_told_too(slack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = compaction.extent

    def swollen(connection: apsw.Connection, file_bytes: int, log_bytes: int) -> compaction.Extent:
        seen = measure(connection, file_bytes, log_bytes)
        return seen if seen.free_pages else compaction.Extent(seen.file_bytes, 900 * KIB, 4096, seen.pages, 0)

    monkeypatch.setattr(engine, "extent", swollen)
    other = slack.parent.with_name("other")
    shutil.copytree(slack.parent, other)
    code, told = document(other, "--apply")
    assert code == 0
    assert told["gave_back"] == (FREED + 4 * KIB) - 900 * KIB
    assert "It takes up 496.0 KB more than before." in run(slack, "--apply").stdout


@pytest.mark.parametrize("typed", [False, True])
def test_only_a_typed_apply_does_it(slack: Path, typed: bool) -> None:
    before = slack.read_bytes()
    done = run(slack, *(["--apply"] if typed else []), HERMES_DOCTOR_COMPACT_APPLY="1")
    assert (done.exit_code, slack.read_bytes() == before) == ((0, False) if typed else (1, True))


def test_refusals_are_told_with_what_to_type(slack: Path) -> None:
    (slack.parent / ".state.db-litestream").mkdir()
    code, plan = document(slack)
    assert (code, plan["outcome"]) == (1, "planned")
    assert "Litestream" in str(plan["would_be_refused"])
    assert "It would be refused now" in run(slack).stdout
    code, told = document(slack, "--apply")
    assert (code, told["outcome"], told["reason"]) == (5, "refused", plan["would_be_refused"])
    assert "Refused: Litestream" in run(slack, "--apply").stdout
    (slack.parent / "doctor").mkdir()
    with doctor_lock(slack.parent / "doctor"):
        code, told = document(slack, "--apply")
    assert (code, told["outcome"], told["before"]) == (6, "refused", None)


@pytest.mark.parametrize("what", ["missing", "a text", "zeros"])
def test_what_is_no_store_is_exit_4(tmp_path: Path, what: str) -> None:
    store = tmp_path / "state.db"
    if what != "missing":
        store.write_bytes(b"a text, and no store" if what == "a text" else bytes(8192))
    for words in ([], ["--apply"]):
        code, told = document(store, *words)
        assert (code, told["outcome"], told["before"]) == (4, "failed", None)
        assert told["reason"]
        assert "Next: " in run(store, *words).stdout


def test_of_several_stores_each_is_done(slack: Path, tmp_path: Path) -> None:
    other = loosened(make_demo_home(tmp_path / "second"))
    (other.parent / "state.db-litestream").mkdir()
    done = run(slack, other, tmp_path / "nowhere" / "state.db", "--apply", "--json")
    whole = valid(done.stdout, "compact")
    assert [each["outcome"] for each in whole["databases"]] == ["compacted", "refused", "failed"]
    assert (done.exit_code, whole["outcome"]) == (4, "failed")
    both = run(slack, other, "--apply", "--json")
    assert (both.exit_code, json.loads(both.stdout)["outcome"]) == (5, "refused")


def test_a_defect_fails_one_store_and_the_others_go_on(
    slack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = loosened(make_demo_home(tmp_path / "second"))
    compact: Callable[..., engine.StoreCompact] = engine.compact_store

    def defective(ref: StoreRef, **more: object) -> engine.StoreCompact:
        if ref.path == slack:
            raise ZeroDivisionError
        return compact(ref, **more)

    monkeypatch.setattr(engine, "compact_store", defective)
    whole = valid(run(slack, other, "--apply", "--json").stdout, "compact")
    assert [each["outcome"] for each in whole["databases"]] == ["failed", "compacted"]
    assert "a defect of the doctor" in whole["databases"][0]["reason"]


def test_a_stop_ends_the_round(slack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = loosened(make_demo_home(tmp_path / "second"))
    before = slack.read_bytes()

    def asked(self: engine._Work, step: str, share: object) -> bool:
        self.stop.ask("SIGTERM asked for it")
        return True

    monkeypatch.setattr(engine._Work, "_asked", asked)
    monkeypatch.setattr(engine, "_STEPS", 1)
    done = run(slack, other, "--apply", "--json")
    whole = valid(done.stdout, "compact")
    assert (done.exit_code, whole["outcome"], whole["not_reached"]) == (7, "stopped", [str(other)])
    assert whole["databases"][0]["reason"] == "SIGTERM asked for it; the store is as it was before"
    assert slack.read_bytes() == before


def test_the_installed_command_and_its_help(slack: Path, tmp_path: Path) -> None:
    done = doctor(tmp_path, "compact", slack, "--apply", "--output", "report")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "compacted" in (tmp_path / "report").read_text()
    told = run("--help").stdout
    assert "nothing to undo" in " ".join(told.split())
    assert "compact" in CliRunner().invoke(app, ["--help"]).stdout
