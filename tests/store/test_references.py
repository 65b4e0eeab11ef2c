"""References: whatever names a session is seen, wherever it stands; what cannot be seen is said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from hermes_doctor.store.cells import BadText, Key
from hermes_doctor.store.reader import Pace
from hermes_doctor.store.references import References, has_transcript, references
from hermes_doctor.store.view import StoreView
from tests.store.views import view_of

#: What every store needs to be one; everything else a test adds.
SCHEMA = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, started_at REAL NOT NULL, parent_session_id TEXT,
    session_key TEXT, model_config TEXT, title TEXT, system_prompt TEXT);
CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content TEXT);
CREATE TABLE system_prompts (hash TEXT PRIMARY KEY, prompt TEXT);
CREATE TABLE state_meta (key TEXT PRIMARY KEY, value TEXT);
CREATE INDEX idx_messages_session ON messages(session_id);
CREATE INDEX idx_sessions_parent ON sessions(parent_session_id);
"""

Build = Callable[[str], None]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a store in it."""
    made = tmp_path / "home"
    made.mkdir()
    run(made / "state.db", SCHEMA)
    return made


def run(path: Path, statements: str, *values: object, encoding: str = "UTF-8") -> None:
    """Runs statements on a database of our own making."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA encoding='{encoding}'")
    connection.execute(statements, values).fetchall()
    connection.close()


@contextmanager
def looking(home: Path, *, alone: bool = False) -> Iterator[StoreView]:
    with view_of(home / "state.db", home=None if alone else home) as view:
        yield view


def ask(home: Path, *sessions: Key) -> References:
    with looking(home) as view:
        return references(view, sessions)


def document(session: str, key: str = "session_id") -> str:
    return json.dumps({"other": 1, "inner": [{key: session}]})


#: Cells of a plugin's table that name the session "wanted": column, value.
NAMING = (
    ("session_id TEXT", "wanted"),
    ("session_id", "wanted"),
    ("Chat_Session_Ref BLOB", "wanted"),
    ("conversation_id TEXT", "wanted"),
    ("lineage_root_id TEXT", "wanted"),
    ("root TEXT", "wanted"),
    ("payload TEXT", document("wanted")),
    ("payload", document("wanted", "parentSessionId")),
    ("payload TEXT", document("wanted", "conversation_id")),
    ("payload TEXT", json.dumps({"sessions": {"wanted": {}}})),
    ("payload TEXT", json.dumps({"session_ids": ["other", "wanted"]})),
    ("payload TEXT", json.dumps(document("wanted"))),
    ("payload TEXT", json.dumps({"event": document("wanted")})),
    ("payload TEXT", " \n" + document("wanted")),
    ("payload TEXT", document("wanted")[:-2]),
    ("payload TEXT", '{"session_id": "\\u0077anted"}'),
    ("payload TEXT", '{"deep": ' + "[" * 100_000 + '"session", "wanted"'),
    ("session_list TEXT", json.dumps(["other", "wanted"])),
)

#: Cells that do not name it.
SILENT = (
    ("session_id TEXT", "wanted too"),
    ("session_id TEXT", "Wanted"),
    ("session_id TEXT", None),
    ("note TEXT", "wanted"),
    ("payload TEXT", json.dumps({"user": "wanted"})),
    ("payload TEXT", document("unwanted")),
    ("payload TEXT", "the session that is wanted"),
    ("payload TEXT", ""),
    ("count INTEGER", 7),
)


@pytest.mark.parametrize(("column", "value"), NAMING)
def test_a_table_that_nobody_knows_names_a_session(home: Path, column: str, value: object) -> None:
    run(home / "state.db", f"CREATE TABLE plugin (n INTEGER, {column})")
    run(home / "state.db", "INSERT INTO plugin VALUES (1, ?)", value)
    found = ask(home, "wanted", "lonely")
    assert found.of("wanted") == (f"plugin.{column.split()[0]}",)
    assert found.of("lonely") == ()
    assert found.complete


