"""Cases of search-index, as data: what is done to the indexes of a real store, and what is to be said of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from hermes_doctor.store.search_index import match_trigrams
from hermes_doctor.store.shape import read_shape
from tests.checks.support import built_once
from tests.oracle.home import Home
from tests.oracle.steps import Step, call

BASE, TRIGRAM, CJK = "messages_fts", "messages_fts_trigram", "messages_fts_cjk"
#: All messages of these homes are of one range.
SOME = ":0-2047"

#: Severity and fix of a finding.
ERROR, WARNING = ("error", "unsafe"), ("warning", "unsafe")
REFUSED_ERROR, REFUSED, INFO = ("error", "none"), ("warning", "none"), ("info", "none")

#: The releases that had a store in turn, and how its indexes are laid out then.
SITES: Mapping[str, tuple[str, str]] = {
    "0.19.0": ("inline", "inline"),
    "0.20.0": ("external-1", "external-1"),
    "0.22.2": ("external-3", "external-3"),
    "0.19.0+0.22.2": ("inline", "inline"),
    "0.20.0+0.22.2": ("external-3", "external-1"),
}

#: What the messages of the homes are, by id: s1 is a chat, `made` a delegate's. 2 is longer than a tool's result is
#: indexed by the newest releases, and 5 begins with a NUL.
WORDS = {1: "a needle in the hay", 3: "found the needle", 4: "another needle", 9: "the last needle of all"}
LONG = "straw and hay " * 900
PICTURE = [{"type": "text", "text": "a picture of a needle"}]

Damage = Callable[[apsw.Connection], None]
Said = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class IndexCase:
    """What is done to a store, and what is found then, by key: in inline and external layouts.

    ``dependent``: where the trigram index depends on sessions, if that is different. None: cannot be shown there.
    """

    name: str
    damage: Damage
    inline: Said | None = field(default_factory=dict)
    external: Said | None = field(default_factory=dict)
    dependent: Said | None = None

    def expected(self, site: str) -> Said | None:
        """What is to be found of it in a store of these releases, None where it cannot be shown."""
        base, trigram = SITES[site]
        if base == "inline":
            said = self.inline
        else:
            said = self.dependent if trigram == "external-3" and self.dependent is not None else self.external
        if said is not None and self.name == "a broad trigger" and "+" not in site and base == "inline":
            return {}
        return said


def write(home: Home, site: str) -> None:
    """Write the messages with the first release; a second one opens the store and goes on."""
    first, *later = site.split("+")
    home.run(first, _story())
    for version in later:
        home.run(
            version,
            [
                call("append_message", "s1", "tool", LONG, tool_name="search"),
                call("append_message", "s1", "assistant", "a needle of the newer release"),
            ],
        )


def _story() -> list[Step]:
    calls = [{"id": "call_1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}]
    return [
        call("create_session", "s1", "cli"),
        call("append_message", "s1", "user", WORDS[1]),
        call("append_message", "s1", "tool", LONG, tool_name="search"),
        call("append_message", "s1", "assistant", WORDS[3], tool_calls=calls),
        call("create_session", "other", "cli"),
        call("append_message", "other", "user", WORDS[4]),
        call("append_message", "s1", "user", PICTURE),
        call("create_session", "run", "cron"),
        call("append_message", "run", "user", "a needle of a cron run"),
        call("create_session", "child", "subagent"),
        call("append_message", "child", "user", "a needle of a subagent"),
        call("create_session", "made", "cli", model_config={"_delegate_from": "s1"}),
        call("append_message", "made", "user", "a needle of a delegate"),
        call("append_message", "s1", "user", WORDS[9]),
    ]


def site_home(folder: Path, site: str) -> Home:
    """The home of these releases, built once a test run; to be copied."""

    def build(home: Home) -> float:
        write(home, site)
        return 0.0

    return built_once(folder / "search-index" / site, build)[0]


def with_case(template: Home, to: Path, case: IndexCase) -> Home:
    """A home with a private copy of the store, with a case done to it."""
    home = Home(to)
    for file in template.path.glob("state.db*"):
        shutil.copy(file, to)
    connection = apsw.Connection(str(home.store))
    connection.pragma("synchronous", "off")
    try:
        # As the SQLite of the releases does it: an entry is taken out by the trigrams that were put in.
        match_trigrams(connection, read_shape(connection))
        case.damage(connection)
    finally:
        connection.close()
    return home


def source_of(connection: apsw.Connection, index: str) -> str | None:
    """The table or view of an external index's texts, None for an inline one."""
    (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (index,)).fetchall()[0]
    match = re.search(r"content='(\w+)'", str(sql))
    return match.group(1) if match else None


def columns_of(connection: apsw.Connection, index: str) -> str:
    """The index's columns, as a list in SQL."""
    return ", ".join(row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (index,)))


def run(*statements: str) -> Damage:
    """Runs these statements."""

    def damage(connection: apsw.Connection) -> None:
        for statement in statements:
            connection.execute(statement)

    return damage


