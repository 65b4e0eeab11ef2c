"""Cases of amputated-branches, as data: a parent, the release's own branch of it, and which columns the copies lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.history import HOUR, PICTURE, REASONING
from tests.oracle.home import Home
from tests.oracle.releases import get
from tests.oracle.steps import Step, call, clock, ref, sql, use

REASONED = REASONING | {"reasoning_content": "thought it through"}
READ_BY_NOBODY = ("reasoning_content", "reasoning_details", "codex_reasoning_items", "codex_message_items")
#: What an assistant's copy lost, by path.
BY_CLI = READ_BY_NOBODY
BY_TUI = ("reasoning", *READ_BY_NOBODY)
CALLING = ("tool_calls", *BY_TUI)
ANSWER = ("tool_call_id", "tool_name")

#: What must never appear in a finding.
SECRET = "the spare key lies under the mat"


@dataclass(frozen=True)
class Said:
    """A message of the parent."""

    role: str
    content: Any
    columns: Mapping[str, Any] = field(default_factory=dict)


def calls(*ids: str) -> list[dict[str, Any]]:
    return [{"id": each, "type": "function", "function": {"name": "terminal", "arguments": "{}"}} for each in ids]


def turn(question: str, call_id: str, answer: str = "done", result: Any = "ok", **columns: Any) -> tuple[Said, ...]:
    """A question, a call, its result, and the answer; reasoning in every column of it."""
    reasoned = REASONED | columns
    return (
        Said("user", question),
        Said("assistant", "", {"tool_calls": calls(call_id), **reasoned}),
        Said("tool", result, {"tool_call_id": call_id, "tool_name": "terminal"}),
        Said("assistant", answer, {"finish_reason": "stop", **reasoned}),
    )


#: What a turn's copy lost, by the place of its first row.
def tui_turn(at: int = 0) -> dict[int, tuple[str, ...]]:
    return {at + 1: CALLING, at + 2: ANSWER, at + 3: BY_TUI}


def cli_turn(at: int = 0) -> dict[int, tuple[str, ...]]:
    return {at + 1: BY_CLI, at + 3: BY_CLI}


@dataclass(frozen=True)
class BranchCase:
    """A parent's messages, how it is branched, and what is done before and after.

    ``path``: ``tui`` or ``cli``. ``before``, ``after``: SQL, in which {parent} and {branch} stand for the ids.
    ``lost``: by the place of a branch's row (from 0), the columns that are to be filled. ``left``: how many rows more
    have lost something and cannot be filled. ``severity``: None where nothing must be found. ``not_copied``: how many
    messages a copy that ended early lacks. ``replays``: the branch then replays as the parent's first rows did.
    """

    name: str
    said: tuple[Said, ...]
    path: str = "tui"
    lost: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    left: int = 0
    severity: str | None = None
    not_copied: int = 0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    since: str = "0.13.0"
    to: str = "0.20.0"
    replays: bool = False

    def shows(self, version: str) -> bool:
        release = get(version)
        newest = self.to == version or not release.since(self.to)
        return release.since("0.19.0" if self.path == "cli" else self.since) and release.since(self.since) and newest

    @property
    def parent(self) -> str:
        return f"{self.name}: parent"


ROW = "SELECT id FROM messages WHERE session_id = {%s} ORDER BY id LIMIT 1 OFFSET %d"


def row(of: str, place: int) -> str:
    """SQL for the id of a session's row, by its place."""
    return f"({ROW % (of, place)})"


LATER = "(SELECT started_at FROM sessions WHERE id = {branch}) + 3600"
TWO = (*turn("first", "call_1"), *turn("second", "call_2", "that too"))
AGAIN = turn("again", "call_9", "done")
THRICE = (*turn("first", "call_1"), *AGAIN, *turn("again", "call_8"))
#: The second of three turns is rewound.
SECOND_REWOUND = (
    f"UPDATE messages SET active = 0 WHERE session_id = {{parent}} AND id >= {row('parent', 4)}"
    f" AND id < {row('parent', 8)}"
)
GO_ON = (Said("user", "go on"), Said("assistant", "fine", REASONED))
#: One piece, a user's row after it, and one answer.
LONG = tuple(Said("assistant" if n % 2 else "user", f"message {n}") for n in range(502))

