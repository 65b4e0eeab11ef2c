"""What a branch has of its parent's rows, and what got lost on the way.

A branch begins with copies of its parent's rows, and some paths wrote only some of their columns (EXECUTED: the CLI's
/branch up to 0.20.0 left out all reasoning but its plain text, the terminal UI's up to 0.20.0 wrote role and content
only). Nothing in the store says which release or path wrote a copy, so the copy's own shape has to: a path leaves a
column out of every row, or of none.

Which row is a copy of which is for `laid_rows` to find; where it leaves more than one way, and the ways do not agree
in what is to be filled in, it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hermes_doctor.store.cells import CODECS, Cell, Key
from hermes_doctor.store.clocks import trusted
from hermes_doctor.store.laid_rows import (
    BIT,
    COLUMNS,
    COPYING_SECONDS,
    LATE,
    ROLES,
    UNREAD,
    Laid,
    digests,
    in_pieces,
    is_after,
    is_said,
    named,
    read_rows,
    union,
)
from hermes_doctor.store.lineage import Edge, edge_sql, has_lineage
from hermes_doctor.store.nested_json import GOALS, Goal
from hermes_doctor.store.nul_texts import NUL_REASON, indexed_with_nul
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.setting_aside import spared
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: From 0.20.0 on a copy is written in pieces of so many rows, and a piece that fails ends it, without a word.
PIECE = 500

#: Sources of branches that have no mark (0.13 to 0.15.2), or a delegate's, from the upgrade to schema 16.
_TERMINALS = ("desktop", "tui")
_AT_ONCE = 500
#: Why a row waits for another check's fix.
_WRAPPED = "the parent's own JSON is wrapped in a string: double-encoded comes first"
#: How many rows of a copy are looked at first: most copies are whole, and then they show it.
_FIRST_ROWS = 40
#: Most rows that are filled in a store that somebody has open: each takes the lock for about 0.5 ms.
_MOST_HELD_ROWS = 1000

_ALL = sum(BIT.values())
_UNREAD = sum(BIT[column] for column in UNREAD)
_KEPT_BY_CLI = BIT["tool_calls"] | BIT["tool_call_id"] | BIT["reasoning"]


class Loss(NamedTuple):
    """A row of a branch, and the columns that it lacks and that its parent's same row has."""

    row: int
    parent_row: int
    columns: tuple[str, ...]


class BranchCopy(NamedTuple):
    """A branch whose copy is not whole.

    ``losses``: what can be filled in. ``left``: how many rows cannot, by reason. ``columns``: all that is missing, of
    these rows too. ``answers_lost``: tools' answers are among it. ``copied`` and ``not_copied``: rows of the parent,
    where the copy ended early, else 0. ``busy``: why nothing may be changed now.
    """

    session: Key
    parent: Key
    losses: tuple[Loss, ...]
    left: Mapping[str, int]
    columns: tuple[str, ...]
    answers_lost: bool
    copied: int
    not_copied: int
    busy: str | None


class _Branch(NamedTuple):
    session: Key
    parent: Key
    source: Cell
    started: float | None
    marked: bool


def broken_copies(view: StoreView, keys: Sequence[Key] | None = None) -> Iterator[BranchCopy]:
    """Give the branches (of these ids, or of the whole store) whose copy of their parent is not whole."""
    shape = view.shape
    if not has_lineage(shape) or not shape.messages_by_session or not shape.has("messages", "id", "role", "content"):
        return
    for branch in _branches(view, keys):
        broken = _look_at(view, branch)
        if broken is not None:
            yield broken


