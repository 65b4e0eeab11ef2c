"""Changes of files go through plan, journal, apply, settling and undo as those of rows do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw
import pytest

from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.cure import Fix, Phase
from hermes_doctor.engine.file_changes import FileChange, FileMovedError, Kind
from hermes_doctor.engine.journal import APPLIED, NOT_APPLIED, PENDING, Journal
from hermes_doctor.engine.model import FILES, Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.engine.settle import settle_pending
from hermes_doctor.engine.writer import open_writer
from hermes_doctor.store.cells import Key
from hermes_doctor.store.view import StoreView
from tests.fixes.support import Patient, outcome

TEXT = b"what was backed up" * 10_000


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    store = make_demo_home(tmp_path / "home")
    return Patient(store, store.parent)


def found(view: StoreView, keys: Sequence[Key] | None, wrong: str, action: str) -> Iterator[Finding]:
    assert view.bundle is not None
    folder = view.bundle.real_path.parent
    for path in sorted(folder.glob("copy-*")):
        if (keys is None or path.name in keys) and (wrong != "mode" or path.stat().st_mode & 0o077):
            yield Finding("files", Severity.WARNING, FILES, path.name, None, "wrong", fix=Safety.SAFE, action=action)


def private() -> tuple[Check, Fix]:
    """A check and a fix of files that others may read."""
    rule = RelationRule(FILES, lambda view, keys: found(view, keys, "mode", "make it private"))
    check = Check("files", Severity.WARNING, "", "", Safety.SAFE, "", rule)

    def files(view: StoreView, finding: Finding) -> FileChange:
        assert view.bundle is not None
        return FileChange.of_mode(view.bundle.real_path.with_name(str(finding.key)), 0o600)

    return check, Fix("files", Phase.TAKE, False, "", files=files)


def single() -> tuple[Check, Fix]:
    """A check and a fix of copies that are equal to the file ``twin``."""
    rule = RelationRule(FILES, lambda view, keys: found(view, keys, "copy", "remove the copy"))
    check = Check("files", Severity.WARNING, "", "", Safety.SAFE, "", rule)

    def files(view: StoreView, finding: Finding) -> FileChange:
        assert view.bundle is not None
        path = view.bundle.real_path.with_name(str(finding.key))
        return FileChange.of_removal(path, path.with_name("twin"))

    return check, Fix("files", Phase.TAKE, False, "", files=files)


def copies(patient: Patient, *names: str, content: bytes = TEXT, mode: int = 0o644) -> list[Path]:
    paths = [patient.store.with_name(name) for name in names]
    for path in paths:
        path.write_bytes(content)
        path.chmod(mode)
        os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    return paths


def image(path: Path) -> tuple[int, int, bytes]:
    status = path.stat()
    return status.st_mode, status.st_mtime_ns, path.read_bytes()


def test_modes_are_changed_once_noted_and_taken_back(patient: Patient) -> None:
    check, fix = private()
    one, other, well = copies(patient, "copy-1", "copy-2", "copy-3")
    well.chmod(0o600)
    before = [image(path) for path in (one, other, well)]
    done = patient.mend(checks=[check], fixes=[fix])
    assert outcome(done) == ("fixed", 0, None)
    assert [(change.table, change.key, change.state) for change in done.changes] == [
        (FILES, "copy-1", "applied"),
        (FILES, "copy-2", "applied"),
    ]
    assert [path.stat().st_mode & 0o777 for path in (one, other, well)] == [0o600] * 3
    assert outcome(patient.mend(checks=[check], fixes=[fix])) == ("nothing-to-do", 0, None)
    plan = patient.undo(done.run, apply=False)
    assert [(change.key, change.state) for change in plan.changes] == [("copy-2", "planned"), ("copy-1", "planned")]
    undone = patient.undo(done.run)
    assert outcome(undone) == ("fixed", 0, None)
    assert [(change.key, change.state) for change in undone.changes] == [("copy-2", "restored"), ("copy-1", "restored")]
    assert [image(path) for path in (one, other, well)] == before


def test_a_copy_goes_only_while_its_twin_is_equal_and_comes_back_as_it_was(patient: Patient) -> None:
    check, fix = single()
    [twin] = copies(patient, "twin", mode=0o600)
    equal, different = copies(patient, "copy-1", "copy-2")
    different.write_bytes(TEXT + b" and more")
    before = image(equal)
    done = patient.mend(checks=[check], fixes=[fix])
    assert {change.key: (change.state, change.reason) for change in done.changes} == {
        "copy-1": ("applied", None),
        "copy-2": ("refused", "copy-2 and twin are no longer equal"),
    }
    assert (equal.exists(), different.exists(), twin.exists()) == (False, True, True)
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    assert image(equal) == before
    assert sorted(path.name for path in patient.store.parent.glob("*doctor-undo*")) == []


def changed_twin(twin: Path, _copy: Path) -> None:
    twin.write_bytes(b"another backup")


def gone_twin(twin: Path, _copy: Path) -> None:
    twin.unlink()


def somebody_elses(_twin: Path, copy: Path) -> None:
    copy.write_bytes(b"somebody's")


@pytest.mark.parametrize("meanwhile", [changed_twin, gone_twin, somebody_elses])
def test_what_changed_since_is_left(patient: Patient, meanwhile: Callable[[Path, Path], None]) -> None:
    check, fix = single()
    [twin] = copies(patient, "twin")
    [copy] = copies(patient, "copy-1")
    done = patient.mend(checks=[check], fixes=[fix])
    meanwhile(twin, copy)
    undone = patient.undo(done.run)
    assert (undone.outcome, undone.exit_code) == ("partly-fixed", 1)
    assert [(change.key, change.state) for change in undone.changes] == [("copy-1", "changed-since")]
    left = copy.read_bytes() if copy.exists() else None
    assert left == (b"somebody's" if meanwhile is somebody_elses else None)


def test_a_mode_that_changed_since_is_left(patient: Patient) -> None:
    check, fix = private()
    [copy] = copies(patient, "copy-1")
    done = patient.mend(checks=[check], fixes=[fix])
    copy.chmod(0o400)
    assert [change.state for change in patient.undo(done.run).changes] == ["changed-since"]
    assert copy.stat().st_mode & 0o777 == 0o400


@pytest.mark.parametrize(("carried_out", "state"), [(True, APPLIED), (False, NOT_APPLIED)])
def test_a_stop_between_journal_and_file_is_settled_by_the_file(
    patient: Patient, carried_out: bool, state: str
) -> None:
    [copy] = copies(patient, "copy-1")
    change = FileChange.of_mode(copy, 0o600)
    scan = scan_store(patient.ref, (), ScanOptions())
    folder = patient.store.with_name("doctor")
    folder.mkdir()
    with scan.findings, Journal(folder) as journal, open_writer(scan, journal, ScanOptions()) as writer:
        run = journal.start_run(patient.store, writer.identity(), None, None)
        journal.write_pending(run, "files", b"", {}, (), (), change)
        assert [entry.file for entry in journal.entries(run, states=[PENDING])] == [change]
        if carried_out:
            change.carry_out()
        assert settle_pending(writer) == 1
        assert [entry.state for entry in journal.entries(run)] == [state]


def test_no_link_is_followed(patient: Patient, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(TEXT)
    elsewhere.chmod(0o644)
    link = patient.store.with_name("copy-1")
    link.symlink_to(elsewhere)
    [twin] = copies(patient, "twin")
    with pytest.raises(FileMovedError, match="neither a file nor a folder"):
        FileChange.of_mode(link, 0o600)
    with pytest.raises(FileMovedError, match="neither a file nor a folder"):
        FileChange.of_removal(link, twin)
    change = FileChange(Kind.MODE, str(link), 0o644, to=0o600)
    with pytest.raises(FileMovedError):
        change.carry_out()
    assert elsewhere.stat().st_mode & 0o777 == 0o644


def test_one_file_is_no_twin_of_itself(patient: Patient) -> None:
    [twin] = copies(patient, "twin")
    linked = patient.store.with_name("copy-1")
    os.link(twin, linked)
    with pytest.raises(FileMovedError, match="are one file"):
        FileChange.of_removal(linked, twin)


def test_what_is_derived_is_committed_though_no_row_changes(patient: Patient) -> None:
    """The search index's own tables are in no changeset."""
    rows = "SELECT count(*) FROM messages_fts WHERE rowid = 1"
    connection = apsw.Connection(str(patient.store))
    connection.execute("CREATE VIRTUAL TABLE messages_fts USING fts5(content)")
    connection.execute("INSERT INTO messages_fts (rowid, content) VALUES (1, 'too much')")
    connection.close()

    def look(view: StoreView, _keys: Sequence[Key] | None) -> Iterator[Finding]:
        if view.reader.value(rows) == 1:
            yield Finding("index", Severity.WARNING, "messages", 1, None, "in", fix=Safety.SAFE, action="take it out")

    check = Check("index", Severity.WARNING, "", "", Safety.SAFE, "", RelationRule("messages", look))
    fix = Fix(
        "index",
        Phase.TAKE,
        False,
        "",
        lambda mending, _finding: mending.run("DELETE FROM messages_fts WHERE rowid = :row", {"row": 1}),
        derived=True,
    )
    done = patient.mend(checks=[check], fixes=[fix])
    assert outcome(done) == ("fixed", 0, None)
    assert [change.state for change in done.changes] == ["applied"]
    assert patient.findings([check]) == []
    undone = patient.undo(done.run)
    assert (outcome(undone), list(undone.changes)) == (("nothing-to-do", 0, None), [])
    assert patient.run(done.run or "").undone_at is not None
