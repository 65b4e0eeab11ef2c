"""What went wrong, in one line. Never an exception's own text unless it is the system's: it may quote a store."""

from __future__ import annotations

import errno
import tempfile

from hermes_doctor.engine.defects import defect, place_of
from hermes_doctor.report.words import short_path, visible

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}


def describe(error: BaseException) -> str:
    """Return what failed, what it means, and what to do next, for a person."""
    if isinstance(error, ImportError):
        return (
            f"a package that the doctor needs cannot be loaded: {visible(error.name or 'unknown')}."
            " Next: pip install --upgrade --force-reinstall hermes-state-doctor"
        )
    if isinstance(error, MemoryError):
        return "the machine ran out of memory. Next: close other programs, or name fewer checks with --check"
    if isinstance(error, OSError) and error.errno is not None:
        return _describe_system_error(error)
    return f"a defect of the doctor: {defect(error)}. Next: report this line; --skip leaves a check out"


def _describe_system_error(error: OSError) -> str:
    reason = error.strerror or type(error).__name__
    where = f": {short_path(str(error.filename))}" if isinstance(error.filename, str) else ""
    if error.errno in _NO_ROOM:
        folder = short_path(tempfile.gettempdir())
        return f"no room left on the disk ({reason}{where}). Next: make room; temporary files go to {folder}"
    if error.errno in _NOT_ALLOWED:
        return f"the machine does not allow it ({reason}{where}). Next: run it as the user who owns the files"
    return f"the machine failed ({reason}{where}), at {place_of(error)}"
