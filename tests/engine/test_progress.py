"""How far the work is, as the engine tells it: each step in its turn, and shares that say what they mean."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import groupby
from pathlib import Path

import apsw
import pytest

from checks import CHECKS
from fixes import FIXES
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.apply import apply_store
from hermes_doctor.engine.compact import compact_store
from hermes_doctor.engine.journal import Journal
from hermes_doctor.engine.plan import Chosen, StoreFix
from hermes_doctor.engine.scan import Progress, ScanOptions, scan_store
from hermes_doctor.engine.stopping import Stop, Stopped
from hermes_doctor.engine.undo import StoreUndo, undo_store
from hermes_doctor.host.homes import StoreRef, resolve_targets
from tests.oracle.home import Home
from tests.oracle.steps import call


class Heard:
    """What was told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float | None]] = []
        self.paths: set[Path] = set()

    def __call__(self, path: Path, step: str, share: float | None) -> None:
        self.paths.add(path)
        self.told.append((step, share))

    def steps(self) -> list[str]:
        return [step for step, _ in groupby(step for step, _share in self.told)]

    def shares(self, step: str) -> list[float]:
        return [share for each, share in self.told if each == step and share is not None]


@pytest.fixture
def ref(tmp_path: Path) -> StoreRef:
    [found] = resolve_targets([make_demo_home(tmp_path / "home")])
    return found


def mended(ref: StoreRef, progress: Progress | None) -> StoreFix:
    chosen = Chosen(CHECKS, {fix.check: fix for fix in FIXES}, unsafe=False)
    done = apply_store(ref, chosen, ScanOptions(), backup="always", stop=Stop(), progress=progress)
    done.close()
    assert done.outcome == "fixed"
    return done


def test_a_scan_tells_of_each_table_and_each_check(ref: StoreRef) -> None:
    heard = Heard()
    scan_store(ref, CHECKS, ScanOptions(), heard).findings.close()
    steps = heard.steps()
    assert steps[:2] == ["opening", "reading messages"]
    assert "reading sessions" in steps
    # What a check makes of all rows of a table follows the reading, and is no part of it.
    concluding = steps[2 : steps.index("reading sessions")]
    assert "checking broken-turns" in concluding
    assert all(step.startswith("checking ") for step in concluding)
    assert steps.count("reading messages") == 1
    checking = [step for step in steps if step.startswith("checking ") and step.endswith(")")]
    assert checking[0].endswith(f" (1 of {len(checking)})")
    assert checking[-1].endswith(f" ({len(checking)} of {len(checking)})")
    assert steps[-1] == "finishing"
    assert heard.paths == {ref.path}
    assert (heard.shares("reading messages")[0], max(heard.shares("reading messages"))) == (0.0, 1.0)


def test_the_share_goes_by_where_the_ids_begin(ref: StoreRef) -> None:
    """Pruning leaves stores whose first message has a high id."""
    with closing(apsw.Connection(str(ref.path))) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f'DROP TRIGGER "{name}"')
        connection.execute(
            "INSERT INTO messages(id, session_id, role, content, timestamp)"
            " WITH RECURSIVE n(i) AS (SELECT 1000000 UNION ALL SELECT i + 1 FROM n WHERE i < 1020000)"
            " SELECT i, (SELECT id FROM sessions LIMIT 1), 'user', 'word ' || i, 1700000000 FROM n"
        )
        connection.execute("DELETE FROM messages WHERE id < 1000000")
    heard = Heard()
    [check] = [check for check in CHECKS if check.name == "double-encoded"]
    scan_store(ref, [check], ScanOptions(threads=1), heard).findings.close()
    shares = heard.shares("reading messages")
    assert shares == sorted(shares)
    between = [share for share in shares if 0.1 < share < 0.9]
    assert len(between) >= 5


def test_a_deep_check_of_the_file_tells_how_far_it_is(ref: StoreRef) -> None:
    with closing(apsw.Connection(str(ref.path))) as connection:
        connection.execute(
            "CREATE TABLE more(x, y); CREATE INDEX by_y ON more(y);"
            " INSERT INTO more WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)"
            " SELECT hex(randomblob(200)), random() FROM n"
        )
    heard = Heard()
    [check] = [check for check in CHECKS if check.name == "file-damage"]
    scan_store(ref, [check], ScanOptions(deep=True), heard).findings.close()
    shares = heard.shares("checking file-damage (1 of 1)")
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.1
    # The second time most of so small a file is in memory still.
    assert 0.4 < shares[-1] <= 1
    assert len([share for share in shares if 0.1 < share < 0.4]) > 3


