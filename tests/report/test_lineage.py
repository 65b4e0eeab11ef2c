"""The drawing of a conversation: to the letter for a small one, by its rules for long and odd ones."""

from __future__ import annotations

import pytest

from hermes_doctor.engine.lineage_tree import Node, Tree
from hermes_doctor.engine.model import Severity
from hermes_doctor.report.ink import Ink
from hermes_doctor.report.layout import Look
from hermes_doctor.report.lineage import lineage_text
from hermes_doctor.store.cells import Key
from hermes_doctor.store.lineage import Edge
from tests.report.support import make_finding, make_scan

NOW = 1_795_000_000.0
DAY = 86400.0


class Grown:
    """A tree that grows row by row; the first is its root."""

    def __init__(self) -> None:
        self.nodes: dict[Key, Node] = {}

    def add(
        self,
        name: Key,
        parent: Key = None,
        edge: Edge | None = None,
        *,
        source: str = "cli",
        reason: str | None = "compression",
        said: int = 3,
    ) -> Node:
        ended = None if reason is None else NOW - 2 * DAY
        start = NOW - 3 * DAY + len(self.nodes)
        node = Node(name, parent, edge, source, start, ended, reason, said, said)  # type: ignore[arg-type]  # no composite key
        self.nodes[name] = node
        if parent in self.nodes:
            self.nodes[parent].children.append(node)
        return node

    def chain(self, count: int, *, name: str = "s") -> None:
        for place in range(count):
            edge, parent = (Edge.CONTINUATION, f"{name}{place - 1:03}") if place else (None, None)
            self.add(f"{name}{place:03}", parent, edge, reason="compression" if place < count - 1 else None)

    def drawn(self, asked: Key, resumes: Key, *, quiet: bool = True, colored: bool = False, cut: bool = False) -> str:
        tree = Tree(asked, next(iter(self.nodes.values())), self.nodes, resumes, resumes, cut)
        with (scan := make_scan(now=NOW)).findings:
            return lineage_text(scan, tree, Look(quiet=quiet, ink=Ink(colored)))


def test_a_small_conversation_to_the_letter() -> None:
    tree = Grown()
    tree.add("s1")
    tree.add("d1", "s1", Edge.DELEGATE, source="subagent", reason="completed", said=1)
    tree.add("s2", "s1", Edge.CONTINUATION)
    tree.add("b1", "s2", Edge.BRANCH)
    tree.add("b2", "b1", Edge.CONTINUATION, reason="cli_close")
    tree.add("s3", "s2", Edge.CONTINUATION, reason=None).findings.append(
        make_finding(check="open-zombies", summary="open for 3 days, its terminal is gone")
    )
    tree.add("t1", "s3", Edge.TOOL, source="tool", reason=None, said=0)
    assert tree.drawn("s1", "s3", quiet=False) == (
        "/srv/hermes/state.db   schema 22 · 3,049 sessions · 61,465 messages · 1.4 GB\n"
        "  nobody has it open\n"
        "\n"
        "7 sessions, 16 messages. Resuming s1 opens s3.\n"
        "\n"
        "s1  start · cli · 3 messages · compressed 2 days ago  ← asked for\n"
        "├─ d1  delegate · subagent · 1 message · completed 2 days ago\n"
        "↓ s2  continuation · 3 messages · compressed 2 days ago\n"
        "├─ b1  branch · 3 messages · compressed 2 days ago\n"
        "│  ↓ b2  continuation · 3 messages · cli_close 2 days ago\n"
        "↓ s3  continuation · 3 messages · open  ← resumed here\n"
        "│   ! open-zombies: open for 3 days, its terminal is gone\n"
        "└─ t1  tool · tool · 0 messages · open\n"
    )


def test_a_chain_of_two_hundred_is_folded() -> None:
    tree = Grown()
    tree.chain(200)
    lines = tree.drawn("s000", "s199").splitlines()
    assert [line.split()[1] if line[0] == "↓" else line.split()[0] for line in lines] == [
        "s000",
        "s001",
        "…",
        "s198",
        "s199",
    ]
    assert lines[2] == "↓ … 196 more continuations · 588 messages …"


