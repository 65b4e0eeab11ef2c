"""Runs inside one release of hermes-agent and works without pause: ``python -P hermes_at_work.py HOME SEED [fit]``.

It is the oracle's driver (one step per line in, one result per line out) with two steps more. ``work``: append, rewind,
compact, rotate, search and read, with nothing in between, until a file appears. ``wrote``: what should be in the store
now of all that was written. With ``fit`` the release gets a SQLite without the WAL-reset bug (pysqlite3's) for Python's
own, as on a host that is up to date.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from pathlib import Path
from typing import Any

if "fit" in sys.argv[3:]:
    import pysqlite3

    # Both names: the release imports either part, and must find one library.
    sys.modules["sqlite3"] = pysqlite3
    sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2

_DRIVER = Path(__file__).parents[1] / "tests" / "oracle" / "driver.py"
_WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "nobody", "looks", "at", "all"]


def _driver() -> Any:
    spec = importlib.util.spec_from_file_location("driver", _DRIVER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Worker:
    """The chats of one process, what was done to them, and how long each call took."""

    def __init__(self, seed: int) -> None:
        self.name = f"w{seed}"
        self.chance = random.Random(seed)
        self.made = 0
        self.written = 0
        #: What each chat should replay: role and content of its live messages.
        self.live: dict[str, list[tuple[str, str]]] = {}
        #: Every content that was ever stored; nothing that is done here deletes a row.
        self.stored: list[str] = []
        self.errors: list[str] = []
        self.open: list[str] = []

    def work(self, db: Any, until: Path) -> dict[str, Any]:
        """Work until the file appears; return the seconds of each write and each read, and what failed."""
        writes: list[float] = []
        reads: list[float] = []
        errors_before = len(self.errors)
        while not until.exists():
            kind, deed = self._next(db)
            begun = time.perf_counter()
            try:
                deed()
            except Exception as error:
                self.errors.append(f"{kind}: {type(error).__name__}: {error}")
            (reads if kind == "read" else writes).append(time.perf_counter() - begun)
        return {"writes": writes, "reads": reads, "errors": self.errors[errors_before:]}

    def wrote(self) -> dict[str, Any]:
        """Return what should be in the store."""
        return {"live": self.live, "stored": self.stored}

    def _text(self) -> str:
        self.written += 1
        return f"{self.name}-{self.written} " + " ".join(self.chance.choices(_WORDS, k=self.chance.randint(5, 120)))

    def _next(self, db: Any) -> tuple[str, Any]:
        if len(self.open) < 4:
            return "write", lambda: self._begin(db)
        chat = self.chance.choice(self.open)
        long = len(self.live[chat]) > 6
        roll = self.chance.random()
        if roll < 0.05:
            return "read", lambda: db.search_messages(self.chance.choice(_WORDS), limit=5)
        if roll < 0.12:
            return "read", lambda: db.get_messages_as_conversation(chat)
        if roll < 0.16 and long:
            return "write", lambda: self._rewind(db, chat)
        if roll < 0.19 and long:
            return "write", lambda: self._compact(db, chat)
        if roll < 0.22 and long:
            return "write", lambda: self._rotate(db, chat)
        return "write", lambda: self._say(db, chat, self.chance.choice(("user", "assistant")))

    def _begin(self, db: Any, parent: str | None = None) -> str:
        self.made += 1
        chat = f"{self.name}-chat-{self.made}"
        db.create_session(chat, "cli", **({"parent_session_id": parent} if parent else {}))
        self.live[chat] = []
        self.open.append(chat)
        return chat

    def _say(self, db: Any, chat: str, role: str) -> None:
        text = self._text()
        db.append_message(chat, role, text)
        self.live[chat].append((role, text))
        self.stored.append(text)

    def _rewind(self, db: Any, chat: str) -> None:
        asked = [row for row in db.get_messages(chat) if row["role"] == "user"]
        if len(asked) < 2:
            self._say(db, chat, "user")
            return
        target = asked[-1]
        db.rewind_to_message(chat, target["id"])
        kept = [text for _role, text in self.live[chat]].index(target["content"])
        del self.live[chat][kept:]

    def _compact(self, db: Any, chat: str) -> None:
        summary = [("user", self._text()), ("assistant", self._text())]
        db.archive_and_compact(chat, [{"role": role, "content": text} for role, text in summary])
        self.live[chat] = summary
        self.stored += [text for _role, text in summary]

    def _rotate(self, db: Any, chat: str) -> None:
        db.end_session(chat, "compression")
        self.open.remove(chat)
        following = self._begin(db, chat)
        self._say(db, following, "user")


def main() -> int:
    """Read steps until the input ends."""
    driver = _driver()
    worker = Worker(int(sys.argv[2]))

    def work(self: Any, step: dict[str, Any]) -> Any:
        return worker.work(self.opened(), Path(step["work"]))

    def wrote(_self: Any, _step: dict[str, Any]) -> Any:
        return worker.wrote()

    driver.Driver._STEPS |= {"work": work, "wrote": wrote}
    code = driver.main()
    assert isinstance(code, int)
    return code


if __name__ == "__main__":
    sys.exit(main())
