"""A release that stays alive: it holds the store open, and writes when it is told to."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from tests.oracle import nursery
from tests.oracle.home import CallError, Home, OracleError, decoded, environment
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, open_store


class HermesProcess:
    """One living process of a release on a home's store; a context manager.

    It answers one step at a time; between them it holds the store open as an idle hermes does. Leaving the
    ``with`` block closes it in good order, unless it was killed.
    """

    def __init__(self, home: Home, release: Release | str, *, timeout: float = 60, wrapper: Sequence[str] = ()) -> None:
        """``timeout``: seconds for one answer. ``wrapper`` goes before the command, as ``unshare`` does."""
        self.home = home
        self.release = get(release)
        self._timeout = timeout
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # Closed in _finish: it outlives this function.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        asked, ask = os.pipe()
        answer, answered = os.pipe()
        with os.fdopen(asked, "rb") as stdin, os.fdopen(answered, "wb") as stdout:
            self._process = nursery.start(
                home.path,
                environment(home.path, self.release),
                stdin=stdin,
                stdout=stdout,
                # Not a pipe: one that nobody empties would stop a talkative release.
                stderr=self._said,
                wrapper=wrapper,
            )
        self._ask = os.fdopen(ask, "w", buffering=1)
        self._answer = os.fdopen(answer)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.step(open_store())

    @property
    def pid(self) -> int:
        """The process's id (the wrapper's, where there is one)."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def send(self, step: Step) -> None:
        """Sends a step without waiting for its answer."""
        self._ask.write(json.dumps(step) + "\n")
        self._ask.flush()

    def receive(self, timeout: float | None = None) -> Any:
        """The next answer; a CallError where the release raised."""
        try:
            line = self._answers.get(timeout=self._timeout if timeout is None else timeout)
        except queue.Empty:
            raise OracleError(f"hermes {self.release} (pid {self.pid}) did not answer") from None
        if line is None:
            raise OracleError(f"hermes {self.release} (pid {self.pid}) is gone: {self._last_words()}")
        return decoded(line)

    def step(self, step: Step, *, check: bool = True) -> Any:
        """Carries out one step. With ``check`` an error of the release fails the test."""
        self.send(step)
        value = self.receive()
        if check and isinstance(value, CallError):
            raise OracleError(f"hermes {self.release}: {step} raised {value.kind}: {value.text}")
        return value

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls ``SessionDB.<name>`` in the living process."""
        return self.step(call(name, *args, **kwargs))

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer does it; returns when the process is gone."""
        self._process.kill()
        self._finish()

    def close(self) -> None:
        """Lets the release close its store and end."""
        if self.alive:
            self._ask.close()
        self._finish()

    def _finish(self) -> None:
        try:
            self._process.wait(timeout=self._timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise OracleError(f"hermes {self.release} (pid {self.pid}) did not end") from None
        finally:
            self._reader.join(timeout=5)
            for stream in (self._ask, self._answer, self._said):
                # A killed process leaves a broken pipe behind, which closing would report.
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _last_words(self) -> str:
        if self._said.closed:
            return ""
        self._said.seek(0)
        return self._said.read().decode(errors="replace")[-2000:]

    def _read(self) -> None:
        for line in self._answer:
            self._answers.put(line)
        self._answers.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
