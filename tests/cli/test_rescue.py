"""`doctor rescue`: what is taken, what is printed, in words and as JSON, exit codes; only OUTPUT is written."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner, Result

from hermes_doctor.cli.app import app
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.model import Check
from hermes_doctor.engine.scan import StoreScan, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.rescue.copying import make_copy
from tests.cli.support import doctor, listing, valid
from tests.whole.breaking import DAMAGES
from tests.whole.to_be_wrecked import ALL

#: Messages beside the demo's own, and what each of them says: it must never be shown.
MESSAGES = 600
SECRET = "topsecret word "
SEED = 7


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A store whose tables take many pages, alone in its home, with nobody at it."""
    store = make_demo_home(tmp_path / "home")
    with closing(apsw.Connection(str(store))) as connection, connection:
        connection.executemany(
            "INSERT INTO messages(session_id, role, content, timestamp) SELECT id, 'user', ?, started_at + ?"
            " FROM sessions LIMIT 1",
            ((SECRET * 20, n) for n in range(MESSAGES)),
        )
    (tmp_path / "tmp").mkdir()
    return store


@pytest.fixture
def store(sound: Path) -> Path:
    """The same, of which a page of messages is lost."""
    assert DAMAGES["zero-table-leaf"](sound, SEED).names == ("messages",)
    return sound


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Where a new store is to be: in a folder of its own, so that nothing is beside it that was not left there."""
    (tmp_path / "new").mkdir()
    return tmp_path / "new" / "rescued.db"


def run(*arguments: str | Path, **settings: str) -> Result:
    done = CliRunner().invoke(app, ["rescue", *map(str, arguments)], env=settings, auto_envvar_prefix="HERMES_DOCTOR")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert SECRET not in done.output
    return done


def words(done: Result) -> str:
    """What was said, as one line: where it wraps is another matter."""
    return " ".join(done.stdout.split())


def document(*arguments: str | Path) -> dict[str, Any]:
    done = run(*arguments, "--json")
    told: dict[str, Any] = valid(done.stdout, "rescue")
    assert told["exit_code"] == done.exit_code
    return told


def rows_of(store: Path, table: str) -> set[tuple[object, ...]]:
    with closing(apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return set(connection.execute(f"SELECT * FROM {table}"))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_of_a_sound_store_all_is_saved(sound: Path, new: Path) -> None:
    before = listing(sound.parent)
    told = document(sound, new)
    assert (told["outcome"], told["exit_code"], told["output"]) == ("rescued", 0, str(new))
    assert (told["store"]["path"], told["store"]["condition"]) == (str(sound), "readable")
    assert listing(sound.parent) == before
    assert names_in(new.parent) == ["rescued.db"]
    assert new.stat().st_mode & 0o777 == 0o600
    for table in ("messages", "sessions"):
        assert rows_of(new, table) == rows_of(sound, table)
    again = document(new, new.with_name("again.db"))
    assert (again["outcome"], again["store"]["condition"]) == ("rescued", "readable")


def test_of_a_damaged_one_what_is_left(store: Path, new: Path) -> None:
    before = listing(store.parent)
    told = document(store, new)
    assert (told["outcome"], told["exit_code"]) == ("partly-rescued", 1)
    assert told["store"]["condition"] == "damaged"
    [messages] = [table for table in told["tables"] if table["name"] == "messages"]
    assert messages["read_by"] == "pages"
    [lost] = messages["lost"]
    kept = {row[0] for row in rows_of(new, "messages")}
    assert len(kept) == messages["rows"] == messages["saved"]["in-place"]
    assert not kept & set(range(lost["low"], lost["high"] + 1))
    assert kept | set(range(lost["low"], lost["high"] + 1)) >= set(range(1, MESSAGES + 1))
    assert {row[0] for row in rows_of(new, "sessions")} >= {row[1] for row in rows_of(new, "messages")}
    assert listing(store.parent) == before
    assert names_in(new.parent) == ["rescued.db"]


def test_an_inspection_tells_the_same_and_writes_nothing(
    store: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    before = listing(tmp_path)
    for words in ([store], [store, new]):
        told = document(*words, "--inspect-only")
        assert (told["exit_code"], told["output"], told["inspect_only"]) == (1, None, True)
        assert listing(tmp_path) == before
        inspected = told
    written = document(store, new)
    assert inspected["tables"] == written["tables"]


def test_what_a_person_reads(store: Path, new: Path) -> None:
    looked = run(store, "--inspect-only")
    assert looked.exit_code == 1
    assert looked.stdout.startswith(f"{store}   damaged")
    assert re.search(r"^messages +6\d\d +0 +0 +1$", looked.stdout, re.MULTILINE)
    assert re.search(
        r"Lost of messages, but for what was found elsewhere: ids [\d,]+ to [\d,]+,"
        r" for a page holds nothing but zeros \(page \d+\)\.",
        words(looked),
    )
    assert "nothing was written." in words(looked)
    assert f"Next: doctor rescue {store} {store}.rescued (writes the new store)" in words(looked)
    assert f"Next: doctor rescue {store} {new} (writes the new store)" in words(run(store, new, "--inspect-only"))
    done = run(store, new)
    assert done.exit_code == 1
    assert f"rows saved in {new}, in " in words(done)
    assert f"{store} is as it was. Next: doctor scan {new} (looks at the new store)" in words(done)
    assert "Verified: SQLite finds" in words(done)
    lines = [line for line in (looked.stdout + done.stdout).splitlines() if str(store.parent.parent) not in line]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("with_log", [False, True])
def test_the_commands_that_put_it_in_place_do(
    store: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_log: bool
) -> None:
    home = store.parent
    if with_log:
        (home / "state.db-wal").write_bytes(b"no log at all")
        (home / "state.db-shm").write_bytes(b"no index of it")
        (home / "state.db-journal").write_bytes(b"")
    damaged = store.read_bytes()
    # Named as a person would, from the folder that the new one is to be in.
    monkeypatch.chdir(new.parent)
    done = run(home, new.name)
    told = done.stdout.partition("To put it in place, stop hermes first.")[2]
    commands = [line.strip() for line in told.splitlines() if line.startswith("  ")]
    assert len(commands) == 2
    saved = new.read_bytes()
    # Whoever types the last one alone loses nothing by it.
    subprocess.run(["bash", "-c", commands[-1]], check=False, cwd="/")
    assert (store.read_bytes(), new.read_bytes()) == (damaged, saved)
    subprocess.run(["bash", "-ec", "\n".join(commands)], check=True, cwd="/")
    assert store.read_bytes() == saved
    assert (home / "state.db.damaged").stat().st_mode & 0o777 == 0o700
    assert (home / "state.db.damaged" / "state.db").read_bytes() == damaged
    beside = {"state.db-wal", "state.db-shm", "state.db-journal"} if with_log else set()
    assert names_in(home / "state.db.damaged") == sorted({"state.db", *beside})
    assert not beside & set(names_in(home))
    assert not new.exists()
    assert doctor(tmp_path, "scan", home).returncode in (0, 1)


def test_a_store_that_is_a_link_stays_one(store: Path, new: Path, tmp_path: Path) -> None:
    there = tmp_path / "elsewhere" / "kept.db"
    there.parent.mkdir()
    store.replace(there)
    store.symlink_to(there)
    told = run(store, new).stdout.partition("To put it in place, stop hermes first.")[2]
    commands = [line.strip() for line in told.splitlines() if line.startswith("  ")]
    saved = new.read_bytes()
    subprocess.run(["bash", "-ec", "\n".join(commands)], check=True, cwd="/")
    assert store.is_symlink()
    assert there.read_bytes() == saved
    assert names_in(there.parent) == ["kept.db", "kept.db.damaged"]


def test_of_a_copy_or_a_sound_store_nobody_is_told_to_replace_anything(sound: Path, new: Path, tmp_path: Path) -> None:
    assert "put it in place" not in run(sound, new).stdout
    copy = tmp_path / "copy.db"
    shutil.copyfile(sound, copy)
    DAMAGES["zero-table-leaf"](copy, SEED)
    done = run(copy, new.with_name("other.db"))
    assert done.exit_code == 1
    assert "put it in place" not in done.stdout


@pytest.mark.parametrize(("name", "is_damaged", "code"), [("lose-root-index", True, 0), ("break-frame", False, 1)])
def test_whoever_has_a_damaged_store_or_lost_rows_is_told_how_to_replace_it(
    sound: Path, new: Path, name: str, is_damaged: bool, code: int
) -> None:
    wreck = ALL[name]
    if wreck.before is not None:
        wreck.before(sound, SEED)
    wreck.damage(sound, SEED)
    told = document(sound, "--inspect-only")
    assert (told["store"]["condition"] == "damaged", told["exit_code"]) == (is_damaged, code)
    assert "put it in place" in run(sound, new).stdout


def test_quiet_says_only_what_is_wrong(sound: Path, new: Path) -> None:
    done = run(sound, new, "--quiet")
    assert (done.exit_code, done.stdout, new.exists()) == (0, "", True)
    DAMAGES["zero-table-leaf"](sound, SEED)
    told = run(sound, "--inspect-only", "--quiet").stdout
    assert "Lost of messages" in told
    assert "Next" not in told


def test_a_home_stands_for_its_only_store(store: Path) -> None:
    assert document(store.parent, "--inspect-only")["store"]["path"] == str(store)
    profile = store.parent / "profiles" / "work"
    profile.mkdir(parents=True)
    shutil.copyfile(store, profile / "state.db")
    done = run(store.parent, "--inspect-only")
    assert (done.exit_code, done.stdout) == (2, "")
    said = " ".join(done.stderr.split())
    assert "has 2 stores. Name one of them:" in said
    assert "and more" not in said
    assert document(profile, "--inspect-only")["store"]["profile"] == "work"
    for name in ("play", "rest"):
        shutil.copytree(profile, profile.with_name(name))
    said = " ".join(run(store.parent, "--inspect-only").stderr.split())
    assert "has 4 stores." in said
    assert said.count("state.db") == 3
    assert said.endswith("and more.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Name the damaged state.db"),
        (["STORE"], "OUTPUT is missing"),
        (["STORE"], "doctor rescue STORE STORE.rescued --inspect-only"),
        (["STORE", ""], "OUTPUT is empty"),
        (["", "NEW"], "empty"),
        (["STORE", "STORE"], "belongs to the store that is to be read"),
        (["STORE", "STORE-wal"], "belongs to the store that is to be read"),
        (["LINK", "STORE-journal"], "belongs to the store that is to be read"),
        (["STORE", "NEW", "--output", "NEW"], "is to be the new store"),
        (["STORE", "NEW", "--output", "NEW-wal"], "is to be the new store"),
        (["STORE", "NEW", "--output", "STORE"], "belongs to a store"),
        (["STORE", "NEW", "another"], "another"),
        (["STORE", "NEW", "--max-duration", "5"], "as in 90m"),
        (["STORE", "NEW", "--apply"], "--apply"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors(store: Path, new: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(store)
    before = listing(tmp_path)
    places = {"STORE": str(store), "NEW": str(new), "LINK": str(link)}

    def meant(text: str) -> str:
        return re.sub("STORE|NEW|LINK", lambda word: places[word[0]], text)

    done = run(*(each if each.startswith("--") else meant(each) for each in arguments))
    assert (done.exit_code, done.stdout) == (2, "")
    stripped = re.sub(r"[\s│]+", "", done.stderr)
    assert re.sub(r"\s+", "", said.replace("STORE", str(store)) if "STORE." in said else said) in stripped
    assert listing(tmp_path) == before


def test_what_is_there_is_never_replaced(store: Path, new: Path) -> None:
    new.write_bytes(b"somebody's")
    told = document(store, new)
    assert (told["outcome"], told["exit_code"], told["output"]) == ("refused", 5, None)
    assert str(new) in told["reason"]
    assert new.read_bytes() == b"somebody's"
    said = words(run(store, new))
    assert "Refused: " in said
    assert " Next: " in said
    other = new.with_name("other.db")
    (new.parent / "other.db-wal").write_bytes(b"a log that SQLite would take for the new store's")
    assert run(store, other).exit_code == 5
    assert not other.exists()


def test_who_has_it_open_is_told(store: Path, new: Path) -> None:
    code = f"file = open({str(store)!r}, 'r+b'); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        done = run(store, new)
        holder.communicate(b"\n")
    assert done.exit_code == 5
    assert "stop hermes" in words(done)
    assert str(holder.pid) in words(done)
    assert names_in(new.parent) == []


@pytest.mark.parametrize("what", ["missing", "a text", "zeros"])
def test_where_there_is_nothing_it_is_exit_4(tmp_path: Path, new: Path, what: str) -> None:
    store = tmp_path / "state.db"
    if what != "missing":
        store.write_bytes(b"a text, and no store" if what == "a text" else bytes(8192))
    told = document(store, new)
    assert (told["outcome"], told["exit_code"], told["output"]) == ("nothing-saved", 4, None)
    assert told["reason"]
    assert told["next_step"]
    assert names_in(new.parent) == []
    said = words(run(store, "--inspect-only"))
    assert "Nothing can be saved: " in said
    assert " Next: " in said


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, "--max-duration"])
@pytest.mark.parametrize("inspects", [False, True])
def test_stopped_it_leaves_nothing(
    store: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals | str, inspects: bool
) -> None:
    handler = signal.getsignal(signal.SIGINT)

    def signalled(*arguments: Any) -> Any:
        if isinstance(how, signal.Signals):
            os.kill(os.getpid(), how)
        return make_copy(*arguments)

    def again(*arguments: str | Path) -> Result:
        # Whoever was stopped takes no further notice of Ctrl-C; another process would.
        signal.signal(signal.SIGINT, handler)
        return run(store, new, *option, *arguments)

    monkeypatch.setattr("hermes_doctor.rescue.run.make_copy", signalled)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    before = listing(tmp_path)
    option = ["--max-duration", "0s"] if how == "--max-duration" else []
    option += ["--inspect-only"] if inspects else []
    try:
        done = again("--json")
        told = valid(done.stdout, "rescue")
        assert (told["outcome"], told["exit_code"], done.exit_code, told["output"]) == ("stopped", 7, 7, None)
        assert "nothing was left" in told["reason"]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        said = words(again())
        assert "Stopped: " in said
        assert f"Next: doctor rescue {store} {new}{' --inspect-only' * inspects} (starts over)" in said
        assert listing(tmp_path) == before
        assert list((tmp_path / "tmp").iterdir()) == list(new.parent.iterdir()) == []
    finally:
        signal.signal(signal.SIGINT, handler)


def test_how_far_it_is_is_told_to_whoever_asks(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any) -> Any:
        time.sleep(0.5)
        return make_copy(*arguments)

    monkeypatch.setattr("hermes_doctor.rescue.run.make_copy", slow)
    monkeypatch.setattr("hermes_doctor.report.progress.PATIENCE", 0.0)
    lines = [json.loads(line) for line in run(store, "--inspect-only", "--progress", "json").stderr.splitlines()]
    assert "copying" in {line["step"] for line in lines}


def test_the_new_file_is_looked_at_for_what_is_said_of_it(
    store: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def asking(ref: StoreRef, checks: Sequence[Check], *more: Any) -> StoreScan:
        asked.append(sorted(check.name for check in checks))
        return scan_store(ref, checks, *more)

    monkeypatch.setattr("hermes_doctor.rescue.run.scan_store", asking)
    assert document(store, new)["verified"] is not None
    assert asked == [["orphan-messages", "search-index"]]


def test_a_defect_is_told_as_one(store: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def defective(*_arguments: object, **_more: object) -> None:
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr("hermes_doctor.rescue.run.rescue_store", defective)
    told = document(store, new)
    assert (told["outcome"], told["exit_code"]) == ("failed", 3)
    assert "a defect of the doctor" in told["reason"]
    assert "Failed: a defect of the doctor" in words(run(store, new))


def test_the_environment_sets_its_options(store: Path, new: Path, tmp_path: Path) -> None:
    told = run(store, HERMES_DOCTOR_RESCUE_INSPECT_ONLY="1", HERMES_DOCTOR_RESCUE_JSON="1")
    assert valid(told.stdout, "rescue")["inspect_only"] is True
    assert run(store, new, HERMES_DOCTOR_RESCUE_MAX_DURATION="0s").exit_code == 7
    report = tmp_path / "report"
    done = run(store, new, HERMES_DOCTOR_RESCUE_OUTPUT=str(report))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "rows saved in" in report.read_text()
    assert rows_of(new, "sessions") == rows_of(store, "sessions")


def test_the_installed_command_and_its_help(store: Path, new: Path, tmp_path: Path) -> None:
    done = doctor(tmp_path, "rescue", store, new, "--output", "report", "--color", "always")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert "\x1b[1;31mdamaged" in (tmp_path / "report").read_text()
    assert (tmp_path / "report").stat().st_mode & 0o777 == 0o600
    told = " ".join(run("--help").stdout.split())
    assert "The option --output is something else: the file that the report goes to." in told
    assert "rescue" in CliRunner().invoke(app, ["--help"]).stdout
