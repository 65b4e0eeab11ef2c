"""Who has a store open: by the lease, by /proc, by psutil; each against real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from hermes_doctor.host import holders
from hermes_doctor.host.bundle import Bundle, inspect
from hermes_doctor.host.holders import Holding, find_holding
from hermes_doctor.host.lease import Lease, LeaseRefusal, take_lease
from tests.host.evidence import may_unshare, run_python

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

#: Nobody's user: no process of this machine runs as it, so none of its processes can be unreadable.
LONELY = 64_321

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A store in WAL mode that nobody has open."""
    path = tmp_path / "state.db"
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE sessions(id, source, started_at); CREATE TABLE messages(id, session_id, role)")
    connection.close()
    if os.geteuid() == 0:
        os.chown(path, LONELY, LONELY)
    return inspect(path)


@contextmanager
def another(code: str, *arguments: str) -> Iterator[int]:
    """Another process that has run the code and then waits; gives its id."""
    command = [sys.executable, "-c", code + "\nprint(flush=True); sys.stdin.read()", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n", "the other process failed"
        yield process.pid
        process.communicate()


WRITER = "import sys; f = open(sys.argv[1], 'r+b')"
READER = "import sys; f = open(sys.argv[1], 'rb')"
HERMES_LIKE = "import sys, apsw; c = apsw.Connection(sys.argv[1]); c.execute('INSERT INTO sessions VALUES (1, 2, 3)')"


@pytest.mark.parametrize("code", [WRITER, HERMES_LIKE])
@pytest.mark.parametrize("lease", [None, LeaseRefusal.UNAVAILABLE])
def test_a_writer_is_a_holder_by_lease_and_by_proc(bundle: Bundle, code: str, lease: LeaseRefusal | None) -> None:
    with another(code, str(bundle.path)) as pid:
        found = find_holding(bundle, lease)
        assert (found.state, [each.pid for each in found.holders]) == ("yes", [pid])
        assert found.holders[0].name.startswith("python")
        assert not found.deleted_sidecar


@pytest.mark.parametrize("lease", [None, pytest.param(LeaseRefusal.UNAVAILABLE, marks=ROOT)])
def test_nobody_and_mere_readers_are_no_holders(bundle: Bundle, lease: LeaseRefusal | None) -> None:
    assert find_holding(bundle, lease) == Holding("no")
    with another(READER, str(bundle.path)):
        assert find_holding(bundle, lease) == Holding("no")


#: What SQLite opens for who only reads, beside somebody who writes: a log, and its index, for writing.
ONLY_READS = (
    "import sys, apsw; flags = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READONLY\n"
    "reader = apsw.Connection(f'file:{sys.argv[1]}?mode=ro', flags=flags)\n"
    "reader.execute('SELECT count(*) FROM sessions').get\n"
)


def test_who_reads_a_store_with_a_log_is_no_holder(bundle: Bundle) -> None:
    """As another doctor that scans it, or makes a backup."""
    with another(HERMES_LIKE, str(bundle.path)) as writer, another(ONLY_READS, str(bundle.path)) as reader:
        opened = {entry.resolve().name: entry.name for entry in Path(f"/proc/{reader}/fd").iterdir()}
        for name in ("state.db-wal", "state.db-shm"):
            assert holders.may_write(Path(f"/proc/{reader}/fdinfo/{opened[name]}"))
        found = find_holding(bundle, LeaseRefusal.UNAVAILABLE)
        assert [each.pid for each in found.holders] == [writer]


def test_who_also_reads_and_has_the_log_of_a_store_that_was_moved_away_is_a_holder(bundle: Bundle) -> None:
    """It writes to the log that lies beside the new store."""
    moved = (
        f"{HERMES_LIKE}\nimport os, shutil\nos.rename(sys.argv[1], sys.argv[1] + '.old')\n"
        f"shutil.copy(sys.argv[1] + '.old', sys.argv[1])\n{ONLY_READS.replace('mode=ro', 'mode=ro&readonly_shm=1')}"
    )
    with another(moved, str(bundle.path)) as pid:
        new = inspect(bundle.path)
        assert new.inode != bundle.inode
        assert [each.pid for each in find_holding(new, LeaseRefusal.UNAVAILABLE).holders] == [pid]


def test_the_doctor_itself_never_counts(bundle: Bundle) -> None:
    with bundle.path.open("r+b"):
        assert find_holding(bundle, LeaseRefusal.UNAVAILABLE).holders == ()
    lease = take_lease(bundle.path)
    assert isinstance(lease, Lease)
    with lease:
        assert find_holding(bundle, lease) == Holding("no")
        assert find_holding(bundle, LeaseRefusal.UNAVAILABLE).holders == ()


def test_only_a_sidecar_open_is_holding(bundle: Bundle, tmp_path: Path) -> None:
    wal = tmp_path / "state.db-wal"
    wal.write_bytes(b"")
    with another(WRITER, str(wal)) as pid:
        assert [each.pid for each in find_holding(bundle, LeaseRefusal.UNAVAILABLE).holders] == [pid]


def test_a_deleted_sidecar_is_seen(bundle: Bundle, tmp_path: Path) -> None:
    with another(HERMES_LIKE, str(bundle.path)) as pid:
        for suffix in ("-wal", "-shm"):
            tmp_path.joinpath("state.db" + suffix).unlink()
        for lease in (None, LeaseRefusal.UNAVAILABLE):
            found = find_holding(bundle, lease)
            assert found.deleted_sidecar
            assert [each.pid for each in found.holders] == [pid]


def test_another_store_of_the_same_name_is_another(bundle: Bundle, tmp_path: Path) -> None:
    other = tmp_path / "profiles" / "state.db"
    other.parent.mkdir()
    other.write_bytes(bundle.path.read_bytes())
    with another(WRITER, str(other)):
        assert find_holding(bundle, LeaseRefusal.UNAVAILABLE).holders == ()


def test_a_broken_lease_is_asked_anew(bundle: Bundle) -> None:
    lease = take_lease(bundle.path)
    assert isinstance(lease, Lease)
    with another(WRITER, str(bundle.path)) as pid:
        found = find_holding(bundle, lease)
    assert (found.state, [each.pid for each in found.holders]) == ("yes", [pid])


@ROOT
def test_an_unreadable_process_of_the_owner_makes_it_unknown(bundle: Bundle) -> None:
    """A process that gave up being root cannot be looked into by the user that it became."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from hermes_doctor.host.bundle import inspect\n"
        "from hermes_doctor.host.holders import find_holding\n"
        "from hermes_doctor.host.lease import LeaseRefusal\n"
        "bundle = inspect(Path(sys.argv[1])); user = int(sys.argv[2])\n"
        "os.setgroups([]); os.setgid(user); os.setuid(user)\n"
        "print(find_holding(bundle, LeaseRefusal.UNAVAILABLE).state)"
    )
    with tempfile.TemporaryDirectory() as folder:
        store = shutil.copy(bundle.path, folder)
        os.chown(store, LONELY, LONELY)
        assert run_python(code, store, str(LONELY)).stdout.strip() == "no"
        becomes = "import os, sys; os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))"
        with another(becomes, str(LONELY)):
            assert run_python(code, store, str(LONELY)).stdout.strip() == "unknown"
            assert find_holding(inspect(Path(store)), LeaseRefusal.UNAVAILABLE).state == "no", "root can look"


@pytest.mark.skipif(not may_unshare(), reason="this machine does not let us make a pid namespace (unshare)")
def test_in_a_pid_namespace_of_its_own_none_seen_is_unknown(bundle: Bundle) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from hermes_doctor.host.bundle import inspect\n"
        "from hermes_doctor.host.holders import find_holding\n"
        "from hermes_doctor.host.lease import LeaseRefusal\n"
        "b = inspect(Path(sys.argv[1]))\n"
        "print(find_holding(b).state, find_holding(b, LeaseRefusal.UNAVAILABLE).state)"
    )
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code, str(bundle.path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def seen() -> list[str]:
        return subprocess.run(inside, capture_output=True, text=True, check=True, env=environment).stdout.split()

    assert seen() == ["no", "unknown"]
    with another(WRITER, str(bundle.path)):
        assert seen() == ["yes", "unknown"]


def test_psutil_names_holders_where_there_is_no_proc_of_ours(bundle: Bundle) -> None:
    with another(WRITER, str(bundle.path)) as pid, another(READER, str(bundle.path)):
        assert [each.pid for each in holders._ask_psutil(bundle).holders] == [pid]
    assert holders._ask_psutil(bundle).holders == []
