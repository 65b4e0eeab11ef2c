"""Whether a file lies on a file system on which SQLite's write-ahead log cannot be relied on.

The index of a log is memory that all who have the store open must share, and its locks must hold among them. Where
another machine, or the host of this one, serves the file system, neither is certain.
"""

from __future__ import annotations

import enum
import re
import sys
from pathlib import Path
from typing import NamedTuple

from hermes_doctor.host.lease import file_system_of

#: Served by another machine, or across the border of a virtual one.
_SERVED = re.compile(
    r"nfs\d?|cifs|smb\w*|ncpfs|afs|ceph|glusterfs|lustre|gpfs|beegfs|davfs|webdav"
    r"|9p[\w.]*|virtiofs|drvfs|vboxsf|vmhgfs|prl_fs|fakeowner"
)
#: The same by way of FUSE. Others of its kind are disks of this machine with something laid over them.
_SERVED_BY_FUSE = re.compile(
    r"fuse\.(?:virtiofs|vmhgfs.*|osxfs|grpcfuse|sshfs|rclone|s3fs|gcsfuse|goofys|blobfuse2?|mountpoint-s3|juicefs|seaweedfs"
    r"|glusterfs|ceph.*|cephfs.*|lustre.*|davfs2?|smbnetfs|curlftpfs|onedriver|google-drive-ocamlfuse|mfs|moosefs)"
)


class Trust(enum.Enum):
    """What a file system is to a log: SERVED elsewhere, or LAID over another one by a program (FUSE)."""

    SERVED = "served"
    LAID = "laid"


class SharedDisk(NamedTuple):
    """A file system that a log should not be on, by its type's name."""

    type: str
    trust: Trust


def shared_disk(path: Path, mounts: str | None = None) -> SharedDisk | None:
    """Return the file system of an absolute path where it is one to be wary of; None for any other, or an unknown one.

    ``mounts`` stands in for the text of ``/proc/self/mountinfo`` (Linux).
    """
    kind = file_system_of(path, mounts) if mounts is not None or sys.platform.startswith("linux") else _asked(path)
    if kind is None:
        return None
    kind = kind.lower()
    if _SERVED.fullmatch(kind) or _SERVED_BY_FUSE.fullmatch(kind):
        return SharedDisk(kind, Trust.SERVED)
    return SharedDisk(kind, Trust.LAID) if kind.startswith("fuse.") else None


def _asked(path: Path) -> str | None:
    """Ask the system where it has no mountinfo: the longest mount point that the path lies under."""
    import psutil

    under = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    nearest = max(under, key=lambda mount: len(mount.mountpoint), default=None)
    if nearest is None:
        return None
    return "smb" if "remote" in nearest.opts.split(",") else str(nearest.fstype)
