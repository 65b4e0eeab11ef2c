"""Transcripts as the releases themselves leave them beside their store, and what is wrong with which."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hermes_doctor.engine.model import Bucket
from tests.checks.support import built_once
from tests.oracle.home import Home, environment
from tests.oracle.releases import get
from tests.oracle.steps import call, ref, sql

#: Runs in a release's subprocess: an agent without a model, that persists what it is told to have said.
_AGENT: Final = """
import copy, json, os, sys
from datetime import datetime
from pathlib import Path
import hermes_state
home = Path(os.environ["HERMES_HOME"])
task = json.load(sys.stdin)
def store():
    return hermes_state.SessionDB(db_path=home / "state.db")
"""

#: 0.22.2: sessions are flushed, the store is replaced by what it was then, and the agents go on.
_DIVERT: Final = (
    _AGENT
    + """
import sqlite3
from agent.session_persistence import SessionPersistenceMixin
class Agent(SessionPersistenceMixin):
    def __init__(self, session, db):
        self.session_id, self._session_db, self._session_db_created = session, db, True
        self._last_flushed_db_idx, self.messages = 0, []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None
    def says(self, *messages):
        self.messages += copy.deepcopy(messages)
        self._flush_messages_to_session_db(self.messages)
db = store()
agents = {}
def begin(sessions):
    for session in sessions:
        db.create_session(session, "cli")
        agents[session] = Agent(session, db)
        agents[session].says(*task["before"])
begin(task["kept"])
for session in task["whole"]:
    begin([session])
    for turns in task["turns"]:
        agents[session].says(*turns)
    del agents[session]
aside = sqlite3.connect(home / "copy.db")
db._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
db._conn.backup(aside)
aside.close()
begin(task["lost"])
os.replace(home / "copy.db", home / "state.db")
for turns in task["turns"]:
    for agent in agents.values():
        agent.says(*turns)
for session in task["again"]:
    agents[session].says()
"""
)

#: 0.13 to 0.20.6: a snapshot of each session beside its rows.
_SNAPSHOT: Final = (
    _AGENT
    + """
import types
import unittest.mock
for name in ("dotenv", "openai", "fire", "httpx", "requests", "rich", "pydantic", "tenacity", "jinja2"):
    try:
        __import__(name)
    except ImportError:
        # No model is asked, and nothing is fetched.
        sys.modules[name] = unittest.mock.MagicMock()
import run_agent
db = store()
for session, turns in task.items():
    db.create_session(session, "cli")
    agent = run_agent.AIAgent.__new__(run_agent.AIAgent)
    agent.__dict__.update(
        session_id=session, _session_db=db, _session_db_created=True, _last_flushed_db_idx=0,
        logs_dir=home / "sessions",
        _session_json_enabled=True, model="m", _base_url="", platform="cli", session_start=datetime.now(), tools=[],
        _cached_system_prompt="x" * 5000, verbose_logging=True, _session_messages=[],
        session_log_file=home / "sessions" / ("session_" + session + ".json"),
    )
    agent.logs_dir.mkdir(exist_ok=True)
    messages = []
    for turn in turns:
        messages += copy.deepcopy(turn)
        agent._persist_session(messages, [])
db.close()
"""
)

#: 0.13: the gateway notes what is said beside the store.
_GATEWAY: Final = (
    _AGENT
    + """
from gateway.config import GatewayConfig
from gateway.session import SessionStore
db = store()
(home / "sessions").mkdir()
chats = SessionStore(home / "sessions", GatewayConfig())
for session, messages in task.items():
    db.create_session(session, "telegram")
    for message in [{"role": "session_meta", "tools": [], "timestamp": datetime.now().isoformat()}, *messages]:
        chats.append_to_transcript(session, {**message, "timestamp": datetime.now().isoformat()})