@pytest.mark.parametrize(("column", "value"), NAMING)
def test_another_database_of_the_home_names_a_session(home: Path, column: str, value: object) -> None:
    run(home / "kanban.db", f"PRAGMA journal_mode=WAL; CREATE TABLE messages ({column})")
    run(home / "kanban.db", "INSERT INTO messages VALUES (?)", value)
    found = ask(home, "wanted", "lonely")
    assert found.of("wanted") == (f"kanban.db: messages.{column.split()[0]}",)
    assert found.complete
    assert sorted(path.name for path in home.iterdir()) == ["kanban.db", "state.db"]


@pytest.mark.parametrize(("column", "value"), SILENT)
def test_what_only_looks_like_it_names_nobody(home: Path, column: str, value: object) -> None:
    run(home / "state.db", f"CREATE TABLE plugin (n INTEGER, {column})")
    run(home / "state.db", "INSERT INTO plugin VALUES (1, ?)", value)
    found = ask(home, "wanted")
    assert found.places == {}
    assert found.complete


def test_many_are_looked_for_as_few_are(home: Path) -> None:
    run(home / "state.db", "CREATE TABLE plugin (session_id TEXT, payload TEXT)")
    for number in range(0, 1000, 10):
        run(home / "state.db", "INSERT INTO plugin VALUES (?, ?)", f"s{number}", document(f"s{number + 1}"))
    many = ask(home, *(f"s{number}" for number in range(1000)))
    assert set(many.places) == {f"s{number}" for number in range(1000) if number % 10 < 2}
    for first in (0, 500):
        few = ask(home, *(f"s{number}" for number in range(first, first + 50)))
        assert few.places == {
            name: places for name, places in many.places.items() if first <= int(str(name)[1:]) < first + 50
        }


@pytest.mark.parametrize("many", [False, True])
def test_ids_of_every_kind_are_compared_as_they_are(home: Path, many: bool) -> None:
    odd: dict[Key, tuple[str, object]] = {
        'it\'s "quoted" \\ and ünïcode 🐚': ("?", 'it\'s "quoted" \\ and ünïcode 🐚'),
        "with\x00nul": ("CAST(? AS TEXT)", b"with\x00nul"),
        BadText(b"b\xffd"): ("CAST(? AS TEXT)", b"b\xffd"),
        b"blob": ("?", b"blob"),
        42: ("?", 42),
        "": ("?", ""),
    }
    run(home / "state.db", "CREATE TABLE plugin (session_id)")
    for mark, value in odd.values():
        run(home / "state.db", f"INSERT INTO plugin VALUES ({mark})", value)
    others = [f"other {number}" for number in range(500 if many else 1)]
    found = ask(home, *odd, *others)
    assert {session: found.of(session) for session in odd} == dict.fromkeys(odd, ("plugin.session_id",))
    assert not any(found.of(other) for other in others)


def test_ids_that_json_escapes_are_found_in_it(home: Path) -> None:
    names = ['it\'s "quoted" \\', "ünïcode 🐚", "line\nfeed"]
    run(home / "state.db", "CREATE TABLE plugin (payload TEXT)")
    for name in names:
        run(home / "state.db", "INSERT INTO plugin VALUES (?)", document(name))
    assert set(ask(home, *names, "lonely").places) == set(names)


def test_text_that_is_no_text_hides_no_mention(home: Path) -> None:
    run(home / "state.db", "CREATE TABLE plugin (payload TEXT)")
    run(home / "state.db", "INSERT INTO plugin VALUES (CAST(? AS TEXT))", b'{"x": "\xff", "session_id": "wanted"}')
    assert ask(home, "wanted").of("wanted") == ("plugin.payload",)


