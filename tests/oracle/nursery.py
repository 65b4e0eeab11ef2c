"""Starts the subprocesses of releases: forked from one that has the libraries loaded, which saves most of a start."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, Protocol

NURSE: Final = Path(__file__).with_name("nurse.py")
DRIVER: Final = Path(__file__).with_name("driver.py")


class Child(Protocol):
    """What is used of a subprocess, as ``subprocess.Popen`` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


def start(
    home: Path,
    environment: Mapping[str, str],
    *,
    stdin: IO[Any],
    stdout: IO[Any],
    stderr: IO[Any],
    fresh: bool = False,
    wrapper: Sequence[str] = (),
) -> Child:
    """Starts the driver on a home.

    ``fresh``: a Python that was just started, as it also is behind a ``wrapper`` and where nothing can be forked.
    """
    if fresh or wrapper or not hasattr(os, "pidfd_open"):
        # -P keeps this folder's modules out of its path.
        command = [*wrapper, sys.executable, "-P", str(DRIVER), str(home)]
        return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=home, env=dict(environment))
    asked = {
        "arguments": [str(home)],
        "folder": str(home),
        "environment": dict(environment),
        "paths": environment["PYTHONPATH"].split(os.pathsep),
    }
    mine, theirs = os.pipe()
    try:
        descriptors = [stdin.fileno(), stdout.fileno(), stderr.fileno(), theirs]
        socket.send_fds(_nurse(), [json.dumps(asked).encode()], descriptors)
    finally:
        os.close(theirs)
    return _Forked(mine)


@cache
def _nurse() -> socket.socket:
    """One for each process that tests; it ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = {key: os.environ[key] for key in ("PATH", "SYSTEMROOT") if key in os.environ}
    with theirs:
        nurse = subprocess.Popen(
            [sys.executable, "-P", str(NURSE), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd="/",
            # As home.environment has it, where Python looks at its start.
            env=kept | {"LANG": "C.UTF-8", "PYTHONNOUSERSITE": "1"},
        )

    def end() -> None:
        ours.close()
        nurse.wait()

    atexit.register(end)
    return ours


class _Forked:
    """A child of the nurse, who tells when it has ended."""

    def __init__(self, status: int) -> None:
        self._status = os.fdopen(status, "rb", buffering=0)
        self._lock = threading.Lock()
        self._code: int | None = None
        line = self._status.readline()
        if not line:
            raise AssertionError("the nurse of the releases is gone")
        self.pid = int(line)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(["fork of", str(DRIVER)], timeout or 0.0)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            if self._code is None:
                left = None if until is None else max(0.0, until - time.monotonic())
                if not select.select([self._status], [], [], left)[0]:
                    return None
                line = self._status.readline()
                self._status.close()
                if not line:
                    raise AssertionError("the nurse of the releases is gone")
                self._code = int(line)
            return self._code

    def __del__(self) -> None:
        self._status.close()
