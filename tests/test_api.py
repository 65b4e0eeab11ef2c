"""The doctor in Python: what the README shows, what the commands call, and that nobody pays who does not ask."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hermes_doctor
from hermes_doctor import api
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.plan import StoreFix
from tests.cli.changing import contents
from tests.cli.support import ROOT, doctor, environment

README = (ROOT / "README.md").read_text(encoding="utf-8")

#: What of the counts differs from home to home.
_SAFE = 17


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A Hermes home in which some things have gone wrong."""
    return make_demo_home(tmp_path / "home").parent


@pytest.fixture
def store(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its store; what is kept for the user goes where the test is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return home / "state.db"


def python(folder: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of a user's."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment(folder, **env),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_readmes_example_runs(tmp_path: Path, home: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = python(tmp_path, example, HERMES_HOME=str(home), PYTHONWARNINGS="error")
    assert done.stderr == ""
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    store = home / "state.db"
    assert lines[0] == f"{store}: readable, {_SAFE} findings"
    assert len(lines) == 1 + _SAFE + 3
    assert all(line.split()[0] in ("error", "warning", "info") for line in lines[1 : 1 + _SAFE])
    planned, mended, restored = lines[1 + _SAFE :]
    assert planned == "planned: 3 rows, None in the way"
    assert re.fullmatch(r"fixed: 3 rows in run \d{8}-\d{6}-[0-9a-f]{4}", mended)
    assert restored == "fixed: 3 rows as they were"


def test_only_who_asks_waits_for_it(tmp_path: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import hermes_doctor; hermes_doctor.__version__;"
        "print(sorted(name for name in set(sys.modules) - before));"
        "assert 'scan' in dir(hermes_doctor); hermes_doctor.scan;"
        "print(sorted({'apsw', 'fixes', 'hermes_doctor.engine.apply', 'hermes_doctor.engine.undo', 'sqlite_utils'}"
        " & set(sys.modules)))"
    )
    done = python(tmp_path, code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["['hermes_doctor']", "['apsw']"]


@pytest.mark.parametrize("name", hermes_doctor.__all__)
def test_each_name_is_there_once_it_is_asked_for(name: str) -> None:
    found = getattr(hermes_doctor, name)
    if name not in ("__version__", "Progress"):
        assert found.__name__ == name
        assert found.__doc__


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'mend'"):
        hermes_doctor.mend  # type: ignore[attr-defined]  # noqa: B018  (that is the test)


def test_a_scan_finds_what_the_command_finds(tmp_path: Path, store: Path) -> None:
    before = store.read_bytes()
    [database] = json.loads(doctor(tmp_path, "scan", "--json", store).stdout)["databases"]
    with hermes_doctor.scan(store) as found:
        assert [(each.check, each.key) for each in found.findings] == [
            (each["check"], each["key"]) for each in database["findings"]
        ]
        assert [(each.check.name, each.status) for each in found.checks] == [
            (each["check"], each["status"]) for each in database["checks"]
        ]
        assert found.condition is hermes_doctor.Condition.READABLE
        assert found.exit_code(hermes_doctor.Severity.WARNING) is hermes_doctor.ExitCode.FINDINGS
    assert store.read_bytes() == before
    with pytest.raises(ValueError, match="closed file"):
        list(found.findings)


@pytest.mark.parametrize("name", [str, Path], ids=["str", "Path"])
def test_a_store_may_be_named_by_its_file_or_its_home(store: Path, name: type) -> None:
    for path in (store, store.parent):
        with hermes_doctor.scan(name(path), checks=["orphan-stubs"]) as found:
            assert found.ref == hermes_doctor.StoreRef(store, store.parent, "default")
            assert len(found.findings) == 3


def test_a_tilde_is_the_home_folder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [ref.path for ref in hermes_doctor.stores("~/home")] == [store]
    assert [ref.path for ref in hermes_doctor.stores("~no-such-user/x")] == [Path("~no-such-user/x")]


def test_without_a_name_this_host_is_meant(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(store.parent))
    with hermes_doctor.scan(checks=["orphan-stubs"]) as found:
        assert found.ref.path == store


def test_a_home_with_several_stores_is_gone_through(store: Path) -> None:
    make_demo_home(store.parent / "profiles" / "work")
    with pytest.raises(ValueError, match=r"2 stores: go through hermes_doctor\.stores\(\)"):
        hermes_doctor.scan(store.parent)
    refs = hermes_doctor.stores(store.parent)
    assert [ref.profile for ref in refs] == ["default", "work"]
    for ref in refs:
        with hermes_doctor.scan(ref, checks=["orphan-stubs"]) as found:
            assert len(found.findings) == 3


def test_what_is_wrong_with_a_store_is_told_not_raised(tmp_path: Path) -> None:
    with hermes_doctor.scan(tmp_path / "nowhere" / "state.db") as found:
        assert found.condition is hermes_doctor.Condition.MISSING
        assert found.exit_code(None) is hermes_doctor.ExitCode.DAMAGED
        assert found.next_step
        assert {each.status for each in found.checks} <= {"skipped", "ran"}
    with hermes_doctor.apply(tmp_path / "nowhere" / "state.db") as done:
        assert (done.outcome, done.exit_code, done.run) == ("failed", hermes_doctor.ExitCode.DAMAGED, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"checks": ["open-zombie"]}, "there is no check 'open-zombie'; known: "),
        ({"skip": ["xyzzy"]}, "there is no check 'xyzzy'"),
        ({"checks": "open-zombies"}, "lists of names"),
    ],
)
def test_a_callers_mistake_is_raised(store: Path, arguments: dict[str, list[str]], said: str) -> None:
    for function in (hermes_doctor.scan, hermes_doctor.plan, hermes_doctor.apply):
        with pytest.raises(ValueError, match=re.escape(said)):
            function(store, **arguments)  # type: ignore[arg-type]  # one of them is a mistake
    with pytest.raises(ValueError, match="a target is empty"):
        hermes_doctor.stores("")


