"""A small store, and another process that writes to it and carries its log over without pause."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

#: Writes, and carries the log over in every way, until nothing comes in any more. A row is never written twice alike.
_WRITER = textwrap.dedent(
    """
    import random, select, sys, time
    import apsw

    path, mode = sys.argv[1:]
    chance = random.Random(5)
    connection = apsw.Connection(path)
    connection.set_busy_timeout(5000)
    connection.pragma("synchronous", "off")
    connection.pragma("wal_autocheckpoint", 0)
    done = 0
    while not select.select([sys.stdin], [], [], 0 if mode == "wal" else 0.02)[0]:
        with connection:
            for _ in range(chance.randrange(1, 6)):
                connection.execute("INSERT INTO t(b) VALUES(randomblob(?))", (chance.randrange(9000),))
                number = chance.randrange(1, 400)
                connection.execute("UPDATE t SET b = randomblob(max(20, length(b))) WHERE id = ?", (number,))
            if chance.random() < 0.5:
                connection.execute("DELETE FROM t WHERE id = (SELECT min(id) FROM t)")
        if mode == "wal" and chance.random() < 0.5:
            connection.set_busy_timeout(5)
            try:
                how = chance.choice(["PASSIVE", "PASSIVE", "RESTART", "TRUNCATE"])
                connection.execute(f"PRAGMA wal_checkpoint({how})").fetchall()
            except apsw.BusyError:
                pass
            connection.set_busy_timeout(5000)
            time.sleep(chance.choice([0, 0.01]))
        done += 1
        if done == 10:
            print("writing", flush=True)
    """
)


def make_store(path: Path, mode: str, rows: int = 200) -> apsw.Connection:
    """A table ``t`` with rows of up to five pages; carried over by hand only."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5000)
    connection.pragma("synchronous", "off")
    connection.pragma("page_size", 1024)
    connection.pragma("journal_mode", mode)
    connection.pragma("wal_autocheckpoint", 0)
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a, b)")
    connection.execute(
        "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
        " INSERT INTO t(b) SELECT randomblob(20 + i * 7 % 5000) FROM n",
        (rows,),
    )
    return connection


@contextmanager
def writing(path: Path, mode: str) -> Iterator[None]:
    """Somebody writes meanwhile; nothing that he does may fail."""
    command = [sys.executable, "-c", _WRITER, str(path), mode]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"writing\n"
        yield
        assert process.poll() is None
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()
    assert process.returncode == 0
