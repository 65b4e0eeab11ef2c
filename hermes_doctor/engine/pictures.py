"""What pictures of a store need beside its scan: open rows by age, what takes the space, faulty conversations.

Read in the scan's `Look`, while the store is still open. Each has some seconds at most and takes some hundred rows of
memory; what was not done by then is left out, or says that it is not the whole. Ids, counts and sources only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from hermes_doctor.engine.lineage_tree import Tree, tree_of
from hermes_doctor.engine.model import Severity
from hermes_doctor.store.ages import age_columns, age_from
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import DAY
from hermes_doctor.store.lineage import family_of, has_lineage
from hermes_doctor.store.reader import Pace, TimeIsUp
from hermes_doctor.store.trees import Part as StorePart
from hermes_doctor.store.trees import Tree as StoreTree
from hermes_doctor.store.trees import read_trees

if TYPE_CHECKING:
    from hermes_doctor.engine.scan import StoreScan
    from hermes_doctor.store.view import StoreView

T = TypeVar("T")

#: Ages at which open rows are told apart, in seconds; beyond the last is one kind more, and of unknown age another.
AGES = (DAY, 7 * DAY, 30 * DAY, 90 * DAY)

#: Seconds for each picture.
_SECONDS = 1.5
#: Sources are free text: so many are told apart, by so many of their first characters.
_SOURCES, _SOURCE_LENGTH = 100, 64
#: Largest store whose pages are counted, in bytes, for all are read then; and where hermes may wait for that.
_COUNTED_PAGES, _COUNTED_PAGES_WAITING = 512 << 20, 4 << 20
#: Conversations that are drawn, sessions with findings that are asked for one, and findings that one session keeps.
_TREES, _ASKED, _KEPT = 3, 60, 50


@dataclass
class OpenRows:
    """How many sessions are open, by source ("" for none) and age; a count for each of `AGES`, older, not known."""

    by_source: dict[str, list[int]] = field(default_factory=dict)
    whole: bool = True

    def add(self, source: str, place: int) -> None:
        """Count one row."""
        name = source if source in self.by_source or len(self.by_source) < _SOURCES else "others"
        self.by_source.setdefault(name, [0] * (len(AGES) + 2))[place] += 1


@dataclass(frozen=True)
class Part:
    """A table, an index or the free pages, and what it takes up in bytes. ``kind``: in words."""

    name: str
    kind: str
    bytes: int


@dataclass
class Traffic:
    """How many sessions and messages came from each source, where counting pages would take too long."""

    sessions: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    whole: bool = True


@dataclass(frozen=True)
class Pictures:
    """All of it; what could not be had is None or empty."""

    open_rows: OpenRows | None = None
    space: Sequence[Part] = ()
    traffic: Traffic | None = None
    lineages: Sequence[Tree] = ()


def gather(scan: StoreScan, view: StoreView) -> Pictures:
    """Read what pictures need; a scan whose time was up gets none."""
    if scan.stopped is not None:
        return Pictures()
    # The ranges that are read from here on are no part of the scan.
    view.reader.on_range = None
    space = _in_time(view, space_of) or ()
    return Pictures(
        open_rows=_in_time(view, open_rows_of),
        space=space,
        traffic=None if space else _in_time(view, traffic_of),
        lineages=_in_time(view, lambda view: lineages_of(scan, view)) or (),
    )


def open_rows_of(view: StoreView) -> OpenRows | None:
    """Count the open rows; None where the store's shape does not tell."""
    shape = view.shape
    if not shape.has("sessions", "id", "ended_at"):
        return None
    found = OpenRows()
    columns = [_source(view), *age_columns(shape)]
    try:
        for source, *times in view.reader.walk(shape.tables["sessions"], columns, "sessions.ended_at IS NULL"):
            found.add(_name(source), _place(age_from(times).newest, view.now))
    except TimeIsUp:
        found.whole = False
    return found


