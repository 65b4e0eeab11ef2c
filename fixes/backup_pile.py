"""Remove a file of a backup that lies there once more, in a newer backup.

Both are read just before, and the newer one once more. A backup's own file goes before its sidecars: where it could not
go, they stay. A backup that comes back, comes back the other way round.

Beside a living hermes (--live)
No: hermes makes, compares and removes such files itself, in repairs that nothing announces.
"""

from __future__ import annotations

import os

from hermes_doctor.engine.cure import Fix, FixRefusedError, Phase
from hermes_doctor.engine.file_changes import FileChange
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.view import StoreView


def _files(view: StoreView, finding: Finding) -> FileChange:
    if view.bundle is None:
        raise FixRefusedError("the store's folder is not known")
    folder = view.bundle.real_path.parent
    name, backup, twin = str(finding.key), str(finding.detail["backup"]), str(finding.detail["twin"])
    if name != backup and os.path.lexists(folder / backup):
        raise FixRefusedError("the backup that it belongs to is still there")
    return FileChange.of_removal(folder / name, folder / twin)


FIX = Fix(check="backup-pile", phase=Phase.TAKE, uses_clock=False, page=__doc__ or "", files=_files)
