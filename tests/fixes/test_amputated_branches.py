"""amputated-branches' fix: what the parent has, in the rows that lost it, and the branch replays as the parent did."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checks import counter_drift, double_encoded
from checks.amputated_branches import CHECK
from fixes import amputated_branches
from fixes.amputated_branches import FIX
from fixes.double_encoded import FIX as UNWRAPS
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.store.branch_copies import Loss
from hermes_doctor.store.counters import CALLS, Drift, Explained, Miscount
from hermes_doctor.store.laid_rows import COLUMNS
from tests.checks.branch_cases import CASES, Made, plant
from tests.checks.support import Planted, findings_of, once_a_release
from tests.fixes.support import Patient, change_meanwhile, mended_once, outcome, there_and_back
from tests.oracle.home import Home
from tests.oracle.steps import open_store
from tests.whole.identical import Image, difference, image_of, index_faults

#: Who writes the branches; and who opens the store after that.
STORES = {"0.13.0": "0.13.0", "0.19.0": "0.19.0", "0.20.0": "0.22.2"}

#: What makes a copy differ from its row in a replay, and is not restored; and a row's own marks.
NOT_RESTORED = ("finish_reason", "api_content", "timestamp", "message_uid", "tool_call_uid", "tool_call_uids")

#: What hermes fills again by itself, when a chat is shown next (0.21.5 on).
OF_THE_DISPLAY = ("display_identity", "display_order")


def plant_cases(home: Home, version: str) -> Planted[Made]:
    now = time.time()
    made = plant(home, version, now, tuple(case for case in CASES if len(case.said) < 100))
    home.run(STORES[version], [open_store()])
    return Planted(home, now, tuple(made), tuple(findings_of(home.store, CHECK, home=home.path, now=now)))


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[Made]]:
    return once_a_release(plant_cases, tmp_path_factory)


def private(store: Planted[Made], folder: Path) -> Patient:
    """A copy of the home, to be changed."""
    home = Path(shutil.copytree(store.home.path, folder / "private"))
    return Patient(home / "state.db", home)


def wrong(store: Planted[Made], patient: Patient, fix: Fix) -> list[str]:
    """Mend and take back; what is not as it must be."""
    return misses(store, *there_and_back(patient, CHECK, fix, image_of))


def misses(store: Planted[Made], before: Image, between: Image, after: Image) -> list[str]:
    """The cases whose rows or counts are not as they must be, rows of others, and what does not come back."""
    wanted = _wanted(store, before)
    bad = []
    for made in store.cases:
        rows = {row["id"]: row for row in between.table("messages")}
        if any(_shown(rows[key]) != _shown(wanted[key]) for key in made.rows):
            bad.append(made.case.name)
    others = {row for made in store.cases for row in made.rows}
    bad += [
        f"message {key} of no branch"
        for key, row in {row["id"]: row for row in between.table("messages")}.items()
        if key not in others and row != wanted[key]
    ]
    calls = {row["id"]: row["tool_call_count"] for row in between.table("sessions")}
    for row in before.table("sessions"):
        made_of = next((made for made in store.cases if made.branch.encode() == row["id"]), None)
        added = sum("tool_calls" in columns for columns in made_of.case.lost.values()) if made_of else 0
        if calls[row["id"]] != row["tool_call_count"] + added:  # type: ignore[operator]  # a count
            bad.append(f"count of {row['id']!r}")
    return [*bad, *difference(before, after)]


def _wanted(store: Planted[Made], before: Image) -> dict[object, dict[str, object]]:
    """The rows as they must be: by number, with what the same row of the parent has."""
    rows = {row["id"]: dict(row) for row in before.table("messages")}
    parents = {made.case.parent.encode(): made for made in store.cases}
    theirs: dict[str, list[dict[str, object]]] = {made.branch: [] for made in store.cases}
    for _key, row in sorted(rows.items(), key=lambda pair: str(pair[0]).zfill(9)):
        made = parents.get(row["session_id"])  # type: ignore[call-overload]  # bytes
        if made is not None:
            theirs[made.branch].append(row)
    for made in store.cases:
        skipped = len(made.case.said) // 2 if "rewound before" in made.case.name else 0
        skipped = 0 if "several" in made.case.name else skipped
        for place, columns in made.case.lost.items():
            source = place + skipped
            if "but for their times" in made.case.name and place >= 4:
                source += 4
            rows[made.rows[place]] |= {column: theirs[made.branch][source][column] for column in columns}
    return rows


def _shown(row: dict[str, object]) -> dict[str, object]:
    return {column: value for column, value in row.items() if column not in OF_THE_DISPLAY}


@pytest.mark.parametrize("version", STORES)
def test_every_case_is_mended_once_and_taken_back(
    planted: Callable[[str], Planted[Made]], tmp_path: Path, version: str
) -> None:
    store = planted(version)
    patient = private(store, tmp_path)
    before = image_of(patient.store)
    drifted = findings_of(patient.store, counter_drift.CHECK)
    with mended_once(patient, CHECK, FIX, store.findings):
        between = image_of(patient.store)
        assert index_faults(patient.store) == []
        assert findings_of(patient.store, counter_drift.CHECK) == drifted
        found = {finding.key for finding in findings_of(patient.store, CHECK)}
        left = [made.case.name for made in store.cases if made.case.left]
        # Of that one no answer of a tool is left, by which the rest of it could be known.
        left.remove("cut off among the answers")
        assert [made.case.name for made in store.cases if made.branch in found] == left
    assert misses(store, before, between, image_of(patient.store)) == []
    assert index_faults(patient.store) == []


@pytest.mark.parametrize("version", STORES)
def test_the_release_replays_the_branch_as_the_parent(
    planted: Callable[[str], Planted[Made]], tmp_path: Path, version: str
) -> None:
    store = planted(version)
    patient = private(store, tmp_path)
    cases = [made for made in store.cases if made.case.replays]
    assert len(cases) >= (2 if version == "0.13.0" else 3)
    assert outcome(patient.mend(checks=[CHECK], fixes=[FIX])) == ("fixed", 0, None)
    assert patient.home is not None
    names = [name for made in cases for name in (made.branch, made.case.parent)]
    replayed = Home(patient.home).conversations(STORES[version], names)
    for made in cases:
        assert _sent(replayed[made.branch]) == _sent(replayed[made.case.parent]), made.case.name
    damaged = store.home.conversations(STORES[version], names)
    assert all(_sent(damaged[made.branch]) != _sent(damaged[made.case.parent]) for made in cases)


def _sent(conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in NOT_RESTORED} for row in conversation]


def test_what_waits_for_another_fix_is_mended_in_the_same_run(
    planted: Callable[[str], Planted[Made]], tmp_path: Path
) -> None:
    """A parent's cell that is wrapped is unwrapped first, whichever of the two is asked first."""
    store = planted("0.19.0")
    patient = private(store, tmp_path)
    waiting = {made.branch for made in store.cases if "wrapped" in made.case.name}
    assert waiting <= {finding.key for finding in store.findings}
    done = patient.mend(checks=[CHECK, double_encoded.CHECK], fixes=[FIX, UNWRAPS])
    assert outcome(done) == ("fixed", 0, None)
    assert waiting.isdisjoint(finding.key for finding in patient.findings([CHECK]))


