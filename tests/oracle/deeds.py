"""What hermes does with a home, one deed after the other, in whatever order a history has it.

A history is data: deeds with numbers that choose the chat and the way. A :class:`Teller` turns it into calls of a
release, and does only what that release can do in that state of things. It keeps in mind what its chats hold, as an
agent does in memory, since a rewind, a compaction, a branch or a delegate takes from there.

What a release itself makes wrong by doing so is named in ``UPSTREAM``, and noted for the session it is done to.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.oracle.history import CALLS, DAY, HOUR, MINUTE, MODEL_CONFIG, PICTURE, REASONING, SUMMARY_PREFIX
from tests.oracle.releases import NEWEST, Release, get
from tests.oracle.steps import Step, call, clock, close_store, open_store, ref, use

Message = dict[str, Any]

#: A history lasts at most so long, so that nothing in it is past a retention of 90 days.
LONGEST: Final = 70 * DAY


@dataclass(frozen=True)
class Deed:
    """One deed. ``chat`` and ``how`` choose among what there is; ``pause``: seconds since the deed before."""

    kind: str
    chat: int = 0
    how: int = 0
    pause: float = MINUTE


@dataclass(frozen=True)
class History:
    """The deeds done with each release in turn, and how many seconds ago the last one was done."""

    stages: tuple[tuple[Deed, ...], ...]
    rest: float = 2 * DAY


@dataclass(frozen=True)
class Wrong:
    """What releases from ``since`` to ``until`` make wrong themselves, and the checks that find it."""

    checks: str
    why: str
    since: str = "0.13.0"
    until: str = NEWEST.version


UPSTREAM: Final[dict[str, Wrong]] = {
    "a fork wraps": Wrong(
        "double-encoded", "the fork's handler hands raw JSON to a writer that encodes it again", "0.15.2", "0.20.0"
    ),
    "a copy stays wrapped": Wrong(
        "double-encoded", "a wrapped value is text in memory, and is stored as text again", "0.15.2"
    ),
    "a branch loses columns": Wrong(
        "amputated-branches",
        "/branch copies words, and in a terminal calls, of a message and not the rest",
        until="0.20.0",
    ),
    "rewound rows brought back": Wrong(
        "counter-drift", "a rewind recounts, bringing its rows back does not", "0.20.6", "0.20.6"
    ),
    "a delegate stays open": Wrong("open-zombies", "nobody ends a delegate's row", until="0.17.0"),
    "left without a word": Wrong(
        "orphan-stubs", "the row is made before the first prompt, and nobody deletes it at the end", until="0.16.0"
    ),
    "a window left without a word": Wrong("orphan-stubs", "the same; the one clean-up of such rows comes once"),
    "a continuation deleted": Wrong("lineage-gaps", "deleting a session leaves its parent ended by compression"),
    "a routed chat deleted": Wrong("dangling-routes", "deleting a session leaves the chat's route"),
    "a branched parent opened again": Wrong(
        "hidden-chats", "a branch without a mark is told by its parent's end alone"
    ),
    "a branch of an open window": Wrong(
        "hidden-chats", "the parent is not ended, and the branch has no mark", until="0.15.2"
    ),
    "the upgrade marks it": Wrong("hidden-chats", "schema 16 takes it for a delegate", "0.17.0"),
    "a rotation leaves the routing": Wrong(
        "lost-identity", "a continuation does not get its parent's routing and folder", until="0.19.0"
    ),
    "a delegate without a mark": Wrong(
        "lineage-gaps lost-identity",
        "once its parent is compressed, nothing but the times tells it from a continuation",
    ),
    "an import leaves the routing": Wrong(
        "lost-identity", "by design: what is brought back is a conversation, and no live chat", "0.19.0"
    ),
    "closed after a handoff": Wrong(
        "wrongly-ended", "the terminal ends the session that the chat goes on in", until="0.17.0"
    ),
}


@dataclass
class Chat:
    """A session, as the agent has it in memory. ``rows``: its messages in order, with what became of each."""

    id: Any
    source: str
    parent: Chat | None = None
    rows: list[tuple[Message, str]] = field(default_factory=list)
    ended: str | None = None
    #: Whether a mark says that it is a branch; that it is a delegate; whether it goes on a compressed one.
    branch: bool = False
    delegate: bool = False
    goes_on: bool = False
    title: bool = False
    #: The gateway's key of the chat that is routed here.
    key: Any = None
    #: Where the rows begin that were taken back last, with the step that named them.
    rewound: tuple[int, Step] | None = None
    handed: bool = False
    #: Whether it has a working folder.
    folder: bool = False
    archived: bool = False
    touched: float = 0.0

    @property
    def live(self) -> list[Message]:
        return [message for message, state in self.rows if state == "live"]

    def begun_in(self, sessions: Collection[str]) -> bool:
        """Whether one of these is the session that it goes on, or one before that."""
        return (
            self.goes_on and self.parent is not None and (self.parent.id in sessions or self.parent.begun_in(sessions))
        )

    @property
    def open(self) -> bool:
        return self.ended is None

    @property
    def talks(self) -> bool:
        """Whether somebody may go on with it."""
        return self.open and self.source != "subagent"


class Teller:
    """Tells one history; all ids begin with ``name``, but for those that the gateway chooses."""

    def __init__(self, name: str, history: History, releases: Sequence[Release], now: float) -> None:
        self.name = name
        self.history = history
        self.releases = releases
        self.chats: list[Chat] = []
        #: Whatever releases made wrong: the name in UPSTREAM, and whose session it is.
        self.made: list[tuple[str, Chat]] = []
        self.steps: list[Step] = []
        self.release = releases[0]
        self.now = now
        pauses = [deed.pause for stage in self._stages() for deed in stage]
        pace = min(1.0, LONGEST / max(1.0, sum(pauses)))
        self.clock = now - history.rest - pace * sum(pauses)
        self._pace = pace
        self._count = self._number = 0

    def _stages(self) -> Sequence[tuple[Deed, ...]]:
        return self.history.stages[: len(self.releases)]

    def stage(self, number: int, delegates: Collection[str]) -> list[Step]:
        """The steps of the next release; after the last one all is settled.

        ``delegates``: the sessions that bear a delegate's mark now that this release has opened the store.
        """
        self.release, self.steps, self._number = self.releases[number], [], number
        self._upgraded(delegates)
        stages = self._stages()
        for deed in stages[number] if number < len(stages) else ():
            self.later(deed.pause * self._pace)
            if not self.chats and deed.kind not in ("start", "look_in", "reset"):
                self._start(deed)
            getattr(self, f"_{deed.kind}")(deed)
        if number == len(self.releases) - 1:
            self._settle()
        self.steps.append(clock(None))
        return self.steps

    def learn(self, steps: Sequence[Step], values: Sequence[Any]) -> None:
        """Take the ids that the release chose."""
        kept = {step["as"]: value for step, value in zip(steps, values, strict=True) if "as" in step}
        for name, value in kept.items():
            assert not name.endswith(" back") or value["ok"], (name, value)

        def known(value: Any) -> Any:
            if isinstance(value, dict) and "ref" in value:
                found = kept[value["ref"]]
                for part in value["path"]:
                    found = found[part]
                return found
            return value

        for chat in {id(chat): chat for chat in [*self.chats, *(chat for _made, chat in self.made)]}.values():
            chat.id, chat.key, chat.rewound = known(chat.id), known(chat.key), None

    def wrong(self, only: str | None = None) -> set[tuple[str, str]]:
        """What may be found although all was well done (of that name): check and session."""
        made = [(name, chat) for name, chat in self.made if only in (None, name)]
        return {(check, chat.id) for name, chat in made for check in UPSTREAM[name].checks.split()}

    # -- telling ------------------------------------------------------------------------------------------------

    def since(self, version: str) -> bool:
        return self.release.since(version)

    def later(self, seconds: float) -> None:
        # What takes long at the very end must not lead into the future.
        self.clock += seconds if self.clock + seconds < self.now - MINUTE / 2 else 0.2
        self.steps.append(clock(self.clock))

    def do(self, method: str, *args: Any, keep: str | None = None, **kwargs: Any) -> None:
        self.steps.append(call(method, *args, keep=keep, **kwargs))

    def named(self, what: str) -> str:
        self._count += 1
        return f"{self.name} {what} {self._count}"

    def makes(self, name: str, chat: Chat) -> None:
        """Note what the release makes wrong here; a release that UPSTREAM does not name must not."""
        wrong = UPSTREAM[name]
        assert get(wrong.since).order <= self.release.order <= get(wrong.until).order, (name, self.release)
        self.made.append((name, chat))

    def chosen(self, deed: Deed, fits: Callable[[Chat], bool]) -> Chat | None:
        fitting = [chat for chat in self.chats if fits(chat)]
        return fitting[deed.chat % len(fitting)] if fitting else None

    def begin(self, source: str, parent: Chat | None = None, **columns: Any) -> Chat:
        chat = Chat(self.named(source).replace(" ", "-"), source, parent)
        config = dict(MODEL_CONFIG) | columns.pop("marks", {})
        values: dict[str, Any] = {"model": "test-model", "model_config": config, "system_prompt": "You are helpful."}
        if parent is not None:
            values["parent_session_id"] = parent.id
        self.do("create_session", chat.id, source, **(values | columns))
        self.chats.append(chat)
        return chat

    def say(self, chat: Chat, *messages: Message) -> None:
        """Messages, flushed as the release's agent does it."""
        stamped = [dict(message) for message in messages]
        if self.since("0.20.0"):
            for message in stamped:
                self._count += 1
                message.setdefault("timestamp", self.clock + self._count / 1000)
            self.do("append_messages_batch", chat.id, [dict(message) for message in stamped])
            self.do("touch_session_activity", chat.id)
        else:
            for message in stamped:
                columns = {k: v for k, v in message.items() if k not in ("role", "content", *_LATER)}
                self.do("append_message", chat.id, message["role"], message["content"], **columns)
        self.holds(chat, stamped)

    def holds(self, chat: Chat, messages: Sequence[Message]) -> None:
        chat.rows += [(message, "live") for message in messages]
        chat.rewound = None
        chat.touched = self.clock
        for message in messages:
            for column in _JSON:
                if isinstance(message.get(column), str):
                    # Text is stored as it is from 0.20.6 on, which takes one layer off.
                    value = json.loads(message[column]) if self.since("0.20.6") else message[column]
                    message[column] = value
                    if isinstance(value, str):
                        self.makes("a copy stays wrapped", chat)

    def end(self, chat: Chat, reason: str) -> None:
        self.do("end_session", chat.id, reason)
        chat.ended = chat.ended or reason

    def turn(self, chat: Chat, how: int) -> None:
        self.say(chat, *TURNS[how % len(TURNS)])

    def locked(self, chat: Chat) -> str:
        holder = "pid=1:tid=1:agent=7f00:nonce=0a1b2c3d"
        self.do("try_acquire_compression_lock", chat.id, holder)
        return holder

    # -- deeds --------------------------------------------------------------------------------------------------

    def _start(self, deed: Deed) -> None:
        source = ("cli", "tui", "telegram", "api_server", "cli", "cron", "acp", "cli")[deed.how % 8]
        if source == "telegram":
            self._arrives()
            return
        chat = self.begin(source)
        self.turn(chat, deed.chat + deed.how)
        if source == "cron":
            self.end(chat, "cron_complete")

    def _arrives(self) -> Chat | None:
        """A message comes in for the one chat that the history has on a messaging platform.

        None where the chat was handed a session that its terminal then ended: newer gateways find their own way out.
        """
        routed = next((chat for chat in self.chats if chat.key is not None), None)
        if routed is None:
            peer = str(100 + zlib.crc32(self.name.encode()))
            keep = self.named("chat")
            message = {"platform": "telegram", "chat_id": peer, "user_id": f"u{peer}", "chat_type": "dm"}
            self.steps.append(use("gateway_message", keep=keep, **message))
            routed = self._routed(keep)
        elif not routed.open:
            return None
        self.turn(routed, 0)
        self.steps.append(use("gateway_touch", session_key=routed.key))
        return routed

    def _routed(self, keep: str) -> Chat:
        chat = Chat(ref(keep, "session_id"), "telegram", key=ref(keep, "session_key"))
        self.do(
            "create_session",
            chat.id,
            "telegram",
            model="test-model",
            model_config=dict(MODEL_CONFIG),
            system_prompt="You are helpful.",
        )
        self.chats.append(chat)
        return chat

    def _talk(self, deed: Deed) -> None:
        chat = self.chosen(deed, lambda chat: chat.talks)
        if chat is None:
            self._start(deed)
        else:
            self.turn(chat, deed.how)

    def _rewind(self, deed: Deed) -> None:
        chat = self.chosen(deed, lambda chat: chat.talks and bool(_asked(chat)))
        if chat is None or not self.since("0.16.0"):
            return
        asked = _asked(chat)
        place = asked[-1 - deed.how % min(3, len(asked))]
        rows = self.named("rows")
        self.do("get_messages", chat.id, keep=rows)
        target = ref(rows, [n for n, (_m, state) in enumerate(chat.rows) if state == "live"].index(place), "id")
        self.do("rewind_to_message", chat.id, target)
        chat.rows = chat.rows[:place] + [(m, "back" if s == "live" else s) for m, s in chat.rows[place:]]
        chat.rewound = (place, target)

    def _restore(self, deed: Deed) -> None:
        chat = self.chosen(deed, lambda chat: chat.talks and chat.rewound is not None)
        if chat is None or chat.rewound is None or self.since("0.21.5"):
            return
        place, target = chat.rewound
        self.do("restore_rewound", chat.id, target)
        if self.since("0.20.6"):
            self.makes("rewound rows brought back", chat)
        chat.rows = chat.rows[:place] + [(m, "live" if s == "back" else s) for m, s in chat.rows[place:]]
        chat.rewound = None

    def _compact(self, deed: Deed) -> None:
        chat = self.chosen(deed, lambda chat: chat.talks and len(chat.live) > 2)
        if chat is None or not self.since("0.18.0"):
            return
        handoff = self._summary(chat, deed.how)
        tail = len(handoff) - 1
        if self.since("0.20.6"):
            holder, mark = self.locked(chat), self.named("mark")
            self.do("get_active_message_watermark", chat.id, keep=mark)
            extra: dict[str, Any] = {"tail_count": tail} if self.since("0.21.5") else {}
            self.do("archive_and_compact", chat.id, handoff, watermark=ref(mark), lock_holder=holder, **extra)
            self.do("release_compression_lock", chat.id, holder)
        else:
            self.do("archive_and_compact", chat.id, handoff)
        chat.rows = [(m, "away" if state == "live" else state) for m, state in chat.rows]
        self.holds(chat, [dict(message) for message in handoff])
        self.turn(chat, deed.how)

    def _summary(self, chat: Chat, how: int) -> list[Message]:
        """What a compaction leaves: a summary, and the last turn as it was."""
        asked = _asked(chat)
        tail = chat.live[len(chat.live) - self._behind(chat, asked[-1]) :] if asked and how % 2 else []
        role = "assistant" if tail else "user"
        summary: Message = {"role": role, "content": f"{SUMMARY_PREFIX} of {chat.source}", "_compressed_summary": True}
        return [summary, *tail]

    def _behind(self, chat: Chat, place: int) -> int:
        return sum(state == "live" for _m, state in chat.rows[place:])

    def _rotate(self, deed: Deed) -> None:
        old = self.chosen(deed, lambda chat: chat.talks and len(chat.live) > 2)
        if old is None:
            return
        if old.key is not None:
            # A gateway that only now reads its routes would drop one to a session that has ended.
            self.steps.append(use("gateway_touch", session_key=old.key))
        handoff = self._summary(old, deed.how)
        new = Chat(self.named(old.source).replace(" ", "-"), old.source, old, goes_on=True)
        holder = self.locked(old) if self.since("0.16.0") else None
        common: dict[str, Any] = {"model": "test-model", "model_config": dict(MODEL_CONFIG)}
        if self.since("0.20.0"):
            self.do(
                "publish_compression_child",
                parent_session_id=old.id,
                child_session_id=new.id,
                source=old.source,
                messages=handoff,
                system_prompt="You are helpful.",
                compression_lock_holder=holder,
                **common,
            )
        else:
            self.do("end_session", old.id, "compression")
            self.do("create_session", new.id, old.source, parent_session_id=old.id, **common)
            self.do("update_system_prompt", new.id, "You are helpful.")
        new.folder = old.folder
        if (old.key or old.folder) and not self.since("0.20.0"):
            self.makes("a rotation leaves the routing", new)
        # What hangs on a chat that no list shows is not shown, either.
        self.made += [
            (name, new) for name, chat in self.made if chat is old and UPSTREAM[name].checks == "hidden-chats"
        ]
        old.ended = "compression"
        for child in self._children(old):
            if child.source == "subagent" and not child.delegate:
                self.makes("a delegate without a mark", child)
                self.makes("a delegate without a mark", old)
        self.chats.append(new)
        if old.title:
            self._titled_after(old, new)
        new.title = old.title
        if holder:
            self.do("release_compression_lock", old.id, holder)
        if old.key is not None:
            self.steps.append(use("gateway_switch", session_key=old.key, session_id=new.id))
            new.key, old.key = old.key, None
        if self.since("0.20.0"):
            self.holds(new, [dict(message) for message in handoff])
        else:
            # Up to 0.19 the summary is written by the child's next flush.
            self.say(new, *handoff)
        self.turn(new, deed.how)

    def _titled_after(self, old: Chat, new: Chat) -> None:
        base, title = self.named("base"), self.named("title")
        self.do("get_session_title", old.id, keep=base)
        self.do("get_next_title_in_lineage", ref(base), keep=title)
        self.do("set_session_title", new.id, ref(title))
        new.title = True

    def _branch(self, deed: Deed) -> None:
        old = self.chosen(deed, lambda chat: chat.talks and chat.source in ("cli", "tui") and bool(chat.live))
        if old is None:
            return
        window = old.source == "tui"
        # From 0.20.6 on a window's server sweeps in the background, by a clock that jumps here.
        if not self.since("0.20.6") if window else self.since("0.19.0"):
            keep = self.named("branch")
            self.steps.append(use("tui_branch" if window else "cli_branch", keep=keep, session=old.id))
            new = Chat(ref(keep), old.source, old, title=True, folder=window or old.folder)
            self.chats.append(new)
            self.holds(new, _branched(old.live, self.release, window=window))
        else:
            new = self._copied(old)
        if not window:
            old.ended = old.ended or "branched"
        new.branch = self.since("0.16.0")
        kept = _kept(self.release, window=window)
        if not self.since("0.20.6") and any(m.get(column) for m in old.live for column in m.keys() & _LOST - kept):
            self.makes("a branch loses columns", new)
        if window and not new.branch:
            self.makes("a branch of an open window", new)
        self.later(MINUTE)
        self.turn(new, deed.how)

    def _copied(self, old: Chat) -> Chat:
        """What /branch of a terminal up to 0.18.2, and of a window from 0.20.6 on, does."""
        if old.source == "cli":
            self.end(old, "branched")
        new = self.begin(old.source, old, marks={"_branched_from": old.id} if self.since("0.16.0") else {})
        copied = _branched(old.live, self.release, window=old.source == "tui")
        if copied:
            self.say(new, *copied)
        if old.title:
            self._titled_after(old, new)
        return new

    def _fork(self, deed: Deed) -> None:
        old = self.chosen(deed, _may_fork)
        if old is None or not self.since("0.15.2"):
            return
        new = Chat(self.named("fork").replace(" ", "-"), "api_server", old, title=True)
        self.steps.append(use("api_fork", source=old.id, fork=new.id))
        old.ended = old.ended or "branched"
        new.branch = self.since("0.21.5")
        self.chats.append(new)
        messages = [dict(message) for message in old.live]
        for message in messages:
            for column in _JSON:
                if message.get(column) and not self.since("0.20.6"):
                    message[column] = json.dumps(message[column])
                    self.makes("a fork wraps", new)
                elif isinstance(message.get(column), str):
                    self.makes("a copy stays wrapped", new)
        new.rows = [(message, "live") for message in messages]
        new.touched = self.clock

    def _delegate(self, deed: Deed) -> None:
        old = self.chosen(deed, lambda chat: chat.talks and chat.source != "cron")
        if old is None:
            return
        own = self.since("0.17.0")
        new = self.begin("subagent" if own else old.source, old, marks={"_delegate_from": old.id} if own else {})
        new.source, new.delegate = "subagent", own
        self.turn(new, deed.how)
        if self.since("0.18.0"):
            self.end(new, "agent_close")
        else:
            self.makes("a delegate stays open", new)
        self.say(old, *TURNS[0])

    def _hand_off(self, deed: Deed) -> None:
        chat = self.chosen(deed, lambda chat: chat.talks and chat.source == "cli" and bool(chat.live))
        if chat is None or chat.handed:
            return
        home = self._arrives() if deed.how % 3 else None
        self.do("request_handoff", chat.id, "telegram")
        self.later(2)
        if home is None:
            self.do("fail_handoff", chat.id, "timed out waiting for gateway")
            return
        chat.handed = True
        self.do("claim_handoff", chat.id)
        self.steps.append(use("gateway_switch", session_key=home.key, session_id=chat.id))
        home.ended, chat.key, home.key = home.ended or "session_switch", home.key, None
        self.turn(chat, 0)
        self.do("complete_handoff", chat.id)
        self.later(MINUTE)
        self.end(chat, "cli_close")
        if not self.since("0.18.0"):
            # Its gateway does not ask whether a session has ended, and goes on in it.
            self.later(HOUR)
            self.turn(chat, 0)
            self.steps.append(use("gateway_touch", session_key=chat.key))
            self.makes("closed after a handoff", chat)

    def _import(self, deed: Deed) -> None:
        """A session is saved, deleted, and brought back."""
        chat = self.chosen(deed, lambda chat: chat.key is None and not self._children(chat) and bool(chat.live))
        if chat is None or not self.since("0.19.0"):
            return
        if not self.since("0.21.5") and any(each.since("0.21.5") for each in self.releases[: self._number]):
            # What newer releases put into the rows cannot be brought back by an older one.
            return
        saved = self.named("saved")
        self.do("export_session", chat.id, keep=saved)
        self.do("delete_session", chat.id)
        self.do("import_sessions", [ref(saved)], keep=f"{saved} back")
        if chat.goes_on and chat.source == "telegram":
            self.makes("an import leaves the routing", chat)
        chat.rows = [(message, "live") for message in chat.live]
        chat.rewound = None

    def _delete(self, deed: Deed) -> None:
        chat = self.chosen(deed, lambda chat: True)
        if chat is None:
            return
        self.do("delete_session", chat.id)
        self._gone(chat)
        above = chat.parent
        if above is not None and chat.goes_on and not any(other.goes_on for other in self._children(above)):
            self.makes("a continuation deleted", above)
        if chat.key is not None:
            self.makes("a routed chat deleted", chat)

    def _gone(self, chat: Chat) -> None:
        self.chats.remove(chat)
        for child in self._children(chat):
            child.parent = None
            if child.delegate and self.since("0.17.0"):
                self._gone(child)

    def _children(self, chat: Chat) -> list[Chat]:
        return [child for child in self.chats if child.parent is chat]

    def _resume(self, deed: Deed) -> None:
        """A session that was over is taken up again in the terminal."""
        reasons = ("cli_close", "tui_close", "tui_shutdown", "branched")
        chat = self.chosen(deed, lambda chat: chat.ended in reasons and chat.source != "api_server" and not chat.key)
        if chat is None:
            return
        if chat.ended == "branched":
            for child in self._children(chat):
                if not child.branch and child.source != "subagent":
                    self.makes("a branched parent opened again", child)
        self.do("reopen_session", chat.id)
        chat.ended = None
        self.turn(chat, deed.how)

    def _close(self, deed: Deed) -> None:
        chat = self.chosen(deed, lambda chat: chat.talks and chat.source in ("cli", "tui"))
        if chat is not None:
            self._leave(chat)

    def _leave(self, chat: Chat) -> None:
        window = "tui_close" if self.since("0.17.0") else "tui_shutdown"
        self.end(chat, window if chat.source == "tui" else "cli_close")

    def _look_in(self, deed: Deed) -> None:
        """Somebody starts hermes and leaves again without a word."""
        chat = self.begin("tui" if deed.how % 2 else "cli")
        self.later(20)
        self._leave(chat)
        if chat.source == "tui":
            self.makes("a window left without a word", chat)
        elif self.since("0.17.0"):
            self.do("delete_session_if_empty", chat.id)
            self.chats.remove(chat)
        else:
            self.makes("left without a word", chat)

    def _reset(self, deed: Deed) -> None:
        """/new in a chat."""
        old = self.chosen(deed, lambda chat: chat.talks and chat.key is not None)
        if old is None:
            self._arrives()
            return
        keep = self.named("chat")
        self.steps.append(use("gateway_reset", keep=keep, session_key=old.key))
        new = self._routed(keep)
        old.ended, old.key = "session_reset", None
        self.turn(new, deed.how)
        self.steps.append(use("gateway_touch", session_key=new.key))

    def _set(self, deed: Deed) -> None:
        chat = self.chosen(deed, lambda chat: True)
        if chat is None:
            return
        how = deed.how % 4
        if how == 0:
            self.do("set_session_title", chat.id, self.named("about"))
            chat.title = True
        elif how == 1 and self.since("0.16.0"):
            self.do("set_session_archived", chat.id, bool(deed.chat % 3))
            chat.archived = True
        elif how == 2 and self.since("0.20.0"):
            self.do("set_session_pinned", chat.id, bool(deed.chat % 3))
        else:
            self.do("update_token_counts", chat.id, input_tokens=100, output_tokens=20, api_call_count=1)

    def _restart(self, deed: Deed) -> None:
        self.steps += [close_store(), open_store()]

    # -- upgrades and the end -----------------------------------------------------------------------------------

    def _upgraded(self, delegates: Collection[str]) -> None:
        for chat in self.chats:
            if chat.id in delegates and not chat.delegate:
                chat.delegate = True
                self.makes("the upgrade marks it", chat)

    def _settle(self) -> None:
        """Whoever still has something open closes it in good order, but for what was used just now."""
        for chat in list(self.chats):
            ends = chat.open and chat.source in ("cli", "tui", "cron") and chat.key is None
            if ends and (self.now - self.clock > HOUR / 2 or chat.touched < self.clock - HOUR / 2):
                self.later(1)
                self._leave(chat)


