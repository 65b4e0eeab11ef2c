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


@pytest.mark.parametrize(("loss", "since"), [(Loss.INDEX, 25), (Loss.SEARCH, 16), (Loss.SCHEMA, 16)])
@pytest.mark.parametrize("schema", [11, 14, 16, 22, 25, 31, None])
def test_what_is_made_anew_from_rows(store: Path, loss: Loss, since: int, schema: int | None) -> None:
    """0.13 to 0.16 (schema 11 to 14) know no command for it, 0.17 to 0.19 (16 to 22) only ``repair``."""
    line = way_out(loss, store, schema, "work")
    repair, rescue = "hermes -p work sessions repair", f"doctor rescue {store} {store}.rescued --inspect-only"
    release = {25: "0.20", 16: "0.17"}[since]
    if schema is not None and schema < since:
        assert line == f"{rescue}; or upgrade hermes to {release} or newer and type {repair}"
    else:
        assert line == f"{repair} (hermes {release} or newer); and if it cannot: {rescue}"


@pytest.mark.parametrize("schema", [11, 22, 25, 31, None])
def test_lost_rows_are_for_a_rescue_of_any_release(store: Path, schema: int | None) -> None:
    line = way_out(Loss.ROWS, store, schema, "work")
    first, _, second = line.partition(", or ")
    assert first == f"doctor rescue {store} {store}.rescued --inspect-only"
    if schema is not None and schema < 25:
        assert second == ""
    else:
        assert second == f"hermes -p work sessions recover --source {store} --inspect-only (hermes 0.20 or newer)"


def test_a_file_of_no_home_is_named_by_its_path(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a copy.db"
    for loss in (Loss.ROWS, Loss.INDEX, Loss.SEARCH, Loss.SCHEMA):
        assert way_out(loss, copy, 31) == (
            f"doctor rescue '{copy}' '{copy}.rescued' --inspect-only, "
            f"or hermes sessions recover --source '{copy}' --inspect-only (hermes 0.20 or newer)"
        )


@pytest.mark.parametrize("schema", [11, 31, None])
def test_without_its_first_page_it_is_rescued(store: Path, schema: int | None) -> None:
    assert way_out(Loss.HEADER, store, schema) == f"doctor rescue {store} {store}.rescued --inspect-only"


def test_each_loss_has_its_warning() -> None:
    assert set(WORSE) == set(Loss)
