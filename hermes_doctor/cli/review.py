"""`doctor fix --review`: the findings that are not safe to mend in every case, one at a time, on a terminal."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import apsw
import click

from hermes_doctor.cli.changing import say, typed
from hermes_doctor.cli.look import look_for
from hermes_doctor.engine.gates import refusal
from hermes_doctor.engine.model import Bucket
from hermes_doctor.engine.plan import place_of, planned
from hermes_doctor.engine.review import NO, YES, restricted, reviewed, says
from hermes_doctor.engine.transaction import DONE, GONE
from hermes_doctor.report.fix_table import FixTable
from hermes_doctor.report.layout import header, next_lines, wrapped
from hermes_doctor.report.page import page
from hermes_doctor.report.words import counted, short_path, visible

if TYPE_CHECKING:
    from hermes_doctor.cli.fix import Job
    from hermes_doctor.cli.options import Output
    from hermes_doctor.engine.model import Check, ExitCode, Finding
    from hermes_doctor.engine.plan import Place, StoreFix
    from hermes_doctor.engine.rehearsal import Rehearsal
    from hermes_doctor.engine.review import StoreAnswers
    from hermes_doctor.engine.scan import StoreScan
    from hermes_doctor.host.homes import StoreRef
    from hermes_doctor.store.view import StoreView

#: Columns of the text: no wider than reads well; what is narrower than this breaks as it may.
_WIDEST, _NARROWEST = 100, 24

#: The answers spelled out.
_WORDS = {"yes": "y", "no": "n", "all": "a", "later": "l", "quit": "q", "rows": "r", "explain": "e", "help": "?"}


def require_somebody(output: Output, *, review: bool, yes: bool) -> None:
    """Make sure that there is somebody to be asked: else it is a usage error, told in one line."""
    if not review:
        raise click.UsageError("--again goes with --review.")
    if yes:
        raise click.UsageError("--review asks, and --yes says to ask nothing: leave one of them out.")
    if output.format != "table" or output.file is not None:
        raise click.UsageError("--review talks with you on the terminal: leave out --json, --format and --output.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        say("--review asks on a terminal, and there is none here. doctor fix --unsafe shows all that it would ask.")
        click.get_current_context().exit(2)


@dataclass
class _Reviewed:
    """What a review of one store came to. ``yes``: what is to be mended, and what those findings said.

    ``earlier``: how many of them were answered yes in another review. ``open``: how many wait for an answer.
    """

    ref: StoreRef
    answers: StoreAnswers | None = None
    yes: dict[Place, str] = field(default_factory=dict)
    earlier: int = 0
    no: int = 0
    open: int = 0

    def of_checks(self) -> str:
        """How many are to be mended of each check."""
        counts = Counter(check for check, _table, _key in self.yes)
        return ", ".join(f"{check} {count:,}" for check, count in counts.items())


class Review:
    """One call of the command, over all of its stores."""

    def __init__(self, job: Job, words: Sequence[str], *, again: bool) -> None:
        """Take what the command was told. ``words``: the same command, as it is typed."""
        from hermes_doctor.engine.plan import Chosen
        from hermes_doctor.engine.review import Answers
        from hermes_doctor.report.ink import Ink
        from hermes_doctor.report.layout import Look
        from hermes_doctor.report.review import ReviewWords

        checks = [check for check in job.chosen.checks if check.name in job.chosen.fixes]
        self.job = job
        self.chosen = Chosen(checks, job.chosen.fixes, unsafe=True)
        self.answers = Answers.of_user()
        self.command = words
        self.again = again
        width = min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)
        self.look = Look(width=width, ink=Ink(job.output.colored(sys.stdout)))
        self.words = ReviewWords(width, self.look.ink)
        #: How many findings were answered, whether it was told that the answers cannot be kept, and whether to go on.
        self.answered = 0
        self.unkept = False
        self.quits = False
        if isinstance(sys.stdin, io.TextIOWrapper):
            # What is typed may be no text in the terminal's encoding.
            sys.stdin.reconfigure(errors="replace")

    def run(self) -> ExitCode:
        """Ask about all stores, then do what was answered yes, if that is wanted."""
        from hermes_doctor.engine.model import ExitCode, worst

        codes: list[ExitCode] = []
        done: list[_Reviewed] = []
        try:
            for ref in self.job.refs:
                if self.quits:
                    self._say(f"Not looked at: {short_path(ref.path)}")
                    codes.append(ExitCode.FINDINGS)
                    continue
                came, code = self._store(ref)
                done.append(came)
                codes.append(code)
            wanted = self._wants_it(done)
        except KeyboardInterrupt:
            kept = "no answer could be kept" if self.unkept else "what was answered is kept"
            told = kept if self.answered else "nothing was answered"
            say(f"stopped. Nothing was changed, {told}; the same command goes on.")
            return ExitCode.STOPPED
        if any(each.open for each in done) or (any(each.yes for each in done) and not wanted):
            codes.append(ExitCode.FINDINGS)
        if wanted:
            codes.append(self._apply([each for each in done if each.yes]))
        return worst(codes)

    def _store(self, ref: StoreRef) -> tuple[_Reviewed, ExitCode]:
        """Review one store; return what it came to, and the code of its scan."""
        from hermes_doctor.engine.model import ExitCode
        from hermes_doctor.engine.rehearsal import Rehearsal
        from hermes_doctor.engine.scan import scan_store

        came = _Reviewed(ref)
        rehearsals: list[Rehearsal] = []

        def look(scan: StoreScan, view: StoreView) -> None:
            came.answers = kept = self.answers.of_store(ref.path, view)
            # Called again where the store moved and is read anew.
            _close(rehearsals)
            if any(self._is_asked(finding, kept) for finding in self._unsafe(scan)):
                rehearsals.append(Rehearsal(view))

        try:
            with self.job.output.show_progress() as progress:
                scan = scan_store(ref, self.chosen.checks, self.job.options, progress, look)
            with scan.findings:
                code = scan.exit_code(None)
                if code is ExitCode.CLEAN and came.answers is not None:
                    self._go_through(scan, came, came.answers, rehearsals[0] if rehearsals else None)
                else:
                    failed = (result.reason for result in scan.checks if result.status == "failed")
                    reason = scan.reason or next(failed, None) or "the store could not be scanned"
                    self._say("", f"{short_path(ref.path)}: {reason}", *([scan.next_step] if scan.next_step else []))
                    code = code if code is not ExitCode.CLEAN else ExitCode.FAILED
            return came, code
        finally:
            _close(rehearsals)

    def _go_through(self, scan: StoreScan, came: _Reviewed, kept: StoreAnswers, rehearsal: Rehearsal | None) -> None:
        """Ask about a store's findings, check after check; after a quit what is left is only counted."""
        waiting = Counter(finding.check for finding in self._unsafe(scan) if self._is_asked(finding, kept))
        total, number = waiting.total(), 0
        self._introduce(scan, kept, total)
        # Each check by itself takes one more reading of all that was found.
        concerned = {result.check.name for result in scan.checks if result.buckets[Bucket.UNSAFE]}
        for check in self.chosen.checks:
            if check.name not in concerned:
                continue
            left = waiting[check.name]
            findings = self._unsafe(scan, check.name)
            for finding in findings:
                if self.quits or not self._is_asked(finding, kept):
                    self._count(came, kept, [finding])
                    continue
                number += 1
                if left == waiting[check.name]:
                    self._print("", *self.words.introduced(check))
                answer = self._ask(scan, check, finding, f"{number:,} of {total:,}", left, kept, rehearsal)
                left -= 1
                if answer == "a":
                    rest = list(findings)
                    asked = [each for each in rest if self._is_asked(each, kept)]
                    self._count(came, kept, (each for each in rest if not self._is_asked(each, kept)))
                    self._keep(came, kept, [finding, *asked], yes=True)
                    number += len(asked)
                elif answer == "l":
                    if kept.about(finding) is not None:
                        kept.forget([place_of(finding)])
                    came.open += 1
                elif answer == "q":
                    self.quits = True
                    self._count(came, kept, [finding])
                elif answer != "":
                    self._keep(came, kept, [finding], yes=answer == "y")
                else:
                    self._count(came, kept, [finding])

    def _introduce(self, scan: StoreScan, kept: StoreAnswers, total: int) -> None:
        """Say which store it is, how much there is to ask about, and what stands in the way of mending it now."""
        known = sum(kept.about(finding) is not None for finding in self._unsafe(scan))
        before = f" ({known:,} answered before: --again shows them)" if known and not self.again else ""
        if not total:
            self._say(f"{short_path(scan.ref.path)}   nothing new to review{before}")
            return
        self._print("", header(scan, self.look))
        self._say(
            f"{counted(total, 'finding')} to look at one by one{before}. Answer with a letter and Enter; ? helps."
        )
        stands = refusal(scan, planned(scan, self.chosen), backup=self.job.backup, live=self.job.live)
        if stands is not None:
            self._say(f"Nothing of it could be mended now: {stands.reason}. Your answers are kept.")

    def _ask(
        self,
        scan: StoreScan,
        check: Check,
        finding: Finding,
        place: str,
        left: int,
        kept: StoreAnswers,
        rehearsal: Rehearsal | None,
    ) -> str:
        """Show one finding and return the answer: y, n, a, l or q; nothing where an earlier one is to stay."""
        before = kept.about(finding)
        self._print("", *self.words.asked(finding, place, before, scan.now))
        if rehearsal is not None:
            effect = rehearsal.of(check, self.chosen.fixes[check.name], finding)
            self._print(*self.words.would(finding, effect, scan.now))
        while True:
            answer = self._read(f"Mend it? [y,n,a,l,q,r,e,?]{' (Enter: as before)' if before else ''} ")
            answer = _WORDS.get(answer, answer)
            if answer in ("y", "n", "a", "l", "q") or (answer == "" and before is not None):
                return answer
            if answer == "r":
                self._print(*self._around(scan, finding))
            elif answer == "e":
                fix = self.chosen.fixes[check.name]
                sys.stdout.write(page(check, self.look.width, self.look.ink, fix.page))
            else:
                self._print(*self.words.help(check.name, left))

    def _around(self, scan: StoreScan, finding: Finding) -> Iterable[str]:
        """The rows around a finding's, by what the store shows at this moment."""
        from hermes_doctor.host.bundle import StoreProblem
        from hermes_doctor.store.around import rows_around
        from hermes_doctor.store.opening import open_without_trace
        from hermes_doctor.store.reader import Reader
        from hermes_doctor.store.shape import read_shape
        from hermes_doctor.store.view import StoreView

        try:
            with open_without_trace(scan.ref.path) as store:
                shape = read_shape(store.connection)
                view = StoreView(Reader(store.connection, store.pace, encoding=shape.encoding), shape, scan.now)
                around = rows_around(view, finding.table, finding.key, finding.session)
        except (StoreProblem, OSError, apsw.Error) as problem:
            return [f"  The store cannot be read now ({visible(' '.join(str(problem).split()))})."]
        return self.words.around(around, scan.now)

    def _wants_it(self, done: Sequence[_Reviewed]) -> bool:
        """Say what was answered, and ask whether what is to be mended is to be mended now."""
        yes, earlier = sum(len(each.yes) for each in done), sum(each.earlier for each in done)
        no, open_ = sum(each.no for each in done), sum(each.open for each in done)
        if not yes:
            if self.answered or open_:
                self._say("", f"Answered yes: 0, no: {no:,}, waiting: {open_:,}. Nothing was changed.")
            return False
        before = f" ({earlier:,} of them in an earlier review)" if earlier else ""
        self._say("", f"Answered yes: {yes:,}{before}, no: {no:,}, waiting: {open_:,}.")
        self._say("To be mended (doctor undo takes it back):")
        for each in done:
            if each.yes:
                self._say(f"  {short_path(each.ref.path)}: {each.of_checks()}")
        self._forget_what_was_typed()
        what = "this one" if yes == 1 else f"these {yes:,}"
        answer = ""
        while answer not in ("y", "n", "q"):
            answer = self._read(f"Apply {what} now? [y/n] ")
            answer = _WORDS.get(answer, answer)
        if answer != "y":
            kept = "Your answers are not kept" if self.unkept else "Your answers are kept"
            self._say(f"Nothing was changed. {kept}.", *next_lines([f"{typed(*self.command)} (comes back to this)"], 0))
        return answer == "y"

    def _apply(self, done: Sequence[_Reviewed]) -> ExitCode:
        """Do what was answered yes; what is done with is forgotten, so that after an undo it is asked again."""
        by_path = {each.ref.path: each for each in done}

        def note(result: StoreFix) -> None:
            answers = by_path[result.ref.path].answers
            if answers is not None:
                ended = (change for change in result.changes if change.state in (DONE, GONE))
                answers.forget((change.check, *change.row) for change in ended)

        self.job.refs = [each.ref for each in done]
        self.job.chosen_of = {path: restricted(self.chosen, each.yes) for path, each in by_path.items()}
        self.job.told = note
        self._print("")
        look = look_for(self.job.output, sys.stdout)
        return self.job.run(FixTable(sys.stdout, look, self.chosen.checks, others="not chosen"), self.command)

    def _unsafe(self, scan: StoreScan, check: str | None = None) -> Iterator[Finding]:
        """The findings that a person has to decide about."""
        return (
            finding for finding in scan.findings if check in (None, finding.check) and reviewed(finding, self.chosen)
        )

    def _is_asked(self, finding: Finding, kept: StoreAnswers) -> bool:
        return self.again or kept.about(finding) is None

    def _keep(self, came: _Reviewed, kept: StoreAnswers, findings: Sequence[Finding], *, yes: bool) -> None:
        """Keep an answer, before anything else is asked."""
        self.answered += len(findings)
        if not kept.keep(findings, YES if yes else NO) and not self.unkept:
            self.unkept = True
            self._say("(The answers cannot be written down in your state folder: they hold for this review only.)")
        if yes:
            came.yes.update((place_of(finding), says(finding)) for finding in findings)
        else:
            came.no += len(findings)

    def _count(self, came: _Reviewed, kept: StoreAnswers, findings: Iterable[Finding]) -> None:
        """Take findings as they were answered in an earlier review, if they were."""
        for finding in findings:
            answer = kept.about(finding)
            if answer is None:
                came.open += 1
            elif answer.word == YES:
                came.yes[place_of(finding)] = says(finding)
                came.earlier += 1
            else:
                came.no += 1

    def _say(self, *lines: str) -> None:
        self._print(*(part for line in lines for part in wrapped(visible(line), self.look.width, "", "  ") or [""]))

    @staticmethod
    def _print(*lines: str) -> None:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()

    @staticmethod
    def _read(question: str) -> str:
        """Return what was typed; where the input ends, it is ``q``."""
        sys.stdout.write(question)
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            sys.stdout.write("\n")
        return line.strip().lower() if line else "q"

    @staticmethod
    def _forget_what_was_typed() -> None:
        """Drop what was typed ahead: only who has read the question may answer it."""
        if sys.platform != "win32":
            import termios

            with contextlib.suppress(OSError, termios.error):
                termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _close(rehearsals: list[Rehearsal]) -> None:
    while rehearsals:
        rehearsals.pop().close()
