"""Large stores in the shape of real ones: made by a real release, filled with a seeded mixture of chats.

The file, its schema and its triggers are the release's own, so the search index is laid out and filled as the release
does it, a block of rows at a time, and its pages lie among those of the rows. What real stores have is there: chats
that go on side by side, long tails of length and size, tool calls and their output, reasoning, compressions and
their continuations, delegates, prompts. Their rows are heavier, about 20 KB with the index; ours are a tenth of that,
which leaves a disk some room and is the harder case for whoever goes over rows.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import apsw

from bench.words import Words
from tests.oracle.home import Home
from tests.oracle.steps import open_store

DAY = 86_400.0

#: Rows of one commit.
_BLOCK = 500
#: Chats that are written to at the same time.
_SIDE_BY_SIDE = 4
#: Messages after which a session is compressed: its chat goes on in another.
_COMPRESSED_AT = 300
#: Longest chat, in turns: hermes itself refuses to load 20,000 messages.
_LONGEST = 2_000
#: Different system prompts, and their size in characters.
_PROMPTS = 40
_PROMPT_SIZE = 8_000

_MESSAGE = (
    *("id", "session_id", "role", "content", "tool_call_id", "tool_calls", "tool_name", "timestamp", "finish_reason"),
    *("reasoning", "reasoning_details", "codex_reasoning_items"),
)
#: What 0.21.5 on write to each message besides.
_LATER = ("display_identity", "display_order", "message_uid")


@dataclass
class _Chat:
    """A session that is being written to."""

    session: str
    source: str
    turns: int
    messages: int = 0
    calls: int = 0


def make_store(
    folder: Path, release: str, messages: int, *, faults: float = 0.0, seed: int = 1, weight: float = 1.0
) -> Path:
    """Make a home in ``folder`` and return its store, of so many messages (of five or more, exactly).

    ``faults``: about that share (0 to 0.5) of all messages is double-encoded, and of all sessions left open by a
    process that was killed. Without any, a scan has nothing to report but information. ``weight``: how many times as
    long as usual the texts are.
    """
    home = Home(folder)
    home.run(release, [open_store()])
    # Old releases leave what others can read; here that would be a fault in every store.
    home.store.chmod(0o600)
    now = time.time()
    connection = apsw.Connection(str(home.store))
    # So that no page is written twice; nobody needs what a kill leaves of it.
    mode = connection.pragma("journal_mode")
    connection.pragma("journal_mode", "memory")
    _fill(connection, messages, faults, seed, weight, since=now - 80 * DAY, until=now - 2 * DAY)
    connection.pragma("journal_mode", mode)
    connection.close()
    return home.store


def grow(store: Path, messages: int, *, faults: float = 0.0, seed: int = 2, weight: float = 1.0) -> None:
    """Write so many more messages, in chats of their own, as if a day had gone by; the store is closed afterwards."""
    now = time.time()
    connection = apsw.Connection(str(store))
    _fill(connection, messages, faults, seed, weight, since=now - 2 * DAY, until=now - DAY)
    connection.close()


def _fill(
    connection: apsw.Connection,
    messages: int,
    faults: float,
    seed: int,
    weight: float,
    *,
    since: float,
    until: float,
) -> None:
    connection.pragma("synchronous", "off")
    connection.pragma("cache_size", -200_000)
    chance = random.Random(seed)
    life = _Life(connection, Words(chance, weight), chance, faults, since, (until - since) / (messages + 10))
    rows = life.rows(messages)
    while life.written < messages:
        with connection:
            _write_block(connection, life, rows)
    with connection:
        life.end_all()


def _write_block(connection: apsw.Connection, life: _Life, rows: Iterator[tuple[Any, ...]]) -> None:
    columns = ", ".join(life.columns)
    marks = ", ".join("?" * len(life.columns))
    connection.executemany(f"INSERT INTO messages ({columns}) VALUES ({marks})", islice(rows, _BLOCK))


class _Life:
    """What goes on in a home: chats begin, go on turn by turn, are compressed, and end."""

    def __init__(
        self,
        connection: apsw.Connection,
        words: Words,
        chance: random.Random,
        faults: float,
        since: float,
        step: float,
    ) -> None:
        self._connection = connection
        self._chance = chance
        self._words = words
        self._faults = faults
        self._clock = since
        self._step = step
        self._open: list[_Chat] = []
        self._sessions = int(_one(connection, "SELECT count(*) FROM sessions"))
        self._next_id = int(_one(connection, "SELECT coalesce(max(id), 0) FROM messages")) + 1
        self.written = 0
        has = {str(row[1]) for row in connection.execute("PRAGMA table_info(messages)")}
        self._later = tuple(column for column in _LATER if column in has)
        self.columns = (*_MESSAGE, *self._later)
        self._by_hash = "system_prompt_hash" in {row[1] for row in connection.execute("PRAGMA table_info(sessions)")}
        self._prompts = [self._words.text(_PROMPT_SIZE) for _ in range(_PROMPTS)]

    def rows(self, messages: int) -> Iterator[tuple[Any, ...]]:
        """Rows of ``messages``, in whole turns of chats that go on side by side."""
        while self.written < messages:
            place = min(self._chance.randrange(_SIDE_BY_SIDE), len(self._open))
            if place == len(self._open):
                self._open.append(self._begin())
            chat = self._open[place]
            yield from self._turn(chat, messages - self.written)
            chat.turns -= 1
            if chat.turns <= 0:
                self._end(chat, "cron_complete" if chat.source == "cron" else "cli_close")
                del self._open[place]
            elif chat.messages >= _COMPRESSED_AT and messages - self.written >= 4:
                self._open[place] = after = self._compress(chat)
                yield from self._handoff(after)

    def end_all(self) -> None:
        """End the chats that still go on."""
        for chat in self._open:
            self._end(chat, "cli_close")
        self._open.clear()

    def _begin(self) -> _Chat:
        chance = self._chance
        source = chance.choices(("cli", "api_server", "cron", "subagent"), (60, 15, 15, 10))[0]
        parents = [chat for chat in self._open if chat.source == "cli"]
        if source == "subagent" and not parents:
            source = "cli"
        turns = 1 if source == "cron" else min(int(chance.paretovariate(1.4) * 1.2) + 1, _LONGEST)
        if source != "subagent":
            return self._insert(source, turns, None, None)
        parent = chance.choice(parents).session
        return self._insert(source, turns, parent, json.dumps({"max_iterations": 90, "_delegate_from": parent}))

    def _insert(self, source: str, turns: int, parent: str | None, config: str | None) -> _Chat:
        self._sessions += 1
        session = f"{time.strftime('%Y%m%d_%H%M%S', time.gmtime(self._clock))}_{self._sessions:06x}"
        title = f"{self._words.text(30).strip()} {self._sessions}" if source == "cli" and parent is None else None
        prompt = self._chance.choice(self._prompts)
        row = {
            "id": session,
            "source": source,
            "model": "model",
            "model_config": config or '{"max_iterations": 90}',
            "parent_session_id": parent,
            "started_at": self._clock,
            "title": title,
        }
        if self._by_hash:
            row["system_prompt_hash"] = digest = hashlib.sha256(prompt.encode()).hexdigest()
            self._connection.execute(
                "INSERT OR IGNORE INTO system_prompts (hash, prompt) VALUES (?, ?)", (digest, prompt)
            )
        else:
            row["system_prompt"] = prompt
        self._connection.execute(
            f"INSERT INTO sessions ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values())
        )
        return _Chat(session, source, turns)

    def _compress(self, chat: _Chat) -> _Chat:
        self._end(chat, "compression")
        return self._insert(chat.source, chat.turns, chat.session, None)

    def _end(self, chat: _Chat, reason: str) -> None:
        left = reason != "compression" and self._chance.random() < self._faults
        self._connection.execute(
            "UPDATE sessions SET ended_at = ?, end_reason = ?, message_count = ?, tool_call_count = ? WHERE id = ?",
            (None if left else self._clock, None if left else reason, chat.messages, chat.calls, chat.session),
        )

    def _turn(self, chat: _Chat, room: int) -> Iterator[tuple[Any, ...]]:
        """A prompt, calls and their output in turns, an answer; whatever room there is, it is never left open."""
        words = self._words
        yield self._row(chat, "user", words.text(words.tailed(60, 1.3, 20_000)))
        # Two calls at once where an odd number of rows is left: everything else comes in pairs.
        at_once = 2 if room % 2 else 1
        calls = min(int(self._chance.paretovariate(1.5)), 20)
        if room % 2 == 0 and self._chance.random() < 0.2:
            calls = 0
        calls = min(calls, max(room - 2 - (room % 2), 0) // 2)
        for _ in range(calls):
            names = [f"call_{self._next_id}_{n}" for n in range(at_once)]
            chat.calls += at_once
            yield self._row(chat, "assistant", "", calls=names)
            for name in names:
                yield self._row(chat, "tool", words.text(words.tailed(300, 1.1, 120_000)), call=name)
            at_once = 1
        yield self._row(chat, "assistant", words.text(words.tailed(250, 1.4, 20_000)))

    def _handoff(self, chat: _Chat) -> Iterator[tuple[Any, ...]]:
        """What a compression puts in front of the continuation."""
        yield self._row(chat, "user", f"[CONTEXT COMPACTION — REFERENCE ONLY] {self._words.text(3_000)}")
        yield self._row(chat, "assistant", self._words.text(200))

    def _row(
        self, chat: _Chat, role: str, content: str, *, call: str | None = None, calls: list[str] | None = None
    ) -> tuple[Any, ...]:
        words, chance = self._words, self._chance
        self._clock += self._step
        number = self._next_id
        self._next_id += 1
        self.written += 1
        chat.messages += 1
        reasoning = details = items = tool_calls = finish = None
        if role == "assistant":
            finish = "tool_calls" if calls else "stop"
            reasoning = words.text(words.tailed(120, 1.5, 20_000))
            double = chance.random() < 2 * self._faults
            if calls:
                items = f'[{{"type": "reasoning", "id": "rs_{number}", "encrypted_content": "{words.quoted(500)}"}}]'
                items = json.dumps(items) if double else items
                tool_calls = f"[{', '.join(self._call(name) for name in calls)}]"
            else:
                details = f'[{{"type": "reasoning.text", "text": "{words.quoted(300)}", "index": 0}}]'
                details = json.dumps(details) if double else details
        tool = "terminal" if call else None
        row = (
            *(number, chat.session, role, content, call, tool_calls, tool, self._clock, finish),
            *(reasoning, details, items),
        )
        later = {"display_identity": chance.randbytes(16), "display_order": number, "message_uid": f"{number:032x}"}
        return row + tuple(later[column] for column in self._later)

    def _call(self, name: str) -> str:
        """One call as JSON in JSON."""
        arguments = json.dumps({"command": self._words.text(self._words.tailed(60, 1.3, 8_000))})
        return json.dumps({"id": name, "type": "function", "function": {"name": "terminal", "arguments": arguments}})


def _one(connection: apsw.Connection, sql: str) -> Any:
    return connection.execute(sql).get
