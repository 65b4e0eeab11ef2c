"""What a person answered about single findings, kept so that the next review asks only what is new.

It lies in the user's state folder and holds check names, rows' keys and digests, never what anybody said. It is a help,
not a record: where it is missing or broken, everything is asked again. What was answered yes is carried out by
`apply_store` as any other work is, restricted to just these findings.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending
from hermes_doctor.engine.file_changes import FileChange
from hermes_doctor.engine.identity import identify, is_the_same
from hermes_doctor.engine.model import Finding, Safety
from hermes_doctor.engine.plan import Chosen, Place, place_of
from hermes_doctor.engine.state_file import StateFile, path_cell, state_folder
from hermes_doctor.store.cells import json_key
from hermes_doctor.store.view import StoreView

if TYPE_CHECKING:
    from sqlite_utils import Database
    from sqlite_utils.db import Table

FILE = "answers.db"

YES, NO = "yes", "no"

CHANGED = "it is no longer what was answered, so the next review asks about it again"

#: Answers are forgotten after so many seconds: two years.
_KEPT_SECONDS = 2 * 365 * 86400.0

_STORES = {"store": str, "path": str, "known": str, "at": float}
_ANSWERS = {"store": str, "check_name": str, "row": str, "says": str, "answer": str, "at": float}

#: What of a finding's words goes by the clock alone: how long something has been so.
_SPAN = re.compile(r"\d[\d,]* (?:second|minute|hour|day|year)s?\b|less than a minute")


def says(finding: Finding) -> str:
    """Return a digest of what a finding says, but for how long it has been so: that alone makes no new finding."""
    detail = {name: value for name, value in finding.detail.items() if not name.endswith("_seconds")}
    said = [_SPAN.sub("a while", finding.summary), detail, finding.action]
    return hashlib.blake2b(json.dumps(said, sort_keys=True, default=list).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered, `YES` or `NO`, and when, in seconds since the epoch."""

    word: str
    at: float


class StoreAnswers:
    """What was answered about the findings of one store; `keep` and `forget` also write it down at once."""

    def __init__(
        self, file: StateFile, store: Mapping[str, Any], answers: Mapping[tuple[str, str], tuple[str, Answer]]
    ):
        self._file = file
        self._store = dict(store)
        self._answers = dict(answers)

    def about(self, finding: Finding) -> Answer | None:
        """Return what was answered about a finding; None where nothing was, or where it said something else then."""
        said, answer = self._answers.get(_name(place_of(finding)), ("", None))
        return answer if answer is not None and said == says(finding) else None

    def keep(self, findings: Iterable[Finding], word: str) -> bool:
        """Keep one answer about these findings; return whether it could be written down, too."""
        answer = Answer(word, time.time())
        new = {_name(place_of(finding)): (says(finding), answer) for finding in findings}
        self._answers.update(new)
        rows = [(self._store["store"], *name, said, each.word, each.at) for name, (said, each) in new.items()]

        def change(database: Database) -> None:
            _prepare(database)
            cast("Table", database["stores"]).upsert({**self._store, "at": answer.at}, pk="store")
            marks = ", ".join("?" * len(_ANSWERS))
            database.conn.executemany(f"INSERT OR REPLACE INTO answers ({', '.join(_ANSWERS)}) VALUES ({marks})", rows)
            database.execute("DELETE FROM answers WHERE at < ?", (answer.at - _KEPT_SECONDS,))
            database.execute("DELETE FROM stores WHERE store NOT IN (SELECT store FROM answers)")

        return self._file.write(change)

    def forget(self, places: Iterable[Place]) -> bool:
        """Forget what was answered about these findings: they are mended, and what shows up again is asked again."""
        names = [_name(place) for place in places]
        for name in names:
            self._answers.pop(name, None)

        def change(database: Database) -> None:
            _prepare(database)
            database.conn.executemany(
                "DELETE FROM answers WHERE store = ? AND check_name = ? AND row = ?",
                [(self._store["store"], *name) for name in names],
            )

        return not names or self._file.write(change)


