"""File systems that a log should not be on, by lines as mountinfo has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_doctor.host.shared_disks import SharedDisk, Trust, shared_disk

ROOT = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
HOME = "/home/u/.hermes/state.db"

SERVED = {
    "nfs4": "90 22 0:52 / /home rw,relatime shared:40 - nfs4 nas:/home rw,vers=4.2,hard,proto=tcp\n",
    "nfs": "91 22 0:53 /u /home/u rw,nosuid - nfs 10.0.0.2:/export/u rw,vers=3\n",
    "cifs": "92 22 0:54 / /home rw,relatime - cifs //nas/home rw,vers=3.1.1,cache=strict,username=u\n",
    "9p": r"93 22 0:55 / /home rw,noatime - 9p C:\134 rw,dirsync,aname=drvfs;path=C:\;uid=1000,trans=fd" "\n",
    "virtiofs": "94 22 0:56 / /home/u/.hermes rw,relatime - virtiofs mount0 rw\n",
    "fakeowner": "95 22 0:57 /Users/u /home/u rw,nosuid,nodev,relatime - fakeowner /run/host_mark/Users rw,fakeowner\n",
    "fuse.sshfs": "96 22 0:58 / /home/u rw,nosuid,nodev - fuse.sshfs u@host:/home/u rw,user_id=1000,group_id=1000\n",
    "fuse.rclone": "97 22 0:59 / /home/u/.hermes rw,nosuid,nodev - fuse.rclone drive: rw,user_id=1000\n",
}
LAID = {
    "fuse.gocryptfs": "98 22 0:60 / /home/u rw,nosuid - fuse.gocryptfs /home/u.enc rw,user_id=1000\n",
    "fuse.mergerfs": "99 22 0:61 / /home rw,relatime - fuse.mergerfs a:b rw,user_id=0,allow_other\n",
}
OWN = {
    "ext4": "",
    "btrfs": "100 22 0:62 /@home /home rw,relatime shared:50 - btrfs /dev/sda2 rw,subvol=/@home\n",
    "zfs": "101 22 0:63 / /home rw,xattr - zfs rpool/home rw,xattr,posixacl\n",
    "overlay": "102 22 0:64 / /home rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n",
    "tmpfs": "103 22 0:65 / /home/u rw - tmpfs tmpfs rw\n",
    "fuseblk": "104 22 8:1 / /home rw,relatime - fuseblk /dev/sda1 rw,user_id=0,blksize=4096\n",
    "nfs beside it": "105 22 0:66 / /home/u/.hermes-old rw - nfs4 nas:/old rw\n",
    "a disk over nfs": SERVED["nfs4"] + "106 90 8:2 / /home/u/.hermes rw - xfs /dev/sdb1 rw\n",
}


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        *((line, SharedDisk(kind, Trust.SERVED)) for kind, line in SERVED.items()),
        *((line, SharedDisk(kind, Trust.LAID)) for kind, line in LAID.items()),
        *((line, None) for line in OWN.values()),
    ],
    ids=[*SERVED, *LAID, *OWN],
)
def test_where_a_store_lies(mounts: str, expected: SharedDisk | None) -> None:
    assert shared_disk(Path(HOME), ROOT + mounts) == expected


def test_spaces_in_a_mount_point() -> None:
    mounts = ROOT + r"107 22 0:67 / /media/my\040share rw - cifs //nas/share rw" "\n"
    assert shared_disk(Path("/media/my share/state.db"), mounts) == SharedDisk("cifs", Trust.SERVED)
    assert shared_disk(Path("/media/my"), mounts) is None


def test_what_cannot_be_told_is_no_fault(tmp_path: Path) -> None:
    assert shared_disk(Path(HOME), "") is None
    assert shared_disk(Path(HOME), "nonsense\n\n1 2 - \n") is None
