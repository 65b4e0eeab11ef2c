"""The table of what was saved, and what is told as missed."""

from __future__ import annotations

from pathlib import Path

from bench.rescue import HEADINGS, HERMES, OURS, SHELL, Came, Task, missed, table
from tests.oracle.releases import NEWEST
from tests.whole.to_be_wrecked import Sound

SOUND = Sound("0.22.2", NEWEST, Path("state.db"), {})


def came(
    ours: int, shell: int | None, hermes: int, *, damage: str = "zero-half", seed: int = 1, wrong: int = 0
) -> Came:
    saved = {OURS: (ours, wrong), HERMES: (hermes, 3)} | ({} if shell is None else {SHELL: (shell, 7)})
    return Came(
        Task(SOUND, damage, seed, tuple(saved), None),
        {"messages": 1000, "sessions": 10},
        {way: {"messages": each, "sessions": (10, 0)} for way, each in saved.items()},
        there=900,
        named=wrong // 2,
    )


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_has_sums_and_shares_of_each_damage_and_of_all() -> None:
    lines = table([came(1000, 990, 0, wrong=5), came(500, 400, 100, seed=2), came(9, 8, 7, damage="swap-roots")])
    heading, _, zero, swap, every = (cells(line) for line in lines.splitlines())
    assert heading == list(HEADINGS)
    assert zero[:7] == [
        *("zero-half", "2", "2,000", "1,800 (90 / 90)", "1,500 (50 / 75)", "1,390 (40 / 70)", "100 (0 / 5)"),
    ]
    assert zero[7:] == ["2 + 3", "14", "6", ""]
    assert swap[:2] == ["swap-roots", "1"]
    assert every[:3] == ["all", "3", "3,000"]


def test_nearly_all_is_not_all() -> None:
    line = table([came(999, 1000, 995)]).splitlines()[2]
    assert cells(line)[4:7] == ["999 (99.9 / 99.9)", "1,000 (100 / 100)", "995 (99.5 / 99.5)"]
    assert cells(line)[-1] == "1"


def test_who_did_not_take_part_has_no_share_of_a_file() -> None:
    line = table([came(500, None, 100), came(900, 800, 0)]).splitlines()[2]
    assert cells(line)[4:7] == ["1,400 (50 / 70)", "800 (80 / 80)", "100 (0 / 5)"]
    assert cells(table([came(500, None, 100)]).splitlines()[2])[5] == ""


def test_what_is_below_or_broken_is_told_with_its_command() -> None:
    broken = came(5, None, 5)
    broken.faults.append("it went wrong")
    lines = missed([came(5, 5, 4), came(5, 6, 7, seed=4), broken])
    again = "(python -m bench.rescue --store 0.22.2 --damage zero-half --seed"
    assert lines == [
        f"BELOW: 5 of 1,000, upstream 7  {again} 4)",
        f"BELOW: 5 of 1,000, recover 6  {again} 4)",
        f"BROKEN: it went wrong  {again} 1)",
    ]
