"""All long proofs, one after the other, each recorded into bench/RESULTS.md: ``python -m bench.proofs``.

Some eight hours on two cores. The ordinary test run has a short form of each. ``--quick`` takes a tenth of each.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent

#: The commands, and their numbers: of all, and of a quick run.
PROOFS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kills": (("--random", "500", "--record"), ("--random", "50", "--record")),
    "obstacles": (("--signals", "500", "--record"), ("--signals", "50", "--record")),
    "odd_stores": (
        ("--stores", "20000", "--files", "5000", "--record"),
        ("--stores", "2000", "--files", "500", "--record"),
    ),
    "live": (("--minutes", "10", "--faults", "5000", "--record"), ("--minutes", "1", "--faults", "500", "--record")),
    "same_rows": (("--lives", "1000", "--seconds", "600"), ("--lives", "100", "--seconds", "60")),
    "long_scan": ((), ()),
    "rescue": (("--seeds", "3", "--record"), ("--seeds", "1", "--release", "0.22.2", "--record")),
}


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="A tenth of each.")
def main(quick: bool) -> None:
    """Run them; the exit code is 1 where one of them failed."""
    failed = []
    for name, (full, tenth) in PROOFS.items():
        arguments = tenth if quick else full
        print(f"+ python -m bench.{name} {' '.join(arguments)}", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.{name}", *arguments], cwd=ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
