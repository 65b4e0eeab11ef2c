"""Damage to the store's file itself.

What it finds
Pages of the file that cannot be read, lie in the wrong place, or are not what the pages around them
say: a disk's fault, a torn write, a copy that was broken off, two programs writing at once. One
finding for each kind of what is hit: rows that are lost or out of reach, indexes over rows that are
all there, the search index, things that the schema lists twice, the list of free pages. Of a store
that cannot be opened at all: what can be told all the same.

Why it matters
What is to be done depends on what is hit. Rows that are lost come back from a copy or a salvage
only; an index is made anew from the rows, and the search index from the messages, with nothing of
the conversations lost. The wrong remedy makes it worse: `.recover`, VACUUM or `sessions repair` on
a file that has lost rows; a backup, put back, that was made of the same damage.

How it decides
SQLite's own check names trees and pages; the schema says which table or index each tree is of. An
index that SQLite can read and that does not fit its rows is what is wrong, unless all indexes of
the table disagree with it on how many rows there are. Of a file of up to 1,000 pages all is looked
at. Of a larger one a sample: small tables whole, of the others some hundred rows and index entries
by chance, in a twentieth of a second. So a sample finds what is widespread, and rarely a single
page; `doctor scan --deep` looks at all of it, and how long that may take is told for stores from a
gibibyte on. Beside a living hermes it asks about each table by itself, for no longer than hermes
can wait; what that leaves open is told. Rows that break a constraint or name something that is not
there are no damage, nor is a search index that does not fit the messages, which is a check of its
own.

Fix
None here: the finding names what to type, with hermes stopped. Where an index is hit, hermes's own
`sessions repair` makes it anew. Where rows are lost, look for a sound backup first. Without one,
`doctor rescue STORE OUTPUT` saves what can be read into a new file, and says of each table what it
could not save and why; `--inspect-only` shows that beforehand. It works for every release; hermes's
own `sessions recover` takes 0.20. The finding also says which of the copies beside the store are
damaged, too.

Fix safety
Nothing is changed. The file is read, and nothing is left beside it.

Upstream
Issues 88587, 97794 and 99652 (search index taken for the whole file, and the reverse), 101735
(`.recover` on the live file), 97568 (a wiped file that nobody noticed). `sessions repair` came with
0.17.0, `sessions recover` with 0.20.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hermes_doctor.engine.model import FILES, Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.damage_report import Said, of_store, of_wreck
from hermes_doctor.store.view import StoreView

NAME = "file-damage"


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    key = (view.opened if view.bundle is None else view.bundle.real_path).name
    if keys is None or key in keys:
        yield from _findings(key, of_store(view, again=keys is not None))


def _wreck(path: Path) -> Iterator[Finding]:
    yield from _findings(path.resolve().name, of_wreck(path))


def _findings(key: str, told: Sequence[Said]) -> Iterator[Finding]:
    for said in told:
        yield Finding(
            check=NAME,
            severity=Severity.ERROR if said.damaged else Severity.INFO,
            table=FILES,
            key=key,
            session=None,
            summary=said.summary,
            detail=said.detail,
        )


def _condemns(finding: Finding) -> bool:
    """Whether more is damaged than the search index, without which all conversations can be read."""
    return finding.severity is Severity.ERROR and finding.detail["damage"] != "search"


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="damage to the file itself: rows that are lost, or only an index",
    meaning="pages of the file are damaged; doctor rescue saves what can be read",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=RelationRule(FILES, _find),
    wreck=_wreck,
    condemns=_condemns,
)
