"""Whether a package may declare entry points: never denied where `importlib.metadata` finds one."""

from __future__ import annotations

import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import DistributionFinder, entry_points
from pathlib import Path
from typing import Any

import pytest

from hermes_doctor.host.installed import may_be_declared

GROUP = "hermes_doctor.tests.of_installed"
METADATA = "Metadata-Version: 2.1\nName: some\nVersion: 1\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the path where packages are, beside one that is not there."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "missing"), str(tmp_path), sysconfig.get_path("stdlib")])
    return tmp_path


def declare(about: Path, group: str = GROUP, *, metadata: str = "METADATA") -> None:
    about.mkdir(parents=True)
    (about / metadata).write_text(METADATA)
    (about / "entry_points.txt").write_text(f"[console_scripts]\nsome = some:main\n\n[{group}]\nsome/one = some:ONE\n")


def in_an_egg(folder: Path) -> None:
    declare(folder / "some-1.egg" / "EGG-INFO", metadata="PKG-INFO")
    sys.path.append(str(folder / "some-1.egg"))


def in_a_zip_file(folder: Path) -> None:
    declare(folder / "packed" / "some-1.dist-info")
    with zipfile.ZipFile(folder / "some.zip", "w") as packed:
        for file in (folder / "packed" / "some-1.dist-info").iterdir():
            packed.write(file, f"some-1.dist-info/{file.name}")
    sys.path.append(str(folder / "some.zip"))


WAYS: dict[str, Callable[[Path], None]] = {
    "by pip": lambda folder: declare(folder / "some-1.dist-info"),
    "in capitals": lambda folder: declare(folder / "Some-1.DIST-INFO"),
    "by old tools": lambda folder: declare(folder / "some.egg-info", metadata="PKG-INFO"),
    "in an egg": in_an_egg,
    "in a zip file": in_a_zip_file,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
def test_what_is_declared_is_never_denied(folder: Path, way: Callable[[Path], None]) -> None:
    way(folder)
    assert [entry.value for entry in entry_points(group=GROUP)] == ["some:ONE"]
    assert may_be_declared(GROUP)


def test_in_the_working_directory_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(folder / "here" / "some-1.dist-info")
    monkeypatch.chdir(folder / "here")
    assert not may_be_declared(GROUP)
    sys.path.append("")
    assert entry_points(group=GROUP)
    assert may_be_declared(GROUP)


def test_nothing_else_is_taken_for_a_declaration(folder: Path) -> None:
    declare(folder / "some-1.dist-info", "others.checks")
    declare(folder / "no-package")
    (folder / "bare-1.dist-info").mkdir()
    (folder / "file.egg-info").write_text(GROUP)
    assert not entry_points(group=GROUP)
    assert not may_be_declared(GROUP)


def test_another_way_of_finding_packages_may_find_some(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder(DistributionFinder):
        def find_spec(self, *_asked: Any) -> None:
            return None

        def find_distributions(self, *_asked: Any) -> Iterator[Any]:
            return iter(())

    assert not may_be_declared(GROUP)
    finders: Sequence[Any] = [Finder(), *sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", finders)
    assert may_be_declared(GROUP)
