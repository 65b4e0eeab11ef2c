"""Homes that were lived in: healthy histories, written through each release's own calls.

``live`` follows what the release's programs do: the agent's flush of messages, compression with its lock, the
CLI's /branch, the delegate tool, the gateway's session store, the API server's fork. The differences between
the releases' methods are dealt with here and nowhere else. Where a whole program would have to run (a model, a
terminal), its sequence of SessionDB calls is repeated, in its order.

All times are relative to the moment of building, nothing is older than 80 days.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.oracle.home import Home
from tests.oracle.process import HermesProcess
from tests.oracle.releases import Chain, Release, get
from tests.oracle.steps import Step, call, clock, ref, use

MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 86_400.0

#: Leases and locks live five minutes and are renewed while their process lives. A history is built once and
#: read for a whole test run, with no process to renew them: so they are taken for longer.
GUARD_SECONDS: Final = 6 * HOUR

MODEL_CONFIG: Final[dict[str, Any]] = {"max_iterations": 90, "reasoning_config": None, "max_tokens": None}

#: What upstream puts in front of a summary, in every release (0.17 on also behind it).
SUMMARY_PREFIX: Final = "[CONTEXT COMPACTION — REFERENCE ONLY]"

REASONING: Final[dict[str, Any]] = {
    "reasoning": "thought about it",
    "reasoning_details": [{"type": "reasoning.text", "text": "thought about it", "index": 0}],
    "codex_reasoning_items": [{"type": "reasoning", "id": "rs_1", "summary": []}],
    "codex_message_items": [{"type": "message", "id": "msg_1", "content": [{"type": "output_text"}]}],
}

CALLS: Final[list[dict[str, Any]]] = [
    {"id": "call_1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
]

PICTURE: Final[list[dict[str, Any]]] = [
    {"type": "text", "text": "what is this?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
]


@dataclass(frozen=True)
class Stage:
    """What one release left in a home.

    ``ids``: the session ids by the names that :func:`live` documents. ``written``: by the same names what was
    written last, as (role, content) in order, for sessions whose replay is just that.
    """

    release: Release
    ids: dict[str, str]
    written: dict[str, list[tuple[str, Any]]]


@dataclass(frozen=True)
class Lived:
    """A home and the releases that lived in it, oldest first. The last one's names are looked up with []."""

    home: Home
    stages: tuple[Stage, ...]

    @property
    def release(self) -> Release:
        """The release that had the home last."""
        return self.stages[-1].release

    @property
    def ids(self) -> dict[str, str]:
        """The names and session ids of the last stage."""
        return self.stages[-1].ids

    def __getitem__(self, name: str) -> str:
        return self.ids[name]


def live(home: Home, release: Release | str, *, stage: int = 0, owner_pid: int | None = None) -> Stage:
    """Writes a healthy history with that release.

    Ended: ``ended-cli`` (tool calls and reasoning), ``ended-cron``, ``ended-structured``, ``chain-root``,
    ``chain-middle``, ``chain-tip`` (a compression chain), ``branch-parent``, ``branch-child``,
    ``delegate-parent``, ``delegate-child``, ``rotated`` (a gateway chat before /new), ``fork-source``,
    ``rewound`` (0.16+), ``compacted`` (in place, 0.18+).

    Open: ``routed`` (the chat after /new, idle for ten days), ``fork`` (an API fork), ``fresh`` (no message
    yet), ``mid-turn`` (an unanswered tool call), ``chain-live`` under ``chain-live-root`` (a compression tip
    in use), ``handoff`` (asked for, and given up), ``api`` and ``acp`` (idle for two days), ``tui`` (idle for two
    hours), ``compressing`` (under its lock, 0.16+), ``delegating`` (with a running delegation, 0.19+), ``pinned``
    (0.20+), ``turn`` under ``turn-root`` (a running turn, the lease is the root's, 0.20.6+).

    ``owner_pid`` is the living process that holders and owners name; by default the test process. ``stage``
    keeps the ids of several lives in one home apart.
    """
    chosen = get(release)
    story = _Story(chosen, f"{stage}-{chosen.version.replace('.', '-')}", owner_pid or os.getpid())
    _ended(story)
    _lineages(story)
    _gateway(story)
    _open(story)
    values = home.run(chosen, story.steps)
    return Stage(chosen, story.resolved(values), story.written)