def _branches(view: StoreView, keys: Sequence[Key] | None) -> Iterator[_Branch]:
    shape = view.shape
    if keys is None:
        above = f"EXISTS (SELECT 1 FROM sessions p WHERE p.id = sessions.parent_session_id AND {_is_branch(shape)})"
        where = f"sessions.parent_session_id IS NOT NULL AND {above}"
        keys = [row[0] for row in view.reader.walk(shape.tables["sessions"], ["sessions.id"], where)]
    source, started = (shape.column("sessions", name, alias="sessions") for name in ("source", "started_at"))
    edge = edge_sql(shape, "sessions", "p")
    asked = [key for key in keys if key is not None]
    for start in range(0, len(asked), _AT_ONCE):
        among, cells = in_keys("sessions.id", asked[start : start + _AT_ONCE])
        for session, parent, came_from, at, kind in view.rows(
            f"SELECT sessions.id, p.id, {source}, {started}, {edge} FROM sessions"
            f" JOIN sessions p ON p.id = sessions.parent_session_id WHERE {among} AND {_is_branch(shape)}",
            cells,
        ):
            yield _Branch(session, parent, came_from, trusted(at), kind == Edge.BRANCH)


def _is_branch(shape: Shape) -> str:
    """Return SQL: sessions is a branch of p, or looks like one of the terminal's from before there were marks."""
    source = shape.column("sessions", "source", alias="sessions")
    terminals = ", ".join(f"'{name}'" for name in _TERMINALS)
    return (
        f"p.id <> sessions.id AND CASE {edge_sql(shape, 'sessions', 'p')} WHEN '{Edge.BRANCH}' THEN 1"
        f" WHEN '{Edge.SUBAGENT}' THEN {source} IN ({terminals})"
        f" WHEN '{Edge.DELEGATE}' THEN {source} IN ({terminals}) ELSE 0 END"
    )


def _look_at(view: StoreView, branch: _Branch) -> BranchCopy | None:
    bare_answers = _any(view, branch.session, "role = 'tool' AND {} IS NULL", "tool_call_id")
    suspect = branch.marked and (_may_lack_reasoning(view, branch) or _may_end_a_piece(view, branch))
    if not bare_answers and not suspect:
        return None
    own, its = ([row for row in read_rows(view, branch.session) if row.role in ROLES], read_rows(view, branch.parent))
    laid = Laid(own, its, branch.started)
    texts = digests(view, own), digests(view, its)
    places = laid.over(*texts)
    early = None
    if branch.marked and branch.started is not None and len(own) >= PIECE:
        dialogue = Laid(own, its, branch.started, dialogue=True)
        early = _ended_early(laid, places) or _ended_early(dialogue, dialogue.over(*texts))
    return _verdict(view, branch, laid, places, *(early or (0, 0)))


def _may_lack_reasoning(view: StoreView, branch: _Branch) -> bool:
    """Whether a look at the first rows, without a text of them, leaves it open that the CLI left out reasoning."""
    own = [row for row in read_rows(view, branch.session, most=_FIRST_ROWS) if row.role in ROLES]
    its = read_rows(view, branch.parent, most=_FIRST_ROWS)
    laid = Laid(own, its, branch.started)
    kept = laid.kept(laid.over([row.length for row in own], [row.length for row in its]))
    columns = named(_left_out(kept))
    return bool(columns) and _any(view, branch.parent, " OR ".join(["{} IS NOT NULL"] * len(columns)), *columns)


def _may_end_a_piece(view: StoreView, branch: _Branch) -> bool:
    """Whether the times allow that a whole piece is the last that was copied."""
    if branch.started is None or not view.shape.has("messages", "timestamp"):
        return False
    among, cells = in_keys("session_id", [branch.session])
    # Out of the index alone: without the plus SQLite goes through the table in the order of its ids.
    rows = view.rows(f"SELECT timestamp FROM messages WHERE {among} ORDER BY +id", cells)
    times = [trusted(at) for (at,) in rows]
    for end in range(PIECE, len(times) + 1, PIECE):
        following = times[end] if end < len(times) else None
        if not is_after(times[end - 1], branch.started + COPYING_SECONDS) and (
            following is None or following > branch.started
        ):
            return True
    return False


