"""A doctor whose disk is slow: ``python -m tests.whole.slow_disk HOME [signal]`` mends all of a home.

Each read of the store's files takes a millisecond and each sync twenty. ``signal``: it gets SIGTERM with its fifth
sync. It prints the outcome, how many transactions there were, and how long the longest held the store.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import apsw

from checks import CHECKS
from fixes import FIXES
from hermes_doctor.engine.apply import apply_store
from hermes_doctor.engine.plan import Chosen
from hermes_doctor.engine.scan import ScanOptions
from hermes_doctor.engine.stopping import stop_on_signals
from hermes_doctor.host.homes import StoreRef
from tests.whole.vfs_log import BASE

_READ, _SYNC = 0.001, 0.02
_FATEFUL = 5


class _Syncs:
    def __init__(self, fatal: bool) -> None:
        self.left = _FATEFUL if fatal else 0

    def note(self) -> None:
        time.sleep(_SYNC)
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


class _File(apsw.VFSFile):
    def __init__(self, syncs: _Syncs, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._syncs = syncs
        super().__init__(BASE, name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802  # APSW's name, as below
        time.sleep(_READ)
        return super().xRead(amount, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._syncs.note()
        super().xSync(flags)


class _VFS(apsw.VFS):
    def __init__(self, syncs: _Syncs) -> None:
        self._syncs = syncs
        super().__init__("slow", BASE, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self._syncs, name, flags)


def main(home: Path, fatal: bool) -> int:
    """Mend what a home's store has."""
    vfs = _VFS(_Syncs(fatal))
    try:
        chosen = Chosen(CHECKS, {fix.check: fix for fix in FIXES}, True)
        ref = StoreRef(home / "state.db", home, "default")
        with stop_on_signals() as stop:
            done = apply_store(ref, chosen, ScanOptions(), backup="never", stop=stop)
        done.close()
        sys.stdout.write(f"{done.outcome} {done.transactions} {done.holds.get('longest', 0)}\n")
        return int(done.exit_code)
    finally:
        vfs.unregister()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "signal" in sys.argv[2:]))
