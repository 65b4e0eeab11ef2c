"""What a config says of sessions, and whether hermes can read it: as the releases themselves read it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_doctor.host.config_file import SessionsConfig, has_good_copy, read_sessions_config
from tests.host.evidence import no_trace_in
from tests.oracle.home import Home, environment
from tests.oracle.releases import Release, get

#: Texts, whether hermes reads them, and what they say of sessions. A key given twice is told apart below.
TEXTS: dict[str, tuple[bytes, bool, dict[str, object]]] = {
    "empty": (b"", True, {}),
    "no section": (b"model: x\n", True, {}),
    "set": (b"sessions: {auto_prune: false, retention_days: 30}\n", True, {"auto_prune": False, "retention_days": 30}),
    "text": (b'sessions: {auto_prune: "false"}\n', True, {"auto_prune": "false"}),
    "a mark before it": ("\ufeffsessions: {auto_prune: true}\n".encode(), True, {"auto_prune": True}),
    "half": (b"sessions: {auto_prune: false\n", False, {}),
    "a tab": (b"sessions:\n\tauto_prune: false\n", False, {}),
    "a list": (b"- sessions\n", False, {}),
    "no UTF-8": (b"sessions: {auto_prune: false}\nx: \xff\n", False, {}),
    "no such bool": (b"sessions: {auto_prune: false}\nx: !!bool maybe\n", False, {}),
    "no such int": (b"sessions: {auto_prune: false}\nx: !!int ''\n", False, {}),
    "no such time": (b"sessions: {auto_prune: false}\nx: !!timestamp never\n", False, {}),
    "an object": (b"sessions: !!python/object/apply:os.getcwd []\n", False, {}),
}


@pytest.fixture(autouse=True)
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No administrator's file but the tests' own."""
    folder = tmp_path / "managed"
    monkeypatch.setenv("HERMES_MANAGED_DIR", str(folder))
    return folder


def read(home: Path, text: bytes) -> SessionsConfig | None:
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_bytes(text)
    with no_trace_in(home):
        return read_sessions_config(home)


@pytest.mark.parametrize("name", TEXTS)
def test_what_it_says(tmp_path: Path, name: str) -> None:
    text, is_read, values = TEXTS[name]
    config = read(tmp_path / "home", text)
    assert config is not None
    assert (config.there, config.broken is None, dict(config.values)) == (True, is_read, values)


@pytest.mark.parametrize("release", [get("0.20.6"), get("0.22.2")], ids=str)
def test_the_releases_read_the_same(oracle: None, release: Release, tmp_path: Path) -> None:
    """Their own loader, asked in one process: where it cannot read a text, its defaults are in force."""
    script = (
        "import json, os, pathlib, sys\n"
        "from hermes_cli import config\n"
        "for text in json.load(sys.stdin):\n"
        "    (pathlib.Path(os.environ['HERMES_HOME']) / 'config.yaml').write_bytes(bytes.fromhex(text))\n"
        "    config._LOAD_CONFIG_CACHE.clear()\n"
        "    config._LAST_EXPANDED_CONFIG_BY_PATH.clear()\n"
        "    print(json.dumps(config.load_config()['sessions']))\n"
        "    backups = pathlib.Path(os.environ['HERMES_HOME']) / 'backups' / 'config'\n"
        "    [each.unlink() for each in backups.glob('*')]\n"
    )
    home = Home(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        input=json.dumps([text.hex() for text, _read, _values in TEXTS.values()]),
        env=environment(home.path, release),
        capture_output=True,
        text=True,
        check=True,
    )
    taken = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    default = taken[0]
    assert default["auto_prune"] is release.since("0.21.5")
    assert taken == [{**default, **values} for _text, _read, values in TEXTS.values()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"sessions: {auto_prune: false}\nsessions: {auto_prune: true}\n", {"auto_prune": True}),
        (b"a: {b: 1, b: 2}\n", {}),
    ],
)
def test_a_key_given_twice(tmp_path: Path, text: bytes, expected: dict[str, object]) -> None:
    assert read(tmp_path / "home", text) == SessionsConfig(doubled=True, values=expected)


def test_a_section_that_is_none(tmp_path: Path) -> None:
    assert read(tmp_path / "home", b"sessions: [1]\n") == SessionsConfig(mapping=False)
    assert read(tmp_path / "home", b"sessions: no\n") == SessionsConfig()
    assert read(tmp_path / "home", b"sessions:\n") == SessionsConfig()


def test_what_cannot_be_told(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert read_sessions_config(home) == SessionsConfig(there=False)
    os.mkfifo(home / "config.yaml")
    assert read_sessions_config(home) is None
    (home / "config.yaml").unlink()
    (home / "config.yaml").mkdir()
    assert read_sessions_config(home) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sessions: {retention_days: 7}\n", SessionsConfig(values={"auto_prune": False, "retention_days": 7})),
        ("model: x\n", SessionsConfig(values={"auto_prune": False})),
        ("sessions: {\n", None),
    ],
)
def test_an_administrators_file_is_laid_over(
    tmp_path: Path, managed: Path, text: str, expected: SessionsConfig | None
) -> None:
    managed.mkdir()
    (managed / "config.yaml").write_text(text)
    assert read(tmp_path / "home", b"sessions: {auto_prune: false}\n") == expected


def test_a_good_copy(tmp_path: Path) -> None:
    assert not has_good_copy(tmp_path)
    (tmp_path / "backups" / "config").mkdir(parents=True)
    assert not has_good_copy(tmp_path)
    (tmp_path / "backups" / "config" / "config.yaml.1").touch()
    assert has_good_copy(tmp_path)