def live_through_chain(home: Home, chain: Chain, *, owner_pid: int | None = None) -> Lived:
    """Lives in the home with each release of the chain in turn; each opens what the one before it left."""
    return Lived(
        home,
        tuple(live(home, version, stage=n, owner_pid=owner_pid) for n, version in enumerate(chain)),
    )


def held_cli(home: Home, release: Release | str, *, idle: float = 3 * HOUR) -> tuple[HermesProcess, str]:
    """A cli session idle for so long (seconds) in a process that lives and holds the store.

    The caller closes or kills the process. Value: the process and the session's id.
    """
    hermes = HermesProcess(home, release)
    session = f"held-{get(release).version.replace('.', '-')}"
    story = _Story(get(release), "", hermes.pid)
    story.at(idle)
    story.create("held", "cli", session_id=session)
    story.say("held", "user", "are you there?")
    story.say("held", "assistant", "I am.")
    story.steps.append(clock(None))
    for step in story.steps:
        hermes.step(step)
    return hermes, session


@dataclass
class _Story:
    """Collects the steps of one life."""

    release: Release
    tag: str
    owner_pid: int
    now: float = field(default_factory=time.time)
    steps: list[Step] = field(default_factory=list)
    ids: dict[str, str | Step] = field(default_factory=dict)
    written: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)

    def at(self, ago: float) -> None:
        """What follows happens so many seconds ago."""
        self.steps.append(clock(self.now - ago))

    def do(self, name: str, *args: Any, keep: str | None = None, **kwargs: Any) -> None:
        """A SessionDB call."""
        self.steps.append(call(name, *args, keep=keep, **kwargs))

    def since(self, version: str) -> bool:
        return self.release.since(version)

    def create(self, name: str, source: str, *, session_id: str | None = None, **kwargs: Any) -> None:
        """The agent's row for its session."""
        self.ids[name] = session_id or f"{name}-{self.tag}"
        self.enrich(name, source, **kwargs)

    def enrich(self, name: str, source: str, **kwargs: Any) -> None:
        """The same on a row that is there already: the agent behind a gateway fills in what is NULL."""
        values: dict[str, Any] = {
            "model": "test-model",
            "model_config": dict(MODEL_CONFIG),
            "system_prompt": "You are a helpful assistant.",
        }
        self.do("create_session", self.ids[name], source, **(values | kwargs))

    def say(self, name: str, role: str, content: Any, **columns: Any) -> None:
        """One message, flushed as the release's agent does it: in batches from 0.20.0 on."""
        if self.since("0.20.0"):
            message = {"role": role, "content": content, **columns}
            self.do("append_messages_batch", self.ids[name], [message])
        else:
            columns.pop("_compressed_summary", None)
            self.do("append_message", self.ids[name], role, content, **columns)
        self.written.setdefault(name, []).append((role, content))

    def turn(self, name: str, question: Any, answer: str, **columns: Any) -> None:
        """A question and its answer."""
        self.say(name, "user", question)
        self.say(name, "assistant", answer, finish_reason="stop", **columns)
        self.touch(name)

    def touch(self, name: str) -> None:
        """The agent's note that the session was busy just now (0.20.0 on)."""
        if self.since("0.20.0"):
            self.do("touch_session_activity", self.ids[name])

    def tool_turn(self, name: str, question: str, answer: str) -> None:
        """A turn with one tool call and reasoning in every column that holds it."""
        self.say(name, "user", question)
        self.say(name, "assistant", "", tool_calls=[dict(c) for c in CALLS], finish_reason="tool_calls", **REASONING)
        self.say(name, "tool", "a.txt", tool_call_id="call_1", tool_name="terminal")
        self.say(name, "assistant", answer, finish_reason="stop", **REASONING)
        self.touch(name)

    def tokens(self, name: str) -> None:
        """What the accounting writes after a model call."""
        self.do(
            "update_token_counts",
            self.ids[name],
            input_tokens=100,
            output_tokens=20,
            model="test-model",
            billing_provider="test",
            api_call_count=1,
        )

    def title(self, name: str, text: str) -> None:
        self.do("set_session_title", self.ids[name], f"{text} {self.tag}")

    def end(self, name: str, reason: str) -> None:
        self.do("end_session", self.ids[name], reason)

    def holder(self, kind: str) -> str:
        """A holder's name as the release spells it; it names a living process."""
        namespace = ""
        if self.since("0.22.2") and Path("/proc/self/ns/pid").exists():
            namespace = ":pidns=" + "".join(re.findall(r"\d+", str(Path("/proc/self/ns/pid").readlink())))
        tail = {"turn": "turn=t1:platform=cli", "lock": "tid=1:agent=7f00:nonce=0a1b2c3d"}[kind]
        return f"pid={self.owner_pid}{namespace}:{tail}"

    def compress(self, parent: str, child: str, source: str) -> None:
        """A compression by rotation: the parent ends, the child begins with the summary."""
        handoff: list[dict[str, Any]] = [
            {"role": "user", "content": f"{SUMMARY_PREFIX} they spoke of files", "_compressed_summary": True},
            {"role": "assistant", "content": "go on"},
        ]
        self.ids[child] = f"{child}-{self.tag}"
        self.written[child] = [(m["role"], m["content"]) for m in handoff]
        old, new = self.ids[parent], self.ids[child]
        holder = self.holder("lock")
        if self.since("0.16.0"):
            self.do("try_acquire_compression_lock", old, holder)
        self.do("get_session_title", old, keep="old title")
        common: dict[str, Any] = {"model": "test-model", "model_config": dict(MODEL_CONFIG)}
        if self.since("0.20.0"):
            self.do(
                "publish_compression_child",
                parent_session_id=old,
                child_session_id=new,
                source=source,
                messages=handoff,
                system_prompt="You are a helpful assistant.",
                compression_lock_holder=holder,
                **common,
            )
        else:
            self.do("end_session", old, "compression")
            self.do("create_session", new, source, parent_session_id=old, **common)
        self.do("get_next_title_in_lineage", ref("old title"), keep="next title")
        self.do("set_session_title", new, ref("next title"))
        if not self.since("0.20.0"):
            self.do("update_system_prompt", new, "You are a helpful assistant.")
        if self.since("0.16.0"):
            self.do("release_compression_lock", old, holder)
        if not self.since("0.20.0"):
            # Up to 0.19 the summary is written by the child's next flush, after the rotation.
            for message in handoff:
                self.do("append_message", new, message["role"], message["content"])

    def resolved(self, values: Sequence[Any]) -> dict[str, str]:
        """The ids by name, those that the release chose included."""
        kept = {step["as"]: value for step, value in zip(self.steps, values, strict=True) if "as" in step}

        def one(found: str | Step) -> str:
            if isinstance(found, str):
                return found
            value = kept[found["ref"]]
            for part in found["path"]:
                value = value[part]
            return str(value)

        return {name: one(found) for name, found in self.ids.items()}


