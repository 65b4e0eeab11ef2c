"""Where the tests' folders are: in memory, where there is room, for most of what a run waits for is a disk's fsync."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

#: Where pytest looks for the folder under which it makes those of the tests.
_ROOT: Final = "PYTEST_DEBUG_TEMPROOT"
_MEMORY: Final = Path("/dev/shm")
#: Bytes that have to be free there: some ten times what a run leaves, and what its largest tests take meanwhile.
_ENOUGH: Final = 6 << 30

#: What looks at the file system itself, or at how long it takes, stays on the disk.
ON_DISK: Final = frozenset(
    {"test_holders", "test_kills", "test_lease", "test_living_hermes", "test_locks", "test_opening", "test_write_order"}
)


def choose_memory() -> None:
    """Lets pytest make its folders in memory, unless the tester said where."""
    if _ROOT in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    # What is there beside the free bytes of the file system: a container's may promise more than the machine has.
    if min(shutil.disk_usage(_MEMORY).free, _available_memory()) > _ENOUGH:
        os.environ[_ROOT] = str(_MEMORY)


def _available_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
