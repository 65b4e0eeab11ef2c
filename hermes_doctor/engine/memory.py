"""What a scan keeps for the next one: what each stretch of messages came to, and what proves that it is as it was.

It lies in the user's state folder and holds keys, counts, ids of sessions and findings, never what anybody said. It is
a help, not a record: where it is missing, broken or of another doctor, everything is read.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from hermes_doctor.engine.model import Finding, Safety, Severity
from hermes_doctor.engine.state_file import StateFile, path_cell, state_folder
from hermes_doctor.store.cells import Key
from hermes_doctor.store.file_mark import FileMark
from hermes_doctor.store.reader import Values
from hermes_doctor.store.stretches import Stretch

FILE = "last-scans.db"

#: Stands for the digest of the stretch before the first, or behind the last.
NOTHING = b"nothing"

_STORES = ("path", "question", "mark", "at")
_STRETCHES = (
    *("path", "low", "high", "parent", "linkage", "leaves", "runs", "digest"),
    *("rows", "before", "behind", "came_to", "found"),
)
_TABLES = {"stores": (_STORES, "path"), "stretches": (_STRETCHES, "path, low")}


@dataclass(frozen=True, slots=True)
class Kept:
    """What one stretch came to: how many ``rows`` it has, and the ``values`` of its range.

    ``found``: what the lasting rules found there, as `brief` writes it; None where that is not known.
    ``before``, ``behind``: the digests of the stretches next to it when that was asked; `NOTHING` at the ends of the
    table, empty where they are not known to be of the same moment.
    """

    stretch: Stretch
    rows: int
    before: bytes
    behind: bytes
    values: Values
    found: str | None = None


@dataclass(frozen=True)
class Recalled:
    """What is kept of one store, in the order of the keys. ``mark``: its files when all of that was proven, if ever."""

    kept: Sequence[Kept] = ()
    mark: FileMark | None = None


class Memory:
    """What was kept in one folder. Never raises for what is wrong with it: what cannot be read counts as empty."""

    def __init__(self, folder: Path) -> None:
        self._file = StateFile(folder / FILE)

    @classmethod
    def of_user(cls) -> Memory:
        """Return that of the user who runs the doctor."""
        return cls(state_folder())

    def recall(self, store: Path, question: str) -> Recalled | None:
        """Return what is kept of a store for just this question; None where there is nothing of that kind."""
        stretches = ", ".join(_STRETCHES[1:])
        rows = self._file.rows(
            f"SELECT mark, {stretches} FROM stores LEFT JOIN stretches USING (path)"
            " WHERE path = ? AND question = ? ORDER BY low",
            *(path_cell(store), question),
        )
        if not rows:
            return None
        try:
            kept = [
                Kept(Stretch(*stretch), count, before, behind, tuple(json.loads(came_to)), found)
                for _mark, *stretch, count, before, behind, came_to, found in rows
                if count is not None
            ]
            mark = json.loads(rows[0][0])
            return Recalled(kept, None if mark is None else _mark_of(mark))
        except (ValueError, TypeError, KeyError):
            return None

    def keep(
        self, store: Path, question: str, mark: FileMark | None, gone: Iterable[Kept], new: Sequence[Kept]
    ) -> bool:
        """Keep what a scan came to, beside what is kept already but for what is ``gone``; return whether that worked.

        ``mark``: the store's files, where all that is kept then is proven to be of that moment.
        """
        cell, lows = path_cell(store), [kept.stretch.low for kept in gone]
        said = json.dumps(None if mark is None else asdict(mark))

        def change(connection: sqlite3.Connection) -> None:
            for name, (columns, key) in _TABLES.items():
                connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns)}, PRIMARY KEY ({key}))")
                laid_out = connection.execute("SELECT name FROM pragma_table_info(?)", (name,)).fetchall()
                if laid_out != [(column,) for column in columns]:
                    raise sqlite3.DatabaseError("it is laid out in another way")
            asked = connection.execute("SELECT question FROM stores WHERE path = ?", (cell,)).fetchone()
            if asked is None or asked[0] != question:
                connection.execute("DELETE FROM stretches WHERE path = ?", (cell,))
            connection.executemany("DELETE FROM stretches WHERE path = ? AND low = ?", ((cell, low) for low in lows))
            connection.execute("INSERT OR REPLACE INTO stores VALUES (?, ?, ?, ?)", (cell, question, said, time.time()))
            marks = ", ".join("?" * len(_STRETCHES))
            connection.executemany(
                f"INSERT OR REPLACE INTO stretches VALUES ({marks})",
                (
                    (
                        *(cell, *astuple(kept.stretch), kept.rows, kept.before, kept.behind),
                        json.dumps(kept.values),
                        kept.found,
                    )
                    for kept in new
                ),
            )

        return self._file.write_plainly(change)


def brief(findings: Sequence[Finding]) -> str | None:
    """Return findings as text that says once what many have in common; None where that cannot be said as JSON."""
    words: dict[str, int] = {}
    sessions: dict[Key, int] = {}
    rows: list[Key] = []
    for finding in findings:
        if not isinstance(finding.key, _PLAIN) or not isinstance(finding.session, _PLAIN):
            return None
        said = json.dumps(
            (
                *(finding.check, int(finding.severity), finding.table, finding.summary, finding.detail),
                *(finding.fix.value, finding.action, finding.refusal),
            )
        )
        rows += (
            finding.key,
            sessions.setdefault(finding.session, len(sessions)),
            words.setdefault(said, len(words)),
        )
    return json.dumps([[json.loads(each) for each in words], list(sessions), rows])


#: What JSON gives back as it was.
_PLAIN = int | str | None


def findings_in(text: str) -> list[Finding] | None:
    """Return the findings that `brief` wrote; None where it did not."""
    try:
        words, sessions, rows = json.loads(text)
        said = [
            (check, Severity(severity), table, summary, detail, Safety(fix), action, refusal)
            for check, severity, table, summary, detail, fix, action, refusal in words
        ]
        found: list[Finding] = []
        for key, session, place in zip(*[iter(rows)] * 3, strict=True):
            check, severity, table, *rest = said[place]
            found.append(Finding(check, severity, table, key, sessions[session], *rest))
    except (ValueError, TypeError, IndexError):
        return None
    return found


def _mark_of(said: dict[str, object]) -> FileMark:
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    return FileMark(**lists)  # type: ignore[arg-type]  # as `asdict` wrote it; what is not raises
