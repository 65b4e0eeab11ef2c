"""The long form of test_stretches.py and test_raw_pages.py: what `scan --since-last` takes for unchanged is so.

``python -m bench.same_rows [--lives N] [--seconds N]``: so many random lives of a small store, each asked about after
each of 60 steps, then so long beside a process that writes to it and carries its log over. Ends with a traceback where
one stretch of rows was taken for unchanged and was not, where next to nothing was taken for it, or where a page was not
what SQLite itself copied at that moment.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pytest

from hermes_doctor.store import stretches
from tests.store.test_raw_pages import moments
from tests.store.test_stretches import live, stays_true_beside_a_writer
from tests.store.writing import make_store, writing

_STEPS = 60
#: Seconds of one store that is looked at raw.
_TURN = 5.0


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stretches, "STRETCH_ROWS", 8)
        patched.setattr(stretches, "STRETCH_BYTES", 32 << 10)
        same = proven = 0
        for seed in range(options.seed, options.seed + options.lives):
            with tempfile.TemporaryDirectory() as folder:
                more_same, more_proven = live(Path(folder) / "store.db", seed, _STEPS)
            same, proven = same + more_same, proven + more_proven
        # It must not be right by proving next to nothing.
        assert proven > same / 2, (proven, same)
        print(
            f"{options.lives:,} lives: {same:,} times a stretch was as recorded, {proven:,} times proven, none wrongly"
        )
        seen: dict[str, int] = {}
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            _beside_a_writer(seen)
        print(f"beside a writer: {', '.join(f'{count:,} {what}' for what, count in seen.items())}, none wrongly")


def _beside_a_writer(seen: dict[str, int]) -> None:
    for mode in ("wal", "delete"):
        with tempfile.TemporaryDirectory() as folder:
            proven = stays_true_beside_a_writer(Path(folder), mode)
        assert proven >= 20, (proven, mode)
        seen["stretches proven"] = seen.get("stretches proven", 0) + proven
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.db"
        keeper = make_store(store, "wal", rows=600)
        with writing(store, "wal"):
            found = moments(store, Path(folder), _TURN, at_least=5)
        keeper.close()
    for kind, count in found.items():
        name = f"moments {kind}"
        seen[name] = seen.get(name, 0) + count


if __name__ == "__main__":
    main()
