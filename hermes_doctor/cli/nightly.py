"""`doctor nightly`: what a schedule runs. It tells what is new, and else is silent."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_doctor import __version__
from hermes_doctor.cli.changing import index_of, live_option, say, stoppable
from hermes_doctor.cli.options import Selection, TypedOnly, fail_on_option, selection_options
from hermes_doctor.cli.types import Target

if TYPE_CHECKING:
    from hermes_doctor.engine.model import Check, Severity
    from hermes_doctor.engine.plan import Chosen, StoreFix
    from hermes_doctor.engine.run_index import RunIndex
    from hermes_doctor.engine.scan import ScanOptions
    from hermes_doctor.host.homes import StoreRef
    from hermes_doctor.nightly.news import Ledger, StoreNews
    from hermes_doctor.nightly.run import NightlyRun, Notices


class PingUrl(click.ParamType[str]):
    """An URL that can be pinged: http or https, without a password."""

    name = "url"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the URL; another is a usage error that says what is wrong with it."""
        from hermes_doctor.nightly.notices import url_doubt

        doubt = url_doubt(str(value))
        if doubt is not None:
            self.fail(f"this cannot be pinged: {doubt}.", param, ctx)
        return str(value)


deep_when_option = click.option(
    "--deep",
    type=click.Choice(["never", "weekly", "always"]),
    default="never",
    show_default=True,
    help="When to read every page and column of a store, as scan --deep does.",
)
fix_safe_option = click.option(
    "--fix",
    cls=TypedOnly,
    type=click.Choice(["safe"]),
    help="Also mend what is safe, where nobody has the store open. Off unless it is typed.",
)
notify_option = click.option(
    "--notify-command",
    metavar="CMD",
    help="Run this with the shell where something is new; it gets the JSON on standard input. Off by default.",
)
ping_option = click.option(
    "--ping",
    type=PingUrl(),
    metavar="URL",
    help="Post to URL/start, then to URL with the JSON, or to URL/fail where something is new or went wrong"
    " (as healthchecks take it). Off by default.",
)


@click.command(short_help="What a schedule runs: a scan that tells only what is new.")
@click.argument("targets", nargs=-1, type=Target(), metavar="[TARGET]...")
@fix_safe_option
@live_option
@deep_when_option
@notify_option
@ping_option
@selection_options
@fail_on_option
@click.pass_context
def nightly(
    context: click.Context,
    targets: tuple[Path, ...],
    fix: str | None,
    live: bool,
    deep: str,
    notify_command: str | None,
    ping: str | None,
    selection: Selection,
    fail_on: str,
) -> None:
    """Scan every store that TARGET stands for, and tell what no nightly run before has found: nothing new, no word.

    `doctor schedule install` has it run every night. What a run came to is kept as nightly.json in your state folder.

    Exit codes: 0 nothing new at or above --fail-on, 1 something is new, 2 usage error,
    3 the doctor failed, 4 a store is damaged, unreadable or missing, 7 stopped.
    """
    from hermes_doctor.cli.catalogue import known
    from hermes_doctor.engine.model import ExitCode, Severity
    from hermes_doctor.engine.plan import Chosen
    from hermes_doctor.host.homes import resolve_targets
    from hermes_doctor.nightly.run import Notices

    if live and fix is None:
        raise click.UsageError("--live goes with --fix safe.")
    catalogue = known()
    names = selection.narrow(catalogue.names)
    checks = [check for check in catalogue.checks if check.name in names]
    fixes = {name: each for name, each in catalogue.fixes.items() if name in names} if fix == "safe" else {}
    night = _Night(
        checks,
        Chosen(checks, fixes, unsafe=False) if fix == "safe" else None,
        None if fail_on == "never" else Severity[fail_on.upper()],
        selection.idle,
        deep,
        index_of(context),
        live=live,
    )
    notices = Notices(ping, notify_command)
    notices.start()
    try:
        run = night.over(resolve_targets(targets))
    except BaseException:
        # Whoever waits for a ping must not take silence for a night that went well.
        notices.end(ExitCode.FAILED, "{}", has_news=False)
        raise
    _tell(run, notices)
    context.exit(run.exit_code)


