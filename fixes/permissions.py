"""Take the rights of group and others from a file of the store.

The bits are those that the check finds now; a file that is another one by then, or a link, is left. Folders keep what
lets their owner in.

Beside a living hermes (--live)
Safe: hermes keeps the files open that it has open, and is their owner. A file's mode is no part of its content.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Phase, always_live
from hermes_doctor.engine.file_changes import FileChange
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.exposure import exposed
from hermes_doctor.store.view import StoreView


def _files(view: StoreView, finding: Finding) -> FileChange:
    each = next((each for each in exposed(view) if each.file.name == finding.key), None)
    if each is None:
        raise FixRefusedError("it is no longer open to others")
    return FileChange.of_mode(each.file.path, each.to)


FIX = Fix(check="permissions", phase=Phase.TAKE, uses_clock=False, page=__doc__ or "", files=_files, live=always_live)
