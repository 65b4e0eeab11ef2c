"""Runs inside one release of hermes-agent: one step per line in, one result per line out.

Started as ``python -P driver.py HOME`` with PYTHONPATH set to the unpacked wheel; it imports nothing of this
project. A line of input is a JSON object with exactly one of the keys of ``_STEPS``; a line of output is
``{"ok": value}`` or ``{"error": "Type: text"}``. An error does not stop the list. At the end of the input the
store is closed as the release closes it.

Bytes travel as ``{"blob": hex}``. A step may keep its value with ``"as": name``; ``{"ref": name, "path":
[...]}`` in the arguments of a later step stands for it (or for a part of it).
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

# time_machine would load it for its plugin: longer than a start takes, and some releases look whether it is there.
sys.modules["pytest"] = None  # type: ignore[assignment]  # "not to be had"
import time_machine  # noqa: E402 (as above)

del sys.modules["pytest"]

LOOPBACK = ("127.", "::1", "localhost")


def _no_network(event: str, args: tuple[Any, ...]) -> None:
    """Audit hook: a release that is run as an oracle talks to nobody."""
    if event == "socket.connect":
        address = args[1]
        host = address[0] if isinstance(address, tuple) else ""
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = args[0] or ""
    else:
        return
    text = host.decode() if isinstance(host, bytes) else str(host)
    if text and not text.startswith(LOOPBACK):
        raise OSError(f"the oracle has no network ({event} {text})")


def plain(value: Any) -> Any:
    """``value`` as something JSON can hold."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"blob": bytes(value).hex()}
    if isinstance(value, sqlite3.Row):
        return {key: plain(value[key]) for key in value.keys()}  # noqa: SIM118 (a Row iterates over values)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    return repr(value)


class Driver:
    """The open store and clock of one subprocess."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.db: Any = None
        self.kept: dict[str, Any] = {}
        self.closers: list[Callable[[], None]] = []
        self._travel: Any = None
        self._inside: Any = None

    def step(self, step: dict[str, Any]) -> Any:
        """Carries out one step and gives back its value."""
        kind = next(key for key in step if key in self._STEPS)
        value = self._STEPS[kind](self, self._resolved(step))
        if "as" in step:
            self.kept[step["as"]] = value
        return value

    def opened(self) -> Any:
        """The release's SessionDB on the home's store, opened at the first use."""
        if self.db is None:
            self.db = importlib.import_module("hermes_state").SessionDB(db_path=self.home / "state.db")
        return self.db

    def close(self) -> None:
        """Closes the store as the release does, and what inside.py opened besides."""
        while self.closers:
            self.closers.pop()()
        if self.db is not None:
            self.db.close()
            self.db = None

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._resolved(item) for item in value]
        if isinstance(value, dict):
            if set(value) == {"blob"}:
                return bytes.fromhex(value["blob"])
            if "ref" in value and set(value) <= {"ref", "path"}:
                found = self.kept[value["ref"]]
                for part in value.get("path", ()):
                    found = found[part]
                return found
            return {key: self._resolved(item) for key, item in value.items()}
        return value

    def _call(self, step: dict[str, Any]) -> Any:
        method = getattr(self.opened(), step["call"])
        return method(*step.get("args", ()), **step.get("kwargs", {}))

    def _use(self, step: dict[str, Any]) -> Any:
        """Calls a function of inside.py with the driver and the step's keyword arguments."""
        if self._inside is None:
            spec = importlib.util.spec_from_file_location("inside", Path(__file__).with_name("inside.py"))
            assert spec is not None
            assert spec.loader is not None
            self._inside = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self._inside)
        return getattr(self._inside, step["use"])(self, **step.get("kwargs", {}))

    def _sql(self, step: dict[str, Any]) -> Any:
        """One statement on the release's own connection; ``many``: for each list, in one transaction."""
        connection = self.opened()._conn
        if "many" not in step:
            return [tuple(row) for row in connection.execute(step["sql"], step.get("args", ())).fetchall()]
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(step["sql"], step["many"])
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        return None

    def _clock(self, step: dict[str, Any]) -> None:
        """Sets what the release takes for now (seconds since the epoch, ticking). None: the real time."""
        if self._travel is not None:
            self._travel.stop()
            self._travel = None
        if step["clock"] is not None:
            self._travel = time_machine.travel(float(step["clock"]), tick=True)
            self._travel.start()

    def _open(self, step: dict[str, Any]) -> None:
        self.close()
        if isinstance(step["open"], dict):
            session_db = importlib.import_module("hermes_state").SessionDB
            self.db = session_db(db_path=self.home / "state.db", **step["open"])
        else:
            self.opened()

    def _close(self, step: dict[str, Any]) -> None:
        self.close()

    def _precreate(self, step: dict[str, Any]) -> str:
        """Makes an empty file in the given journal mode before the release's first open."""
        path = self.home / "state.db"
        if path.exists():
            raise FileExistsError(f"{path} is there already")
        connection = sqlite3.connect(path)
        mode = str(connection.execute(f"PRAGMA journal_mode={step['precreate']}").fetchone()[0])
        connection.close()
        return mode

    def _hold(self, step: dict[str, Any]) -> None:
        """Keeps the store open and does nothing for so many seconds."""
        self.opened()
        time.sleep(float(step["hold"]))

    def _pid(self, step: dict[str, Any]) -> int:
        return os.getpid()

    def _kill(self, step: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _begin_and_hang(self, step: dict[str, Any]) -> None:
        """Dies inside a write transaction whose pages have reached the disk.

        The page cache is cut to nothing first, so that SQLite has to spill: in DELETE mode the journal that
        stays behind is hot, in WAL mode the -wal ends in frames without a commit.
        """
        connection = self.opened()._conn
        connection.execute("PRAGMA cache_size=1")
        connection.execute("PRAGMA cache_spill=1")
        connection.execute("BEGIN IMMEDIATE")
        for statement, *args in step["begin_and_hang"]:
            connection.execute(statement, args)
        os.kill(os.getpid(), signal.SIGKILL)

    _STEPS: ClassVar[dict[str, Callable[[Driver, dict[str, Any]], Any]]] = {
        "call": _call,
        "use": _use,
        "sql": _sql,
        "clock": _clock,
        "open": _open,
        "close": _close,
        "precreate": _precreate,
        "hold": _hold,
        "pid": _pid,
        "kill": _kill,
        "begin_and_hang": _begin_and_hang,
    }


def main() -> int:
    """Reads steps until the input ends."""
    # A release may print; its words must not get between the results.
    results = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    os.dup2(2, 1)
    sys.addaudithook(_no_network)
    driver = Driver(Path(sys.argv[1]))
    for line in sys.stdin:
        try:
            answer = {"ok": plain(driver.step(json.loads(line)))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        results.write(json.dumps(answer) + "\n")
        results.flush()
    driver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
