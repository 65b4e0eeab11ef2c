"""Chats in another profile's store: what the release itself calls crossed, and what it wrongly does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import apsw
import pytest

import checks.crossed_profiles as crossed_profiles
from checks.crossed_profiles import CHECK
from hermes_doctor.engine.model import FILES, Check, Finding
from hermes_doctor.engine.rows import ask
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store import profiles
from tests.checks.support import findings_of
from tests.oracle.home import Home, environment
from tests.oracle.releases import Release, get
from tests.oracle.steps import call, sql
from tests.store.views import view_of

NEWEST = get("0.22.2")
CHAT = "telegram:dm:1"


@dataclass(frozen=True)
class Case:
    """A session in the store of a profile: its key and label (None: as the release makes it), and what is found.

    ``crossed``: what we find. ``upstream``: how the release's own command calls it, where that differs.
    """

    store: str
    session_key: str | None
    label: str | None
    crossed: bool
    upstream: str | None = None


CASES = {
    "own chat": Case("default", f"agent:main:{CHAT}", None, crossed=False),
    "of another": Case("default", f"agent:work:{CHAT}", None, crossed=True),
    "of nobody": Case("default", f"agent:gone:{CHAT}", None, crossed=True),
    "label of another": Case("default", None, "work", crossed=True, upstream="not looked at"),
    "label of nobody": Case("default", None, "custom", crossed=False),
    "key and label differ": Case("default", f"agent:main:{CHAT}", "work", crossed=True),
    "no key": Case("default", None, None, crossed=False),
    "blank label": Case("default", None, "  ", crossed=False),
    "a key of others": Case("default", "hosted:room:1", None, crossed=False),
    "a short key": Case("default", "agent:work", None, crossed=False),
    "no profile's name": Case("default", "agent:My Agent:x", None, crossed=False, upstream="of nobody"),
    "own named": Case("work", f"agent:work:{CHAT}", None, crossed=False),
    "served alone": Case("work", f"agent:main:{CHAT}", None, crossed=False, upstream="mislabelled"),
    "the root's": Case("work", f"agent:main:{CHAT}", "default", crossed=True),
    "the other's": Case("work", f"agent:home:{CHAT}", None, crossed=True),
    "the root's label": Case("work", None, "default", crossed=True, upstream="not looked at"),
    "label wrong": Case("work", f"agent:work:{CHAT}", "home", crossed=True),
    "called main": Case("main", f"agent:main~:{CHAT}", None, crossed=False),
    "in the one called main": Case("main", f"agent:work:{CHAT}", None, crossed=True),
}
STORES = ("default", "work", "home", "main")


#: Of the check what looks at rows: it opens no other store.
ROWS = replace(CHECK, rule=CHECK.rules[0])


class Homes:
    """A home with profiles. ``at``: the folder of a profile."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def at(self, profile: str) -> Home:
        return Home(self.root if profile == "default" else self.root / "profiles" / profile)

    def found(self, profile: str, *, deep: bool = False, check: Check = CHECK) -> list[Finding]:
        home = self.at(profile)
        scan = scan_store(StoreRef(home.store, home.path, profile), [check], ScanOptions(deep=deep))
        with scan.findings as findings:
            assert [each.reason for each in scan.checks if each.status == "failed"] == []
            return list(findings)

    def crossed(self) -> set[object]:
        return {each.key for profile in STORES for each in self.found(profile, check=ROWS)}


#: Makes all stores of a home in one process, each session as the release makes it of what it is told.
BUILD = """
import json, pathlib, sys
from hermes_state import SessionDB
for path, sessions in json.load(sys.stdin).items():
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    store = SessionDB(db_path=pathlib.Path(path))
    for name, told in sessions.items():
        store.create_session(name, "telegram", model="m", **told)
    store.close()
"""

#: Its own command, in its own words.
REPAIR = """
import types
from hermes_cli.sessions_cmd_repair_profiles import cmd_repair_profiles
cmd_repair_profiles(types.SimpleNamespace(apply=False, json=True, legacy_main=None))
"""