def test_a_count_that_was_wrong_before_is_left(planted: Callable[[str], Planted[Made]], tmp_path: Path) -> None:
    store = planted("0.19.0")
    patient = private(store, tmp_path)
    (finding,) = (finding for finding in store.findings if finding.key == store.cases[0].branch)
    wrong_count = ("UPDATE sessions SET tool_call_count = 7 WHERE id = ?", (store.cases[0].branch,))
    assert change_meanwhile(patient, FIX, finding, wrong_count) is None
    counts = {row["id"]: row["tool_call_count"] for row in image_of(patient.store).table("sessions")}
    assert counts[store.cases[0].branch.encode()] == 7


def test_what_was_changed_meanwhile_is_left(planted: Callable[[str], Planted[Made]], tmp_path: Path) -> None:
    store = planted("0.19.0")
    patient = private(store, tmp_path)
    made = store.cases[0]
    (finding,) = (finding for finding in store.findings if finding.key == made.branch)
    changes = (
        ("UPDATE sessions SET parent_session_id = NULL WHERE id = ?", (made.branch,)),
        ("UPDATE sessions SET parent_session_id = ? WHERE id = ?", (made.case.parent, made.branch)),
    )
    assert change_meanwhile(patient, FIX, finding, changes[0]) == "RowMovedError"
    filled = f"UPDATE messages SET {{}} WHERE id IN ({', '.join(map(str, made.rows))})"
    held = image_of(patient.store).table("messages")
    nothing = filled.format(", ".join(f"{column} = ''" for column in COLUMNS))
    assert change_meanwhile(patient, FIX, finding, changes[1], (nothing, ())) == "RowMovedError"
    now = {row["id"]: row for row in image_of(patient.store).table("messages")}
    assert all(now[row["id"]] == row for row in held if row["id"] not in made.rows)
    assert all(now[key][column] == b"" for key in made.rows for column in COLUMNS)