@pytest.mark.parametrize("why", ["asked", "finding", "branch", "second"])
def test_what_there_is_to_say_is_never_folded(why: str) -> None:
    tree = Grown()
    tree.chain(200)
    if why == "finding":
        tree.nodes["s100"].findings.append(make_finding())
    elif why == "branch":
        tree.add("beside", "s100", Edge.BRANCH)
    elif why == "second":
        tree.add("beside", "s100", Edge.CONTINUATION, reason="cli_close")
    drawn = tree.drawn("s100" if why == "asked" else "s000", "s199")
    assert "s100 " in drawn
    assert drawn.count(" more continuations") == 2
    assert ("beside" in drawn) is (why in ("branch", "second"))
    shown = len([name for name in tree.nodes if f"{name!s} " in drawn])
    folded = sum(int(line.split("… ")[1].split(" ")[0]) for line in drawn.splitlines() if "… " in line)
    assert shown + folded == len(tree.nodes)


@pytest.mark.parametrize(("chain", "folds"), [(5, 0), (6, 1)])
def test_only_what_is_long_is_folded(chain: int, folds: int) -> None:
    tree = Grown()
    tree.chain(chain)
    assert tree.drawn("s000", f"s{chain - 1:03}").count("…") == 2 * folds


def test_many_delegates_are_folded_too_but_not_with_branches() -> None:
    tree = Grown()
    tree.add("s1", reason=None)
    for place in range(30):
        tree.add(f"d{place:02}", "s1", Edge.DELEGATE, reason="completed")
    tree.add("b", "s1", Edge.BRANCH)
    drawn = tree.drawn("s1", "s1")
    assert "├─ … 28 more delegates · 84 messages …" in drawn
    assert drawn.splitlines()[-1].startswith("└─ b ")


def test_the_way_to_where_a_resume_ends_goes_straight_down() -> None:
    tree = Grown()
    tree.add("s1")
    tree.add("s2-newer", "s1", Edge.CONTINUATION)
    tree.add("s2", "s1", Edge.CONTINUATION, reason=None)
    assert "\n↓ s2 " in tree.drawn("s1", "s2")
    assert "\n├─ s2-newer" in tree.drawn("s1", "s2")
    assert "\n↓ s2-newer" in tree.drawn("s1", "s2-newer")


def test_a_chat_that_was_reset_goes_straight_down_too() -> None:
    tree = Grown()
    tree.add("s1", reason="session_reset")
    tree.add("s2", "s1", Edge.RESET, reason=None)
    assert "\n↓ s2  reset · 3 messages · open" in tree.drawn("s1", "s1")


def test_many_generations_stay_within_eighty_columns() -> None:
    tree = Grown()
    tree.add("g0000")
    for depth in range(1, 3000):
        tree.add(f"g{depth:04}", f"g{depth - 1:04}", Edge.SUBAGENT)
    lines = tree.drawn("g0000", "g0000").splitlines()
    assert sum("subagent · " in line for line in lines) == 2999
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    "name",
    ["20261101_120000_ab12cd", "x" * 500, "a b  c", "\x1b[31mred\n", "\u202eright", b"\x00\xff", 7, "ü" * 60],
)
def test_odd_ids_are_shown_safely(name: Key) -> None:
    tree = Grown()
    tree.add(name, "\x1b]gone", source="\x1b[2J" + "long" * 40, reason="\x07because").findings.append(
        make_finding(summary="a sentence of many words " * 6)
    )
    for colored in (False, True):
        drawn = tree.drawn(name, name, quiet=False, colored=colored)
        rest = drawn.replace("\x1b[1m", "").replace("\x1b[33m", "").replace("\x1b[0m", "")
        assert not any(ord(character) < 32 for character in rest.replace("\n", ""))
        assert "\u202e" not in rest
        assert max(map(len, rest.splitlines())) <= 80
    assert "does not exist" in " ".join(drawn.split())
    if name == "a b  c":
        assert "a b  c  start" in rest


def test_findings_of_one_check_are_counted_and_the_worst_comes_first() -> None:
    tree = Grown()
    node = tree.add("s1", reason=None)
    node.findings += [make_finding(key=place, table="messages", summary="wrapped") for place in range(12)]
    node.findings.append(make_finding(check="worse", severity=Severity.ERROR, summary="lost"))
    assert tree.drawn("s1", "s1").splitlines()[1:] == ["    ! worse: lost", "    ! odd-rows: wrapped (and 11 more)"]
    assert "\x1b[31m    ! worse: lost\x1b[0m" in tree.drawn("s1", "s1", colored=True)


def test_what_was_cut_says_so() -> None:
    tree = Grown()
    tree.add("s1", reason=None)
    assert "1 session, 3 messages at least: there are more" in tree.drawn("s1", "s1", quiet=False, cut=True)
