"""A search index that is not in step with the messages, does not answer, or keeps messages out.

What it finds
Of each of the up to three search indexes: messages that are missing from it, entries that should
not be there, and entries with another text; searches that fail or do not find what the index holds;
triggers that are missing; and, as notes, an index that hermes has detached or is still rebuilding,
and one whose tokenizer this machine has not got.

Why it matters
A message that is missing is not found by any search, and an entry too many can make a search fail
as "malformed". hermes's own probe asks only whether the index can be read, and FTS5's own check
cannot see either in the index of files up to 0.19. Triggers without their index refuse every new
message.

How it decides
By each index's real layout, whatever the version numbers say. Texts of its own (0.13 to 0.19) are
compared with the messages, where a tool's result may be cut at 8,192 characters (0.21.5 on does);
an external index (0.20 on) is compared through its view, so that what upstream leaves out on
purpose (tools' results, cron runs, subagents and delegates in the trigram index) is not missing.
Messages that a deferred rebuild has not come to are in no index yet, and not missing.

Without `--deep` the messages are not read again: an index that holds them all is compared by count
and sum of their ids; of another one the newest 65,536 entries are held against the first index's;
and samples of all (the newest, some of each stretch, one of each of some sessions) are compared
with their texts. Where that shows anything, every message is looked at. `--deep` always does, and
asks for FTS5's own check of an index too.

Search is tried with phrases of real messages, each at its own, and a rare word by rank (#33865,
66724).

Fix
Missing entries are put in and others taken out, a range of messages at a time. Where an entry's
text is not known any more, or searching fails, FTS5 rebuilds the index under hermes's own lock;
afterwards it is checked, searched, and a message is stored and deleted, all of which is taken back.
Missing triggers are not made: hermes (0.16 on) makes them and fills the index at its next start.
What hermes has detached or is rebuilding is left to it: `hermes sessions optimize-storage` carries
on.

Fix safety
Unsafe: a rebuild of a large index takes minutes and writes as much as the index holds. The messages
are not touched, so that there is nothing that `doctor undo` would have to take back.

Upstream
Issues 33865, 66724 and 63386 (search dies, the check says clean), 78182 (a rebuild that
"succeeded", and writes went on failing), 88252 (malformed under a newer SQLite only), 108841
(triggers whose tokenizer is missing refuse every message), 114169 (a check that could never pass).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import INDEX, Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.index_faults import IndexFault, Trouble, index_faults, index_faults_again
from hermes_doctor.store.index_words import action_of, detail_of, refusal_of, summary_of
from hermes_doctor.store.view import StoreView

NAME = "search-index"

_SEVERITY = {
    Trouble.NO_INDEX: Severity.ERROR,
    Trouble.NO_SOURCE: Severity.ERROR,
    Trouble.SEARCH: Severity.ERROR,
    Trouble.LOST: Severity.WARNING,
    Trouble.LEFTOVERS: Severity.WARNING,
    Trouble.TRIGGERS: Severity.WARNING,
    Trouble.DRIFT: Severity.WARNING,
}
_MENDED = frozenset({Trouble.SEARCH, Trouble.LOST, Trouble.LEFTOVERS, Trouble.DRIFT})


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for fault in index_faults(view) if keys is None else index_faults_again(view, keys):
        yield _finding(view, fault)


def _finding(view: StoreView, fault: IndexFault) -> Finding:
    refusal = refusal_of(view, fault)
    mends = fault.trouble in _MENDED and refusal is None
    return Finding(
        check=NAME,
        severity=_severity(fault),
        # Of the messages it is what the index tells: an index is no table with rows of its own.
        table=INDEX,
        key=fault.key,
        session=None,
        summary=summary_of(fault),
        detail=detail_of(fault),
        fix=Safety.UNSAFE if mends else Safety.NONE,
        action=action_of(fault) if mends else None,
        refusal=refusal,
    )


def _severity(fault: IndexFault) -> Severity:
    if fault.sample is not None and 2 * fault.sample.lost >= fault.sample.asked:
        # Hardly anything is found any more.
        return Severity.ERROR
    return _SEVERITY.get(fault.trouble, Severity.INFO)


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="search indexes that miss messages, fail, or keep messages out",
    meaning="searches that fail or do not find what is there",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RelationRule(INDEX, _find),
)