CASES: tuple[BranchCase, ...] = (
    # Faults.
    BranchCase("terminal", TWO, lost=tui_turn() | tui_turn(4), severity="error", replays=True),
    BranchCase("cli", TWO, "cli", cli_turn() | cli_turn(4), severity="warning", replays=True),
    BranchCase(
        "blanks that loading takes off",
        (*turn(" first ", "call_1", "\n\ndone\n"), Said("user", SECRET)),
        lost=tui_turn(),
        severity="error",
        replays=True,
    ),
    BranchCase(
        "only what the CLI left out the longest",
        (Said("user", "well?"), Said("assistant", "well", {"reasoning": "hm", "reasoning_content": "hm!"})),
        "cli",
        {1: ("reasoning_content",)},
        severity="info",
        to="0.20.6",
    ),
    BranchCase(
        "a CLI's without calls",
        (Said("user", "well?"), Said("assistant", "well", {"codex_message_items": [{"id": "m"}]})),
        "cli",
        {1: ("codex_message_items",)},
        severity="warning",
    ),
    BranchCase(
        "the parent was rewound since",
        TWO,
        lost=tui_turn() | tui_turn(4),
        severity="error",
        after=("UPDATE messages SET active = 0 WHERE session_id = {parent} AND id >= " + row("parent", 4),),
        since="0.16.0",
    ),
    BranchCase(
        "the parent was compacted since",
        TWO,
        lost=tui_turn() | tui_turn(4),
        severity="error",
        after=(
            "UPDATE messages SET active = 0, compacted = 1 WHERE session_id = {parent}",
            "INSERT INTO messages (session_id, role, content, timestamp) SELECT session_id, 'user', 'in short', "
            + LATER
            + " FROM messages WHERE session_id = {parent} LIMIT 1",
        ),
        since="0.18.0",
    ),
    BranchCase(
        "the parent was rewound before",
        (*turn("first", "call_0", "wrong"), *turn("first", "call_1", "right")),
        lost=tui_turn(),
        severity="error",
        before=("UPDATE messages SET active = 0 WHERE session_id = {parent} AND id < " + row("parent", 4),),
        since="0.16.0",
        replays=False,
    ),
    BranchCase(
        "the parent went on alike",
        AGAIN,
        lost=tui_turn(),
        severity="error",
        after=(
            "INSERT INTO messages (session_id, role, content, tool_calls, tool_call_id, timestamp)"
            " SELECT session_id, role, content, 'later', tool_call_id, " + LATER + " FROM messages"
            " WHERE session_id = {parent} ORDER BY id",
        ),
    ),
    BranchCase(
        "the branch went on",
        TWO,
        lost=tui_turn() | tui_turn(4),
        severity="error",
        after=(
            "INSERT INTO messages (session_id, role, content, tool_calls, tool_call_id, tool_name, timestamp)"
            " SELECT {branch}, role, content, tool_calls, tool_call_id, tool_name, " + LATER + " FROM messages"
            " WHERE session_id = {parent} ORDER BY id",
            "UPDATE sessions SET message_count = 16, tool_call_count = 2 WHERE id = {branch}",
        ),
    ),
    BranchCase(
        "the parent's reasoning is text that is no text",
        TWO,
        lost={3: BY_TUI} | tui_turn(4),
        left=2,
        severity="error",
        after=("UPDATE messages SET reasoning = CAST(X'FF41' AS TEXT) WHERE id = " + row("parent", 1),),
    ),
    BranchCase(
        "some of it was rewound in the branch",
        TWO,
        lost=tui_turn(),
        severity="error",
        after=("UPDATE messages SET active = 0 WHERE session_id = {branch} AND id >= " + row("branch", 4),),
        since="0.16.0",
    ),
    # Faults that are not mended, or not wholly.
    BranchCase(
        "several rows fit",
        THRICE,
        lost=tui_turn() | {7: BY_TUI},
        left=2,
        severity="error",
        before=(SECOND_REWOUND,),
        since="0.16.0",
        to="0.19.0",
    ),
    BranchCase(
        "several rows fit but for their times",
        THRICE,
        lost=tui_turn() | tui_turn(4),
        severity="error",
        before=(SECOND_REWOUND,),
        since="0.20.0",
    ),
    BranchCase(
        "a row of the copy was changed",
        TWO,
        lost=tui_turn(),
        severity="error",
        after=("UPDATE messages SET content = 'other' WHERE id = " + row("branch", 4),),
    ),
    BranchCase(
        "the parent's calls are wrapped",
        TWO,
        lost=tui_turn() | {7: BY_TUI},
        left=2,
        severity="error",
        after=("UPDATE messages SET tool_calls = json_quote(tool_calls) WHERE id = " + row("parent", 5),),
    ),
    BranchCase(
        "the parent's reasoning is wrapped",
        TWO,
        "cli",
        left=4,
        severity="warning",
        after=("UPDATE messages SET reasoning_details = json_quote(reasoning_details) WHERE id = " + row("parent", 7),),
    ),
    BranchCase(
        "a picture for an answer",
        (*turn("first", "call_1"), *turn("second", "call_2", result=PICTURE)),
        lost=tui_turn() | {7: BY_TUI},
        left=2,
        severity="error",
    ),
    BranchCase(
        "cut off among the answers",
        TWO,
        lost=tui_turn(),
        left=1,
        severity="error",
        after=("DELETE FROM messages WHERE session_id = {branch} AND id >= " + row("branch", 6),),
    ),
    # Copies that end early.
    BranchCase(
        "a piece is missing",
        LONG,
        "cli",
        severity="warning",
        not_copied=2,
        before=(
            "CREATE TRIGGER no_room BEFORE INSERT ON messages WHEN (SELECT count(*) FROM messages"
            " WHERE session_id = NEW.session_id) >= 500 BEGIN SELECT RAISE(ABORT, 'no room'); END",
        ),
        after=("DROP TRIGGER no_room",),
        since="0.20.0",
    ),
    BranchCase("whole, of one piece", LONG[:500], "cli", since="0.20.0"),
    BranchCase("whole, of more", LONG, "cli", since="0.20.0"),
    # Look-alikes.
    BranchCase("terminal from 0.20.6 on", TWO, since="0.20.6", to="0.20.6"),
    BranchCase("cli from 0.22.2 on", TWO, "cli", since="0.22.2", to="0.22.2"),
    BranchCase("bare dialogue", (Said("user", "well?"), Said("assistant", "well", REASONED))),
    BranchCase(
        "no answers of tools at all",
        TWO,
        after=("DELETE FROM messages WHERE session_id = {branch} AND (role = 'tool' OR content = '')",),
    ),
    BranchCase(
        "the parent lacks it as well",
        TWO,
        after=("UPDATE messages SET tool_call_id = NULL WHERE session_id = {parent}",),
    ),
    BranchCase("the parent is gone", TWO, after=("UPDATE sessions SET parent_session_id = NULL WHERE id = {branch}",)),
    BranchCase(
        "all of it was rewound in the branch",
        TWO,
        after=("UPDATE messages SET active = 0 WHERE session_id = {branch}",),
        since="0.16.0",
    ),
    BranchCase(
        "other answers",
        TWO,
        after=("UPDATE messages SET content = 'other' WHERE session_id = {branch} AND role <> 'user'",),
    ),
    BranchCase(
        "an own turn that begins like the parent's next",
        (*turn("first", "call_1"), *GO_ON),
        "cli",
        cli_turn(),
        severity="warning",
        after=(
            "UPDATE messages SET timestamp = " + LATER + " WHERE session_id = {branch} AND id >= " + row("branch", 4),
        ),
    ),
    BranchCase(
        "other calls",
        TWO,
        "cli",
        {1: BY_CLI},
        severity="warning",
        after=("UPDATE messages SET tool_call_id = 'call_x' WHERE id = " + row("branch", 2),),
    ),
    BranchCase(
        "a column that some of its copies have",
        TWO,
        "cli",
        {},
        after=(
            *(
                f"UPDATE messages SET {column} = (SELECT its.{column} FROM messages its WHERE its.id = "
                + row("parent", 7)
                + ") WHERE id = "
                + row("branch", 7)
                for column in READ_BY_NOBODY
            ),
        ),
    ),
    BranchCase(
        "a terminal's run that is no branch",
        (Said("user", "do it"), Said("assistant", "done", REASONED)),
        after=(
            "UPDATE sessions SET model_config = NULL WHERE id = {branch}",
            "UPDATE messages SET reasoning = 'hm' WHERE id = " + row("branch", 1),
        ),
    ),
)


