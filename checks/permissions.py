"""Files of a store that other people of the machine can read, or that belong to somebody else.

What it finds
The store, its sidecars and the backups beside it (hermes's and the doctor's own) that group or
others may read and can reach; and those of them that belong to another user than the store does.

Why it matters
The store holds every conversation, and so does each copy of it. A file that another user owns is
one that hermes may not be able to open: it comes about when a tool is run as root once, and then
every write fails.

How it decides
By the permission bits of the file and of every folder on the way to it: what lies behind a folder
that nobody else may go through is not open. Where the store's group may write to it, or its folder
hands its group on (setgid), the group is meant to have it. Access lists are not looked at, nor
anything on Windows.

Fix
The bits of group and others are taken away (0600, as 0.21.5 on makes its files). Who owns a file is
not changed: that takes root, and `sudo chown` is named.

Fix safety
Safe. The owner's bits stay, and hermes runs as the owner. `doctor undo` puts the bits back.

Upstream
0.21.5 on creates and keeps the store and its sidecars at 0600. Older releases leave what the umask
gives, mostly 0644, in a home that only its owner can go through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import FILES, Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.exposure import exposed, foreign, user_name
from hermes_doctor.store.view import StoreView

NAME = "permissions"


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    open_to_others = {each.file.name: each for each in exposed(view)}
    owners = {file.name: owner for file, owner in foreign(view)}
    for name in dict.fromkeys([*open_to_others, *owners]):
        if keys is not None and name not in keys:
            continue
        each, owner = open_to_others.get(name), owners.get(name)
        told = [] if each is None else [f"others can read it (mode {each.mode:04o})"]
        told += [] if owner is None else [f"it belongs to {user_name(owner)}, not to the store's owner"]
        # Only the owner, or root, may change the bits.
        mends = each is not None and owner is None
        yield Finding(
            check=NAME,
            severity=Severity.WARNING,
            table=FILES,
            key=name,
            session=None,
            summary=" and ".join(told),
            detail={} if each is None else {"mode": f"{each.mode:04o}", "to": f"{each.to:04o}"},
            fix=Safety.SAFE if mends else Safety.NONE,
            action=f"make it {each.to:04o}" if each is not None and mends else None,
            refusal=None if owner is None else "its owner has to be set right first, with sudo chown",
        )


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="files of the store that others can read, or that belong to somebody else",
    meaning="other people of this machine can read the conversations",
    fix=Safety.SAFE,
    page=__doc__ or "",
    rule=RelationRule(FILES, _find),
)
