"""Cases of leaked-prompts, as data: chats, the rows of reviews that leaked into them, and what becomes of each row.

The prompts' texts are read off the releases' own source, so that none is kept here.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any

from tests.oracle import wheels
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, open_store, sql, sql_many

DAY = 86_400.0

#: What the releases send is made of these, by what the review is about.
_CONSTANTS = {
    "memory": "_MEMORY_REVIEW_PROMPT",
    "skills": "_SKILL_REVIEW_PROMPT",
    "both": "_COMBINED_REVIEW_PROMPT",
}


@dataclass(frozen=True)
class Prompts:
    """What a release sends, by what the review is about.

    ``bare``: without the paragraph about the tools. ``variants``: what it sends where reviews are set up otherwise, or
    a person asked for one and said what about.
    """

    sent: Mapping[str, str]
    bare: Mapping[str, str]
    variants: tuple[str, ...]


@cache
def prompts_of(version: str) -> Prompts:
    """The prompts of a release, evaluated out of its source; nothing of it is run."""
    release = get(version)
    folder = wheels.unpacked(release)
    name = "agent/background_review.py" if release.since("0.15.2") else "run_agent.py"
    tree = ast.parse((folder / name).read_text(encoding="utf-8"))
    constants: dict[str, str] = {}
    focus = None
    sent = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            target = node.targets[0].id
            if target.isupper():
                text = _text(node.value, constants)
                constants |= {} if text is None else {target: text}
            elif target == "prompt" and isinstance(node.value, ast.JoinedStr):
                focus = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = [each.value for each in node.keywords if each.arg == "user_message"]
            sent = given[0] if node.func.attr == "run_conversation" and given else sent
    assert sent is not None
    bare = {about: constants[constant] for about, constant in _CONSTANTS.items()}

    def message(prompt: str, phrase: str = "memory and skill ", extra: str = "") -> str:
        assert sent is not None
        text = _text(sent, {"prompt": prompt, "memory_phrase_prompt": phrase, "prompt_extra": extra})
        assert text is not None
        return text

    variants: list[str] = []
    if focus is not None:
        asked = _text(focus, {"prompt": bare["skills"], "focus": "the tea\n\nand only the tea"})
        assert asked is not None
        variants.append(message(asked))
    if release.since("0.21.5"):
        extra = _assigned(tree, "prompt_extra", {"extra_list": "session_search, todo"})
        variants += [message(bare["both"], "skill "), message(bare["memory"], extra=extra)]
    return Prompts({about: message(text) for about, text in bare.items()}, bare, tuple(variants))


def _assigned(tree: ast.AST, name: str, known: Mapping[str, str]) -> str:
    """The text that a name gets, of ``TEXT if ... else ''``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp) and ast.unparse(node.targets[0]) == name:
            text = _text(node.value.body, known)
            assert text
            return text
    raise AssertionError(f"nothing is assigned to {name}")


