"""Journal first: the order in which a doctor's writes reach the store and its journal, as seen from below SQLite."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from tests.oracle.home import Home
from tests.whole.damaged import damaged
from tests.whole.killing import STORES, journal
from tests.whole.runner import ROOT
from tests.whole.vfs_log import Event, events

pytestmark = [pytest.mark.usefixtures("oracle"), pytest.mark.parametrize(("version", "mode"), STORES)]


#: A file is removed: and that put on the disk, or not.
GONE = ("delete", "forget")


@pytest.fixture
def home(shared_folder: Path, tmp_path: Path, version: str, mode: str) -> Home:
    return damaged(shared_folder / "damaged", tmp_path / "home", version, mode)


def logged(home: Home, act: str, *extra: str) -> list[Event]:
    """What a doctor over the VFS did to the store."""
    log = home.path.parent / f"{act}.log"
    command = [sys.executable, "-m", "tests.whole.vfs_log", act, str(home.path), str(log), *extra]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr[-2000:])
    return events(log)


def commits(log: Iterable[Event], mode: str) -> list[Event]:
    """The writes and removals by which a transaction comes to be: of the log's frames, or of the store's own pages."""
    if mode == "wal":
        return [event for event in log if event.file == "wal"]
    return [event for event in log if event.file == "db" or (event.file == "journal" and event.act in GONE)]


def too_early(log: Iterable[Event], mode: str) -> list[Event]:
    """What reached the store while the journal did not yet hold, committed, the changeset of just this transaction."""
    return [event for event in commits(log, mode) if event.states.get("pending", 0) != 1 or event.writing]


def of_the_work(log: list[Event], mode: str) -> list[Event]:
    """A log without the checkpoint at the end, which must be at the end."""
    if mode == "delete":
        return log
    # The last frame and its sync; the checkpoint begins with a sync of its own.
    end = max(n for n, event in enumerate(log) if (event.file, event.act) == ("wal", "write")) + 2
    assert {event.file for event in log[:end]} == {"wal"}
    assert [(event.file, event.act) for event in log[end : end + 1]] == [("wal", "sync")]
    moved = {(event.file, event.act) for event in log[end + 1 :]}
    assert {("db", "write"), ("db", "sync")} <= moved <= {("db", "write"), ("db", "sync"), ("db", "truncate")}
    return log[:end]


def test_the_journal_is_committed_before_the_store(home: Home, mode: str) -> None:
    shm = home.store.with_name("state.db-shm")
    log = logged(home, "fix")
    work = of_the_work(log, mode)
    assert too_early(work, mode) == []
    transactions = journal(home, "SELECT count(*) FROM changesets")[0][0]
    assert transactions > 12
    by_number = {number: list(group) for number, group in groupby(commits(work, mode), lambda event: event.newest)}
    assert list(by_number) == list(range(1, transactions + 1))
    for group in by_number.values():
        acts = [(event.file, event.act) for event in group]
        # On the disk before the journal says that it is: the last thing that happens while it is pending. In rollback
        # mode that is the removal of the store's own journal, which must not come back.
        assert acts[-1] == (("wal", "sync") if mode == "wal" else ("journal", "delete"))
        if mode == "delete":
            assert acts[-2] == ("db", "sync")
        assert "truncate" not in {act for file, act in acts if file == "wal"}
    assert "wal" not in {event.file for event in log if event.act in GONE}
    assert home.journal_mode() == mode
    assert shm.exists() is (mode == "wal")
    assert home.sidecars() == ({"-wal", "-shm"} if mode == "wal" else set())


def test_a_doctor_that_writes_its_journal_afterwards_is_found_out(home: Home, mode: str) -> None:
    """The wrong variant: the same doctor, whose journal gets each changeset after the store's commit."""
    work = of_the_work(logged(home, "fix", "late"), mode)
    assert len(too_early(work, mode)) == len(commits(work, mode))


