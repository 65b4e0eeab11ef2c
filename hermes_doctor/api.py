"""The doctor in Python: `scan`, `plan`, `apply` and `undo`, which the commands of the same names call, too.

What is wrong with a store, or stands in the way of mending it, is never raised: the result says it by its
``condition`` or ``outcome``, its ``reason`` and its ``exit_code``. Raised is what the caller got wrong (ValueError,
LookupError), what the machine cannot do (OSError), and a mistake of the doctor's own.

A result holds temporary files as soon as more is found than fits into a few megabytes: use it as a context manager, or
call ``close()``. Nothing is printed. Whatever goes on is told to ``progress``, a function of the store's path, the step
in words, and the share of it that is done (0 to 1, None: not known); what that raises ends the work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hermes_doctor import catalogue
from hermes_doctor.engine.model import Check, ExitCode
from hermes_doctor.engine.scan import CheckResult, Look, Progress, ScanOptions, StoreScan, cores, scan_store
from hermes_doctor.host.homes import StoreRef, real, resolve_targets

if TYPE_CHECKING:
    # What only plans, mends and undoes: a scan takes no time to load it.
    from hermes_doctor.engine.journal import Run
    from hermes_doctor.engine.plan import Chosen, StoreFix
    from hermes_doctor.engine.run_index import RunIndex
    from hermes_doctor.engine.stopping import Stop
    from hermes_doctor.engine.undo import StoreUndo

#: How a store may be named: by its file or its Hermes home, or as `stores` gives it. None: this host's.
Store = StoreRef | str | os.PathLike[str] | None
#: When a store is copied before it is changed; auto: up to 1 GiB, where there is room.
Backup = Literal["always", "auto", "never"]


def stores(*targets: str | os.PathLike[str]) -> list[StoreRef]:
    """Return the stores that these targets stand for, each once.

    A target is a ``state.db``, or a Hermes home: its own store and each profile's. Without targets: this host, that is
    ``$HERMES_HOME``, else the platform's default home. A leading ``~`` is the user's home folder. What does not exist
    still gives a store, of which a scan then says that it is missing. Raises ValueError for an empty target.
    """
    return resolve_targets([_path(target) for target in targets])


def scan(
    store: Store = None,
    *,
    checks: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    idle: float = 0.0,
    deep: bool = False,
    threads: int | None = None,
    since_last: bool = False,
    max_seconds: float | None = None,
    progress: Progress | None = None,
    look: Look | None = None,
    options: ScanOptions | None = None,
) -> StoreScan:
    """Read one store and find every fault. Nothing is ever changed, and nothing left behind beside the store.

    ``checks``: the names of those to run, None for all; ``skip``: of those that are not. ``idle``: seconds; nothing
    that was used within them is taken for abandoned. ``deep``: every page and column is read. ``threads``: how many
    read at once, None for one a core and four at most. ``since_last``: messages that are proven to be as they were at
    the last such scan are not read again. ``max_seconds``: when to stop; what was found by then is given, and
    ``stopped`` says how far it came. ``look``: called with the result and the open store once all is found. ``options``
    stands for ``idle`` to ``max_seconds`` where the caller has them in one, as the commands do.

    All checks are in the result's ``checks``, those that did not run as skipped, and the findings in ``findings``.
    Raises ValueError for a check that is not known, or a folder with several stores.
    """
    ref, chosen = _one(store), _chosen_checks(checks, skip)
    if options is None:
        options = _options(idle, deep, threads, since_last, max_seconds)
    result = scan_store(ref, chosen, options, progress, look)
    complete(result, chosen)
    return result


def plan(
    store: Store = None,
    *,
    checks: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    unsafe: bool = False,
    live: bool = False,
    backup: Backup = "auto",
    idle: float = 0.0,
    deep: bool = False,
    progress: Progress | None = None,
    chosen: Chosen | None = None,
    options: ScanOptions | None = None,
) -> StoreFix:
    """Say what `apply` would change, and in ``would_be_refused`` what would stand in its way. Changes nothing.

    ``unsafe``: also what is not safe in every case. ``live``: beside a hermes that has the store open, as far as that
    is safe. ``backup``: whether the store would be copied before. The others are as for `scan`. ``chosen`` stands for
    ``checks`` to ``unsafe``, ``options`` for ``idle`` and ``deep``, where the caller has them in one.

    Each change in ``changes`` says what would be done to which row, or why it would not. Raises as `scan` does.
    """
    from hermes_doctor.engine.plan import plan_store

    return plan_store(
        _one(store),
        chosen or _chosen(checks, skip, unsafe=unsafe),
        options or _options(idle, deep),
        backup=backup,
        live=live,
        progress=progress,
    )


def apply(
    store: Store = None,
    *,
    checks: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    unsafe: bool = False,
    live: bool = False,
    backup: Backup = "auto",
    idle: float = 0.0,
    deep: bool = False,
    progress: Progress | None = None,
    stop: Stop | None = None,
    chosen: Chosen | None = None,
    options: ScanOptions | None = None,
    index: RunIndex | None = None,
) -> StoreFix:
    """Mend one store: what `plan` would with the same arguments, row by row as the faults are found by then.

    Nobody is asked, also with ``unsafe``. A store that somebody has open is refused without ``live``. ``stop``: asked
    for an end, from a signal handler or another thread, it ends the work after the present transaction. ``index``:
    where the run is noted so that it is found from anywhere, None for the user's own.

    ``run`` in the result is what `undo` takes it back by, None where nothing was changed. Raises as `scan` does; and
    what is committed by then stands, and is in the journal.
    """
    from hermes_doctor.engine.apply import apply_store

    done = apply_store(
        _one(store),
        chosen or _chosen(checks, skip, unsafe=unsafe),
        options or _options(idle, deep),
        backup=backup,
        stop=_unasked(stop),
        live=live,
        progress=progress,
    )
    if done.run is not None:
        done.noted = _note(done, index)
    return done


def undo(
    store: Store,
    run: str | Run,
    *,
    apply: bool = False,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> StoreUndo:
    """Take one run back, newest change first; without ``apply`` only say what that would do.

    ``run``: its name, or the beginning of it, as `apply` gave it and ``doctor runs`` lists it. A column that no longer
    holds what the run wrote is left as it is. ``stop``: as for `apply`.

    Raises LookupError for a run that the store's journal does not know, or of which there are several that begin so;
    OSError or sqlite3.Error where the journal cannot be read.
    """
    from hermes_doctor.engine.undo import undo_store

    ref = _one(store)
    past = _run(ref, run) if isinstance(run, str) else run
    return undo_store(ref, past, ScanOptions(), apply=apply, stop=_unasked(stop), progress=progress)


def complete(result: StoreScan, chosen: Iterable[Check]) -> None:
    """Have a result tell of each check that is known, in the order of reports; of those that did not run, why."""
    ran = {each.check.name: each for each in result.checks}
    names = {check.name for check in chosen}
    result.checks = [
        ran.get(check.name)
        or CheckResult(check, "skipped", "the store was not read" if check.name in names else "not chosen")
        for check in catalogue.catalogue().checks
    ]
    if result.reason and result.exit_code(None) == ExitCode.DAMAGED:
        result.next_step = result.next_step or "name another state.db, or a Hermes home"


def _path(target: str | os.PathLike[str]) -> Path:
    if not os.fspath(target):
        raise ValueError("a target is empty: name a state.db or a Hermes home, or none for this host")
    return Path(os.path.expanduser(target))  # noqa: PTH111  (pathlib raises for the home of a user who is not there)


def _one(store: Store) -> StoreRef:
    """Return the store that is meant. Raises ValueError where there are several."""
    if isinstance(store, StoreRef):
        return store
    found = stores() if store is None else stores(store)
    if len(found) > 1:
        where = "this host" if store is None else os.fspath(store)
        raise ValueError(f"{where} has {len(found)} stores: go through hermes_doctor.stores()")
    return found[0]


def _chosen_checks(checks: Iterable[str] | None, skip: Iterable[str]) -> list[Check]:
    """Return the checks to run. Raises ValueError for a name that is not known."""
    if isinstance(checks, str) or isinstance(skip, str):
        raise ValueError("checks and skip are lists of names")
    only, without = None if checks is None else set(checks), set(skip)
    unknown = sorted(((only or set()) | without) - set(catalogue.catalogue().names))
    if unknown:
        raise ValueError(
            f"there is no check {', '.join(map(repr, unknown))}; known: {', '.join(catalogue.catalogue().names)}"
        )
    return [
        check
        for check in catalogue.catalogue().checks
        if check.name not in without and (only is None or check.name in only)
    ]


def _chosen(checks: Iterable[str] | None, skip: Iterable[str], *, unsafe: bool) -> Chosen:
    from hermes_doctor.engine.plan import Chosen

    some = _chosen_checks(checks, skip)
    names = {check.name for check in some}
    return Chosen(some, {name: fix for name, fix in catalogue.catalogue().fixes.items() if name in names}, unsafe)


def _options(
    idle: float,
    deep: bool,
    threads: int | None = None,
    since_last: bool = False,
    max_seconds: float | None = None,
) -> ScanOptions:
    memory = None
    if since_last or max_seconds is not None:
        # What was read before a stop is not read again.
        from hermes_doctor.engine.memory import Memory

        memory = Memory.of_user()
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    return ScanOptions(
        idle_floor=idle, deep=deep, threads=cores() if threads is None else threads, memory=memory, deadline=deadline
    )


def _unasked(stop: Stop | None) -> Stop:
    """Return the caller's own, which counts as false as long as no end is asked for, or one that nobody can ask."""
    from hermes_doctor.engine.stopping import Stop

    return Stop() if stop is None else stop


