"""`doctor lineage`: a conversation drawn as a tree that reads well at 80 columns, however long its chain is.

A chain runs straight down, one line a session; what branches off stands indented. Runs of sessions of which there is
nothing to say are folded into one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hermes_doctor.engine.lineage_tree import Node, Tree
from hermes_doctor.engine.model import Finding
from hermes_doctor.engine.scan import StoreScan
from hermes_doctor.report.layout import Look, header, wrapped
from hermes_doctor.report.words import ago, counted, key_text, number, visible
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import trusted
from hermes_doctor.store.lineage import COMPRESSION, Edge

#: A run of so many plain sessions is folded: its first and its last stay.
_FOLDED_FROM = 4
#: Widest that indents get, in columns; deeper generations stand no further in.
_DEEPEST_INDENT = 24
#: Longest id, source or reason that is drawn whole.
_LONGEST = 48
#: Stands for a space at which no line is broken.
_GLUE = "\u00a0"

_PLURALS = {
    Edge.TOOL: "tool runs",
    Edge.BRANCH: "branches",
    Edge.DELEGATE: "delegates",
    Edge.RESET: "resets",
    Edge.CONTINUATION: "continuations",
    Edge.SUBAGENT: "subagents",
}


@dataclass(frozen=True)
class Fold:
    """Sessions of which nothing is said but how many they are."""

    nodes: Sequence[Node]


@dataclass(frozen=True)
class Piece:
    """One piece to draw: a session or a fold, what stands before it, and what before its own kin."""

    what: Node | Fold
    before: str
    below: str
    chained: bool = False


def lineage_text(scan: StoreScan, tree: Tree, look: Look) -> str:
    """Return the tree of one store for a person."""
    drawing = Drawing(scan, tree, look)
    lines = [] if look.quiet else [header(scan, look), "", *_wrapped(drawing.introduction(), look.width), ""]
    return "\n".join([*lines, *drawing.lines()]) + "\n"


class Drawing:
    """A tree laid out from top to bottom: what stands on which line, and what is said there."""

    def __init__(self, scan: StoreScan, tree: Tree, look: Look | None = None) -> None:
        self._now = scan.now
        self._tree = tree
        self._look = look or Look()
        self._to_end = _way_up(tree, tree.resumes) | _way_up(tree, tree.asked)

    def introduction(self) -> str:
        """Say how large the tree is, and where a resume ends."""
        tree = self._tree
        asked = _name(tree.asked)
        size = f"{counted(len(tree.nodes), 'session')}, {counted(_messages(tree.nodes.values()), 'message')}"
        more = " at least: there are more than are shown" if tree.cut else ""
        where = "stays there" if tree.resumes == tree.asked else f"opens {_name(tree.resumes)}"
        empty = "" if tree.tip in (tree.resumes, tree.asked) else f" (its chain ends at {_name(tree.tip)})"
        said = f"{size}{more}. Resuming {asked} {where}{empty}."
        if tree.root.parent is not None and tree.root.edge is None:
            said += f" The parent of {_name(tree.root.id)}, {_name(tree.root.parent)}, does not exist."
        return said.replace(_GLUE, " ")

    def lines(self) -> Iterator[str]:
        """Draw it."""
        for piece in self.pieces():
            yield from self._fold(piece) if isinstance(piece.what, Fold) else self._node(piece)

    def pieces(self) -> Iterator[Piece]:
        """Give what is to be drawn from top to bottom, without recursion: generations may be many."""
        waiting = [*reversed(self._chain(self._tree.root, "", ""))]
        while waiting:
            piece = waiting.pop()
            yield piece
            if not isinstance(piece.what, Fold):
                waiting += reversed(self._beside(piece))

    def _chain(self, start: Node, before: str, below: str) -> list[Piece]:
        """Return the pieces of the chain that begins with a session: it goes straight down."""
        chain = [start]
        while (following := self._next(chain[-1])) is not None:
            chain.append(following)
        pieces = _folded(chain, lambda node: self._is_plain(node) and node is not start and node is not chain[-1])
        return [
            Piece(each, f"{below}↓ " if place else before, below, place < len(pieces) - 1)
            for place, each in enumerate(pieces)
        ]

    def _beside(self, piece: Piece) -> list[Piece]:
        """Return the pieces for what branches off a session."""
        assert isinstance(piece.what, Node)
        following = self._next(piece.what)
        sides = [child for child in piece.what.children if child is not following]
        pieces = _folded(sides, lambda node: self._is_plain(node) and not node.children)
        lines: list[Piece] = []
        for place, each in enumerate(pieces):
            last = place == len(pieces) - 1 and not piece.chained
            before, below = f"{piece.below}{'└─ ' if last else '├─ '}", f"{piece.below}{'   ' if last else '│  '}"
            if len(below) > _DEEPEST_INDENT:
                below = piece.below
            lines += [Piece(each, before, below)] if isinstance(each, Fold) else self._chain(each, before, below)
        return lines

    def _next(self, node: Node) -> Node | None:
        """Return the session in which a conversation goes on, else the one that it was reset to."""
        for edge in (Edge.CONTINUATION, Edge.RESET):
            going_on = [child for child in node.children if child.edge is edge]
            if going_on:
                return max(going_on, key=lambda child: (child.id in self._to_end, -_rank(child), _started(child)))
        return None

    def _is_plain(self, node: Node) -> bool:
        """Whether there is nothing to say of a session but that it is there."""
        following = self._next(node)
        return (
            not node.findings
            and node.id not in (self._tree.asked, self._tree.resumes)
            and all(child is following for child in node.children)
        )

    def _node(self, piece: Piece) -> Iterator[str]:
        node = piece.what
        assert isinstance(node, Node)
        marks = ["resumed here"] if self.is_resumed(node) else []
        marks += ["asked for"] if node.id == self._tree.asked else []
        text = f"{_name(node.id)}  " + " · ".join(self.facts(node))
        text += f"  ← {', '.join(marks)}".replace(" ", _GLUE).replace(_GLUE, " ", 2) if marks else ""
        hanging = piece.below + ("│   " if self.goes_on(piece) else "    ")
        lines = _wrapped(text, self._look.width, piece.before, hanging)
        name = _name(node.id).replace(_GLUE, " ")
        yield lines[0].replace(name, self._look.ink.bold(name), 1) if marks else lines[0]
        yield from lines[1:]
        for some in by_check(node.findings):
            more = f" (and {number(len(some) - 1)} more)" if len(some) > 1 else ""
            said = f"! {some[0].check}: {visible(some[0].summary)}{more}"
            for line in _wrapped(said, self._look.width, hanging, f"{hanging}  "):
                yield self._look.ink.of(some[0].severity, line)

    def is_resumed(self, node: Node) -> bool:
        """Whether a resume opens this session."""
        return node.id == self._tree.resumes

    def facts(self, node: Node) -> list[str]:
        """Say what a session is to its parent, where it came from, what it holds and how it ended."""
        above = self._tree.nodes.get(node.parent)
        source = "" if above is not None and above.source == node.source else _word(node.source)
        facts = [node.edge.value if node.edge else "start", source, counted(node.messages, "message"), self._end(node)]
        return [fact for fact in facts if fact]

    def goes_on(self, piece: Piece) -> bool:
        """Whether something hangs below a piece."""
        if isinstance(piece.what, Fold):
            return piece.chained
        following = self._next(piece.what)
        return piece.chained or any(child is not following for child in piece.what.children)

    def _fold(self, piece: Piece) -> Iterator[str]:
        assert isinstance(piece.what, Fold)
        yield f"{piece.before}… {fold_words(piece.what)} …"

    def _end(self, node: Node) -> str:
        if node.ended_at is None and node.end_reason is None:
            return "open"
        reason = "compressed" if node.end_reason == COMPRESSION else _word(node.end_reason) or "ended without a reason"
        ended = trusted(node.ended_at)
        return reason if ended is None else f"{reason} {ago(ended, self._now)}"


def fold_words(fold: Fold) -> str:
    """Say how many sessions are folded, of what kind, and how many messages they hold."""
    edges = {node.edge for node in fold.nodes}
    edge = edges.pop() if len(edges) == 1 else None
    noun = _PLURALS[edge] if edge else "sessions"
    return f"{number(len(fold.nodes))} more {noun} · {counted(_messages(fold.nodes), 'message')}"


def _folded(nodes: Sequence[Node], plain: Callable[[Node], bool]) -> list[Node | Fold]:
    """Fold runs of plain sessions with one edge; the first and the last of a run stay."""
    pieces: list[Node | Fold] = []
    run: list[Node] = []

    def end_run() -> None:
        if len(run) < _FOLDED_FROM:
            pieces.extend(run)
        else:
            pieces.extend((run[0], Fold(tuple(run[1:-1])), run[-1]))
        run.clear()

    for node in nodes:
        if run and (not plain(node) or node.edge is not run[0].edge):
            end_run()
        if plain(node):
            run.append(node)
        else:
            pieces.append(node)
    end_run()
    return pieces


def _way_up(tree: Tree, session: Key) -> set[Key]:
    """Return a session and all above it, as far as they are in the tree."""
    way: set[Key] = set()
    while session in tree.nodes and session not in way:
        way.add(session)
        session = tree.nodes[session].parent
    return way


def by_check(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Return what was found of one session, the findings of a check together, the worst first."""
    by_check: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=lambda each: -each.severity):
        by_check.setdefault(finding.check, []).append(finding)
    return list(by_check.values())


def _rank(node: Node) -> int:
    if node.end_reason == COMPRESSION:
        return 0
    return 1 if node.ended_at is None else 2


def _started(node: Node) -> float:
    return trusted(node.started_at) or 0.0


def _messages(nodes: Iterable[Node]) -> int:
    return sum(node.messages for node in nodes)


def _name(key: Key) -> str:
    """Return an id for a line: control characters visible, shortened in the middle where it is very long."""
    return _shortened(key_text(key)).replace(" ", _GLUE)


def _word(cell: Cell) -> str:
    """Return a source or a reason as it is, if it is text."""
    return _shortened(visible(cell)) if isinstance(cell, str) else ""


def _shortened(text: str) -> str:
    half = (_LONGEST - 1) // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half:]}"


def _wrapped(text: str, width: int, before: str = "", hanging: str = "") -> list[str]:
    """Return the text in lines, no id broken at a space in it."""
    return [line.replace(_GLUE, " ") for line in wrapped(text, width, before, hanging)]
