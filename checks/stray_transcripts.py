"""Transcripts on the disk that tell messages which the store does not hold.

What it finds
Files in the home's `sessions` folder with messages that are in no row of the store: lines that
hermes diverted there because the store was replaced or broken under it (`<id>.jsonl`, 0.21.5 on),
what an old gateway noted there (`<id>.jsonl`, up to 0.15), and snapshots (`session_<id>.json`,
always up to 0.15, with `sessions.write_json_snapshots` up to 0.20.6).

Why it matters
Nothing reads these files any more: what only they hold is lost to every list, search and resumed
chat, and deleting the session deletes it for good.

How it decides
A snapshot that tells no more messages than its session has rows was written; so was an old
gateway's file with no more lines. Beyond the 200 newest, a snapshot that is no newer than its
session's last row is taken for written without a look (`--deep` counts all). What is left is read
and compared message by message (role, words, calls) with all rows of the session and its relatives,
also those that were compacted, rewound or taken over by a continuation. Where all are there,
nothing is said. Snapshots leave secrets out, so that a message may look different; where the counts
agree that does not matter.
A diverted file repeats what waited with every attempt; only the last telling counts.
Info, and never mended: what hermes's own doings explain. Up to 0.21.5 a deleted session leaves its
files behind (the snapshots are counted together); 0.13 and 0.15 leave in a snapshot what was taken
back with /undo; a chat that was rewritten differs. A session that another profile's store holds is
not lost. Files above 64 MiB that are one document are not read.

Fix
Where the session is there, its active rows are the beginning of the transcript (or it holds
diverted lines), and nothing newer was said: the missing messages are written behind them, with the
columns that the release's own flush would write; times that the file does not tell become the
file's. Where the session is missing and 0.22.2 or newer diverted the lines (whose deletions take
the file along): a new session with the source `recovered`, as `hermes sessions recover` makes them.
The counts are raised. The file stays.

Fix safety
Unsafe: a chat's history becomes longer, and what is brought back is a copy with secrets left out
where a snapshot is the source. Refused while somebody has the store open, while the gateway has
messages of its own to write, when messages would belong before others, begin with a tool's result
without its call, follow a compression, or hold pictures that the search index cannot take.
`doctor undo` takes the rows out again.

Upstream
Diversion: `StateDbReplacedError`, 0.21.5 on. Rows that never landed: 46053, 50004, 56279, 35313.
Snapshots that stay behind a deletion: 55088, 60207 (0.22.2 removes them).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import FILES, Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.transcripts import Kind, Stray, strays
from hermes_doctor.store.view import StoreView

NAME = "stray-transcripts"

#: The key of the one finding about all snapshots whose sessions are not in the store.
_ALL = "sessions"

_SUMMARIES = {
    Kind.TAIL: "tells {n} that the store lacks, after the last one stored",
    Kind.HOLE: "tells {n} that the store lacks, before the last one stored",
    Kind.OTHER: "tells {n} that the store lacks",
    Kind.MISSING: "tells {n} of a session that is not in the store",
    Kind.UNREAD: "could not be compared with the store",
}


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    names = None if keys is None or _ALL in keys else [key for key in keys if isinstance(key, str)]
    left, size = 0, 0
    for stray in strays(view, names):
        if stray.kind is Kind.MISSING and not stray.file.lines:
            left += 1
            size += stray.file.size
        elif keys is None or stray.file.name in keys:
            yield _finding(stray)
    if left and (keys is None or _ALL in keys):
        yield Finding(
            check=NAME,
            severity=Severity.INFO,
            table=FILES,
            key=_ALL,
            session=None,
            summary=f"snapshots of {_counted(left, 'session')} that the store does not hold",
            detail={"files": left, "bytes": size},
            refusal="a session that was deleted leaves its snapshot behind, and is not to be revived",
        )


def _finding(stray: Stray) -> Finding:
    mends = stray.sure and stray.refusal is None
    new = stray.kind is Kind.MISSING
    messages = _counted(stray.messages, "message")
    return Finding(
        check=NAME,
        severity=Severity.WARNING if stray.sure else Severity.INFO,
        table=FILES,
        key=stray.file.name,
        session=stray.session,
        summary=_SUMMARIES[stray.kind].format(n=messages),
        detail={"messages": stray.messages, "unreadable": stray.broken, "bytes": stray.file.size},
        fix=Safety.UNSAFE if mends else Safety.NONE,
        action=f"bring {messages} back {'into a new session' if new else 'to its end'}" if mends else None,
        refusal=stray.refusal,
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="transcripts on the disk with messages that are not in the store",
    meaning="messages that only a file still holds, where no chat or search finds them",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RelationRule(FILES, _find),
)