def both(*damages: Damage) -> Damage:
    """Does one after the other."""

    def damage(connection: apsw.Connection) -> None:
        for each in damages:
            each(connection)

    return damage


def taken_out(index: str, *ids: int) -> Damage:
    """Takes entries out of an index as its triggers would."""

    def damage(connection: apsw.Connection) -> None:
        among = f"({', '.join(map(str, ids))})"
        source = source_of(connection, index)
        if source is None:
            connection.execute(f"DELETE FROM {index} WHERE rowid IN {among}")
            return
        columns = columns_of(connection, index)
        connection.execute(
            f"INSERT INTO {index}({index}, rowid, {columns}) SELECT 'delete', id, {columns} FROM {source}"
            f" WHERE id IN {among}"
        )

    return damage


def put_in(index: str, key: int, text: str = "an entry of no message") -> Damage:
    """Puts an entry of a message that is not there into an index."""

    def damage(connection: apsw.Connection) -> None:
        connection.execute(f"INSERT INTO {index}(rowid, content) VALUES (?, ?)", (key, text))

    return damage


def untold(statement: str) -> Damage:
    """Runs a statement while no trigger is there to tell the indexes of it."""

    def damage(connection: apsw.Connection) -> None:
        kept = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _sql in kept:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
        for _name, sql in kept:
            connection.execute(str(sql))

    return damage


def other_text(connection: apsw.Connection) -> None:
    """Lets the indexes hold another text of message 4."""
    if source_of(connection, BASE) is None:
        for index in (BASE, TRIGRAM):
            connection.execute(f"UPDATE {index} SET content = 'something else' WHERE rowid = 4")
    else:
        untold("UPDATE messages SET content = 'no such word' WHERE id = 4")(connection)


def emptied(connection: apsw.Connection) -> None:
    """Takes everything out of both indexes."""
    for index in (BASE, TRIGRAM):
        if source_of(connection, index) is None:
            connection.execute(f"DELETE FROM {index}")
        else:
            connection.execute(f"INSERT INTO {index}({index}) VALUES ('delete-all')")


def tool_entry_cut(length: int) -> Damage:
    """Shortens the tool's result in an inline index."""
    return run(f"UPDATE {BASE} SET content = substr(content, 1, {length}) || ' search ' WHERE rowid = 2")


def half_rebuilt(*, past: int, up_to: int) -> Damage:
    """Leaves the messages of these ids to a rebuild of hermes's that is not through."""

    def damage(connection: apsw.Connection) -> None:
        pending = [int(str(r[0])) for r in connection.execute("SELECT id FROM messages") if past < r[0] <= up_to]
        for index in (BASE, TRIGRAM):
            taken_out(index, *pending)(connection)
        connection.execute(
            "INSERT INTO state_meta(key, value) VALUES ('fts_rebuild_progress', ?), ('fts_rebuild_high_water', ?)",
            (str(past), str(up_to)),
        )

    return damage


def no_triggers(connection: apsw.Connection) -> None:
    """Takes all of hermes's triggers off the indexes."""
    for index in (BASE, TRIGRAM):
        for event in ("insert", "update", "delete"):
            connection.execute(f"DROP TRIGGER {index}_{event}")


def broad(connection: apsw.Connection) -> None:
    """Lets the base index's update trigger fire with any column."""
    (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (f"{BASE}_update",)).fetchall()[0]
    connection.execute(f"DROP TRIGGER {BASE}_update")
    connection.execute(re.sub(r"UPDATE\s+OF\s+[\w, ]+\s+ON", "UPDATE ON", str(sql)))


def unknown_tokenizer(connection: apsw.Connection) -> None:
    """Makes a third index as 0.20.0 on does where its tokenizer has been built, which is not so here."""
    connection.register_fts5_tokenizer("cjk_unicode61", lambda own, args: own.fts5_tokenizer("unicode61", args))
    run(
        "CREATE VIEW messages_fts_cjk_src AS"
        " SELECT id, role, content, tool_name, tool_calls FROM messages WHERE role <> 'tool'",
        "CREATE VIRTUAL TABLE messages_fts_cjk USING fts5(content, tool_name, tool_calls,"
        " content='messages_fts_cjk_src', content_rowid='id', tokenize='cjk_unicode61')",
        "INSERT INTO messages_fts_cjk(messages_fts_cjk) VALUES ('rebuild')",
        *(
            f"CREATE TRIGGER messages_fts_cjk_{event} AFTER {event} ON messages"
            f" BEGIN INSERT INTO messages_fts_cjk(rowid, content) VALUES ({row}.id, {row}.content); END"
            for event, row in (("insert", "new"), ("update", "new"), ("delete", "old"))
        ),
    )(connection)


