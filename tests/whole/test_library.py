"""Which SQLite touches a store: APSW's alone, in every command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hermes_doctor.demo.home import make_demo_home

#: Runs the doctor with a hook that ends the process when Python's own sqlite3 is asked to open a store.
WATCHED = """
import os, sys
def watch(event, args):
    if event == "sqlite3.connect" and "state.db" in os.path.basename(str(args[0])):
        os.write(2, b"Python's sqlite3 opened " + str(args[0]).encode())
        os._exit(99)
sys.addaudithook(watch)
from hermes_doctor.__main__ import main
main()
"""


@pytest.mark.parametrize("command", [["scan"], ["fix"], ["fix", "--apply"], ["runs"]], ids=" ".join)
def test_pythons_own_sqlite3_never_opens_a_store(tmp_path: Path, command: list[str]) -> None:
    home = tmp_path / "home"
    make_demo_home(home)
    done = subprocess.run(
        [sys.executable, "-P", "-c", WATCHED, *command, str(home)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(tmp_path / "state")},
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.strip()


def test_the_watch_would_see_it(tmp_path: Path) -> None:
    opened = WATCHED.split("from hermes_doctor")[0] + f"import sqlite3; sqlite3.connect({str(tmp_path / 'state.db')!r})"
    done = subprocess.run([sys.executable, "-c", opened], capture_output=True, text=True, check=False)
    assert done.returncode == 99
