"""Chats of one profile in another profile's store, and a chosen profile that is not there.

What it finds
Sessions whose key (`agent:<profile>:…`) or label (`profile_name`) names another profile than the
one whose store they are in; sessions that two stores of the home have both; and an `active_profile`
that names a profile that does not exist.

Why it matters
Hermes looks for a chat in the store of the profile that its key names: a row in another store is
never found, and the chat begins anew. A label of another profile hides the row from lists of
sessions. A move between stores that was broken off leaves a session in both, and what is said later
is in one of them only. With an `active_profile` that is not there hermes refuses to start.

How it decides
By the place of the store: the root's is `default`, the others lie in `profiles/<name>`. A session
without a key or without a label is normal, and so is the key `agent:main:…` in a named profile's
store, as long as the label does not contradict: a gateway that serves one profile alone writes it.
A label alone counts where it names a profile that exists. Up to 0.20.0 one store holds the chats of
all profiles that a gateway serves: nothing is said of these. Two sessions are the same when id and
start are. Of two stores the newest 500 sessions each are compared, with `doctor scan --deep` all.

Fix
None. `hermes sessions repair-profiles` (0.21.5 or newer) shows for all stores what it would do; it
does so with `--apply`, with the gateways stopped. It takes the label of a healthy chat with the key
`agent:main:…` in a named profile's store for wrong: look through its list first, and say what to do
with those by `--legacy-main rekey` or `--legacy-main move`.

Fix safety
Nothing is changed. The other stores are read, and nothing is left beside them.

Upstream
Issues 40344, 48183, 59566 (chats in the wrong profile's store), 119955 (a move that leaves copies
in both), 113884 and 102157 (`agent:main` in a named profile's store), 99222 (rows without a label).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import FILES, Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.hermes_command import hermes
from hermes_doctor.store.profiles import (
    ACTIVE_PROFILE,
    DEFAULT,
    label_of,
    missing_active_profile,
    owner,
    profile_in_key,
    profiles,
    shared_with_others,
    suspects,
)
from hermes_doctor.store.view import StoreView

NAME = "crossed-profiles"

#: So many of the sessions that two stores share are named.
_NAMED = 5


def _crossed(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    own, there = owner(view), view.once(profiles)
    for session, session_key, profile_name in suspects(view, keys):
        said = _what_is_wrong(profile_in_key(session_key), label_of(profile_name), own, there)
        if said is not None:
            yield _finding(
                "sessions",
                session,
                f"{said}: {hermes(view)} sessions repair-profiles shows the way (0.21.5 or newer)",
                session=session,
                detail={"in_key": profile_in_key(session_key), "label": label_of(profile_name), "store": own},
            )


def _what_is_wrong(in_key: str | None, label: str | None, own: str | None, there: frozenset[str]) -> str | None:
    """Say what is wrong with a session of a store; ``own``: whose store it is, None where that is not known."""
    if in_key is None:
        if own is None or label in (None, own) or label not in there:
            return None
        return f"it is labelled for profile {label}, and this is the store of {own}"
    if in_key == DEFAULT and own != DEFAULT:
        # A gateway that serves one profile alone writes this key: then only the label tells.
        if own is None or label in (None, own):
            return None
        return f"its key and its label name another profile ({label}) than the store's ({own})"
    if own is not None and in_key != own:
        gone = "" if in_key in there else ", which is not there"
        return f"its key is of profile {in_key}{gone}, and this is the store of {own}"
    if label not in (None, in_key):
        return f"its key is of profile {in_key}, its label of {label}"
    return None


def _home(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    if keys is None or ACTIVE_PROFILE in keys:
        missing = missing_active_profile(view)
        if missing is not None:
            yield _finding(
                FILES,
                ACTIVE_PROFILE,
                "it names a profile that is not there, so hermes refuses to start:"
                f" {hermes(view)} -p default profile use default",
                detail={"characters": len(missing)},
            )
    for shared in shared_with_others(view):
        if keys is None or shared.name in keys:
            count = len(shared.sessions)
            at_least = "at least " if shared.sampled else ""
            sessions = "1 session is" if count == 1 else f"{count:,} sessions are"
            yield _finding(
                FILES,
                shared.name,
                f"{at_least}{sessions} in the store of profile {shared.profile} as well:"
                f" {hermes(view)} sessions repair-profiles shows which are in the wrong one (0.21.5 or newer)",
                detail={
                    "sessions": count,
                    "profile": shared.profile,
                    "some": [each if isinstance(each, str) else repr(each) for each in shared.sessions[:_NAMED]],
                },
            )


def _finding(
    table: str, key: Key, summary: str, *, session: Key = None, detail: dict[str, str | int | list[str] | None]
) -> Finding:
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        table=table,
        key=key,
        session=session,
        summary=summary,
        detail=detail,
    )


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="chats of one profile in another profile's store",
    meaning="chats that their own profile does not find",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=(RelationRule("sessions", _crossed), RelationRule(FILES, _home)),
)
