"""Several threads find just what one finds, however the store has to be opened, and leave no trace either."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from checks import CHECKS
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store import sifting
from hermes_doctor.store.reader import Reader
from tests.whole.support import fingerprint

Hold = Callable[[Path], subprocess.Popen[str] | None]


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads read what is too small for them to be worth it."""
    monkeypatch.setattr(sifting, "_WORTH_THREADS", 0)
    monkeypatch.setattr(sifting, "RANGE", 4)
    monkeypatch.setattr(sifting, "_BLOCK", 8)


WRITER = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.pragma("journal_mode", "wal")
connection.execute("UPDATE sessions SET model = 'other' WHERE rowid = 1")
print("written", flush=True)
sys.stdin.read()
"""


def nobody(_store: Path) -> None:
    """In rollback mode: slices."""


def nobody_in_wal_mode(store: Path) -> None:
    """As immutable, under a lease."""
    with apsw.Connection(str(store)) as connection:
        pass
    connection.pragma("journal_mode", "wal")
    connection.close()


def a_writer_in_wal_mode(store: Path) -> subprocess.Popen[str]:
    """One snapshot for all threads."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    return writer


def one_who_was_killed(store: Path) -> None:
    """Its log is there, and the index of that is not: a private copy."""
    with a_writer_in_wal_mode(store) as writer:
        writer.kill()
    store.with_name(store.name + "-shm").unlink()


@pytest.mark.parametrize("hold", [nobody, nobody_in_wal_mode, a_writer_in_wal_mode, one_who_was_killed])
def test_they_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold: Hold) -> None:
    store = make_demo_home(tmp_path / "home")
    writer = hold(store)
    given: list[int] = []
    together = Reader.together

    @contextmanager
    def noting(reader: Reader, count: int) -> Iterator[Sequence[apsw.Connection]]:
        with together(reader, count) as connections:
            given.append(len(connections))
            yield connections

    monkeypatch.setattr(Reader, "together", noting)
    now = time.time()
    before = fingerprint(tmp_path / "home")
    try:
        found, opened = [], []
        for threads in (1, 3):
            scan = scan_store(
                StoreRef(store, tmp_path / "home", "default"), CHECKS, ScanOptions(now=now, threads=threads)
            )
            with scan.findings:
                found.append([(*finding.row, finding.check, finding.summary) for finding in scan.findings])
            opened.append(max(given))
            given.clear()
            assert [result.reason for result in scan.checks if result.status == "failed"] == []
        assert found[0] == found[1]
        assert len(found[0]) > 10
        # One thread reads by the connection that is there.
        assert opened == [0, 3]
        assert fingerprint(tmp_path / "home") == before
    finally:
        if writer is not None:
            writer.communicate()


def test_what_breaks_off_a_scan_breaks_off_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: what ends only when it is collected finds the store closed, and says so on standard error."""
    store = make_demo_home(tmp_path / "home")
    unraised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    told: list[str] = []

    def progress(_path: Path, step: str, _share: float | None) -> None:
        told.append(step)
        if told.count(step) > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan_store(StoreRef(store, tmp_path / "home", "default"), CHECKS, ScanOptions(threads=3), progress)
    assert told[-1] == "reading messages"
    gc.collect()
    assert unraised == []
