"""The one command that measures all, on stores that are too small to say anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import RELEASES, SIZES, cases
from bench.measure import Task, compare
from bench.quotes import QUOTES, measured

ROOT = Path(__file__).parent.parent.parent


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "120"},
    )


def test_help_tells_of_the_parts_and_the_sizes() -> None:
    done = bench("--help")
    assert done.returncode == 0, done.stderr
    assert "reading" in done.stdout
    assert "1000000" in done.stdout


def test_what_the_readme_quotes_is_of_stores_that_are_measured() -> None:
    quoted = {name.partition(": ")[2] for name in QUOTES.values() if " messages, " in name}
    assert len(quoted) == 3
    assert quoted <= {str(case) for case in cases(SIZES, RELEASES, (), heavy=True)}


@pytest.mark.usefixtures("oracle")
def test_a_tiny_run_measures_all_and_records_nothing(tmp_path: Path) -> None:
    recorded = (ROOT / "bench" / "RESULTS.md").read_bytes()
    parts = ("--part", "reading", "--part", "probe")
    sizes = ("--messages", "1000", "--release", "0.22.2", "--faults", "0.2", "--no-heavy", "--times", "1")
    done = bench(*parts, *sizes, "--stores", str(tmp_path))
    assert done.returncode == 0, done.stderr
    figures = measured(done.stdout)
    case = "1,000 messages, 0.22.2 (external index), 20% faulty"
    assert set(figures) == {
        f"{name}: {case}"
        for threads in ("1 thread", "2 threads")
        for name in (
            f"scan / bare read, {threads}",
            f"scan / bare read, {threads}, with imports",
            f"peak of a scan, {threads}",
            f"integrity_check / scan, {threads}",
            f"0.22.2's probe / scan, {threads}, same SQLite",
            f"0.22.2's probe / scan, {threads}, for real",
        )
    }
    # What the README quotes is called as it is measured.
    quoted = {name.partition(": ")[0] for name in QUOTES.values() if "0.22.2 (external" in name and "--" not in name}
    assert quoted <= {name.partition(": ")[0] for name in figures}
    assert len(quoted) > 3
    assert not any(promised or met for _measured, promised, met in figures.values())
    assert (ROOT / "bench" / "RESULTS.md").read_bytes() == recorded


def test_memory_and_time_are_those_of_the_work() -> None:
    tasks = {
        "large": Task("import sys; sys.argv = []; taken = bytearray(200_000_000); answer = len(taken)"),
        "small": Task("pass", "import time; time.sleep(0.2)"),
    }
    taken = compare(tasks, times=1)
    assert taken["large"].answer == 200_000_000
    assert 200_000_000 < taken["large"].peak_bytes < 300_000_000
    assert taken["small"].peak_bytes < 50_000_000
    assert taken["small"].before_seconds >= 0.2 > taken["small"].seconds


def test_what_fails_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        compare({"": Task("raise ValueError('no such thing')")}, times=1)
