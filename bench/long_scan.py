"""The long form of tests/whole/test_living_hermes.py, with snapshots as long as they really are.

``python -m bench.long_scan``: hermes writes all through a scan of 75 seconds, once in each journal mode; ends with a
traceback where a write of it waited for a second, or is not there afterwards.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.oracle import wheels
from tests.oracle.home import Home
from tests.whole.test_living_hermes import scan_beside_a_writer


def main() -> None:
    """Run both."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    wheels.ensure()
    for version, mode in (("0.22.2", "delete"), ("0.19.0", "wal")):
        with tempfile.TemporaryDirectory() as folder:
            scan_beside_a_writer(Home(Path(folder) / "home"), version, mode)
        print(f"{version} in {mode} mode: nothing waited, nothing is lost", flush=True)


if __name__ == "__main__":
    main()
