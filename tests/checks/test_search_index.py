"""search-index: each index is held against the messages by its own layout, and what is left out on purpose is right."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import apsw
import pytest

from checks.search_index import CHECK
from hermes_doctor.engine.model import INDEX, ExitCode, Finding, Severity
from hermes_doctor.engine.rows import ask, find
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store import index_state
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.search_index import check_rows
from hermes_doctor.store.shape import read_shape
from hermes_doctor.store.view import StoreView
from tests.checks.index_cases import (
    BASE,
    CASES,
    INFO,
    REBUILDING,
    SITES,
    TRIGRAM,
    IndexCase,
    Said,
    both,
    no_triggers,
    run,
    site_home,
    taken_out,
    untold,
    with_case,
)
from tests.checks.support import findings_of
from tests.oracle.home import Home
from tests.oracle.steps import call, kill, open_store, sql, sql_many
from tests.oracle.templates import LivedIn

#: What is found in a store, by case.
Found = Mapping[str, tuple[Home, list[Finding]]]
by_name = {case.name: case for case in CASES}


def scanned(home: Home, *, deep: bool = False) -> list[Finding]:
    """What a scan finds; fails where it could not be done."""
    scan = scan_store(StoreRef(home.store, home.path, "default"), [CHECK], ScanOptions(deep=deep))
    with scan.findings as findings:
        assert (scan.reason, [result.reason for result in scan.checks]) == (None, [None])
        return list(findings)


@contextmanager
def looked_through(home: Home, *, deep: bool = False) -> Iterator[StoreView]:
    """The view of a scan, of a store that nobody else has: opening it as a scan does takes longer than the look."""
    connection = apsw.Connection(str(home.store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.pragma("query_only", True)
        shape = read_shape(connection)
        yield StoreView(Reader(connection, Pace.FREE), shape, now=0.0, held="no", home=home.path, deep=deep)
    finally:
        connection.close()


def seen(home: Home, *, deep: bool = False) -> list[Finding]:
    """What the check finds in such a store."""
    with looked_through(home, deep=deep) as view:
        return list(find([CHECK], view))


def said(findings: Collection[Finding]) -> dict[object, tuple[str, str]]:
    """The findings by key: severity and fix. No key is found twice."""
    found: dict[object, tuple[str, str]] = {f.key: (f.severity.label, f.fix.value) for f in findings}
    assert len(found) == len(findings)
    return found


@pytest.fixture(scope="module")
def found(oracle: None, shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Found]:
    """What is found of each case that a site can show."""

    def look(site: str) -> Found:
        template, folder = site_home(shared_folder, site), tmp_path_factory.mktemp("cases")
        homes = {
            case.name: with_case(template, folder / str(number), case)
            for number, case in enumerate(CASES)
            if case.expected(site) is not None
        }
        return {name: (home, seen(home)) for name, home in homes.items()}

    return cache(look)


@pytest.mark.parametrize("site", SITES)
def test_each_case_is_judged_right(found: Callable[[str], Found], site: str) -> None:
    wrong = {
        name: told
        for name, (_home, findings) in found(site).items()
        if (told := said(findings)) != by_name[name].expected(site)
    }
    assert wrong == {}
    for _home, findings in found(site).values():
        for finding in findings:
            assert (finding.table, finding.session) == (INDEX, None)
            assert "needle" not in f"{finding.summary} {finding.detail} {finding.refusal}"
            assert (finding.refusal is not None) == (finding.fix.value == "none" and finding.severity > Severity.INFO)


@pytest.mark.parametrize("site", ["0.19.0", "0.22.2"])
def test_a_deep_scan_finds_the_same(found: Callable[[str], Found], site: str) -> None:
    """And not less: these homes are so small that the samples are all of it."""
    for name, (home, findings) in found(site).items():
        assert said(seen(home, deep=True)) == said(findings), name


@pytest.mark.parametrize("site", ["0.19.0", "0.22.2"])
def test_what_is_asked_again_is_judged_alike(found: Callable[[str], Found], site: str) -> None:
    for name, (home, findings) in found(site).items():
        with looked_through(home) as view:
            again = [finding for each in findings for finding in ask(CHECK, [each.key], view)]
        assert said(again) == said(findings), name
        assert {f.key: (f.summary, f.detail) for f in again} == {f.key: (f.summary, f.detail) for f in findings}, name


def test_keys_that_are_of_no_fault_find_nothing(found: Callable[[str], Found]) -> None:
    home, _findings = found("0.22.2")["missing"]
    keys = [
        None,
        1,
        "messages_fts",
        "messages_fts:0-99",
        "messages_fts:1-2048",
        "messages_fts:2048-4095",
        "sessions:0-2047",
        "messages_fts:a-b",
    ]
    with looked_through(home) as view:
        assert list(ask(CHECK, keys, view)) == []


# Deliberately wrong variants: each says of which indexes something is wrong.


def by_counts(home: Home) -> set[str]:
    """As many entries as messages, or it is out of step."""
    with looked_through(home) as view:
        messages = view.rows("SELECT count(*) FROM messages")
        indexes = [name for name in (BASE, TRIGRAM) if name in view.shape.virtual_tables]
        return {name for name in indexes if view.rows(f"SELECT count(*) FROM {name}_docsize") != messages}


def by_its_own_check(home: Home) -> set[str]:
    """FTS5's check with the rows is asked, whatever the layout."""
    copy = shutil.copy(home.store, home.path / "copy.db")
    return failing(apsw.Connection(str(copy)), "INSERT INTO {0}({0}, rank) VALUES ('integrity-check', 1)")


