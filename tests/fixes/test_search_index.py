"""search-index: an index is brought in step without a message being touched, and the releases search and write on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from checks.search_index import CHECK
from fixes.search_index import FIX
from hermes_doctor.engine.cure import Mending
from hermes_doctor.engine.model import Finding, Safety, Severity
from hermes_doctor.engine.rows import find
from hermes_doctor.host.bundle import inspect
from hermes_doctor.host.locks import upstream_rebuild_lock
from hermes_doctor.store.index_faults import index_faults_again
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.search_index import match_trigrams
from hermes_doctor.store.shape import read_shape
from hermes_doctor.store.view import StoreView
from hermes_doctor.store.writing import open_for_writing
from tests.checks.index_cases import (
    BASE,
    CASES,
    CJK,
    CRON,
    PENDING,
    SOME,
    TORN,
    TRIGRAM,
    WORDS,
    IndexCase,
    both,
    emptied,
    other_text,
    put_in,
    run,
    site_home,
    taken_out,
    with_case,
)
from tests.fixes.support import Patient, outcome
from tests.host.test_locks import Peer
from tests.oracle.home import Home, environment
from tests.oracle.releases import get
from tests.oracle.steps import call, open_store, sql
from tests.whole.identical import difference, image_of, index_faults

by_name = {case.name: case for case in CASES}


@pytest.fixture
def hurt(oracle: None, shared_folder: Path, tmp_path: Path) -> Callable[..., Patient]:
    """A private store of that site with something done to its indexes, alone or in a home."""

    def make(site: str, *damages: Callable[[apsw.Connection], None], name: str = "home") -> Patient:
        template = site_home(shared_folder, site)
        home = with_case(template, tmp_path / name, IndexCase("", both(*damages)))
        return Patient(home.store, home.path)

    return make


def mend(patient: Patient, *, unsafe: bool = True) -> object:
    return outcome(patient.mend(checks=[CHECK], fixes=[FIX], unsafe=unsafe))


def rows(patient: Patient) -> list[object]:
    """All that the ordinary tables hold."""
    connection = apsw.Connection(str(patient.store))
    tables = ("messages", "sessions", "state_meta", "sqlite_sequence")
    held: list[object] = [connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in tables]
    connection.close()
    return held


FIXED, NOTHING = ("fixed", 0, None), ("nothing-to-do", 0, None)


def mended_in_one_transaction(patient: Patient) -> list[Finding]:
    """Mend what is found, without the engine's gates, locks and journal; what is found then."""
    bundle = inspect(patient.store)
    connection = open_for_writing(patient.store)
    try:
        connection.pragma("synchronous", "off")
        shape = read_shape(connection)
        match_trigrams(connection, shape)
        view = StoreView(Reader(connection, Pace.FREE), shape, now=1.7e9, held="no", bundle=bundle)
        connection.execute("BEGIN IMMEDIATE")
        for finding in find([CHECK], view):
            if finding.fix is not Safety.NONE:
                FIX.mend(Mending(view, connection), finding)
        connection.execute("COMMIT")
        view.forget()
        return list(find([CHECK], replace(view, deep=True)))
    finally:
        connection.close()


@pytest.mark.parametrize("site", ["0.19.0", "0.22.2"])
def test_each_case_is_mended_and_no_message_is_touched(hurt: Callable[..., Patient], site: str) -> None:
    """Asked of a judge that knows nothing of the doctor's code."""
    for number, case in enumerate(CASES):
        fixes = [fix for _severity, fix in (case.expected(site) or {}).values()]
        if "unsafe" not in fixes:
            continue
        patient = hurt(site, case.damage, name=f"case-{number}")
        before = rows(patient)
        left = mended_in_one_transaction(patient)
        assert {finding.fix for finding in left} <= {Safety.NONE}, case.name
        # In an empty index nothing tells how hermes's SQLite cuts a text with a NUL: message 5 waits.
        if "half rebuilt" not in case.name and case.damage is not emptied:
            assert [finding for finding in left if finding.severity > Severity.INFO] == [], case.name
            assert [fault for fault in index_faults(patient.store) if CJK not in fault] == [], case.name
        assert rows(patient) == before, case.name