def test_a_deep_check_of_the_search_index_tells_how_far_it_is(home: Home) -> None:
    home.run("0.22.2", [call("create_session", "s1", "cli")])
    ref = StoreRef(home.store, home.path, "default")
    with closing(apsw.Connection(str(ref.path))) as connection:
        connection.execute(
            "INSERT INTO messages(session_id, role, content, timestamp)"
            " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
            " SELECT (SELECT id FROM sessions LIMIT 1), 'user', 'word ' || i, 1700000000 + i FROM n"
        )
    heard = Heard()
    [check] = [check for check in CHECKS if check.name == "search-index"]
    scan_store(ref, [check], ScanOptions(deep=True), heard).close()
    shares = heard.shares("checking search-index (1 of 1)")
    assert shares == sorted(shares)
    assert len(shares) >= 10
    assert shares[0] < 0.3
    assert shares[-1] > 0.7


def test_a_fix_tells_of_its_backup_its_rows_and_its_last_look(ref: StoreRef) -> None:
    heard = Heard()
    mended(ref, heard)
    steps = heard.steps()
    backing = steps.index("backing up")
    assert steps[backing + 1] == "checking the backup"
    assert steps[backing + 2 : backing + 4] == ["finding what to mend", "mending"]
    again = steps.index("looking again: opening")
    assert all(step.startswith("looking again: ") for step in steps[again:])
    assert "looking again: reading messages" in steps
    shares = heard.shares("mending")
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0.5 < shares[-1] < 1


@pytest.mark.parametrize(("apply", "step"), [(False, "comparing the rows"), (True, "taking back")])
def test_an_undo_tells_how_far_it_is(ref: StoreRef, apply: bool, step: str) -> None:
    done = mended(ref, None)
    heard = Heard()
    undone = _undo(ref, done.run or "", heard, apply=apply)
    assert undone.outcome == ("fixed" if apply else "planned")
    assert heard.steps() == ["opening", "finishing", step]
    shares = heard.shares(step)
    assert len(shares) == done.transactions
    assert shares == [place / done.transactions for place in range(done.transactions)]


def _undo(ref: StoreRef, name: str, progress: Progress, *, apply: bool) -> StoreUndo:
    journal = Journal.beside(ref.path)
    assert journal is not None
    with journal:
        run = journal.run(name)
    assert run is not None
    undone = undo_store(ref, run, ScanOptions(), apply=apply, stop=Stop(), progress=progress)
    undone.close()
    return undone


def test_compacting_tells_how_far_it_is(ref: StoreRef) -> None:
    with closing(apsw.Connection(str(ref.path))) as connection:
        connection.execute(
            "CREATE TABLE more(x, y);"
            " INSERT INTO more WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)"
            " SELECT hex(randomblob(200)), i FROM n;"
            " DELETE FROM more WHERE y < 10000"
        )
    heard = Heard()
    done = compact_store(ref, apply=True, stop=Stop(), progress=heard)
    assert done.outcome == "compacted"
    assert [step for step in heard.steps() if step in ("opening", "checking", "compacting", "verifying")] == [
        *("opening", "checking", "compacting", "verifying")
    ]
    shares = heard.shares("compacting")
    assert shares == sorted(shares)
    # SQLite copies the rows first, and tells nothing of what it does then.
    assert 0.3 < shares[-1] < 0.6
    assert 0.8 < max(heard.shares("checking")) <= 1


def test_what_progress_raises_breaks_a_scan_off(ref: StoreRef) -> None:
    """Also from within a statement of SQLite's: a deep check is stopped at once."""

    def stop_in(step: str) -> Callable[[Path, str, float | None], None]:
        def note(_path: Path, each: str, share: float | None) -> None:
            if each.startswith(step) and share is not None:
                raise Stopped("enough")

        return note

    for step in ("reading messages", "checking file-damage"):
        with pytest.raises(Stopped, match="enough"):
            scan_store(ref, CHECKS, ScanOptions(deep=True), stop_in(step))
