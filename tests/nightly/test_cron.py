"""Cron: Debian's own runs the job and mails what it says; a crontab comes back byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.nightly.cron import CronFile, UserCrontab
from hermes_doctor.nightly.schedule import Job, RefusedError
from tests.cli.support import valid
from tests.debian import debian_program
from tests.nightly.private_host import PrivateHost, listing, private_host

JOB = Job(("/opt/my doctor/bin/doctor", "nightly", "/50% of 'it'"), 3, 10, environment={"HERMES_HOME": "/a b"})

#: What people have in their crontabs.
THEIRS = {
    "none": None,
    "a job": b"MAILTO=me\n# my backup\n5 4 * * * /usr/bin/backup 50\\%\n",
    "odd bytes": b"# caf\xe9 \xc3\xa4\t  \n\n\n*/5 * * * * echo \xff\n#\n",
    "much alike": b"# hermes-state-doctor wrote this file, I think\n1 2 * * * doctor scan\n"
    b"# end of what hermes-state-doctor wrote\n",
}

_INSTALL = """
from hermes_doctor.nightly.cron import UserCrontab
from hermes_doctor.nightly.schedule import Job
import ast, sys
print(UserCrontab().install(Job(**ast.literal_eval(sys.argv[1])), force=len(sys.argv) > 2))
"""
_REMOVE = """
from hermes_doctor.nightly.cron import UserCrontab
import sys
print(UserCrontab().remove(force=len(sys.argv) > 1))
"""
_FOUND = """
from hermes_doctor.nightly.cron import UserCrontab
print([(each.owner.name, each.at) for each in UserCrontab().installed()])
"""


def told(job: Job) -> str:
    return repr({"words": job.words, "hour": job.hour, "minute": job.minute, "environment": dict(job.environment)})


@pytest.fixture
def host(tmp_path: Path) -> PrivateHost:
    debian_program("crontab", "cron")
    return private_host(tmp_path)


def test_debians_cron_runs_it_and_mails_what_is_new(host: PrivateHost) -> None:
    cron = debian_program("cron")
    mail = host.folder / "mail"
    sendmail = host.laid / "sbin" / "sendmail"
    sendmail.write_text(f"#!/bin/sh\ncat > {mail}.new\nmv {mail}.new {mail}\n")
    sendmail.chmod(0o755)
    if host.run("test", "-x", "/usr/sbin/sendmail").returncode != 0:
        pytest.skip("this machine lays nothing over /usr/sbin, where cron looks for what sends mail")
    store = make_demo_home(host.home / ".hermes")
    # The next minute that cron is surely there for.
    at = time.localtime(time.time() + 63)
    installed = host.doctor("schedule", "install", "--at", f"{at.tm_hour:02}:{at.tm_min:02}")
    assert installed.returncode == 0, installed.stderr
    assert f"Installed with cron, every day at {at.tm_hour:02}:{at.tm_min:02}: /etc/cron.d/" in installed.stdout
    log = host.folder / "log"
    with log.open("wb") as stream:
        running = subprocess.Popen(host.words(cron, "-f"), env=host.environment(), stdout=stream, stderr=stream)
    try:
        limit = time.monotonic() + 100
        while not mail.exists():
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < limit, f"nothing came of it. {log.read_text()}"
            time.sleep(0.25)
    finally:
        running.terminate()
        running.wait(timeout=10)
    head, _, body = mail.read_text().partition("\n\n")
    assert "To: root" in head
    assert body.startswith("doctor: 17 new findings in ~/.hermes/state.db: ")
    assert body.endswith(f"Next: doctor scan {store}\n")
    kept = host.home / ".local" / "state" / "hermes-state-doctor" / "nightly.json"
    assert valid(kept.read_text(), "nightly")["new"] == 17
    # The same line again, by hand: nothing is new, so there is nothing to be mailed.
    line = (host.cron_d / "hermes-state-doctor").read_text().splitlines()[1]
    again = host.run("sh", "-c", line.split(" root ", 1)[1].replace("\\%", "%"))
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


@pytest.mark.parametrize("theirs", THEIRS.values(), ids=THEIRS)
def test_a_crontab_comes_back_byte_for_byte(host: PrivateHost, theirs: bytes | None) -> None:
    crontab = host.crontabs / "root"

    def now() -> bytes:
        return os.fsencode(host.run("crontab", "-l").stdout)

    if theirs is not None:
        assert host.run("crontab", "-", stdin=os.fsdecode(theirs)).returncode == 0
    before = crontab.read_bytes() if theirs is not None else None
    assert host.python(_FOUND) == "[]\n"
    assert host.python(_INSTALL, told(JOB)) == "True\n"
    with_block = now()
    assert with_block.startswith(theirs or b"")
    assert b"\n10 3 * * * env " in b"\n" + with_block
    assert b"/50\\% of" in with_block
    assert host.python(_INSTALL, told(JOB)) == "False\n"
    assert now() == with_block
    assert host.python(_FOUND) == "[('US', '03:10')]\n"
    later = Job(JOB.words, 4, 20)
    assert host.python(_INSTALL, told(later)) == "True\n"
    assert b"\n20 4 * * * " in b"\n" + now()
    assert now().count(b"nightly") == 1
    # What they add behind it stays as well.
    added = now() + b"7 7 * * * behind\n"
    assert host.run("crontab", "-", stdin=os.fsdecode(added)).returncode == 0
    assert host.python(_REMOVE) == "['your crontab']\n"
    assert now() == (theirs or b"") + b"7 7 * * * behind\n"
    if theirs is None:
        host.run("crontab", "-r")
        host.python(_INSTALL, told(JOB))
        host.python(_REMOVE)
        assert not crontab.exists()
    else:
        host.run("crontab", "-", stdin=os.fsdecode(theirs))
        host.python(_INSTALL, told(JOB))
        host.python(_REMOVE)
        # But for the date in cron's own three lines at the top, if it writes any.
        assert crontab.read_bytes()[-len(theirs) :] == theirs
        assert len(crontab.read_bytes()) == len(before or b"")
    assert host.python(_REMOVE) == "[]\n"


def test_a_block_that_was_changed_by_hand_is_asked_about(host: PrivateHost) -> None:
    host.python(_INSTALL, told(JOB))
    changed = host.run("crontab", "-l").stdout.replace("10 3 * * *", "30 5 * * *")
    host.run("crontab", "-", stdin=changed)
    assert host.python(_FOUND) == "[('US_CHANGED', '05:30')]\n"
    for program, arguments in ((_INSTALL, [told(JOB)]), (_REMOVE, [])):
        done = host.run(sys.executable, "-c", program, *arguments)
        assert done.returncode == 1
        assert "was changed by hand" in done.stderr
        assert host.run("crontab", "-l").stdout == changed
    assert host.python(_REMOVE, "--force") == "['your crontab']\n"
    assert host.run("crontab", "-l").returncode == 1


def test_a_block_without_its_end_is_left_to_its_owner(host: PrivateHost) -> None:
    host.python(_INSTALL, told(JOB))
    whole = host.run("crontab", "-l").stdout
    torn = whole.replace("# end of what hermes-state-doctor wrote\n", "") + "7 7 * * * mine\n"
    host.run("crontab", "-", stdin=torn)
    done = host.run(sys.executable, "-c", _REMOVE, "--force")
    assert "crontab -e" in done.stderr
    assert host.run("crontab", "-l").stdout == torn


_AS_NOBODY = """
import os
import hermes_doctor.cli.schedule
from hermes_doctor.nightly.cron import UserCrontab
from hermes_doctor.nightly.schedule import Job, RefusedError
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
cron = UserCrontab()
print(cron.installed(), cron.remove(force=False))
try:
    cron.install(Job(("/bin/true",), 3, 10), force=False)