def test_what_is_mended_is_taken_back(store: Path) -> None:
    before = contents(store)
    with hermes_doctor.plan(store) as plan:
        assert (plan.outcome, plan.count("planned"), plan.run) == ("planned", _SAFE, None)
    assert contents(store) == before
    with hermes_doctor.apply(store) as done:
        assert (done.outcome, done.count("applied"), done.noted) == ("fixed", _SAFE, True)
    assert contents(store) != before
    assert done.run is not None
    with hermes_doctor.undo(store, done.run[:-2]) as planned:
        assert (planned.outcome, planned.count("planned")) == ("planned", _SAFE)
    with hermes_doctor.undo(store, done.run, apply=True) as undone:
        assert (undone.outcome, undone.count("restored")) == ("fixed", _SAFE)
    assert contents(store) == before


def test_a_run_is_known_to_the_commands(tmp_path: Path, store: Path) -> None:
    """Also from elsewhere, by its name alone."""
    with hermes_doctor.apply(store) as applied:
        run = applied.run
    assert run is not None
    done = doctor(tmp_path, "undo", run, "--apply", extra={"XDG_STATE_HOME": str(tmp_path / "state")})
    assert done.returncode == 0


def test_a_run_is_known_by_a_link_to_its_store_too(store: Path) -> None:
    with hermes_doctor.apply(store) as applied:
        run = applied.run
    assert run is not None
    link = store.with_name("link.db")
    link.symlink_to(store)
    with hermes_doctor.undo(link, run) as planned:
        assert (planned.outcome, planned.count("planned")) == ("planned", _SAFE)


def test_a_run_is_known_where_its_home_was_moved_to(store: Path, tmp_path: Path) -> None:
    with hermes_doctor.apply(store) as applied:
        run = applied.run
    assert run is not None
    moved = store.parent.rename(tmp_path / "moved") / store.name
    with hermes_doctor.undo(moved, run) as planned:
        assert (planned.outcome, planned.count("planned")) == ("planned", _SAFE)
    with pytest.raises(LookupError, match="there is no run ''"):
        hermes_doctor.undo(moved, "")


def test_a_run_that_is_not_known(store: Path) -> None:
    with pytest.raises(LookupError, match="there is no run 'nothing'"):
        hermes_doctor.undo(store, "nothing")
    hermes_doctor.apply(store, checks=["orphan-stubs"]).close()
    hermes_doctor.apply(store, checks=["double-encoded"]).close()
    with pytest.raises(LookupError, match="2 runs begin with '20"):
        hermes_doctor.undo(store, "20")


def test_an_end_can_be_asked_for(store: Path) -> None:
    stop = hermes_doctor.Stop()

    def progress(_path: Path, step: str, share: float | None) -> None:
        if step == "mending" and share:
            stop.ask("the operator asked for it")

    with hermes_doctor.apply(store, progress=progress, stop=stop) as done:
        assert (done.outcome, done.reason) == ("stopped", "the operator asked for it")
        assert 0 < done.count("applied") < _SAFE
    with hermes_doctor.apply(store) as rest:
        assert rest.outcome == "fixed"


def test_a_scan_can_go_on_where_the_last_one_was(store: Path) -> None:
    with hermes_doctor.scan(store, since_last=True) as first, hermes_doctor.scan(store, since_last=True) as second:
        assert first.since_last is not None
        assert first.since_last.read == first.messages
        assert second.since_last is not None
        assert second.since_last.read == 0
    with hermes_doctor.scan(store, max_seconds=0) as stopped:
        assert stopped.exit_code(None) is hermes_doctor.ExitCode.STOPPED


def test_the_commands_have_no_way_of_their_own(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the API's functions give is what the commands show."""
    from click.testing import CliRunner

    from hermes_doctor.cli.app import app

    called: list[str] = []
    for name in ("scan", "plan", "apply", "undo"):
        function = getattr(api, name)

        def noted(*arguments: object, name: str = name, function: object = function, **more: object) -> object:
            called.append(name)
            assert callable(function)
            result: object = function(*arguments, **more)
            return result

        monkeypatch.setattr(api, name, noted)
    runner = CliRunner()
    assert runner.invoke(app, ["scan", str(store)]).exit_code == 1
    assert runner.invoke(app, ["fix", str(store)]).exit_code == 1
    assert runner.invoke(app, ["fix", "--apply", str(store)]).exit_code == 0
    run = json.loads(runner.invoke(app, ["runs", "--json", str(store)]).stdout)["runs"][0]["run"]
    assert runner.invoke(app, ["undo", run, str(store)]).exit_code == 1
    assert called == ["scan", "plan", "apply", "undo"]


def test_results_are_typed(tmp_path: Path, store: Path) -> None:
    """What a user's type checker is told; the package says that it has types."""
    assert (ROOT / "hermes_doctor" / "py.typed").exists()
    fix: StoreFix = hermes_doctor.plan(store)
    fix.close()
