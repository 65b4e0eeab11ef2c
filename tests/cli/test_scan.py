"""`doctor scan` through the installed command: exit codes, JSON, bad inputs, files, and being stopped."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import apsw
import pytest
from click.testing import CliRunner

import checks
from hermes_doctor import catalogue
from hermes_doctor.cli.app import app
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.model import RelationRule, RowRule, Severity
from hermes_doctor.store.shape import Shape
from tests.cli.support import MODULE, doctor, environment, listing, start, valid


def test_a_healthy_store_gets_one_line(tmp_path: Path, healthy: Path) -> None:
    done = doctor(tmp_path, "scan", healthy)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["~/home/state.db   healthy · schema 22 · 1 session · 2 messages"]


def test_a_healthy_store_as_json(tmp_path: Path, healthy: Path) -> None:
    done = doctor(tmp_path, "scan", healthy.parent, "--json")
    document = valid(done.stdout, "scan")
    assert (done.returncode, document["exit_code"], document["outcome"]) == (0, 0, "clean")
    [database] = document["databases"]
    assert database["path"] == str(healthy)
    assert database["home"] == str(healthy.parent)
    assert (database["condition"], database["sessions"], database["messages"]) == ("readable", 1, 2)
    assert (database["schema_version"], database["bytes"]) == (22, healthy.stat().st_size)
    assert [check["check"] for check in database["checks"]] == [check.name for check in checks.CHECKS]
    assert {check["status"] for check in database["checks"]} == {"ran"}
    assert document["tool"]["sqlite"] == apsw.sqlite_lib_version()


def test_findings_as_a_table_and_as_json_agree(tmp_path: Path, damaged: Path) -> None:
    table = doctor(tmp_path, "scan", damaged)
    done = doctor(tmp_path, "scan", damaged, "--json")
    document = valid(done.stdout, "scan")
    assert (table.returncode, done.returncode, document["exit_code"], document["outcome"]) == (1, 1, 1, "findings")
    assert done.stderr == ""
    [database] = document["databases"]
    for check in database["checks"]:
        named = [finding for finding in database["findings"] if finding["check"] == check["check"]]
        assert check["count"] == len(named)
        assert check["count"] == check["safe"] + check["unsafe"] + check["refused"] + check["report"]
        if named:
            row = next(line.split() for line in table.stdout.splitlines() if line.startswith(check["check"] + " "))
            assert row[1:4] == [str(check["count"]), str(check["safe"]), str(check["count"] - check["safe"])]
    assert f"{len(database['findings'])} findings" in table.stdout
    # A command that is named is never broken, however long its path is.
    assert all(len(line) <= 80 for line in table.stdout.split("Next: ")[0].splitlines())


def test_the_closing_sentence_names_commands_that_exist(tmp_path: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "scan", damaged)
    closing = done.stdout[done.stdout.rindex("Next: ") :]
    commands = re.findall(r"doctor (\w+) ", closing)
    assert commands == ["fix", "explain"]
    for command in commands:
        assert doctor(tmp_path, command, "--help").returncode == 0


def test_a_scan_changes_nothing(tmp_path: Path, damaged: Path) -> None:
    before = listing(damaged.parent)
    doctor(tmp_path, "scan", damaged.parent)
    assert listing(damaged.parent) == before
    assert list((tmp_path / "tmp").iterdir()) == []


READ_ONLY = """mount --bind "$PWD" "$PWD" || exit 9
for folder in /tmp /var/tmp /usr/tmp; do
    [ -d "$folder" ] && { mount --rbind "$folder" "$folder" && mount -o remount,ro,bind "$folder" || exit 9; }
