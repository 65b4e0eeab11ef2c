"""Counting how often a process enters and leaves the system, and killing it at one of these times.

What a process does to files it does by calls of the system (or, of a log's index, in memory that it shares): so a
kill at each of them is a kill at each state in which the files can be left.
"""

from __future__ import annotations

import ctypes
import os
import signal

_TRACEME, _SYSCALL, _SETOPTIONS = 0, 24, 0x4200
#: Stops of calls are told apart from signals, and the child ends with its tracer.
_OPTIONS = 0x1 | 0x100000
_CALL = signal.SIGTRAP | 0x80


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = [ctypes.c_long] * 4
    library.ptrace.restype = ctypes.c_long
    if library.ptrace(request, pid, 0, data) == -1:
        raise OSError(ctypes.get_errno(), "ptrace")


def be_traced() -> None:
    """Let the parent count this process's calls from here on."""
    _ptrace(_TRACEME, 0)
    os.kill(os.getpid(), signal.SIGSTOP)


def trace(child: int, fatal: int) -> tuple[int, int]:
    """Let a child that waits in `be_traced` go on to its end; return its exit code, and how many stops there were.

    Each call of its first thread counts twice, when it begins and when it ends. ``fatal``: at which of these it is
    killed; 0: never. It must be a child of the calling thread.
    """
    os.waitpid(child, 0)
    _ptrace(_SETOPTIONS, child, _OPTIONS)
    calls = passed_on = 0
    while True:
        _ptrace(_SYSCALL, child, passed_on)
        passed_on = 0
        _pid, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status), calls
        if os.WSTOPSIG(status) != _CALL:
            passed_on = os.WSTOPSIG(status)
            continue
        calls += 1
        if calls == fatal:
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), calls
