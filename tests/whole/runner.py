"""Runs commands of the doctor in processes of their own, each forked from one that has the program loaded.

A kill needs a real process, and a proof of kills needs hundreds: starting an interpreter for each would take most of
the time. ``python -m tests.whole.runner`` is the process that forks; `Doctors` is the test's side of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from tests.whole import tracing

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal that killed it), and what it said.

    ``calls``: how often it entered or left the system, where that was counted.
    """

    code: int
    out: str
    err: str
    calls: int = 0

    def json(self) -> dict[str, Any]:
        """The single database of the report."""
        (database,) = json.loads(self.out)["databases"]
        assert isinstance(database, dict)
        return database


class Doctors:
    """Starts doctors, one at a time; a context manager. ``folder`` takes what they say and their state.

    ``late``: wrong ones, whose journal is written after the store's commit.
    """

    def __init__(self, folder: Path, *, late: bool = False) -> None:
        self._folder = folder
        #: Where they put temporary files.
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.whole.runner", *(["late"] if late else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
        )

    def run(
        self,
        *arguments: str | Path,
        kill_at: str | None = None,
        kill_call: int | None = None,
        user: int | None = None,
        started: Callable[[int], None] | None = None,
    ) -> Ended:
        """Run one command to its end.

        ``kill_at``: a step, its count, and the signal that it gets there, SIGKILL unless another is named;
        ``kill_call``: the number of the time that it enters or leaves the system, at which it is killed (0: never);
        ``user``: as whom it runs, this process's own unless another is given; ``started`` is called with the process
        id.
        """
        out, err = self._folder / "out", self._folder / "err"
        environment = {
            "XDG_STATE_HOME": str(self._folder / "state"),
            "TMPDIR": str(self.temporary),
            "COLUMNS": "80",
        }
        if kill_at is not None:
            environment["HERMES_DOCTOR_KILL_AT"] = kill_at
        request = {
            "arguments": [str(argument) for argument in arguments],
            "environment": environment,
            "out": str(out),
            "err": str(err),
            "kill_call": kill_call,
            "user": user,
        }
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        pid = self._answer()
        try:
            if started is not None:
                started(pid)
        except BaseException:
            # It may have stopped itself, and nobody is left who would let it go on.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise
        finally:
            code, calls = self._answer(), self._answer()
        return Ended(code, out.read_text(), err.read_text(), calls)

    def _answer(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=60)
        self._server.stdout.close()


def serve(requests: TextIO, answers: TextIO) -> None:
    """Fork once for each line that comes in; answer with the child's id, and when it ends with how, see `Ended`."""
    for line in requests:
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        traced = request["kill_call"] is not None
        if child == 0:
            if traced:
                tracing.be_traced()
            _become_doctor(request)
        answers.write(f"{child}\n")
        answers.flush()
        if traced:
            code, calls = tracing.trace(child, request["kill_call"])
        else:
            code, calls = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0
        answers.write(f"{code}\n{calls}\n")
        answers.flush()


def _become_doctor(request: Mapping[str, Any]) -> None:
    """Be the command from here on; never returns."""
    from hermes_doctor.cli.run import run

    code = 3
    try:
        streams = ((0, os.devnull, os.O_RDONLY), (1, request["out"], os.O_WRONLY), (2, request["err"], os.O_WRONLY))
        for number, name, flags in streams:
            opened = os.open(name, flags if number == 0 else flags | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, number)
            os.close(opened)
        if request["user"] is not None:
            # Somebody else may not be able to read this Python: a plan loads what will be needed.
            run([each for each in request["arguments"] if each not in ("--apply", "--yes")])
            sys.stdout.flush()
            for number in (1, 2):
                os.ftruncate(number, 0)
                os.lseek(number, 0, os.SEEK_SET)
            os.setgid(request["user"])
            os.setuid(request["user"])
        os.environ.update(request["environment"])
        code = run(request["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _load() -> None:
    """Import what the commands import when they are called, so that the children find it loaded."""
    import importlib.metadata  # noqa: F401  # loading is the purpose, here and below

    import checks  # noqa: F401
    import fixes  # noqa: F401
    import hermes_doctor.cli.compact
    import hermes_doctor.cli.fix
    import hermes_doctor.cli.rescue
    import hermes_doctor.cli.scan
    import hermes_doctor.cli.undo
    import hermes_doctor.engine.apply
    import hermes_doctor.engine.compact
    import hermes_doctor.engine.undo
    import hermes_doctor.report.changes_json
    import hermes_doctor.report.compact_json
    import hermes_doctor.report.fix_table
    import hermes_doctor.report.json
    import hermes_doctor.report.rescue_json
    import hermes_doctor.report.undo_table
    import hermes_doctor.rescue.run  # noqa: F401


if __name__ == "__main__":
    _load()
    if "late" in sys.argv[1:]:
        from tests.whole.vfs_log import write_late

        write_late()
    serve(sys.stdin, sys.stdout)
