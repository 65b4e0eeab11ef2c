"""Cases of hidden-chats, as data: rows of a store, and which of them are chats that no list shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_doctor.engine.model import Bucket
from hermes_doctor.store.hidden_chats import ORPHANED, Why
from tests.checks.lineage_cases import DAY, Case, Session, compressed

MARK = {"_delegate_from": ORPHANED}
UNSAFE, REFUSED, REPORT = Bucket.UNSAFE, Bucket.REFUSED, Bucket.REPORT
Said = tuple[Why, Bucket]


@dataclass(frozen=True)
class HiddenCase(Case):
    """Rows, and by the session's name why no list shows it and what can be done."""

    hidden: Mapping[str, Said] = field(default_factory=dict)


def case(name: str, *sessions: Session, since: str = "0.13.0", until: str = "99", **hidden: Said) -> HiddenCase:
    return HiddenCase(name, sessions, since=since, until=until, hidden=hidden)


def marked(name: str = "s", above: str | None = None, *, said: str = "uaua", **more: Any) -> Session:
    """A session that the upgrade marked."""
    return Session(name, above, marks=MARK, said=said, **more)


def _config(text: str) -> Session:
    return Session("s", said="uaua", cells={"model_config": text})


CHAT, MAY_BE = (Why.MARKED, UNSAFE), (Why.MARKED, REFUSED)
UNJOINED = (Why.UNJOINED, REPORT)

CASES: tuple[HiddenCase, ...] = (
    *(
        case(f"a {source} chat", marked(source=source), s=CHAT)
        for source in ("cli", "tui", "desktop", "telegram", "api_server", "acp", "webui")
    ),
    case("a chat without an answer", marked(said="uu"), s=CHAT),
    case("a single message with a title", marked(said="ua", cells={"title": "mine"}), s=CHAT),
    case("a single message of a user", marked(said="ua", cells={"user_id": "u1"}), s=CHAT),
    case("a single message of a chat", marked(said="ua", cells={"session_key": "k"}), s=CHAT, since="0.18.0"),
    case("a single message, pinned", marked(said="ua", cells={"pinned": 1}), s=CHAT, since="0.20.0"),
    case("a single message", marked(said="ua"), s=MAY_BE),
    case("archived", marked(cells={"archived": 1}), s=CHAT, since="0.18.2"),
    case("hidden on purpose", marked(cells={"hidden": 1}), since="0.20.6"),
    case("nothing of a person's", marked(said="aa")),
    case("no messages", marked(said="")),
    *(
        case(f"a {source} run", marked(source=source))
        for source in ("subagent", "tool", "cron", "kanban", "oneshot", "recovered")
    ),
    case(
        "a continuation that copied the mark",
        compressed("p", marks=MARK, said="uaua"),
        marked("c", "p", said="ua", started=8 * DAY),
        p=CHAT,
        c=CHAT,
    ),
    case(
        "a continuation, the mark taken off its parent",
        compressed("p", said="ua"),
        marked("c", "p", said="ua", started=8 * DAY),
        c=CHAT,
    ),
    case(
        "a continuation of what may be a delegate",
        compressed("p", marks=MARK, said="ua"),
        marked("c", "p", said="ua", started=8 * DAY),
        p=MAY_BE,
        c=MAY_BE,
    ),
    case(
        "a continuation of a delegate",
        compressed("p", marks={"_delegate_from": "@gone"}, said="ua"),
        marked("c", "p", said="ua", started=8 * DAY),
    ),
    case("a marked child of another", Session("p"), marked("c", "p")),
    case("a delegate of a deleted parent", Session("s", marks={"_delegate_from": "@gone"}, said="uaua")),
    case("the word elsewhere", Session("s", marks={"note": ORPHANED}, said="uaua")),
    case("the mark further in", _config('{"x": {"_delegate_from": "__orphaned__"}}')),
    case("spaces about the mark", _config('{ "_delegate_from" : "__orphaned__" , "a" : 1.50 }'), s=CHAT),
    case(
        "opened again under its continuation",
        Session("p"),
        Session("c", "p", said="uaua", started=8 * DAY),
        c=UNJOINED,
    ),
    case(
        "a delegate of an old release",
        Session("p"),
        Session("c", "p", said="ua", started=8 * DAY),
    ),
    case("a delegate with its mark", Session("p"), Session("c", "p", said="uaua", marks={"_delegate_from": "@p"})),
    case("a subagent's", Session("p"), Session("c", "p", source="subagent", said="uaua")),
    case("a branch", Session("p"), Session("c", "p", said="uaua", marks={"_branched_from": "@p"}), since="0.16.0"),
    case(
        "a branch of an old release",
        Session("p", ended=9 * DAY, reason="branched"),
        Session("c", "p", said="uaua", started=8 * DAY),
    ),
    case("a reset chat", Session("p"), Session("c", "p", said="uaua", marks={"_reset_from": "@p"}), since="0.20.6"),
    case("a continuation", compressed("p"), Session("c", "p", said="uaua", started=8 * DAY)),
    case(
        "hidden on purpose under another",
        Session("p"),
        Session("c", "p", said="uaua", cells={"hidden": 1}),
        since="0.20.6",
    ),
    case("its own parent", Session("s", "s", said="uaua")),
    case("its parent is gone", Session("s", "gone", said="uaua")),
    case("no mark", Session("s", said="uaua")),
    case("no JSON", _config("{_delegate_from"), since="0.21.5"),
    case("no config", Session("s", cells={"model_config": None})),
    case("JSON, but no object", _config("[]")),
    case("archived, no mark", Session("s", said="uaua", cells={"archived": 1}), since="0.18.2"),
)
