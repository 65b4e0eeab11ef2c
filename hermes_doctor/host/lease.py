"""Read leases: the kernel's word that nobody has a file open for writing (Linux, ``F_SETLEASE``).

A lease is refused while anybody has the file open for writing, in whichever pid namespace, and it is broken before
anybody's opening for writing returns. A helper process holds it: to take it one has to open the file, and closing a
descriptor of a file in a process that has it open through SQLite would drop that connection's locks.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import select
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

#: File systems whose inodes the local kernel alone writes. On a network file system, FUSE, 9p or virtiofs a lease may
#: be granted although another machine, or the host of this one, has the file open for writing.
_LOCAL = frozenset(
    {"bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2"}
    | {"overlay", "ramfs", "reiserfs", "tmpfs", "vfat", "xfs", "zfs"}
)
_HELPER = Path(__file__).with_name("lease_helper.py")
#: Seconds that starting the helper, and one answer of it, may take on a busy machine.
_START_SECONDS = 20.0
_ANSWER_SECONDS = 5.0


class LeaseRefusal(enum.Enum):
    """Why there is no lease. HELD: somebody has the file open for writing. UNAVAILABLE: there are no leases here."""

    HELD = "held"
    UNAVAILABLE = "unavailable"


class Lease:
    """A read lease on one file; a context manager, or call `release`."""

    def __init__(self, helper: subprocess.Popen[bytes]) -> None:
        self._helper = helper
        self._lock = threading.Lock()
        self._stands = True

    @property
    def pid(self) -> int:
        """The helper's process id: it is the doctor's own and never a holder."""
        return self._helper.pid

    def intact(self) -> bool:
        """Return False from before the moment that anybody's opening the file for writing succeeds.

        So what was read before asking, and is answered by True, was read while nobody could write. Once False, it
        stays so.
        """
        with self._lock:
            if self._stands and not self._ask():
                self._stop()
            return self._stands

    def release(self) -> None:
        """Give the lease back. May be called more than once."""
        with self._lock:
            self._stop()

    def _ask(self) -> bool:
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        try:
            os.write(self._helper.stdin.fileno(), b"?")
            return _read(self._helper, 1, _ANSWER_SECONDS) == b"y"
        except OSError:
            return False

    def _stop(self) -> None:
        self._stands = False
        _end(self._helper)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._stop()


def take_lease(path: Path) -> Lease | LeaseRefusal:
    """Take a read lease on a file, or say why there is none. Costs about 20 ms, the start of the helper."""
    if not sys.platform.startswith("linux") or not sys.executable:
        return LeaseRefusal.UNAVAILABLE
    try:
        real_path = path.resolve()
        expected = real_path.stat()
        if file_system_of(real_path) not in _LOCAL:
            return LeaseRefusal.UNAVAILABLE
        helper = subprocess.Popen(
            [sys.executable, "-I", "-S", os.fspath(_HELPER), os.fspath(real_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C, or stopping the doctor with Ctrl-Z, must not keep it from letting go.
            start_new_session=True,
            cwd="/",
        )
    except (OSError, RuntimeError, ValueError):
        return LeaseRefusal.UNAVAILABLE
    answer = _read_line(helper).split()
    if answer == [b"ok", b"%d" % expected.st_dev, b"%d" % expected.st_ino]:
        return Lease(helper)
    _end(helper)
    return LeaseRefusal.HELD if answer == [b"held"] else LeaseRefusal.UNAVAILABLE


def on_local_disk(path: Path) -> bool:
    """Whether a file that is there lies on a disk that this machine alone writes; False also where nobody can tell."""
    try:
        return file_system_of(path.resolve(strict=True)) in _LOCAL
    except (OSError, RuntimeError):
        return False


def file_system_of(path: Path, mounts: str | None = None) -> str | None:
    """Return the type of the file system that an absolute path lies on, from ``/proc/self/mountinfo``'s text.

    None where that cannot be read. ``mounts`` stands in for the file.
    """
    if mounts is None:
        try:
            mounts = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
        except OSError:
            return None
    found: tuple[int, str] | None = None
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if not rest or len(fields.split()) < 5:
            continue
        point = Path(_unescaped(fields.split()[4]))
        # Of two at one place the later is the one on top.
        if path.is_relative_to(point) and (found is None or len(point.parts) >= found[0]):
            found = (len(point.parts), rest.split()[0])
    return found[1] if found else None


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _read_line(helper: subprocess.Popen[bytes]) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        more = _read(helper, 1, _START_SECONDS)
        if not more:
            return b""
        line += more
    return line


def _read(helper: subprocess.Popen[bytes], count: int, seconds: float) -> bytes:
    """Read from the helper; no bytes where it has ended or does not answer in time."""
    assert helper.stdout is not None
    poll = select.poll()
    poll.register(helper.stdout, select.POLLIN)
    if not poll.poll(seconds * 1000):
        return b""
    return os.read(helper.stdout.fileno(), count)


def _end(helper: subprocess.Popen[bytes]) -> None:
    for pipe in (helper.stdin, helper.stdout):
        if pipe is not None and not pipe.closed:
            pipe.close()
    if helper.poll() is None:
        # The lease goes with the process; waiting for it makes sure that nobody runs into it afterwards.
        helper.kill()
        helper.wait()