_JSON: Final = ("reasoning_details", "codex_reasoning_items", "codex_message_items")
#: Columns that are missed where a branch lacks them.
_LOST: Final = frozenset({"tool_name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", *_JSON})
_LATER: Final = ("_compressed_summary", "timestamp")


def _may_fork(chat: Chat) -> bool:
    return chat.source in ("api_server", "acp") and chat.ended in (None, "branched") and bool(chat.live)


def _asked(chat: Chat) -> list[int]:
    """Where in the rows a person's live messages are."""
    return [
        n
        for n, (message, state) in enumerate(chat.rows)
        if state == "live" and message["role"] == "user" and not message.get("_compressed_summary")
    ]


def _kept(release: Release, *, window: bool) -> set[str]:
    """The columns of a message that /branch copies, in the terminal or in a window."""
    kept = {"role", "content"} | ({"timestamp"} if release.since("0.20.0") else set())
    if release.since("0.20.6"):
        kept |= {"reasoning", "reasoning_content", *_JSON}
    return kept if window else kept | {"tool_name", "tool_calls", "tool_call_id", "reasoning"}


def _branched(messages: Sequence[Message], release: Release, *, window: bool) -> list[Message]:
    """The messages that /branch makes; a window's are plain dialogue from 0.20.6 on."""
    if window and release.since("0.20.6"):
        messages = [m for m in messages if m["role"] in ("user", "assistant") and m["content"]]
    kept = _kept(release, window=window)
    return [{column: value for column, value in message.items() if column in kept} for message in messages]