def _text(node: ast.AST, known: Mapping[str, str]) -> str | None:
    """What an expression of texts, names, sums and f-strings comes to; None for any other."""
    parts: list[str | None]
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return known.get(name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [_text(left, known), _text(right, known)]
        case ast.JoinedStr(values=values):
            parts = [_text(value, known) for value in values]
        case ast.FormattedValue(value=value):
            return _text(value, known)
        case _:
            return None
    return None if None in parts else "".join(part for part in parts if part is not None)


@dataclass(frozen=True)
class Say:
    """A row. ``leaked``: it is a review's and is to be hidden. ``replies``: of a prompt that is found, how many.

    ``gap``: so many ids are left out before it. ``dead``: (active, compacted). ``refused``: found, but left.
    """

    role: str
    content: str
    call: str | None = None
    leaked: bool = False
    replies: int | None = None
    in_a_row: bool = False
    refused: bool = False
    gap: int = 0
    at: float | None = None
    dead: tuple[int, int] = (1, 0)


@dataclass(frozen=True)
class LeakCase:
    """A chat. ``counts``: by how much its message counter is more than its live rows. ``leased``: a turn is running."""

    name: str
    rows: tuple[Say, ...]
    since: str = "0.13.0"
    counts: int = 0
    leased: bool = False


def user(text: str = "hello", **more: Any) -> Say:
    return Say("user", text, **more)


def answer(text: str = "hi", **more: Any) -> Say:
    return Say("assistant", text, **more)


def calls(name: str = "c1", **more: Any) -> Say:
    return Say("assistant", "", call=name, **more)


def tool(name: str = "c1", **more: Any) -> Say:
    return Say("tool", "done", call=name, **more)


def prompt(about: str = "skills", replies: int = 0, *, of: str = "0.17.0", **more: Any) -> Say:
    """A prompt that is found, as that release sends it; ``of`` is "focus" for one with a person's own words."""
    texts = prompts_of("0.22.2" if of == "focus" else of)
    text = texts.variants[0] if of == "focus" else texts.sent[about]
    return Say("user", text, leaked=True, replies=replies, **more)


def left(row: Say) -> Say:
    """The row as one that is no fault."""
    return replace(row, leaked=False, replies=None)


def refused(row: Say) -> Say:
    """The prompt as one that is found and left."""
    return replace(row, leaked=False, refused=True)


def theirs(*rows: Say) -> tuple[Say, ...]:
    """The rows as those of a review, to be hidden."""
    return tuple(replace(row, leaked=True) for row in rows)


def a_reply(text: str = "Nothing to save.") -> tuple[Say, ...]:
    return theirs(answer(text))


#: A chat that goes on behind what leaked.
TALK = (user(), answer())
MORE = (user("and then?"), answer("then nothing"))


def cases() -> tuple[LeakCase, ...]:
    """All cases; a function, since the texts are there only once the releases are."""
    skills = prompts_of("0.17.0").sent["skills"]
    bare = prompts_of("0.17.0").bare["memory"]
    tail = skills.rpartition("\n\n")[2]
    like_it = "Review the conversation above and update the skill library, please. " + "Mind the tea. " * 40
    summary = user("[CONTEXT COMPACTION — REFERENCE ONLY] what was said before")
    return (
        # Found.
        LeakCase("skills", (*TALK, prompt("skills", 1), *a_reply(), *MORE)),
        LeakCase("memory", (*TALK, prompt("memory", 1), *a_reply(), *MORE)),
        LeakCase("both", (*TALK, prompt("both", 1), *a_reply(), *MORE)),
        LeakCase("of a new release", (*TALK, prompt("both", 1, of="0.22.2"), *a_reply(), *MORE)),
        LeakCase("with a person's focus", (*TALK, prompt(replies=1, of="focus"), *a_reply(), *MORE)),
        LeakCase("without the last paragraph", (*TALK, replace(prompt("memory"), content=bare), *MORE)),
        LeakCase("as a system row", (*TALK, replace(prompt("skills", 1), role="system"), *a_reply(), *MORE)),
        LeakCase("no reply, at the end", (*TALK, prompt())),
        LeakCase("no reply, the chat goes on", (*TALK, prompt(), *MORE)),
        LeakCase(
            "a reply with tools",
            (
                *TALK,
                prompt("skills", 6),
                *theirs(calls("x"), tool("x"), tool("x"), calls("y"), tool("y"), answer("saved")),
                *MORE,
            ),
        ),
        LeakCase(
            "only the last word is a review's", (*TALK, prompt("both", 1), *a_reply(), answer("as I said"), *MORE)
        ),
        LeakCase("broken off at a call", (*TALK, prompt("memory", 1), *theirs(calls()), *MORE)),
        LeakCase("broken off at an answer", (*TALK, prompt("memory", 2), *theirs(calls(), tool()))),
        LeakCase(
            "another review behind a broken one",
            (*TALK, prompt("memory", 2), *theirs(calls(), tool()), prompt("skills", 1), *a_reply(), *MORE),
        ),
        LeakCase(
            "one review behind the other",
            (*TALK, prompt("memory", 1), *a_reply("saved"), prompt("skills", 1), *a_reply(), *MORE),
        ),
        LeakCase(
            "two in a row",
            (*TALK, prompt("memory", in_a_row=True), prompt("skills", in_a_row=True), answer("the real one"), *MORE),
        ),
        LeakCase(
            "three in a row",
            (*TALK, *(prompt("memory", in_a_row=True) for _ in range(3)), calls(), tool(), answer("the real one")),
        ),
        LeakCase(
            "two in a row in the midst of a turn",
            (user(), prompt("memory", in_a_row=True), prompt("skills", in_a_row=True), answer("the real one")),
        ),
        LeakCase(
            "far apart",
            (*TALK, prompt("both", 3), *theirs(calls(gap=1_500), tool(gap=900), answer("saved", gap=1_100)), *MORE),
        ),
        LeakCase(
            "a long reply",
            (
                *TALK,
                prompt("both", 81),
                *theirs(*(row for number in range(40) for row in (calls(f"c{number}"), tool(f"c{number}"))), answer()),
                *MORE,
            ),
        ),
        LeakCase("far from what was before", (*TALK, prompt("both", 1, gap=2_500), *a_reply(), *MORE)),
        LeakCase("behind a summary", (summary, prompt("skills", 1), *a_reply(), *MORE)),
        LeakCase("a person goes on with a review's own session", (prompt("skills", 1), *a_reply(), *MORE)),
        LeakCase(
            "the same said twice",
            (
                user(),
                answer("yes", at=7.0),
                prompt("both", 1),
                *theirs(answer("yes", at=7.0)),
                *MORE,
                answer("yes", at=7.0),
            ),
        ),
        LeakCase(
            "rewound rows in between",
            (*TALK, prompt("both", 1), user("no", dead=(0, 0)), answer("no", dead=(0, 0)), *a_reply(), *MORE),
            since="0.16.0",
        ),
        LeakCase(
            "behind a rewound one",
            (*TALK, left(prompt(dead=(0, 0))), answer(dead=(0, 0)), prompt("both", 1), *a_reply(), *MORE),
            since="0.16.0",
        ),
        LeakCase(
            "counts its rewound rows",
            (*TALK, user("no", dead=(0, 0)), prompt("both", 3), *theirs(calls(), tool(), answer()), *MORE),
            since="0.16.0",
            counts=1,
        ),
        # Found, and left.
        LeakCase("a question was open", (user(), refused(prompt("both", 1)), answer())),
        LeakCase("a call was open", (user(), calls(), refused(prompt("both", 1)), answer())),
        LeakCase("an answer was on its way", (user(), calls(), tool(), refused(prompt("both", 1)), answer())),
        LeakCase("mixed", (*TALK, refused(prompt("both", 1)), calls(), user("wait"), tool(), answer(), answer())),
        LeakCase(
            "a turn is running",
            (*TALK, refused(prompt("both", 1)), answer(), *MORE),
            since="0.20.6",
            leased=True,
        ),
        # Healthy.
        LeakCase("a question about it", (*TALK, user(skills + "\n\nWhat is this?"), answer())),
        LeakCase("a question on its last line", (*TALK, user(skills + " What is this?"), answer())),
        LeakCase("a quote", (*TALK, user("> " + skills), answer())),
        LeakCase("its beginning", (*TALK, user(skills[:1_000]), answer())),
        LeakCase("a person's own words", (*TALK, user(like_it), answer())),
        LeakCase("a person's own words and its end", (*TALK, user(f"{like_it}\n\n{tail}"), answer())),
        LeakCase("said by the assistant", (user(), answer(skills))),
        LeakCase("read by a tool", (user(), calls(), replace(tool(), content=skills), answer())),
        LeakCase("a review's own session", (left(prompt()), answer("saved"))),
        LeakCase("a review's own session, with tools", (left(prompt()), calls(), tool(), answer(), left(prompt()))),
        LeakCase("rewound", (*TALK, left(prompt(dead=(0, 0))), answer(dead=(0, 0)), *MORE), since="0.16.0"),
        LeakCase("compacted", (user("x", dead=(0, 1)), left(prompt(dead=(0, 1))), *MORE), since="0.18.0"),
    )


@dataclass(frozen=True)
class Leaks:
    """A home with the cases. ``rows``: by id, the case and the row. ``before``: what its release replayed of each chat
    before anything leaked, ``damaged``: and since; empty where that was not asked for."""

    home: Home
    version: str
    now: float
    cases: tuple[LeakCase, ...]
    rows: Mapping[int, tuple[LeakCase, Say]]
    before: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    damaged: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)


