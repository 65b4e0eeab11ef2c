"""Whatever hermes does in whatever order is no fault, and whatever is broken then is mended, with nothing lost.

Histories are drawn anew only where they are asked to be: the short form always runs the same ones. The long form::

    HERMES_DOCTOR_HISTORIES=20 python -m pytest tests/whole/test_random_histories.py

builds twenty stores for each release and chain, each of histories of its own (HERMES_DOCTOR_HISTORIES_FROM=n leaves
the first n out). A failure names the history that shows it, as an expression that ``tell`` and ``plant`` take.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from hermes_doctor.engine.model import Finding, Safety, Severity
from tests.fixes.support import Patient, outcome
from tests.oracle.deeds import UPSTREAM
from tests.oracle.home import Home
from tests.oracle.releases import CHAINS, RELEASES, get
from tests.whole.identical import Image, difference, image_of, index_faults
from tests.whole.random_histories import EXAMPLES, Tale, Told, drawn, examples, look_again, plant, smallest, tell
from tests.whole.support import fingerprint

LIVES = [(release.version,) for release in RELEASES] + [tuple(map(str, chain)) for chain in CHAINS]

ROUNDS = int(os.environ.get("HERMES_DOCTOR_HISTORIES", "1"))
FIRST = int(os.environ.get("HERMES_DOCTOR_HISTORIES_FROM", "0"))
#: Histories in one store.
AT_ONCE = 12


@pytest.mark.timeout(600 + 60 * ROUNDS)
@pytest.mark.parametrize("life", LIVES, ids="→".join)
def test_any_history_is_healthy_and_any_damage_is_mended(oracle: None, tmp_path: Path, life: tuple[str, ...]) -> None:
    for turn in range(FIRST, FIRST + ROUNDS):
        tales = drawn(AT_ONCE, len(life), 100 * turn + LIVES.index(life))
        try:
            planted = holds(tmp_path / f"{turn}", life, tales)
        except AssertionError as error:
            shown = smallest(tales, lambda some: fails(tmp_path / "again", life, some))
            raise AssertionError(f"{error}\nof hermes {life}, shown by\n{shown}") from error
        assert planted, "nothing was damaged, so nothing was shown of it"
        shutil.rmtree(tmp_path / f"{turn}")


@pytest.mark.parametrize("life", sorted({life for life, _stages in EXAMPLES.values()}), ids="→".join)
def test_what_releases_make_wrong_themselves_is_found(oracle: None, tmp_path: Path, life: tuple[str, ...]) -> None:
    named = examples(life)
    told = tell(Home(tmp_path / "home"), [get(version) for version in life], list(named.values()))
    findings = Patient(told.home.store, told.home.path).findings()
    found = {(f.check, str(f.session)) for f in findings if f.severity is not Severity.INFO}
    for name, teller in zip(named, told.tellers, strict=True):
        assert teller.wrong(name) & found, name
    is_healthy(told, findings)


def test_all_that_releases_make_wrong_has_an_example() -> None:
    assert EXAMPLES.keys() == UPSTREAM.keys()


def fails(folder: Path, life: Sequence[str], tales: Sequence[Tale]) -> bool:
    """Whether these tales show a fault, too."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        holds(folder, life, tales)
    except AssertionError:
        return True
    return False


def holds(folder: Path, life: Sequence[str], tales: Sequence[Tale]) -> int:
    """Live through these tales, plant their faults, and see that all is as it should be; how many were planted."""
    told = tell(Home(folder / "home"), [get(version) for version in life], tales)
    home = told.home
    patient = Patient(home.store, home.path)
    healthy = patient.findings()
    is_healthy(told, healthy)
    own = wrong_already(told, healthy, folder / "undamaged")

    expected, several = plant(told, tales)
    damaged, faults = image_of(home.store), set(index_faults(home.store))
    first = patient.findings()
    assert sorted(expected - {(f.check, str(f.session)) for f in first}) == []

    # Complete: nothing is left that could be mended. Idempotent: nothing is done twice.
    done = patient.mend()
    assert (done.clock_doubt, done.left) == (None, 0)
    left = patient.findings()
    assert [brief(f) for f in left if f.fix is not Safety.NONE] == []
    if done.run is None:
        assert outcome(done) == ("nothing-to-do", 0, None)
        return len(expected)
    assert outcome(done) == ("fixed", 0, None)
    file = fingerprint(home.path)["state.db"]
    again = patient.mend()
    assert (outcome(again), again.run) == (("nothing-to-do", 0, None), None)
    assert fingerprint(home.path)["state.db"] == file

    assert lost(damaged, image_of(home.store)) == set()
    assert set(index_faults(home.store)) <= faults
    # One fault beside another may be only reported.
    but_for = own | several & {str(f.session) for f in left}
    is_seen_as_before(told, but_for, folder / "seen")

    undone = patient.undo(done.run)
    assert outcome(undone) == ("fixed", 0, None)
    assert {change.state for change in undone.changes} == {"restored"}
    assert but_for_trigrams(difference(damaged, image_of(home.store))) == []
    return len(expected)


def is_healthy(told: Told, findings: Sequence[Finding]) -> None:
    """Nothing above info, but for what is known to be made wrong by the releases themselves."""
    upstream = {each for teller in told.tellers for each in teller.wrong()}
    found = {(f.check, str(f.session)) for f in findings if f.severity is not Severity.INFO}
    assert sorted(found - upstream) == []


def wrong_already(told: Told, findings: Sequence[Finding], folder: Path) -> set[str]:
    """The sessions in which a fix changes what the release itself had made wrong, and so what is seen of them."""
    home = Home(shutil.copytree(told.home.path, folder))
    before = image_of(home.store)
    Patient(home.store, home.path).mend()
    after = image_of(home.store)
    changed = (before.rows["messages"] - after.rows["messages"]).elements()
    place = before.columns["messages"].index("session_id")
    spoken = {value.decode() for row in changed if isinstance(value := row[place][1], bytes)}
    return spoken | {str(f.session) for f in findings if f.fix is not Safety.NONE and f.check != "open-zombies"}


def is_seen_as_before(told: Told, but_for: set[str], folder: Path) -> None:
    """The release lists and replays what it did before the damage."""
    shutil.copytree(told.home.path, folder)
    listed, replayed = look_again(Home(folder), told)
    changed = {session for session, said in replayed.items() if said != told.replayed[session]}
    assert sorted(changed - but_for) == []
    # A chat is listed by the row in which it goes on.
    rows = {chat.id for teller in told.tellers for chat in teller.chats if chat.begun_in(but_for)}
    assert sorted((set(listed) ^ set(told.listed)) - but_for - rows) == []


def lost(before: Image, after: Image) -> set[tuple[object, ...]]:
    """Messages that are gone, or whose session, role or words are others."""
    kept = {message(row) for row in after.table("messages")}
    return {message(row) for row in before.table("messages")} - kept


def message(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[column] for column in ("id", "session_id", "role", "content", "timestamp"))


def brief(finding: Finding) -> tuple[object, ...]:
    return finding.check, finding.key, finding.session, finding.summary


def but_for_trigrams(lines: Sequence[str]) -> list[str]:
    """Without the answers of the index from which a missing session's messages are left out (0.21.5 on)."""
    return [line for line in lines if "messages_fts_trigram" not in line]