def _question(text: Any) -> Message:
    return {"role": "user", "content": text}


def _answer(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, "finish_reason": "stop", **more}


def _tool_call(**more: Any) -> Iterator[Message]:
    yield {
        "role": "assistant",
        "content": "",
        "tool_calls": [dict(each) for each in CALLS],
        "finish_reason": "tool_calls",
        **more,
    }
    yield {"role": "tool", "content": "a.txt", "tool_call_id": "call_1", "tool_name": "terminal"}


#: Turns as they come: with and without tools, reasoning and pictures, cut short, and the same words again and again.
TURNS: Final[tuple[tuple[Message, ...], ...]] = (
    (_question("hello"), _answer("hi")),
    (_question("which files are there?"), *_tool_call(**REASONING), _answer("one: a.txt", **REASONING)),
    (_question("ok"), _answer("ok")),
    (_question("think"), _answer("thought", **REASONING)),
    (_question("list and list again"), *_tool_call(), *_tool_call(), _answer("twice the same")),
    (_question(PICTURE), _answer("a picture, \u00fc\U0001f600")),
    (_question("and?"),),
    (_question("do it"), *tuple(_tool_call())[:1]),
)

#: All kinds of deeds; talking is what mostly happens.
KINDS: Final[tuple[str, ...]] = (
    *("talk",) * 5,
    "start",
    "start",
    "rewind",
    "restore",
    "compact",
    "rotate",
    "branch",
    "fork",
    "delegate",
    "hand_off",
    "import",
    "delete",
    "resume",
    "close",
    "look_in",
    "reset",
    "set",
    "restart",
)

__all__ = ["KINDS", "UPSTREAM", "Chat", "Deed", "History", "Teller", "replace"]
