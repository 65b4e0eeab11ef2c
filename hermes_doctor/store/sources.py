"""Who makes sessions: the groups of ``sessions.source``, and how long each may lie open without being left behind.

``source`` is free text. A group says who would end such a row, and so whether somebody else may.
"""

from __future__ import annotations

import enum

from hermes_doctor.store.cells import Cell
from hermes_doctor.store.clocks import DAY, HOUR


class Group(enum.StrEnum):
    """Who owns the life of a session.

    WORKER: a process that ends it when it ends itself. SCREEN: a window that stays open for hours. STANDING: open is
    the healthy state, since nobody ever ends or reopens it. RECOVERED: a placeholder of offline recovery.
    MESSAGING: a chat whose gateway may route to it for ever. OTHER: not known.
    """

    WORKER = "worker"
    SCREEN = "screen"
    STANDING = "standing"
    RECOVERED = "recovered"
    MESSAGING = "messaging"
    OTHER = "other"


#: Sources whose rows upstream itself closes when they are stale (`_AUTO_PRUNE_STALE_OPEN_SOURCES`, 0.21.5 on), as
#: far as they belong to one run of a process; oneshot is hidden and run in the same way (0.20.0 on).
WORKERS = frozenset({"cli", "cron", "kanban", "subagent", "tool", "oneshot"})
#: Sources with a start-up sweep of their own, after 6 h (0.20.6 on).
SCREENS = frozenset({"tui", "desktop"})
#: Sources of which no release ends or reopens a row (state-owned upstream all the same: closed past retention).
STANDING = frozenset({"api_server", "acp"})
#: The platforms of the gateway: `gateway.config.Platform` of 0.13.0 to 0.22.2 without api_server and local, and the
#: folders of ``plugins/platforms`` of the same releases.
MESSAGING = frozenset(
    {
        "a2a",
        "bluebubbles",
        "buzz",
        "dingtalk",
        "discord",
        "email",
        "feishu",
        "google_chat",
        "homeassistant",
        "irc",
        "line",
        "matrix",
        "mattermost",
        "msgraph_webhook",
        "ntfy",
        "photon",
        "qqbot",
        "raft",
        "relay",
        "signal",
        "simplex",
        "slack",
        "sms",
        "teams",
        "telegram",
        "webhook",
        "wecom",
        "wecom_callback",
        "weixin",
        "whatsapp",
        "whatsapp_cloud",
        "yuanbao",
    }
)
#: Sources whose rows a living backend with a heartbeat could own (the sweep of 0.21.5 on asks so for tui, desktop,
#: subagent and unknown; the others may be started from within one).
BACKED = frozenset({"tui", "desktop", "subagent", "cli", "tool", "oneshot", "unknown"})

_GROUPS = (
    (WORKERS, Group.WORKER),
    (SCREENS, Group.SCREEN),
    (STANDING, Group.STANDING),
    (frozenset({"recovered"}), Group.RECOVERED),
    (MESSAGING, Group.MESSAGING),
)

#: Idle for so long, a worker's row is left behind where nobody has the store open; else a day must have gone by.
WORKER_LIMIT = HOUR
#: Upstream's own limit for windows (``HERMES_TUI_SESSION_TTL_S``, 0.20.6 on).
SCREEN_LIMIT = 6 * HOUR
#: For everything that may be alive although it is silent.
CAUTIOUS_LIMIT = DAY


def group_of(source: Cell) -> Group:
    """Return the group of a source; OTHER for what is no text or not known."""
    if isinstance(source, str):
        for members, group in _GROUPS:
            if source in members:
                return group
    return Group.OTHER


def idle_limit(group: Group, held: str, retention: float) -> float | None:
    """Return after how many seconds of idleness an open row of that group is left behind; None: never.

    ``held``: ``no``, ``yes`` or ``unknown`` (counts as held). ``retention``: seconds.
    """
    if group is Group.WORKER:
        return WORKER_LIMIT if held == "no" else CAUTIOUS_LIMIT
    if group is Group.SCREEN:
        return SCREEN_LIMIT if held == "no" else None
    if group is Group.RECOVERED:
        return retention
    return CAUTIOUS_LIMIT
