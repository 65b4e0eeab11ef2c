"""Making the demo's home: a store in which healthy chats stand beside four kinds of damage."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import apsw

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0

#: Reasoning as a release stores it, and as it is stored after one and two forks that wrapped it again.
_REASONING = '[{"type": "reasoning.text", "text": "weigh both answers"}]'


def make_demo_home(folder: Path) -> Path:
    """Make a Hermes home with a damaged store in an empty or new folder and return the store's path.

    Raises FileExistsError where the folder already holds something: the demo never writes beside other files.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty")
    (folder / "config.yaml").write_text("sessions:\n  auto_prune: false\n", encoding="utf-8")
    store = folder / "state.db"
    connection = apsw.Connection(str(store))
    try:
        connection.execute(files(__package__).joinpath("schema.sql").read_text(encoding="utf-8"))
        with connection:
            connection.pragma("foreign_keys", False)
            now = time.time()
            _healthy(connection, now)
            _zombies(connection, now)
            _double_encoded(connection, now)
            _stubs(connection, now)
            _gaps(connection, now)
    finally:
        connection.close()
    store.chmod(0o600)
    return store


def _healthy(connection: apsw.Connection, now: float) -> None:
    """What must be left alone: a chat that ended, one that is routed, one that began a minute ago."""
    _session(connection, "morning-notes", "cli", now - 9 * _DAY, ended=now - 9 * _DAY + _HOUR, reason="cli_close")
    _messages(connection, "morning-notes", now - 9 * _DAY, 6)
    _session(connection, "family-chat", "telegram", now - 20 * _DAY, key="agent:main:telegram:dm:42")
    _messages(connection, "family-chat", now - 20 * _DAY, 8)
    connection.execute(
        "INSERT INTO gateway_routing VALUES ('default', 'agent:main:telegram:dm:42', ?, ?)",
        (json.dumps({"session_id": "family-chat"}), now - 20 * _DAY),
    )
    _session(connection, "just-started", "cli", now - _MINUTE)


def _zombies(connection: apsw.Connection, now: float) -> None:
    """Open rows of runs that were killed."""
    for night in range(1, 8):
        name = f"cron_backup_{night:02}"
        _session(connection, name, "cron", now - night * _DAY)
        _messages(connection, name, now - night * _DAY, 2)
    _session(connection, "killed-in-march", "cli", now - 30 * _DAY)
    _messages(connection, "killed-in-march", now - 30 * _DAY, 4)


def _double_encoded(connection: apsw.Connection, now: float) -> None:
    """A fork, and a fork of that fork, whose reasoning was wrapped once more each time."""
    for name, layers in (("first-fork", 1), ("second-fork", 2)):
        began = now - 6 * _DAY
        value = _REASONING
        for _ in range(layers):
            value = json.dumps(value)
        _session(connection, name, "api_server", began, ended=began + _HOUR, reason="branched")
        _messages(connection, name, began, 4, reasoning=value)


def _stubs(connection: apsw.Connection, now: float) -> None:
    """Rows of a terminal that was opened and closed."""
    for n in range(3):
        began = now - (4 + n) * _DAY
        _session(connection, f"empty-{n + 1}", "tui", began, ended=began + _MINUTE, reason="tui_close")


def _gaps(connection: apsw.Connection, now: float) -> None:
    """A chat that lost its parent, and one that was closed for a continuation that never came."""
    began = now - 5 * _DAY
    _session(connection, "lost-its-parent", "cli", began, ended=began + _HOUR, reason="cli_close", parent="long-gone")
    _messages(connection, "lost-its-parent", began, 4)
    _session(connection, "never-continued", "cli", began, ended=began + _HOUR, reason="compression")
    _messages(connection, "never-continued", began, 10)


def _session(
    connection: apsw.Connection,
    name: str,
    source: str,
    started: float,
    *,
    ended: float | None = None,
    reason: str | None = None,
    parent: str | None = None,
    key: str | None = None,
) -> None:
    connection.execute(
        "INSERT INTO sessions (id, source, started_at, ended_at, end_reason, parent_session_id, session_key)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (name, source, started, ended, reason, parent, key),
    )


def _messages(
    connection: apsw.Connection, session: str, began: float, count: int, *, reasoning: str = _REASONING
) -> None:
    """Give a session that many messages, prompts and answers in turn, and the count that goes with them."""
    rows: Sequence[tuple[object, ...]] = [
        (
            session,
            "assistant" if n % 2 else "user",
            f"{'answer' if n % 2 else 'question'} {n // 2 + 1}",
            began + n * 20,
            reasoning if n % 2 else None,
        )
        for n in range(count)
    ]
    connection.executemany(
        "INSERT INTO messages (session_id, role, content, timestamp, reasoning_details) VALUES (?, ?, ?, ?, ?)",
        rows,
    )
    connection.execute("UPDATE sessions SET message_count = ? WHERE id = ?", (count, session))
