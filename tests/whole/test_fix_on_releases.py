"""Every fault that a release can show, in a home that it lived in: mended, replayed as before, and taken back."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from hermes_doctor.engine.model import Finding, Safety
from tests.fixes.support import Patient, outcome
from tests.oracle.faults import Planter
from tests.oracle.history import CALLS, DAY, HOUR, REASONING, SUMMARY_PREFIX, Lived
from tests.oracle.home import Home
from tests.oracle.releases import CHAINS, RELEASES, Release
from tests.oracle.steps import Step, call, clock, kill, ref, sql
from tests.oracle.templates import LivedIn
from tests.whole.identical import Image, difference, image_of, index_faults
from tests.whole.support import fingerprint

LIVES = [(release.version,) for release in RELEASES] + [tuple(map(str, chain)) for chain in CHAINS]

#: JSON as no encoder writes it: it must come back as it was, character by character.
ODD = {
    "reasoning_details": '[ {"type" : "reasoning.text",\t"text":"caf\u00e9 \\u00e9 \\/ \\ud83d\\ude00 \U0001f600'
    ' \\"q\\""'
    ' ,"n":1.0, "n":2,"big": 123456789012345678901234567890 , "e":1E2,"z":-0}  ]',
    "codex_reasoning_items": '[{"id":"rs_1" , "id":"rs_2","summary":[ ],"nested":"[\\"not to be unwrapped\\"]"}]\n',
    "codex_message_items": ' [\r\n{"content":[{"text":"\\\\\\" \\t\u2014 \u65e5\u672c"}],"w":0.10}]',
    "tool_calls": '[{"id": "call_1",  "type":"function", "x":1.50, "function": {"name": "terminal",'
    ' "arguments": "{\\"command\\": \\"ls caf\u00e9\\"}"}}]',
}
ODD_METADATA = '{ "reactions":[ ], "reactions" : [1.0] , "note":"\\u00fc\u00fc"}'

#: What a fork or a script copies of a message; times and ids are its own.
COPIED = ("role", "content", "reasoning", "tool_calls", "tool_call_id", *(c for c in ODD if c != "tool_calls"))

REPLAYS = ("get_messages_as_conversation", "get_compression_tip", "resolve_resume_session_id")


@dataclass
class Damage:
    """What was planted into a home, and what the release said of it while all was well."""

    plant: Planter
    #: By session: what is to be found of it, by check.
    expected: dict[tuple[str, str], Safety] = field(default_factory=dict)
    #: Chats that were replayed while they were well, and the step that begins their replay.
    replayed: dict[str, int] = field(default_factory=dict)
    #: Copies that are to be like another chat, by the columns of COPIED.
    copies: dict[str, str] = field(default_factory=dict)
    listing: int = 0
    #: The child of a deleted parent: it is listed by itself, and the parent no more.
    now_listed: set[str] = field(default_factory=set)
    no_longer_listed: set[str] = field(default_factory=set)
    #: What refuses messages until it is mended (0.20.0 on).
    closed: str = ""
    #: Idle for longer than any release's prune waits.
    old: str = ""
    #: The chat with the three odd rows.
    odd: str = ""

    @property
    def steps(self) -> list[Step]:
        return self.plant.steps

    def replay(self, session: str) -> str:
        """Notes what the release replays of a chat now."""
        self.replayed[session] = len(self.steps)
        self.steps.extend(call(method, session) for method in REPLAYS)
        return session

    def expect(self, check: str, session: str, safety: Safety = Safety.SAFE) -> None:
        self.expected[check, session] = safety

    def chat(self, source: str = "cli", **columns: Any) -> str:
        session = self.plant.session(source, **columns)
        self.plant.say(session, "user", "hello")
        self.plant.say(session, "assistant", "hi")
        return session


def damage(release: Release) -> Damage:
    """Plants every fault of the four checks that the release can show; the process dies at the end."""
    made = Damage(Planter(release))
    _double_encoded(made)
    _zombies(made)
    _lineage(made)
    made.steps.append(kill())
    return made


def _double_encoded(made: Damage) -> None:
    plant, release = made.plant, made.plant.release
    odd = made.odd = plant.session("cli", idle=2 * HOUR, name="odd")
    plant.say(odd, "user", "which files are there?")
    for layers in (1, 2, 5):
        made.steps.append(
            call("append_message", odd, "assistant", "", keep=f"odd {layers}", tool_calls=CALLS, **REASONING)
        )
        for column, text in ODD.items():
            made.steps.append(sql(f"UPDATE messages SET {column} = ? WHERE id = ?", text, ref(f"odd {layers}")))
        if release.since("0.20.0"):
            made.steps.append(
                sql("UPDATE messages SET display_metadata = ? WHERE id = ?", ODD_METADATA, ref(f"odd {layers}"))
            )
        plant.say(odd, "tool", "a.txt", tool_call_id="call_1", tool_name="terminal")
    plant.end(odd, "cli_close")
    if release.since("0.21.5"):
        # The display's own columns are filled by a reading of it: unwrapping tool_calls must not lose them.
        made.steps.append(call("_ensure_display_order", odd))
    made.replay(odd)
    made.expect("double-encoded", odd)
    columns = [*ODD, *(["display_metadata"] if release.since("0.20.0") else [])]
    for layers in (1, 2, 5):
        for column in columns:
            text = ODD.get(column, ODD_METADATA)
            for _ in range(layers):
                text = json.dumps(text, ensure_ascii=layers == 2)
            made.steps.append(sql(f"UPDATE messages SET {column} = ? WHERE id = ?", text, ref(f"odd {layers}")))
    if release.since("0.20.6"):
        return
    # The releases' own two ways of wrapping.
    rewritten = plant.session("cli", idle=2 * HOUR, name="rewritten")
    plant.say(rewritten, "assistant", "hi", **REASONING)
    made.replay(rewritten)
    made.copies[rewritten] = rewritten
    made.steps.append(call("get_messages", rewritten, keep="rows"))
    made.steps.append(call("replace_messages", rewritten, ref("rows")))
    plant.end(rewritten, "cli_close")
    made.expect("double-encoded", rewritten)
    if release.since("0.15.2"):
        fork = plant.fork_double_encoded(3)
        made.replay(fork.source)
        for each in fork.forks:
            made.copies[each] = fork.source
            made.expect("double-encoded", each)


def _zombies(made: Damage) -> None:
    plant, release = made.plant, made.plant.release
    for session in (
        plant.open_zombie("cli"),
        plant.open_zombie("tui"),
        plant.killed_mid_turn("cron"),
        plant.open_zombie("kanban"),
    ):
        made.expect("open-zombies", made.replay(session))
    _parent, child = plant.delegate_left_open()
    made.expect("open-zombies", made.replay(child))
    # Past every retention: once it is ended, a prune of before 0.21.5 may take it.
    made.old = made.replay(plant.open_zombie("cli", idle=100 * DAY))
    made.expect("open-zombies", made.old, Safety.SAFE if release.schema >= 30 else Safety.UNSAFE)


def _lineage(made: Damage) -> None:
    plant = made.plant
    made.closed = made.replay(made.chat(name="closed"))
    recent = made.replay(made.chat(name="recent", idle=3 * HOUR))
    emptied = made.replay(made.chat(name="emptied"))
    own = made.replay(made.chat(name="own"))
    plant.end(own, "cli_close")
    lost = made.chat(name="lost")
    plant.end(lost, "compression")
    child = plant.session("cli", name="orphan", parent_session_id=lost)
    plant.say(child, "user", f"{SUMMARY_PREFIX} a greeting")
    plant.say(child, "assistant", "go on")
    plant.end(child, "cli_close")
    made.replay(child)
    made.no_longer_listed |= {lost}
    made.now_listed |= {child}
    made.listing = len(made.steps)
    made.steps.extend([clock(None), call("list_sessions_rich", limit=100_000)])

    for session, idle in ((made.closed, 3 * DAY), (recent, 3 * HOUR), (emptied, 3 * DAY)):
        made.steps.append(clock(time.time() - idle))
        plant.end(session, "compression")
    empty = plant.session("cli", name="empty", parent_session_id=emptied)
    made.steps.extend(
        [
            sql("UPDATE sessions SET parent_session_id = id WHERE id = ?", own),
            sql("PRAGMA foreign_keys=OFF"),
            sql("DELETE FROM messages WHERE session_id = ?", lost),
            sql("DELETE FROM sessions WHERE id = ?", lost),
            sql("PRAGMA foreign_keys=ON"),
        ]
    )
    for session in (made.closed, recent, own, child):
        made.expect("lineage-gaps", session)
    made.expect("lineage-gaps", emptied, Safety.UNSAFE)
    # The empty row is open, too; it goes with its parent's mending, before its own turn comes.
    made.expect("open-zombies", empty)
    for n, (source, end) in enumerate((("tui", None), ("tui", "tui_close"), ("cli", "cli_close"), ("webui", "x"))):
        stub = plant.orphan_stub(source, end_reason=end, idle=(3 + n) * DAY)
        made.expect("orphan-stubs", stub, Safety.UNSAFE if source == "webui" else Safety.SAFE)
        if end is None:
            made.expect("open-zombies", stub)


def found(findings: Sequence[Finding]) -> dict[tuple[str, str], Safety]:
    """Findings that something can be done about, by check and session."""
    return {(f.check, str(f.session)): f.fix for f in findings if f.fix is not Safety.NONE}


def standing(lived: Lived) -> dict[tuple[str, str], Safety]:
    """What is noted of a healthy home: open rows of the API server and of editors, unsafe to end up to 0.20.0."""
    store_schema = max(stage.release.schema for stage in lived.stages)
    safety = Safety.SAFE if store_schema > 25 else Safety.UNSAFE
    names = ("api", "acp", "fork")
    return {("open-zombies", s.ids[name]): safety for s in lived.stages for name in names if name in s.ids}


def copy_of(home: Home, name: str) -> Home:
    return Home(shutil.copytree(home.path, home.path.with_name(f"{home.path.name}-{name}")))


@pytest.mark.parametrize("wal", [False, True], ids=["as-made", "wal"])
@pytest.mark.parametrize("life", LIVES, ids="→".join)
def test_fixed_replayed_and_taken_back(lived_in: LivedIn, life: tuple[str, ...], wal: bool) -> None:
    lived = lived_in(*life, wal=wal)
    home, release = lived.home, lived.release
    made = damage(release)
    # A store that a newer release had has its schema; what a prune may take is judged by that.
    if max(stage.release.schema for stage in lived.stages) >= 30:
        made.expected = {
            key: Safety.SAFE if key[0] == "open-zombies" else safety for key, safety in made.expected.items()
        }
    said = home.run(release, made.steps)
    damaged, patient = image_of(home.store), Patient(home.store, home.path)
    unfixed = copy_of(home, "unfixed")

    # Just what was planted is found.
    expected = made.expected | standing(lived)
    first = patient.findings()
    assert found(first) == expected
    assert sum(f.check == "double-encoded" and f.session == made.odd for f in first) == 3

    # What is safe is mended, and nothing else.
    safely = patient.mend(unsafe=False)
    unsafe = {key: safety for key, safety in expected.items() if safety is Safety.UNSAFE}
    assert outcome(safely) == ("fixed", 0, None)
    assert found(patient.findings()) == unsafe
    assert index_faults(home.store) == []
    # A store that went back to an older release is judged by its schema, and nothing in it tells: the older release
    # ages what was ended now from its start.
    taken = {made.old} if release.schema < 30 and unsafe.keys().isdisjoint({("open-zombies", made.old)}) else set()
    _same_maintenance(release, unfixed, copy_of(home, "maintained"), gone=_deleted(damaged, home), but_for=taken)

    # The rest, too. A second look finds nothing, a second run changes nothing.
    wholly = patient.mend(unsafe=True)
    assert outcome(wholly) == ("fixed", 0, None)
    assert found(patient.findings()) == {}
    assert index_faults(home.store) == []
    before, runs = fingerprint(home.path)["state.db"], patient.runs()
    assert len(runs) == 2
    again = patient.mend(unsafe=True)
    assert (outcome(again), again.run) == (("nothing-to-do", 0, None), None)
    assert (fingerprint(home.path)["state.db"], patient.runs()) == (before, runs)

    _replayed_as_before(release, copy_of(home, "replayed"), made, said)

    # All of it is taken back, the newest run first.
    mended = image_of(home.store)
    assert difference(damaged, mended) != []
    for run in (wholly.run, safely.run):
        undone = patient.undo(run)
        assert outcome(undone) == ("fixed", 0, None)
        assert {change.state for change in undone.changes} == {"restored"}
    assert difference(damaged, image_of(home.store)) == []
    assert index_faults(home.store) == []
    assert found(patient.findings()) == expected


def _deleted(damaged: Image, home: Home) -> set[str]:
    return damaged.ids() - image_of(home.store).ids()


def _same_maintenance(release: Release, unfixed: Home, fixed: Home, *, gone: set[str], but_for: set[str]) -> None:
    """The release's own clean-ups at start take from a mended store only what they would have taken anyway."""
    steps = [call("prune_empty_ghost_sessions"), call("finalize_orphaned_compression_sessions")]
    steps += [call("maybe_auto_prune_and_vacuum", retention_days=90, vacuum=False)]
    if release.since("0.20.6"):
        steps += [call("sweep_orphaned_sessions", max_idle_seconds=6 * HOUR)]
    taken = []
    for home in (unfixed, fixed):
        before = image_of(home.store)
        home.run(release, steps)
        after = image_of(home.store)
        assert not after.index.keys() ^ before.index.keys()
        taken.append((before.ids() - after.ids(), _messages(before) - _messages(after)))
    (sessions, messages), (sessions_fixed, messages_fixed) = taken
    assert sessions_fixed - sessions == but_for
    assert messages_fixed <= messages or but_for
    # And it takes what we took, where it has a rule for it: the ended stub of a terminal.
    assert sessions - sessions_fixed <= gone