def test_a_database_in_another_encoding_is_understood(home: Path) -> None:
    run(home / "kanban.db", "CREATE TABLE tasks (session_id TEXT, payload TEXT)", encoding="UTF-16le")
    run(home / "kanban.db", "INSERT INTO tasks VALUES ('wänted', ?)", document("also"))
    assert ask(home, "wänted", "also").places == {
        "wänted": ("kanban.db: tasks.session_id",),
        "also": ("kanban.db: tasks.payload",),
    }


def test_rows_of_sessions_name_others_and_not_themselves(home: Path) -> None:
    for statement in (
        "INSERT INTO sessions (id, source, started_at, model_config) VALUES ('self', 'cli', 1.0, ?)",
        "INSERT INTO sessions (id, source, started_at, model_config) VALUES ('branch', 'cli', 1.0, ?)",
    ):
        run(home / "state.db", statement, json.dumps({"_branched_from": "self" if "branch" in statement else "x"}))
    run(home / "state.db", "UPDATE sessions SET model_config = ? WHERE id = 'self'", document("self"))
    run(
        home / "state.db",
        "INSERT INTO sessions (id, source, started_at, parent_session_id) VALUES ('c', 'cli', 1, 'p')",
    )
    run(
        home / "state.db",
        "INSERT INTO sessions (id, source, started_at, parent_session_id) VALUES ('o', 'cli', 1, 'o')",
    )
    run(home / "state.db", "INSERT INTO sessions (id, source, started_at, session_key) VALUES ('k', 'cli', 1, 'key')")
    assert ask(home, "self", "branch", "p", "c", "o", "k", "key").places == {
        "self": ("sessions.model_config",),
        "p": ("sessions.parent_session_id",),
    }


def test_contents_and_prompts_are_not_asked(home: Path) -> None:
    run(home / "state.db", "INSERT INTO messages VALUES (1, 'wanted', 'user', ?)", document("wanted"))
    run(home / "state.db", "INSERT INTO system_prompts VALUES ('h', ?)", document("wanted"))
    run(
        home / "state.db",
        "INSERT INTO sessions (id, source, started_at, title, system_prompt) VALUES ('other', 'cli', 1.0, ?1, ?1)",
        document("wanted"),
    )
    assert ask(home, "wanted").places == {}


def test_state_meta_keeps_things_by_session(home: Path) -> None:
    for key in ("goal:first", "loop:second", "third", "heartbeat:with:colon"):
        run(home / "state.db", "INSERT INTO state_meta VALUES (?, '{}')", key)
    found = ask(home, "first", "second", "third", "with:colon", "goal")
    assert set(found.places) == {"first", "second", "third", "with:colon"}


def test_files_of_the_home_name_sessions(home: Path) -> None:
    places = ("sessions/sessions.json", "runtime/active_sessions.json", "cron/jobs.json")
    for place in places:
        (home / place).parent.mkdir()
        (home / place).write_text(document(place))
    found = ask(home, *places, "lonely")
    assert found.places == {place: (place,) for place in places}
    assert found.complete


def test_a_profile_s_sessions_are_named_in_the_root_too(home: Path) -> None:
    profile = home / "profiles" / "work"
    run(profile / "state.db", SCHEMA)
    run(home / "kanban.db", "CREATE TABLE tasks (session_id TEXT)")
    run(home / "kanban.db", "INSERT INTO tasks VALUES ('wanted')")
    (home / "sessions").mkdir()
    (home / "sessions" / "sessions.json").write_text(document("routed"))
    (home / "sessions" / "kept.jsonl").write_text("")
    assert set(ask(profile, "wanted", "routed", "lonely").places) == {"wanted", "routed"}
    with looking(profile) as view:
        assert has_transcript(view, "kept")
        assert not has_transcript(view, "lost")


def test_the_root_s_sessions_are_not_those_of_a_profile(home: Path) -> None:
    run(home / "profiles" / "work" / "kanban.db", "CREATE TABLE tasks (session_id TEXT)")
    run(home / "profiles" / "work" / "kanban.db", "INSERT INTO tasks VALUES ('wanted')")
    assert ask(home, "wanted").places == {}