chats._db.close()
db.close()
"""
)

CALL: Final = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}
BEFORE: Final[list[dict[str, Any]]] = [
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "one", "reasoning": "thought", "finish_reason": "stop"},
]
TURN: Final[list[list[dict[str, Any]]]] = [
    [{"role": "user", "content": "second, grüße 日本"}],
    [
        {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_details": [{"text": "a"}]},
        {"role": "tool", "content": "a result", "tool_call_id": "c1", "name": "look"},
    ],
    [{"role": "assistant", "content": "two", "finish_reason": "stop"}],
]
#: A whole conversation, in the turns in which it is persisted.
TURNS: Final = [BEFORE, *TURN]
SAID: Final = [message for turn in TURNS for message in turn]


@dataclass(frozen=True)
class TranscriptCase:
    """A session with a transcript. ``messages``: how many of it the check misses; ``bucket`` None: it says nothing."""

    session: str
    messages: int = 0
    bucket: Bucket | None = None
    warns: bool = True

    @property
    def line(self) -> tuple[str, int, Bucket | None, bool]:
        return self.session, self.messages, self.bucket, self.warns


def inside(home: Home, version: str, script: str, task: object) -> None:
    """Run a script in a release's subprocess, with a task in JSON."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=home.path,
        env=environment(home.path, get(version)),
    )
    assert done.returncode == 0, done.stderr[-3000:]


#: What 0.22.2 could not write, and what became of session and file since.
DIVERTED: Final = (
    TranscriptCase("whole"),
    TranscriptCase("kept", 4, Bucket.UNSAFE),
    TranscriptCase("repeated", 4, Bucket.UNSAFE),
    TranscriptCase("größe [1]", 4, Bucket.UNSAFE),
    TranscriptCase("after-old", 4, Bucket.UNSAFE),
    TranscriptCase("written-since"),
    TranscriptCase("gone-on", 4, Bucket.REFUSED),
    TranscriptCase("compressed", 4, Bucket.REFUSED),
    TranscriptCase("leased", 4, Bucket.REFUSED),
    TranscriptCase("no-call", 2, Bucket.REFUSED),
    TranscriptCase("torn", 4, Bucket.REFUSED),
    TranscriptCase("twice-begun", 8, Bucket.REFUSED),
    TranscriptCase("lost", 4, Bucket.UNSAFE),
    TranscriptCase("lost-there"),
    TranscriptCase("lost-older", 4, Bucket.REFUSED, warns=False),
)
#: Snapshots of 0.19.0, and what became of the rows since.
SNAPSHOTS: Final = (
    TranscriptCase("whole"),
    TranscriptCase("tail", 3, Bucket.UNSAFE),
    TranscriptCase("empty", 6, Bucket.UNSAFE),
    TranscriptCase("odd/../id", 3, Bucket.UNSAFE),
    TranscriptCase("unmarked", 3, Bucket.REFUSED, warns=False),
    TranscriptCase("hole", 1, Bucket.REFUSED),
    TranscriptCase("rewritten", 4, Bucket.REFUSED, warns=False),
    TranscriptCase("rewound"),
    TranscriptCase("compacted"),
    TranscriptCase("moved"),
    TranscriptCase("broken", 0, Bucket.REFUSED, warns=False),
    TranscriptCase("sessions", 2, Bucket.REFUSED, warns=False),
)
#: What 0.13's gateway noted.
NOTED: Final = (
    TranscriptCase("whole"),
    TranscriptCase("tail", 2, Bucket.UNSAFE),
    TranscriptCase("head", 2, Bucket.REFUSED),
    TranscriptCase("gone", 6, Bucket.REFUSED, warns=False),
)


def divert(home: Home) -> None:
    """Let 0.22.2 divert what it cannot write."""
    names = [case.session for case in DIVERTED[1:]]
    task = {
        "before": BEFORE,
        "turns": TURN,
        "whole": ["whole"],
        "kept": [name for name in names if not name.startswith("lost")],
        "lost": [name for name in names if name.startswith("lost")],
        "again": ["repeated"],
    }
    inside(home, "0.22.2", _DIVERT, task)
    # The copy has none; those there are belong to the store that was replaced.
    for suffix in ("-wal", "-shm"):
        home.store.with_name(home.store.name + suffix).unlink(missing_ok=True)
    said = [message for turn in TURN for message in turn]
    home.run(
        "0.22.2",
        [
            call("append_messages_batch", "written-since", said),
            call("append_message", "gone-on", "user", "and now?"),
            call("end_session", "compressed", "compression"),
            sql(
                "INSERT INTO session_turn_leases (conversation_id, holder, acquired_at, expires_at)"
                " VALUES ('leased', 'somebody', 1, 4e9)"
            ),
        ],
    )
    Home(home.path / "profiles" / "work").run("0.22.2", [call("create_session", "lost-there", "cli")])
    _edit(home, "no-call", lambda lines: lines[-2:])
    _edit(home, "torn", lambda lines: [*lines, "{"])
    _edit(home, "twice-begun", lambda lines: [lines[-1], *lines[:2], lines[-1], *lines[-4:]])
    _edit(home, "lost-older", lambda lines: [_of_0_21(line) for line in lines])
    _edit(home, "after-old", lambda lines: [json.dumps(each) for each in [{"role": "session_meta"}, *BEFORE]] + lines)


