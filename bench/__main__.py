"""``python -m bench``: makes stores in the shape of real ones and measures the doctor on them, as ratios in one run."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import platformdirs

from bench import growth, probe, reading, since_last
from bench.figures import Figure
from bench.options import Case, Options
from bench.results import machine, record, table, versions
from tests.oracle import wheels

#: Each layout of the search index, by the last release that makes it.
RELEASES = ("0.19.0", "0.22.2")
SIZES = (10_000, 200_000, 1_000_000)
#: Shares of faulty messages: in a healthy store, in a usual one, and in one that much was forked in.
HEALTHY, USUAL, RUINED = 0.0, 0.01, 0.2
#: Of this size there are stores with each share.
SHARES_SIZE = 200_000
#: Some stores have rows as heavy as real ones, about 20 KB with the index: how many times the others', and how many.
HEAVY, HEAVY_SIZE = 8.0, 100_000

READING = """
The median of several processes, run in turns, the file in memory. *Bare read*: `SELECT * FROM messages` through APSW.
*Scan*: the whole catalogue; without imports it is taken after a scan of a tiny store in the same process. CPU is of all
threads together. Nothing is promised below 100,000 messages, where most of a scan is what it costs on any store.
"""
PROBE = """
*Same SQLite*: the very statements that the release's probe was seen to make, through APSW. *For real*: the release's
own function in a process of its own, with the SQLite of this Python; its imports are not counted, those of the scan
are. From 3.44 on SQLite looks into search indexes, too, when it checks integrity.
"""
GROWTH = "1 is proportional, less is better."
SINCE_LAST = "Both by the command line in a process that has scanned a tiny store before, the report as JSON."


@dataclass(frozen=True)
class Section:
    """What becomes a section of the results."""

    name: str
    title: str
    figures: list[Figure]
    text: str = ""


def _reading(options: Options) -> Iterator[Section]:
    readings = [reading.measure_case(options, case) for case in options.cases]
    figures = [figure for each in readings for figure in reading.figures_of(each)]
    yield Section("reading", "A scan, a bare read, and integrity_check", figures, READING)
    yield Section("growth", "How it grows", growth.growth_of(readings), GROWTH)


def _probe(options: Options) -> Iterator[Section]:
    yield Section("probe", "Hermes's own probe", probe.figures(_one_of_each(options)), PROBE)


def _since_last(options: Options) -> Iterator[Section]:
    yield Section("since-last", "What a nightly scan costs", since_last.figures(_one_of_each(options)), SINCE_LAST)


def _one_of_each(options: Options) -> Options:
    """Leave one store of each kind, for what does not look at faults: the usual one where there is a choice."""
    kinds = {(case.release, case.messages, case.weight): case for case in options.cases if case.faults <= USUAL}
    return replace(options, cases=tuple(kinds.values()) or options.cases)


def _module(name: str, title: str) -> Callable[[Options], Iterator[Section]]:
    """Return a part that is a module of its own."""

    def part(options: Options) -> Iterator[Section]:
        module = importlib.import_module(f"bench.{name}")
        yield Section(name, title, module.figures(options))

    return part


PARTS: dict[str, Callable[[Options], Iterator[Section]]] = {
    "start": _module("start", "Starting up"),
    "reading": _reading,
    "probe": _probe,
    "since-last": _since_last,
    "bounded": _module("bounded", "When every row is faulty"),
    "fixing": _module("fixing", "Fixing, against one big transaction"),
}


def cases(
    messages: Sequence[int], releases: Sequence[str], faults: Sequence[float], *, heavy: bool
) -> tuple[Case, ...]:
    """Which stores: each size in each layout with the usual share of faults; one of the last with other shares, too.

    An older layout holds all texts twice more: its largest store would take longer to make than all others together.
    """
    found = []
    for size in sorted(messages):
        for release in releases:
            if size > SHARES_SIZE and release != releases[-1]:
                continue
            shares = (HEALTHY, USUAL, RUINED) if release == releases[-1] and size == SHARES_SIZE else (USUAL,)
            found += [Case(release, size, share) for share in faults or shares]
    return (*found, *(Case(release, HEAVY_SIZE, USUAL, HEAVY) for release in releases if heavy))


@click.command(help=__doc__)
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Only this part (repeatable).")
@click.option("--messages", multiple=True, default=SIZES, show_default=True, help="Messages in a store (repeatable).")
@click.option("--release", "releases", multiple=True, default=RELEASES, show_default=True, help="Who makes the stores.")
@click.option("--faults", multiple=True, type=float, help="Share of faulty messages, 0 to 0.5 (repeatable).")
@click.option(
    "--heavy/--no-heavy", default=True, show_default=True, help="Also stores with rows as heavy as real ones."
)
@click.option("--times", default=5, show_default=True, help="Runs of each; what takes minutes is run three times.")
@click.option(
    "--stores",
    type=click.Path(path_type=Path, file_okay=False),
    default=platformdirs.user_cache_path("hermes-state-doctor-bench"),
    show_default=True,
    help="Where made stores are kept; all of them are made in half an hour, and take 30 GB.",
)
@click.option("--record", "to_record", is_flag=True, help="Write what comes of it into bench/RESULTS.md and README.md.")
def main(
    parts: tuple[str, ...],
    messages: tuple[int, ...],
    releases: tuple[str, ...],
    faults: tuple[float, ...],
    heavy: bool,
    times: int,
    stores: Path,
    to_record: bool,
) -> None:
    """Measure the parts that were asked for, or all; each is told as soon as it is done."""
    wheels.ensure()
    options = Options(stores.resolve(), times, cases(messages, releases, faults, heavy=heavy))
    print(f"{machine()}\n{versions()}", flush=True)
    for case in options.cases:
        begun = time.monotonic()
        path = options.store(case)
        print(f"{case}: {path.stat().st_size / 1e6:,.0f} MB, {time.monotonic() - begun:.0f} s", flush=True)
    failed = [name for name in parts or PARTS if not _done(name, options, to_record)]
    if failed:
        raise click.ClickException(f"not measured to the end: {', '.join(failed)}")


def _done(name: str, options: Options, to_record: bool) -> bool:
    """Measure a part; say so where it fails, so that the others are measured all the same."""
    try:
        for section in PARTS[name](options):
            print(f"\n{section.title}\n{table(section.figures)}", flush=True)
            if to_record:
                record(section.name, section.title, section.figures, text=section.text)
    except RuntimeError as error:
        print(f"\n{name} failed: {error}", flush=True)
        return False
    return True


if __name__ == "__main__":
    main()
