"""A Hermes home in a scratch folder, and the releases at work in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.oracle import nursery, wheels
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, precreate, sql

#: The value of a step that never answered because the process was killed by it, or before it.
KILLED: Final = "<killed>"


@dataclass(frozen=True)
class CallError:
    """What a release raised: ``kind`` is the exception's class name, ``text`` its message."""

    kind: str
    text: str


class OracleError(AssertionError):
    """A release's subprocess did what the test had not asked for."""


def environment(home: Path, release: Release) -> dict[str, str]:
    """A scrubbed environment: nothing of the tester's own settings reaches a release."""
    kept = {key: os.environ[key] for key in ("PATH", "TZ", "SYSTEMROOT", "TMPDIR") if key in os.environ}
    return kept | {
        "HERMES_HOME": str(home),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(wheels.unpacked(release)),
        "PYTHONNOUSERSITE": "1",
    }


def decoded(line: str) -> Any:
    """The value of one answer of the driver."""
    answer = json.loads(line)
    if "error" in answer:
        kind, _, text = answer["error"].partition(": ")
        return CallError(kind, text)
    return answer["ok"]


class Home:
    """One Hermes home. ``path`` is the folder, ``store`` its state.db."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = path / "state.db"
        path.mkdir(parents=True, exist_ok=True)

    def run(
        self,
        release: Release | str,
        steps: Sequence[Step],
        *,
        check: bool = True,
        timeout: float = 120,
        fresh: bool = False,
    ) -> list[Any]:
        """Runs the steps in one subprocess of that release; one value per step.

        With ``check`` a step that raises fails the test (OracleError); without it its value is a CallError.
        A step that kills the process, and those behind it, have the value KILLED. ``fresh``: in a Python that was
        just started, not in a fork of one that has loaded its libraries.
        """
        chosen = get(release)
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answered, tempfile.TemporaryFile() as said:
            asked.write("".join(json.dumps(step) + "\n" for step in steps).encode())
            asked.seek(0)
            child = nursery.start(
                self.path,
                environment(self.path, chosen),
                stdin=asked,
                stdout=answered,
                stderr=said,
                fresh=fresh,
            )
            try:
                code = child.wait(timeout)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                raise
            answered.seek(0)
            results = [decoded(line) for line in answered.read().decode().splitlines()]
            said.seek(0)
            words = said.read().decode(errors="replace")
        dies = any("kill" in step or "begin_and_hang" in step for step in steps)
        expected = -signal.SIGKILL if dies else 0
        if code != expected or (not dies and len(results) != len(steps)):
            raise OracleError(f"hermes {chosen} ended with {code}: {words[-2000:]}")
        if check:
            for step, value in zip(steps, results, strict=False):
                if isinstance(value, CallError):
                    raise OracleError(f"hermes {chosen}: {step} raised {value.kind}: {value.text}")
        return results + [KILLED] * (len(steps) - len(results))

    def ask(self, release: Release | str, step: Step) -> Any:
        """The value of a single step."""
        return self.run(release, [step])[0]

    def use_wal(self, release: Release | str) -> None:
        """Makes the store a WAL one before its first open, whatever the release would have chosen."""
        self.run(release, [precreate("wal")])

    def conversation(self, release: Release | str, session: str, **kwargs: Any) -> list[dict[str, Any]]:
        """What the release replays to the model for that session."""
        value: list[dict[str, Any]] = self.ask(release, call("get_messages_as_conversation", session, **kwargs))
        return value

    def conversations(self, release: Release | str, sessions: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """The same for many sessions, in one subprocess."""
        names = list(sessions)
        values = self.run(release, [call("get_messages_as_conversation", name) for name in names])
        return dict(zip(names, values, strict=True))

    def messages(self, release: Release | str, session: str) -> list[dict[str, Any]]:
        """The release's raw message rows of that session."""
        value: list[dict[str, Any]] = self.ask(release, call("get_messages", session))
        return value

    def session(self, release: Release | str, session: str) -> dict[str, Any] | None:
        """The release's row of that session."""
        value: dict[str, Any] | None = self.ask(release, call("get_session", session))
        return value

    def tip(self, release: Release | str, session: str) -> str | None:
        """Where the release says that a compression chain ends."""
        value: str | None = self.ask(release, call("get_compression_tip", session))
        return value

    def resume(self, release: Release | str, session: str) -> str | None:
        """The session that the release opens when that one is resumed."""
        value: str | None = self.ask(release, call("resolve_resume_session_id", session))
        return value

    def listed(self, release: Release | str, **kwargs: Any) -> list[str]:
        """The ids that the release's session list shows."""
        rows = self.ask(release, call("list_sessions_rich", **({"limit": 100_000} | kwargs)))
        return [str(row["id"]) for row in rows]

    def replay(self, release: Release | str) -> dict[str, Any]:
        """All that a user of the release sees of the store, for comparing before and after.

        Keys: ``conversations``, ``tips`` and ``resumes`` by session id, and ``listed``.
        """
        ids = [row[0] for row in self.ask(release, sql("SELECT id FROM sessions ORDER BY id"))]
        steps = [call("list_sessions_rich", limit=100_000)]
        for method in ("get_messages_as_conversation", "get_compression_tip", "resolve_resume_session_id"):
            steps += [call(method, session) for session in ids]
        values = self.run(release, steps)
        by_method = [dict(zip(ids, values[1 + n * len(ids) :], strict=False)) for n in range(3)]
        return {
            "listed": [row["id"] for row in values[0]],
            "conversations": by_method[0],
            "tips": by_method[1],
            "resumes": by_method[2],
        }

    def journal_mode(self) -> str:
        """``wal`` or ``delete``, read from the file's header without SQLite."""
        with self.store.open("rb") as file:
            header = file.read(20)
        return "wal" if header[18] == 2 else "delete"

    def sidecars(self) -> set[str]:
        """Which of -wal, -shm and -journal lie beside the store."""
        names = ("-wal", "-shm", "-journal")
        return {name for name in names if self.store.with_name(self.store.name + name).exists()}