def run(root: Path, script: str, told: object = None) -> str:
    """Run a script in the newest release; what it prints."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        input=json.dumps(told),
        env=environment(root, NEWEST),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def build(root: Path) -> Homes:
    homes = Homes(root)
    told: dict[str, dict[str, dict[str, str]]] = {}
    for profile in STORES:
        (homes.at(profile).path / "config.yaml").write_text("model: x\n")
        sessions: dict[str, dict[str, str]] = {f"plain in {profile}": {}}
        for name, case in CASES.items():
            if case.store == profile:
                both = {"session_key": case.session_key, "profile_name": case.label}
                sessions[name] = {column: value for column, value in both.items() if value is not None}
        told[str(homes.at(profile).store)] = sessions
    run(root, BUILD, told)
    return homes


@pytest.fixture(scope="module")
def homes(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Homes:
    """A home of the newest release with all cases."""
    return build(tmp_path_factory.mktemp("profiles") / "root")


def test_every_case_is_judged_as_it_is(homes: Homes) -> None:
    assert homes.crossed() == {name for name, case in CASES.items() if case.crossed}
    assert {each.severity.label for each in homes.found("default")} == {"warning"}
    assert not [each for profile in STORES for each in homes.found(profile) if each.table == FILES]


def test_the_release_finds_the_same_but_for_what_is_known(homes: Homes) -> None:
    """Its own command, on the same stores. What only the one or the other finds is named in the table."""
    theirs = {each["subject"] for each in json.loads(run(homes.root, REPAIR))["findings"]}
    assert theirs ^ homes.crossed() == {name for name, case in CASES.items() if case.upstream is not None}


def test_a_finding_says_where_it_belongs_and_what_to_type(homes: Homes) -> None:
    told = {each.key: each for profile in STORES for each in homes.found(profile)}
    assert told["of another"].summary.startswith("its key is of profile work, and this is the store of default: ")
    assert told["of another"].summary.endswith("hermes sessions repair-profiles shows the way (0.21.5 or newer)")
    assert dict(told["of another"].detail) == {"in_key": "work", "label": "default", "store": "default"}
    assert "gone, which is not there" in told["of nobody"].summary
    assert CHAT not in "".join(each.summary + str(each.detail) for each in told.values())


def test_asked_one_by_one_it_says_the_same(homes: Homes) -> None:
    home = homes.at("default")
    with view_of(home.store, home=home.path) as view:
        names = [name for name, case in CASES.items() if case.store == "default"]
        alone = {f.key for name in names for f in ask(CHECK, [name], view, "sessions")}
    assert alone == {name for name in names if CASES[name].crossed}


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (crossed_profiles, "profiles", lambda view: frozenset({"default", "work", "home", "custom"})),
        (crossed_profiles, "profile_in_key", lambda cell: str(cell).split(":")[1] if ":" in str(cell) else None),
        (crossed_profiles, "owner", lambda view: "default"),
        (crossed_profiles, "label_of", lambda cell: None),
    ],
    ids=["any label of a row without a key", "any key", "all is the root's", "no label"],
)
def test_wrong_checks_fail(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, module: object, name: str, value: object
) -> None:
    monkeypatch.setattr(module, name, value)
    assert homes.crossed() != {name for name, case in CASES.items() if case.crossed}


@pytest.mark.parametrize("release", [get("0.20.0"), get("0.20.6")], ids=str)
def test_one_store_for_all_is_how_older_releases_do_it(oracle: None, release: Release, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.run(
        release,
        [call("create_session", "s", "telegram", model="m"), sql("UPDATE sessions SET session_key = 'agent:work:a:b'")],
    )
    (home.path / "profiles" / "work").mkdir(parents=True)
    assert len(findings_of(home.store, CHECK, home=home.path)) == release.since("0.20.6")
    # A store alone belongs to no profile.
    assert findings_of(home.store, CHECK) == []


def copy_of(homes: Homes, folder: Path) -> Homes:
    shutil.copytree(homes.root, folder)
    return Homes(folder)


def test_sessions_in_two_stores_are_found_in_both(homes: Homes, tmp_path: Path) -> None:
    both = copy_of(homes, tmp_path / "root")
    with_it, other = both.at("work"), both.at("default")
    [row] = apsw.Connection(str(other.store)).execute("SELECT started_at FROM sessions WHERE id = 'own chat'")
    store = apsw.Connection(str(with_it.store))
    store.execute("INSERT INTO sessions (id, source, started_at) VALUES ('own chat', 'telegram', ?)", row)
    # An id that somebody made up, not drawn: it began at another time there.
    store.execute("INSERT INTO sessions (id, source, started_at) VALUES ('no key', 'telegram', 1790000000.0)")
    store.close()
    shared = [each for each in both.found("work") if each.table == FILES]
    assert [(each.key, each.detail["some"], each.detail["profile"]) for each in shared] == [
        ("../../state.db", ["own chat"], "default")
    ]
    assert shared[0].summary.startswith("at least 1 session is in the store of profile default as well: ")
    [back] = [each for each in both.found("default", deep=True) if each.table == FILES]
    assert (back.key, back.detail["sessions"]) == ("profiles/work/state.db", 1)
    assert back.summary.startswith("1 session is in the store of profile work as well")
    assert [each for each in both.found("home") if each.table == FILES] == []
    # Another store that cannot be read is passed over.
    other.store.write_bytes(b"no database")
    assert [each for each in both.found("work") if each.table == FILES] == []


def test_what_is_wrong_with_another_store_is_not_this_ones(homes: Homes, tmp_path: Path) -> None:
    both = copy_of(homes, tmp_path / "root")
    damaged, own = both.at("default").store, both.at("work").store
    with closing(apsw.Connection(str(damaged))) as store:
        roots = list(store.execute("SELECT rootpage FROM sqlite_schema WHERE tbl_name = 'sessions' AND rootpage > 0"))
        size = int(str(store.pragma("page_size")))
    with damaged.open("r+b") as file:
        for (root,) in roots:
            file.seek((root - 1) * size)
            file.write(b"\xff" * size)
    # A second name of the store itself: to open it would cost the locks of what is open here.
    second = both.at("custom").store
    second.hardlink_to(own)
    for deep in (False, True):
        assert [each for each in both.found("work", deep=deep) if each.table == FILES] == []


@pytest.mark.parametrize("newest", [1, 2])
def test_the_newest_sessions_of_both_are_compared(
    homes: Homes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newest: int
) -> None:
    both = copy_of(homes, tmp_path / "root")
    for profile, names in (("work", ["x", "w"]), ("home", ["x", "h", "i"])):
        store = apsw.Connection(str(both.at(profile).store))
        for name in names:
            store.execute("INSERT INTO sessions (id, source, started_at) VALUES (?, 'cli', 1790000000.0)", (name,))
        store.close()
    monkeypatch.setattr(profiles, "NEWEST", newest)
    assert len([each for each in both.found("home") if each.table == FILES]) == (newest == 2)
    assert len([each for each in both.found("home", deep=True) if each.table == FILES]) == 1


#: Texts of ``active_profile``, and whether they name a profile that is not there.
ACTIVE = {
    "gone\n": True,
    "\ufeffgone": True,
    "not a name!": True,
    "work\n": False,
    "main": False,
    "default": False,
    "": False,
    "\n": False,
}


def test_an_active_profile_that_is_not_there(homes: Homes, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "profiles" / "work").mkdir(parents=True)
    (root / "profiles" / "main").mkdir()
    for place in (root, root / "profiles" / "work"):
        shutil.copy(homes.at("main").store, place)
    copied = Homes(root)
    for text, expected in ACTIVE.items():
        (root / "active_profile").write_text(text, encoding="utf-8")
        found = [each for each in copied.found("default") if each.key == "active_profile"]
        assert (text, len(found)) == (text, expected)
        for each in found:
            assert (each.severity.label, each.table) == ("warning", FILES)
            assert each.summary.endswith("hermes -p default profile use default")
    (root / "profiles" / "work" / "active_profile").write_text("gone")
    assert [each for each in copied.found("work") if each.key == "active_profile"] == []