def space_of(view: StoreView) -> Sequence[Part]:
    """Weigh each table and index by its pages, the heaviest first; nothing where that would take long."""
    waiting = view.reader.pace is Pace.SLICED and view.reader.rests
    size = view.reader.value("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    if not isinstance(size, int) or size > (_COUNTED_PAGES_WAITING if waiting else _COUNTED_PAGES):
        return ()
    trees = {tree.name: tree for tree in read_trees(view.reader.connection)}
    parts = [
        Part(name, _kind(trees.get(name)), weight)
        for name, weight in view.rows("SELECT name, sum(pgsize) FROM dbstat WHERE aggregate = TRUE GROUP BY name")
        if isinstance(name, str) and isinstance(weight, int)
    ]
    free = view.reader.value("SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size")
    if isinstance(free, int) and free:
        parts.append(Part("", "free pages", free))
    return sorted(parts, key=lambda part: -part.bytes)


def traffic_of(view: StoreView) -> Traffic | None:
    """Count sessions, and the messages that they say they hold, by source; None where the shape does not tell."""
    shape = view.shape
    if not shape.has("sessions", "source"):
        return None
    found = Traffic()
    columns = [_source(view), shape.column("sessions", "message_count", absent="0")]
    try:
        for source, count in view.reader.walk(shape.tables["sessions"], columns):
            name = _name(source)
            name = name if name in found.sessions or len(found.sessions) < _SOURCES else "others"
            found.sessions[name] += 1
            found.messages[name] += count if isinstance(count, int) and count > 0 else 0
    except TimeIsUp:
        found.whole = False
    return found


def lineages_of(scan: StoreScan, view: StoreView) -> Sequence[Tree]:
    """Return the first conversations of several sessions in which something was found, what is worst first."""
    trees: list[Tree] = []
    if not has_lineage(view.shape):
        return trees
    try:
        for session in _suspects(scan):
            if len(trees) == _TREES:
                break
            if any(session in tree.nodes for tree in trees) or len(family_of(view, session)) < 2:
                continue
            tree = tree_of(view, session)
            if tree is not None and len(tree.nodes) > 1:
                trees.append(tree)
    except TimeIsUp:
        # Those that are complete are drawn.
        pass
    for finding in scan.findings if trees else ():
        for tree in trees:
            node = None if isinstance(finding.session, tuple) else tree.nodes.get(finding.session)
            if node is not None and len(node.findings) < _KEPT:
                node.findings.append(finding)
    return trees


def _suspects(scan: StoreScan) -> list[Key]:
    """Return sessions of which something was found, the worst first, a few of each check before more of the same."""
    by_check: dict[tuple[Severity, str], list[Key]] = {}
    for finding in scan.findings:
        if finding.session is None or isinstance(finding.session, tuple):
            continue
        some = by_check.setdefault((finding.severity, finding.check), [])
        if len(some) < _ASKED:
            some.append(finding.session)
    ranked = sorted(by_check.items(), key=lambda item: -item[0][0])
    chosen = {session: None for _, some in ranked for session in some[:_TREES]}
    chosen |= {session: None for _, some in ranked for session in some}
    return list(chosen)[:_ASKED]


def _in_time(view: StoreView, make: Callable[[StoreView], T]) -> T | None:
    """Return what ``make`` reads, None where that takes too long or cannot be read: the scan itself was complete."""
    import apsw

    try:
        with view.reader.until(time.monotonic() + _SECONDS):
            return make(view)
    except (TimeIsUp, apsw.Error):
        return None


def _source(view: StoreView) -> str:
    source = view.shape.column("sessions", "source")
    return f"CASE typeof({source}) WHEN 'text' THEN substr({source}, 1, {_SOURCE_LENGTH}) END"


def _name(source: Cell) -> str:
    return source if isinstance(source, str) else ""


def _place(newest: float | None, now: float) -> int:
    if newest is None:
        return len(AGES) + 1
    return next((place for place, limit in enumerate(AGES) if now - newest < limit), len(AGES))


def _kind(tree: StoreTree | None) -> str:
    if tree is not None and tree.part is StorePart.SEARCH:
        return "search index"
    return "index" if tree is not None and tree.is_index else "table"
