"""Homes that were lived in are built once per test run and copied for each test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from filelock import FileLock

from tests.oracle.history import Lived, Stage, live_through_chain
from tests.oracle.home import Home
from tests.oracle.releases import Release, get


class LivedIn:
    """Hands out homes in which one release lived, or several in turn.

    The copy keeps bytes and modification times. Its routing rows name the folder in which the home was built,
    as they do in every home that was moved.
    """

    def __init__(self, templates: Path, folder: Path) -> None:
        self._templates = templates
        self._folder = folder
        self._copies = 0

    def __call__(self, *releases: Release | str, wal: bool = False) -> Lived:
        """A private copy. ``wal``: the store is in WAL mode, also where the release would not choose it."""
        versions = tuple(get(release).version for release in releases)
        template = self._templates / ("+".join(versions) + ("-wal" if wal else ""))
        self._templates.mkdir(parents=True, exist_ok=True)
        with FileLock(template.with_name(template.name + ".lock")):
            if not (template / "stages.json").exists():
                _build(template, versions, wal=wal)
        self._copies += 1
        home = self._folder / f"lived-in-{self._copies}"
        shutil.copytree(template / "home", home, symlinks=True)
        return Lived(Home(home), _stages(template))


def _build(template: Path, versions: tuple[str, ...], *, wal: bool) -> None:
    # A build that failed half-way is no template.
    shutil.rmtree(template, ignore_errors=True)
    home = Home(template / "home")
    if wal:
        home.use_wal(versions[0])
    lived = live_through_chain(home, versions)
    stages = [{"release": stage.release.version, "ids": stage.ids, "written": stage.written} for stage in lived.stages]
    (template / "stages.json").write_text(json.dumps(stages))


def _stages(template: Path) -> tuple[Stage, ...]:
    return tuple(
        Stage(
            get(stage["release"]),
            stage["ids"],
            {name: [(role, content) for role, content in said] for name, said in stage["written"].items()},
        )
        for stage in json.loads((template / "stages.json").read_text())
    )
