"""The helper process that holds a read lease; run as a script of its own, with nothing of ours imported.

Arguments: the store's path. It answers on standard output with one line: ``ok DEVICE INODE``, ``held``, or
``unavailable ERRNO``. Then, for each byte on standard input, one byte: ``y`` while the lease stands. When somebody
opens the file for writing, the kernel holds that open back and sends SIGIO: first a ``b`` is written, then the lease
is let go, so whoever asks afterwards cannot be told a stale yes, and the opener waits for microseconds only.
The end of standard input, that is, of the doctor, ends it.
"""

# Its imports are most of what it costs: `signal` and `contextlib` would take as long as the start of Python itself.
import _signal  # type: ignore[import-not-found]  # it has no stub
import fcntl
import os
import select
import sys


def _main(path: str) -> None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except BlockingIOError:
        _answer(b"held\n")
        return
    except OSError as error:
        _answer(b"unavailable %d\n" % (error.errno or 0))
        return

    def let_go(signum: int, frame: object) -> None:
        try:  # noqa: SIM105 (as above)
            os.write(1, b"b")
        except OSError:
            pass
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    # The C-level handler writes to this pipe, so that a signal just before poll() still wakes it.
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    _signal.signal(_signal.SIGIO, let_go)
    _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        _answer(b"held\n")
        return
    except OSError as error:
        _answer(b"unavailable %d\n" % (error.errno or 0))
        return
    status = os.fstat(file)
    _answer(b"ok %d %d\n" % (status.st_dev, status.st_ino))
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(awake, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            asked = os.read(descriptor, 1)
            if descriptor != 0:
                return
            if not asked:
                return
            stands = fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_RDLCK
            _answer(b"y" if stands else b"b")


def _answer(text: bytes) -> None:
    os.write(1, text)


if __name__ == "__main__":
    try:  # noqa: SIM105 (as above)
        _main(sys.argv[1])
    except BrokenPipeError:
        pass
