"""Signals at any moment, streams that are closed, two doctors at once: one line, the right exit code, nothing lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.whole.disturbed import closed_output, seconds_of, signalled, two_at_once
from tests.whole.killing import STORES, patient
from tests.whole.runner import Doctors

pytestmark = pytest.mark.usefixtures("oracle")

OLD, NEW = STORES[:2]


@pytest.fixture(scope="module")
def doctors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doctors]:
    with Doctors(tmp_path_factory.mktemp("doctors")) as running:
        yield running


@pytest.fixture
def templates(shared_folder: Path) -> Path:
    return shared_folder / "damaged"


@pytest.mark.parametrize(
    ("store", "command", "number", "after", "again"),
    [
        # While the interpreter and the program start, and a little later; most end early or are stopped at once.
        (NEW, "scan", signal.SIGTERM, 0.08, None),
        (OLD, "fix", signal.SIGINT, 0.12, 0.01),
        (OLD, "compact", signal.SIGPIPE, 0.2, None),
    ],
)
def test_a_signal_at_any_moment(
    doctors: Doctors,
    templates: Path,
    store: tuple[str, str],
    command: str,
    number: signal.Signals,
    after: float,
    again: float | None,
) -> None:
    with patient(templates, doctors, *store) as sick:
        assert signalled(sick, command, number, after, again) in ("early", "stopped", "through")


@pytest.mark.parametrize(
    ("store", "command", "number", "again"),
    [
        (NEW, "scan", signal.SIGTERM, None),
        (OLD, "fix", signal.SIGINT, 0.01),
        (NEW, "undo", signal.SIGHUP, None),
    ],
)
def test_a_signal_in_the_midst_of_the_work(
    doctors: Doctors,
    templates: Path,
    store: tuple[str, str],
    command: str,
    number: signal.Signals,
    again: float | None,
) -> None:
    """How long a command takes differs from machine to machine: of several moments one is in its midst."""
    with patient(templates, doctors, *store) as sick:
        seconds = seconds_of(sick, command)
    for share in (0.6, 0.75, 0.5, 0.85, 0.4, 0.95):
        with patient(templates, doctors, *store) as sick:
            if signalled(sick, command, number, share * seconds, again) == "stopped":
                return
    pytest.fail("each signal came before the work began, or when it was done")


@pytest.mark.parametrize(
    ("store", "command", "how"),
    [
        (OLD, "scan", "head"),
        (NEW, "fix", "true"),
        (OLD, "undo", "closed"),
        (NEW, "compact", "full"),
    ],
)
def test_a_stream_that_is_closed(
    doctors: Doctors, templates: Path, store: tuple[str, str], command: str, how: str
) -> None:
    with patient(templates, doctors, *store) as sick:
        closed_output(sick, command, how)


@pytest.mark.parametrize(
    ("store", "first", "second", "code"),
    [
        (OLD, "fix", "undo", 6),
        (NEW, "undo", "compact", 6),
        (OLD, "compact", "fix", 6),
        (NEW, "scan", "fix", 0),
        # The scan reads a log that the fix before left; it is nobody who could write to it.
        (OLD, "scan", "undo", 0),
        (OLD, "fix", "scan", 1),
    ],
)
def test_two_doctors_at_once(
    doctors: Doctors, templates: Path, store: tuple[str, str], first: str, second: str, code: int
) -> None:
    with patient(templates, doctors, *store) as sick:
        assert two_at_once(sick, first, second)[0] == code
