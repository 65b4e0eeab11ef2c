"""Sound stores that are to be damaged, made by real releases: lived in, with long messages, and with deleted chats.

What was deleted still lies in pages that are free: no release asks SQLite to overwrite it, but Debian's SQLite does
unasked, so it is told not to.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from tests.oracle.history import live_through_chain
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, close_store, sql
from tests.whole.breaking import DAMAGES, WRECKS, Wreck, at_rest
from tests.whole.saving import Cell, copy_bundle, rows_of

TABLES = ("messages", "sessions")

#: Every damage by its name.
ALL: dict[str, Wreck] = {**{name: Wreck(damage) for name, damage in DAMAGES.items()}, **WRECKS}

_WORDS = (
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "größer",
    "ошибка",
    "🙂",
)


@dataclass(frozen=True)
class Sound:
    """A store, the release that had it last, and the keys of the rows that were deleted from it, by table."""

    name: str
    release: Release
    store: Path
    deleted: dict[str, frozenset[Cell]]


@dataclass(frozen=True)
class Wrecked:
    """A damaged store, and a sound one at rest that holds what is to be saved of it."""

    damaged: Path
    before: Path


def wreck(store: Path, name: str, seed: int, folder: Path) -> Wrecked:
    """Damage a copy of a store in a folder that is not there yet. Raises NothingToDamageError."""
    chosen = ALL[name]
    damaged = copy_bundle(store, folder / "damaged")
    if chosen.before is not None:
        chosen.before(damaged, seed)
    before = copy_bundle(damaged, folder / "before")
    chosen.damage(damaged, seed)
    if name == "tear-last-frame":
        # A transaction that was not written to its end never was.
        before = copy_bundle(damaged, folder / "as SQLite reads it")
    elif name == "another-generations-log":
        before.write_bytes(damaged.read_bytes())
    at_rest(before)
    return Wrecked(damaged, before)


def lived_in(folder: Path, *versions: str, chats: int = 36) -> Sound:
    """A store in which these releases lived, one after the other, and the last of them held so many chats more.

    A message of each third chat is so long that it has pages of its own; each fourth chat was deleted in the end.
    """
    home = Home(folder)
    live_through_chain(home, versions)
    release = get(versions[-1])
    names = [f"2026010{n % 7 + 1}_1200{n:02}_{n:06x}" for n in range(chats)]
    home.run(release, [step for n, name in enumerate(names) for step in _chat(release, n, name)])
    deleted = delete_chats(home, release, names[1::4])
    at_rest(home.store)
    return Sound("+".join(versions), release, home.store, deleted)


def shared_lived_in(folder: Path, *versions: str, chats: int = 36) -> Sound:
    """The same from a folder that parallel workers share, made by whoever asks first; nobody changes it."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{'+'.join(versions)} {chats}"
    with FileLock(folder / f"{kept.name}.lock"):
        if not kept.with_name(f"{kept.name}.pickle").exists():
            # What was begun and broken off is no store.
            shutil.rmtree(kept, ignore_errors=True)
            kept.with_name(f"{kept.name}.pickle").write_bytes(pickle.dumps(lived_in(kept, *versions, chats=chats)))
    found = pickle.loads(kept.with_name(f"{kept.name}.pickle").read_bytes())
    assert isinstance(found, Sound)
    return found


def delete_chats(home: Home, release: Release, sessions: Collection[str]) -> dict[str, frozenset[Cell]]:
    """Delete chats as the release does; what they held stays in free pages. Value: the keys of the rows, by table."""
    before = {table: _keys(home.store, table) for table in TABLES}
    steps = [sql("PRAGMA secure_delete = OFF"), *(call("delete_session", session) for session in sessions)]
    home.run(release, [*steps, close_store()])
    return {table: frozenset(keys - _keys(home.store, table)) for table, keys in before.items()}


def _keys(store: Path, table: str) -> set[Cell]:
    found = rows_of(store, table)
    assert found is not None
    return found.keys


def _chat(release: Release, number: int, name: str) -> Sequence[Step]:
    """A chat of some turns, with tool calls and reasoning here and there."""
    chance = random.Random(number)
    steps = [call("create_session", name, "cli", model="test-model", system_prompt=_text(chance, 900))]
    for turn in range(chance.randrange(3, 9)):
        long = chance.randrange(5_000, 60_000) if number % 3 == 0 and turn == 1 else None
        steps.append(call("append_message", name, "user", _text(chance, chance.randrange(10, 400))))
        if chance.random() < 0.4:
            wanted = {"name": "terminal", "arguments": json.dumps({"command": _text(chance, 60)})}
            asked = [{"id": f"call_{number}_{turn}", "type": "function", "function": wanted}]
            steps.append(call("append_message", name, "assistant", "", tool_calls=asked, finish_reason="tool_calls"))
            output = {"tool_call_id": f"call_{number}_{turn}", "tool_name": "terminal"}
            steps.append(call("append_message", name, "tool", _text(chance, chance.randrange(20, 2_500)), **output))
        said = _text(chance, long or chance.randrange(50, 1_500))
        steps.append(
            call("append_message", name, "assistant", said, finish_reason="stop", reasoning=_text(chance, 200))
        )
    return [*steps, call("end_session", name, "cli_close")]


def _text(chance: random.Random, length: int) -> str:
    """Words, about so many characters of them, no two texts alike."""
    words = [f"{chance.randrange(10**6)}"]
    words += chance.choices(_WORDS, k=length // 6)
    return " ".join(words)