def _any(view: StoreView, session: Key, condition: str, *columns: str) -> bool:
    """Whether a row of the session fulfils a condition over these columns; those that the store lacks are NULL."""
    filled = condition.format(*(view.shape.column("messages", column) for column in columns))
    among, cells = in_keys("session_id", [session])
    return bool(view.rows(f"SELECT 1 FROM messages WHERE {among} AND ({filled}) LIMIT 1", cells))


def _verdict(
    view: StoreView, branch: _Branch, laid: Laid, places: list[list[int]], copied: int, not_copied: int
) -> BranchCopy | None:
    """Say what the copy lacks, None where it is whole."""
    pairs = list(zip(laid.own, places, strict=False))
    answers_lost = any(
        row.role == "tool" and row.live and row.lacks & laid.its[among[0]].has & BIT["tool_call_id"]
        for row, among in pairs
    )
    wanted = _ALL if answers_lost else _wanted(branch, laid.kept(places))
    missing = {
        number: lost
        for number, (row, among) in enumerate(pairs)
        if row.live and (lost := row.lacks & union(laid.its[place].has for place in among) & wanted)
    }
    if not missing and not not_copied:
        return None
    why = _why_left(view, laid, places, missing)
    if answers_lost:
        why = _by_turns(laid, places, missing, why)
    elif _WRAPPED in why.values():
        # All at once, when that is mended: of a column that is there in part nobody could say that it was left out.
        why = dict.fromkeys(missing, _WRAPPED)
    losses = tuple(
        Loss(pairs[number][0].id, laid.its[pairs[number][1][0]].id, named(lost))
        for number, lost in missing.items()
        if number not in why
    )
    left: dict[str, int] = {}
    for reason in why.values():
        left[reason] = left.get(reason, 0) + 1
    return BranchCopy(
        session=branch.session,
        parent=branch.parent,
        losses=losses,
        left=left,
        columns=named(union(missing.values())),
        answers_lost=answers_lost,
        copied=copied,
        not_copied=not_copied,
        busy=_busy(view, branch.session, len(losses)) if losses else None,
    )


def _wanted(branch: _Branch, kept: int) -> int:
    """Return what the CLI left out of this copy; nothing where it need not be the CLI's.

    The desktop writes branches of bare dialogue in every release (0.18.0 to 0.22.2), which lack all reasoning. The CLI
    kept calls and plain reasoning, and is a source of its own.
    """
    if not branch.marked or not (kept & _KEPT_BY_CLI or branch.source == "cli"):
        return 0
    return _left_out(kept)


def _left_out(kept: int) -> int:
    """Return what a path may have left out that kept these columns: all paths up to 0.20.0, fewer, or none."""
    if kept & BIT[LATE]:
        return 0
    return BIT[LATE] if kept & _UNREAD else BIT[LATE] | _UNREAD


def _ended_early(laid: Laid, places: list[list[int]]) -> tuple[int, int] | None:
    """Return how many rows were copied, and how many were not, where the copy ends with a piece and there were more."""
    if not places or len(places) % PIECE:
        return None
    more = sum(row.live and is_said(row) for row in laid.behind(places[-1][-1]))
    return (len(places), more) if more else None


def _why_left(view: StoreView, laid: Laid, places: list[list[int]], missing: Mapping[int, int]) -> dict[int, str]:
    """Return which of the rows cannot be filled, by number, and why."""
    why: dict[int, str] = {}
    certain: dict[int, int] = {}
    for number in missing:
        among = places[number]
        if len(among) == 1 or _all_alike(view, [laid.its[place].id for place in among]):
            certain[number] = laid.its[among[0]].id
        else:
            why[number] = "several rows of the parent fit"
    faults = _faults_of(view, {certain[number]: missing[number] for number in certain})
    why |= {number: faults[row] for number, row in certain.items() if row in faults}
    nul = indexed_with_nul(view, [laid.own[number].id for number in certain], named(union(missing.values())))
    why |= {number: NUL_REASON for number in certain if laid.own[number].id in nul}
    return why