def snapshot(home: Home) -> None:
    """Let 0.19.0 make snapshots, and lose rows."""
    names = [case.session for case in SNAPSHOTS[:-1]]
    inside(home, "0.19.0", _SNAPSHOT, dict.fromkeys([*names, "gone-1", "gone-2"], TURNS))
    nth = "(SELECT min(id) + {} FROM messages WHERE session_id = ?1)"
    steps = [
        sql(f"DELETE FROM messages WHERE session_id = ?1 AND id > {nth.format(2)}", name)
        for name in ("tail", "odd/../id", "unmarked")
    ]
    home.run(
        "0.19.0",
        [
            *steps,
            *(
                sql("UPDATE sessions SET message_count = 3, tool_call_count = 0 WHERE id = ?", name)
                for name in ("tail", "odd/../id")
            ),
            sql("DELETE FROM messages WHERE session_id = 'empty'"),
            sql("UPDATE sessions SET message_count = 0, tool_call_count = 0 WHERE id = 'empty'"),
            sql(f"DELETE FROM messages WHERE session_id = ?1 AND id = {nth.format(1)}", "hole"),
            call("replace_messages", "rewritten", [*BEFORE, {"role": "user", "content": "otherwise"}]),
            sql(f"SELECT {nth.format(2)}", "rewound", keep="user"),
            call("rewind_to_message", "rewound", ref("user", 0, 0)),
            call("archive_and_compact", "compacted", [{"role": "user", "content": "a summary"}]),
            call("create_session", "goes-on", "cli", parent_session_id="moved"),
            sql(f"UPDATE messages SET session_id = 'goes-on' WHERE session_id = ?1 AND id > {nth.format(3)}", "moved"),
            call("delete_session", "gone-1"),
            call("delete_session", "gone-2"),
        ],
    )
    folder = home.path / "sessions"
    unmarked = folder / "session_unmarked.json"
    unmarked.write_text(unmarked.read_text().replace('"_db_persisted": true', '"_db_persisted": false'))
    broken = folder / "session_broken.json"
    broken.write_text(broken.read_text()[:-20].replace("message_count", "count"))


def note(home: Home) -> None:
    """Let 0.13's gateway note what is said, and lose rows."""
    # What its gateway does not write itself, it does not note.
    said = [{key: value for key, value in message.items() if key != "finish_reason"} for message in SAID]
    inside(home, "0.13.0", _GATEWAY, {case.session: said for case in NOTED})
    home.run(
        "0.13.0",
        [
            sql(
                "DELETE FROM messages WHERE id > (SELECT max(id) - 2 FROM messages WHERE session_id = 'tail')"
                " AND session_id = 'tail'"
            ),
            sql("UPDATE sessions SET message_count = message_count - 2 WHERE id = 'tail'"),
            sql(
                "DELETE FROM messages WHERE id < (SELECT min(id) + 3 FROM messages WHERE session_id = 'head')"
                " AND session_id = 'head'"
            ),
            call("delete_session", "gone"),
        ],
    )


def _edit(home: Home, session: str, change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines of a transcript, and leave its time."""
    path = home.path / "sessions" / f"{session}.jsonl"
    status = path.stat()
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))
    os.utime(path, (status.st_atime, status.st_mtime))


def _of_0_21(line: str) -> str:
    """A line as 0.21.5 diverts it: it has three keys less."""
    row = json.loads(line)
    return json.dumps({key: row[key] for key in row if key not in ("effect_disposition", "token_count", "observed")})


_MAKERS: Final = {"0.22.2": (divert, DIVERTED), "0.19.0": (snapshot, SNAPSHOTS), "0.13.0": (note, NOTED)}
#: The releases that leave transcripts, each of its own kind.
VERSIONS: Final = tuple(_MAKERS)


def made_once(shared: Path, version: str) -> tuple[Home, tuple[TranscriptCase, ...]]:
    """The home of that release with all its cases; whoever changes it, changes a copy."""
    make, cases = _MAKERS[version]

    def build(home: Home) -> float:
        make(home)
        return time.time()

    return built_once(shared / "transcripts" / version, build)[0], cases