def test_transcripts(home: Path) -> None:
    (home / "sessions").mkdir()
    for name in ("one.json", "two.jsonl", "request_dump_three_1.json"):
        (home / "sessions" / name).write_text("")
    with looking(home) as view:
        assert [has_transcript(view, name) for name in ("one", "two", "three", "four")] == [True, True, True, False]
        # What cannot be looked for counts as there.
        assert has_transcript(view, "../sessions/four")
    with looking(home, alone=True) as view:
        assert not has_transcript(view, "one")


def only_of_the_plugin(*values: Any) -> Any:
    return values[0]


def spoil_table(home: Path) -> None:
    """A generated column that calls what only its plugin's connection has."""
    connection = apsw.Connection(str(home / "state.db"))
    connection.create_scalar_function("plugin_secret", only_of_the_plugin, 1, deterministic=True)
    connection.execute("CREATE TABLE plugin (a TEXT, session_ref TEXT AS (plugin_secret(a)) VIRTUAL)")
    connection.execute("INSERT INTO plugin (a) VALUES ('x')")
    connection.close()


def hold_exclusively(home: Path) -> subprocess.Popen[bytes]:
    """Another process is in the middle of a commit that does not end."""
    run(home / "kanban.db", "CREATE TABLE tasks (session_id TEXT)")
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        " c.execute('BEGIN EXCLUSIVE'); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(home / "kanban.db")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


@pytest.mark.parametrize(
    ("spoil", "unseen"),
    [
        (lambda home: (home / "kanban.db").write_bytes(b"no database " * 99), "kanban.db is not readable"),
        (
            lambda home: (home / "sessions").mkdir() or (home / "sessions/sessions.json").write_text("{"),
            "sessions/sessions.json is not readable",
        ),
        (spoil_table, "table plugin is not readable"),
        (hold_exclusively, "kanban.db is not readable"),
    ],
)
def test_what_cannot_be_read_is_said_and_the_rest_is_read(
    home: Path, spoil: Callable[[Path], object], unseen: str
) -> None:
    run(home / "state.db", "CREATE TABLE readable (session_id TEXT)")
    run(home / "state.db", "INSERT INTO readable VALUES ('wanted')")
    held = spoil(home)
    found = ask(home, "wanted", "lonely")
    assert found.of("wanted") == ("readable.session_id",)
    assert found.unseen == (unseen,)
    assert not found.complete
    if isinstance(held, subprocess.Popen):
        held.communicate()


def test_a_store_alone_says_so(home: Path) -> None:
    (home / "cron").mkdir()
    (home / "cron" / "jobs.json").write_text(document("wanted"))
    with looking(home, alone=True) as view:
        found = references(view, ["wanted"])
    assert found.places == {}
    assert found.unseen == ("the store stands without its home",)


def test_an_empty_file_is_a_database_that_names_nobody(home: Path) -> None:
    (home / "projects.db").write_bytes(b"")
    assert ask(home, "wanted").complete


def test_nothing_is_opened_for_nobody(home: Path) -> None:
    (home / "kanban.db").write_bytes(b"no database " * 99)
    found = ask(home)
    assert found.complete
    assert found.places == {}


@pytest.mark.parametrize("pace", list(Pace))
def test_every_pace_sees_the_same(home: Path, pace: Pace) -> None:
    run(home / "state.db", "CREATE TABLE plugin (session_id TEXT PRIMARY KEY, payload TEXT) WITHOUT ROWID")
    run(
        home / "state.db",
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
        " INSERT INTO plugin SELECT 's' || i, json_object('session_id', 'd' || i) FROM n",
    )
    with looking(home) as view:
        view.reader.pace, view.reader.rests = pace, False
        found = references(view, [f"{letter}{number}" for letter in "sdx" for number in range(0, 2000, 100)])
    assert set(found.places) == {f"{letter}{number}" for letter in "sd" for number in range(0, 2000, 100)}
