"""archived-copies' fix: copies are marked as newer releases mark them, and nothing is lost to a reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from checks.archived_copies import CHECK
from fixes.archived_copies import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.archived_copies import archived_copies
from tests.checks.copies_cases import ARCHIVED, CopyCase
from tests.checks.support import Planted
from tests.checks.test_archived_copies import compacted, plant_cases
from tests.fixes.copies import set_aside
from tests.fixes.support import Patient, change_meanwhile, there_and_back
from tests.oracle.home import Home
from tests.oracle.steps import call, ref
from tests.whole.identical import difference, image_of


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Planted[CopyCase]:
    """The cases in a store of the newest release; each test leaves it as it found it."""
    return plant_cases(Home(tmp_path_factory.mktemp("planted") / "home"), "0.22.2")


@pytest.fixture(scope="module")
def few(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Planted[CopyCase]:
    """The cases that tell wrong variants from the fix, likewise."""
    return plant_cases(Home(tmp_path_factory.mktemp("few") / "home"), "0.20.0", ARCHIVED[:3])


def wrong(planted: Planted[CopyCase], fix: Fix, once: Sequence[Finding] | None = None) -> list[str]:
    """Mend with that fix and take it back; say what is not as it must be."""
    lines, _before, _after = set_aside(planted, CHECK, fix, ("compacted", "display_order"), once)
    return lines


def test_every_copy_is_marked_once_and_taken_back(planted: Planted[CopyCase]) -> None:
    assert wrong(planted, FIX, planted.findings) == []


@pytest.mark.parametrize("version", ["0.18.0", "0.20.6", "0.22.2"])
def test_readers_see_each_message_once(home: Home, oracle: None, version: str) -> None:
    """What an older release compacted, read by itself or by the newest: shown, replayed and found as it was."""
    made_by = "0.20.6" if version == "0.22.2" else version
    compacted(home, made_by, 2)
    # The first reading gives rows their place in the display (0.21.5 on).
    shows = version != "0.18.0"
    display = call("get_messages", "s", include_compacted=True) if shows else call("get_messages", "s")
    look = [call("get_messages_as_conversation", "s"), call("search_messages", "word"), display]
    before = home.run(version, look * 2)[len(look) :]
    patient = Patient(home.store, home.path)
    assert patient.mend(checks=[CHECK], fixes=[FIX]).outcome == "fixed"
    after = home.run(version, look)
    assert after[0] == before[0]
    assert (len(before[1]), len(after[1])) == (12, 6)
    # Nothing that was shown is shown no more.
    assert {row["content"] for row in after[2]} == {row["content"] for row in before[2]}
    if shows:
        assert sorted(row["content"] for row in after[2]).count("word 5") == 1


def test_a_place_in_the_display_comes_back(home: Home, oracle: None) -> None:
    """From 0.21.5 on the message that is shown for its copies moves when one of them goes, and back again."""
    compacted(home, "0.20.6", 2)
    home.run("0.22.2", [call("get_messages", "s", include_compacted=True)])
    before, after, back = there_and_back(Patient(home.store, home.path), CHECK, FIX, image_of)
    assert any("display_order" in line for line in difference(before, after))
    assert difference(before, back) == []


def test_a_row_that_no_display_has_read_comes_back_without_a_place(home: Home, oracle: None) -> None:
    """A trigger of 0.21.5 on gives it one when it comes back."""
    compacted(home, "0.20.6", 2)
    home.run("0.22.2", [call("get_session", "s")])
    before, after, back = there_and_back(Patient(home.store, home.path), CHECK, FIX, image_of)
    assert {row["display_order"] for row in before.table("messages")} == {None}
    assert difference(before, after) != []
    assert difference(before, back) == []


def test_the_newest_release_goes_on_compacting(home: Home, oracle: None) -> None:
    """It finds a store such as it leaves itself."""
    compacted(home, "0.20.6", 2)
    Patient(home.store, home.path).mend(checks=[CHECK], fixes=[FIX])
    compaction = call("archive_and_compact", "s", ref("all"), tail_count=3)
    shows = call("get_messages", "s", include_compacted=True)
    *_, shown = home.run("0.22.2", [call("get_messages_as_conversation", "s", keep="all"), compaction, shows])
    assert Patient(home.store, home.path).findings([CHECK]) == []
    assert sorted(row["content"] for row in shown if row["content"].startswith("word")) == [
        f"word {n}" for n in range(6)
    ]


def test_what_changed_meanwhile_is_left(home: Home, oracle: None) -> None:
    planted = plant_cases(home, "0.22.2", ARCHIVED[:1])
    (finding,) = planted.findings
    patient = Patient(home.store, home.path)
    restore = ("UPDATE messages SET active = id > 3, compacted = id <= 3, content = content WHERE id <= 6", ())
    for statement in (
        "UPDATE messages SET compacted = 0 WHERE id = 2",
        "UPDATE messages SET active = 0 WHERE id > 3",
        "UPDATE messages SET active = 1, compacted = 0 WHERE id = 2",
    ):
        assert change_meanwhile(patient, FIX, finding, restore, (statement, ())) == "RowMovedError"
    assert change_meanwhile(patient, FIX, finding, restore) is None


# Deliberately wrong variants of the fix.


def _running(statement: str) -> Callable[[Mending, Finding], None]:
    def mend(mending: Mending, finding: Finding) -> None:
        (copies,) = archived_copies(mending.view, [finding.key])
        for each in copies.ids:
            mending.connection.execute(statement, {"id": each, "session": copies.session})

    return mend


VARIANTS: dict[str, Callable[[Mending, Finding], None]] = {
    "deletes them": _running("DELETE FROM messages WHERE id = :id"),
    "makes them live": _running("UPDATE messages SET active = 1, compacted = 0 WHERE id = :id"),
    "all that is archived": _running("UPDATE messages SET compacted = 0 WHERE session_id = :session AND :id"),
    "the last one only": lambda mending, finding: mending.set(
        "messages", int(str(finding.detail["last"])), to={"compacted": 0}, expects={"active": 0}
    ),
}


def test_the_few_cases_are_mended_right(few: Planted[CopyCase]) -> None:
    assert wrong(few, FIX) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(few: Planted[CopyCase], name: str) -> None:
    assert wrong(few, replace(FIX, mend=VARIANTS[name])) != []
