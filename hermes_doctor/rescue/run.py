"""Rescuing one store, in order: copy it, find out what is right, read, write a new file, mend and prove that, name it.

Nothing is written but inside a private folder, until the new file is whole; the store itself is only ever read.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import apsw

from hermes_doctor.engine.apply import apply_store
from hermes_doctor.engine.model import ExitCode
from hermes_doctor.engine.plan import Chosen
from hermes_doctor.engine.scan import Progress, ScanOptions, scan_store
from hermes_doctor.engine.stopping import Stop, Stopped
from hermes_doctor.host.bundle import Bundle, Condition, StoreProblem, inspect_damaged
from hermes_doctor.host.holders import find_holding, named
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.host.private_folder import PrivateFolder, sweep
from hermes_doctor.host.room import free_bytes, temporary_folder
from hermes_doctor.host.upstream import printable, quoted
from hermes_doctor.rescue.account import Rescue
from hermes_doctor.rescue.copying import Copy, make_copy
from hermes_doctor.rescue.finishing import finish
from hermes_doctor.rescue.reading import Reading
from hermes_doctor.rescue.writing import NewFile
from hermes_doctor.store.integrity import ask
from hermes_doctor.store.opening import MovedError
from hermes_doctor.store.shape import read_shape

#: Room that is left free beside the copy and the new file.
_SPARE_BYTES = 16 << 20
_SIDECARS = ("", "-wal", "-shm", "-journal")
_LINES = 20
#: Without these tables it is no store of hermes.
_CORE = ("messages", "sessions")


def rescue_store(
    ref: StoreRef,
    output: Path | None,
    *,
    inspect_only: bool,
    chosen: Chosen,
    stop: Stop,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Rescue:
    """Save what can be saved of a store into a new file, or with ``inspect_only`` say what that would be.

    ``chosen``: the checks and fixes for what is mended in the new file. ``seconds``: after so many it is broken off.
    Never raises for what stands in the way: the outcome, the exit code and the reason say it.
    """
    result = Rescue(ref, inspect_only)
    began = time.monotonic()
    work = _Work(result, output, chosen, stop, None if seconds is None else began + seconds, progress)
    try:
        with ExitStack() as stack:
            work.run(stack)
    except StoreProblem as problem:
        result.condition = problem.condition
        result.end("nothing-saved", ExitCode.DAMAGED, problem.reason, problem.next_step)
    except MovedError:
        result.end(
            "refused", ExitCode.REFUSED, f"somebody wrote to {printable(ref.path)} while it was copied", "stop hermes"
        )
    except (Stopped, apsw.InterruptError):
        # What the reason says of carrying on is not so here.
        reason = (stop.reason or "it was broken off").partition(";")[0]
        result.end("stopped", ExitCode.STOPPED, f"{reason}; nothing was left behind")
    except (OSError, apsw.FullError, apsw.IOError) as error:
        said = error.strerror if isinstance(error, OSError) else "the disk is full, or does not answer"
        result.end("failed", ExitCode.FAILED, f"the machine stopped the work ({said}); nothing was left behind")
    except apsw.Error as error:
        said = " ".join(str(error).split())
        result.end("failed", ExitCode.FAILED, f"SQLite could not do it ({printable(said)}); nothing was left behind")
    result.seconds = time.monotonic() - began
    return result


class _Work:
    """The rescue of one store."""

    def __init__(
        self,
        result: Rescue,
        output: Path | None,
        chosen: Chosen,
        stop: Stop,
        deadline: float | None,
        progress: Progress | None,
    ) -> None:
        self.result = result
        self.output = output
        self.chosen = chosen
        self.stop = stop
        self.deadline = deadline
        self.progress = progress
        #: The id of the user whose store it is.
        self.owner = -1

    def run(self, stack: ExitStack) -> None:
        """Do all of it. Raises Stopped, StoreProblem, OSError and apsw.Error for what stands in the way."""
        bundle = inspect_damaged(self.result.ref.path)
        self.result.bytes, self.owner = bundle.size, bundle.owner
        obstacle = self._obstacle(bundle)
        if obstacle is not None:
            self.result.end("refused", ExitCode.REFUSED, *obstacle)
            return
        place = temporary_folder() if self.output is None else self.output.absolute().parent
        sweep(place)
        folder = Path(stack.enter_context(PrivateFolder(place)))
        copy = self._copy(bundle, folder, stack)
        new = NewFile(
            folder / "rescued" / "state.db",
            page_size=copy.pages.size,
            encoding=copy.pages.encoding,
            stop=self.should_stop,
        )
        stack.callback(new.close)
        reading = Reading(copy, new, self.result, self.tell, self.check)
        reading.read()
        self.result.schema_version = read_shape(new.connection).schema_version
        of_hermes = any(table.name.lower() in _CORE for table in self.result.tables)
        if copy.sound and not of_hermes:
            self._not_hermes(bundle)
            return
        if not of_hermes or not any(table.rows for table in self.result.tables):
            self._nothing(bundle)
            return
        if not self.result.inspect_only:
            self.tell("indexing")
            finish(copy, new, self.result, reading.entries, reading.counters, wiped=reading.is_wiped)
            new.close()
            self._mend(new.path)
            self._prove(new.path)
            if not self._publish(new.path):
                return
        self._conclude()

    def tell(self, step: str, share: float | None = None) -> None:
        """Say what is under way, and how far it is, 0 to 1."""
        if self.progress is not None:
            self.progress(self.result.ref.path, step, share)

    def should_stop(self) -> bool:
        """Whether it is to be broken off."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.stop.ask("the time that --max-duration gives is up")
        return bool(self.stop)

    def check(self) -> None:
        """Raise Stopped where it is to be broken off."""
        self.should_stop()
        self.stop.check()

    def _obstacle(self, bundle: Bundle) -> tuple[str, str | None] | None:
        """Return what stands in the way, and what to type."""
        if self.output is not None and self.output.is_dir():
            return f"{printable(self.output)} is a folder", "name the file that is to be the new store"
        if self.output is not None:
            for suffix in _SIDECARS:
                there = self.output.with_name(self.output.name + suffix)
                if there.exists() or there.is_symlink():
                    return _taken(there)
            if not self.output.absolute().parent.is_dir():
                return (
                    f"there is no folder {printable(self.output.absolute().parent)}",
                    "make it, or name another OUTPUT",
                )
        holding = find_holding(bundle)
        if holding.state == "yes":
            who = named(holding.holders) or "somebody"
            return (
                f"{who} has the store open: what is copied while it is written to would be no store at all",
                "stop hermes, then type the same command again",
            )
        return self._room(bundle)

    def _room(self, bundle: Bundle) -> tuple[str, str] | None:
        place = temporary_folder() if self.output is None else self.output.absolute().parent
        size = bundle.size_with_log + (bundle.journal_bytes or 0)
        # A copy of the file, and the new one; an inspection writes the rows only, which are no more.
        needed = 2 * size + _SPARE_BYTES
        free = free_bytes(place)
        if free >= needed:
            return None
        elsewhere = "TMPDIR=FOLDER names another folder" if self.output is None else "name an OUTPUT on another disk"
        return (
            f"there is too little room in {printable(place)}: {needed:,} bytes are needed, {free:,} are free",
            f"free some, or {elsewhere}, then type the same command again",
        )

    def _copy(self, bundle: Bundle, folder: Path, stack: ExitStack) -> Copy:
        total = max(bundle.size_with_log + (bundle.journal_bytes or 0), 1)
        done = 0

        def told(count: int) -> None:
            nonlocal done
            done += count
            self.check()
            self.tell("copying", min(done / total, 1.0))

        copied, made = folder / "copy", folder / "rescued"
        copied.mkdir(mode=0o700)
        made.mkdir(mode=0o700)
        self.tell("copying", 0.0)
        copy = make_copy(bundle, copied, told, self.should_stop, stack)
        self.check()
        self.result.notes += copy.notes
        self.result.condition = Condition.READABLE if copy.sound else Condition.DAMAGED
        return copy

    def _nothing(self, bundle: Bundle) -> None:
        self.result.end(
            "nothing-saved",
            ExitCode.DAMAGED,
            f"nothing in {printable(bundle.path)} can be read as a row of a store's",
            "keep it as it is; look for a copy in state-snapshots/ and in your backups",
        )

    def _not_hermes(self, bundle: Bundle) -> None:
        self.result.condition = Condition.NOT_HERMES
        self.result.end(
            "nothing-saved",
            ExitCode.DAMAGED,
            f"{printable(bundle.path)} is no hermes store: it has no messages and no sessions",
            "name a state.db, or the Hermes home that holds it",
        )

    def _mend(self, path: Path) -> None:
        """Give messages that lost their session one, and prove the search index, by the doctor's own fixes."""
        self.tell("mending")
        ref = StoreRef(path, None, self.result.ref.profile)
        options = ScanOptions(deadline=self.deadline)
        fix = apply_store(ref, self.chosen, options, backup="never", stop=self.stop, progress=self._ticking)
        try:
            self.check()
            self.result.sessions_given = sum(
                change.check == "orphan-messages" and change.state == "applied" for change in fix.changes
            )
            if fix.exit_code not in (ExitCode.CLEAN, ExitCode.FINDINGS):
                self.result.notes.append(
                    f"The new file could not be mended by itself ({fix.reason}): look at it with doctor scan"
                )
        finally:
            fix.close()

    def _prove(self, path: Path) -> None:
        """Have SQLite and a scan look at the new file."""
        self.tell("proving")
        ref = StoreRef(path, None, self.result.ref.profile)
        scan = scan_store(ref, self.chosen.checks, ScanOptions(deadline=self.deadline), self._ticking)
        try:
            self.check()
            found = sum(each.count for each in scan.checks)
            if scan.condition is Condition.NOT_HERMES:
                self.result.notes.append("The new file is no whole store of hermes: a table, or a column, is not there")
            elif scan.condition not in (Condition.READABLE, Condition.NEWER_SCHEMA):
                raise apsw.CorruptError(f"the new file is {scan.condition}: {scan.reason}")
        finally:
            scan.close()
        connection = apsw.Connection(str(path))
        try:
            connection.drop_modules(None)
            answer = ask(connection, _LINES, how="quick_check", stop=self.should_stop)
        finally:
            connection.close()
        self.check()
        if answer.problems:
            raise apsw.CorruptError("the new file is damaged")
        self.result.verified = "SQLite finds the new file sound" + (
            ", every message is in the search index" if not found and self.result.index_rebuilt else ""
        )

    def _ticking(self, _path: Path, _step: str, _share: float | None) -> None:
        """Ask for an end where the time is up, whenever something is told."""
        self.should_stop()

    def _publish(self, path: Path) -> bool:
        """Give the file its name; False where somebody else has taken it meanwhile."""
        assert self.output is not None, "only an inspection goes without"
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.chmod(0o600)
        _leave_to(path, self.owner)
        target = self.output.absolute()
        try:
            # A link is refused where something is there; a new name would replace it.
            os.link(path, target)
        except FileExistsError:
            self.result.end("refused", ExitCode.REFUSED, *_taken(self.output))
            return False
        except OSError:
            # File systems without links.
            try:
                os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                self.result.end("refused", ExitCode.REFUSED, *_taken(self.output))
                return False
            try:
                path.replace(target)
            except OSError:
                target.unlink(missing_ok=True)
                raise
        with suppress(OSError):
            descriptor = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self.result.output = self.output
        return True

    def _conclude(self) -> None:
        whole = all(table.is_whole for table in self.result.tables) and not self.result.notes
        step = None if self.result.output is None else f"doctor scan {quoted(self.result.output)}"
        if whole:
            self.result.end("rescued", ExitCode.CLEAN, None, step)
        else:
            self.result.end("partly-rescued", ExitCode.FINDINGS, None, step)


def _leave_to(path: Path, owner: int) -> None:
    """Give a file to the user whose store it was saved from: hermes could not open what root keeps to itself."""
    if sys.platform != "win32" and os.geteuid() == 0:
        os.chown(path, owner, -1)


def _taken(path: Path) -> tuple[str, str]:
    return f"{printable(path)} is there already, and nothing is ever replaced", "name another OUTPUT"