def test_it_is_mended_when_asked_for_and_once(hurt: Callable[..., Patient]) -> None:
    patient = hurt("0.20.0", taken_out(BASE, 1), put_in(TRIGRAM, 77))
    assert mend(patient, unsafe=False) == NOTHING
    assert mend(patient) == FIXED
    before = patient.store.read_bytes()
    assert mend(patient) == NOTHING
    assert patient.store.read_bytes() == before


#: Several faults at once, by how the indexes are laid out: single entries, and the whole of one index.
SEVERAL = {
    "inline": (taken_out(BASE, 1, 3), put_in(TRIGRAM, 77), other_text, run(TORN.format(TRIGRAM))),
    "external": (taken_out(TRIGRAM, 4), run(CRON), run(TORN.format(BASE))),
}


@pytest.mark.parametrize("site", ["0.16.0", "0.20.0", "0.22.2", "0.19.0+0.22.2"])
def test_the_release_searches_and_writes_on(hurt: Callable[..., Patient], site: str) -> None:
    patient = hurt(site, *SEVERAL["inline" if site < "0.20" else "external"])
    assert mend(patient) == FIXED
    assert patient.findings([CHECK]) == []
    answers = Home(patient.store.parent).run(
        site.split("+")[-1],
        [
            open_store(),
            *(call("search_messages", word) for word in ("needle", "needle of all", "straw")),
            sql(f"SELECT rowid FROM {TRIGRAM} WHERE {TRIGRAM} MATCH '\"eedl\"' ORDER BY rank"),
            call("append_message", "other", "user", "one more needle"),
            call("search_messages", "one more"),
            sql("UPDATE messages SET content = 'changed hay' WHERE id = 4"),
            call("search_messages", "changed"),
            call("delete_session", "other"),
            call("search_messages", "changed"),
            *(sql(f"INSERT INTO {name}({name}, rank) VALUES ('integrity-check', 1)") for name in (BASE, TRIGRAM)),
        ],
    )
    needles, of_all, straw = ({hit["id"] for hit in hits} for hits in answers[1:4])
    by_trigrams = {hit[0] for hit in answers[4]}
    assert needles >= set(WORDS)
    assert of_all == {9}
    # s1 is a cron run by then, which the newest trigram index leaves out.
    assert by_trigrams >= ({4} if site == "0.22.2" else set(WORDS))
    assert 2 in straw
    assert [[hit["id"] for hit in answers[place]] for place in (6, 8, 10)] == [[answers[5]], [4], []]
    assert index_faults(patient.store) == []
    assert patient.findings([CHECK]) == []


@pytest.mark.parametrize("version", ["0.19.0", "0.22.2"])
def test_hermess_own_probe_is_content(hurt: Callable[..., Patient], version: str) -> None:
    """It stores a message and takes it back; what it says of a well store is what it has to say."""
    damages = SEVERAL["inline" if version < "0.20" else "external"]
    well, patient = hurt(version, name="well"), hurt(version, *damages)
    assert mend(patient) == FIXED
    code = (
        "import json, sys; from pathlib import Path\n"
        f"from hermes_state{'_repair' if version > '0.20' else ''} import _db_opens_cleanly as probe\n"
        "print(json.dumps([probe(Path(store)) for store in sys.argv[1:]]))"
    )
    stores = [str(each.store) for each in (well, patient)]
    done = subprocess.run(
        [sys.executable, "-c", code, *stores],
        env=environment(patient.store.parent, get(version)),
        capture_output=True,
        text=True,
        check=True,
        cwd=patient.store.parent,
    )
    healthy, mended = json.loads(done.stdout.splitlines()[-1])
    assert mended == healthy