def test_what_is_there_is_never_written_over(planted: Callable[[str], Planted[Made]], tmp_path: Path) -> None:
    """A row that got some of it back keeps what it has."""
    store = planted("0.19.0")
    patient = private(store, tmp_path)
    made = store.cases[0]
    (finding,) = (finding for finding in store.findings if finding.key == made.branch)
    own = ("UPDATE messages SET reasoning = 'own', tool_name = 'own' WHERE id IN (?, ?)", (made.rows[1], made.rows[2]))
    assert change_meanwhile(patient, FIX, finding, own) is None
    rows = {row["id"]: row for row in image_of(patient.store).table("messages")}
    assert (rows[made.rows[1]]["reasoning"], rows[made.rows[2]]["tool_name"]) == (b"own", b"own")
    assert rows[made.rows[2]]["tool_call_id"] == b"call_1"


# Deliberately wrong variants of the fix.


def _fill(
    mending: Mending, loss: Loss, columns: tuple[str, ...], value: str = "(SELECT {0} FROM messages {1})"
) -> None:
    of_parent = f"WHERE id = {loss.parent_row}"
    assigned = ", ".join(f"{column} = {value.format(column, of_parent)}" for column in columns)
    mending.connection.execute(f"UPDATE messages SET {assigned} WHERE id = {loss.row}")


#: A drift that says that the count was wrong before.
UNKNOWN = Drift("", (Miscount(CALLS, None, Explained()),), archived=False)

VARIANTS: dict[str, dict[str, Callable[..., Any]]] = {
    "writes over what is there": {"_fill": lambda mending, loss: _fill(mending, loss, (*COLUMNS, "finish_reason"))},
    "writes the JSON anew": {
        "_fill": lambda mending, loss: _fill(
            mending,
            loss,
            loss.columns,
            "(SELECT CASE json_valid({0}) WHEN 1 THEN json({0}) ELSE {0} END FROM messages {1})",
        )
    },
    "fills the calls only": {
        "_fill": lambda mending, loss: _fill(mending, loss, loss.columns[:1]),
    },
    "counts nothing": {"drifts": lambda _view, _keys: [UNKNOWN]},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(
    planted: Callable[[str], Planted[Made]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = planted("0.19.0")
    for what, made in VARIANTS[name].items():
        monkeypatch.setattr(amputated_branches, what, made)
    assert wrong(store, private(store, tmp_path), replace(FIX, mend=amputated_branches._mend)) != []
