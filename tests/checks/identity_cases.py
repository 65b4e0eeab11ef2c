"""Cases of lost-identity, as data: rows of a store, and what must be filled in, contested, or left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.checks.lineage_cases import DAY, HOUR, MINUTE, Case, Session, compressed, lock

#: The routing of one chat; ``@`` keeps the cases' chats apart.
CHAT: Mapping[str, Any] = {"session_key": "@key", "user_id": "@user", "chat_id": "@chat", "chat_type": "dm"}
ROUTING = ("session_key", "user_id", "chat_id", "chat_type")
FOLDER: Mapping[str, Any] = {"cwd": "/work", "git_repo_root": "/work", "git_branch": "main"}
PLACE = ("cwd", "git_repo_root", "git_branch")


@dataclass(frozen=True)
class Loss:
    """What must be said of one session: the columns that are filled in, and those that are contested."""

    filled: tuple[str, ...] = ()
    contested: tuple[str, ...] = ()


@dataclass(frozen=True)
class IdentityCase(Case):
    """Rows, and by the session's name what is lost; from 0.18.0 on, which has the columns."""

    lost: Mapping[str, Loss] = field(default_factory=dict)
    since: str = "0.18.0"


def parent(name: str = "p", above: str | None = None, *, source: str = "telegram", **cells: Any) -> Session:
    """A part of a chat that was compressed nine days ago."""
    ended = cells.pop("ended", 9 * DAY)
    return compressed(name, above, ended=ended, source=source, cells=cells)


def child(name: str = "c", above: str = "p", *, source: str = "telegram", **more: Any) -> Session:
    """What goes on with it."""
    cells = {key: more.pop(key) for key in list(more) if key not in ("ended", "reason", "marks", "started")}
    return Session(name, above, source=source, **({"started": 8 * DAY} | more), cells=cells)


def other(name: str = "o", *, started: float = 2 * DAY, **more: Any) -> Session:
    """Another session of the same chat, outside the conversation."""
    return Session(name, source="telegram", started=started, cells=dict(CHAT), **more)


def entry(text: Any) -> tuple[str, dict[str, Any]]:
    """A routing entry for the case's chat."""
    return "gateway_routing", {"session_key": "@key", "entry_json": text, "updated_at": 1.0}


def _routed_to(session: str) -> tuple[str, dict[str, Any]]:
    return entry({"session_key": "@key", "session_id": session})


P = parent(**CHAT)
ALL = Loss(filled=ROUTING)
CONTESTED = Loss(contested=ROUTING)


def found(name: str, *sessions: Session, since: str = "0.18.0", rows: Any = (), **lost: Loss) -> IdentityCase:
    return IdentityCase(name, sessions, rows=rows, since=since, lost=lost)