def _messages(image: Image) -> set[object]:
    return {row["id"] for row in image.table("messages")}


def _replayed_as_before(release: Release, home: Home, made: Damage, said: Sequence[Any]) -> None:
    steps = [call(method, session) for session in made.replayed for method in REPLAYS]
    steps += [call("get_messages_as_conversation", session) for session in made.copies]
    steps += [call("list_sessions_rich", limit=100_000), call("append_message", made.closed, "user", "still there?")]
    values = home.run(release, steps)
    for n, (session, at) in enumerate(made.replayed.items()):
        now = values[3 * n : 3 * n + 3]
        if session in made.copies:
            assert [copied(m) for m in now[0]] == [copied(m) for m in said[at]], session
            now[0] = said[at]
        assert now == list(said[at : at + 3]), session
    for n, original in enumerate(made.copies.values()):
        now = values[3 * len(made.replayed) + n]
        assert [copied(m) for m in now] == [copied(m) for m in said[made.replayed[original]]]
    listed = [row["id"] for row in values[-2] if row["id"] not in made.now_listed]
    before = [row["id"] for row in said[made.listing + 1]]
    assert listed == [each for each in before if each not in made.no_longer_listed | made.now_listed]
    assert made.now_listed <= {row["id"] for row in values[-2]}


def copied(message: dict[str, Any]) -> dict[str, Any]:
    return {column: message.get(column) for column in COPIED}
