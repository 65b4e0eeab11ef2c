"""The command that runs all long proofs names commands and options that there are."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.proofs import PROOFS, ROOT


@pytest.mark.parametrize("name", PROOFS)
def test_each_proof_takes_what_it_is_given(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    options = [word for word in PROOFS[name][0] if word.startswith("--")]
    assert [option for option in options if option not in done.stdout] == []
