"""`doctor rescue` for a person: what was saved, what not and why, what is in doubt, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.report.layout import Look, next_lines, table, wrapped
from hermes_doctor.report.table import CONDITION_WORDS
from hermes_doctor.report.words import counted, duration, number, short_path, size, visible
from hermes_doctor.rescue.account import LostRange, Rescue, Source, TableAccount

_OBSTACLES = {
    "nothing-saved": "Nothing can be saved",
    "refused": "Refused",
    "failed": "Failed",
    "stopped": "Stopped",
}

#: Where rows were found of which it is not sure that they are as the store last had them, and what may be wrong.
_DOUBTS = {
    Source.FREE: "pages that had been given back: they may have been deleted, or changed later",
    Source.TORN: "torn pages: a text may be mixed up with another",
    Source.LOG: "behind a broken part of the log: they may have been changed or deleted later",
}


def rescue_text(result: Rescue, look: Look, following: Sequence[str] = (), placing: Sequence[str] = ()) -> str:
    """Return the account of one rescue.

    ``following``: what may be typed next, each with what it does. ``placing``: the commands that put the new store in
    place of the damaged one.
    """
    groups = [[_header(result, look), *_obstacle(result, look)]]
    told = [each for each in result.tables if each.rows or not each.is_whole]
    if told:
        groups.append([_tables(told, look)])
    groups.append([line for text in _sentences(result, told, look) for line in wrapped(text, look.width, "  ", "    ")])
    if look.quiet:
        groups = [] if result.outcome == "rescued" else groups
    else:
        groups.append([*_sum(result, look), *next_lines(following, look.width)])
        groups.append(_placed(placing, look))
    return "\n".join("\n".join(lines) + "\n" for lines in groups if lines)


def _header(result: Rescue, look: Look) -> str:
    path = look.ink.bold(short_path(result.ref.path))
    facts = [] if result.schema_version is None else [f"schema {result.schema_version}"]
    facts += [] if result.bytes is None else [size(result.bytes)]
    word = "" if result.condition is None else CONDITION_WORDS.get(result.condition, "")
    facts = [look.ink.bad(word), *facts] if word else facts
    return f"{path}   {' · '.join(facts)}".rstrip()


def _obstacle(result: Rescue, look: Look) -> list[str]:
    """What stood in the way, or went wrong, and what to do about it."""
    word = _OBSTACLES.get(result.outcome)
    if word is None:
        return []
    reason = f": {visible(result.reason)}" if result.reason else ""
    lines = wrapped(f"{look.ink.bad(word)}{reason}.", look.width, "  ", "    ")
    if result.next_step:
        lines += wrapped(f"Next: {visible(result.next_step)}", look.width, "  ", "    ")
    return lines


def _tables(tables: Sequence[TableAccount], look: Look) -> str:
    rows = [
        [
            visible(each.name),
            number(each.rows),
            number(each.doubtful_rows),
            number(each.cut),
            "all" if each.failed else number(len(each.lost) + each.more_lost),
        ]
        for each in tables
    ]
    return table(["table", "saved", "of these not sure", "cut", "lost ranges"], rows, "lrrrr", look.width)


def _sentences(result: Rescue, tables: Sequence[TableAccount], look: Look) -> Iterator[str]:
    """What was lost and why, what is in doubt and what that means, and what became of the rest."""
    for each in tables:
        yield from _losses(each, look.limit)
    for each in tables:
        yield from _doubts(each, look.limit)
    if result.sessions_given:
        count = counted(result.sessions_given, "session")
        yield f"{count} could not be found: an empty one in its place holds the messages that are left."
    if result.chats_short:
        held = "chat holds" if result.chats_short == 1 else "chats hold"
        missing = "" if result.messages_missing is None else f", {counted(result.messages_missing, 'message')} in all"
        yield f"{result.chats_short:,} {held} fewer messages than hermes had counted{missing}."
    for note in result.notes:
        yield _sentence(note)
    if look.quiet:
        return
    if result.index_rebuilt:
        yield "The search index was made anew from the messages."
    if result.verified:
        yield f"Verified: {_sentence(result.verified)}"


def _losses(account: TableAccount, limit: int) -> Iterator[str]:
    name = visible(account.name)
    if account.failed:
        yield f"Nothing of {name} could be read: {visible(account.failed)}."
    for lost in account.lost[:limit]:
        page = "" if lost.page is None else f" (page {number(lost.page)})"
        where = f"{_range(account, lost)}, for {visible(lost.why)}{page}"
        yield f"Lost of {name}, but for what was found elsewhere: {where}."
    shown = min(limit, len(account.lost))
    more = len(account.lost) + account.more_lost - shown
    if more and shown:
        yield f"Lost of {name} {'is' if more == 1 else 'are'} {counted(more, 'range')} more."
    elif more:
        yield f"Lost of {name}, but for what was found elsewhere: {counted(more, 'range')} of {_ids(account)}."


def _range(account: TableAccount, lost: LostRange) -> str:
    ids = _ids(account)
    if lost.low is None:
        return f"all {ids}" if lost.high is None else f"{ids} up to {lost.high:,}"
    return f"{ids} from {lost.low:,} on" if lost.high is None else _spans(account, [(lost.low, lost.high)], 1)


def _doubts(account: TableAccount, limit: int) -> Iterator[str]:
    """What may not be as the store last had it, and what that means for whoever reads it."""
    name = visible(account.name)
    for source, doubt in _DOUBTS.items():
        if account.saved.get(source):
            yield f"{_rows(account.saved[source], name)} from {doubt}."
    if account.doubtful and limit:
        yield f"Look at these before you rely on them: {name}, {_spans(account, account.doubtful, limit)}."
    if account.cut:
        where = f" ({_spans(account, account.cut_rows, limit)})" if account.cut_rows and limit else ""
        yield f"{_rows(account.cut, name)} cut: a value is missing, or ends too early{where}."
    if account.saved.get(Source.LOOSE):
        yield f"{_rows(account.saved[Source.LOOSE], name)} from pages that the table leads to no more."
    if account.ambiguous_pages:
        yield f"Of {counted(account.ambiguous_pages, 'page')} it cannot be told whether they are of {name}."
    if account.left_out:
        copies = "copy of a row is" if account.left_out == 1 else "copies of rows are"
        yield f"Of {name}, {account.left_out:,} older or deleted {copies} left out."


def _rows(count: int, name: str) -> str:
    return f"{counted(count, 'row')} of {name} {'is' if count == 1 else 'are'}"


def _ids(account: TableAccount) -> str:
    """What the numbers of a table's rows are called: of messages they are the ids that hermes shows."""
    return "ids" if account.name == "messages" else "rowids"