def _ended(story: _Story) -> None:
    """Conversations that are over."""
    story.at(40 * DAY)
    story.create("ended-cli", "cli")
    story.tool_turn("ended-cli", "which files are there?", "one: a.txt")
    story.tokens("ended-cli")
    story.title("ended-cli", "files")
    story.at(40 * DAY - HOUR)
    story.turn("ended-cli", "thanks", "welcome")
    story.end("ended-cli", "cli_close")

    story.at(9 * DAY)
    story.create("ended-cron", "cron", session_id=f"cron_job1_{story.tag}")
    story.turn("ended-cron", "write the report", "written")
    story.end("ended-cron", "cron_complete")

    story.at(30 * DAY)
    story.create("ended-structured", "cli")
    story.turn("ended-structured", PICTURE, "a picture")
    story.end("ended-structured", "cli_close")

    if story.since("0.16.0"):
        story.at(25 * DAY)
        story.create("rewound", "cli")
        story.turn("rewound", "first", "one")
        story.turn("rewound", "second", "two")
        story.do("get_messages", story.ids["rewound"], keep="rewound rows")
        story.do("rewind_to_message", story.ids["rewound"], ref("rewound rows", 2, "id"))
        story.turn("rewound", "third", "three")
        story.written["rewound"][2:4] = []
        story.end("rewound", "cli_close")

    if story.since("0.18.0"):
        story.at(24 * DAY)
        story.create("compacted", "cli")
        story.turn("compacted", "a long story", "indeed")
        summary = [{"role": "user", "content": f"{SUMMARY_PREFIX} a story", "_compressed_summary": True}]
        story.do("archive_and_compact", story.ids["compacted"], summary)
        story.written["compacted"] = [("user", summary[0]["content"])]
        story.say("compacted", "assistant", "and then?")
        story.end("compacted", "cli_close")


