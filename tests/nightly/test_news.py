"""What is new: by the row where that is known, by the number where there are too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_doctor.nightly import news
from hermes_doctor.nightly.news import Found, Known, Ledger
from hermes_doctor.nightly.run import is_deep

A, B, C = (bytes([n]) * 8 for n in range(3))


@pytest.mark.parametrize(
    ("known", "now", "new"),
    [
        ({}, Found(2, frozenset({A, B})), 2),
        ({(False, "x"): Found(2, frozenset({A, B}))}, Found(1, frozenset({B})), 0),
        ({(False, "x"): Found(2, frozenset({A, B}))}, Found(2, frozenset({B, C})), 1),
        ({(False, "y"): Found(1, frozenset({A}))}, Found(1, frozenset({A})), 1),
        # What only a deep look finds stays known when the next one is not deep, and the other way round.
        (
            {(False, "x"): Found(1, frozenset({A})), (True, "x"): Found(1, frozenset({B}))},
            Found(2, frozenset({A, B})),
            0,
        ),
        ({(False, "x"): Found(9, None)}, Found(9, None), 0),
        ({(False, "x"): Found(9, None)}, Found(12, None), 3),
        ({(False, "x"): Found(9, None), (True, "x"): Found(11, None)}, Found(12, None), 1),
        ({(False, "x"): Found(9, None)}, Found(2, frozenset({A, B})), 0),
    ],
)
def test_new_is_what_is_not_known(known: dict[tuple[bool, str], Found], now: Found, new: int) -> None:
    assert Known("readable", found=known).new("x", now) == new


def test_what_was_kept_is_known(tmp_path: Path) -> None:
    ledger, store = Ledger(tmp_path), tmp_path / "state.db"
    assert ledger.recall(store) == Known()
    found = {"x": Found(2, frozenset({A, B})), "y": Found(70_000, None), "z": Found(0, frozenset())}
    assert ledger.keep(store, "readable", {"w"}, found, deep=False)
    known = ledger.recall(store)
    assert (known.condition, known.failed, known.deep_at) == ("readable", frozenset({"w"}), 0.0)
    assert known.found == {(False, check): each for check, each in found.items()}
    # A check that did not run this time is known as it was.
    assert ledger.keep(store, "readable", (), {"x": Found(1, frozenset({C}))}, deep=True)
    known = ledger.recall(store)
    assert known.found[False, "x"].count == 2
    assert known.found[True, "x"] == Found(1, frozenset({C}))
    assert known.found[False, "y"] == found["y"]
    deep_at = known.deep_at
    assert deep_at > 0
    assert ledger.keep(store, "readable", (), {}, deep=False)
    assert ledger.recall(store).deep_at == deep_at
    assert ledger.recall(tmp_path / "other.db") == Known()


def test_the_memory_is_its_users_alone_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "folder")
    monkeypatch.setattr(news, "_MOST", 2)
    assert news._found(3, [A, B, C]) == Found(3, None)
    assert news._found(2, [A, B]) == Found(2, frozenset({A, B}))
    ledger.keep(tmp_path / "state.db", "readable", (), {}, deep=False)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700
    assert ledger.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("how", "ago", "deep"),
    [("never", 99, False), ("always", 0, True), ("weekly", 6, False), ("weekly", 6.9, True), ("weekly", -3, True)],
)
def test_when_a_deep_look_is_due(how: str, ago: float, deep: bool) -> None:
    assert is_deep(Known("readable", deep_at=1e9), how, now=1e9 + ago * 86400) is deep