TORN = "UPDATE {}_data SET block = zeroblob(length(block)) WHERE id > 10"
FORGETS_ALL = f"UPDATE {BASE}_data SET block = x'00' WHERE id = 10"
CRON = "UPDATE sessions SET source = 'cron' WHERE id = 's1'"
CLI = "UPDATE sessions SET source = 'cli' WHERE id = 'run'"
STALE = "INSERT INTO state_meta(key, value) VALUES ('fts_stale', '1')"
PENDING = half_rebuilt(past=3, up_to=6)
REBUILDING = {BASE: INFO, TRIGRAM: INFO}

CASES: tuple[IndexCase, ...] = (
    IndexCase("healthy", run()),
    IndexCase("missing", taken_out(BASE, 1, 3), {BASE + SOME: WARNING}, {BASE + SOME: WARNING}),
    IndexCase("missing trigrams", taken_out(TRIGRAM, 4), {TRIGRAM + SOME: WARNING}, {TRIGRAM + SOME: WARNING}),
    IndexCase(
        "nothing left",
        emptied,
        {BASE + SOME: WARNING, TRIGRAM + SOME: WARNING},
        {BASE + SOME: WARNING, TRIGRAM + SOME: WARNING},
    ),
    IndexCase("of no message", put_in(BASE, 77), {BASE + SOME: WARNING}, {BASE: WARNING}),
    IndexCase("trigrams of no message", put_in(TRIGRAM, 77), {TRIGRAM + SOME: WARNING}, {TRIGRAM: WARNING}),
    IndexCase(
        "one missing and one too many",
        both(taken_out(BASE, 1), put_in(BASE, 77)),
        {BASE + SOME: WARNING},
        {BASE: WARNING},
    ),
    IndexCase(
        "another text",
        other_text,
        {BASE + SOME: WARNING, TRIGRAM + SOME: WARNING},
        {BASE: WARNING, TRIGRAM: WARNING},
    ),
    IndexCase("a chat became a cron run", run(CRON), dependent={TRIGRAM + SOME: WARNING}),
    IndexCase("a cron run became a chat", run(CLI), dependent={TRIGRAM + SOME: WARNING}),
    IndexCase(
        "and was changed there",
        both(run(CRON), run("UPDATE messages SET content = 'what was changed' WHERE id = 1")),
        dependent={TRIGRAM: WARNING},
    ),
    IndexCase(
        "and was deleted there", both(run(CRON), run("DELETE FROM messages WHERE id = 1")), dependent={TRIGRAM: WARNING}
    ),
    IndexCase("torn", run(TORN.format(BASE)), {BASE: ERROR}, {BASE: ERROR}),
    IndexCase("torn trigrams", run(TORN.format(TRIGRAM)), {TRIGRAM: ERROR}, {TRIGRAM: ERROR}),
    IndexCase("finds nothing and says nothing", run(FORGETS_ALL), {BASE: ERROR}, {BASE: ERROR}),
    IndexCase("one trigger gone", run(f"DROP TRIGGER {BASE}_insert"), {BASE: REFUSED}, {BASE: REFUSED}),
    IndexCase("all triggers gone", no_triggers, {BASE: REFUSED, TRIGRAM: REFUSED}, {BASE: REFUSED, TRIGRAM: REFUSED}),
    IndexCase("detached", both(no_triggers, run(STALE), emptied), REBUILDING, REBUILDING),
    IndexCase("no index", run(f"DROP TABLE {BASE}"), {BASE: REFUSED_ERROR}, {BASE: REFUSED_ERROR}),
    IndexCase("no search at all", both(no_triggers, run(f"DROP TABLE {BASE}", f"DROP TABLE {TRIGRAM}"))),
    IndexCase("no view", run(f"DROP VIEW IF EXISTS {TRIGRAM}_src"), None, {TRIGRAM: REFUSED_ERROR}),
    IndexCase("no sizes", run(f"DROP TABLE {BASE}_docsize"), {BASE: REFUSED_ERROR}, {BASE: REFUSED_ERROR}),
    IndexCase("half rebuilt", PENDING, None, REBUILDING),
    IndexCase(
        "half rebuilt, and one missing",
        both(PENDING, taken_out(BASE, 1)),
        None,
        {**REBUILDING, BASE + SOME: WARNING},
    ),
    IndexCase(
        "half rebuilt, and torn", both(PENDING, run(TORN.format(BASE))), None, {BASE: REFUSED_ERROR, TRIGRAM: INFO}
    ),
    IndexCase(
        "a tokenizer that is not here",
        both(unknown_tokenizer, taken_out(BASE, 1)),
        None,
        {CJK: INFO, BASE + SOME: WARNING},
    ),
    IndexCase("a broad trigger", broad, {BASE: INFO}, {BASE: INFO}),
    IndexCase("a tool's result is cut", tool_entry_cut(8192), {}, None),
    IndexCase("cut too much", tool_entry_cut(8191), {BASE + SOME: WARNING}, None),
    IndexCase(
        "only a text with a NUL is missing",
        taken_out(TRIGRAM, 5),
        {TRIGRAM + SOME: REFUSED},
        {TRIGRAM + SOME: REFUSED},
    ),
)
