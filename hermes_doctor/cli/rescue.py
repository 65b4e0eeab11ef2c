"""`doctor rescue`: save what can be read of a damaged store into a new file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_doctor import __version__
from hermes_doctor.cli.changing import finish_undisturbed, stoppable, typed
from hermes_doctor.cli.options import Output, output_options
from hermes_doctor.cli.types import Duration, Target

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hermes_doctor.engine.plan import Chosen
    from hermes_doctor.host.homes import StoreRef
    from hermes_doctor.rescue.account import Rescue

#: What is mended in the new file before it is handed over.
_MENDED = ("orphan-messages", "search-index")
#: Stores of a home that an error names.
_NAMED = 3


class _Store(Target):
    """The store that is to be read: it has to be named, for a rescue is about one."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return what is to be named."""
        return "Name the damaged state.db, or the Hermes home that it is in."


class _NewFile(click.ParamType[Path]):
    """The file that is to be the new store. Whether it can be one, the rescue finds out."""

    name = "file"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; an empty one, as an unset variable gives, is a usage error."""
        if not str(value):
            self.fail("OUTPUT is empty. Name the file that is to be the new store.", param, ctx)
        return value if isinstance(value, Path) else Path(str(value))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leave it to the shell: it is a file in some folder."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


# The argument is not called `output`, for the option --output is.
@click.command(short_help="Save what can be read of a damaged store into a new file.")
@click.argument("store", type=_Store(), metavar="STORE")
@click.argument("new", required=False, type=_NewFile(), metavar="[OUTPUT]")
@click.option(
    "--inspect-only",
    is_flag=True,
    help="Only say what can be saved. Nothing is written, and OUTPUT may be left out.",
)
@click.option(
    "--max-duration",
    type=Duration(),
    metavar="DURATION",
    help="Stop in time (30s, 10m). Nothing is left then; the same command starts over.",
)
@output_options
@click.pass_context
def rescue(
    context: click.Context,
    store: Path,
    new: Path | None,
    inspect_only: bool,
    max_duration: float | None,
    output: Output,
) -> None:
    """Save what can be read of a damaged store into a new file, and say what could not be saved, and why.

    STORE is a state.db, or a Hermes home with one store. It is read from a private copy, never changed and never
    replaced. OUTPUT is the new store, a file that is not there yet. The option --output is something else: the file
    that the report goes to.

    What SQLite can still read is copied row by row, the rest is looked for page by page. No message is made up, and a
    row that may have been deleted or changed later is named. In the new file the search index is made anew, and
    messages whose session is lost get one. It works for every release of hermes, also where hermes itself is too old
    to recover the store.

    Exit codes: 0 all rows saved, none in doubt; 1 rows are lost, cut or in doubt; 2 usage error; 3 the doctor failed;
    4 nothing could be saved, or there is no store; 5 refused for safety (somebody has the store open, OUTPUT is there,
    no room); 7 stopped, and nothing was left.
    """
    from hermes_doctor.cli.output import destination
    from hermes_doctor.report.model import RunStart
    from hermes_doctor.store.library import library

    ref = _one_store(store)
    _require_new_file(ref, new, output, inspect_only=inspect_only)
    start = RunStart(__version__, library().version, time.time())
    with destination(output.file, [ref.path, *([] if new is None else [new])]) as stream:
        result = _rescue(ref, new, output, max_duration, inspect_only=inspect_only)
        if output.format == "json":
            from hermes_doctor.report.rescue_json import rescue_json

            stream.write(rescue_json(result, start))
        else:
            from hermes_doctor.cli.look import look_for
            from hermes_doctor.report.rescue_table import rescue_text

            stream.write(rescue_text(result, look_for(output, stream), _following(result, new), _placing(result)))
    context.exit(result.exit_code)


def _one_store(target: Path) -> StoreRef:
    """Return the store that is meant; a home with several is a usage error that names them."""
    from hermes_doctor.host.homes import resolve_targets
    from hermes_doctor.report.words import short_path

    refs = resolve_targets([target])
    if len(refs) > 1:
        named = ", ".join(short_path(ref.path) for ref in refs[:_NAMED]) + (" and more" if len(refs) > _NAMED else "")
        raise click.UsageError(f"STORE: {short_path(target)} has {len(refs):,} stores. Name one of them: {named}.")
    return refs[0]


def _require_new_file(ref: StoreRef, new: Path | None, output: Output, *, inspect_only: bool) -> None:
    """Raise a usage error where there is no OUTPUT, or where it is what another file is to be, or is."""
    from hermes_doctor.host.homes import real
    from hermes_doctor.host.upstream import rescue_inspection
    from hermes_doctor.report.words import short_path

    if new is None:
        if not inspect_only:
            see = rescue_inspection(ref.path)
            raise click.UsageError(f"OUTPUT is missing, the file that is to be the new store. To look first: {see}")
        return
    if real(new) in _bundle(real(ref.path)):
        raise click.UsageError(f"OUTPUT: {short_path(new)} belongs to the store that is to be read. Name another file.")
    if output.file is not None and real(output.file) in _bundle(real(new)):
        raise click.UsageError(
            f"--output: {short_path(output.file)} is to be the new store (OUTPUT). Name another file for the report."
        )


def _bundle(store: Path) -> list[Path]:
    """Return a store's file, and the names of those that may lie beside it."""
    from hermes_doctor.host.bundle import sidecar

    return [store, sidecar(store, "-wal"), sidecar(store, "-shm"), sidecar(store, "-journal")]


