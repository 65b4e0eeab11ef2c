"""Homes in which sessions are gone and their messages are not: what is planted, and what is to be found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hermes_doctor.engine.model import Safety
from tests.oracle.history import CALLS
from tests.oracle.home import Home
from tests.oracle.releases import Release
from tests.oracle.steps import Step, blob, call, clock, sql

#: When everything was said, in seconds since the epoch: some days before the tests take for now.
SAID = 1_790_000_000.0
NOW = SAID + 5 * 86_400.0

_MESSAGE = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)"


@dataclass(frozen=True)
class Case:
    """A session and its messages. ``expected``: what can be done about it, None where it is well."""

    name: str
    steps: list[Step]
    expected: Safety | None
    messages: int = 0
    session: str = ""


def chat(session: str, *, source: str = "cli") -> list[Step]:
    """A session with a question, a call of a tool, its result and an answer."""
    return [
        clock(SAID),
        call("create_session", session, source, model="test-model"),
        call("append_message", session, "user", f"hello {session}"),
        call("append_message", session, "assistant", "", tool_calls=CALLS * 2),
        call("append_message", session, "tool", "a.txt", tool_call_id="call_1", tool_name="terminal"),
        call("append_message", session, "assistant", "hi"),
    ]


def without_foreign_keys(*steps: Step) -> list[Step]:
    return [sql("PRAGMA foreign_keys=OFF"), *steps, sql("PRAGMA foreign_keys=ON")]


def deleted(session: str, **columns: Any) -> list[Step]:
    """A chat whose session a tool without foreign keys deleted."""
    return [*chat(session, **columns), *without_foreign_keys(sql("DELETE FROM sessions WHERE id = ?", session))]


def said_to_nobody(session: Any, *times: Any) -> list[Step]:
    """Messages that were written when the session was gone already."""
    rows = [sql(_MESSAGE, session, "user" if n % 2 == 0 else "assistant", "hello", at) for n, at in enumerate(times)]
    return without_foreign_keys(*rows)


def cases(release: Release) -> list[Case]:
    """A few missing sessions beside others that are there, and what only looks like one."""
    unsafe, refused = Safety.UNSAFE, Safety.NONE
    made = [
        Case("deleted", deleted("gone-1"), unsafe, 4, "gone-1"),
        Case("written while missing", said_to_nobody("gone-2", SAID + 1, SAID + 2), unsafe, 2, "gone-2"),
        Case("a single message", said_to_nobody("gone-3", SAID), unsafe, 1, "gone-3"),
        Case("first time absurd", said_to_nobody("gone-4", 5e246, SAID + 5, 0, SAID + 3), unsafe, 4, "gone-4"),
        Case("id in another script", deleted("größe 日本"), unsafe, 4, "größe 日本"),
        Case("differs in case only", [*chat("Twin"), *said_to_nobody("twin", SAID)], unsafe, 1, "twin"),
        Case("begins like one that is there", [*chat("gone"), *said_to_nobody("gone\t", SAID)], unsafe, 1, "gone\t"),
        Case("no time at all", said_to_nobody("gone-5", 0, 5e246, "yesterday"), refused, 3, "gone-5"),
        Case("id of bytes", said_to_nobody(blob(b"\x00gone"), SAID), refused, 1, ""),
        Case("well", chat("well-1"), None, session="well-1"),
        Case("well and ended", [*chat("well-2"), call("end_session", "well-2", "cli_close")], None, session="well-2"),
        Case("empty", [clock(SAID), call("create_session", "empty", "cli")], None, session="empty"),
    ]
    if release.since("0.18.0"):
        rewound = [sql("UPDATE messages SET active = 0 WHERE session_id = 'gone-6' AND tool_calls IS NOT NULL")]
        made.append(Case("one message rewound", [*deleted("gone-6"), *rewound], unsafe, 4, "gone-6"))
    return made


def plant(home: Home, release: Release) -> list[Case]:
    """The cases, planted into the home."""
    made = cases(release)
    home.run(release, [step for case in made for step in case.steps])
    return made


def lost(home: Home, release: Release, *, missing: int, left: int, recovered_before: int = 0) -> None:
    """A home whose table of sessions was lost but for a few: after it, hermes went on."""
    steps = [step for n in range(missing) for step in chat(f"lost-{n:03}")]
    steps += without_foreign_keys(sql("DELETE FROM sessions"))
    for n in range(recovered_before):
        steps += chat(f"recovered-{n:03}", source="recovered")
    for n in range(left):
        steps += chat(f"left-{n:03}")
    home.run(release, steps)
