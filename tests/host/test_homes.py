"""Which stores a target stands for, and which home a file belongs to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermes_doctor.host.homes import StoreRef, default_home, home_of, resolve_targets
from tests.host.evidence import run_python


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a store of its own and two profiles; not this host's."""
    path = tmp_path / "home"
    for folder in (path, path / "profiles" / "work", path / "profiles" / "play-2"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.db").touch()
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "this-host"))
    return path


def names(refs: list[StoreRef], below: Path) -> list[tuple[str, str]]:
    return [(str(ref.path.relative_to(below)), ref.profile) for ref in refs]


def test_a_folder_stands_for_its_own_store_and_each_profiles(home: Path) -> None:
    for odd in ("Work", "-x", "x" * 65, "a b", ".hidden"):
        (home / "profiles" / odd).mkdir()
        (home / "profiles" / odd / "state.db").touch()
    (home / "profiles" / "empty").mkdir()
    (home / "profiles" / "notes").touch()
    refs = resolve_targets([home])
    assert names(refs, home) == [
        ("state.db", "default"),
        ("profiles/play-2/state.db", "play-2"),
        ("profiles/work/state.db", "work"),
    ]
    assert [ref.home for ref in refs] == [home, home / "profiles" / "play-2", home / "profiles" / "work"]


def test_without_targets_this_host(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(home))
    assert len(resolve_targets([])) == 3
    monkeypatch.setenv("HERMES_HOME", str(home / "profiles" / "work"))
    assert names(resolve_targets([]), home) == [("profiles/work/state.db", "work")]
    monkeypatch.setenv("HERMES_HOME", " ")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_home() == tmp_path / ".hermes"
    assert resolve_targets([]) == [StoreRef(tmp_path / ".hermes" / "state.db", tmp_path / ".hermes", "default")]
    monkeypatch.setenv("HERMES_HOME", "~/x/$SOMEWHERE")
    monkeypatch.setenv("SOMEWHERE", "y")
    assert default_home() == tmp_path / "x" / "y"


def test_a_home_without_any_store_is_its_missing_one(home: Path) -> None:
    (home / "state.db").unlink()
    assert [ref.profile for ref in resolve_targets([home])] == ["play-2", "work"]
    for profile in ("work", "play-2"):
        (home / "profiles" / profile / "state.db").unlink()
    assert names(resolve_targets([home]), home) == [("state.db", "default")]


def test_what_is_left_of_a_store_is_not_passed_over(home: Path) -> None:
    (home / "state.db").rename(home / "state.db-wal")
    (home / "profiles" / "work" / "state.db").unlink()
    (home / "profiles" / "work" / "state.db").symlink_to("nowhere")
    assert [ref.profile for ref in resolve_targets([home])] == ["default", "play-2", "work"]


def test_a_store_named_twice_is_one(home: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(home)
    refs = resolve_targets([home, home / "state.db", link, link / "profiles" / "work" / "state.db"])
    assert len(refs) == 3
    assert resolve_targets([home / "state.db", home])[0].path == home / "state.db"


def test_what_does_not_exist_is_still_answered_for(tmp_path: Path) -> None:
    assert resolve_targets([tmp_path / "none"]) == [StoreRef(tmp_path / "none", None, "default")]
    assert len(resolve_targets([tmp_path / "a\x00b"])) == 1


@pytest.mark.parametrize(
    "sign",
    ["config.yaml", ".env", "sessions/", "cron/", "gateway_state.json", "SOUL.md", "memories/", "skills/", "logs/"],
)
def test_a_sign_of_a_home(tmp_path: Path, sign: str) -> None:
    store = tmp_path / "copy" / "state.db"
    store.parent.mkdir()
    store.touch()
    assert home_of(store) is None
    place = store.parent / sign.rstrip("/")
    place.mkdir() if sign.endswith("/") else place.touch()
    assert home_of(store) == store.parent
    assert home_of(store.parent / "state.db.malformed-backup-1") is None


def test_a_home_without_signs_by_its_place(home: Path, tmp_path: Path) -> None:
    assert home_of(home / "profiles" / "work" / "state.db") == home / "profiles" / "work"
    assert home_of(tmp_path / "this-host" / "state.db") == tmp_path / "this-host"
    assert resolve_targets([home / "profiles" / "work" / "state.db"])[0].profile == "work"


def test_a_relative_path_stays_as_it_was_typed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home / "profiles" / "work")
    assert resolve_targets([Path("state.db")]) == [StoreRef(Path("state.db"), Path(), "work")]
    assert resolve_targets([Path()]) == [StoreRef(Path("state.db"), Path(), "work")]


@pytest.mark.skipif(os.geteuid() != 0, reason="root may look everywhere: needs to become somebody else")
def test_profiles_that_cannot_be_listed_are_not_passed_over_in_silence(tmp_path: Path) -> None:
    code = (
        "import os, tempfile; from pathlib import Path\n"
        "from hermes_doctor.host.bundle import StoreProblem, inspect\n"
        "from hermes_doctor.host.homes import resolve_targets\n"
        "import encodings.idna, pwd\n"
        "with tempfile.TemporaryDirectory() as name:\n"
        "    home = Path(name); home.chmod(0o755)\n"
        "    (home / 'state.db').touch(); (home / 'profiles').mkdir(mode=0o700)\n"
        "    os.setegid(65534); os.seteuid(65534)\n"
        "    refs = resolve_targets([home])\n"
        "    print([ref.path.name for ref in refs])\n"
        "    try: inspect(refs[1].path)\n"
        "    except StoreProblem as problem: print(problem.condition)\n"
        "    os.seteuid(0)"
    )
    assert run_python(code).stdout.split("\n")[:2] == ["['state.db', 'profiles']", "unreadable"]
