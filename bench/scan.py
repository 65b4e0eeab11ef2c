"""The whole catalogue against one bare read of ``messages``: ``python -m bench.scan``.

Both run in processes of their own, one after the other, over the same store with a warm cache; the ratio is that of
the medians.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from bench.measure import measure
from bench.stores import make_store

BARE_READ = """
import apsw
connection = apsw.Connection({path!r}, flags=apsw.SQLITE_OPEN_READONLY)
for row in connection.execute("SELECT * FROM messages"):
    pass
"""

SCAN = """
from pathlib import Path
from checks import CHECKS
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import resolve_targets
for ref in resolve_targets([Path({path!r})]):
    scan = scan_store(ref, CHECKS, ScanOptions())
    assert scan.condition == "readable", scan.reason
    assert all(result.status == "ran" for result in scan.checks), scan.checks
"""


@click.command()
@click.option("--messages", default=200_000, show_default=True, help="Messages in the store.")
@click.option("--release", default="0.22.2", show_default=True, help="The release that makes the store.")
@click.option("--faults", default=0.0, show_default=True, help="Share of faulty rows, 0 to 1.")
@click.option("--times", default=5, show_default=True, help="Runs of each; the median counts.")
def main(messages: int, release: str, faults: float, times: int) -> None:
    """Print how long a scan takes, as a multiple of a bare read of the messages table."""
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "home", release, messages, faults=faults)
        values = {"path": str(store)}
        bare = measure(BARE_READ.format(**values), times=times)
        scan = measure(SCAN.format(**values), times=times)
        print(f"store: {release}, {messages:,} messages, {store.stat().st_size / 1e6:,.0f} MB, faults {faults:.0%}")
        print(f"bare read of messages: {bare.seconds:.3f} s, peak {bare.peak_bytes / 1e6:.0f} MB")
        print(f"doctor scan:           {scan.seconds:.3f} s, peak {scan.peak_bytes / 1e6:.0f} MB")
        print(f"ratio: {scan.seconds / bare.seconds:.2f}")


if __name__ == "__main__":
    main()
