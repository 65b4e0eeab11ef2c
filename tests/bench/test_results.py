"""What is written into bench/RESULTS.md, and what the README quotes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import quotes, results
from bench.figures import Figure, at_least, at_most, number, plain

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Copies of bench/RESULTS.md and README.md, in place of which they are written."""
    copies = tmp_path / "RESULTS.md", tmp_path / "README.md"
    for name, original, copy in zip(("RESULTS", "README"), (results.RESULTS, results.README), copies, strict=True):
        copy.write_text(original.read_text(encoding="utf-8"), encoding="utf-8")
        monkeypatch.setattr(results, name, copy)
    return copies


def test_the_readme_quotes_what_was_recorded() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    recorded = (ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8")
    assert quotes.quoted(readme) == quotes.lines(recorded)


def test_each_figure_stands_in_the_results_once() -> None:
    recorded = (ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8")
    names = [line.split("|")[1].strip() for line in recorded.splitlines() if line.startswith("| ")]
    figures = [name for name in names if name in quotes.measured(recorded)]
    assert len(figures) == len(set(figures))


def test_a_result_takes_the_place_of_its_forerunner_only(files: tuple[Path, Path]) -> None:
    recorded, _readme = files
    before = recorded.read_text(encoding="utf-8")
    results.record("one", "First", [plain("a", 1.0)], command="python -m one")
    results.record("two", "Second", [plain("b", 2.0, "ms")], text="Said of two.")
    results.record("one", "First again", [at_most("c", 3.0, 2.0, "times")])
    text = recorded.read_text(encoding="utf-8")
    assert text.startswith(before)
    assert text.count("## First") == 1
    assert text.index("## First again") < text.index("## Second")
    known = quotes.measured(text)
    assert "a" not in known
    assert known["b"] == ("2 ms", "", "")
    assert known["c"] == ("3 times", "at most 2", "no")
    assert "Said of two." in str(results.section("two"))
    assert results.section("three") is None


def test_what_the_readme_quotes_follows_what_is_recorded(files: tuple[Path, Path]) -> None:
    recorded, readme = files
    words, name = next(iter(quotes.QUOTES.items()))
    results.record("anything", "Anything", [at_most(name, 1.25, 1.3, "times")])
    text = readme.read_text(encoding="utf-8")
    assert f"| {words} | 1.25 times | at most 1.30 | yes |" in text
    assert quotes.quoted(text) == quotes.lines(recorded.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (at_most("a", 1.3, 1.3), True),
        (at_most("a", 1.31, 1.3), False),
        (at_least("a", 10, 10), True),
        (at_least("a", 9.9, 10), False),
        (at_most("a", None, 1), None),
        (plain("a", 1), None),
    ],
)
def test_a_promise_is_met_or_not_or_nobody_knows(figure: Figure, met: bool | None) -> None:
    assert figure.met is met


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1234567.8, "1,234,568"), (99.96, "100.0"), (10, "10"), (1.299, "1.30"), (0.5, "0.50"), (0.0123, "0.012")],
)
def test_numbers_have_the_digits_that_say_something(value: float, shown: str) -> None:
    assert number(value) == shown