def _run(ref: StoreRef, name: str) -> Run:
    """Find a run in the journal beside its store. Raises LookupError."""
    from hermes_doctor.engine.journal import Journal

    journal = Journal.beside(ref.path)
    known: list[Run] = []
    if journal is not None:
        with journal:
            # As for the command: the home may have been moved, or the store be named by a link.
            here = ref.path.name, real(ref.path)
            known = [run for run in journal.runs() if Path(run.path).name == here[0] or real(Path(run.path)) == here[1]]
    matching = [run for run in known if run.run == name] or [run for run in known if name and run.run.startswith(name)]
    if len(matching) != 1:
        said = f"{len(matching)} runs begin with {name!r}" if matching else f"there is no run {name!r}"
        raise LookupError(f"{said} in the journal of {ref.path}")
    return matching[0]


def _note(done: StoreFix, index: RunIndex | None) -> bool:
    """Put the store's runs into the index, so that they are found from anywhere; return whether that worked."""
    import sqlite3

    from hermes_doctor.engine.journal import Journal
    from hermes_doctor.engine.run_index import RunIndex

    try:
        journal = Journal.beside(done.ref.path)
        if journal is None:
            return False
        with journal:
            return (index or RunIndex.of_user()).note(done.ref.path, journal.runs())
    except (OSError, sqlite3.Error):
        return False
