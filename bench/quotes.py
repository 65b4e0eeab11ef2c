"""The figures that the README quotes, taken from ``bench/RESULTS.md``: written there whenever a result is recorded."""

from __future__ import annotations

import re
from pathlib import Path

_BEGIN, _END = "<!-- figures: written by bench -->", "<!-- end of figures -->"

_USUAL = "1,000,000 messages, 0.22.2 (external index), 1% faulty"
_HEAVY = "100,000 messages, 0.22.2 (external index), 1% faulty, 8 times as heavy"
_OLD = "200,000 messages, 0.19.0 (inline index), 1% faulty"

#: What the README says, and the name of the figure in ``bench/RESULTS.md`` that it says it of, or how that begins: then
#: it is the last, which is that of the largest store.
QUOTES = {
    "a whole scan, one thread, against a bare read of `messages`": f"scan / bare read, 1 thread: {_USUAL}",
    "the same with two threads": f"scan / bare read, 2 threads: {_USUAL}",
    "`PRAGMA integrity_check` against a scan": f"integrity_check / scan, 2 threads: {_USUAL}",
    "`integrity_check`, with rows as heavy as real ones": f"integrity_check / scan, 2 threads: {_HEAVY}",
    "hermes 0.22.2's own probe against a scan": f"0.22.2's probe / scan, 2 threads, same SQLite: {_USUAL}",
    "that probe, with rows as heavy as real ones": f"0.22.2's probe / scan, 2 threads, same SQLite: {_HEAVY}",
    "hermes 0.19.0's own probe against a scan of 200,000 messages": (
        f"0.19.0's probe / scan, 2 threads, same SQLite: {_OLD}"
    ),
    "peak memory of a scan with 200,000 findings": "scan --json, ",
    "peak memory of mending 200,000 rows": "fix --apply, ",
    "`--since-last` after 1% new messages, of a full scan": f"--since-last after 1% new rows / full scan: {_USUAL}",
    "mending, of the throughput of one big transaction": "throughput of one big transaction, ",
    "`doctor --version`, beyond a bare start of Python": "doctor --version, beyond a bare Python",
    "a scan of a small store, beyond a bare start of Python": "doctor scan, beyond a bare Python",
    "the slowest hundredth of hermes's writes while `doctor fix --live` mends, against without": (
        "0.22.2: 99th percentile of its writes"
    ),
}


def measured(results: str) -> dict[str, tuple[str, str, str]]:
    """Each figure in the text of ``bench/RESULTS.md``: what was measured, what was promised, and whether it is met."""
    found = {}
    for line in results.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) == 7 and cells[0] == "" and cells[1] not in ("figure", "---"):
            found[cells[1]] = (cells[2], cells[3], cells[4].strip("*"))
    return found


def lines(results: str) -> str:
    """The README's table, from the text of ``bench/RESULTS.md``."""
    known = measured(results)
    rows = ["| | measured | promised | met |", "|---|---|---|---|"]
    for words, name in QUOTES.items():
        begin_so = [told for figure, told in known.items() if figure.startswith(name)] or [("not measured yet", "", "")]
        rows.append(f"| {words} | {' | '.join(known.get(name, begin_so[-1]))} |")
    return "\n".join(rows)


def quoted(readme: str) -> str:
    """The README's table as it stands there; raises ValueError where there is none."""
    begin, end = readme.index(_BEGIN), readme.index(_END)
    return readme[begin + len(_BEGIN) : end].strip()


def requote(readme: Path, results: Path) -> None:
    """Bring the README's table up to date."""
    text = readme.read_text(encoding="utf-8")
    old = quoted(text)
    readme.write_text(text.replace(old, lines(results.read_text(encoding="utf-8")), 1), encoding="utf-8")
