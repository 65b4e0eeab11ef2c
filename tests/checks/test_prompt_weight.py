"""prompt-weight: copies of system prompts are weighed, shared ones that somebody uses are not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from checks.prompt_weight import CHECK
from hermes_doctor.engine.model import Check, Finding, Safety, Severity
from hermes_doctor.engine.rows import find_again
from hermes_doctor.store import prompts
from hermes_doctor.store.prompts import MEBIBYTE, inline_prompts
from tests.checks.support import findings_of
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST
from tests.oracle.steps import Step, call, clock
from tests.store.views import view_of

PROMPT = "You are an agent. é "
#: About 30 kB, as real ones are.
LARGE = PROMPT * (30_000 // len(PROMPT.encode()))
SIZE = len(LARGE.encode())


def sessions(count: int, prompt: str) -> list[Step]:
    return [
        clock(1_790_000_000.0),
        *(call("create_session", f"s{n}", "cli", model="test-model", system_prompt=prompt) for n in range(count)),
    ]


def change(store: Path, sql: str, *values: Any) -> None:
    connection = apsw.Connection(str(store))
    connection.execute("PRAGMA foreign_keys=OFF")
    connection.execute(sql, values)
    connection.close()


def told(home: Home, check: Check = CHECK) -> dict[str, tuple[object, ...]]:
    """By table: rows, bytes and different prompts of the finding."""
    found: Sequence[Finding] = findings_of(home.store, check, home=home.path)
    assert all((f.severity, f.fix, f.key, f.session) == (Severity.INFO, Safety.NONE, None, None) for f in found)
    return {f.table: (f.detail["rows"], f.detail["bytes"], f.detail.get("distinct")) for f in found}


def inline(home: Home, count: int, different: int) -> None:
    """Prompts as a 0.19 leaves them that opens the store of a newer release."""
    home.run("0.19.0", sessions(count, LARGE))
    for n in range(1, different):
        change(home.store, "UPDATE sessions SET system_prompt = ? WHERE id = ?", LARGE[:-2] + f"{n:02}", f"s{n}")


def test_copies_are_told_where_the_release_shares_them(home: Home) -> None:
    home.run(NEWEST, sessions(1, "short"))
    inline(home, 41, different=3)
    # The two that are different are a byte shorter.
    assert told(home) == {"sessions": (41, 41 * SIZE - 2, 3)}
    found = findings_of(home.store, CHECK, home=home.path)
    with view_of(home.store, home=home.path) as view:
        assert list(find_again(CHECK, found, view)) == found
    (finding,) = found
    assert finding.summary.startswith("41 sessions hold 1.2 MiB of system prompts")
    assert "agent" not in str(finding)


def test_a_release_that_shares_nothing_has_nothing_to_tell(home: Home) -> None:
    inline(home, 41, different=1)
    assert told(home) == {}
    # And when a newer one has opened the store, they are shared.
    home.run(NEWEST, [call("get_session", "s0")])
    assert told(home) == {}


def test_less_than_a_mebibyte_is_nothing_to_tell(home: Home) -> None:
    home.run(NEWEST, sessions(1, "short"))
    change(home.store, "UPDATE sessions SET system_prompt = ?", "x" * (MEBIBYTE - 1))
    assert told(home) == {}
    change(home.store, "UPDATE sessions SET system_prompt = ?", "x" * MEBIBYTE)
    assert told(home) == {"sessions": (1, MEBIBYTE, 1)}
    (finding,) = findings_of(home.store, CHECK, home=home.path)
    assert finding.summary == "1 session holds 1.0 MiB of system prompts that the release would share"


def test_too_much_is_not_read_to_tell_how_many_are_different(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.run(NEWEST, sessions(1, "short"))
    change(home.store, "UPDATE sessions SET system_prompt = ?", "x" * MEBIBYTE)
    monkeypatch.setattr(prompts, "_READ_AT_MOST", MEBIBYTE - 1)
    assert told(home) == {"sessions": (1, MEBIBYTE, None)}


def test_shared_prompts_are_told_that_nobody_uses(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.run(NEWEST, sessions(2, LARGE))
    large, tools, unused = ("x" * (2 * MEBIBYTE), "t" * (2 * MEBIBYTE), "u" * (2 * MEBIBYTE))
    for prompt in (large, tools, unused):
        digest = hashlib.sha256(prompt.encode()).hexdigest()
        change(home.store, "INSERT INTO system_prompts (hash, prompt) VALUES (?, ?)", digest, prompt)
    named = (hashlib.sha256(large.encode()).hexdigest(), hashlib.sha256(tools.encode()).hexdigest())
    change(home.store, "UPDATE sessions SET system_prompt_hash = ?, tool_names = ? WHERE id = 's0'", *named)
    # One is a session's prompt, one its tools; the first prompt is the other session's.
    assert told(home) == {"system_prompts": (1, 2 * MEBIBYTE, None)}
    # Who looks at prompts only would tell hermes's tools, too.
    monkeypatch.setattr(prompts, "_NAMING", ("system_prompt_hash",))
    assert told(home) == {"system_prompts": (2, 4 * MEBIBYTE, None)}
    monkeypatch.undo()
    # Hermes agrees: the next deletion drops just that one.
    home.run(NEWEST, [call("create_session", "s9", "cli"), call("delete_session", "s9")])
    assert told(home) == {}
    with view_of(home.store) as view:
        assert view.rows("SELECT count(*) FROM system_prompts") == [(3,)]


def test_characters_are_no_bytes(home: Home) -> None:
    home.run(NEWEST, sessions(1, "short"))
    change(home.store, "UPDATE sessions SET system_prompt = ?", "é" * (MEBIBYTE // 2))
    with view_of(home.store) as view:
        assert replace(inline_prompts(view), distinct=None).bytes == MEBIBYTE
