"""This machine with folders of its own where schedulers keep their jobs: what a test installs there goes with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.support import environment

#: What is laid over the machine's own, and how it has to be. Nothing of this is seen outside of the commands run here.
_LAID = """
set -e
laid=$1; shift
for place in /etc/cron.d /etc/systemd/system /var/spool/cron/crontabs; do
    [ ! -d "$place" ] || mount --bind "$laid$place" "$place"
done
[ ! -e /etc/crontab ] || mount --bind "$laid/etc/crontab" /etc/crontab
mount --bind "$laid/run" /run
if [ -e "$laid/sbin/sendmail" ]; then
    mount -t overlay -o "lowerdir=$laid/sbin:/usr/sbin" overlay /usr/sbin
fi
exec "$@"
"""


class PrivateHost:
    """Commands run on it see the machine, but for the folders of cron and of systemd's units, which are its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.laid = folder / "laid"
        self.home = folder / "home"
        self.home.mkdir()
        #: What its commands have in their environment beside what they need.
        self.more: dict[str, str] = {}
        for place in ("etc/cron.d", "etc/systemd/system", "var/spool/cron/crontabs", "run", "sbin"):
            (self.laid / place).mkdir(parents=True)
        (self.laid / "etc" / "crontab").touch()
        self.crontabs = self.laid / "var/spool/cron/crontabs"
        self.cron_d = self.laid / "etc/cron.d"
        self.units = self.laid / "etc/systemd/system"
        theirs = Path("/var/spool/cron/crontabs")
        if theirs.is_dir():
            os.chown(self.crontabs, 0, theirs.stat().st_gid)
            self.crontabs.chmod(0o1730)

    def words(self, *command: str | Path) -> list[str]:
        """The words that run a command there."""
        return ["unshare", "--mount", "sh", "-c", _LAID, "sh", str(self.laid), *map(str, command)]

    def run(self, *command: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command there and waits for it; bytes that are no text go in and come out as they are."""
        return subprocess.run(
            self.words(*command),
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=60,
            check=False,
            cwd=self.folder,
            env=self.environment(),
        )

    def doctor(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs the installed doctor there."""
        return self.run(sys.executable, "-m", "hermes_doctor", *arguments)

    def python(self, program: str, *arguments: str) -> str:
        """Runs a program in Python there that must end well; returns what it prints."""
        done = self.run(sys.executable, "-c", program, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def environment(self) -> dict[str, str]:
        """Nothing of the tester's own settings."""
        return environment(self.folder, HOME=str(self.home), **self.more)


def listing(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder: files with their bytes, links with where they lead, folders."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = path.read_bytes() if path.is_file() else "(folder)"
    return found


def private_host(folder: Path, *, needs: Sequence[str] = ()) -> PrivateHost:
    """Gives such a host, or skips the test where it cannot be had. ``needs``: commands that it has to have."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("needs root on Linux, to lay folders over the machine's own")
    missing = [each for each in ("unshare", "mount", *needs) if shutil.which(each) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    host = PrivateHost(folder)
    done = host.run("true")
    if done.returncode != 0:
        pytest.skip(f"this machine lays no folders over its own: {done.stderr.strip()}")
    return host