CASES: tuple[IdentityCase, ...] = (
    found("a chat's continuation", P, child(), c=ALL),
    found("one in a thread", parent(**CHAT, thread_id="7"), child(), c=Loss((*ROUTING, "thread_id"))),
    found("one with the key alone", P, child(session_key="@key"), c=Loss(("user_id", "chat_id", "chat_type"))),
    found(
        "a chain of four",
        P,
        parent("m", "p"),
        parent("n", "m"),
        child(above="n"),
        m=ALL,
        n=ALL,
        c=ALL,
    ),
    found("a chain that found its way back", P, parent("m", "p"), child(above="m", **CHAT), m=ALL),
    found(
        "what is copied beside it",
        parent(**CHAT, display_name="@name", origin_json="{}"),
        child(),
        c=Loss((*ROUTING, "display_name", "origin_json")),
        since="0.18.2",
    ),
    found("only what is beside it", parent(**CHAT, display_name="@name"), child(**CHAT), since="0.18.2"),
    found("a folder", parent(source="cli", **FOLDER), child(source="cli"), c=Loss(PLACE)),
    found("a folder without a repository", parent(source="cli", cwd="/tmp"), child(source="cli"), c=Loss(("cwd",))),
    found(
        "the same folder, its repository lost",
        parent(source="cli", **FOLDER),
        child(source="cli", cwd="/work"),
        c=Loss(PLACE[1:]),
    ),
    found("another folder", parent(source="cli", **FOLDER), child(source="cli", cwd="/other")),
    found("no branch", parent(source="cli", **FOLDER), child(source="cli", cwd="/work", git_repo_root="/work")),
    found("another repository", parent(source="cli", **FOLDER), child(source="cli", git_repo_root="/other")),
    found("chat and folder", parent(**CHAT, **FOLDER), child(), c=Loss((*ROUTING, *PLACE))),
    found(
        "another's chat, but the same folder",
        parent(**CHAT, **FOLDER),
        child(user_id="@stranger"),
        c=Loss(PLACE, ("session_key", "chat_id", "chat_type")),
    ),
    found("another user", P, child(user_id="@stranger"), c=Loss(contested=("session_key", "chat_id", "chat_type"))),
    found("an empty chat", P, child(chat_id=""), c=Loss(contested=("session_key", "user_id", "chat_type"))),
    found("another source", P, child(source="cli"), c=CONTESTED),
    found(
        "another profile",
        parent(**CHAT, profile_name="work"),
        child(profile_name="home"),
        c=CONTESTED,
        since="0.20.0",
    ),
    found("a newer session of the chat is open", P, child(), other(), c=CONTESTED),
    found("an older session of the chat is open", P, child(), other(started=20 * DAY), c=CONTESTED),
    found(
        "a newer one was reset",
        P,
        child(),
        other(ended=DAY, reason="session_reset"),
        c=CONTESTED,
    ),
    found("a newer one was reaped", P, child(), other(ended=DAY, reason="agent_close"), c=CONTESTED),
    found("an older one was reset", P, child(), other(started=20 * DAY, ended=12 * DAY, reason="session_reset"), c=ALL),
    found("it was ended itself", P, child(ended=3 * DAY, reason="session_reset"), other(), c=ALL),
    found("a branch has the chat", P, child(), Session("b", "c", source="telegram", cells=dict(CHAT)), c=CONTESTED),
    found("routed elsewhere", P, child(), rows=(_routed_to("@x"),), c=CONTESTED, since="0.18.2"),
    found("routed to its parent", P, child(), rows=(_routed_to("@p"),), c=ALL, since="0.18.2"),
    found("routed nobody knows where", P, child(), rows=(entry("{"),), c=CONTESTED, since="0.18.2"),
    found(
        "a chat that is no text",
        parent(**{**CHAT, "chat_id": {"blob": "ff"}}),
        child(),
        c=Loss(("session_key", "user_id", "chat_type")),
    ),
    found("nothing lost", P, child(**CHAT)),
    found("routed on its own", P, child(session_key="@own")),
    found("a user, but no chat", parent(user_id="@user"), child()),
    found("a branch", P, child(marks={"_branched_from": "@p"})),
    found("a delegate", P, child(marks={"_delegate_from": "@p"})),
    found("a reset chat", P, child(marks={"_reset_from": "@p"})),
    found("a tool's", P, child(source="tool")),
    found("a mark that was copied", P, child(marks={"_delegate_from": "@x"}), c=ALL),
    found("a child of a chat that goes on", Session("p", source="telegram", cells=dict(CHAT)), child()),
    found("no parent", Session("c", source="telegram")),
    found("in the middle of a rotation", parent(**CHAT, ended=2 * MINUTE), child(started=MINUTE)),
    found("an hour after the rotation", parent(**CHAT, ended=HOUR), child(started=HOUR), c=ALL),
    found("being compressed", P, child(), rows=(lock("@c", 200.0),)),
    found(
        "a turn is running",
        P,
        child(),
        rows=(lock("@p", 200.0, "session_turn_leases", "conversation_id"),),
        since="0.20.6",
    ),
    found("a lock that is over", P, child(), rows=(lock("@c", -MINUTE),), c=ALL),
)
