"""The steps that a release's subprocess understands, as small constructors."""

from __future__ import annotations

from typing import Any

Step = dict[str, Any]


def call(name: str, *args: Any, keep: str | None = None, **kwargs: Any) -> Step:
    """Calls ``SessionDB.<name>``; ``keep`` names the value for a later :func:`ref`."""
    return _kept({"call": name, "args": list(args), "kwargs": kwargs}, keep)


def use(name: str, keep: str | None = None, **kwargs: Any) -> Step:
    """Calls a function of ``inside.py``: what takes more of the release than its SessionDB."""
    return _kept({"use": name, "kwargs": kwargs}, keep)


def sql(statement: str, *args: Any, keep: str | None = None) -> Step:
    """One statement on the release's own connection. Its value: the rows, as lists."""
    return _kept({"sql": statement, "args": list(args)}, keep)


def sql_many(statement: str, rows: list[list[Any]]) -> Step:
    """The statement for each of ``rows``, in one transaction."""
    return {"sql": statement, "many": rows}


def clock(seconds: float | None) -> Step:
    """From here on the release takes this for now (seconds since the epoch, ticking). None: the real time."""
    return {"clock": seconds}


def open_store(**kwargs: Any) -> Step:
    """Opens the store (else the first step that needs it does); keywords go to ``SessionDB``."""
    return {"open": kwargs or True}


def close_store() -> Step:
    """Closes the store as the release does (else the end of the list does)."""
    return {"close": True}


def precreate(journal_mode: str) -> Step:
    """Makes an empty file in that journal mode before the release's first open; 0.20+ keep WAL, so made."""
    return {"precreate": journal_mode}


def hold(seconds: float) -> Step:
    """Keeps the store open for so long, doing nothing."""
    return {"hold": seconds}


def kill() -> Step:
    """SIGKILL to itself, the store open: -wal and -shm stay as after a real crash."""
    return {"kill": True}


def die_in_transaction(*statements: tuple[Any, ...]) -> Step:
    """SIGKILL inside a write transaction whose pages have reached the disk: (SQL, argument, ...) each."""
    return {"begin_and_hang": [list(statement) for statement in statements]}


def ref(name: str, *path: str | int) -> Step:
    """Stands for the kept value of an earlier step of the same list, or for a part of it."""
    return {"ref": name, "path": list(path)}


def blob(data: bytes) -> Step:
    """Bytes, as an argument."""
    return {"blob": data.hex()}


def _kept(step: Step, keep: str | None) -> Step:
    return step if keep is None else step | {"as": keep}