def plant(home: Home, version: str, now: float, chosen: Iterable[LeakCase] | None = None) -> Leaks:
    """Write the chats without what leaked, and look at them; then let it leak, each row where its id belongs."""
    shown = tuple(case for case in chosen or cases() if get(version).since(case.since))
    rows = _numbered(shown, 1)
    names = [case.name for case in shown]
    looks = [call("get_messages_as_conversation", name) for name in names]
    sane, leak = _steps(shown, rows, get(version), now)
    values = home.run(version, [*sane, *looks, *leak[:1], *looks, *leak[1:]])
    at = len(sane)
    before, damaged = values[at : at + len(shown)], values[at + len(shown) + 1 : at + 2 * len(shown) + 1]
    return Leaks(
        home, version, now, shown, rows, dict(zip(names, before, strict=True)), dict(zip(names, damaged, strict=True))
    )


def planting(version: str, now: float, chosen: Iterable[LeakCase], first: int) -> list[Step]:
    """The steps that write the cases behind what is there; ``first``: an id beyond those of all messages."""
    shown = tuple(case for case in chosen if get(version).since(case.since))
    sane, leak = _steps(shown, _numbered(shown, first), get(version), now)
    return [*sane, *leak]


def _numbered(shown: Iterable[LeakCase], first: int) -> dict[int, tuple[LeakCase, Say]]:
    """The rows of the cases by the ids that they get, from that one on."""
    keys = count(first)
    rows: dict[int, tuple[LeakCase, Say]] = {}
    for case in shown:
        for row in case.rows:
            keys = count(next(keys) + row.gap)
            rows[next(keys)] = (case, row)
    return rows


