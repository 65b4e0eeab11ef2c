"""What tests of a review share: a store with findings that are for a person to decide, and a person at a terminal."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import apsw
import pexpect

from hermes_doctor.demo.home import make_demo_home
from tests.cli.changing import DAY
from tests.cli.support import environment

#: What only the store may hold: as message, title, prompt and reasoning.
PRIVATE = "hush-hush"

#: The findings of `doubtful` that are for a person to decide, in the order in which they are asked.
ASKED = ["namesake", "the usage", "old-1", "old-2", "old-3"]

QUESTION = r"Mend it\? \[y,n,a,l,q,r,e,\?\] (?:\(Enter: as before\) )?"
APPLY = r"Apply (?:this one|these \d+) now\? \[y/n\] "


def doubtful(folder: Path) -> Path:
    """A damaged home in which five findings are for a person to decide: a title, a usage, and three chats."""
    store = make_demo_home(folder)
    now = time.time()
    connection = apsw.Connection(str(store))
    with closing(connection), connection:
        for number in (1, 2, 3):
            for name, began in ((f"old-{number}", now - 9 * DAY), (f"new-{number}", now - 8 * DAY)):
                _session(connection, name, began, key=f"agent:main:telegram:dm:{number}")
        for name, began in (("first-of-them", now - 7 * DAY), ("namesake", now - 6 * DAY)):
            _session(connection, name, began, title=f"{PRIVATE} title", ended=began + 60)
        connection.execute("INSERT INTO session_model_usage(session_id, model) VALUES ('long-gone', 'm-1')")
    return store


def _session(
    connection: apsw.Connection,
    name: str,
    began: float,
    *,
    key: str | None = None,
    title: str | None = None,
    ended: float | None = None,
) -> None:
    connection.execute(
        "INSERT INTO sessions(id, source, started_at, session_key, title, ended_at, end_reason, message_count)"
        " VALUES (?, 'telegram', ?, ?, ?, ?, iif(? IS NULL, NULL, 'session_reset'), 1)",
        (name, began, key, title, ended, ended),
    )
    connection.execute(
        "INSERT INTO messages(session_id, role, content, timestamp, reasoning) VALUES (?, 'user', ?, ?, ?)",
        (name, f"{PRIVATE} words", began, f"{PRIVATE} thoughts"),
    )


class Person:
    """Somebody at a real terminal, before a review of one or more stores."""

    def __init__(self, folder: Path, *arguments: str | Path, columns: int = 80, **more: str) -> None:
        self._terminal = pexpect.spawn(
            sys.executable,
            ["-m", "hermes_doctor", "fix", "--review", "--no-progress", *map(str, arguments)],
            env=environment(folder, TERM="xterm", NO_COLOR="1", **more),
            cwd=str(folder),
            dimensions=(40, columns),
            encoding="utf-8",
            codec_errors="replace",
            timeout=60,
        )
        self.seen = ""

    def waits_for(self, *patterns: str) -> str:
        """Read until one of the patterns comes; return what was shown before it, and it."""
        self._terminal.expect([*patterns])
        shown = str(self._terminal.before) + str(self._terminal.after)
        self.seen += shown
        return shown.replace("\r\n", "\n")

    def answers(self, answer: str, *patterns: str) -> str:
        """Type an answer and Enter, and read what follows: the next question, unless something else is waited for."""
        self._terminal.sendline(answer)
        return self.waits_for(*(patterns or (QUESTION,)))

    def presses(self, key: str, *patterns: str) -> str:
        """Press Ctrl and a key, and read what follows."""
        self._terminal.sendcontrol(key)
        return self.waits_for(*patterns) if patterns else ""

    def types(self, keys: bytes, *patterns: str) -> str:
        """Type just these bytes, and read what follows."""
        os.write(self._terminal.child_fd, keys)
        return self.waits_for(*patterns)

    def closes_the_window(self) -> None:
        """Take the terminal away, and wait until the command has ended."""
        self._terminal.ptyproc.fileobj.close()
        self._terminal.ptyproc.wait()
        self._terminal.close()

    def reads_on(self) -> tuple[int, str]:
        """Read to the end; return the exit code and what came last."""
        self._terminal.expect(pexpect.EOF)
        last = str(self._terminal.before)
        self.seen += last
        self._terminal.close()
        assert self._terminal.exitstatus is not None, self.seen
        return int(self._terminal.exitstatus), last.replace("\r\n", "\n")

    def goes_through(self, answers: Sequence[str], end: str = APPLY) -> list[str]:
        """Answer one question after the other; return which finding each was about."""
        asked = [subject(self.waits_for(QUESTION))]
        for answer in answers[:-1]:
            asked.append(subject(self.answers(answer)))
        self.answers(answers[-1], end)
        return asked


def subject(shown: str) -> str:
    """Which finding of `doubtful` a question was about, by its heading."""
    found = re.findall(r"^\d+ of \d+ · .*(?:\n\S.*)*", shown, re.MULTILINE)
    assert len(found) == 1, shown
    names = [name for name in ASKED if name in found[0] or (name == "the usage" and "session_model_usage" in found[0])]
    assert len(names) == 1, found
    return names[0]
