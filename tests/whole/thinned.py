"""Homes of which a release has deleted most: their stores are full of free pages."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.checks.support import built_once
from tests.oracle.home import Home
from tests.oracle.releases import Release
from tests.oracle.steps import call

#: Chats that the release wrote, and the first of them that it deleted again.
CHATS, DELETED = 24, 18
KEPT = f"chat-{CHATS}"


def thinned(home: Home, release: Release | str) -> Home:
    """Lets a release write chats and delete most of them; nobody has the store open afterwards."""
    steps = []
    for n in range(1, CHATS + 1):
        steps.append(call("create_session", f"chat-{n}", "cli"))
        for k in range(3):
            words = " ".join(f"word{n}x{k}x{i} hello terminal" for i in range(160))
            steps.append(call("append_message", f"chat-{n}", "user" if k % 2 == 0 else "assistant", words))
        # Structured content begins with a NUL: not every SQLite cuts it into the same trigrams.
        steps.append(call("append_message", f"chat-{n}", "user", [{"type": "text", "text": "see what is here"}]))
        steps.append(call("end_session", f"chat-{n}", "cli_close"))
    steps += [call("delete_session", f"chat-{n}") for n in range(1, DELETED + 1)]
    home.run(release, steps)
    return home


def copied(folder: Path, to: Path, release: Release | str) -> Home:
    """A private copy of such a home, which is made once in the folder that all workers share."""
    home, _now = built_once(folder / f"thinned-{release}", lambda made: (thinned(made, release), 0.0)[1])
    shutil.copytree(home.path, to)
    return Home(to)


def bytes_of(store: Path) -> int:
    """What file and log take up."""
    log = store.with_name(store.name + "-wal")
    return store.stat().st_size + (log.stat().st_size if log.exists() else 0)
