"""The SQLite library: fit to write, or not, and why."""

from __future__ import annotations

import apsw
import pytest

from hermes_doctor.store.library import judge, library


def test_the_library_of_this_environment_is_fit() -> None:
    """The pinned APSW brings all that is needed; an environment where it does not must not pass its tests."""
    found = library()
    assert found.version == apsw.sqlite_lib_version()
    assert (found.own_amalgamation, found.missing, found.fit, found.advice) == (True, (), True, None)


@pytest.mark.parametrize(
    ("version", "own", "missing", "fit"),
    [
        ("3.51.3", True, (), True),
        ("3.54.1", True, (), True),
        ("4.0", True, (), True),
        ("3.51.2", True, (), False),
        ("3.9.0", True, (), False),
        ("3.50.7", True, (), False),
        ("3.54.1", False, (), False),
        ("3.54.1", True, ("trigram",), False),
    ],
)
def test_what_is_fit(version: str, own: bool, missing: tuple[str, ...], fit: bool) -> None:
    judged = judge(version, own, missing)
    assert judged.fit is fit
    assert judged.advice == (None if fit else "pip install --upgrade --force-reinstall apsw")


def test_a_missing_tokenizer_is_found_out_by_use() -> None:
    from hermes_doctor.store import library as module

    with apsw.Connection(":memory:") as connection:
        assert module._search_works(connection, "there", "unicode61")
        assert not module._search_works(connection, "lacking", "no_such_tokenizer")
