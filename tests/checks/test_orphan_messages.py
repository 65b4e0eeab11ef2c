"""orphan-messages: sessions that are gone are known by what they left, and by nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import apsw
import pytest

from checks.orphan_messages import CHECK, find
from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.host.settings import NO_SETTINGS, Settings
from hermes_doctor.store import orphans
from hermes_doctor.store.cells import Key
from hermes_doctor.store.view import StoreView
from tests.checks.orphan_cases import NOW, SAID, Case, chat, lost, plant, said_to_nobody
from tests.checks.support import findings_of
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST, Release, get
from tests.oracle.steps import open_store, sql
from tests.store.views import view_of

SOME = pytest.mark.parametrize("release", [get("0.13.0"), get("0.18.2"), NEWEST], ids=str)


@dataclass
class Planted:
    """The home of the cases, made once for each release. Tests that change it take a copy."""

    folder: Path
    homes: dict[str, tuple[Home, list[Case]]] = field(default_factory=dict)

    def __call__(self, release: Release = NEWEST) -> tuple[Home, list[Case]]:
        if release.version not in self.homes:
            home = Home(self.folder / release.version)
            self.homes[release.version] = home, plant(home, release)
        return self.homes[release.version]

    def copy(self, to: Path) -> tuple[Home, list[Case]]:
        home, made = self()
        shutil.copytree(home.path, to)
        return Home(to), made


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return Planted(tmp_path_factory.mktemp("planted"))


def wrong(home: Home, made: Sequence[Case], check: Check) -> list[str]:
    """The cases of which the check says something else than it should."""
    found = findings_of(home.store, check, home=home.path, now=NOW)
    by_session: dict[Key, Finding] = {finding.session: finding for finding in found}
    bad = [case.name for case in made if case.session and not _is_right(case, by_session.pop(case.session, None))]
    # The one whose id is no text is found by its bytes.
    of_bytes = [finding for session, finding in by_session.items() if session == b"\x00gone"]
    if [(f.fix, f.detail["messages"]) for f in of_bytes] != [(Safety.NONE, 1)]:
        bad.append("id of bytes")
    return [*bad, *(f"{finding.session!r} is found" for finding in by_session.values() if finding not in of_bytes)]


def _is_right(case: Case, finding: Finding | None) -> bool:
    if case.expected is None or finding is None:
        return case.expected is None and finding is None
    return (
        finding.fix is case.expected
        and finding.detail["messages"] == case.messages
        and (finding.refusal is not None) is (case.expected is Safety.NONE)
    )


@SOME
def test_sessions_that_are_gone_are_found_and_others_are_not(planted: Planted, release: Release) -> None:
    home, made = planted(release)
    assert wrong(home, made, CHECK) == []
    found = findings_of(home.store, CHECK, home=home.path, now=NOW)
    assert {finding.severity for finding in found} == {Severity.ERROR}
    # The key is the smallest of the session's messages, whatever order they were written in.
    first = dict(
        home.ask(release, sql("SELECT session_id, min(id) FROM messages WHERE typeof(session_id) = 'text' GROUP BY 1"))
    )
    assert {f.session: f.key for f in found if isinstance(f.session, str)} == {
        case.session: first[case.session] for case in made if case.expected and case.session
    }


def test_asking_about_one_row_says_what_asking_about_all_said(planted: Planted) -> None:
    home, _made = planted()
    with view_of(home.store, home=home.path, now=NOW) as view:
        everything = list(find(view, None))
        again = {finding.key: finding for finding in find(view, [finding.key for finding in everything])}
        assert again == {finding.key: finding for finding in everything}
        for finding in everything:
            assert list(find(view, [finding.key])) == [finding]
        # Any other message of the session is not its first.
        others = [f.key + 1 for f in everything if isinstance(f.key, int) and f.detail["messages"] == 4]
        assert list(find(view, others)) == []
        assert list(find(view, [10_000_000, None])) == []


def _always_safe(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for finding in find(view, keys):
        yield replace(finding, fix=Safety.SAFE, action="rebuild", refusal=None)


def _by_messages_that_are_active(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for finding in find(view, keys):
        active = view.rows("SELECT 1 FROM messages WHERE session_id = ? AND active = 1", (str(finding.session),))
        yield replace(finding, detail={**finding.detail, "messages": len(active)})


def _ignoring_case(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for finding in find(view, keys):
        if not view.rows("SELECT 1 FROM sessions WHERE lower(id) = lower(?)", (str(finding.session),)):
            yield finding


@pytest.mark.parametrize("rule", [_always_safe, _by_messages_that_are_active, _ignoring_case])
def test_a_wrong_rule_is_caught(planted: Planted, rule: object) -> None:
    home, made = planted()
    assert wrong(home, made, replace(CHECK, rule=RelationRule("messages", rule))) != []  # type: ignore[arg-type]  # one of the three above


@pytest.mark.parametrize(
    ("missing", "left", "before", "expected"),
    [(3, 0, 0, "safe"), (10, 1, 0, "safe"), (9, 1, 0, "unsafe"), (1, 1, 0, "unsafe"), (2, 1, 30, "unsafe")],
    ids=["all", "ten for one", "nine for one", "one for one", "after an earlier recovery"],
)
def test_it_is_safe_where_the_table_is_lost(home: Home, missing: int, left: int, before: int, expected: str) -> None:
    lost(home, get("0.19.0"), missing=missing, left=left, recovered_before=before)
    found = findings_of(home.store, CHECK, home=home.path, now=NOW)
    assert [finding.fix.value for finding in found] == [expected] * missing
    assert {finding.detail["sessions_lost"] for finding in found} == {expected == "safe"}


def test_many_sessions_are_no_lost_table(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    lost(home, get("0.19.0"), missing=30, left=3)
    assert {f.fix for f in findings_of(home.store, CHECK, now=NOW)} == {Safety.SAFE}
    monkeypatch.setattr(orphans, "_MANY", 2)
    assert {f.fix for f in findings_of(home.store, CHECK, now=NOW)} == {Safety.UNSAFE}


def test_without_a_table_of_sessions_it_says_what_to_do(home: Home) -> None:
    home.run(NEWEST, chat("gone"))
    connection = apsw.Connection(str(home.store))
    connection.execute("PRAGMA foreign_keys=OFF; DROP TABLE sessions")
    connection.close()
    (found,) = findings_of(home.store, CHECK, now=NOW)
    assert found.fix is Safety.NONE
    assert found.refusal == "there is no table of sessions: start hermes once, which makes one"
    home.run(NEWEST, [open_store()])
    assert [f.fix for f in findings_of(home.store, CHECK, now=NOW)] == [Safety.SAFE]


@pytest.mark.parametrize("jump", [2, 3])
def test_no_session_is_lost_between_two_statements(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    home, made = planted()
    monkeypatch.setattr(orphans, "_AT_ONCE", jump)
    assert wrong(home, made, CHECK) == []


#: Limits of a conversation's length that are so low that all sessions' messages have to be counted.
_COUNTING = Settings(read=True, max_resume_messages=1, max_export_messages=1)


def test_where_messages_are_counted_by_session_the_same_is_found(planted: Planted) -> None:
    home, _made = planted()
    with view_of(home.store, home=home.path, now=NOW) as view:
        everything = list(find(view, None))
        assert everything
        view.forget()
        view.settings = _COUNTING
        assert list(find(view, None)) == everything


@pytest.mark.parametrize("lost", ["gone", None], ids=["a session", "no session"])
def test_counts_that_agree_are_proof_enough(home: Home, monkeypatch: pytest.MonkeyPatch, lost: str | None) -> None:
    home.run(NEWEST, [*chat("one"), *chat("two")])
    asked: list[StoreView] = []
    jumping = orphans._jumping

    def watched(view: StoreView) -> Iterator[orphans.Missing]:
        asked.append(view)
        return jumping(view)

    monkeypatch.setattr(orphans, "_jumping", watched)

    def found(settings: Settings) -> list[Key]:
        with view_of(home.store, now=NOW, held="no") as view:
            view.settings = settings
            return [finding.session for finding in find(view, None)]

    assert (found(_COUNTING), len(asked)) == ([], 0)
    assert (found(NO_SETTINGS), len(asked)) == ([], 1)
    connection = apsw.Connection(str(home.store))
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'session_id TEXT NOT NULL', 'session_id TEXT')")
    connection.execute("PRAGMA writable_schema = RESET")
    connection.execute("UPDATE messages SET session_id = ? WHERE id = 1", (lost,))
    connection.close()
    assert found(_COUNTING) == ([lost] if lost else [])
    assert len(asked) > 1


def test_a_store_without_the_index_is_walked_once(planted: Planted, tmp_path: Path) -> None:
    home, made = planted.copy(tmp_path / "copy")
    connection = apsw.Connection(str(home.store))
    for (name,) in connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'messages' AND sql LIKE '%session_id%'"
    ).fetchall():
        connection.execute(f'DROP INDEX "{name}"')
    connection.close()
    with view_of(home.store) as view:
        assert not orphans._is_indexed(view)
    assert wrong(home, made, CHECK) == []


def test_text_that_is_no_text_is_found_and_refused(home: Home) -> None:
    home.run(NEWEST, [*chat("well"), *said_to_nobody("zz gone", SAID)])
    connection = apsw.Connection(str(home.store))
    connection.execute("PRAGMA foreign_keys=OFF; UPDATE messages SET session_id = CAST(x'67ff6f' AS TEXT) WHERE id = 1")
    connection.close()
    found = {f.session: f for f in findings_of(home.store, CHECK, now=NOW)}
    assert {session: f.fix for session, f in found.items()} == {b"g\xffo": Safety.NONE, "zz gone": Safety.UNSAFE}
    with view_of(home.store, now=NOW) as view:
        assert [f.session for f in find(view, [1])] == [b"g\xffo"]