done
cd "$PWD"
exec "$@"
"""


@pytest.mark.parametrize("log", [False, True])
def test_where_no_temporary_file_can_be_made_none_is_made_in_the_home(damaged: Path, log: bool) -> None:
    folder = damaged.parent
    if log:
        (folder / "state.db-wal").write_bytes(b"a log without its index is recovered in a private copy")
    before = (listing(folder), folder.stat().st_mtime_ns)
    kept = {name: value for name, value in environment(folder.parent).items() if name != "TMPDIR"}
    command = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", *MODULE, "scan"]
    # Standing in the home, as people do: that is where Python puts its temporary files as a last resort.
    done = subprocess.run(command, cwd=folder, env={**kept, "HERMES_HOME": str(folder)}, capture_output=True, text=True)
    if done.returncode == 9 or "unshare" in done.stderr:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    assert (listing(folder), folder.stat().st_mtime_ns) == before
    assert done.stderr == ""
    if log:
        assert done.returncode == 4
        assert "is not writable" in " ".join(done.stdout.split())
        assert "TMPDIR" in done.stdout
    else:
        assert done.returncode == 1
        assert "could not be checked" not in done.stdout


@pytest.mark.parametrize(
    ("fail_on", "code", "outcome"),
    [("info", 1, "findings"), ("warning", 1, "findings"), ("error", 1, "findings"), ("never", 0, "clean")],
)
def test_fail_on_with_errors(tmp_path: Path, damaged: Path, fail_on: str, code: int, outcome: str) -> None:
    done = doctor(tmp_path, "scan", damaged, "--json", "--fail-on", fail_on)
    assert done.returncode == code
    assert valid(done.stdout, "scan")["outcome"] == outcome


def test_fail_on_error_lets_warnings_pass(tmp_path: Path, damaged: Path) -> None:
    assert doctor(tmp_path, "scan", damaged, "--check", "open-zombies", "--fail-on", "error").returncode == 0
    assert doctor(tmp_path, "scan", damaged, "--check", "open-zombies").returncode == 1


def test_checks_that_were_not_chosen_say_so(tmp_path: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "scan", damaged, "--json", "--check", "double-encoded")
    [database] = valid(done.stdout, "scan")["databases"]
    states = {check["check"]: (check["status"], check["reason"]) for check in database["checks"]}
    assert states.pop("double-encoded") == ("ran", None)
    assert set(states.values()) == {("skipped", "not chosen")}
    assert {finding["check"] for finding in database["findings"]} == {"double-encoded"}


def test_skip_leaves_the_others(tmp_path: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "scan", damaged, "--json", "--skip", "double-encoded")
    found = {finding["check"] for finding in valid(done.stdout, "scan")["databases"][0]["findings"]}
    assert "double-encoded" not in found
    assert "open-zombies" in found


def test_idle_raises_a_threshold(tmp_path: Path, damaged: Path) -> None:
    def zombies(*more: str) -> int:
        done = doctor(tmp_path, "scan", damaged, "--json", "--check", "open-zombies", *more)
        return len(valid(done.stdout, "scan")["databases"][0]["findings"])

    usual = zombies()
    assert 0 < zombies("--idle", "60h") < usual
    assert zombies("--idle", "1s") == usual


def test_limit_holds_for_tables_and_not_for_json(tmp_path: Path, damaged: Path) -> None:
    none = doctor(tmp_path, "scan", damaged, "--limit", "0").stdout
    one = doctor(tmp_path, "scan", damaged, "--limit", "1", "--check", "open-zombies").stdout
    everything = doctor(tmp_path, "scan", damaged, "--limit", "1000", "--check", "open-zombies").stdout
    assert "cron_backup_" not in none
    assert one.count("cron_backup_") == 1
    assert "more" in one
    assert everything.count("cron_backup_") == 7
    assert "more" not in everything


def test_quiet_says_only_what_is_wrong(tmp_path: Path, healthy: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "scan", healthy, damaged, "--quiet")
    assert "home/state.db" not in done.stdout
    assert "double-encoded" in done.stdout
    assert "Next:" not in done.stdout
    assert doctor(tmp_path, "scan", healthy, "--quiet").stdout == ""


def test_without_a_target_this_host_is_scanned(tmp_path: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "scan", "--json", extra={"HERMES_HOME": str(damaged.parent)})
    assert valid(done.stdout, "scan")["databases"][0]["path"] == str(damaged)
    shutil.copytree(damaged.parent, tmp_path / ".hermes")
    done = doctor(tmp_path, "scan")
    assert done.returncode == 1
    assert done.stdout.startswith("~/.hermes/state.db")


# Bad inputs: name, what makes it, its condition.


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(8192))


def _text(path: Path) -> None:
    path.write_text("these are notes, no database\n" * 300)


def _somebody_elses(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE recipes(id INTEGER PRIMARY KEY, title TEXT)")
    connection.close()


def _truncated(path: Path) -> None:
    path.write_bytes(make_demo_home(path.parent / "whole").read_bytes()[:20000])


def _torn(path: Path) -> None:
    content = bytearray(make_demo_home(path.parent / "whole").read_bytes())
    content[4096 : len(content) - 4096] = b"\xa5" * (len(content) - 8192)
    path.write_bytes(bytes(content))


_BAD_FILES: list[tuple[str, Callable[[Path], object], str]] = [
    ("missing", lambda path: None, "missing"),
    ("empty", Path.touch, "damaged"),
    ("zeros", _zeros, "damaged"),
    ("text", _text, "damaged"),
    ("somebody else's", _somebody_elses, "not-hermes"),
    ("truncated", _truncated, "damaged"),
    ("torn", _torn, "damaged"),
    ("a folder called so", Path.mkdir, "missing"),
    ("a pipe", os.mkfifo, "unreadable"),
]


@pytest.mark.parametrize(("make", "condition"), [case[1:] for case in _BAD_FILES], ids=[case[0] for case in _BAD_FILES])
def test_bad_inputs(tmp_path: Path, damaged: Path, make: Callable[[Path], object], condition: str) -> None:
    bad = tmp_path / "bad" / "state.db"
    bad.parent.mkdir()
    make(bad)
    done = doctor(tmp_path, "scan", bad, damaged, "--json")
    assert done.stderr == ""
    document = valid(done.stdout, "scan")
    assert (done.returncode, document["outcome"]) == (4, "damaged")
    first, second = document["databases"]
    assert first["condition"] == condition
    assert first["reason"]
    assert "\n" not in first["reason"]
    # The other store of the run is done all the same.
    assert second["findings"]

    table = doctor(tmp_path, "scan", bad)
    assert table.returncode == 4
    assert table.stderr == ""
    assert table.stdout.startswith("~/bad/state.db")
    assert "Next: " in table.stdout
    assert "Traceback" not in table.stdout


def test_a_folder_without_a_store(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = doctor(tmp_path, "scan", tmp_path / "empty")
    assert done.returncode == 4
    assert "missing" in done.stdout
    assert "Next: " in done.stdout


#: Root reads every file, whatever its mode says, by these two capabilities.
_AS_EVERYBODY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


@pytest.mark.skipif(bool(_AS_EVERYBODY) and not shutil.which("setpriv"), reason="needs setpriv to bind root")
@pytest.mark.parametrize("part", ["store", "folder"])
def test_a_store_that_may_not_be_read(tmp_path: Path, damaged: Path, part: str) -> None:
    forbidden = damaged if part == "store" else damaged.parent
    mode = forbidden.stat().st_mode
    forbidden.chmod(0)
    try:
        done = doctor(tmp_path, "scan", damaged, "--json", command=(*_AS_EVERYBODY, *MODULE))
    finally:
        forbidden.chmod(mode)
    [database] = valid(done.stdout, "scan")["databases"]
    assert (done.returncode, database["condition"]) == (4, "unreadable")
    assert "ermi" in database["reason"]


@pytest.mark.skipif(bool(_AS_EVERYBODY) and not shutil.which("setpriv"), reason="needs setpriv to bind root")
def test_a_report_that_may_not_be_written(tmp_path: Path, damaged: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    done = doctor(tmp_path, "scan", damaged, "--output", folder / "x", command=(*_AS_EVERYBODY, *MODULE))
    assert (done.returncode, done.stdout) == (3, "")
    assert "does not allow it" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_strange_names_are_shown_safely(tmp_path: Path, damaged: Path) -> None:
    folder = tmp_path / "red\x1b[31m \u202e#?%20"
    shutil.copytree(damaged.parent, folder)
    done = doctor(tmp_path, "scan", folder)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout
    assert "red\\x1b[31m \\u202e#?%20" in done.stdout


def test_a_path_that_is_no_text_is_valid_json(tmp_path: Path, damaged: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(damaged.parent, folder)
    done = doctor(tmp_path, "scan", folder, "--json")
    assert done.returncode == 1
    assert valid(done.stdout, "scan")["databases"][0]["path"].endswith("/caf\\udce9/state.db")
    assert doctor(tmp_path, "scan", folder).returncode == 1


def test_nothing_private_is_printed(tmp_path: Path, damaged: Path) -> None:
    connection = apsw.Connection(str(damaged))
    connection.execute("UPDATE messages SET content = 'topsecret'")
    connection.execute("UPDATE sessions SET title = 'topsecret ' || id WHERE title IS NOT NULL")
    connection.close()
    for option in ([], ["--json"]):
        assert "topsecret" not in doctor(tmp_path, "scan", damaged, "--limit", "99", *option).stdout


# --output


def test_output_is_written_aside_private_and_whole(tmp_path: Path, damaged: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("an older report")
    report.chmod(0o644)
    older = report.stat().st_ino
    done = doctor(tmp_path, "scan", damaged, "--json", "--output", report)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert valid(report.read_text(), "scan")["exit_code"] == 1
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    assert report.stat().st_ino != older
    assert [path.name for path in tmp_path.iterdir() if "report" in path.name] == ["report.json"]


@pytest.mark.parametrize("name", ["state.db", "state.db-wal", "state.db-shm", "state.db-journal"])
def test_output_never_replaces_a_store(tmp_path: Path, damaged: Path, name: str) -> None:
    before = listing(damaged.parent)
    (tmp_path / "link").symlink_to(damaged.with_name(name))
    for output in (damaged.with_name(name), tmp_path / "link"):
        done = doctor(tmp_path, "scan", damaged, "--output", output)
        assert done.returncode == 2
        assert "Name another file" in done.stderr
    assert listing(damaged.parent) == before


def test_output_never_replaces_another_database(tmp_path: Path, damaged: Path, healthy: Path) -> None:
    before = healthy.read_bytes()
    assert doctor(tmp_path, "scan", damaged, "--output", healthy).returncode == 2
    assert healthy.read_bytes() == before


def test_output_to_a_device_is_not_renamed_over_it(tmp_path: Path, damaged: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    running = start(tmp_path, "scan", damaged, "--json", "--output", pipe)
    with pipe.open() as reading:
        document = valid(reading.read(), "scan")
    running.communicate(timeout=60)
    assert (running.returncode, document["exit_code"]) == (1, 1)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_output_dash_is_standard_output(tmp_path: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "scan", damaged, "--json", "--output", "-")
    assert valid(done.stdout, "scan")["exit_code"] == 1


# What goes wrong with the doctor itself, by checks that are defective on purpose.


def _condition_fails(shape: Shape) -> str:
    raise LookupError("the words of topsecret")


def _defective(monkeypatch: pytest.MonkeyPatch, rule: RowRule | RelationRule) -> None:
    broken = dataclasses.replace(checks.CHECKS[0], name="defective", severity=Severity.INFO, rule=rule)
    known = catalogue.catalogue()
    with_broken = dataclasses.replace(known, checks=(*known.checks, broken))
    monkeypatch.setattr(catalogue, "catalogue", lambda: with_broken)


def test_a_defect_costs_one_store_and_never_quotes_it(
    tmp_path: Path, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_on_old_schemas(shape: Shape) -> str | None:
        return _condition_fails(shape) if shape.version == 7 else None

    _defective(monkeypatch, RowRule("messages", (), only_on_old_schemas, lambda row, view: None))
    old = make_demo_home(tmp_path / "old")
    connection = apsw.Connection(str(old))
    connection.execute("UPDATE schema_version SET version = 7")
    connection.close()

    result = CliRunner().invoke(app, ["scan", str(old), str(damaged), "--json"])
    document = valid(result.stdout, "scan")
    assert (result.exit_code, document["outcome"]) == (3, "failed")
    first, second = document["databases"]
    assert {check["status"] for check in first["checks"]} == {"failed"}
    assert "LookupError at tests/cli/test_scan.py:" in first["checks"][0]["reason"]
    assert second["findings"]
    assert "topsecret" not in result.output

    table = CliRunner().invoke(app, ["scan", str(old)])
    assert table.exit_code == 3
    assert "could not be checked" in table.output


def test_a_check_that_fails_leaves_the_others_their_findings(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(view: object, keys: object) -> None:
        raise ZeroDivisionError

    _defective(monkeypatch, RelationRule("sessions", find))  # type: ignore[arg-type]  # it never returns
    result = CliRunner().invoke(app, ["scan", str(damaged), "--json"])
    [database] = valid(result.stdout, "scan")["databases"]
    assert result.exit_code == 3
    statuses = {check["check"]: check["status"] for check in database["checks"]}
    assert [name for name, status in statuses.items() if status == "failed"] == ["defective"]
    assert statuses["open-zombies"] == "ran"
    assert database["findings"]


# Being stopped


def _wait_until_open(pid: int, store: Path) -> None:
    """Waits until the process has had the store open for a while: then it waits for the lock."""
    seen = 0
    deadline = time.monotonic() + 30
    while seen < 3:
        assert time.monotonic() < deadline, "the scan never opened the store"
        time.sleep(0.1)
        links = []
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                links.append(entry.readlink())
            except OSError:
                continue
        seen = seen + 1 if store in links else 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_stopped_scan_completes_its_document(tmp_path: Path, damaged: Path, number: signal.Signals) -> None:
    locked = make_demo_home(tmp_path / "locked")
    never = make_demo_home(tmp_path / "never")
    writer = apsw.Connection(str(locked))
    writer.execute("BEGIN EXCLUSIVE")
    running = start(tmp_path, "scan", damaged, locked, never, "--json")
    try:
        _wait_until_open(running.pid, locked)
        running.send_signal(number)
        stdout, stderr = running.communicate(timeout=60)
    finally:
        running.kill()
        writer.close()
    document = valid(stdout, "scan")
    assert (running.returncode, document["exit_code"], document["outcome"]) == (7, 7, "stopped")
    assert [database["path"] for database in document["databases"]] == [str(damaged)]
    assert document["not_scanned"] == [str(locked), str(never)]
    assert "2 of 3 stores were not read" in stderr
    assert len(stderr.splitlines()) == 1
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_locked_store_is_said_to_be_locked(tmp_path: Path) -> None:
    locked = make_demo_home(tmp_path / "locked")
    writer = apsw.Connection(str(locked))
    writer.execute("BEGIN EXCLUSIVE")
    try:
        done = doctor(tmp_path, "scan", locked)
    finally:
        writer.close()
    assert done.returncode == 4
    assert "cannot be read" in done.stdout
    assert "locked" in done.stdout


def _waiting_in(pipe: IO[str]) -> int:
    """Returns how many bytes nobody has read yet."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]  # type: ignore[no-any-return]  # an int


