"""Who has which file of a store open, by which descriptor, and which of them were deleted: real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from hermes_doctor.host.bundle import Bundle, inspect
from hermes_doctor.host.openers import openers, without_files
from tests.host.waiting import waiting

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A store in WAL mode that nobody has open."""
    path = tmp_path / "state.db"
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE t(x)")
    connection.close()
    return inspect(path)


WRITES = "import apsw; c = apsw.Connection(sys.argv[1]); c.execute('INSERT INTO t VALUES (1)')"
READS = "f = open(sys.argv[1], 'rb')"


def test_a_writer_with_its_files(bundle: Bundle) -> None:
    assert openers(bundle) == []
    with waiting(WRITES, bundle.path) as pid, waiting(READS, bundle.path) as reader:
        by_pid = {each.pid: each for each in openers(bundle)}
        assert set(by_pid) == {pid, reader}
        assert (by_pid[reader].store.writes, by_pid[reader].log, by_pid[reader].deleted) == (False, None, ())
        writer = by_pid[pid]
        assert writer.name.startswith("python")
        assert writer.deleted == ()
        files = {bundle.real_path: writer.store, bundle.wal_path: writer.log, bundle.shm_path: writer.index}
        for path, file in files.items():
            assert file is not None
            assert file.writes
            assert Path(writer.descriptor(file)).samefile(path)
        assert without_files(openers(bundle), bundle) == []


def test_deleted_files_are_those_that_have_no_name(bundle: Bundle) -> None:
    with waiting(WRITES, bundle.path) as pid:
        bundle.shm_path.unlink()
        bundle.wal_path.unlink()
        with waiting(WRITES, bundle.path) as newer:
            assert [(each.pid, each.deleted) for each in without_files(openers(bundle), bundle)] == [
                (pid, ("-wal", "-shm"))
            ]
            assert {each.pid for each in openers(bundle)} == {pid, newer}


def test_a_store_that_was_replaced_is_known_by_its_path(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(bundle.path.read_bytes())
    with waiting(WRITES, bundle.path) as pid:
        (tmp_path / "new").rename(bundle.path)
        there = inspect(bundle.path)
        [opener] = without_files(openers(there, any_program=False), there)
        assert (opener.pid, opener.deleted) == (pid, ("",))
        assert opener.store.inode == bundle.inode


def test_a_store_that_is_known_by_another_path_is_known_by_its_inode(bundle: Bundle, tmp_path: Path) -> None:
    """As in a container that has the home mounted elsewhere."""
    elsewhere = tmp_path / "elsewhere" / "state.db"
    elsewhere.parent.mkdir()
    elsewhere.hardlink_to(bundle.path)
    with waiting(WRITES, elsewhere) as pid:
        elsewhere.with_name("state.db-wal").unlink()
        assert [(each.pid, each.deleted) for each in without_files(openers(bundle), bundle)] == [(pid, ("-wal",))]


def test_another_store_is_waiting(bundle: Bundle, tmp_path: Path) -> None:
    other = tmp_path / "other" / "state.db"
    other.parent.mkdir()
    other.write_bytes(bundle.path.read_bytes())
    with waiting(WRITES, other):
        other.with_name("state.db-wal").unlink()
        assert openers(bundle) == []


def test_who_just_closes_it_is_not_told(bundle: Bundle) -> None:
    """SQLite deletes a log while it has it open still."""
    closing = (
        f"{WRITES}\nimport os, threading\nos.unlink(sys.argv[1] + '-wal')\n"
        "threading.Timer(0.04, lambda: os._exit(0)).start()"
    )
    with waiting(closing, bundle.path) as pid:
        assert [(each.pid, each.deleted) for each in openers(bundle)] == [(pid, ("-wal",))]
        assert without_files(openers(bundle), bundle) == []


def test_programs_that_are_no_python_can_be_left_out(bundle: Bundle) -> None:
    with bundle.path.open("r+b") as file, subprocess.Popen(["sleep", "60"], stdin=file) as process:
        assert [(each.pid, each.store.descriptor) for each in openers(bundle)] == [(process.pid, 0)]
        assert openers(bundle, any_program=False) == []
        process.kill()
    with waiting(WRITES, bundle.path) as pid:
        assert [each.pid for each in openers(bundle, any_program=False)] == [pid]
    with bundle.path.open("r+b"):
        assert os.getpid() not in {each.pid for each in openers(bundle)}