def _lineages(story: _Story) -> None:
    """Compression, branch, delegate: every kind of edge between sessions."""
    story.at(22 * DAY)
    story.create("chain-root", "cli")
    story.tool_turn("chain-root", "let us begin", "begun")
    story.title("chain-root", "long work")
    story.compress("chain-root", "chain-middle", "cli")
    story.at(21 * DAY)
    story.turn("chain-middle", "and on", "on")
    story.compress("chain-middle", "chain-tip", "cli")
    story.at(20 * DAY)
    story.turn("chain-tip", "enough", "fine")
    story.end("chain-tip", "cli_close")

    story.at(18 * DAY)
    story.create("branch-parent", "cli")
    story.turn("branch-parent", "either way", "which?")
    story.title("branch-parent", "a question")
    _branch(story)
    story.at(17 * DAY)
    story.turn("branch-child", "the other way", "gone")
    story.end("branch-child", "cli_close")

    # Up to 0.17 nobody ever ends a delegate's row: an old one would be a real zombie. So it is a young one.
    ends = story.since("0.18.0")
    story.at(15 * DAY if ends else 20 * MINUTE)
    story.create("delegate-parent", "cli")
    story.say("delegate-parent", "user", "have it done")
    # The child has its parent's source up to 0.16, its own from 0.17 on, and then also the marker.
    marked = story.since("0.17.0")
    story.create(
        "delegate-child",
        "subagent" if marked else "cli",
        parent_session_id=story.ids["delegate-parent"],
        model_config=MODEL_CONFIG | ({"_delegate_from": story.ids["delegate-parent"]} if marked else {}),
    )
    story.turn("delegate-child", "do it", "done")
    story.tokens("delegate-child")
    if ends:
        story.end("delegate-child", "agent_close")
    story.say("delegate-parent", "assistant", "it is done")
    if ends:
        story.end("delegate-parent", "cli_close")


def _branch(story: _Story) -> None:
    """The CLI's /branch: what it copies and in which order it ends the parent depends on the release."""
    parent, child = story.ids["branch-parent"], f"branch-child-{story.tag}"
    story.ids["branch-child"] = child
    config: dict[str, Any] = {"max_iterations": 90, "reasoning_config": None}
    if story.since("0.16.0"):
        config["_branched_from"] = parent
    story.do("get_session_title", parent, keep="branch base")
    story.do("get_next_title_in_lineage", ref("branch base"), keep="branch title")
    child_first = story.since("0.21.5")
    if not child_first:
        story.do("end_session", parent, "branched")
    story.do(
        "create_session",
        session_id=child,
        source="cli",
        model="test-model",
        model_config=config,
        parent_session_id=parent,
    )
    if child_first:
        story.do("end_session", parent, "branched")
    for role, content in story.written["branch-parent"]:
        story.say("branch-child", role, content)
    story.do("set_session_title", child, ref("branch title"))