except RefusedError as error:
    print(error)
"""


def test_who_may_have_no_crontab_has_none(host: PrivateHost) -> None:
    etc = host.laid / "allowing"
    etc.mkdir()
    (etc / "cron.allow").write_text("root\n")
    lay = 'mount -t overlay -o "lowerdir=$1:/etc" overlay /etc || exit 77; shift; exec "$@"'
    done = host.run("sh", "-c", lay, "sh", etc, sys.executable, "-c", _AS_NOBODY)
    if done.returncode == 77:
        pytest.skip("this machine lays nothing over /etc, where cron looks for whom it serves")
    # It is asked also where systemd does the work, which must not fail by it.
    nothing, refused = done.stdout.splitlines()
    assert nothing == "[] []"
    assert refused.startswith("you are not allowed to use crontab. Nothing was changed.")


_KEEPS_BYTES = """#!/bin/sh
case $1 in
    -l) [ -e "$TABLE" ] || { echo "crontab: can't open 'me': No such file or directory" >&2; exit 1; }; cat "$TABLE";;
    -r) rm "$TABLE";;
    -) cat > "$TABLE";;
esac
"""


@pytest.mark.parametrize("theirs", [b"1 1 * * * mine", b"# no end\n1 1 * * * mine", b"\n", b"1 1 * * * mine\n"])
def test_where_a_last_line_has_no_end_it_has_none_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: bytes
) -> None:
    # As Busybox has it, whose crontab keeps whatever it is given; Debian's refuses such a line.
    (tmp_path / "crontab").write_text(_KEEPS_BYTES)
    (tmp_path / "crontab").chmod(0o755)
    table = tmp_path / "table"
    table.write_bytes(theirs)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TABLE", str(table))
    cron = UserCrontab()
    assert cron.install(JOB, force=False)
    before = table.read_bytes()
    assert b"\n10 3 * * * env" in before
    assert not cron.install(JOB, force=False)
    assert cron.install(Job(JOB.words, 5, 0), force=False)
    assert cron.install(JOB, force=False)
    assert table.read_bytes() == before
    assert cron.remove(force=False) == ["your crontab"]
    assert table.read_bytes() == theirs
    table.unlink()
    assert cron.install(JOB, force=False)
    assert cron.remove(force=False) == ["your crontab"]
    assert not table.exists()


def test_a_file_for_root_is_all_ours_or_not_touched(tmp_path: Path) -> None:
    cron = CronFile(tmp_path)
    (tmp_path / "another").write_text("1 1 * * * root other\n")
    before = listing(tmp_path)
    assert cron.install(JOB, force=False)
    assert not cron.install(JOB, force=False)
    file = tmp_path / "hermes-state-doctor"
    assert file.stat().st_mode & 0o777 == 0o644
    assert "\n10 3 * * * root env 'HERMES_HOME=/a b' " in file.read_text()
    assert [each.at for each in cron.installed()] == ["03:10"]
    assert cron.remove(force=False) == [str(file)]
    assert listing(tmp_path) == before
    file.write_text("1 1 * * * root mine\n")
    for force in (False, True):
        with pytest.raises(RefusedError, match="did not write it"):
            cron.install(JOB, force=force)
        with pytest.raises(RefusedError, match="did not write it"):
            cron.remove(force=force)
    assert file.read_text() == "1 1 * * * root mine\n"


def test_a_link_is_not_ours(tmp_path: Path) -> None:
    cron = CronFile(tmp_path / "cron.d")
    (tmp_path / "cron.d").mkdir()
    cron.install(JOB, force=False)
    ours = tmp_path / "cron.d" / "hermes-state-doctor"
    ours.rename(tmp_path / "elsewhere")
    ours.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RefusedError):
        cron.remove(force=True)
    assert ours.is_symlink()


@pytest.mark.parametrize(("word", "reason"), [("two\nlines", "line's end"), ("x" * 1000, "longer than the 990 bytes")])
def test_what_cron_cannot_hold_is_refused(word: str, reason: str) -> None:
    for cron in (CronFile(), UserCrontab()):
        with pytest.raises(RefusedError, match=reason):
            cron.pieces(Job(("/bin/doctor", word), 3, 10))


def test_the_longest_that_is_not_refused_is_taken_by_debians_cron(host: PrivateHost) -> None:
    short = Job(("/bin/doctor", ""), 3, 10)
    taken = len(UserCrontab().pieces(short)[0].text.splitlines()[1].split(" * * * ", 1)[1]) - 2
    job = Job(("/bin/doctor", "x" * (990 - taken)), 3, 10)
    host.python(_INSTALL, told(job))
    assert "x" * (990 - taken) in host.run("crontab", "-l").stdout
