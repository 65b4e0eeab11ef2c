"""The command that runs all long proofs names commands and options that there are."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from bench.proofs import PROOFS, ROOT


@pytest.mark.parametrize("name", PROOFS)
def test_each_proof_takes_what_it_is_given(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.lower().startswith("usage: "), "it did its work instead of telling of it"
    there = set(re.findall(r"--[a-z-]+", done.stdout))
    for arguments in PROOFS[name]:
        assert {word for word in arguments if word.startswith("--")} <= there