@dataclass(frozen=True)
class Made:
    """A case in a store: the branch's id, and the ids of its rows in order."""

    case: BranchCase
    branch: str
    rows: tuple[int, ...]


def plant(home: Home, version: str, now: float, cases: tuple[BranchCase, ...] = CASES) -> list[Made]:
    """Plant the cases that the release can show; the parent is three hours old, the branch two."""
    chosen = [case for case in cases if case.shows(version)]
    steps = planting(chosen, now)
    listing = [sql("SELECT id FROM messages WHERE session_id = ? ORDER BY id", ref(case.name)) for case in chosen]
    values: list[Any] = home.run(get(version), steps + listing)
    ids = [value for value, step in zip(values, steps, strict=False) if "as" in step]
    return [
        Made(case, branch, tuple(own for (own,) in listed))
        for case, branch, listed in zip(chosen, ids, values[len(steps) :], strict=True)
    ]


def planting(chosen: Iterable[BranchCase], now: float) -> list[Step]:
    """The steps that write these cases, and put the clock right again."""
    steps: list[Step] = []
    for case in chosen:
        steps.append(clock(now - 3 * HOUR))
        steps.append(call("create_session", case.parent, case.path, model="test-model"))
        if len(case.said) < 100:
            for said in case.said:
                steps.append(call("append_message", case.parent, said.role, said.content, **said.columns))
        else:
            rows = [{"role": said.role, "content": said.content, **said.columns} for said in case.said]
            steps.append(call("append_messages_batch", case.parent, rows))
        steps += [_statement(text, case) for text in case.before]
        steps.append(clock(now - 2 * HOUR))
        steps.append(use(f"{case.path}_branch", session=case.parent, keep=case.name))
        steps += [_statement(text, case) for text in case.after]
    return [*steps, clock(None)]


def _statement(text: str, case: BranchCase) -> Step:
    names = re.findall(r"{(parent|branch)}", text)
    values = [case.parent if name == "parent" else ref(case.name) for name in names]
    return sql(re.sub(r"{(parent|branch)}", "?", text), *values)
