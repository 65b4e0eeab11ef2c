"""Generated and broken stores, some hundred of each: the short form of bench/odd_stores.py, and that it would tell."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from filelock import FileLock

from tests.whole import odd_examining
from tests.whole.odd_examining import Ended, Verdict
from tests.whole.odd_stores import ACTING, STRANGERS, make
from tests.whole.odd_work import Job, Maker, run

pytestmark = pytest.mark.usefixtures("oracle")

STORES, FILES = 160, 80
#: Chunks, so that they can run side by side.
CHUNKS = 4


@pytest.fixture(scope="module")
def maker(oracle: None, shared_folder: Path) -> Maker:
    folder = shared_folder / "odd"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        return Maker(folder, shared_folder / "damaged")


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_odd_stores_and_broken_files_break_no_promise(maker: Maker, tmp_path: Path, chunk: int) -> None:
    jobs: list[Job] = [("store", seed) for seed in range(1 + chunk, 1 + STORES, CHUNKS)]
    jobs += [("file", seed) for seed in range(1 + chunk, 1 + FILES, CHUNKS)]
    found = list(run(iter(jobs), maker, tmp_path, workers=1, share=0.2, brief=True))
    assert [job for job, _verdict, _notes in found] == jobs
    wrong = [f"{job}: {line} {notes}" for job, verdict, notes in found for line in verdict["wrong"]]
    assert wrong == []
    codes = {code for _job, verdict, _notes in found for code in verdict["codes"]}
    assert {1, 4} <= codes
    assert sum(verdict["found"] for _job, verdict, _notes in found) > 200
    # So many rows that mending them, and taking that back, was looked at.
    assert sum(verdict["mended"] for _job, verdict, _notes in found) > 20


def test_a_seed_makes_the_same_store_again(maker: Maker, tmp_path: Path) -> None:
    dumps = []
    for name in ("one", "other"):
        odd = make(tmp_path / name, maker.schemas, 11)
        with closing(apsw.Connection(str(odd.store))) as connection:
            schema = connection.execute("SELECT CAST(sql AS BLOB) FROM sqlite_schema ORDER BY rowid").fetchall()
        dumps.append((schema, odd.notes))
    assert dumps[0] == dumps[1]
    assert make(tmp_path / "third", maker.schemas, 12).notes != dumps[0][1]


def test_what_strangers_put_into_a_store_is_sound_sql(maker: Maker, tmp_path: Path) -> None:
    """Else the generator would leave it out, and nothing would be proven by it."""
    plain = next(schema for schema in maker.schemas if schema.release == "0.22.2")
    with closing(apsw.Connection(":memory:")) as connection:
        connection.create_collation("STRANGE", lambda a, b: (a > b) - (a < b))
        for table in plain.tables:
            connection.execute(table.sql)
        for sql in STRANGERS.values():
            connection.execute(sql)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (Ended(0, "", "Traceback (most recent call last):\n"), "said"),
        (Ended(3, "", "doctor: no"), "ended with 3"),
        (Ended(1, "an id \x1b[31m of a chat", ""), "showed"),
        (Ended(1, "an id \u202e of a chat", ""), "showed"),
        (Ended(1, "", "a defect of the doctor: KeyError at checks/x.py:1"), "said"),
    ],
)
def test_what_must_not_be_said_is_told(said: Ended, told: str) -> None:
    verdict = Verdict()
    odd_examining.judge(verdict, "scan", said, frozenset({0, 1}))
    assert [line for line in verdict.wrong if told in line] == verdict.wrong != []


def test_a_hang_and_a_crash_are_told_and_the_rest_goes_on(
    maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.whole.odd_work.LIMIT", 1.0)
    monkeypatch.setattr("tests.whole.odd_work.examine", _misbehave)
    told = {
        job[1]: verdict["wrong"]
        for job, verdict, _notes in run(iter([("store", n) for n in range(4)]), maker, tmp_path, workers=1, share=0)
    }
    assert [bool(told[n]) for n in range(4)] == [False, True, True, True]
    assert "hung" in told[1][0]
    assert "died" in told[2][0]
    assert "KeyError" in told[3][0]


def _misbehave(_store: Path, _aside: Path, seed: int, **_how: object) -> Verdict:
    if seed == 1:
        while True:
            pass
    if seed == 2:
        os._exit(9)
    if seed == 3:
        raise KeyError(seed)
    return Verdict()


#: Ids that lead out of the folder, were they followed: each is to be the name of a file that nobody may open.
OUT = ("../../bait/secret", "../bait/secret", "/bait/secret", "..\\bait\\secret", "secret", "bait/secret\x00.jsonl")


def test_an_id_is_never_followed_as_a_path(maker: Maker, tmp_path: Path) -> None:
    plain = next(schema for schema in maker.schemas if schema.release == "0.22.2")
    home = tmp_path / "home"
    home.mkdir()
    (home / "sessions").mkdir()
    (home / "config.yaml").write_text("sessions: {}\n")
    for folder in (tmp_path / "bait", home / "bait"):
        folder.mkdir()
        for name in ("secret", "secret.jsonl", "secret.json", "session_secret.json"):
            (folder / name).write_text(json.dumps([{"role": "user", "content": "bait"}]))
    store = home / "state.db"
    with closing(apsw.Connection(str(store))) as connection:
        for table in plain.tables:
            connection.execute(table.sql)
        connection.execute("INSERT INTO schema_version VALUES (31)")
        for number, session in enumerate((*OUT, str(tmp_path / "bait" / "secret"), *ACTING)):
            cells = (session, session, session, session, 1.7e9 + number)
            connection.execute(
                "INSERT INTO sessions (id, source, parent_session_id, profile_name, cwd, started_at)"
                " VALUES (?, 'cli', NULL, ?, ?, ?)",
                (session, session, session, cells[-1]),
            )
            connection.execute(
                "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', 'x', ?)",
                (session, cells[-1]),
            )
    opened = odd_examining.opened_by(
        tmp_path, ["scan", "--deep", store], ["fix", "--apply", "--unsafe", "--yes", "--json", store]
    )
    (mended,) = json.loads((tmp_path / "out").read_text())["databases"]
    assert mended["fixed"] > len(OUT), "rows of these ids were judged and mended"
    assert any(path.endswith("state.db") for path in opened)
    assert any("config.yaml" in path for path in opened)
    assert [path for path in opened if "bait" in path or "secret" in path] == []
