"""Planters: damage as the releases themselves leave it, and as tools beside them do.

``with planting(home, release) as plant:`` collects what is to be planted and carries it out in one subprocess
at the end of the block; the session ids are known at once. The home may have been lived in before. Where a
fault comes from a release's own calls (and a crash), those calls are made, and the process dies by SIGKILL in
the end; SQL only stands for what no release does.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.oracle.history import CALLS, DAY, HOUR, MODEL_CONFIG, REASONING, SUMMARY_PREFIX
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, clock, kill, ref, sql, use

LineageGap = Literal["no-continuation", "empty-continuation", "missing-parent", "self-parent", "loop"]


@dataclass(frozen=True)
class Fork:
    """A conversation and the forks of it, each a fork of the one before.

    ``forks[n]`` has its JSON columns wrapped in n + 1 layers too many, where the release has the defect.
    """

    source: str
    forks: tuple[str, ...]


@contextmanager
def planting(home: Home, release: Release | str) -> Iterator[Planter]:
    """Plants with that release what the block asks for; the faults are there when the block is left."""
    plant = Planter(get(release))
    yield plant
    home.run(plant.release, plant.steps + ([kill()] if plant.dies else []))


@dataclass
class Planter:
    """Collects the steps that plant faults."""

    release: Release
    steps: list[Step] = field(default_factory=list)
    dies: bool = False

    def session(self, source: str, *, idle: float = 3 * DAY, name: str = "s", **columns: Any) -> str:
        """A row that begins ``idle`` seconds ago; ``columns`` go to ``create_session``. Value: its id."""
        session = f"{name}-{uuid.uuid4().hex[:8]}"
        self.steps.append(clock(time.time() - idle))
        self.steps.append(call("create_session", session, source, **({"model": "test-model"} | columns)))
        return session

    def say(self, session: str, role: str, content: Any, **columns: Any) -> None:
        """One message, at the time that the last session began."""
        self.steps.append(call("append_message", session, role, content, **columns))

    def end(self, session: str, reason: str) -> None:
        """Ends the session for that reason."""
        self.steps.append(call("end_session", session, reason))

    def fork_double_encoded(self, levels: int = 1, *, idle: float = 2 * HOUR) -> Fork:
        """Forks a reasoning conversation ``levels`` times through the API server's own handler.

        0.15.2 to 0.20.0 wrap reasoning_details and the codex columns once more with each fork (the handler
        gives the rows of get_messages to replace_messages); from 0.20.6 on the values stay as they are. Raises
        ValueError for 0.13.0, which has no such handler.
        """
        if not self.release.since("0.15.2"):
            raise ValueError(f"hermes {self.release} has no fork endpoint")
        source = self.session("api_server", idle=idle, name="forked")
        self.say(source, "user", "which files are there?")
        self.say(source, "assistant", "", tool_calls=CALLS, **REASONING)
        self.say(source, "tool", "a.txt", tool_call_id="call_1", tool_name="terminal")
        self.say(source, "assistant", "one: a.txt", **REASONING)
        forks = tuple(f"fork-{uuid.uuid4().hex[:8]}" for _ in range(levels))
        for parent, fork in zip((source, *forks), forks, strict=False):
            self.steps.append(use("api_fork", source=parent, fork=fork))
        return Fork(source, forks)

    def rewritten_by_a_script(self, levels: int = 1) -> str:
        """A session that an external script rewrote ``levels`` times with get_messages and replace_messages.

        The same defect without the fork, on every release up to 0.20.0 (0.13.0 too). Value: the session.
        """
        session = self.session("cli", idle=HOUR, name="rewritten")
        self.say(session, "user", "hello")
        self.say(session, "assistant", "hi", **REASONING)
        for _ in range(levels):
            rows = f"rows {len(self.steps)}"
            self.steps.append(call("get_messages", session, keep=rows))
            self.steps.append(call("replace_messages", session, ref(rows)))
        self.end(session, "cli_close")
        return session

    def open_zombie(self, source: str = "cli", *, idle: float = 3 * DAY, **columns: Any) -> str:
        """A conversation whose process was killed: nobody ever ends its row. Value: the session."""
        session = self.session(source, idle=idle, name="zombie", **columns)
        self.say(session, "user", "hello")
        self.say(session, "assistant", "hi")
        self.dies = True
        return session

    def killed_mid_turn(self, source: str = "cli", *, idle: float = 3 * DAY) -> str:
        """The same between a tool call and its answer. Value: the session."""
        session = self.session(source, idle=idle, name="mid-turn")
        self.say(session, "user", "which files are there?")
        self.say(session, "assistant", "", tool_calls=CALLS, finish_reason="tool_calls")
        self.dies = True
        return session

    def orphan_stub(
        self, source: str = "tui", *, idle: float = 3 * DAY, end_reason: str | None = None, **columns: Any
    ) -> str:
        """A row that was made before a first prompt that never came; killed, or ended for ``end_reason``.

        Value: the session.
        """
        session = self.session(source, idle=idle, name="stub", **columns)
        if end_reason is None:
            self.dies = True
        else:
            self.end(session, end_reason)
        return session

    def lineage_gap(self, kind: LineageGap = "no-continuation", *, idle: float = 3 * DAY) -> tuple[str, str | None]:
        """A broken lineage. Value: the damaged session, and the other one that has a part in it.

        ``no-continuation``: ended by compression, and the process died before the child was there.
        ``empty-continuation``: the child is there, but died before its first flush (parent, child). From
        0.20.0 on a release publishes end, child and summary together; its stores have both from earlier
        releases and from deletions. ``missing-parent``: a tool without foreign keys deleted the parent (child,
        the missing id). ``self-parent`` and ``loop`` (both ends): no release does it, SQL does.
        """
        first = self.session("cli", idle=idle, name="gap")
        self.say(first, "user", "hello")
        self.say(first, "assistant", "hi")
        if kind == "self-parent":
            self.end(first, "cli_close")
            self.steps.append(sql("UPDATE sessions SET parent_session_id = id WHERE id = ?", first))
            return first, None
        self.end(first, "compression")
        if kind == "no-continuation":
            self.dies = True
            return first, None
        second = self.session("cli", idle=idle, name="gap", parent_session_id=first)
        if kind == "empty-continuation":
            self.dies = True
            return first, second
        self.say(second, "user", f"{SUMMARY_PREFIX} a greeting")
        self.say(second, "assistant", "go on")
        if kind == "loop":
            self.end(second, "compression")
            self.steps.append(sql("UPDATE sessions SET parent_session_id = ? WHERE id = ?", second, first))
            return first, second
        self.end(second, "cli_close")
        self.steps += [
            sql("PRAGMA foreign_keys=OFF"),
            sql("DELETE FROM messages WHERE session_id = ?", first),
            sql("DELETE FROM sessions WHERE id = ?", first),
            sql("PRAGMA foreign_keys=ON"),
        ]
        return second, first

    def delegate_left_open(self, *, idle: float = 3 * DAY) -> tuple[str, str]:
        """A delegate that is done, as 0.13 to 0.17 leave it: its row stays open (parent, child).

        From 0.18.0 on a killed parent leaves the same.
        """
        # Source and marker of a delegate: the parent's source and none up to 0.16.
        marked = self.release.since("0.17.0")
        parent = self.session("cli", idle=idle, name="delegating")
        self.say(parent, "user", "have it done")
        child = self.session(
            "subagent" if marked else "cli",
            idle=idle,
            name="delegate",
            parent_session_id=parent,
            model_config=MODEL_CONFIG | ({"_delegate_from": parent} if marked else {}),
        )
        self.say(child, "user", "do it")
        self.say(child, "assistant", "done")
        self.say(parent, "assistant", "it is done")
        self.end(parent, "cli_close")
        self.dies = True
        return parent, child
