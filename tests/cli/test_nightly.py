"""`doctor nightly`: what is new is told, once; nothing new is silence; and who else is told."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import apsw
import pytest
from click.testing import CliRunner, Result

from hermes_doctor.cli.app import app
from hermes_doctor.nightly import notices
from hermes_doctor.nightly.history import History
from tests.cli.support import doctor, valid

ALL = 17
CHECKS = "double-encoded 4, lineage-gaps 2, open-zombies 8, orphan-stubs 3"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "nobody"))
    return tmp_path / "state" / "hermes-state-doctor"


def run(*arguments: str | Path, env: dict[str, str | None] | None = None) -> Result:
    result = CliRunner().invoke(app, ["nightly", *map(str, arguments)], env=env)
    assert result.stdout == ""
    return result


def last(state: Path) -> Any:
    """What the last run came to, valid by its schema."""
    return valid((state / "nightly.json").read_text(), "nightly")


def add_stub(store: Path, name: str) -> None:
    """One more session that never held anything."""
    began = time.time() - 5 * 86400
    with closing(apsw.Connection(str(store))) as connection:
        connection.execute(
            "INSERT INTO sessions (id, source, started_at, ended_at, end_reason) VALUES (?, 'tui', ?, ?, 'tui_close')",
            (name, began, began + 60),
        )


class Listener:
    """A server that notes what is posted to it, and answers with what ``answers`` says of the end of the path."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.answers: dict[str, int] = {}
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                listener.heard.append((self.path, body))
                self.send_response(listener.answers.get(self.path.rsplit("/", 1)[-1], 200))
                self.send_header("Location", "file:///etc/passwd")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (as the library calls it)
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/ping/7f3a"


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    thread = Thread(target=listener.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield listener
    listener.server.shutdown()
    thread.join()
    listener.server.server_close()


def test_the_installed_command_tells_what_is_new_once(tmp_path: Path, damaged: Path, state: Path) -> None:
    own = {"XDG_STATE_HOME": str(tmp_path / "state")}
    first = doctor(tmp_path, "nightly", damaged.parent, extra=own)
    assert first.stderr == f"doctor: 17 new findings in ~/damaged/state.db: {CHECKS}. Next: doctor scan {damaged}\n"
    assert (first.returncode, first.stdout) == (1, "")
    second = doctor(tmp_path, "nightly", damaged.parent, extra=own)
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert (state / "nightly.json").stat().st_mode & 0o777 == 0o600
    document = last(state)
    assert (document["found"], document["new"], document["outcome"]) == (ALL, 0, "nothing-new")


def test_only_what_is_new_is_told(damaged: Path, state: Path) -> None:
    run(damaged)
    add_stub(damaged, "empty-4")
    add_stub(damaged, "empty-5")
    told = run(damaged)
    assert told.exit_code == 1
    assert "2 new findings in " in told.stderr
    assert ": orphan-stubs 2; with those known before, 19 in all. " in told.stderr
    [database] = last(state)["databases"]
    assert [each for each in database["checks"] if each["new"]] == [
        {"check": "orphan-stubs", "severity": "warning", "found": 5, "new": 2, "mended": 0}
    ]
    assert run(damaged).stderr == ""


def test_one_that_came_for_one_that_went_is_new(damaged: Path) -> None:
    run(damaged)
    with closing(apsw.Connection(str(damaged))) as connection:
        connection.execute("DELETE FROM sessions WHERE id = 'empty-1'")
    add_stub(damaged, "empty-4")
    assert "1 new finding in " in run(damaged).stderr


def test_each_store_has_its_own_memory(damaged: Path, tmp_path: Path) -> None:
    run(damaged)
    other = tmp_path / "other" / "state.db"
    other.parent.mkdir()
    other.write_bytes(damaged.read_bytes())
    told = run(damaged, other)
    assert told.exit_code == 1
    assert str(other) in told.stderr
    assert str(damaged) not in told.stderr


def test_what_is_less_severe_is_no_news(damaged: Path, state: Path) -> None:
    told = run(damaged, "--fail-on", "error")
    assert "5 new findings" in told.stderr
    assert "open-zombies" not in told.stderr
    assert run(damaged, "--fail-on", "never").exit_code == 0
    assert last(state)["found"] == 0


def test_what_is_safe_is_mended_where_that_is_asked_for(damaged: Path, state: Path) -> None:
    told = run(damaged, "--fix", "safe")
    assert told.exit_code == 1
    [database] = last(state)["databases"]
    name = database["mending"]["run"]
    assert f"17 findings mended in {damaged}. Next: doctor undo {name} (shows how it is taken back)" in told.stderr
    assert run(damaged, "--fix", "safe").stderr == ""
    undone = CliRunner().invoke(app, ["undo", name, "--apply", "--json"])
    assert undone.exit_code == 0
    # What comes again after it was mended is new.
    again = run(damaged)
    assert "17 new findings" in again.stderr


def test_nothing_is_mended_unless_it_is_typed(damaged: Path) -> None:
    before = damaged.read_bytes()
    run(damaged, env={"HERMES_DOCTOR_NIGHTLY_FIX": "safe", "HERMES_DOCTOR_NIGHTLY_LIVE": "1"})
    assert damaged.read_bytes() == before


@contextmanager
def held(store: Path, mode: str) -> Iterator[None]:
    """The store is open in another process meanwhile, in that journal mode."""
    holding = f"import apsw, sys; c = apsw.Connection({str(store)!r}); c.pragma('journal_mode', {mode!r});"
    holding += "c.execute('SELECT count(*) FROM sessions').fetchall(); print('open', flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        yield
    finally:
        holder.communicate()


def test_a_store_that_somebody_has_open_is_left_alone(damaged: Path, state: Path) -> None:
    with held(damaged, "delete"):
        told = run(damaged, "--fix", "safe")
        assert "not all that is safe was mended" in told.stderr
        [database] = last(state)["databases"]
        assert (database["mending"]["mended"], database["mending"]["exit_code"]) == (0, 5)
        # It is refused every night, which is no news.
        quiet = run(damaged, "--fix", "safe")
        assert (quiet.exit_code, quiet.stderr) == (0, "")
    assert "17 findings mended" in run(damaged, "--fix", "safe").stderr


@pytest.mark.skipif(sys.platform != "linux", reason="a store that is open is mended on Linux only")
def test_with_live_it_is_mended_meanwhile(damaged: Path, state: Path) -> None:
    with held(damaged, "wal"):
        run(damaged, "--fix", "safe")
        assert last(state)["mended"] == 0
        run(damaged, "--fix", "safe", "--live")
        assert last(state)["mended"] > 0


def test_once_a_week_all_of_it_is_read(damaged: Path, state: Path) -> None:
    def deep() -> bool:
        run(damaged, "--deep", "weekly")
        return bool(last(state)["databases"][0]["deep"])

    assert [deep(), deep()] == [True, False]
    with closing(sqlite3.connect(state / "nightly.db")) as ledger, ledger:
        ledger.execute("UPDATE stores SET deep_at = deep_at - ?", (6.6 * 86400,))
    assert [deep(), deep()] == [True, False]
    run(damaged)
    assert last(state)["databases"][0]["deep"] is False


def test_damage_is_told_once_and_fails_every_night(damaged: Path, state: Path) -> None:
    damaged.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    told = run(damaged)
    assert told.exit_code == 4
    assert f"{damaged} is damaged: " in told.stderr
    assert all("Next: " in line for line in told.stderr.splitlines())
    again = run(damaged)
    assert (again.exit_code, again.stderr) == (4, "")
    assert last(state)["outcome"] == "damaged"


def test_a_store_that_is_missing_is_told_once(tmp_path: Path) -> None:
    told = run(tmp_path / "state.db")
    assert told.exit_code == 4
    assert " is missing" in told.stderr
    assert run(tmp_path / "state.db").stderr == ""


def test_a_memory_that_is_broken_costs_a_repetition_and_no_more(damaged: Path, state: Path) -> None:
    run(damaged)
    (state / "nightly.db").write_bytes(b"not a database, and not an empty file either")
    assert "17 new findings" in run(damaged).stderr
    assert run(damaged).stderr == ""


def test_a_memory_that_cannot_be_kept_is_told(damaged: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    told = run(damaged)
    assert told.exit_code == 1
    assert "the next run tells it again as new" in told.stderr
    assert "could not be written to the state folder" in told.stderr


def test_the_url_is_pinged_at_the_start_and_at_the_end(damaged: Path, listener: Listener) -> None:
    told = run(damaged, "--ping", listener.url)
    assert told.exit_code == 1
    [start, fail] = listener.heard
    assert start == ("/ping/7f3a/start", "")
    assert fail[0] == "/ping/7f3a/fail"
    assert valid(fail[1], "nightly")["new"] == ALL
    listener.heard.clear()
    run(damaged, "--ping", f"{listener.url}?create=1")
    [start, success] = listener.heard
    assert start == ("/ping/7f3a/start?create=1", "")
    assert success[0] == "/ping/7f3a?create=1"
    assert valid(success[1], "nightly")["outcome"] == "nothing-new"


def test_a_ping_that_fails_is_told_and_changes_nothing(damaged: Path, listener: Listener) -> None:
    run(damaged)
    listener.answers = {"start": 500, "7f3a": 404}
    told = run(damaged, "--ping", listener.url)
    assert told.exit_code == 0
    assert told.stderr.splitlines() == [
        "doctor: a notice did not get through: the ping of 127.0.0.1 was answered with 500.",
        "doctor: a notice did not get through: the ping of 127.0.0.1 was answered with 404.",
    ]
    assert "7f3a" not in told.stderr


def test_a_server_that_is_not_there_or_says_nothing_is_not_waited_for(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "PING_SECONDS", 0.2)
    run(damaged)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        told = run(damaged, "--ping", f"http://127.0.0.1:{port}/x")
        assert time.monotonic() - began < 10
    assert told.exit_code == 0
    assert told.stderr.count("a notice did not get through: the ping of 127.0.0.1 failed") == 2
    refused = run(damaged, "--ping", f"http://127.0.0.1:{port}/x")
    assert (refused.exit_code, refused.stderr.count("failed (Connection refused)")) == (0, 2)


def test_a_server_that_leads_elsewhere_is_followed_by_http_only(damaged: Path, listener: Listener) -> None:
    run(damaged)
    listener.answers = {"start": 302}
    told = run(damaged, "--ping", listener.url)
    assert told.exit_code == 0
    assert "was answered with 302" in told.stderr or "failed" in told.stderr
    assert len(told.stderr.splitlines()) == 1


def test_the_users_own_file_may_name_the_url(damaged: Path, listener: Listener, tmp_path: Path) -> None:
    settings = tmp_path / "config" / "hermes-state-doctor" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'[nightly]\nping = "{listener.url}"\n')
    run(damaged, env={"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert [path for path, _body in listener.heard] == ["/ping/7f3a/start", "/ping/7f3a/fail"]
    settings.write_text('[nightly]\nfix = "safe"\n')
    refused = run(damaged, env={"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert refused.exit_code == 2
    assert "only ever typed" in refused.stderr


def test_a_defect_is_pinged_as_a_failure(damaged: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("hermes_doctor.host.homes.resolve_targets", broken)
    assert run(damaged, "--ping", listener.url).exception is not None
    assert [path for path, _body in listener.heard] == ["/ping/7f3a/start", "/ping/7f3a/fail"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_a_night_that_is_stopped_says_so_everywhere(
    damaged: Path, listener: Listener, tmp_path: Path, state: Path
) -> None:
    def stopped(at: str, *more: str) -> subprocess.CompletedProcess[str]:
        listener.heard.clear()
        there = {"XDG_STATE_HOME": str(tmp_path / "state"), "HERMES_DOCTOR_KILL_AT": f"{at}:TERM"}
        done = doctor(tmp_path, "nightly", damaged, tmp_path / "x.db", "--ping", listener.url, *more, extra=there)
        assert (done.returncode, done.stdout) == (7, "")
        assert [path for path, _body in listener.heard] == ["/ping/7f3a/start", "/ping/7f3a/fail"]
        assert valid(listener.heard[1][1], "nightly")["outcome"] == "stopped"
        return done

    done = stopped("scanning:1")
    assert done.stderr == "doctor: stopped: 2 stores not read. The next run reads them.\n"
    # In the midst of mending: what is committed stands, and is told; the other store waits.
    done = stopped("committed:2", "--fix", "safe")
    assert "17 new findings in " in done.stderr
    assert "stopped: 1 store not read" in done.stderr
    [database] = last(state)["databases"]
    mended = database["mending"]["mended"]
    assert 0 < mended < ALL
    assert f"doctor undo {database['mending']['run']}" in done.stderr
    # The rest is known by now, and the next night mends it.
    rest = run(damaged, "--fix", "safe")
    assert f"{ALL - mended} findings mended" in rest.stderr
    assert "new finding" not in rest.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="the commands are for a POSIX shell")
def test_the_command_gets_the_json_where_something_is_new(damaged: Path, tmp_path: Path) -> None:
    got = tmp_path / "it's got.json"
    command = f'cat > "{got}"; echo this goes nowhere'
    assert run(damaged, "--notify-command", command).exit_code == 1
    assert valid(got.read_text(), "nightly")["new"] == ALL
    got.unlink()
    assert run(damaged, "--notify-command", command).stderr == ""
    assert not got.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="the commands are for a POSIX shell")
def test_a_command_that_fails_is_told_and_changes_nothing(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = run(damaged, "--notify-command", "echo first >&2; echo no mail today >&2; exit 9")
    assert told.exit_code == 1
    assert told.stderr.splitlines()[-1] == (
        "doctor: a notice did not get through: the command of --notify-command ended with 9: no mail today."
    )
    # One that reads nothing of its input is none that fails.
    add_stub(damaged, "empty-4")
    assert len(run(damaged, "--notify-command", "true").stderr.splitlines()) == 1
    monkeypatch.setattr(notices, "COMMAND_SECONDS", 0.3)
    add_stub(damaged, "empty-5")
    late = run(damaged, "--notify-command", f"(sleep 2; touch {tmp_path}/late) & sleep 60")
    assert late.exit_code == 1
    assert "took longer than" in late.stderr
    time.sleep(2.1)
    assert not (tmp_path / "late").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="the commands are for a POSIX shell")
def test_a_command_is_not_waited_for_longer_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "COMMAND_SECONDS", 0.3)
    began = time.monotonic()
    # What it left behind holds its standard error, and is out of reach.
    with pytest.raises(notices.NotSentError, match="took longer than"):
        notices.call("setsid sleep 20 & sleep 60", "{}")
    assert time.monotonic() - began < 10


def test_a_check_that_is_muted_is_not_heard_of(damaged: Path) -> None:
    assert CliRunner().invoke(app, ["mute", "open-zombies"]).exit_code == 0
    told = run(damaged)
    assert "9 new findings" in told.stderr
    assert "open-zombies" not in told.stderr
    assert CliRunner().invoke(app, ["unmute", "open-zombies"]).exit_code == 0
    assert "8 new findings" in run(damaged).stderr


def test_it_is_in_the_history_as_any_scan(damaged: Path, state: Path) -> None:
    run(damaged)
    run(damaged, "--deep", "always")
    assert [entry.deep for entry in History(state).entries()[damaged.resolve()]] == [False, True]


def test_to_the_journal_a_line_has_its_weight(tmp_path: Path, damaged: Path) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        status = os.fstat(stream.fileno())
        there = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}", "XDG_STATE_HOME": str(tmp_path / "state")}
        doctor(tmp_path, "nightly", damaged, extra=there, capture_output=False, stderr=stream)
        stream.seek(0)
        assert stream.read().startswith("<4>doctor: 17 new findings")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--live"], "--live goes with --fix safe"),
        (["--fix", "unsafe"], "'unsafe' is not 'safe'"),
        (["--ping", "ftp://example.org/x"], "http"),
        (["--ping", "https://me:secret@example.org/x"], "password"),
        (["--ping", "https://example.org:port/x"], "no URL"),
        (["--ping", "https:///x"], "a host"),
        (["--ping", "https://example.org/a b"], "blanks"),
    ],
)
def test_mistakes_are_usage_errors(damaged: Path, arguments: list[str], said: str) -> None:
    result = run(damaged, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "secret" not in result.stderr
