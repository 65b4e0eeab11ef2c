"""Cases of broken-json, as data: a cell of a row, and what is said of it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from hermes_doctor.engine.model import Severity
from hermes_doctor.store.json_cells import Fault
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, blob, call, sql

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR


@dataclass(frozen=True)
class CellCase:
    """A cell, what is wrong with it (None: nothing), and how bad that is.

    ``fails``: the releases, from the first to the one behind the last, in which it is an error. ``role``: of the
    message that has it; its second message is a user's otherwise. ``kind``: its display_kind.
    """

    name: str
    column: str
    cell: Any
    fault: Fault | None = None
    severity: Severity = WARNING
    fails: tuple[str, str] | None = None
    role: str = "assistant"
    kind: str | None = None
    since: str = "0.13.0"
    child: bool = False

    @property
    def id(self) -> str:
        return f"{self.column}: {self.name}"

    def expected(self, release: Release | str) -> tuple[str, Severity] | None:
        """What the check says in a store of that release."""
        if self.fault is None:
            return None
        fails = self.fails is not None and get(release).since(self.fails[0]) and not get(release).since(self.fails[1])
        return self.fault.value, ERROR if fails else self.severity


NO_JSON, KIND, NUMBER, BLOB = Fault.NO_JSON, Fault.WRONG_KIND, Fault.NUMBER, Fault.BLOB
ALWAYS = ("0.13.0", "99")
#: Loading to resume goes through the calls.
RESUMING = ("0.19.0", "99")
CALL = [{"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}]
DEEP = "[" * 100_000 + "]" * 100_000
REASONING = ("reasoning_details", "codex_reasoning_items", "codex_message_items")
NO_TEXT = blob(b"[\xff\xff\xff\xff]")


def reactions(*authors: str) -> str:
    return json.dumps({"reactions": [{"emoji": "x", "author": author} for author in authors]})


def marks(name: str, cell: Any, fault: Fault | None = None, **more: Any) -> CellCase:
    return CellCase(name, "display_metadata", cell, fault, **{"since": "0.20.0", **more})


#: One message each, whose cell reads as a healthy one, or as nothing.
HEALTHY: tuple[CellCase, ...] = (
    CellCase("a list", "tool_calls", json.dumps(CALL)),
    CellCase("blanks in front", "tool_calls", f" \n{json.dumps(CALL)}"),
    CellCase("an empty list", "tool_calls", "[]"),
    CellCase("nothing", "tool_calls", ""),
    CellCase("null", "tool_calls", "null"),
    CellCase("an object", "reasoning_details", '{"a": 1}'),
    CellCase("NaN", "reasoning_details", "[NaN]"),
    CellCase("wrapped", "reasoning_details", json.dumps('[{"a": 1}]')),
    CellCase("wrapped twice", "codex_reasoning_items", json.dumps(json.dumps("[1]"))),
    CellCase("structured", "content", '\0json:[{"type": "text"}]'),
    CellCase("structured, NaN", "content", "\0json:[NaN]"),
    CellCase("looks like JSON", "content", "{json: [is it"),
    CellCase("the prefix without its NUL", "content", "json:{"),
    CellCase("a NUL and another word", "content", "\0yaml:{"),
    marks("an object", '{"model_only": true}'),
    marks("wrapped", json.dumps('{"a": 1}')),
    marks("nothing", ""),
    marks("two authors", reactions("user", "agent")),
    marks("one reaction", reactions("user")),
    marks("reactions that are none", '{"reactions": "x"}'),
    marks("the word elsewhere", '{"a": "\\"reactions\\"", "b": [1, 2]}'),
    CellCase("a list", "absorbed_message_uids", '["u"]', since="0.22.2"),
    CellCase("an object", "tool_call_uids", '{"c1": "u"}', since="0.22.2"),
    CellCase("an object", "origin_json", '{"platform": "telegram"}', since="0.18.2"),
    CellCase("nothing", "origin_json", "", since="0.18.2"),
)

MESSAGES: tuple[CellCase, ...] = (
    *(
        CellCase(name, column, cell, NO_JSON)
        for column in ("tool_calls", *REASONING)
        for name, cell in (("cut off", '[{"id": "c1"'), ("of Python's", "[{'id': 'c1'}]"), ("more behind it", "[1] x"))
    ),
    CellCase("blanks only", "tool_calls", " ", NO_JSON),
    CellCase("an object", "tool_calls", json.dumps(CALL[0]), KIND),
    CellCase("a string", "tool_calls", '"terminal"', KIND),
    CellCase("a number", "tool_calls", "42", NUMBER, fails=RESUMING),
    CellCase("true", "tool_calls", "true", NUMBER, fails=RESUMING),
    CellCase("false", "tool_calls", "false", KIND),
    CellCase("a blob", "tool_calls", blob(json.dumps(CALL).encode()), BLOB, INFO),
    CellCase("a blob of an object", "tool_calls", blob(b'{"id": 1}'), KIND),
    CellCase("a blob of no JSON", "tool_calls", blob(b"[{'id'"), NO_JSON),
    CellCase("a blob that is no text", "tool_calls", NO_TEXT, Fault.UNLOADABLE, fails=ALWAYS),
    CellCase("deep", "tool_calls", DEEP, Fault.UNLOADABLE, fails=ALWAYS),
    CellCase("an object", "codex_reasoning_items", '{"a": 1}', KIND),
    CellCase("a number", "reasoning_details", "42", NUMBER),
    CellCase("a string", "reasoning_details", '"so I think"', KIND),
    CellCase("a blob", "reasoning_details", blob(b'[{"a": 1}]'), BLOB, INFO),
    CellCase("a blob that is no text", "reasoning_details", NO_TEXT, Fault.UNLOADABLE, fails=ALWAYS),
    CellCase("of a user's", "reasoning_details", "{x", NO_JSON, INFO, role="user"),
    CellCase("no text, of a user's", "codex_message_items", NO_TEXT, Fault.UNLOADABLE, INFO, role="user"),
    CellCase("cut off", "content", '\0json:[{"type": "te', NO_JSON),
    CellCase("nothing behind it", "content", "\0json:", NO_JSON),
    CellCase("deep", "content", "\0json:" + DEEP, Fault.UNLOADABLE, fails=ALWAYS),
    marks("cut off", '{"a": ', NO_JSON),
    marks("a list", "[1]", KIND),
    marks("a number", "1", NUMBER),
    marks("a blob", blob(b'{"a": 1}'), BLOB),
    marks("deep", '{"a": ' + DEEP + "}", Fault.UNLOADABLE, fails=ALWAYS),
    marks("NaN", '{"a": NaN}', Fault.NOT_SQL, since="0.21.5"),
    marks("cut off, hidden", '{"a": ', NO_JSON, kind="hidden", fails=("0.21.5", "99")),
    marks("nothing, delivered", "", NO_JSON, kind="async_delegation_complete", since="0.21.5", fails=ALWAYS),
    marks("NaN, hidden", '{"a": NaN}', Fault.NOT_SQL, kind="hidden", since="0.21.5", fails=ALWAYS),
    marks("one author twice", reactions("user", "agent", "user"), Fault.TWICE, severity=INFO),
    CellCase("cut off", "absorbed_message_uids", '["u', NO_JSON, since="0.22.2"),
    CellCase("an object", "absorbed_message_uids", '{"u": 1}', KIND, since="0.22.2"),
    CellCase("wrapped", "absorbed_message_uids", '"[\\"u\\"]"', KIND, since="0.22.2"),
    CellCase("a blob", "tool_call_uids", blob(b'{"c1": "u"}'), BLOB, since="0.22.2"),
    CellCase("a list", "tool_call_uids", '["u"]', KIND, since="0.22.2"),
)


def config(name: str, cell: Any, fault: Fault | None = NO_JSON, **more: Any) -> CellCase:
    """A model_config. ``more``: ``child`` for one of a session with a parent; where a list fails on it."""
    fails = None if fault is not NO_JSON else ("0.16.0" if more.get("child") else "0.17.0", "99")
    return CellCase(name, "model_config", cell, fault, **{"fails": fails, **more})


CONFIGS: tuple[CellCase, ...] = (
    config("an object", '{"max_iterations": 90}', None),
    config("blanks in front", ' {"a": 1}', None),
    config("null", "null", None),
    config("no config", None, None),
    config("cut off", '{"_delegate_from": "x", "a'),
    config("of Python's", "{'a': 1}"),
    config("nothing", ""),
    config("NaN", '{"a": NaN}'),
    config("a blob of no JSON", blob(b"{x")),
    config("a blob that is no text", NO_TEXT),
    config("of a child", "{x", child=True),
    config("a list", "[]", KIND),
    config("a string", json.dumps('{"a": 1}'), KIND),
    config("a number", "5", KIND),
    config("a blob", blob(b'{"a": 1}'), BLOB),
)

ORIGINS: tuple[CellCase, ...] = tuple(
    CellCase(name, "origin_json", cell, fault, severity, since="0.18.2")
    for name, cell, fault, severity in (
        ("cut off", '{"platform": ', NO_JSON, WARNING),
        ("a list", "[]", KIND, WARNING),
        ("a blob", blob(b"{}"), BLOB, INFO),
    )
)

#: (key, entry, fault); the key is the chat's.
ROUTES: tuple[tuple[str, Any, Fault | None], ...] = (
    ("good", '{"session_id": "model_config: an object"}', None),
    ("cut off", '{"session_id": "', NO_JSON),
    ("nothing", "", NO_JSON),
    ("null", "null", KIND),
    ("a list", "[]", KIND),
)


def chosen(release: Release | str, cases: tuple[CellCase, ...]) -> tuple[CellCase, ...]:
    """The cases that a store of that release can show."""
    return tuple(case for case in cases if get(release).since(case.since))


def plant(home: Home, release: Release | str, cases: tuple[CellCase, ...], *more: Step) -> tuple[CellCase, ...]:
    """Write each case into a session of its own, and the routes where there is a table for them; then ``more``."""
    shown = chosen(release, cases)
    steps: list[Step] = []
    for case in shown:
        of_session = case.column in ("model_config", "origin_json")
        columns = {"parent_session_id": steps[0]["args"][0]} if case.child else {}
        steps += [
            call("create_session", case.id, "cli", **columns),
            call("append_message", case.id, "user", "a first question"),
            call("append_message", case.id, case.role, "a word of it"),
        ]
        where = "id = ?" if of_session else "session_id = ? AND content LIKE 'a word%'"
        if case.kind is not None:
            steps.append(sql(f"UPDATE messages SET display_kind = ? WHERE {where}", case.kind, case.id))
        table = "sessions" if of_session else "messages"
        steps.append(sql(f"UPDATE {table} SET {case.column} = ? WHERE {where}", case.cell, case.id))
    if get(release).since("0.18.2"):
        insert = "INSERT INTO gateway_routing (scope, session_key, entry_json, updated_at) VALUES ('', ?, ?, ?)"
        steps += [sql(insert, key, entry, time.time()) for key, entry, _fault in ROUTES]
    home.run(release, [*steps, *more])
    return shown