def _rescue(
    ref: StoreRef, new: Path | None, output: Output, max_duration: float | None, *, inspect_only: bool
) -> Rescue:
    """Rescue the store; what the doctor itself got wrong with it is told as a failure."""
    from hermes_doctor.cli.failures import describe
    from hermes_doctor.engine.model import ExitCode
    from hermes_doctor.rescue.account import Rescue
    from hermes_doctor.rescue.run import rescue_store

    failed = Rescue(ref, inspect_only)
    try:
        # A signal only asks for an end: whatever was begun is taken away before it comes to that.
        with stoppable(True) as stop, output.show_progress() as progress:
            result = rescue_store(
                ref,
                new,
                inspect_only=inspect_only,
                chosen=_chosen(),
                stop=stop,
                seconds=max_duration,
                progress=progress,
            )
        if stop:
            finish_undisturbed()
    except KeyboardInterrupt:
        failed.end("stopped", ExitCode.STOPPED, "Ctrl-C asked for it; nothing was left")
        return failed
    except Exception as error:
        failed.end("failed", ExitCode.FAILED, describe(error))
        return failed
    return result


def _chosen() -> Chosen:
    """Return what is mended in the new file. It is nobody's yet, so that what needs --unsafe elsewhere may be done."""
    from hermes_doctor.catalogue import catalogue
    from hermes_doctor.engine.plan import Chosen

    found = catalogue()
    return Chosen(
        [check for check in found.checks if check.name in _MENDED],
        {name: fix for name, fix in found.fixes.items() if name in _MENDED},
        unsafe=True,
    )


def _following(result: Rescue, new: Path | None) -> list[str]:
    """Return what a person may type next."""
    from hermes_doctor.host.upstream import new_name

    store = result.ref.path
    if result.output is not None:
        return [f"{typed('doctor', 'scan', result.output)} (looks at the new store)"]
    if result.outcome in ("rescued", "partly-rescued"):
        return [f"{typed('doctor', 'rescue', store, new or new_name(store))} (writes the new store)"]
    if result.outcome == "stopped":
        named = [store] if new is None else [store, new]
        option = ["--inspect-only"] if result.inspect_only else []
        return [f"{typed('doctor', 'rescue', *named, *option)} (starts over)"]
    return []


def _placing(result: Rescue) -> list[str]:
    """Return the commands that put the new store in place of the damaged one; none where that needs no other.

    A log of the damaged file must not stay behind: SQLite would take it for the new one's.
    """
    from hermes_doctor.engine.model import ExitCode
    from hermes_doctor.host.bundle import Condition
    from hermes_doctor.host.homes import real
    from hermes_doctor.host.upstream import quoted

    whole = result.exit_code is ExitCode.CLEAN and result.condition is not Condition.DAMAGED
    if result.output is None or result.ref.home is None or whole:
        return []
    store = real(result.ref.path)
    there = [quoted(file.name) for file in _bundle(store) if file.exists()]
    aside = quoted(f"{store.name}.damaged")
    moved = [f"cd {quoted(store.parent)} && mkdir -m 700 {aside} && mv {' '.join(there)} {aside}/"] if there else []
    return [*moved, f"mv -n {quoted(real(result.output))} {quoted(store)}"]
