"""Whether a process that a store names lives on this host. Where it cannot be told, it lives."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_PROC = Path("/proc")

#: Largest difference of two readings of one process's start, in hundredths of a second (0.22.2 allows the same: a
#: clock may be set between them).
_DRIFT = 200


def process_exists(pid: int) -> bool:
    """Tell whether a process has that number; True also where it cannot be told, and for one of another user.

    A number that was given to a new process reads as alive.
    """
    if pid <= 0:
        return True
    if os.name == "nt":
        # Signal 0 is Ctrl-C there.
        import psutil

        return psutil.pid_exists(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def process_began_at(pid: int, began: int) -> bool:
    """Tell whether a process of that number lives that began then; True also where it cannot be told.

    ``began``: clock ticks since the boot (Linux, field 22 of ``/proc/<pid>/stat``), as hermes notes it from 0.19.0 on.
    Elsewhere the number alone decides.
    """
    if not process_exists(pid):
        return False
    if not sys.platform.startswith("linux"):
        return True
    try:
        # The name in the second field may hold spaces and brackets: the fields after it count from the last bracket.
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return abs(int(fields[19]) - began) <= _DRIFT
    except (OSError, ValueError, IndexError):
        return True


def pid_namespace() -> str | None:
    """Return the inode of this process's pid namespace in digits; None where there are none, or it cannot be read."""
    try:
        link = str((_PROC / "self" / "ns" / "pid").readlink())
    except OSError:
        return None
    found = re.search(r"\[(\d+)\]", link)
    return found.group(1) if found else None


def host_name() -> str | None:
    """Return this host's name as hermes writes it beside a heartbeat (0.21.5 on); None where it writes none."""
    return os.uname().nodename if hasattr(os, "uname") else None
