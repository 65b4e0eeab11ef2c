"""Whether the process that a row names is gone: the holder of a lock, the owner of a delegation, a backend.

A process number means something only on the host, and in the pid namespace, that gave it. A store that stands alone
may be a copy from anywhere, and one on a network's disk may be used by another host: then nothing is proven. A number
that is in use again reads as alive.
"""

from __future__ import annotations

import re

from hermes_doctor.host.lease import on_local_disk
from hermes_doctor.host.processes import host_name, pid_namespace, process_began_at, process_exists
from hermes_doctor.store.cells import Cell
from hermes_doctor.store.view import StoreView

#: Parts of a holder's name: ``pid=<n>[:pidns=<inode>]:...`` (0.16.0 on, the namespace from 0.22.2 on).
_PID = re.compile(r"(?:^|:)pid=(\d{1,10})(?=:|$)")
_NAMESPACE = re.compile(r"(?:^|:)pidns=(\d+)(?=:|$)")


def holder_is_dead(view: StoreView, holder: Cell) -> bool:
    """Whether the holder of a lock or a lease is proven to be gone.

    Only a holder that says its pid namespace, and which is ours, can be proven so; others are told by age alone.
    """
    if not isinstance(holder, str) or not view.once(_of_this_host):
        return False
    pid, namespace = _PID.search(holder), _NAMESPACE.search(holder)
    if pid is None or namespace is None or namespace.group(1) != pid_namespace():
        return False
    return not process_exists(int(pid.group(1)))


def owner_lives(view: StoreView, pid: Cell, began: Cell) -> bool | None:
    """Whether the owner of a delegation lives (``owner_pid``, ``owner_started_at``); None where that cannot be told.

    Delegations do not say their pid namespace: False is good only where nobody has the store open either.
    """
    if not isinstance(pid, int) or pid <= 0 or not view.once(_of_this_host):
        return None
    return process_began_at(pid, began) if isinstance(began, int) else process_exists(pid)


def backend_may_live(view: StoreView, host: Cell, pid: Cell) -> bool:
    """Whether a backend that no longer beats may live all the same: its process is there, on this host.

    One whose refresh is switched off beats once and never again (0.21.5 on).
    """
    return view.home is not None and isinstance(pid, int) and host == host_name() and process_exists(pid)


def _of_this_host(view: StoreView) -> bool:
    """Whether only processes of this host can have written the store's rows, as far as can be told."""
    return view.home is not None and on_local_disk(view.home)