def _tell(run: NightlyRun, notices: Notices) -> None:
    """Tell what is new where it is seen, and then everybody else who is to be told."""
    from hermes_doctor.report.nightly import news_lines, nightly_json

    document = nightly_json(run)
    for line in news_lines(run):
        _warn(line)
    if not _keep(document):
        _warn("what the run came to could not be written to the state folder.")
    notices.end(run.exit_code, document, has_news=run.has_news)
    for problem in notices.problems:
        _warn(f"a notice did not get through: {problem}.")


def _warn(line: str) -> None:
    """Say a line; to systemd's journal with the weight of a warning (sd-daemon(3))."""
    if _is_the_journal():
        with contextlib.suppress(OSError):
            sys.stderr.write(f"<4>doctor: {line}\n")
        return
    say(line)


def _is_the_journal() -> bool:
    named = os.environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return named == f"{status.st_dev}:{status.st_ino}"


def _keep(document: str) -> bool:
    """Write what the last run came to into the state folder; return whether that worked."""
    from hermes_doctor.cli.output import destination
    from hermes_doctor.engine.state_file import state_folder
    from hermes_doctor.nightly.run import LAST_RUN

    try:
        folder = state_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with destination(folder / LAST_RUN) as stream:
            stream.write(document + "\n")
    except (OSError, click.UsageError):
        return False
    return True


class _Night:
    """One run over all stores."""

    def __init__(
        self,
        checks: Sequence[Check],
        chosen: Chosen | None,
        least: Severity | None,
        idle: float,
        deep: str,
        index: RunIndex,
        *,
        live: bool,
    ) -> None:
        self.checks = checks
        self.chosen = chosen
        self.least = least
        self.idle = idle
        self.deep = deep
        self.index = index
        self.live = live

    def over(self, refs: Sequence[StoreRef]) -> NightlyRun:
        """Look at one store after the other; a stop ends the round."""
        from hermes_doctor.engine.model import ExitCode
        from hermes_doctor.nightly.news import Ledger
        from hermes_doctor.nightly.run import NightlyRun

        began, started = time.time(), time.monotonic()
        ledger = Ledger.of_user()
        stores: list[StoreNews] = []
        waiting = list(refs)
        while waiting:
            try:
                stores.append(self._one(waiting[0], ledger))
            except KeyboardInterrupt:
                break
            waiting.pop(0)
            if stores[-1].exit_code is ExitCode.STOPPED:
                break
        paths = [ref.path for ref in waiting]
        return NightlyRun(__version__, socket.gethostname(), began, time.monotonic() - started, stores, paths)

    def _one(self, ref: StoreRef, ledger: Ledger) -> StoreNews:
        """Scan one store, mend it where that was asked for, and compare it with what is known."""
        from hermes_doctor.cli.scan import remember, scan_one
        from hermes_doctor.engine.memory import Memory
        from hermes_doctor.engine.model import Bucket, ExitCode
        from hermes_doctor.engine.scan import ScanOptions
        from hermes_doctor.nightly.news import look
        from hermes_doctor.nightly.run import is_deep

        known = ledger.recall(ref.path)
        deep = is_deep(known, self.deep)
        # What an ordinary scan keeps for the next must not be lost for a deep one, which asks another question.
        options = ScanOptions(idle_floor=self.idle, deep=deep, memory=None if deep else Memory.of_user())
        scan = scan_one(ref, self.checks, options)
        with scan.findings:
            remember(scan, options)
            safe = any(each.buckets[Bucket.SAFE] for each in scan.checks)
            if self.chosen is None or not safe or scan.exit_code(None) is not ExitCode.CLEAN:
                return look(scan, ledger, known, self.least, deep=deep)
            with contextlib.closing(self._mend(ref, self.chosen, options)) as mended:
                return look(scan, ledger, known, self.least, deep=deep, fix=mended)

    def _mend(self, ref: StoreRef, chosen: Chosen, options: ScanOptions) -> StoreFix:
        """Mend what is safe in one store, if it may be mended now; and note the run, so that it is found again."""
        from hermes_doctor import api
        from hermes_doctor.cli.failures import describe
        from hermes_doctor.engine.plan import StoreFix
        from hermes_doctor.engine.scan import StoreScan

        try:
            with stoppable(applies=True) as stop:
                return api.apply(ref, chosen=chosen, options=options, stop=stop, live=self.live, index=self.index)
        except Exception as error:
            mended = StoreFix(ref, StoreScan(ref), applied=True)
            mended.fail(describe(error))
            return mended
