"""Read leases on real files, with real processes in the way."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_doctor.host.lease import Lease, LeaseRefusal, file_system_of, on_local_disk, take_lease
from tests.host.evidence import no_trace_in, run_python

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="leases are Linux's")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file on a file system that has leases."""
    path = tmp_path / "state.db"
    path.write_bytes(b"x" * 5000)
    return path


@pytest.fixture
def lease(file: Path) -> Iterator[Lease]:
    taken = take_lease(file)
    assert isinstance(taken, Lease)
    yield taken
    taken.release()


def test_nobody_there(file: Path, tmp_path: Path) -> None:
    with no_trace_in(tmp_path):
        lease = take_lease(file)
        assert isinstance(lease, Lease)
        with lease:
            assert lease.intact()
            assert lease.intact()
    assert not lease.intact()


def test_somebody_has_it_open_for_writing(file: Path) -> None:
    with file.open("r+b"):
        assert take_lease(file) is LeaseRefusal.HELD
    lease = take_lease(file)
    assert isinstance(lease, Lease)
    lease.release()


def test_readers_are_nobody(file: Path, lease: Lease) -> None:
    with file.open("rb") as reading:
        other = take_lease(file)
        assert isinstance(other, Lease)
        with other:
            reading.read()
            run_python("import sys; open(sys.argv[1], 'rb').read()", str(file))
            assert other.intact()
            assert lease.intact()


@pytest.mark.parametrize(
    "code",
    [
        "import os, sys; os.close(os.open(sys.argv[1], os.O_WRONLY))",
        "import os, sys; os.close(os.open(sys.argv[1], os.O_RDWR | os.O_APPEND))",
        "import os, sys; os.truncate(sys.argv[1], 10)",
    ],
)
def test_writing_breaks_it_for_good_and_never_waits(file: Path, lease: Lease, code: str) -> None:
    timed = f"import time; t = time.monotonic()\n{code}\nprint(time.monotonic() - t)"
    waited = float(run_python(timed, str(file)).stdout)
    assert waited < 1.0, "the kernel would wait lease-break-time, 45 s"
    assert not lease.intact()
    assert not lease.intact()


def test_broken_is_seen_no_later_than_the_writer_goes_on(file: Path) -> None:
    """At once after the open returns, however busy the helper is: many times, since it is a race."""
    for _ in range(20):
        lease = take_lease(file)
        assert isinstance(lease, Lease)
        with lease, file.open("r+b"):
            assert not lease.intact()


def test_a_helper_that_died_is_no_proof(file: Path, lease: Lease) -> None:
    os.kill(lease.pid, signal.SIGKILL)
    assert not lease.intact()


def test_a_dropped_lease_is_given_back(file: Path) -> None:
    lease = take_lease(file)
    assert isinstance(lease, Lease)
    pid = lease.pid
    del lease
    assert not Path(f"/proc/{pid}").exists()


def test_ctrl_c_is_not_for_the_helper(lease: Lease) -> None:
    assert os.getpgid(lease.pid) != os.getpgid(os.getpid())


def test_no_such_file(tmp_path: Path) -> None:
    assert take_lease(tmp_path / "none") is LeaseRefusal.UNAVAILABLE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_foreign_owner_gives_none(tmp_path: Path) -> None:
    """A lease is for the owner, or for one with CAP_LEASE."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from hermes_doctor.host.lease import take_lease\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(take_lease(Path(sys.argv[1])))"
    )
    assert run_python(code, "/etc/passwd").stdout.strip() == "LeaseRefusal.UNAVAILABLE"


def test_what_the_kernel_alone_does_not_write_gives_none() -> None:
    assert take_lease(Path("/proc/self/status")) is LeaseRefusal.UNAVAILABLE


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:5 / /home rw - nfs4 server:/home rw
24 22 0:6 / /home/me/with\\040space rw - fuse.sshfs host: rw
25 22 0:7 / /home/me/local rw - xfs /dev/vdb rw
26 22 0:8 / /twice rw - ext4 /dev/vdc rw
27 26 0:9 / /twice rw - 9p share rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "ext4"),
        ("/etc/x", "ext4"),
        ("/home/x/state.db", "nfs4"),
        ("/homes/x/state.db", "ext4"),
        ("/home/me/with space/state.db", "fuse.sshfs"),
        ("/home/me/local/state.db", "xfs"),
        ("/twice/state.db", "9p"),
    ],
)
def test_the_file_system_is_that_of_the_innermost_mount(path: str, expected: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == expected


def test_the_file_system_of_this_machine() -> None:
    assert file_system_of(Path("/proc/self/status")) == "proc"


def test_only_a_disk_that_this_machine_alone_writes_is_local(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to("/proc/self/status")
    loop = file.with_name("loop")
    loop.symlink_to(loop)
    assert on_local_disk(file)
    assert not any(on_local_disk(path) for path in (link, loop, Path("/proc/self/status")))


def test_it_costs_little(file: Path) -> None:
    started = time.monotonic()
    with take_lease(file):  # type: ignore[union-attr]  # a refusal fails the test
        pass
    assert time.monotonic() - started < 2.0