def _gateway(story: _Story) -> None:
    """A chat on a messaging platform, with a /new in it; the API server's fork."""
    peer = {"platform": "telegram", "chat_id": f"100{story.tag}", "user_id": "u1", "chat_type": "dm"}
    story.at(12 * DAY)
    story.steps.append(use("gateway_message", keep="chat", **peer))
    story.ids["rotated"] = ref("chat", "session_id")
    story.enrich("rotated", "telegram")
    story.turn("rotated", "hello", "hello to you")
    story.steps.append(use("gateway_touch", session_key=ref("chat", "session_key")))
    story.at(10 * DAY)
    story.steps.append(use("gateway_reset", keep="reset chat", session_key=ref("chat", "session_key")))
    story.ids["routed"] = ref("reset chat", "session_id")
    story.enrich("routed", "telegram")
    story.turn("routed", "something new", "gladly")
    story.steps.append(use("gateway_touch", session_key=ref("chat", "session_key")))

    # 0.13 has no fork. Up to 0.20.0 the fork wraps the reasoning columns: a healthy one had none of them.
    if story.since("0.15.2"):
        story.at(2 * DAY)
        story.create("fork-source", "api_server")
        if story.since("0.20.6"):
            story.tool_turn("fork-source", "list them", "listed")
        else:
            story.say("fork-source", "user", "list them")
            story.say("fork-source", "assistant", "", tool_calls=[dict(c) for c in CALLS])
            story.say("fork-source", "tool", "a.txt", tool_call_id="call_1", tool_name="terminal")
            story.say("fork-source", "assistant", "listed", reasoning="plain text is no JSON")
        story.title("fork-source", "a list")
        story.ids["fork"] = f"fork-{story.tag}"
        story.steps.append(use("api_fork", source=story.ids["fork-source"], fork=story.ids["fork"]))
        story.written["fork"] = list(story.written["fork-source"])


def _open(story: _Story) -> None:
    """Rows that are open and well: somebody will go on with them."""
    story.at(2 * DAY)
    for name, source in (("api", "api_server"), ("acp", "acp")):
        story.create(name, source)
        story.turn(name, "anybody?", "here")

    story.at(2 * HOUR)
    story.create("tui", "tui")
    story.turn("tui", "hello", "hi")

    # The command waits a minute for the gateway, and then takes its request back itself.
    story.at(20 * MINUTE)
    story.create("handoff", "cli")
    story.turn("handoff", "take it to my phone", "coming")
    story.title("handoff", "on the road")
    story.do("request_handoff", story.ids["handoff"], "telegram")
    story.do("fail_handoff", story.ids["handoff"], "timed out waiting for gateway")

    story.at(4 * HOUR)
    story.create("chain-live-root", "cli")
    story.turn("chain-live-root", "much to do", "let us start")
    story.title("chain-live-root", "much work")
    story.at(10 * MINUTE)
    story.compress("chain-live-root", "chain-live", "cli")
    story.turn("chain-live", "next", "on it")

    story.at(5 * MINUTE)
    story.create("mid-turn", "cli")
    story.say("mid-turn", "user", "which files are there?")
    story.say("mid-turn", "assistant", "", tool_calls=[dict(c) for c in CALLS], finish_reason="tool_calls")
    story.create("fresh", "tui")

    if story.since("0.16.0"):
        story.at(3 * HOUR)
        story.create("compressing", "cli")
        story.turn("compressing", "a very long talk", "yes")
        story.steps.append(clock(None))
        holder = story.holder("lock")
        story.do("try_acquire_compression_lock", story.ids["compressing"], holder, ttl_seconds=GUARD_SECONDS)

    if story.since("0.19.0"):
        story.at(5 * HOUR)
        story.create("delegating", "cli")
        story.turn("delegating", "look it up in the background", "under way")
        story.steps.append(
            use(
                "running_delegation",
                delegation_id=f"deleg_{story.tag}",
                parent=story.ids["delegating"],
                session_key="",
                owner_pid=story.owner_pid,
                dispatched_at=story.now - 5 * HOUR,
            )
        )

    if story.since("0.20.0"):
        story.at(30 * DAY)
        story.create("pinned", "cli")
        story.turn("pinned", "keep this", "kept")
        story.do("set_session_pinned", story.ids["pinned"], True)

    if story.since("0.20.6"):
        # The lease belongs to the whole conversation: the release keys it by the chain's root.
        story.at(7 * HOUR)
        story.create("turn-root", "cli")
        story.turn("turn-root", "a plan, please", "here it is")
        story.title("turn-root", "a plan")
        story.compress("turn-root", "turn", "cli")
        story.at(3 * HOUR)
        story.say("turn", "user", "build it all")
        story.touch("turn")
        story.steps.append(clock(None))
        holder = story.holder("turn")
        story.do("try_acquire_session_turn_lease", story.ids["turn"], holder, ttl_seconds=GUARD_SECONDS)
    story.steps.append(clock(None))