@pytest.mark.skipif(sys.platform != "linux", reason="a pipe holds 64 KiB here")
def test_a_stop_while_the_document_is_written_leaves_half_of_one(tmp_path: Path, damaged: Path) -> None:
    connection = apsw.Connection(str(damaged))
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
        " INSERT INTO sessions(id, source, started_at, message_count) SELECT 'z' || i, 'cron', 1700000000 + i, 1 FROM n"
    )
    connection.close()
    # Nobody reads: far more than a pipe holds is to be written, so the doctor waits.
    running = start(tmp_path, "scan", damaged, "--json")
    try:
        assert running.stdout is not None
        deadline = time.monotonic() + 30
        # How much fits in depends on the size of the pieces, and that on Python.
        while (waiting := _waiting_in(running.stdout)) < 30_000:
            assert time.monotonic() < deadline, f"the scan never filled its pipe: {waiting} bytes"
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        code = running.wait(timeout=30)
        stdout, stderr = running.communicate(timeout=60)
    finally:
        running.kill()
    assert code == 7
    assert stderr.startswith("doctor: stopped.")
    assert len(stderr.splitlines()) == 1
    with pytest.raises(json.JSONDecodeError):
        json.loads(stdout)


def test_since_last_reads_what_is_new_and_says_so(tmp_path: Path, damaged: Path) -> None:
    full = valid(doctor(tmp_path, "scan", damaged, "--json").stdout, "scan")
    first = doctor(tmp_path, "scan", "--since-last", damaged)
    assert first.returncode == 1
    assert " read: nothing was kept of an earlier scan by this doctor with these checks." in " ".join(
        first.stdout.split()
    )
    second = valid(doctor(tmp_path, "scan", "--since-last", "--json", damaged).stdout, "scan")
    [database] = second["databases"]
    assert database["since_last"] == {"messages_known": database["messages"], "messages_read": 0, "doubt": None}
    rows = [
        [(finding["check"], finding["table"], finding["key"]) for finding in document["databases"][0]["findings"]]
        for document in (full, second)
    ]
    assert rows[0] == rows[1] != []
    assert full["databases"][0]["since_last"] is None
    third = doctor(tmp_path, "scan", "--since-last", damaged)
    assert f"0 messages read, new or perhaps changed since the last scan; {database['messages']} proven" in " ".join(
        third.stdout.split()
    )
    # What is kept is the user's own, and lies in no home.
    assert [path.name for path in damaged.parent.iterdir() if "scan" in path.name] == []


def test_since_last_keeps_to_one_line_for_a_healthy_store(tmp_path: Path, healthy: Path) -> None:
    for read in ("2 of 2 messages read · nothing was kept", "0 of 2 messages read\n"):
        done = doctor(tmp_path, "scan", "--since-last", healthy)
        assert done.returncode == 0
        assert len(done.stdout.splitlines()) == 1
        assert read in done.stdout


def test_a_scan_without_time_says_so(tmp_path: Path, healthy: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "scan", "--max-duration", "0s", healthy, damaged, "--json")
    document = valid(done.stdout, "scan")
    assert (done.returncode, document["outcome"]) == (7, "stopped")
    assert document["not_scanned"] == [str(healthy), str(damaged)]
    assert done.stderr == (
        "doctor: its time was up. 2 of 2 stores were not read. Nothing was changed; the same command starts over.\n"
    )


def test_a_scan_with_time_enough_is_like_any_other(tmp_path: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "scan", "--max-duration", "10m", "--threads", "2", damaged, "--json")
    [database] = valid(done.stdout, "scan")["databases"]
    assert (done.returncode, database["stopped"]) == (1, None)
