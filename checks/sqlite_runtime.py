"""A hermes whose SQLite can damage a store in WAL mode.

What it finds
A store in WAL mode that is written by a Python whose SQLite has the WAL-reset bug: 3.7.0 to 3.51.2,
but for 3.50.7 and 3.44.6 and what followed them in their lines.

Why it matters
When such a SQLite begins its write-ahead log anew while another process writes or checkpoints,
pages can be lost, and the store is malformed later. It is rare, and it takes two processes: a
gateway beside a CLI is enough. The doctor brings a SQLite of its own, which is not affected.

How it decides
By asking the very Python that hermes runs in, once, without its packages. It is found through the
processes that have the store open, where the libraries that they have mapped are those which that
Python loads; with nobody there through the launcher `hermes` on the PATH (for the default home) or
`hermes-agent/venv` in the home. A Python that another user could change is not run. Where hermes is
not found, or it is not certain, nothing is told; nor of a store in another mode. A distribution may
have mended an older SQLite without changing its number: then this is told all the same.

Fix
None. Upgrade what is named, then start hermes again: a running one keeps the SQLite it began with.
`python -c 'import sqlite3; print(sqlite3.sqlite_version)'`, with that Python, says whether it
helped. Until then, with every hermes stopped, `hermes sessions set-journal-mode delete` (0.21.5 on)
and `database.journal_mode: delete` in config.yaml take the store out of WAL mode.

Fix safety
Nothing is changed: a store's mode is not switched under a living hermes, and no software of others
is upgraded.

Upstream
Issue 69784. 0.20.0 on make new stores in DELETE mode on such a SQLite, and leave those in WAL mode
as they are, with a warning; `hermes doctor` shows the version from 0.20.0 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import FILES, Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.hermes_command import hermes
from hermes_doctor.store.hermes_runtime import Runtime, runtimes
from hermes_doctor.store.view import StoreView

NAME = "sqlite-runtime"

_MENDED = "SQLite 3.51.3 or newer (or 3.50.7, 3.44.6)"


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    key = view.bundle.real_path.name if view.bundle is not None else None
    if keys is not None and key not in keys:
        return
    faulty = [each for each in runtimes(view) if each.faulty]
    if not faulty:
        return
    asked = " and ".join(dict.fromkeys(each.question for each in faulty))
    yield Finding(
        check=NAME,
        severity=Severity.WARNING,
        table=FILES,
        key=key,
        session=None,
        summary=f"{', '.join(map(_named, faulty))}, which has the WAL-reset bug, and the store is in WAL mode; check it"
        f" with {asked}; upgrade to {_MENDED}: {_source(faulty[0], hermes(view))}; then start hermes again",
        detail={
            "pids": [str(each.pid) for each in faulty if each.pid is not None],
            "pythons": list(dict.fromkeys(str(each.python) for each in faulty)),
            "sqlite": list(dict.fromkeys(each.linked.text for each in faulty)),
        },
    )


def _named(runtime: Runtime) -> str:
    who = "the installed hermes" if runtime.pid is None else f"{runtime.name} (pid {runtime.pid})"
    return f"{who} runs in {runtime.python} with SQLite {runtime.linked.text}"


def _source(runtime: Runtime, command: str) -> str:
    """Say where a newer SQLite comes from, by where this one is."""
    path = runtime.linked.library or str(runtime.python)
    for part, source in (
        ("conda", "conda update sqlite, in that environment"),
        ("/Cellar/", "brew upgrade sqlite python"),
        ("hermes", f"{command} update"),
        ("/uv/python/", f"{command} update, or uv python upgrade and a new environment for hermes"),
        ("/usr/lib", "the newest libsqlite3 of the distribution"),
        ("/usr/bin/", "the newest libsqlite3 of the distribution"),
    ):
        if part in path:
            return source
    return "another Python for hermes, one that links that"


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="a hermes whose SQLite has the WAL-reset bug, on a store in WAL mode",
    meaning="hermes's SQLite can damage this store; upgrade it",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=RelationRule(FILES, _find),
)
