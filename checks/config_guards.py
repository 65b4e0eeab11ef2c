"""Settings of `config.yaml` that decide what hermes deletes or hides, and that will surprise.

What it finds
A prune that is about to delete sessions although nobody asked for it, or more of them than the
setting seems to say: the release's own default, a text such as `"false"`, a retention of 0, below
0, or cut down to 0. A config that hermes cannot read, so that its settings are not in force. A
prune or an archiving that never runs because a setting is no number, a limit that is none,
archiving within a day, and a prune that rewrites a file for which there is no room.

Why it matters
What is pruned is gone. From 0.21.5 on hermes prunes unless it is told not to: whoever upgrades
loses what ended more than 90 days ago at the next start. And a config with one wrong line counts as
none at all: an `auto_prune: false` in it is not in force either.

How it decides
By the config of the home, with an administrator's laid over it, and by what each release makes of a
value. What prune would take is counted by the clocks of the store's release, up to 500 sessions;
pinned and archived ones, and those that go on in another session, are left out. It is a warning
where there is something to be lost that the config does not plainly ask for. Where prune has run
within two days, what is due since is its daily work, and nothing is said. Values with `${…}` are
not judged. How long a chat may be to be resumed or exported is a check of its own
(`oversize-chats`).

Fix
None. `hermes config set sessions.auto_prune false` keeps everything; `hermes sessions export` and
pinning save what matters before. A config that cannot be read has to be mended by hand.

Fix safety
Nothing is changed. The config is read, and nothing of it is shown but names of settings and
numbers.

Upstream
Issue 54189 (pruning by default), 101316 (rewriting only when it is worth it), 72156 (a rewrite that
filled the disk), 31188 (settings that a wrong line switches off). Settings and defaults are those
of 0.13.0 to 0.22.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hermes_doctor.engine.model import FILES, Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.guards import config_of, falls_back_on_a_copy, room_for_vacuum
from hermes_doctor.store.hermes_command import hermes
from hermes_doctor.store.pruning import (
    OFF_BY_DEFAULT,
    Due,
    Pruning,
    due,
    due_once_ended,
    pruned_lately,
    pruning,
    whole_days,
)
from hermes_doctor.store.retention import DEFAULT_DAYS
from hermes_doctor.store.view import StoreView

NAME = "config-guards"
KEY = "config.yaml"

#: The first schemas of the releases with automatic archiving (0.20.0) and with limits (0.20.6), and the one of the
#: release that does not read a config with a key given twice (0.22.2).
_ARCHIVES, _LIMITS, _NO_DOUBLES = 25, 26, 31
#: What a person writes to switch something off; as text it is true to hermes.
_NO = frozenset({"false", "no", "off", "0", "n", "none", "null", "disabled"})
_LIMIT_SETTINGS = ("max_resume_messages", "max_export_messages")
_MEBIBYTE = 1 << 20


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    config = config_of(view) if keys is None or KEY in keys else None
    if config is None:
        return
    broken = config.broken
    if broken is None and config.doubled and view.shape.version >= _NO_DOUBLES:
        broken = "a key in it is given twice"
    if broken is not None:
        yield _unreadable(view, broken)
        return
    if config.doubled:
        yield _told("a key in it is given twice: the last one counts, and 0.22.2 does not read such a file")
    if not config.mapping:
        yield _told("the section sessions is no mapping: prune and archiving do not run", setting="sessions")
        return
    values = {name: value for name, value in config.values.items() if not (isinstance(value, str) and "${" in value)}
    unknown = config.values.keys() - values.keys()
    if not unknown & {"auto_prune", "retention_days"}:
        yield from _prune(view, values, pruning(view, values))
    yield from _archiving(view, values)
    yield from _limits(view, values)


def _unreadable(view: StoreView, broken: str) -> Finding:
    """Tell of a config that hermes cannot read: its defaults are in force then, or the last good copy."""
    told = f"hermes cannot read it ({broken}): none of its settings is in force"
    if view.shape.version <= OFF_BY_DEFAULT:
        return _told(told)
    if falls_back_on_a_copy(view):
        return _told(f"hermes cannot read it ({broken}): the last good copy in backups/config is in force")
    taken = due(view, int(DEFAULT_DAYS))
    if not taken.sessions:
        return _told(told)
    return _told(f"{told}, so prune is on: {_takes(taken, int(DEFAULT_DAYS))}", due=taken)


def _prune(view: StoreView, values: Mapping[str, object], prune: Pruning) -> Iterator[Finding]:
    if not prune.on:
        return
    written = values.get("retention_days")
    if prune.days is None:
        yield _told("hermes cannot take it for a number of days: prune never runs", setting="retention_days")
        return
    if not prune.runs:
        yield _told(f"a retention of {prune.days} days is none: prune never runs", setting="retention_days")
        return
    switch = values.get("auto_prune")
    refused = isinstance(switch, str) and switch.strip().lower() in _NO
    odd = prune.days <= 0 or isinstance(written, bool)
    # What is plainly set, or the release's own way, and has run since: daily work, which is not even counted.
    taken = Due(0, more=False) if pruned_lately(view) and not refused and not odd else due(view, prune.days)
    if refused:
        yield _told(f"hermes takes this text for yes: {_takes(taken, prune.days)}", setting="auto_prune", due=taken)
    elif odd:
        cut = "" if written == prune.days and not isinstance(written, bool) else f" is cut down to {prune.days}, which"
        said = f"what it says{cut} means {_days(prune.days)}: {_takes(taken, prune.days)}"
        yield _told(said, setting="retention_days", due=taken)
    elif taken.sessions:
        if prune.chosen:
            yield _told(_takes(taken, prune.days), setting="auto_prune")
        else:
            stop = f"{hermes(view)} config set sessions.auto_prune false stops it"
            said = f"this release prunes unless told otherwise: {_takes(taken, prune.days)}; {stop}"
            yield _told(said, setting="auto_prune", due=taken)
    waiting = due_once_ended(view, prune.days)
    if waiting.sessions:
        yield _told(
            f"prune takes {_counted(waiting)} as soon as they are ended: open, and older than {_days(prune.days)}",
            setting="retention_days",
        )
    room = room_for_vacuum(view)
    if room is not None and room[0] > room[1] and taken.sessions and values.get("vacuum_after_prune", True):
        needs, free = (each / _MEBIBYTE for each in room)
        yield _told(
            f"after a prune hermes rewrites the file: that needs {needs:,.0f} MiB, and {free:,.0f} MiB are free",
            setting="vacuum_after_prune",
        )


def _archiving(view: StoreView, values: Mapping[str, object]) -> Iterator[Finding]:
    switch, days = values.get("auto_archive"), values.get("auto_archive_days", 3)
    if view.shape.version < _ARCHIVES or not switch:
        return
    if isinstance(switch, str) and switch.strip().lower() in _NO:
        yield _told("hermes takes this text for yes: it archives chats that are idle", setting="auto_archive")
    try:
        idle = float(days) if isinstance(days, int | float | str) else None
    except (ValueError, OverflowError):
        idle = None
    if idle is None:
        yield _told("hermes cannot take it for a number of days: it never archives", setting="auto_archive_days")
    elif idle < 1:
        yield _told(f"hermes archives chats idle for {idle:g} days, open ones, too", setting="auto_archive_days")


def _limits(view: StoreView, values: Mapping[str, object]) -> Iterator[Finding]:
    for setting in _LIMIT_SETTINGS if view.shape.version >= _LIMITS else ():
        written = values.get(setting)
        limit = whole_days(written)
        if written is not None and (limit is None or limit < 0):
            yield _told("hermes cannot take it for a limit: 20,000 is in force", setting=setting)


def _takes(taken: Due, days: int) -> str:
    """Say what the next prune deletes."""
    if not taken.sessions:
        return "the next prune deletes nothing yet"
    age = f"ended, and older than {_days(days)}" if days > 0 else "all that have ended"
    return f"the next prune deletes {_counted(taken)}: {age}"


def _days(days: int) -> str:
    return "1 day" if days == 1 else f"{days:,} days"


def _counted(taken: Due) -> str:
    more = "more than " if taken.more else ""
    return f"{more}{taken.sessions:,} session{'' if taken.sessions == 1 else 's'}"


def _told(summary: str, *, setting: str | None = None, due: Due | None = None) -> Finding:
    """Return a finding; a warning where ``due`` names sessions that will be lost."""
    lost = due.sessions if due is not None else 0
    named = "sessions" if setting == "sessions" else f"sessions.{setting}"
    return Finding(
        check=NAME,
        severity=Severity.WARNING if lost else Severity.INFO,
        table=FILES,
        key=KEY,
        session=None,
        summary=summary if setting is None else f"{named}: {summary}",
        detail={**({} if setting is None else {"setting": named}), **({} if due is None else {"sessions": lost})},
    )


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="settings by which hermes deletes or hides more than expected",
    meaning="what the config makes hermes delete, hide or refuse",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=RelationRule(FILES, _find),
)