def test_there_is_nothing_to_take_back(hurt: Callable[..., Patient]) -> None:
    patient = hurt("0.22.2", taken_out(BASE, 1), put_in(TRIGRAM, 77))
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert sorted((change.key, change.state) for change in done.changes) == [
        (BASE + SOME, "applied"),
        (TRIGRAM, "applied"),
    ]
    before = image_of(patient.store)
    assert patient.undo(done.run).exit_code == 0
    assert difference(before, image_of(patient.store)) == []
    assert patient.findings([CHECK]) == []


def test_what_hermes_is_still_to_put_in_is_left_to_it(hurt: Callable[..., Patient]) -> None:
    patient = hurt("0.22.2", PENDING, taken_out(BASE, 1), taken_out(TRIGRAM, 9))
    assert mend(patient) == FIXED
    assert indexed(patient, BASE) == {1, 2, 3, 7, 8, 9}
    assert indexed(patient, TRIGRAM) == {1, 3, 9}
    # And hermes goes on, to the end.
    Home(patient.store.parent).run("0.22.2", [call("optimize_fts_storage", vacuum=False)])
    assert index_faults(patient.store) == []
    assert patient.findings([CHECK]) == []


def indexed(patient: Patient, index: str) -> set[object]:
    connection = apsw.Connection(str(patient.store))
    found = {row[0] for row in connection.execute(f"SELECT id FROM {index}_docsize")}
    connection.close()
    return found


@pytest.mark.parametrize("name", ["one trigger gone", "detached", "half rebuilt, and torn", "no sizes"])
def test_what_is_hermess_to_mend_is_left(hurt: Callable[..., Patient], name: str) -> None:
    patient = hurt("0.22.2", by_name[name].damage)
    before = patient.store.read_bytes()
    assert mend(patient) == NOTHING
    assert patient.store.read_bytes() == before


def test_a_rebuild_of_hermess_and_ours_keep_each_other_out(hurt: Callable[..., Patient]) -> None:
    patient = hurt("0.22.2", put_in(BASE, 77))
    setup = (
        "import sys\n"
        "from contextlib import ExitStack\n"
        "from hermes_state_common import fts_rebuild_admission\n"
        "held = ExitStack()\n"
        "def take():\n"
        "    return held.enter_context(fts_rebuild_admission(sys.argv[2], timeout_seconds=0))\n"
    )
    hermes = Peer(setup, [str(patient.store)], environment(patient.store.parent, get("0.22.2")))
    try:
        assert hermes.ask("take()") is True
        done = patient.mend(checks=[CHECK], fixes=[FIX])
        (change,) = done.changes
        assert (change.state, done.run) == ("refused", None)
        assert f"process {hermes.pid} (" in str(change.reason)
        assert "is rebuilding the index" in str(change.reason)
        hermes.ask("held.close()")
        with upstream_rebuild_lock(patient.store):
            assert hermes.ask("take()") is False
    finally:
        hermes.close()
    assert mend(patient) == FIXED


def test_without_the_lock_nothing_is_rebuilt(hurt: Callable[..., Patient]) -> None:
    patient = hurt("0.22.2", put_in(BASE, 77))
    patient.store.with_name("state.db.fts_rebuild.lock").unlink(missing_ok=True)
    patient.store.with_name("state.db.fts_rebuild.lock").mkdir()
    (change,) = patient.mend(checks=[CHECK], fixes=[FIX]).changes
    assert (change.state, "lock" in str(change.reason)) == ("refused", True)
    assert 77 in indexed(patient, BASE)


def test_single_entries_need_no_lock(hurt: Callable[..., Patient]) -> None:
    patient = hurt("0.22.2", taken_out(BASE, 1))
    with upstream_rebuild_lock(patient.store):
        assert mend(patient) == FIXED


def test_a_text_with_a_nul_is_put_in_as_hermes_does(hurt: Callable[..., Patient]) -> None:
    """Another such text in the index tells how; where there is none, it is left, and the rest is put in."""
    patient = hurt("0.22.2", taken_out(TRIGRAM, 4, 5), name="alone")
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert [change.state for change in done.changes] == ["applied"]
    assert indexed(patient, TRIGRAM) == {1, 3, 4, 9}
    (finding,) = patient.findings([CHECK])
    assert (finding.fix, "holds a NUL" in str(finding.refusal)) == (Safety.NONE, True)
    another = (
        "INSERT INTO messages(session_id, role, content, timestamp) VALUES ('s1', 'user', char(0) || 'json:[12]', 1.0)"
    )
    patient = hurt("0.22.2", run(another), taken_out(TRIGRAM, 4, 5))
    assert mend(patient) == FIXED
    assert index_faults(patient.store) == []