def by_a_search(home: Home) -> set[str]:
    """As hermes's own probe: an index that can be asked is well."""
    connection = apsw.Connection(str(home.store), flags=apsw.SQLITE_OPEN_READONLY)
    return failing(connection, "SELECT rowid FROM {0} WHERE {0} MATCH '\"\"'")


def failing(connection: apsw.Connection, statement: str) -> set[str]:
    """The indexes of which a statement says that they are malformed; the connection is closed."""
    failed = set()
    for name in (BASE, TRIGRAM):
        try:
            connection.execute(statement.format(name)).fetchall()
        except apsw.CorruptError:
            failed.add(name)
        except apsw.SQLError:
            pass
    connection.close()
    return failed


def without_rebuilds(home: Home) -> set[str]:
    """Messages that hermes is still to put in are missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_state, "pending_range", lambda view, name: None)
        return faulty(seen(home))


def faulty(findings: Collection[Finding]) -> set[str]:
    """The indexes of which something above a note is said."""
    return {str(f.detail["index"]) for f in findings if f.severity > Severity.INFO}


def wanted(case: IndexCase, site: str) -> set[str]:
    return {key.split(":")[0] for key, (grade, _fix) in (case.expected(site) or {}).items() if grade != "info"}


@pytest.mark.parametrize("site", ["0.19.0", "0.22.2"])
def test_the_check_itself_is_right_of_every_index(found: Callable[[str], Found], site: str) -> None:
    assert {n: faulty(f) for n, (_h, f) in found(site).items() if faulty(f) != wanted(by_name[n], site)} == {}


@pytest.mark.parametrize(
    ("variant", "site", "names"),
    [
        (by_counts, "0.22.2", {"healthy", "half rebuilt"}),
        (by_counts, "0.19.0", {"one missing and one too many", "another text", "torn"}),
        (by_its_own_check, "0.19.0", {"missing", "another text", "cut too much"}),
        (by_its_own_check, "0.22.2", {"half rebuilt", "detached"}),
        (by_a_search, "0.22.2", {"missing", "torn", "finds nothing and says nothing", "a chat became a cron run"}),
        (without_rebuilds, "0.22.2", {"half rebuilt"}),
    ],
)
def test_a_wrong_variant_is_found_out(
    found: Callable[[str], Found], variant: Callable[[Home], set[str]], site: str, names: set[str]
) -> None:
    for name in names:
        home, _findings = found(site)[name]
        assert variant(home) != wanted(by_name[name], site), name


# What is healthy and looks as if it were not.


@pytest.mark.parametrize("life", [("0.19.0",), ("0.22.2",)], ids="+".join)
def test_a_home_lived_in_is_in_step_in_depth(lived_in: LivedIn, life: tuple[str, ...]) -> None:
    assert scanned(lived_in(*life).home, deep=True) == []


def test_a_rebuild_that_hermes_broke_off_and_goes_on_with(home: Home) -> None:
    """From texts of its own to those of the messages; killed after the first 500 messages."""
    roles = ("user", "assistant", "tool")
    rows = [["run" if n % 7 == 0 else "s1", roles[n % 3], f"needle number {n}", 1.7e9 + n] for n in range(560)]
    home.run(
        "0.19.0",
        [
            call("create_session", "s1", "cli"),
            call("create_session", "run", "cron"),
            sql_many("INSERT INTO messages(session_id, role, content, timestamp) VALUES (?, ?, ?, ?)", rows),
        ],
    )
    assert findings_of(home.store, CHECK, home=home.path) == []
    home.run(
        "0.22.2",
        [
            call("_demote_legacy_fts_to_trash"),
            call("fts_rebuild_step"),
            call("append_message", "s1", "user", "a needle meanwhile"),
            sql("UPDATE messages SET content = 'changed' WHERE id IN (3, 555)"),
            sql("DELETE FROM messages WHERE id IN (5, 550)"),
            kill(),
        ],
    )
    findings = scanned(home, deep=True)
    assert said(findings) == REBUILDING
    assert [(f.detail["progress"], f.detail["high_water"]) for f in findings] == [(500, 560)] * 2
    home.run("0.22.2", [call("optimize_fts_storage", vacuum=False)])
    assert scanned(home, deep=True) == []


def test_an_index_that_hermes_has_just_optimised(shared_folder: Path, oracle: None, tmp_path: Path) -> None:
    home = with_case(site_home(shared_folder, "0.20.0"), tmp_path / "home", CASES[0])
    home.run("0.20.0", [call("optimize_fts"), call("vacuum")])
    assert scanned(home, deep=True) == []


@pytest.mark.parametrize("version", ["0.15.2", "0.16.0"])
def test_which_hermes_makes_missing_triggers_anew(home: Home, version: str) -> None:
    home.run(version, [call("create_session", "s1", "cli"), call("append_message", "s1", "user", "a needle")])
    both_ways = IndexCase("", both(no_triggers, run("UPDATE messages SET content = 'another needle'")))
    home = with_case(home, home.path.with_name("copy"), both_ways)
    (first, _second) = scanned(home)
    home.run(version, [open_store()])
    if version == "0.15.2":
        assert "upgrade it" in str(first.refusal)
        assert scanned(home) != []
    else:
        assert "when it is started" in str(first.refusal)
        assert scanned(home) == []


def test_an_index_that_is_gone_keeps_messages_out(shared_folder: Path, oracle: None, tmp_path: Path) -> None:
    home = with_case(site_home(shared_folder, "0.22.2"), tmp_path / "home", by_name["no index"])
    connection = apsw.Connection(str(home.store))
    with pytest.raises(apsw.SQLError, match="no such table"):
        connection.execute("INSERT INTO messages(session_id, role, timestamp) VALUES ('s1', 'user', 1.0)")
    connection.close()
    home.run("0.22.2", [open_store()])
    # It is made anew, and left empty.
    assert said(scanned(home)) == {BASE + ":0-2047": ("warning", "unsafe")}


@pytest.mark.parametrize(
    ("joined", "expected"), [("s.id", {TRIGRAM: INFO}), ("s.named", {})], ids=["by what is not there", "otherwise"]
)
def test_sessions_without_ids_are_asked_for_none(
    shared_folder: Path, oracle: None, tmp_path: Path, joined: str, expected: Said
) -> None:
    def without_ids(connection: apsw.Connection) -> None:
        view = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'messages_fts_trigram_src'").get
        connection.execute(
            f"""CREATE TEMP TABLE kept AS SELECT * FROM sessions;
                DROP VIEW messages_fts_trigram_src;
                DROP TABLE sessions;
                CREATE TABLE sessions AS SELECT id AS named, source, model_config FROM temp.kept;
                {str(view).replace("s.id", joined)}"""
        )

    home = with_case(site_home(shared_folder, "0.22.2"), tmp_path / "home", IndexCase("", without_ids))
    assert said(scanned(home)) == expected
    with looked_through(home) as view:
        assert check_rows(view.reader.connection, view.shape, [1, 9]) == []


def test_a_file_that_is_damaged_under_an_index_is_said_and_stays_damaged(
    shared_folder: Path, oracle: None, tmp_path: Path
) -> None:
    home = Home(shutil.copytree(site_home(shared_folder, "0.22.2").path, tmp_path / "home"))
    connection = apsw.Connection(str(home.store))
    (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'messages_fts_idx'").fetchall()[0]
    size = int(str(connection.pragma("page_size")))
    connection.close()
    with home.store.open("r+b") as file:
        file.seek((int(str(root)) - 1) * size)
        file.write(bytes(size))
    scan = scan_store(StoreRef(home.store, home.path, "default"), [CHECK], ScanOptions())
    with scan.findings as findings:
        (finding,) = findings
        assert (finding.key, finding.severity, finding.fix.value) == (BASE, Severity.ERROR, "none")
        assert "sessions repair" in str(finding.refusal)
    assert scan.exit_code(None) is ExitCode.DAMAGED


def test_a_text_that_no_sample_comes_to_is_found_in_depth(shared_folder: Path, oracle: None, tmp_path: Path) -> None:
    many = (
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 700)"
        " INSERT INTO messages(session_id, role, content, timestamp) SELECT 's1', 'user', 'straw no ' || n, n FROM n"
    )
    stale = IndexCase("", both(run(many), untold("UPDATE messages SET content = 'no such word' WHERE id = 1")))
    home = with_case(site_home(shared_folder, "0.20.0"), tmp_path / "home", stale)
    assert scanned(home) == []
    deep = scanned(home, deep=True)
    assert said(deep) == {BASE: ("warning", "unsafe"), TRIGRAM: ("warning", "unsafe")}
    assert [f.detail["stale"] for f in deep] == [1, 1]


def test_a_few_of_many_messages_are_found_by_the_sums(home: Home) -> None:
    """Far from the newest and from every window that is compared."""
    rows = [["s1", "user", f"needle {n}", 1.7e9 + n] for n in range(6000)]
    steps = [
        call("create_session", "s1", "cli"),
        sql_many("INSERT INTO messages(session_id, role, content, timestamp) VALUES (?, ?, ?, ?)", rows),
    ]
    home.run("0.20.0", steps)
    assert scanned(home) == []
    connection = apsw.Connection(str(home.store))
    taken_out(BASE, 2900)(connection)
    # Their number is right.
    connection.execute("INSERT INTO messages_fts(rowid, content) VALUES (6500, 'one too many')")
    connection.close()
    assert said(scanned(home)) == {BASE: ("warning", "unsafe")}
    assert said(scanned(home, deep=True)) == {BASE: ("warning", "unsafe")}
