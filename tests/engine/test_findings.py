"""The pile of findings: nothing lost, nothing changed, little memory."""

from __future__ import annotations

import os
import stat
import tracemalloc
from collections.abc import Iterator

import pytest

from hermes_doctor.engine import findings as module
from hermes_doctor.engine.findings import Findings
from hermes_doctor.engine.model import Finding, Safety, Severity
from hermes_doctor.store.cells import BadText, Key


def finding(key: Key, summary: str = "s") -> Finding:
    return Finding(
        check="c",
        severity=Severity.WARNING,
        table="t",
        key=key,
        session="s1",
        summary=summary,
        detail={"columns": ["a", "b"], "idle_seconds": 1.5, "source": None},
        fix=Safety.SAFE,
        action="do it",
    )


@pytest.fixture(params=[True, False], ids=["in memory", "in a file"])
def pile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Findings]:
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    if not request.param:
        monkeypatch.setattr(module, "_IN_MEMORY", 300)
    made = Findings(finding(n) for n in range(5))
    assert made._file._rolled is not request.param  # type: ignore[attr-defined]  # typeshed leaves it out
    yield made
    made.close()


def keys(findings: Iterator[Finding] | Findings) -> list[Key]:
    return [each.key for each in findings]


def test_findings_come_back_as_they_were(pile: Findings) -> None:
    assert list(pile) == [finding(n) for n in range(5)]
    assert list(pile) == [finding(n) for n in range(5)]
    assert len(pile) == 5


@pytest.mark.parametrize("key", ["s1", 5, 1.5, None, b"\xff", BadText(b"\xff"), ("s1", 3), ("s1", BadText(b"x"))])
def test_keys_keep_their_kind(key: Key) -> None:
    with Findings([finding(key)]) as pile:
        [back] = pile
    assert back.key == key
    assert type(back.key) is type(key)
    if isinstance(key, tuple) and isinstance(back.key, tuple):
        assert [type(part) for part in back.key] == [type(part) for part in key]


def test_what_is_added_while_somebody_reads_is_appended(pile: Findings) -> None:
    seen = []
    for each in pile:
        seen.append(each.key)
        pile.add(finding(f"more than {each.key!r}", summary="longer " * 50))
    assert seen == [0, 1, 2, 3, 4]
    assert keys(pile) == [*range(5), *(f"more than {n}" for n in range(5))]
    assert len(pile) == 10


def test_several_readers_at_once(pile: Findings) -> None:
    pairs = [(outer.key, inner.key) for outer in pile for inner in pile]
    assert pairs == [(a, b) for a in range(5) for b in range(5)]
    assert keys(each for each, _ in zip(pile, pile, strict=True)) == [0, 1, 2, 3, 4]


def test_a_reader_that_stops_half_way_does_no_harm(pile: Findings) -> None:
    half = iter(pile)
    assert next(half).key == 0
    pile.add(finding("more"))
    assert keys(pile) == [0, 1, 2, 3, 4, "more"]
    assert keys(half) == [1, 2, 3, 4]


def test_an_empty_pile() -> None:
    with Findings() as pile:
        assert list(pile) == []
        assert len(pile) == 0
        pile.add(finding(1))
        assert keys(pile) == [1]


def test_a_large_pile_lies_in_a_file_that_nobody_else_can_read() -> None:
    tracemalloc.start()
    try:
        with Findings(finding(n, summary=f"{n:0400}") for n in range(15_000)) as pile:
            assert len(pile) == 15_000
            assert sum(int(str(each.key)) for each in pile) == 15_000 * 14_999 // 2
            status = os.fstat(pile._file.fileno())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert status.st_size > 6 << 20
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_nlink == 0
    assert peak < 6 << 20


def test_a_closed_pile_is_gone(pile: Findings) -> None:
    pile.close()
    with pytest.raises(ValueError, match="closed"):
        list(pile)