def test_an_entry_that_holds_another_text_is_not_taken_out_by_guess(hurt: Callable[..., Patient]) -> None:
    """It became another between the plan and its turn."""
    patient = hurt("0.22.2", run(CRON))
    (finding,) = patient.findings([CHECK])

    def late(mending: Mending, finding: Finding) -> None:
        mending.connection.execute("UPDATE messages SET content = 'changed meanwhile' WHERE id = 1")
        FIX.mend(mending, finding)

    assert finding.key == TRIGRAM + SOME
    done = patient.mend(checks=[CHECK], fixes=[replace(FIX, mend=late)])
    (change,) = done.changes
    assert (change.state, "has to be rebuilt" in str(change.reason)) == ("refused", True)
    assert image_of(patient.store) == image_of(hurt("0.22.2", run(CRON), name="untouched").store)


def test_an_index_that_still_keeps_messages_out_is_not_called_mended(hurt: Callable[..., Patient]) -> None:
    """A trigger of somebody else's refuses them: the probe finds out, and nothing is changed."""
    refuses = (
        "CREATE TRIGGER refuses AFTER INSERT ON messages WHEN new.content LIKE '%probe%'"
        " BEGIN SELECT raise(ABORT, 'not today'); END"
    )
    patient = hurt("0.22.2", taken_out(BASE, 1), run(refuses))
    (change,) = patient.mend(checks=[CHECK], fixes=[FIX]).changes
    assert (change.state, "that is not hermes's (refuses)" in str(change.reason)) == ("refused", True)
    assert 1 not in indexed(patient, BASE)


# Deliberately wrong variants of the fix.


def rebuilds_everything(mending: Mending, finding: Finding) -> None:
    """What a rebuild of hermes's has not come to is put in as well."""
    name = str(finding.key).split(":")[0]
    mending.connection.execute(f"INSERT INTO {name}({name}) VALUES ('rebuild')")


def only_puts_in(mending: Mending, finding: Finding) -> None:
    """What is too many stays."""
    for fault in index_faults_again(mending.view, [mending.single(finding.key)]):
        name = fault.state.name
        mending.connection.execute(
            f"INSERT INTO {name}(rowid, content) SELECT id, content FROM messages"
            f" WHERE id NOT IN (SELECT id FROM {name}_docsize)"
        )


def takes_out_by_the_present_text(mending: Mending, finding: Finding) -> None:
    """Whatever text it was that was put in."""
    name = str(finding.key).split(":")[0]
    mending.connection.execute(
        f"INSERT INTO {name}({name}, rowid, content, tool_name) SELECT 'delete', id, content, tool_name FROM messages"
        f" WHERE session_id = 's1' AND id IN (SELECT id FROM {name}_docsize)"
    )


@pytest.mark.parametrize(
    ("variant", "site", "name"),
    [
        (rebuilds_everything, "0.22.2", "half rebuilt, and one missing"),
        (rebuilds_everything, "0.19.0", "missing"),
        (only_puts_in, "0.19.0", "another text"),
        (only_puts_in, "0.22.2", "missing trigrams"),
        (takes_out_by_the_present_text, "0.22.2", "and was changed there"),
    ],
)
def test_a_wrong_variant_fails(
    hurt: Callable[..., Patient], variant: Callable[[Mending, Finding], None], site: str, name: str
) -> None:
    patient = hurt(site, by_name[name].damage)
    before = indexed(patient, BASE)
    patient.mend(checks=[CHECK], fixes=[replace(FIX, mend=variant)])
    if "half rebuilt" in name:
        assert indexed(patient, BASE) - before > {1}
    else:
        assert index_faults(patient.store) != []
