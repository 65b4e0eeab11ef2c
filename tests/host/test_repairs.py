"""What a person with a damaged store is told to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_doctor.host.repairs import WORSE, Loss, way_out


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    profile = tmp_path / "home" / "profiles" / "work"
    profile.mkdir(parents=True)
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    return profile / "state.db"


@pytest.mark.parametrize(("loss", "since"), [(Loss.ROWS, None), (Loss.INDEX, 25), (Loss.SEARCH, 16), (Loss.SCHEMA, 16)])
@pytest.mark.parametrize("schema", [11, 14, 16, 22, 25, 31, None])
def test_a_command_that_the_release_has(store: Path, loss: Loss, since: int | None, schema: int | None) -> None:
    """0.13 to 0.16 (schema 11 to 14) know neither command, 0.17 to 0.19 (16 to 22) only ``repair``."""
    line = way_out(loss, store, schema, "work")
    first, _, second = line.partition("; and if it cannot: ")
    recover = second or first
    assert f"hermes -p work sessions recover --source {store} --inspect-only" in recover
    assert ("upgrade hermes to 0.20" in recover) == (schema is not None and schema < 25)
    if since is None:
        assert second == ""
    else:
        assert "hermes -p work sessions repair" in first
        assert ("upgrade hermes" in first) == (schema is not None and schema < since)
        assert "sessions repair --" not in first


def test_a_file_of_no_home_is_named_by_its_path(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a copy.db"
    for loss in (Loss.ROWS, Loss.INDEX, Loss.SEARCH, Loss.SCHEMA):
        assert way_out(loss, copy, 31) == (
            f"hermes sessions recover --source '{copy}' --inspect-only (hermes 0.20 or newer)"
        )


def test_without_its_first_page_pages_are_guessed_into_another_file(store: Path) -> None:
    line = way_out(Loss.HEADER, store)
    assert f"--source {store} --output {store}.recovered --allow-partial (hermes 0.21.5 or newer" in line


def test_each_loss_has_its_warning() -> None:
    assert set(WORSE) == set(Loss)