def _by_turns(
    laid: Laid, places: list[list[int]], missing: Mapping[int, int], why: Mapping[int, str]
) -> dict[int, str]:
    """Leave whole what belongs together: a row with calls and the answers to them are filled all, or none."""
    together: list[list[int]] = []
    for number in range(len(places)):
        if laid.own[number].role != "tool" or not together:
            together.append([])
        together[-1].append(number)
    found = dict(why)
    for turn in together:
        reasons = [why[number] for number in turn if number in why]
        followed = laid.behind(places[turn[-1]][-1])[:1] if turn[-1] == len(places) - 1 else []
        if followed and followed[0].role == "tool" and laid.own[turn[0]].role == "assistant":
            reasons.append("some answers to its calls were not copied")
        if reasons:
            found |= {number: found.get(number, reasons[0]) for number in turn if number in missing}
    return found


def _busy(view: StoreView, session: Key, rows: int) -> str | None:
    """Return why the session must not be changed now, None where it may be."""
    if view.held != "no" and rows > _MOST_HELD_ROWS:
        return f"{rows:,} rows are too many to fill while somebody has the store open: stop hermes first"
    return spared(view, session)


def _all_alike(view: StoreView, ids: Sequence[int]) -> bool:
    """Whether these rows agree in all that a copy could be filled with."""
    if len(ids) > _AT_ONCE:
        return False
    columns = ", ".join(view.shape.column("messages", column) for column in COLUMNS)
    among, cells = in_keys("id", ids)
    return len(view.rows(f"SELECT DISTINCT {columns} FROM messages WHERE {among} LIMIT 2", cells)) == 1


def _faults_of(view: StoreView, wanted: Mapping[int, int]) -> dict[int, str]:
    """Return the rows of which a wanted cell is no text or no JSON of its kind, and in words what is the matter."""
    view.reader.connection.create_scalar_function(
        "doctor_text_reads", _reads(view.shape.encoding), 1, deterministic=True
    )
    columns = [column for column in COLUMNS if view.shape.has("messages", column)]
    kinds = ", ".join(_kind_sql(column, view.shape.column("messages", column)) for column in columns)
    found: dict[int, str] = {}
    for some in in_pieces(list(wanted)):
        among, cells = in_keys("id", some)
        for number, *said in view.rows(f"SELECT id, {kinds} FROM messages WHERE {among}", cells):
            assert isinstance(number, int)
            of_these = [kind for column, kind in zip(columns, said, strict=True) if wanted[number] & BIT[column]]
            if "broken" in of_these:
                found[number] = "what the parent has there is broken itself"
            elif "wrapped" in of_these:
                found[number] = _WRAPPED
    return found


def _kind_sql(column: str, cell: str) -> str:
    """Return SQL that says of a cell: good, wrapped or broken. Nested, so that what is no JSON raises nothing."""
    reads = f"doctor_text_reads(CAST({cell} AS BLOB))"
    if column not in GOALS:
        return f"CASE WHEN {reads} THEN 'good' ELSE 'broken' END"
    kinds = {Goal.LIST: "'array'", Goal.OBJECT: "'object'", Goal.EITHER: "'array', 'object'"}[GOALS[column]]
    return (
        f"CASE WHEN typeof({cell}) <> 'text' OR NOT {reads} THEN 'broken' WHEN json_valid({cell}) THEN"
        f" CASE WHEN json_type({cell}) IN ({kinds}) THEN 'good'"
        f" WHEN json_type({cell}) = 'text' THEN 'wrapped' ELSE 'broken' END ELSE 'broken' END"
    )


def _reads(encoding: str) -> Callable[..., bool]:
    codec = CODECS.get(encoding, "utf-8")

    def reads(cell: bytes | None) -> bool:
        try:
            (cell or b"").decode(codec)
        except UnicodeDecodeError:
            return False
        return True

    return reads
