"""What a nightly run has to tell: a line for each thing that is new, and the whole as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator

from hermes_doctor.engine.model import ExitCode
from hermes_doctor.host.upstream import quoted
from hermes_doctor.nightly.news import StoreNews
from hermes_doctor.nightly.run import NightlyRun
from hermes_doctor.report.document import dump, utc
from hermes_doctor.report.model import OUTCOMES
from hermes_doctor.report.table import CONDITION_WORDS
from hermes_doctor.report.words import counted, number, short_path, visible

FORMAT = "hermes-doctor.nightly"
FORMAT_VERSION = 1


def news_lines(run: NightlyRun) -> list[str]:
    """Return what is new, for a person who reads mail or a journal; nothing where nothing is."""
    lines = [line for store in run.stores for line in _of_store(store)]
    if run.not_scanned:
        lines.append(f"stopped: {counted(len(run.not_scanned), 'store')} not read. The next run reads them.")
    return lines


def nightly_json(run: NightlyRun) -> str:
    """Return the document (schemas/nightly.json), on one line."""
    code = run.exit_code
    return dump(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "tool": {"version": run.version},
            "host": run.host,
            "started_at": utc(run.started_at),
            "databases": [_store(store) for store in run.stores],
            "not_scanned": [str(path) for path in run.not_scanned],
            "found": sum(store.found for store in run.stores),
            "new": sum(store.new for store in run.stores),
            "mended": sum(store.mending.mended for store in run.stores if store.mending),
            "seconds": round(run.seconds, 3),
            "outcome": "nothing-new"
            if code is ExitCode.CLEAN
            else "news"
            if code is ExitCode.FINDINGS
            else OUTCOMES[code],
            "exit_code": int(code),
        }
    )


def _of_store(store: StoreNews) -> Iterator[str]:
    """Give a line for each thing that is new about one store, each with what may be typed next."""
    scan, name = store.scan, short_path(store.scan.ref.path)
    look = f"Next: doctor scan {quoted(scan.ref.path)}"
    if store.turned:
        word = CONDITION_WORDS.get(scan.condition, scan.condition.value)
        word = word if word.startswith("cannot") else f"is {word}"
        reason = f": {visible(scan.reason)}" if scan.reason else ""
        yield f"{name} {word}{reason}. {f'Next: {visible(scan.next_step)}' if scan.next_step else look}"
    if store.new:
        ranked = sorted((each for each in store.checks if each.new), key=lambda each: (-each.severity, -each.new))
        listed = ", ".join(f"{visible(each.check)} {number(each.new)}" for each in ranked)
        beside = "" if store.found == store.new else f"; with those known before, {number(store.found)} in all"
        yield f"{counted(store.new, 'new finding')} in {name}: {listed}{beside}. {look}"
    for check in store.newly_failed:
        why = next((each.reason for each in scan.checks if each.check.name == check), None)
        yield f"the check {visible(check)} could not do its work on {name} ({visible(why or 'no reason')}). {look}"
    if store.mending is not None:
        mending = store.mending
        undo = f" Next: doctor undo {mending.run} (shows how it is taken back)" if mending.run else ""
        if mending.mended:
            yield f"{counted(mending.mended, 'finding')} mended in {name}.{undo}"
        if mending.exit_code is ExitCode.FAILED:
            yield f"{name} could not be mended: {visible(mending.reason or 'no reason')}."
        elif mending.reason and store.has_news:
            yield f"not all that is safe was mended in {name}: {visible(mending.reason)}."
    if scan.stopped is not None:
        yield f"{name} was not read to its end: {visible(scan.stopped)}. The next run reads it."
    if not store.kept:
        yield f"what was found in {name} could not be kept: the next run tells it again as new."


def _store(store: StoreNews) -> dict[str, object]:
    scan, mending = store.scan, store.mending
    return {
        "path": scan.ref.path,
        "home": scan.ref.home,
        "profile": scan.ref.profile,
        "condition": scan.condition.value,
        "reason": scan.reason,
        "next": scan.next_step,
        "schema_version": scan.schema_version,
        "bytes": scan.bytes,
        "sessions": scan.sessions,
        "messages": scan.messages,
        "held": scan.held,
        "deep": store.deep,
        "found": store.found,
        "new": store.new,
        "checks": [
            {
                "check": each.check,
                "severity": each.severity.label,
                "found": each.found,
                "new": each.new,
                "mended": each.mended,
            }
            for each in store.checks
        ],
        "failed": [each.check.name for each in scan.checks if each.status == "failed"],
        "muted": [each.check.name for each in scan.checks if each.muted is not None],
        "mending": None
        if mending is None
        else {
            "run": mending.run,
            "mended": mending.mended,
            "reason": mending.reason,
            "exit_code": int(mending.exit_code),
        },
        "seconds": round(scan.seconds, 3),
        "exit_code": int(store.exit_code),
    }