def _spans(account: TableAccount, runs: Sequence[tuple[int, int]], limit: int) -> str:
    ids, more = _ids(account), len(runs) - limit
    if len(runs) == 1 and runs[0][0] == runs[0][1]:
        ids = ids.removesuffix("s")
    spans = (f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in runs[:limit])
    return f"{ids} {', '.join(spans)}" + (f" and {counted(more, 'run')} more" if more > 0 else "")


def _sentence(text: str) -> str:
    return f"{visible(text).rstrip('.')}."


def _sum(result: Rescue, look: Look) -> Iterator[str]:
    """The result in a sentence, and that the store itself is as it was."""
    if result.outcome not in ("rescued", "partly-rescued"):
        return
    rows = sum(each.rows for each in result.tables)
    doubtful = sum(each.doubtful_rows for each in result.tables)
    took = duration(result.seconds)
    count = f"all {rows:,} rows" if result.outcome == "rescued" else counted(rows, "row")
    sure = f", {doubtful:,} of them not sure" if doubtful else ""
    if result.output is None:
        told = f"{count} can be saved{sure}. Read in {took}, nothing was written."
    else:
        told = f"{count} saved in {short_path(result.output)}{sure}, in {took}."
        told += f" {short_path(result.ref.path)} is as it was."
    told = told[0].upper() + told[1:]
    yield from wrapped(told, look.width)


def _placed(placing: Sequence[str], look: Look) -> list[str]:
    if not placing:
        return []
    told = (
        "To put it in place, stop hermes first. Keep the damaged file, and move it with each -wal, -shm and -journal"
        " of its name: one that stays would spoil the new store."
    )
    # Each on its own line, never broken: they are to be copied.
    return [*wrapped(told, look.width), *(f"  {command}" for command in placing)]