class Answers:
    """The answers in one folder. Never raises for what is wrong with it: what cannot be read counts as empty."""

    def __init__(self, folder: Path) -> None:
        self._file = StateFile(folder / FILE)

    @classmethod
    def of_user(cls) -> Answers:
        """Return those of the user who runs the doctor."""
        return cls(state_folder())

    def of_store(self, path: Path, view: StoreView) -> StoreAnswers:
        """Return what was answered about the store under examination.

        A store that was moved, upgraded or recovered keeps its answers; a copy beside it has none of its own yet.
        """
        assert view.bundle is not None, "a store that is examined has been looked at"
        with view.reader.pinned():
            identity = identify(view.reader.connection, view.shape, view.bundle)
        store = {"store": secrets.token_hex(8), "path": path_cell(path.absolute()), "known": json.dumps(identity)}
        try:
            with self._file.reading() as database:
                if database is None:
                    return StoreAnswers(self._file, store, {})
                known = self._known(database, path, view)
                store["store"] = known or store["store"]
                found = database.execute(
                    "SELECT check_name, row, says, answer, at FROM answers WHERE store = ?", (known,)
                ).fetchall()
            kept = {(check, row): (said, Answer(word, float(at))) for check, row, said, word, at in found}
            return StoreAnswers(self._file, store, {n: k for n, k in kept.items() if k[1].word in (YES, NO)})
        except (OSError, sqlite3.Error, ValueError, TypeError):
            return StoreAnswers(self._file, store, {})

    @staticmethod
    def _known(database: Database, path: Path, view: StoreView) -> str | None:
        """Return by which name the store is known, None where it is not."""
        assert view.bundle is not None
        here = path_cell(path.absolute())
        rows = database.execute("SELECT store, path, known FROM stores ORDER BY at DESC").fetchall()
        for name, at, known in sorted(rows, key=lambda row: row[1] != here):
            if at != here and Path(os.fsdecode(at)).exists():
                # It is still where it was: this one is a copy of it.
                continue
            with view.reader.pinned():
                if is_the_same(json.loads(known), view.reader.connection, view.shape, view.bundle):
                    return str(name)
        return None


def reviewed(finding: Finding, chosen: Chosen) -> bool:
    """Whether a finding is for a person to decide: there is a fix for it that is not safe in every case."""
    return finding.fix is Safety.UNSAFE and chosen.mends(finding)


def restricted(chosen: Chosen, yes: Mapping[Place, str]) -> Chosen:
    """Return the choice of just the findings at these places, as long as they say what they said (`says`)."""
    names = {check for check, _table, _key in yes}
    return Chosen(
        [check for check in chosen.checks if check.name in names],
        {name: _held_to(fix, yes) for name, fix in chosen.fixes.items() if name in names},
        unsafe=True,
        only=frozenset(yes),
    )


def _held_to(fix: Fix, yes: Mapping[Place, str]) -> Fix:
    """Return a fix that refuses what says something else in its transaction than when it was answered."""

    def hold(finding: Finding) -> None:
        if yes.get(place_of(finding)) != says(finding):
            raise FixRefusedError(CHANGED)

    def mend(mending: Mending, finding: Finding) -> None:
        hold(finding)
        fix.mend(mending, finding)

    def files(view: StoreView, finding: Finding) -> FileChange:
        hold(finding)
        assert fix.files is not None
        return fix.files(view, finding)

    return replace(fix, mend=mend, files=None if fix.files is None else files)


def _prepare(database: Database) -> None:
    for name, columns, key in (("stores", _STORES, ("store",)), ("answers", _ANSWERS, ("store", "check_name", "row"))):
        table = cast("Table", database[name])
        if table.exists() and table.columns_dict.keys() != columns.keys():
            raise sqlite3.DatabaseError("it is laid out in another way")
        table.create(columns, pk=key, if_not_exists=True)


def _name(place: Place) -> tuple[str, str]:
    check, table, key = place
    return check, json.dumps([table, json_key(key)])


__all__ = ["NO", "YES", "Answer", "Answers", "StoreAnswers", "restricted", "reviewed", "says"]
