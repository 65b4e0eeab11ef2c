"""Sessions whose folder or repository is not on this host any more.

What it finds
Sessions whose `cwd` or `git_repo_root` is no folder of this host, and sessions whose repository has
nothing to do with their folder.

Why it matters
Resuming such a session starts in another folder than it was made in, and the lists that are grouped
by project keep a group for a folder that is gone.

How it decides
Only where the store stands in its Hermes home: a backup says nothing about a host. NULL and empty
are normal (messaging, cron), and a path that is not absolute is not asked about. Each path is
looked up once, at most 2,000 of them, without following it to another machine: what lies on a
network's or a user's own file system (NFS, SMB, sshfs) is left alone, and so is a path with control
characters, or one that this user may not see. A repository contradicts its folder where both exist,
links followed, the folder is not in it, and the folder is in a repository of its own or in none.
A linked worktree or a submodule, which has a file `.git`, may lie anywhere.

Fix
None. Bring the folder back, or choose another one when the session is resumed. A session that
worked in a container or on another machine may name a folder that was never on this one.

Fix safety
Nothing is changed: only a person knows where the folder went.

Upstream
Issues 108205, 92398, 93625 (`cwd` is empty on most rows of gateways and cron), 106003 (a folder
became a repository later). `git_repo_root` is the main repository's, also for a linked worktree.
"""

from __future__ import annotations

from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.store.places import Presence, is_within, place_at
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

NAME = "stale-places"

_COLUMNS = ("cwd", "git_repo_root")


def _condition(shape: Shape) -> str | None:
    if not shape.has("sessions", "cwd"):
        return None
    filled = [
        f"(typeof({column}) = 'text' AND {column} <> '')"
        for column in (shape.column("sessions", name) for name in _COLUMNS)
    ]
    return " OR ".join(filled)


def _judge(row: Row, view: StoreView) -> Finding | None:
    if view.home is None:
        return None
    paths = {column: path for column in _COLUMNS if isinstance(path := row[column], str) and path}
    places = {column: place_at(view, path) for column, path in paths.items()}
    gone = [column for column, place in places.items() if place.presence is Presence.GONE]
    if gone:
        summary = f"its {' and its '.join(gone)} {'is' if len(gone) == 1 else 'are'} not on this host any more"
        return _finding(row, summary, gone)
    if _contradicts(view, paths):
        return _finding(row, "its git_repo_root is not the repository that its cwd is in", list(_COLUMNS))
    return None


def _contradicts(view: StoreView, paths: dict[str, str]) -> bool:
    if len(paths) < len(_COLUMNS):
        return False
    folder, root = (place_at(view, paths[column]) for column in _COLUMNS)
    if Presence.UNKNOWN in (folder.presence, root.presence) or is_within(folder.path, root.path):
        return False
    return not folder.linked


def _finding(row: Row, summary: str, columns: list[str]) -> Finding:
    return Finding(
        check=NAME,
        severity=Severity.INFO,
        table="sessions",
        key=row["id"],
        session=row["id"],
        summary=summary,
        detail={"columns": columns},
    )


CHECK = Check(
    name=NAME,
    severity=Severity.INFO,
    summary="sessions whose folder or repository is not on this host any more",
    meaning="sessions of folders that are gone",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=RowRule("sessions", ("id", *_COLUMNS), _condition, _judge),
)
