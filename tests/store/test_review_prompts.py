"""The marks of review prompts, proved on what every release really sends."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest

from hermes_doctor.store.cells import BadText, Cell
from hermes_doctor.store.review_prompts import is_prompt, suspect_sql
from hermes_doctor.store.shape import read_shape
from tests.checks.leaked_cases import Prompts, prompts_of
from tests.oracle.releases import RELEASES, VERSIONS, Release

#: By version, how many forms beside the usual three a release has, as far as they differ in their marks.
FORMS = {"0.20.6": 1, "0.21.5": 3, "0.22.2": 3}


def texts_of(prompts: Prompts) -> Iterator[str]:
    yield from prompts.sent.values()
    yield from prompts.variants


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_what_a_release_sends_is_known(release: Release, oracle: None) -> None:
    prompts = prompts_of(release.version)
    assert len(set(texts_of(prompts))) == 3 + FORMS.get(release.version, 0)
    assert all(map(is_prompt, texts_of(prompts)))
    assert all(map(is_prompt, prompts.bare.values()))
    # As it comes back from where spaces are trimmed, or are not.
    assert all(is_prompt(f"{text.strip()}\n") for text in texts_of(prompts))


@pytest.mark.parametrize("version", ["0.13.0", "0.20.6", "0.22.2"])
def test_what_is_more_or_less_is_a_persons(version: str, oracle: None) -> None:
    prompts = prompts_of(version)
    for text in (*texts_of(prompts), *prompts.bare.values()):
        for other in (
            f"> {text}",
            f"Look: {text}",
            f"{text} Why?",
            f"{text}\n\nWhat does it mean?",
            f"{text}\n\n{text.rpartition(' ')[2]}",
            text[: len(text) // 2],
            text[1:],
            text.lower(),
            text[:-1],
        ):
            assert not is_prompt(other), other[-80:]


def test_without_a_word_about_nothing_it_is_none(oracle: None) -> None:
    for text in prompts_of("0.22.2").sent.values():
        assert not is_prompt(text.replace("Nothing to save", "Nothing"))
        assert not is_prompt(text.replace("You can only call", "You may call"))


@pytest.mark.parametrize(
    "content", [None, 7, b"Review", BadText(b"Review the conversation above and \xff"), "", "Review"]
)
def test_other_cells_are_none(content: Cell) -> None:
    assert not is_prompt(content)


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
def test_sql_suspects_all_of_them_and_little_else(encoding: str, oracle: None) -> None:
    with apsw.Connection(":memory:") as connection:
        connection.pragma("encoding", encoding)
        connection.execute(
            "CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content, tool_calls TEXT);"
            "CREATE INDEX by_session ON messages (session_id, id)"
        )
        prompts = [text for version in VERSIONS for text in texts_of(prompts_of(version))]
        long = prompts[0] + "x" * 100_000
        rest = [None, 1, b"x" * 500, "hello", "Review the conversation above and " * 2, f"> {prompts[0]}", long]
        connection.executemany(
            "INSERT INTO messages (role, content) VALUES (?, ?)",
            [*(("user", text) for text in prompts), *(("user", cell) for cell in rest), ("assistant", prompts[0])],
        )
        suspect = suspect_sql(read_shape(connection))
        found = connection.execute(f"SELECT content FROM messages WHERE {suspect} ORDER BY id").fetchall()
        assert [text for (text,) in found] == prompts
    # Where hermes's own tables are not there, or no index leads to a chat's rows, nothing can be told.
    with apsw.Connection(":memory:") as connection:
        assert suspect_sql(read_shape(connection)) is None
        connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content TEXT)")
        assert suspect_sql(read_shape(connection)) is None
