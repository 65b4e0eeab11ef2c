"""Damage to the file is found, and told apart: rows, indexes, the search index, free pages, the schema."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from checks import CHECKS
from checks.file_damage import CHECK, NAME
from hermes_doctor.catalogue import catalogue
from hermes_doctor.cli.run import run
from hermes_doctor.engine.model import FILES, Severity
from hermes_doctor.engine.rows import ask
from hermes_doctor.host.bundle import Condition, inspect
from hermes_doctor.store import damage, damage_report, file_damage, integrity, page_sample, trees
from hermes_doctor.store.reader import Pace
from tests.checks.damaged_files import VERSIONS, diagnosed, faults_in, large_enough, wrong_diagnoses
from tests.oracle.templates import LivedIn
from tests.store.views import view_of
from tests.whole.breaking import DAMAGES, leave_no_free_pages, zero
from tests.whole.breaking import Part as Place
from tests.whole.support import fingerprint

pytestmark = pytest.mark.usefixtures("oracle")

SEED = 1


@pytest.fixture(params=VERSIONS)
def store(request: pytest.FixtureRequest, shared_folder: Path, tmp_path: Path) -> Path:
    """A sound store of each release in turn."""
    return large_enough(shared_folder, tmp_path / "home", request.param)


@pytest.fixture
def a_store(shared_folder: Path, tmp_path: Path) -> Path:
    """A sound store of one release, where one is enough."""
    return large_enough(shared_folder, tmp_path / "home", "0.22.2")


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """All stores are too large to be looked at as a whole, and their tables too; and there is time for many rows."""
    monkeypatch.setattr(file_damage, "_SMALL_PAGES", 0)
    monkeypatch.setattr(page_sample, "_TABLE_SECONDS", 0.0)
    monkeypatch.setattr(page_sample, "_TABLES_SECONDS", 60.0)
    monkeypatch.setattr(page_sample, "_ROWS_SECONDS", 60.0)
    monkeypatch.setattr(page_sample, "_ROWS", 3000)


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found_and_told_apart(store: Path, name: str) -> None:
    if name.startswith("shorten"):
        # Else it may be only free pages that are cut off.
        leave_no_free_pages(store)
    hit = DAMAGES[name](store, SEED)
    before = fingerprint(store.parent)
    found = diagnosed(store)
    assert faults_in(found, name, hit) == [], (hit, found)
    assert (fingerprint(store.parent), found.trace) == (before, [])
    for finding in found.findings:
        assert (finding.check, finding.table, finding.key, finding.session) == (NAME, FILES, "state.db", None)
        assert finding.severity is Severity.ERROR
        assert f"doctor rescue {store} {store}.rescued --inspect-only" in finding.summary
        assert str(finding.detail["next"]) in finding.summary
        lost_rows = finding.detail["damage"] == "rows"
        assert ("look for a sound backup first; else stop hermes, and: doctor rescue" in finding.summary) == lost_rows


@pytest.mark.parametrize("deep", [False, True], ids=["default", "deep"])
@pytest.mark.parametrize(
    "life", [("0.13.0",), ("0.19.0",), ("0.20.6",), ("0.22.2",), ("0.19.0", "0.22.2", "0.19.0")], ids="→".join
)
def test_a_sound_store_is_silent(
    lived_in: LivedIn, life: tuple[str, ...], deep: bool, request: pytest.FixtureRequest
) -> None:
    home = lived_in(*life).home
    before = fingerprint(home.path)
    assert diagnosed(home.store, deep=deep).findings == []
    if not deep:
        request.getfixturevalue("sampled")
        assert diagnosed(home.store).findings == []
    assert fingerprint(home.path) == before


def test_a_search_index_that_another_sqlite_calls_malformed_is_no_damage(lived_in: LivedIn) -> None:
    """SQLite's own check is wrong there, and the check does not ask it; nor does a broken constraint count."""
    store = lived_in("0.19.0").home.store
    connection = apsw.Connection(str(store))
    connection.execute("PRAGMA ignore_check_constraints = 1")
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    connection.execute("PRAGMA writable_schema = 1")
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'title TEXT,', 'title TEXT NOT NULL,') WHERE name = 'sessions'"
    )
    connection.close()
    connection = apsw.Connection(str(store))
    said = " ".join(str(text) for (text,) in connection.execute("PRAGMA integrity_check"))
    connection.close()
    assert "malformed inverted index for FTS5 table main.messages_fts_trigram" in said
    assert "NULL value in sessions.title" in said
    assert diagnosed(store).findings == []
    assert diagnosed(store, deep=True).findings == []


