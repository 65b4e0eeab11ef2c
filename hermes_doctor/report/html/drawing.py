"""The pictures of a store: each is a table or a list that says it all in words, with shapes drawn beside the words.

So a picture has its text alternative in itself, text keeps its size on a narrow screen, and nothing is said by a shape
or a colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from hermes_doctor.engine.lineage_tree import Node, Tree
from hermes_doctor.engine.pictures import OpenRows, Part, Traffic
from hermes_doctor.engine.scan import StoreScan
from hermes_doctor.report.html.markup import Markup, tag, text
from hermes_doctor.report.lineage import Drawing, Fold, Piece, by_check, fold_words
from hermes_doctor.report.words import counted, key_text, number, size, visible

#: Rows of a table, and of a drawn conversation, before the rest is summed up.
_MOST_ROWS, _MOST_LINES = 7, 24
#: What `hermes_doctor.engine.pictures.AGES` tells apart, in words.
_AGES = ("under 1 day", "1–7 days", "7–30 days", "30–90 days", "over 90 days", "age not known")
_BIGGEST_DOT = 16.0
#: Characters of a source that are shown.
_LONGEST = 32
#: Pixels between two lanes of a conversation, to the first one, and from the top of a line to its dot.
_LANE, _MARGIN, _DOT = 18, 9, 15
#: Scans of which a history is drawn, its size in pixels, and its margin.
_MOST_POINTS, _CURVE_WIDTH, _CURVE_HEIGHT, _CURVE_EDGE = 60, 96, 30, 4


def open_rows_figure(found: OpenRows) -> Markup:
    """Return how many sessions are open, by source and by the time since they were last used."""
    total = sum(map(sum, found.by_source.values()))
    places = [place for place in range(len(_AGES)) if any(counts[place] for counts in found.by_source.values())]
    biggest = max(max(counts) for counts in found.by_source.values())
    ranked = sorted(found.by_source.items(), key=lambda item: (-sum(item[1]), item[0]))
    rows = [(name or "no source", counts) for name, counts in ranked[:_MOST_ROWS]]
    if ranked[_MOST_ROWS:]:
        rest = [sum(column) for column in zip(*(counts for _, counts in ranked[_MOST_ROWS:]), strict=True)]
        rows.append((f"{number(len(ranked) - _MOST_ROWS)} more", rest))
    head = _head("source", *(_AGES[place] for place in places))
    body = [
        tag("tr", tag("th", _short(name), scope="row"), *(_dot_cell(counts[place], biggest) for place in places))
        for name, counts in rows
    ]
    said = f"{counted(total, 'session')} open, by source and by when they were last used."
    more = "" if found.whole else " There are more: this is what could be counted in time."
    return _figure("Open sessions", said + more, tag("table", head, tag("tbody", *body), class_="dots"))


def space_figure(parts: Sequence[Part]) -> Markup:
    """Return what takes up the file: tables, indexes, free pages."""
    total = sum(part.bytes for part in parts) or 1
    rows = [(part.name or part.kind, part.kind if part.name else "", part.bytes) for part in parts[:_MOST_ROWS]]
    if parts[_MOST_ROWS:]:
        rows.append((f"{number(len(parts) - _MOST_ROWS)} more", "", sum(part.bytes for part in parts[_MOST_ROWS:])))
    body = [_bar_row(name, kind, (size(weight), _share(weight / total)), weight / total) for name, kind, weight in rows]
    head = _head("part", "", "size", "share", numbers=2)
    said = f"The pages of the file, {size(total)} in all."
    return _figure("What takes the space", said, tag("table", head, tag("tbody", *body), class_="bars"))


def traffic_figure(found: Traffic) -> Markup:
    """Return how many sessions and messages came from where."""
    ranked = sorted(found.sessions, key=lambda name: (-found.messages[name], -found.sessions[name], name))
    rows = [(name or "no source", found.sessions[name], found.messages[name]) for name in ranked[:_MOST_ROWS]]
    if ranked[_MOST_ROWS:]:
        rest = ranked[_MOST_ROWS:]
        sessions, messages = (sum(counts[name] for name in rest) for counts in (found.sessions, found.messages))
        rows.append((f"{number(len(rest))} more", sessions, messages))
    total = sum(found.messages.values()) or 1
    body = [
        _bar_row(name, "", (number(sessions), number(messages)), messages / total) for name, sessions, messages in rows
    ]
    head = _head("source", "", "sessions", "messages", numbers=2)
    said = "Sessions by source, and the messages that they say they hold."
    more = "" if found.whole else " There are more: this is what could be counted in time."
    return _figure("Where it all comes from", said + more, tag("table", head, tag("tbody", *body), class_="bars"))


def lineage_figure(scan: StoreScan, tree: Tree) -> Markup:
    """Return a conversation as a graph: one line a session, what descends from it below."""
    drawing = Drawing(scan, tree)
    lines: list[Markup] = []
    left = 0
    for piece in drawing.pieces():
        if len(lines) < _MOST_LINES:
            lines.append(_line(drawing, piece))
        else:
            left += len(piece.what.nodes) if isinstance(piece.what, Fold) else 1
    caption = tag("figcaption", drawing.introduction())
    more = (
        [tag("p", f"{counted(left, 'session')} more: doctor lineage shows all.", class_="soft small")] if left else []
    )
    title = tag("h3", "The conversation of ", tag("code", key_text(tree.asked)))
    return tag("figure", title, caption, tag("ol", *lines, class_="tree"), *more)


def mark(severity: str) -> Markup:
    """Return a severity: its word, and a shape of its own beside it."""
    shapes = {
        "error": Markup('<path d="M6 1 11 6 6 11 1 6z"/>'),
        "warning": Markup('<path d="M6 1.5 11 10.5H1z"/>'),
        "info": Markup('<circle cx="6" cy="6" r="4"/>'),
    }
    shape = tag("svg", shapes[severity], width=12, height=12, aria_hidden="true")
    return tag("span", shape, severity, class_=f"mark {severity}")


def history_figure(went: Mapping[str, Sequence[tuple[float, int]]]) -> Markup:
    """Return what the checks found from scan to scan, as a line each, what is most now first."""
    ranked = sorted(went.items(), key=lambda item: (-item[1][-1][1], item[0]))[:_MOST_ROWS]
    body = []
    for check, points in ranked:
        counts = [count for _at, count in points[-_MOST_POINTS:]]
        values = (tag("td", number(count), class_="n") for count in (counts[0], counts[-1]))
        body.append(tag("tr", tag("th", check, scope="row"), tag("td", _curve(counts)), *values))
    since = min(points[-_MOST_POINTS:][0][0] for _check, points in ranked)
    left = f" {number(len(went) - len(ranked))} checks with less are left out." if len(went) > len(ranked) else ""
    said = f"What each check found, scan by scan, since {datetime.fromtimestamp(since):%d %B %Y}.{left}"
    table = tag("table", _head("check", "", "first", "now", numbers=2), tag("tbody", *body), class_="curve")
    return _figure("How it has gone", said, table)


def _curve(counts: Sequence[int]) -> Markup:
    """Return how a count went as a line; what is drawn is said, too."""
    most = max(*counts, 1)
    step = (_CURVE_WIDTH - 2 * _CURVE_EDGE) / (len(counts) - 1)
    points = [
        (_CURVE_EDGE + place * step, _CURVE_HEIGHT - _CURVE_EDGE - count / most * (_CURVE_HEIGHT - 2 * _CURVE_EDGE))
        for place, count in enumerate(counts)
    ]
    scans = f"{number(len(counts))} scans"
    return tag(
        "svg",
        tag("line", x1=0, x2=_CURVE_WIDTH, y1=_CURVE_HEIGHT - 1, y2=_CURVE_HEIGHT - 1),
        tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_="stroke"),
        tag("circle", cx=f"{points[-1][0]:.1f}", cy=f"{points[-1][1]:.1f}", r=3.5, class_="fill"),
        width=_CURVE_WIDTH,
        height=_CURVE_HEIGHT,
        role="img",
        aria_label=f"{scans}: {number(counts[0])} at first, {number(max(counts))} at most, {number(counts[-1])} now",
    )


def _figure(title: str, caption: str, picture: Markup) -> Markup:
    return tag("figure", tag("h3", title), tag("figcaption", caption), picture)


def _head(*names: str, numbers: int = 0) -> Markup:
    plain = len(names) - numbers
    cells = [
        tag("th", name, scope="col", class_="n" if place >= plain else None) if name else tag("td")
        for place, name in enumerate(names)
    ]
    return tag("thead", tag("tr", *cells))


def _dot_cell(count: int, biggest: int) -> Markup:
    if not count:
        return tag("td", "0", class_="zero")
    radius = max(_BIGGEST_DOT * math.sqrt(count / biggest), 1.5)
    dot = tag("circle", cx=18, cy=18, r=f"{radius:.1f}", class_="fill")
    return tag("td", tag("svg", dot, viewBox="0 0 36 36", aria_hidden="true"), number(count))


def _bar_row(name: str, kind: str, values: Sequence[str], share: float) -> Markup:
    track = tag("rect", width="100%", height=10, rx=2, class_="track")
    bar = tag("rect", width=f"{max(share * 100, 0.6):.1f}%", height=10, rx=2, class_="fill")
    called = [_short(name), " ", tag("span", kind, class_="soft small")] if kind else [_short(name)]
    return tag(
        "tr",
        tag("th", *called, scope="row"),
        tag("td", tag("svg", track, bar, aria_hidden="true"), class_="bar"),
        *(tag("td", value, class_="n") for value in values),
    )


def _short(name: str) -> Markup:
    """Return a name that may be broken at its joints, the middle left out where it is very long: sources are free."""
    shown = visible(name)
    shown = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 12]}…{shown[-11:]}"
    return Markup(text(shown).replace("_", "_<wbr>"))


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "<1%"


def _line(drawing: Drawing, piece: Piece) -> Markup:
    node = piece.what
    lane = _lane(piece)
    rails = _rails(drawing, piece, lane)
    level = tag("span", f"Level {lane + 1}: ", class_="away")
    class_ = f"l{min(lane, 8) + 1}"
    if isinstance(node, Fold):
        return tag("li", rails, tag("p", level, f"… {fold_words(node)} …", class_="soft"), class_=class_)
    name = tag("code", key_text(node.id))
    here = [tag("b", " · resumed here")] if drawing.is_resumed(node) else []
    facts = tag("p", " · ".join(map(visible, drawing.facts(node))), *here, class_="soft small")
    return tag("li", rails, tag("p", level, name), facts, *_faults(node), class_=class_)


def _faults(node: Node) -> Iterator[Markup]:
    for some in by_check(node.findings):
        more = f" (and {number(len(some) - 1)} more)" if len(some) > 1 else ""
        yield tag("p", tag("b", some[0].check), f": {some[0].summary}{more}", class_="fault small")


def _lane(piece: Piece) -> int:
    """Return in which lane, counted from 0, a piece stands: what is drawn before it in text says so."""
    marks = _marks(piece)
    return len(marks) - 1 if marks and marks[-1] == "↓" else len(marks)


def _marks(piece: Piece) -> list[str]:
    return [piece.before[place] for place in range(0, len(piece.before), 3)]


def _rails(drawing: Drawing, piece: Piece, lane: int) -> Markup:
    """Return the lines that join a piece with what is above and below it, and its dot."""
    shapes: list[Markup] = []

    def down(place: int, top: str | int, bottom: str | int, class_: str | None = None) -> None:
        x = _MARGIN + _LANE * place
        shapes.append(tag("line", x1=x, x2=x, y1=top, y2=bottom, class_=class_))

    for place, drawn in enumerate(_marks(piece)):
        x = _MARGIN + _LANE * place
        if drawn in "│├":
            down(place, 0, "100%")
        if drawn in "├└":
            shapes.append(tag("path", d=f"M{x} 0 C{x} {_DOT} {x} {_DOT} {x + _LANE} {_DOT}"))
        if drawn == "↓":
            down(place, 0, _DOT)
    if drawing.goes_on(piece):
        down(lane, _DOT, "100%", "more" if isinstance(piece.what, Fold) else None)
    x = _MARGIN + _LANE * lane
    if isinstance(piece.what, Fold):
        down(lane, 0 if piece.before.endswith("↓ ") else _DOT, "100%" if piece.chained else _DOT, "more")
    else:
        shapes.append(tag("circle", cx=x, cy=_DOT, r=5, class_="bad" if piece.what.findings else None))
    return tag("svg", *shapes, width=_MARGIN + _LANE * (lane + 1), class_="rails", aria_hidden="true")
