"""Large stores in the shape of real ones: made by a real release, filled with a seeded mixture.

The file and its schema are the release's own. The rows are written past the search index's triggers, and the index is
filled at the end, at once.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from tests.oracle.home import Home
from tests.oracle.steps import open_store

#: Messages of one session, on average: most chats are short, a few are very long.
_MESSAGES_A_SESSION = 40
#: Messages of one turn: a prompt, a call, its output, an answer.
_A_TURN = 4
_WORDS = [f"word{n}" for n in range(2000)]
_COLUMNS = (
    "session_id, role, content, tool_call_id, tool_calls, tool_name, timestamp, reasoning,"
    " reasoning_details, codex_reasoning_items"
)


def make_store(folder: Path, release: str, messages: int, *, faults: float = 0.0, seed: int = 1) -> Path:
    """Make a home in ``folder`` and return its store.

    ``faults``: share (0 to 1) of assistant rows with reasoning whose reasoning is double-encoded, and of sessions
    that are zombies.
    """
    home = Home(folder)
    home.run(release, [open_store()])
    chance = random.Random(seed)
    connection = apsw.Connection(str(home.store))
    connection.pragma("synchronous", "off")
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    with connection:
        for name, _sql in triggers:
            connection.execute(f'DROP TRIGGER "{name}"')
        made = 0
        session = 0
        while made < messages:
            session += 1
            # Whole turns: an ended chat that stops in the middle of one is a fault, if a small one.
            turns = int(chance.paretovariate(1.2) * _MESSAGES_A_SESSION / 6 / _A_TURN) + 1
            count = min(messages - made, turns * _A_TURN)
            made += count
            started = time.time() - chance.uniform(1, 80) * 86400
            zombie = chance.random() < faults
            connection.execute(
                "INSERT INTO sessions (id, source, model, started_at, ended_at, end_reason, message_count,"
                " tool_call_count) VALUES (?, 'cli', 'model', ?, ?, ?, ?, ?)",
                (
                    f"s{session:07}",
                    started,
                    None if zombie else started + count * 20,
                    None if zombie else "cli_close",
                    count,
                    (count + 2) // _A_TURN,
                ),
            )
            connection.executemany(
                f"INSERT INTO messages ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                _conversation(f"s{session:07}", started, count, faults, chance),
            )
        for _name, sql in triggers:
            connection.execute(str(sql))
        for index, sql in connection.execute(
            "SELECT name, sql FROM sqlite_schema WHERE name IN ('messages_fts', 'messages_fts_trigram')"
        ).fetchall():
            connection.execute(_fill(str(index), str(sql)))
    connection.close()
    return home.store


def _fill(index: str, sql: str) -> str:
    """Return the statement that fills a search index, by its layout: external content (0.20.0 on) or inline."""
    if "content=" in sql.replace(" ", ""):
        return f"INSERT INTO {index}({index}) VALUES ('rebuild')"
    texts = " || ' ' || ".join(f"coalesce({column}, '')" for column in ("content", "tool_name", "tool_calls"))
    return f"INSERT INTO {index}(rowid, content) SELECT id, {texts} FROM messages"


def _conversation(
    session: str, started: float, count: int, faults: float, chance: random.Random
) -> Iterator[tuple[object, ...]]:
    """Rows of one chat: a prompt, then calls and their output, then an answer, over and over."""
    for n in range(count):
        at = started + n * 20.0
        call = f"call_{n // _A_TURN}"
        match n % _A_TURN:
            case 0:
                yield session, "user", _text(chance, 20), None, None, None, at, None, None, None
            case 1:
                calls = json.dumps([{"id": call, "function": {"name": "terminal", "arguments": _text(chance, 15)}}])
                items = json.dumps([{"type": "reasoning", "encrypted_content": _text(chance, 60)}])
                if chance.random() < faults:
                    items = json.dumps(items)
                yield session, "assistant", "", None, calls, None, at, _text(chance, 40), None, items
            case 2:
                size = int(min(60 * chance.paretovariate(1.1), 20_000))
                yield session, "tool", _text(chance, size), call, None, "terminal", at, None, None, None
            case _:
                details = json.dumps([{"type": "reasoning.text", "text": _text(chance, 50)}])
                yield session, "assistant", _text(chance, 120), None, None, None, at, None, details, None


def _text(chance: random.Random, words: int) -> str:
    """That many words; long texts repeat a passage, as logs and listings do."""
    passage = " ".join(chance.choices(_WORDS, k=min(words, 100)))
    return passage if words <= 100 else (passage + "\n") * (words // 100)
