"""`doctor scan --format html`: a page that stands alone, for somebody who wants to know what is wrong and what to do.

It names nothing that a browser would fetch, runs no script, and its Content-Security-Policy forbids both: only the
page's own style is allowed, by its digest. Stores are written aside as they come, so memory does not grow with them;
the page begins with what is known at the end.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hermes_doctor.engine.model import Bucket, Check, Finding, Severity
from hermes_doctor.engine.pictures import Pictures, gather
from hermes_doctor.engine.scan import CheckResult, StoreScan
from hermes_doctor.report.document import utc
from hermes_doctor.report.html.drawing import (
    history_figure,
    lineage_figure,
    mark,
    open_rows_figure,
    space_figure,
    traffic_figure,
)
from hermes_doctor.report.html.explained import explained
from hermes_doctor.report.html.markup import Markup, ascii_only, join, tag
from hermes_doctor.report.html.verdict import Verdict
from hermes_doctor.report.layout import Look, facts, holding, row_name
from hermes_doctor.report.model import Past, RunEnd, RunStart
from hermes_doctor.report.table import (
    CLOSED,
    CONDITION_WORDS,
    WRITTEN_MEANWHILE,
    failure,
    notes_of,
    since_last,
    steps_of,
)
from hermes_doctor.report.words import counted, duration, muted_words, number, short_path, size

if TYPE_CHECKING:
    from hermes_doctor.host.homes import StoreRef
    from hermes_doctor.store.view import StoreView

#: Characters of the page that are kept in memory before they go to a temporary file (mode 0600, unnamed).
_IN_MEMORY = 4 << 20

_PLAIN_WORD = re.compile(r"[a-z]+(?:[ ,;:'’-]|$)")


class ScanHtml:
    """The page, complete as soon as `end` has been called."""

    def __init__(self, stream: TextIO, look: Look | None = None) -> None:
        self._stream = stream
        self._look = look or Look()
        self._start = RunStart("", "", 0.0)
        self._pictures: dict[StoreRef, Pictures] = {}
        # Closed by end(), or with the process.
        self._body = tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="ascii")  # noqa: SIM115
        self._verdict = Verdict()
        self._stores: list[Markup] = []
        #: Checks whose page is in the document already, and the store that it stands with.
        self._explained: dict[str, str] = {}
        self.past: Past = _unknown

    def look(self, scan: StoreScan, view: StoreView) -> None:
        """Read what the pictures need; called while the store is open, and again where it is read anew."""
        self._pictures[scan.ref] = gather(scan, view)

    def begin(self, start: RunStart) -> None:
        """Take note of when the run began, and by which doctor."""
        self._start = start

    def store(self, scan: StoreScan) -> None:
        """Write one store aside."""
        pictures = self._pictures.pop(scan.ref, Pictures())
        name = f"store-{len(self._stores) + 1}"
        found = sorted(
            (result for result in scan.checks if result.count),
            key=lambda result: (result.muted is not None, -(result.worst or result.check.severity)),
        )
        self._verdict.add(scan, found)
        word = _word(scan, found)
        link = tag("a", short_path(scan.ref.path), href=f"#{name}")
        self._stores.append(tag("li", tag("span", link), tag("span", word, class_="soft")))
        parts = [*_introduction(scan, word, name), *self._overview(found, name)]
        if not (self._look.quiet and not found):
            parts += _pictures(scan, pictures, self.past(scan.ref.path))
        parts += self._checks(scan, found, name)
        parts += [lineage_figure(scan, tree) for tree in pictures.lineages]
        parts.append(tag("div", *_others(scan), class_="others"))
        self._write_aside(tag("section", *parts, id=name, aria_labelledby=f"{name}-name", class_="store"))

    def end(self, end: RunEnd) -> None:
        """Write the page."""
        with self._body as body:
            style = files(__package__).joinpath("style.css").read_text(encoding="ascii")
            self._stream.write(_head(style, self._verdict.sentence()))
            self._write(self._beginning(end))
            body.seek(0)
            shutil.copyfileobj(body, self._stream)
            self._write(_ending(self._start, end))
            self._stream.write("</body>\n</html>\n")

    def _write(self, markup: Markup) -> None:
        self._stream.write(ascii_only(markup) + "\n")

    def _write_aside(self, markup: Markup) -> None:
        self._body.write(ascii_only(markup) + "\n")

    def _beginning(self, end: RunEnd) -> Markup:
        at = datetime.fromtimestamp(self._start.started_at)
        made = tag("time", f"{at:%d %B %Y, %H:%M}", datetime=utc(self._start.started_at))
        brand = tag(
            "p", tag("b", "hermes-state-doctor"), " · ", made, " · read only, nothing was changed", class_="brand"
        )
        header = tag(
            "header",
            brand,
            tag("h1", self._verdict.sentence()),
            *(tag("p", line, class_="lede") for line in self._verdict.lede()),
            self._verdict.figures(),
            class_="top",
        )
        skip = tag("a", "Skip to the stores", href="#stores", class_="skip")
        stores = tag("ul", *self._stores)
        many = [tag("nav", tag("h2", "Stores"), stores, aria_label="Stores", class_="stores")]
        nav = many if len(self._stores) > 1 else []
        unread = [
            tag("p", f"Not read: {short_path(path)}. The run was stopped before its turn.", class_="note")
            for path in end.not_scanned
        ]
        following = self._following(end)
        # The main part is closed by the ending.
        return join([skip, header, Markup('<main id="main">'), *following, *unread, *nav, Markup('<div id="stores">')])

    def _following(self, end: RunEnd) -> list[Markup]:
        """What to do next: each command alone on its line, to be copied, after what it is for."""
        steps = [
            tag("li", tag("p", tag("code", path), f" ({word}):"), tag("p", step, class_="say"))
            for path, word, step in self._verdict.steps
        ]
        for said in end.next_commands:
            command, _, purpose = said.removesuffix(")").rpartition(" (") if said.endswith(")") else (said, "", "")
            what_for = [tag("p", _sentence(purpose))] if purpose else []
            steps.append(tag("li", *what_for, tag("pre", tag("code", command))))
        if not steps:
            return []
        hint = tag("p", "Type this in a terminal on the host of the store.", class_="soft small")
        title = tag("h2", "What to do next", id="next")
        commands = [hint] if end.next_commands else []
        return [tag("section", title, *commands, tag("ol", *steps), aria_labelledby="next", class_="next")]

    def _overview(self, found: Sequence[CheckResult], name: str) -> list[Markup]:
        if not found:
            return []
        rows = [
            tag(
                "tr",
                tag(
                    "th",
                    tag("a", result.check.name, href=f"#{_id(name, result.check)}"),
                    " ",
                    _mark(result),
                    tag("p", _meaning(result)),
                    scope="row",
                ),
                *(
                    tag("td", number(count), class_="n" if count else "n zero")
                    for count in (
                        result.count,
                        result.buckets[Bucket.SAFE],
                        result.count - result.buckets[Bucket.SAFE],
                    )
                ),
            )
            for result in found
        ]
        heads = [tag("th", "check, and what it means", scope="col")]
        heads += [tag("th", head, scope="col", class_="n") for head in ("found", "mends safely", "needs you")]
        table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), class_="found")
        return [tag("h3", "What was found"), table]

    def _checks(self, scan: StoreScan, found: Sequence[CheckResult], name: str) -> list[Markup]:
        if not found:
            return []
        kept: dict[str, list[Finding]] = {result.check.name: [] for result in found}
        for finding in scan.findings:
            some = kept.get(finding.check, [])
            if len(some) < self._look.limit:
                some.append(finding)
        parts = [tag("h3", "One by one")]
        for result in found:
            parts.append(tag("article", *self._check(result, kept[result.check.name], name), class_="check"))
        return parts

    def _check(self, result: CheckResult, kept: Sequence[Finding], name: str) -> Iterator[Markup]:
        check = result.check
        of_it = tag("span", f"{number(result.count)} found", class_="soft small")
        yield tag("h4", tag("span", check.name), _mark(result), of_it, id=_id(name, check))
        yield tag("p", _sentence(_meaning(result)))
        if kept:
            yield tag("ul", *(_row(finding, check) for finding in kept), class_="rows")
        rest = result.count - len(kept)
        if rest:
            command = tag("code", "doctor scan --json")
            yield tag("p", f"{number(rest)} more; ", command, " lists all of them.", class_="soft small rest")
        if check.name in self._explained:
            link = tag("a", f"What {check.name} means, and how it is mended", href=f"#{self._explained[check.name]}")
            yield tag("p", link, class_="rest")
            return
        self._explained[check.name] = f"{_id(name, check)}-page"
        summary = tag("summary", f"What {check.name} means, and how it is mended")
        yield tag("details", summary, explained(check), id=self._explained[check.name])


def _head(style: str, title: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode("ascii")).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        # Else a browser asks the host that serves the page for one.
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{title} · hermes-state-doctor"),
        Markup(f"<style>{style}</style>"),
    )
    return f'<!doctype html>\n<html lang="en" dir="ltr">\n{ascii_only(head)}\n<body>\n'


def _ending(start: RunStart, end: RunEnd) -> Markup:
    how = f"Made by hermes-state-doctor {start.version} (SQLite {start.sqlite}) in {duration(end.seconds)}."
    what = "It holds ids, counts and names of columns, and nothing that anybody wrote."
    footer = tag("footer", tag("div", tag("p", f"{how} {what}")))
    return join([Markup("</div></main>"), footer])


def _introduction(scan: StoreScan, word: str, name: str) -> Iterator[Markup]:
    """Name the store, what it holds, and what a person should know even if nothing else is wrong with it."""
    yield tag("h2", short_path(scan.ref.path), id=f"{name}-name")
    sized = [size(scan.bytes)] if scan.bytes is not None else []
    closed = scan.condition in CLOSED
    known = [word] if closed else [word, *facts(scan), *sized, holding(scan)]
    yield tag("p", " · ".join(known), class_="soft")
    notes = [scan.reason] if closed and scan.reason else [] if closed else notes_of(scan)
    if not scan.consistent and not closed:
        notes.append(WRITTEN_MEANWHILE)
    if scan.since_last is not None:
        notes.append(since_last(scan.since_last))
    notes += [f"{failure(result)}." for result in scan.checks if result.status == "failed" and not closed]
    for note in notes:
        yield tag("p", _sentence(note), class_="note")
    if closed and scan.next_step:
        yield tag("p", tag("b", "Next: "), scan.next_step, class_="note")


def _unknown(_store: Path) -> Mapping[str, Sequence[tuple[float, int]]]:
    return {}


def _pictures(scan: StoreScan, pictures: Pictures, past: Mapping[str, Sequence[tuple[float, int]]]) -> list[Markup]:
    figures: list[Markup] = []
    if pictures.open_rows is not None and pictures.open_rows.by_source:
        figures.append(open_rows_figure(pictures.open_rows))
    went = _went(scan, past)
    figures += [history_figure(went)] if went else []
    if pictures.space:
        figures.append(space_figure(pictures.space))
    elif pictures.traffic is not None and pictures.traffic.sessions:
        figures.append(traffic_figure(pictures.traffic))
    return [tag("div", *figures, class_="pictures")] if figures else []


def _went(scan: StoreScan, past: Mapping[str, Sequence[tuple[float, int]]]) -> dict[str, Sequence[tuple[float, int]]]:
    """Return what each check found so far, this scan included; what was looked at only once is no history."""
    went: dict[str, Sequence[tuple[float, int]]] = {}
    for result in scan.checks:
        points = list(past.get(result.check.name, ()))
        # The history may hold this scan already, or not yet.
        if points and result.status == "ran" and points[-1][0] < scan.now:
            points.append((scan.now, result.count))
        if len(points) > 1:
            went[result.check.name] = points
    return went


def _others(scan: StoreScan) -> Iterator[Markup]:
    """Name the checks that found nothing, and those that did not run."""
    clean = [result for result in scan.checks if result.status == "ran" and not result.count]
    if clean:
        names = tag("ul", *(tag("li", result.check.name) for result in clean), class_="names")
        yield tag("details", tag("summary", f"{counted(len(clean), 'check')} found nothing"), names)
    skipped = [result for result in scan.checks if result.status == "skipped"]
    if skipped and scan.condition not in CLOSED:
        names = tag(
            "ul",
            *(tag("li", result.check.name, tag("span", f": {result.reason}", class_="soft")) for result in skipped),
        )
        yield tag("details", tag("summary", f"{counted(len(skipped), 'check')} did not run"), names)


def _row(finding: Finding, check: Check) -> Markup:
    level = [] if finding.severity is check.severity else [" ", mark(finding.severity.label)]
    where = tag("p", tag("code", row_name(finding.table, finding.key, finding.session)), *level)
    said = [tag("p", _sentence(finding.summary))]
    remedy = {
        Bucket.SAFE: ("Mends safely: ", finding.action or ""),
        Bucket.UNSAFE: ("Needs --unsafe: ", finding.action or ""),
        Bucket.REFUSED: ("Not mended: ", finding.refusal or ""),
        Bucket.REPORT: ("", "") if finding.severity is Severity.INFO else ("Needs you: ", "see below what can be done"),
    }[finding.bucket]
    if remedy[0]:
        said.append(tag("p", tag("b", remedy[0]), f"{remedy[1]}.", class_="then"))
    if steps := steps_of(finding):
        said.append(tag("ol", *(tag("li", tag("code", step)) for step in steps)))
    return tag("li", where, tag("div", *said))


def _word(scan: StoreScan, found: Sequence[CheckResult]) -> str:
    """Return in few words how a store is."""
    if scan.condition in CLOSED:
        return CONDITION_WORDS[scan.condition]
    total = sum(result.count for result in found if result.muted is None)
    if total:
        return counted(total, "finding")
    if scan.stopped is not None or any(result.status == "failed" for result in scan.checks):
        return "not read in full"
    return "nothing but what is muted" if found else "healthy"


def _mark(result: CheckResult) -> Markup:
    return mark((result.worst or result.check.severity).label)


def _meaning(result: CheckResult) -> str:
    return result.check.meaning if result.muted is None else f"{result.check.meaning} ({muted_words(result.muted)})"


def _sentence(words: str) -> str:
    """Return words as a sentence: with a capital, and a full stop where nothing ends it."""
    # A name, as of a column, is not changed.
    words = words[:1].upper() + words[1:] if _PLAIN_WORD.match(words) else words
    return words if not words or words[-1] in ".!?:" else f"{words}."


def _id(store: str, check: Check) -> str:
    return f"{store}-{check.name.replace('/', '--')}"
