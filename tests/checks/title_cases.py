"""Cases of same-titles, as data: rows with titles, and who of them is numbered how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, open_store, sql, sql_many

DROP_INDEX = sql("DROP INDEX idx_sessions_title_unique")


@dataclass(frozen=True)
class Titled:
    """A session: its title, and how long ago it began. ``cells``: other columns."""

    name: str
    title: Any
    ago: float = 10.0
    cells: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TitleCase:
    """Rows in the order in which they are written, and by name what the numbered ones are called then.

    ``cleared``: those of which 0.22.2 would take the title. ``refused``: those that cannot be numbered.
    """

    name: str
    rows: tuple[Titled, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    cleared: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    since: str = "0.13.0"
    #: Where it is not what 0.22.2 does.
    own: bool = False

    def id(self, name: str) -> str:
        return f"{self.name}: {name}"


def by(source: str | None, **more: Any) -> dict[str, Any]:
    """Cells that say who gave the title."""
    return {"title_source": source, **more}


BOT = {"hidden": 1, "title_source": "user"}

CASES: tuple[TitleCase, ...] = (
    TitleCase("two", (Titled("a", "tea"), Titled("b", "tea", 5.0)), {"b": "tea #2"}),
    TitleCase("the second is older", (Titled("a", "pot", 5.0), Titled("b", "pot", 9.0)), {"a": "pot #2"}),
    TitleCase("of one moment", (Titled("a", "cup"), Titled("b", "cup")), {"b": "cup #2"}),
    TitleCase(
        "three",
        (Titled("a", "jam", 3.0), Titled("b", "jam", 9.0), Titled("c", "jam", 6.0)),
        {"c": "jam #2", "a": "jam #3"},
    ),
    TitleCase(
        "numbers that are taken",
        (Titled("a", "egg"), Titled("n", "egg #2"), Titled("m", "egg #7"), Titled("b", "egg", 5.0)),
        {"b": "egg #8"},
    ),
    TitleCase(
        "numbers in capitals",
        (Titled("a", "ham"), Titled("n", "HAM #4"), Titled("b", "ham", 5.0)),
        {"b": "ham #5"},
    ),
    TitleCase(
        "an equal number",
        (Titled("a", "rye #3", 9.0), Titled("b", "rye #3", 5.0), Titled("c", "rye")),
        {"b": "rye #4"},
    ),
    TitleCase(
        "base and number, both equal",
        (Titled("a", "fig", 9.0), Titled("b", "fig", 8.0), Titled("c", "fig #2", 7.0), Titled("d", "fig #2", 6.0)),
        {"d": "fig #3", "b": "fig #4"},
    ),
    TitleCase(
        "a number behind a number",
        (Titled("a", "oat"), Titled("b", "oat", 5.0), Titled("n", "oat #x #6")),
        {"b": "oat #7"},
    ),
    TitleCase("signs of LIKE", (Titled("a", "5%_"), Titled("b", "5%_", 5.0), Titled("n", "5xy #8")), {"b": "5%_ #2"}),
    TitleCase("a long one", (Titled("a", "x" * 100), Titled("b", "x" * 100, 5.0)), {"b": "x" * 100 + " #2"}),
    TitleCase("capitals differ", (Titled("a", "Pie"), Titled("b", "pie"))),
    TitleCase("a space more", (Titled("a", "bun"), Titled("b", "bun "))),
    TitleCase("one title", (Titled("a", "leek"), Titled("b", None), Titled("c", None))),
    TitleCase(
        "a person's and a model's",
        (Titled("a", "soup", 9.0, by("llm")), Titled("b", "soup", 5.0, by("user"))),
        {"a": "soup #2"},
        cleared=frozenset("a"),
        since="0.20.6",
    ),
    TitleCase(
        "of programs only",
        (
            Titled("a", "stew", 9.0, by("llm")),
            Titled("b", "stew", 5.0, by("llm")),
            Titled("c", "stew", 1.0, by("derived")),
        ),
        {"a": "stew #2", "c": "stew #3"},
        cleared=frozenset("ac"),
        since="0.20.6",
    ),
    TitleCase(
        "of a person, of nobody, of a program",
        (
            Titled("a", "salt", 9.0, by("branch")),
            Titled("b", "salt", 8.0, by(None)),
            Titled("c", "salt", 7.0, by("user")),
            Titled("d", "salt", 6.0, by("derived")),
        ),
        {"c": "salt #2", "a": "salt #3", "d": "salt #4"},
        cleared=frozenset("ad"),
        since="0.20.6",
    ),
    TitleCase(
        "a bot's own chat",
        (Titled("a", "Bot Chat", 9.0, by("user")), Titled("b", "Bot Chat", 5.0, BOT), Titled("c", "Bot Chat", 4.0)),
        {"a": "Bot Chat #2", "c": "Bot Chat #3"},
        since="0.20.6",
        own=True,
    ),
    TitleCase(
        "began no one knows when",
        (Titled("a", "kale", cells={"started_at": 5e246}), Titled("b", "kale", 5.0)),
        {"a": "kale #2"},
    ),
    TitleCase(
        "no text",
        (Titled("a", {"blob": "ff00"}), Titled("b", {"blob": "ff00"}, 5.0)),
        refused=frozenset("b"),
        own=True,
    ),
)


def plant(
    home: Home,
    release: Release | str,
    now: float,
    cases: tuple[TitleCase, ...] = CASES,
    index: str | None = None,
) -> list[TitleCase]:
    """Write the cases into a fresh home without the index, or with that in its place."""
    chosen = [case for case in cases if get(release).since(case.since)]
    steps: list[Step] = [open_store(), DROP_INDEX, *([sql(index)] if index else [])]
    for case in chosen:
        for row in case.rows:
            cells = {"id": case.id(row.name), "source": "cli", "title": row.title, "started_at": now - row.ago * 86_400}
            cells |= row.cells
            marks = ", ".join("?" for _ in cells)
            steps.append(sql_many(f"INSERT INTO sessions ({', '.join(cells)}) VALUES ({marks})", [[*cells.values()]]))
    home.run(release, steps)
    return chosen