def _steps(
    shown: Sequence[LeakCase], rows: Mapping[int, tuple[LeakCase, Say]], release: Release, now: float
) -> tuple[list[Step], list[Step]]:
    """What writes the chats without what leaked; and what lets it leak, the first of which writes the rows."""
    sane = {key: pair for key, pair in rows.items() if not pair[1].leaked}
    # Between the writing of two cases each id would be free again.
    steps: list[Step] = [open_store(), *(_session(case, now, release) for case in shown)]
    leak = [_insert({key: pair for key, pair in rows.items() if key not in sane}, release, now)]
    leak += [_count(case) for case in shown]
    leak += [
        sql("INSERT INTO session_turn_leases (conversation_id, holder, acquired_at, expires_at) VALUES (?, 'x', ?, ?)")
        | {"args": [case.name, now, now + DAY]}
        for case in shown
        if case.leased
    ]
    return [*steps, _insert(sane, release, now)], leak


def _session(case: LeakCase, now: float, release: Release) -> Step:
    return sql("INSERT INTO sessions (id, source, started_at) VALUES (?, 'cli', ?)", case.name, now - 9 * DAY)


def _count(case: LeakCase) -> Step:
    """The counters as the rows that were ever replayed make them."""
    live = [row for row in case.rows if row.dead[0] != 0]
    numbers = [len(live) + case.counts, sum(row.role == "assistant" and row.call is not None for row in live)]
    return sql("UPDATE sessions SET message_count = ?, tool_call_count = ? WHERE id = ?", *numbers, case.name)


def _insert(rows: Mapping[int, tuple[LeakCase, Say]], release: Release, now: float) -> Step:
    columns = ["id", "session_id", "role", "content", "tool_calls", "tool_call_id", "timestamp"]
    standing = [name for name, since in (("active", "0.16.0"), ("compacted", "0.17.0")) if release.since(since)]
    made = []
    for key, (case, row) in rows.items():
        asks = [{"id": row.call, "type": "function", "function": {"name": "memory", "arguments": "{}"}}]
        cells = [key, case.name, row.role, row.content]
        cells += [
            json.dumps(asks) if row.call and row.role == "assistant" else None,
            row.call if row.role == "tool" else None,
        ]
        cells += [now - 8 * DAY + (key if row.at is None else row.at)]
        made.append([*cells, *row.dead[: len(standing)]])
    marks = ", ".join("?" for _ in (*columns, *standing))
    return sql_many(f"INSERT INTO messages ({', '.join((*columns, *standing))}) VALUES ({marks})", made)