def test_rows_that_name_nothing_are_no_damage(a_store: Path) -> None:
    connection = apsw.Connection(str(a_store))
    connection.execute("DELETE FROM sessions WHERE id = 'session-1'")
    assert connection.execute("PRAGMA foreign_key_check").fetchall() != []
    connection.close()
    assert diagnosed(a_store, deep=True).findings == []


@pytest.mark.usefixtures("sampled")
def test_where_another_reading_met_the_damage_the_whole_file_is_looked_at(store: Path) -> None:
    """The count of messages does."""
    hit = DAMAGES["zero-table-leaf"](store, SEED)
    found = diagnosed(store)
    assert faults_in(found, "zero-table-leaf", hit) == []
    assert [finding.detail["whole_file"] for finding in found.findings] == [True]
    # The store is called what the check says of it, and the next step is the finding's.
    assert (found.condition, found.reason) == (Condition.DAMAGED, found.findings[0].summary)
    assert found.next_step == found.findings[0].detail["next"]


@pytest.mark.parametrize("name", ["swap-index-leaf", "zero-search", "zero-free"])
@pytest.mark.usefixtures("sampled")
def test_a_sample_says_that_it_is_one(store: Path, name: str) -> None:
    hit = DAMAGES[name](store, SEED)
    found = diagnosed(store)
    assert faults_in(found, name, hit) == []
    [finding] = found.findings
    looked_at, pages = finding.detail["pages_looked_at"], finding.detail["pages"]
    assert isinstance(looked_at, int)
    assert isinstance(pages, int)
    assert 0 < looked_at <= pages == store.stat().st_size // 4096
    assert finding.detail["whole_file"] is False
    assert "doctor scan --deep" in finding.summary
    [whole] = diagnosed(store, deep=True).findings
    assert whole.detail["whole_file"] is True
    assert "--deep" not in whole.summary


def test_a_sample_is_bounded(a_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_damage, "_SMALL_PAGES", 0)
    monkeypatch.setattr(page_sample, "_TABLES_SECONDS", 0.0)
    monkeypatch.setattr(page_sample, "_ROWS", 10)
    monkeypatch.setattr(damage_report, "_LARGE", 0)
    [told] = diagnosed(a_store).findings
    looked_at = told.detail["pages_looked_at"]
    assert isinstance(looked_at, int)
    # A row costs a page or two for each level of its tree; the ends of the tables are read once.
    assert 10 <= looked_at < 150


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("deep", [False, True])
def test_a_column_whose_name_is_no_text_is_no_damage(a_store: Path, deep: bool) -> None:
    with closing(apsw.Connection(str(a_store))) as store:
        store.execute("CREATE TABLE odd (caf_ INTEGER)")
        # So many that the table is not looked at as a whole.
        with store:
            store.executemany("INSERT INTO odd VALUES (?)", ((number,) for number in range(5000)))
        store.pragma("writable_schema", True)
        statement = "CREATE TABLE odd (caf\xe9 INTEGER)".encode("latin-1")
        store.execute("UPDATE sqlite_schema SET sql = CAST(? AS TEXT) WHERE name = 'odd'", (statement,))
    assert diagnosed(a_store, deep=deep).findings == []


