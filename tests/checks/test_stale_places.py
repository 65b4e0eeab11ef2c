"""stale-places on stores of the releases: folders that are gone, repositories that contradict, and look-alikes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from checks.stale_places import _COLUMNS, CHECK, _condition, _judge
from hermes_doctor.engine.model import Check, Finding, Row, RowRule
from hermes_doctor.store.places import Presence, is_within, place_at
from hermes_doctor.store.view import StoreView
from tests.checks.support import findings_of
from tests.oracle.history import Lived
from tests.oracle.home import Home
from tests.oracle.releases import CHAINS, Release, get
from tests.oracle.steps import call, sql
from tests.oracle.templates import LivedIn

#: Name, cwd, repository (relative to the test's folder unless absolute), the columns that are to be named.
CASES: list[tuple[str, str | None, str | None, list[str]]] = [
    ("nothing said", None, None, []),
    ("empty", "", "", []),
    ("a folder", "plain", None, []),
    ("in its repository", "repo/src", "repo", []),
    ("the repository itself", "repo", "repo", []),
    ("through a link", "link/src", "repo", []),
    ("the repository through a link", "repo/src", "link", []),
    ("a nested repository", "repo/nested", "repo", []),
    ("a linked worktree elsewhere", "side/src", "repo", []),
    ("a repository of a folder unknown", None, "repo", []),
    ("a relative folder", "./nowhere", None, []),
    ("control characters", "/no\x1bwhere", None, []),
    ("gone", "was-here", None, ["cwd"]),
    ("a file by now", "file", None, ["cwd"]),
    ("folder gone, repository there", "repo/old", "repo", ["cwd"]),
    ("repository gone, folder there", "plain", "was-here", ["git_repo_root"]),
    ("both gone", "was-here/src", "was-here", ["cwd", "git_repo_root"]),
    ("in another repository", "other/src", "repo", ["cwd", "git_repo_root"]),
    ("in none", "plain", "repo", ["cwd", "git_repo_root"]),
    ("a folder that only begins alike", "repo-2", "repo", ["cwd", "git_repo_root"]),
]

RELEASES = [get("0.18.2"), get("0.20.0"), get("0.22.2")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folders that the cases speak of."""
    base = tmp_path.resolve() / "work"
    for name in ("plain", "repo/.git", "repo/src", "repo/nested/.git", "other/.git", "other/src", "side/src", "repo-2"):
        (base / name).mkdir(parents=True)
    (base / "side/.git").write_text("gitdir: elsewhere\n")
    (base / "file").write_text("")
    (base / "link").symlink_to("repo")
    return base


def planted(home: Home, release: Release, folder: Path) -> dict[str, list[str]]:
    """Plants all cases and returns what is to be found: session -> columns."""
    steps = []
    for name, cwd, root, _columns in CASES:
        steps.append(call("create_session", name, "cli", model="m"))
        cells = [cell if not cell or cell[0] in "./" else str(folder / cell) for cell in (cwd, root)]
        steps.append(sql("UPDATE sessions SET cwd = ?, git_repo_root = ? WHERE id = ?", *cells, name))
    home.run(release, steps)
    return {name: columns for name, _cwd, _root, columns in CASES if columns}


def found_in(home: Home, check: Check = CHECK) -> dict[str, list[str]]:
    found = findings_of(home.store, check, home=home.path)
    return {str(finding.key): list(_listed(finding)) for finding in found}


def _listed(finding: Finding) -> list[str]:
    columns = finding.detail["columns"]
    assert isinstance(columns, list)
    return columns


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_each_case(home: Home, release: Release, folder: Path) -> None:
    expected = planted(home, release, folder)
    assert found_in(home) == expected
    # A store without its home says nothing about this host.
    assert findings_of(home.store, CHECK) == []


def test_a_finding_names_columns_and_no_path(home: Home, folder: Path) -> None:
    planted(home, get("0.22.2"), folder)
    by_key = {finding.key: finding for finding in findings_of(home.store, CHECK, home=home.path)}
    assert by_key["gone"].summary == "its cwd is not on this host any more"
    assert by_key["both gone"].summary == "its cwd and its git_repo_root are not on this host any more"
    assert by_key["in none"].summary == "its git_repo_root is not the repository that its cwd is in"
    for finding in by_key.values():
        assert (finding.severity.label, finding.fix, finding.session) == ("info", "none", finding.key)
        assert str(folder) not in repr(finding)


@pytest.mark.parametrize("life", [("0.13.0",), ("0.22.2",), CHAINS[0]], ids="→".join)
def test_a_lived_in_home_gives_nothing_above_info(lived_in: LivedIn, life: tuple[str, ...]) -> None:
    lived: Lived = lived_in(*life)
    found = findings_of(lived.home.store, CHECK, home=lived.home.path)
    assert {finding.severity.label for finding in found} <= {"info"}


def _by_text_alone(row: Row, view: StoreView) -> Finding | None:
    """A repository is judged by its name, links and worktrees or not."""
    paths = {column: path for column in _COLUMNS if isinstance(path := row[column], str) and path}
    if len(paths) == 2 and not is_within(paths["cwd"], paths["git_repo_root"]):
        return _judge({**row, "cwd": None}, view) or replace(_GONE, key=row["id"], session=row["id"])
    return _judge(row, view)


_GONE = Finding("stale-places", CHECK.severity, "sessions", "", "", "x", {"columns": ["cwd", "git_repo_root"]})


def _followed(row: Row, _view: StoreView) -> Finding | None:
    """Whatever the file system says, relative paths and control characters included."""
    gone = [column for column in _COLUMNS if isinstance(path := row[column], str) and not Path(path).exists()]
    return replace(_GONE, key=row["id"], session=row["id"], detail={"columns": gone}) if gone else None


def _folder_only(row: Row, view: StoreView) -> Finding | None:
    cwd = row["cwd"]
    gone = isinstance(cwd, str) and place_at(view, cwd).presence is Presence.GONE
    return replace(_GONE, key=row["id"], session=row["id"], detail={"columns": ["cwd"]}) if gone else None


@pytest.mark.parametrize("judge", [_by_text_alone, _followed, _folder_only])
def test_wrong_variants_fail(home: Home, folder: Path, judge: Callable[[Row, StoreView], Finding | None]) -> None:
    expected = planted(home, get("0.20.0"), folder)
    wrong = replace(CHECK, rule=RowRule("sessions", ("id", *_COLUMNS), _condition, judge))
    assert found_in(home, wrong) != expected
