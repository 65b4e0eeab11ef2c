"""bloat: free pages beyond a quarter, and indexes that are heavier than need be, told from their own records."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from checks import bloat as check_module
from checks.bloat import CHECK
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.model import FILES, Finding, Safety, Severity
from hermes_doctor.engine.rows import find_again
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store.compaction import SPARE
from hermes_doctor.store.index_weight import TRIGRAM, weigh_indexes
from hermes_doctor.store.prompts import MEBIBYTE
from hermes_doctor.store.view import StoreView
from tests.checks.support import findings_of
from tests.oracle.home import Home
from tests.oracle.steps import call, sql
from tests.store.views import view_of
from tests.whole.thinned import copied

Make = Callable[[str], Home]

#: Texts of several kinds, as messages hold them: what a character takes, and how often pieces come again, differs.
TEXTS = (
    " ".join(f"word{n} hello terminal of the store" for n in range(100)),
    "".join(chr(0x4E00 + n * 7919 % 0x1000) + ("\u3002 " if n % 12 == 0 else "") for n in range(900)),
    "".join(f"{n * 2654435761 % 2**32:08x}" for n in range(400)),
)
#: (bytes kept, bytes deleted again), and whether it is told of.
FREE_PAGES = {
    "none": (2 * MEBIBYTE, 0, False),
    "most of it": (MEBIBYTE // 2, 2 * MEBIBYTE, True),
    "a quarter and some": (3 * MEBIBYTE, 5 * MEBIBYTE // 4, True),
    "a fifth": (5 * MEBIBYTE, 5 * MEBIBYTE // 4, False),
    "less than a mebibyte": (MEBIBYTE // 2, MEBIBYTE * 9 // 10, False),
}


@pytest.fixture
def make(oracle: None, shared_folder: Path, tmp_path: Path) -> Make:
    return lambda version: copied(shared_folder, tmp_path / version, version)


def slack_store(folder: Path, kept: int, freed: int) -> Path:
    """A store that keeps so many bytes more than its rows need, and has let go of so many."""
    store = make_demo_home(folder)
    with closing(apsw.Connection(str(store))) as connection:
        for table, size in (("kept", kept), ("freed", freed)):
            connection.execute(f"CREATE TABLE {table}(it); INSERT INTO {table} VALUES (zeroblob({size}))")
        connection.execute("DROP TABLE freed")
    return store


def told_of(store: Path) -> list[Finding]:
    """What the check says; never more than for information, and never with a fix."""
    found = findings_of(store, CHECK, home=store.parent)
    assert all((each.severity, each.fix) == (Severity.INFO, Safety.NONE) for each in found)
    return found


@pytest.mark.parametrize("case", FREE_PAGES)
def test_free_pages(tmp_path: Path, case: str) -> None:
    kept, freed, told = FREE_PAGES[case]
    assert [each.table for each in told_of(slack_store(tmp_path / "home", kept, freed))] == [FILES] * told


@pytest.mark.parametrize("wrong", [("MOST_FREE", 0.0), ("MOST_FREE", 0.5), ("WORTH_TELLING", 0)])
def test_other_limits_would_be_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, Any]) -> None:
    monkeypatch.setattr(check_module, *wrong)
    assert any(
        bool(told_of(slack_store(tmp_path / case.replace(" ", "-"), kept, freed))) != told
        for case, (kept, freed, told) in FREE_PAGES.items()
    )


def test_exactly_a_quarter_is_not_more_than_a_quarter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = slack_store(tmp_path / "home", MEBIBYTE // 2, 2 * MEBIBYTE)
    with closing(apsw.Connection(str(store))) as connection:
        share = int(connection.pragma("freelist_count")) / int(connection.pragma("page_count"))
    monkeypatch.setattr(check_module, "MOST_FREE", share)
    assert told_of(store) == []
    monkeypatch.setattr(check_module, "MOST_FREE", share - 1e-6)
    assert len(told_of(store)) == 1


def test_what_is_said_of_free_pages_is_what_a_vacuum_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQLITE_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    store = slack_store(tmp_path / "home", MEBIBYTE // 2, 2 * MEBIBYTE)
    (finding,) = told_of(store)
    size = store.stat().st_size
    assert (finding.key, finding.session, finding.detail["room_needed"]) == ("state.db", None, 2 * size + SPARE)
    assert f"doctor compact {store} gives back 2.0 MiB or more, and needs" in finding.summary
    assert finding.summary.startswith("78% of its pages are free: ")
    scan = scan_store(StoreRef(store, store.parent, "default"), [CHECK], ScanOptions(), None, _again(finding))
    scan.findings.close()
    with closing(apsw.Connection(str(store))) as connection:
        connection.execute("VACUUM")
    freed = finding.detail["free_bytes"]
    assert isinstance(freed, int)
    assert store.stat().st_size <= size - freed
    assert told_of(store) == []


def _again(finding: Finding) -> Callable[..., None]:
    """Asks about it a second time, as a scan does of a store that moved."""

    def look(_scan: object, view: StoreView) -> None:
        assert list(find_again(CHECK, [finding], view)) == [finding]

    return look


@pytest.mark.parametrize("version", ["0.19.0", "0.22.2"])
def test_the_estimate_is_near_what_it_estimates(make: Make, version: str) -> None:
    home = make(version)
    texts = (f"{n} {text}" for n in range(10) for text in TEXTS)
    home.run(version, [call("append_message", "chat-24", "user", text) for text in texts])
    with view_of(home.store) as view:
        weight = weigh_indexes(view)
        assert weight is not None
        assert weight.by_index.keys() == {"messages_fts", TRIGRAM}
        kinds = ("_data", "_content") if version == "0.19.0" else ("_data",)
        for name, told in weight.by_index.items():
            names = ", ".join(f"'{name}{kind}'" for kind in kinds)
            ((real,),) = view.rows(f"SELECT sum(pgsize) FROM dbstat WHERE name IN ({names})")
            assert isinstance(real, int)
            assert abs(told - real) <= 0.15 * real + 3 * 4096, name
        source = f"{TRIGRAM}_content" if version == "0.19.0" else f"{TRIGRAM}_src"
        column = "c0" if version == "0.19.0" else "content"
        # What this release's SQLite took in of texts with a NUL is nothing.
        ((served,),) = view.rows(
            f"SELECT sum(octet_length({column})) FROM {source} WHERE instr(CAST({column} AS BLOB), x'00') = 0"
        )
        assert isinstance(served, int)
        assert abs(weight.text - served) <= 0.1 * served
        assert (weight.copies > 0) == (version == "0.19.0")


def heavy(home: Home) -> list[Finding]:
    return [each for each in told_of(home.store) if each.table == "messages"]


def test_an_inline_index_is_told_of_with_the_command_that_the_release_has(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make("0.19.0")
    assert told_of(home.store) == []
    monkeypatch.setattr(check_module, "WORTH_TELLING", 100_000)
    (finding,) = heavy(home)
    assert finding.detail["indexes"] == ["messages_fts", TRIGRAM]
    assert "times the text that it serves" in finding.summary
    assert finding.summary.endswith("sessions optimize-storage (hermes 0.20 or newer)")
    home.run("0.22.2", [call("get_session", "chat-24")])
    (finding,) = heavy(home)
    assert finding.summary.endswith("sessions optimize-storage")


def test_an_external_index_is_told_of_when_it_waits_to_be_merged(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "WORTH_TELLING", 10_000)
    choice = random.Random(2)
    texts = [base64.b64encode(choice.randbytes(1200)).decode() for _ in range(30)]
    home.run("0.22.2", [call("create_session", "s", "cli"), *(call("append_message", "s", "user", t) for t in texts)])
    assert heavy(home) == []
    # Every row is taken out and put in again: what is dead stays until it is merged with what killed it.
    anew = "UPDATE messages SET content = content || 'x' WHERE id = ?"
    home.run("0.22.2", [sql(anew, n) for _ in range(3) for n in range(1, 31)])
    (finding,) = heavy(home)
    assert finding.detail["indexes"] == [TRIGRAM]
    assert finding.summary.startswith(f"{TRIGRAM} weighs about ")
    assert finding.summary.endswith("sessions optimize")
    home.ask("0.22.2", call("optimize_fts"))
    assert heavy(home) == []


@pytest.mark.parametrize("broken", ["x''", "NULL", "'text'", "x'00000001ffffff'", "zeroblob(40)", "x'0000000001ff'"])
@pytest.mark.parametrize("record", [1, 10])
def test_records_that_cannot_be_understood_say_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, broken: str, record: int
) -> None:
    monkeypatch.setattr(check_module, "WORTH_TELLING", 100_000)
    home = make("0.19.0")
    with closing(apsw.Connection(str(home.store))) as connection:
        connection.execute(f"UPDATE messages_fts_trigram_data SET block = {broken} WHERE id = {record}")
    assert heavy(home) == []


def test_an_index_that_lost_its_records_says_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "WORTH_TELLING", 0)
    home = make("0.19.0")
    with closing(apsw.Connection(str(home.store))) as connection:
        connection.execute("DROP TABLE messages_fts_trigram_data")
    assert heavy(home) == []