@pytest.mark.usefixtures("sampled")
def test_of_a_large_store_it_is_told_how_long_all_of_it_takes(a_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnosed(a_store).findings == []
    monkeypatch.setattr(damage_report, "_LARGE", a_store.stat().st_size)
    monkeypatch.setattr(page_sample, "_TABLE_SECONDS", 1e-6)
    found = diagnosed(a_store)
    [told] = found.findings
    assert told.severity is Severity.INFO
    assert found.exit_code == 0
    assert "doctor scan --deep looks at all" in told.summary
    seconds = told.detail["deep_seconds"]
    assert seconds is None or seconds == 0
    assert diagnosed(a_store, deep=True).findings == []


def test_the_time_for_all_of_it_is_reckoned_from_what_was_read() -> None:
    assert [damage_report._span(seconds) for seconds in (0.01, 41, 200, 8000)] == [
        "about 1 s",
        "about 41 s",
        "about 3 minutes",
        "about 2 hours",
    ]


@contextmanager
def held(store: Path) -> Iterator[None]:
    """Somebody has the store open for writing, and does nothing."""
    code = f"file = open({str(store)!r}, 'r+b'); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield
        process.communicate(b"\n")


def test_beside_a_living_hermes_no_question_takes_long(a_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(a_store):
        assert diagnosed(a_store, deep=True).findings == []
        monkeypatch.setitem(file_damage._BESIDE_OTHERS, Pace.SLICED, 0.0)
        [told] = diagnosed(a_store, deep=True).findings
        assert told.severity is Severity.INFO
        assert "messages" in (told.detail["unverified"] or ())  # type: ignore[operator]  # a list of names
        assert told.detail["whole_file"] is False
        # What can be read row by row is read: a page that is lost is found all the same.
        hit = zero(a_store, SEED, Place.TABLE_LEAF)
        found = diagnosed(a_store, deep=True)
        assert (found.kinds, found.names("rows")) == ({"rows"}, set(hit.names))
        assert "without making hermes wait" in found.findings[0].summary
    # Nobody has it open any more, so nobody waits.
    assert diagnosed(a_store, deep=True).findings[0].detail["whole_file"] is True


_WRITER = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("UPDATE sessions SET started_at = started_at + 1 WHERE id = 'session-1'")
print(connection.pragma("journal_mode"), flush=True)
input()
"""


def test_beside_a_living_hermes_that_has_a_log(shared_folder: Path, tmp_path: Path) -> None:
    store = large_enough(shared_folder, tmp_path / "home", "0.19.0")
    command = [sys.executable, "-c", _WRITER, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"wal\n"
        before = fingerprint(store.parent)
        assert diagnosed(store).findings == []
        assert diagnosed(store, deep=True).findings == []
        assert fingerprint(store.parent) == before
        writer.communicate(b"\n")


def test_whoever_comes_meanwhile_does_not_wait(a_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_damage, "_ALONE_SECONDS", 0.0)
    monkeypatch.setattr(integrity, "_STEPS", 1)
    bundle = inspect(a_store)
    connection = apsw.Connection(f"{a_store.as_uri()}?mode=ro", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        with held(a_store):
            assert not integrity.ask(connection, 10, stop=file_damage._until_somebody_comes(bundle)).finished
        monkeypatch.setattr(integrity, "_STEPS", 10_000)
        assert integrity.ask(connection, 10, stop=file_damage._until_somebody_comes(bundle)).finished
    finally:
        connection.close()


def test_asked_again_it_finds_the_same(a_store: Path) -> None:
    """As a scan does when somebody wrote meanwhile."""
    DAMAGES["zero-index-leaf"](a_store, SEED)
    found = diagnosed(a_store).findings
    with view_of(a_store) as view:
        again = list(ask(CHECK, ["state.db"], view))
        assert [finding.detail["indexes"] for finding in again] == [finding.detail["indexes"] for finding in found]
        assert list(ask(CHECK, ["state.db-wal"], view)) == []


def test_a_scan_ends_with_4_where_rows_are_lost(
    a_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("hermes_doctor.catalogue.CHECKS", (CHECK, *(check for check in CHECKS if check.name != NAME)))
    catalogue.cache_clear()
    try:
        hit = DAMAGES["zero-table-leaf"](a_store, SEED)
        assert run(["scan", "--json", str(a_store)]) == 4
        (database,) = json.loads(capsys.readouterr().out)["databases"]
        assert database["condition"] == "damaged"
        [finding] = [finding for finding in database["findings"] if finding["check"] == NAME]
        assert finding["detail"]["tables"] == list(hit.names)
        DAMAGES["lose-first-page"](a_store, SEED)
        assert run(["scan", str(a_store)]) == 4
        assert "its first page is lost" in " ".join(capsys.readouterr().out.split())
    finally:
        catalogue.cache_clear()


def test_copies_beside_are_told_apart(a_store: Path) -> None:
    backups = a_store.parent / "doctor" / "backups"
    backups.mkdir(parents=True)
    shutil.copyfile(a_store, backups / "state-20260101-000000.db")
    DAMAGES["zero-table-leaf"](a_store, SEED)
    shutil.copyfile(a_store, a_store.with_name("state.db.malformed-backup-20260901_120000"))
    # Of which its log is a part: what it holds cannot be told from the file alone.
    with_log = a_store.with_name("state.db.malformed-backup-20260901_130000")
    shutil.copyfile(a_store, with_log)
    with_log.with_name(with_log.name + "-wal").write_bytes(b"a log")
    before = fingerprint(a_store.parent)
    for name in ("zero-table-leaf", "lose-first-page"):
        DAMAGES[name](a_store, SEED)
        [finding] = diagnosed(a_store).findings
        assert finding.detail["damaged_copies"] == ["state.db.malformed-backup-20260901_120000"]
        assert finding.detail["sound_copies"] == ["doctor/backups/state-20260101-000000.db"]
        assert "doctor/backups/state-20260101-000000.db beside it looks sound" in finding.summary
    after = fingerprint(a_store.parent)
    assert {name for name in after if after[name] != before.get(name)} == {"state.db"}


def test_a_second_name_of_the_store_is_no_copy_of_it(a_store: Path) -> None:
    DAMAGES["zero-table-leaf"](a_store, SEED)
    a_store.with_name("state.db.malformed-backup-20260901_120000").hardlink_to(a_store)
    [finding] = diagnosed(a_store).findings
    assert finding.detail["damage"] == "rows"
    assert "damaged_copies" not in finding.detail


def test_what_lies_in_the_log_of_a_wreck_is_seen(store: Path) -> None:
    """Two programs that made the same table at once: SQLite refuses the store, and half of it is in the log."""
    connection = apsw.Connection(str(store))
    connection.execute("PRAGMA journal_mode = wal").fetchall()
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.execute("PRAGMA writable_schema = 1")
    connection.execute("INSERT INTO sqlite_schema SELECT * FROM sqlite_schema WHERE name = 'messages_fts'")
    connection.close()
    before = fingerprint(store.parent)
    found = diagnosed(store)
    assert found.condition is Condition.DAMAGED
    assert (found.kinds, found.names("schema")) == ({"schema"}, {"messages_fts"})
    assert "sessions repair" not in found.findings[0].summary, "no home has this store as its own"
    assert fingerprint(store.parent) == before


def test_each_release_is_told_what_it_has(shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, str] = {}
    for version in VERSIONS:
        home = tmp_path / version
        store = large_enough(shared_folder, home, version)
        monkeypatch.setenv("HERMES_HOME", str(home))
        for name in ("zero-table-leaf", "zero-index-leaf", "zero-search"):
            shutil.copyfile(store, store.with_suffix(".kept"))
            DAMAGES[name](store, SEED)
            [finding] = diagnosed(store, home=home).findings
            told[f"{version} {name}"] = str(finding.detail["next"]).replace(str(store), "STORE")
            store.with_suffix(".kept").replace(store)
    rescue, repair = "doctor rescue STORE STORE.rescued --inspect-only", "hermes sessions repair"
    recover = "hermes sessions recover --source STORE --inspect-only (hermes 0.20 or newer)"
    assert told == {
        "0.19.0 zero-table-leaf": rescue,
        "0.19.0 zero-index-leaf": f"{rescue}; or upgrade hermes to 0.20 or newer and type {repair}",
        "0.19.0 zero-search": f"{repair} (hermes 0.17 or newer); and if it cannot: {rescue}",
        "0.22.2 zero-table-leaf": f"{rescue}, or {recover}",
        "0.22.2 zero-index-leaf": f"{repair} (hermes 0.20 or newer); and if it cannot: {rescue}",
        "0.22.2 zero-search": f"{repair} (hermes 0.17 or newer); and if it cannot: {rescue}",
    }


NAMES = damage._names

#: Damages that a wrong check would take for another, or for none.
TELLING = ("zero-index-leaf", "zero-search", "swap-table-interior", "swap-index-interior", "swap-index-leaf")


@pytest.mark.parametrize(
    ("place", "attribute", "wrong"),
    [
        (damage, "_is_about_rows", lambda _trees, _miscounted: False),
        (damage, "_names", lambda problems, *_kinds: NAMES(problems, integrity.Kind.COUNT)),
        (trees, "_SEARCH_NAMES", ("nothing",)),
        (integrity, "_LINES", tuple(each for each in integrity._LINES if each[0] is not integrity.Kind.INDEX)),
    ],
    ids=[
        "an index is always to blame",
        "only counts are looked at",
        "search is rows",
        "rows are not looked up",
    ],
)
def test_wrong_variants_are_found_out(
    shared_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: object,
    attribute: str,
    wrong: object,
) -> None:
    monkeypatch.setattr(place, attribute, wrong)
    if attribute == "_SEARCH_NAMES":
        monkeypatch.setattr(trees, "_SHADOWS", ())
    assert wrong_diagnoses(shared_folder, tmp_path, "0.22.2", TELLING, CHECK) != []


def test_the_right_one_is_not(shared_folder: Path, tmp_path: Path) -> None:
    assert wrong_diagnoses(shared_folder, tmp_path, "0.22.2", TELLING, CHECK) == []
