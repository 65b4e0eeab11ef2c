"""What to type, in order, about each fault of a write-ahead log: nothing that is in one file only may be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hermes_doctor.host.bundle import sidecar
from hermes_doctor.host.openers import Opener
from hermes_doctor.host.upstream import RECOVER_SINCE, hermes_command, inspection, quoted
from hermes_doctor.store.wal_state import Fault, LogFault

#: First release with `hermes sessions set-journal-mode`.
_SET_MODE_SINCE = "0.21.5"
_STOP = "in the usual way (hermes gateway stop, close the CLI)"


def steps(fault: LogFault, hermes: str) -> tuple[str, ...]:
    """Return what to do about a fault, in order; ``hermes``: how hermes is called for this store."""
    return _STEPS[fault.fault](fault, hermes)


def hermes_of(store: Path) -> str:
    """Return how hermes is called for a store that has no view; plain ``hermes`` for one without a home."""
    return hermes_command(store) or "hermes"


def _save_both(fault: LogFault, hermes: str) -> tuple[str, ...]:
    """Stop all writers in the middle, copy each generation, and only then let them end.

    Where there are two generations the older must not close in good order: releases up to 0.20.x carry its pages over
    then, over newer ones, and the store is malformed (seen with 0.19.0; killed, it stays sound). Where there is one,
    closing brings all of it into the store.
    """
    old, new = _pids(fault.retired), _pids(fault.others)
    saved = [(_beside(fault.store, each.pid), each) for each in fault.retired]
    told = [f"kill -STOP {' '.join([*old, *new])}"]
    told += [_copy(folder, fault.store.name, _open_files(each)) for folder, each in saved]
    looked_into = [folder for folder, _ in saved]
    if fault.two:
        log = sidecar(fault.store, "-wal")
        there = {"": fault.store, "-wal": log} if log.exists() else {"": fault.store}
        looked_into.append(_beside(fault.store, "new"))
        told += [
            _copy(looked_into[-1], fault.store.name, there),
            f"kill -KILL {' '.join(old)} (closing, it would write older pages over newer ones)",
        ]
        told += [f"kill -CONT {' '.join(new)}, and stop it {_STOP}"] if new else []
    else:
        told.append(
            f"kill -CONT {' '.join(old)}, and stop it {_STOP}: closing carries its log over, or keeps it beside"
        )
    told += [_look_into(folder / fault.store.name, hermes) for folder in looked_into]
    return (*told, "only then start hermes again")


def _restart(fault: LogFault, hermes: str) -> tuple[str, ...]:
    return (f"restart it (pid {', '.join(_pids(fault.retired))})",)


def _bring_the_log(fault: LogFault, hermes: str) -> tuple[str, ...]:
    return (
        "do not start hermes on it: that makes a new log",
        f"look for {sidecar(fault.store, '-wal').name} where this store was copied from, or in the trash",
        "copy the store, its -wal and its -shm anew, together, while nobody has them open",
        "without the log: the store is whole as of its last checkpoint, and what came later is lost",
    )


def _accept(fault: LogFault, hermes: str) -> tuple[str, ...]:
    return (
        "if this is a copy, copy the store and its -wal anew, while nobody has them open",
        "else nothing brings them back (power was cut, or the disk was full): hermes's next opening goes on without",
    )


def _move_aside(fault: LogFault, hermes: str) -> tuple[str, ...]:
    folder = _beside(fault.store, "log")
    sidecars = [sidecar(fault.store, "-wal"), sidecar(fault.store, "-shm")]
    files = " ".join(_short(each, folder) for each in sidecars if each.exists())
    name = quoted(folder.name)
    return (
        f"stop hermes {_STOP}",
        f"cd {quoted(folder.parent)} && mkdir -m 700 {name} && mv {files} {name}/",
        f"doctor scan {quoted(fault.store)}",
        "keep the folder until you know which store the log belonged to",
    )


def _find_the_store(fault: LogFault, hermes: str) -> tuple[str, ...]:
    folder = _beside(fault.store, "log")
    return (
        "do not start hermes: SQLite deletes the log of a store without bytes as it opens it"
        if fault.fault is Fault.ORPHANED
        else "do not start hermes: it would go on with what is left",
        _copy(folder, fault.store.name, {"-wal": sidecar(fault.store, "-wal")}),
        f"bring the store itself into {quoted(folder)}, as it was when the log was written",
        _look_into(folder / fault.store.name, hermes),
    )


def _unblock(fault: LogFault, hermes: str) -> tuple[str, ...]:
    if fault.others:
        return (
            f"end or restart it (pid {', '.join(_pids(fault.others))}): hermes's next write carries the frames over",
        )
    return (f"stop hermes {_STOP}, which carries them over, and start it again",)


def _inspect(fault: LogFault, hermes: str) -> tuple[str, ...]:
    live = fault.store.parent.with_name(fault.store.name)
    if fault.store.exists():
        return (_look_into(fault.store, hermes), "when nothing in it is missing, move it away")
    # Of a large store hermes keeps the header only: the file itself is still the store's.
    folder = live.with_name(f"{fault.file}-whole")
    return (
        f"stop hermes {_STOP}",
        _copy(folder, live.name, {"": live, "-wal": sidecar(fault.store, "-wal")}),
        _look_into(folder / live.name, hermes),
    )


def _change_the_disk(fault: LogFault, hermes: str) -> tuple[str, ...]:
    return (
        "stop every hermes that uses the store, on every machine",
        "move the home to a disk of this machine; or, where it has to stay,"
        f" {hermes} sessions set-journal-mode delete (hermes {_SET_MODE_SINCE} or newer),"
        " and database.journal_mode: delete in config.yaml",
    )


def _nothing(fault: LogFault, hermes: str) -> tuple[str, ...]:
    return ()


_STEPS: dict[Fault, Callable[[LogFault, str], tuple[str, ...]]] = {
    Fault.WRITES_TO_DELETED: _save_both,
    Fault.READS_DELETED: _restart,
    Fault.TAKEN_AWAY: _bring_the_log,
    Fault.CUT_OFF: _accept,
    Fault.FOREIGN: _move_aside,
    Fault.ORPHANED: _find_the_store,
    Fault.WIPED: _find_the_store,
    Fault.STUCK: _unblock,
    Fault.WAITING: _nothing,
    Fault.PUT_ASIDE: _inspect,
    Fault.PUT_ASIDE_CARRIED: _nothing,
    Fault.SERVED_DISK: _change_the_disk,
    Fault.LAID_DISK: _nothing,
    Fault.HOT_JOURNAL: _nothing,
}


def _pids(processes: Iterable[Opener]) -> list[str]:
    return [str(each.pid) for each in processes]


def _beside(store: Path, what: object) -> Path:
    """Return a folder for copies; where it is there already, ``mkdir`` says so and nothing is overwritten."""
    return store.with_name(f"{store.name}.saved-{what}")


def _open_files(opener: Opener) -> dict[str, Path]:
    """Return by which path each file of a process can still be read, by what its name adds to the store's."""
    files = {"": opener.store, "-wal": opener.log}
    return {suffix: Path(opener.descriptor(file)) for suffix, file in files.items() if file is not None}


def _copy(folder: Path, name: str, files: Mapping[str, Path]) -> str:
    """Return the command that copies files into a new folder, there named as a store and its log."""
    copies = [
        f"cp {_short(source, folder)} {quoted(f'{folder.name}/{name}{suffix}')}" for suffix, source in files.items()
    ]
    return " && ".join([f"cd {quoted(folder.parent)}", f"mkdir -m 700 {quoted(folder.name)}", *copies])


def _short(path: Path, folder: Path) -> str:
    """Return a path as a shell takes it that stands where the folder is."""
    return quoted(path.relative_to(folder.parent) if path.is_relative_to(folder.parent) else path)


def _look_into(store: Path, hermes: str) -> str:
    return f"{inspection(hermes, store)} (hermes {RECOVER_SINCE} or newer)"