def test_a_change_counts_as_undone_only_when_the_store_has_it(home: Home, mode: str) -> None:
    logged(home, "fix")
    transactions = journal(home, "SELECT count(*) FROM changesets")[0][0]
    log = logged(home, "undo")
    work = commits(of_the_work(log, mode), mode)
    assert "forget" not in {event.act for event in work}
    done = [event.states.get("undone", 0) for event in work]
    assert sorted(set(done)) == list(range(transactions))
    assert all(earlier <= later for earlier, later in pairwise(done))
    assert "wal" not in {event.file for event in log if event.act in GONE}
    assert home.journal_mode() == mode


_CALL = re.compile(r"\d+ +(?P<call>\w+)\((?P<arguments>.*)\) += (?P<value>-?\d+)")


def system_calls(trace: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """What was written, put on the disk, cut and removed below a folder: (act, path relative to it)."""
    acts = {"pwrite64": "write", "write": "write", "fdatasync": "sync", "fsync": "sync", "ftruncate": "truncate"}
    acts |= {"unlink": "remove", "unlinkat": "remove"}
    for line in trace.read_text(errors="replace").splitlines():
        match = _CALL.match(line)
        if match is None or match["value"].startswith("-"):
            continue
        found = re.search(re.escape(f"{folder}/") + r'([^>"]+)[>"]', match["arguments"])
        if found:
            yield acts[match["call"]], found[1]


def test_the_journal_is_on_the_disk_before_the_store_is_written(home: Home, mode: str, version: str) -> None:
    """The same by the kernel's account: of each file's writes and syncs, in one order."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    if (version, mode) not in STORES[:2]:
        pytest.skip("one store of each mode is enough for this")
    trace = home.path.parent / "trace"
    watched = "pwrite64,write,fsync,fdatasync,ftruncate,unlink,unlinkat"
    command = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={watched}", "-o", str(trace), sys.executable, "-m"]
    command += ["hermes_doctor", "fix", str(home.path), "--apply", "--unsafe", "--yes", "--backup", "never", "--json"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"XDG_STATE_HOME": str(home.path.parent / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 and "ptrace" in done.stderr.lower():
        pytest.skip(f"strace is not permitted: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, (done.stdout, done.stderr[-2000:])
    calls = list(system_calls(trace, home.path))
    # The moments at which a transaction of the store begins to count, and at which one of the journal does.
    wal = mode == "wal"
    last = max(n for n, call in enumerate(calls) if call == ("write", "state.db-wal" if wal else "state.db"))
    store, record = ("state.db-wal" if wal else "state.db"), "doctor/doctor.db"
    ours = ("doctor", record, f"{record}-journal")
    order = [call for n, call in enumerate(calls) if n <= last and call[1] in (store, *ours)]
    transactions = 0
    since: list[tuple[str, str]] = []
    for call in order:
        if call == ("write", store) and since and since[-1][1] in ours:
            transactions += 1
            assert_on_disk(since, record)
        since = [call] if call[1] == store else [*since, call]
    assert transactions == journal(home, "SELECT count(*) FROM changesets")[0][0]
    removed = {path for act, path in calls if act == "remove"}
    assert not removed & {"state.db", "state.db-wal", "state.db-shm"}
    assert ("truncate", "state.db-wal") not in calls


def assert_on_disk(since: list[tuple[str, str]], record: str) -> None:
    """The journal's last transaction was put on the disk as SQLite does it, before anything of the store."""
    folder = record.rpartition("/")[0]
    ours = [call for call in since if call[1].startswith(folder)]
    rollback = f"{record}-journal"
    # That the rollback journal is removed must be on the disk, too: one that comes back takes the record back.
    assert ours[-2:] == [("remove", rollback), ("sync", folder)], ours
    begins = [n + 1 for n, call in enumerate(ours[:-2]) if call == ("remove", rollback)]
    own = ours[max(begins, default=0) :]
    writes = [n for n, call in enumerate(own) if call == ("write", record)]
    assert writes
    assert ("sync", rollback) in own[: writes[0]]
    assert ("sync", record) in own[writes[-1] :]
