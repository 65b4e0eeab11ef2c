"""The few settings of hermes that decide how safe a fix is, from ``config.yaml``.

What upstream's prune does to ended sessions hangs on them, so anything that is not plainly understood counts as not
read.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from hermes_doctor.host.config_file import ConfigFile, read_config_files


class Settings(NamedTuple):
    """Settings of the section ``sessions``. None: not set, so the release's default holds (prune off, 90 days).

    ``read``: ``config.yaml`` was there and understood. ``retention_days``: days. ``max_resume_messages``,
    ``max_export_messages``: messages, 0 for no limit (0.20.6 on; 20,000 where not set).
    """

    read: bool
    auto_prune: bool | None = None
    retention_days: float | None = None
    max_resume_messages: int | None = None
    max_export_messages: int | None = None


NO_SETTINGS = Settings(read=False)


def read_settings(home: Path) -> Settings:
    """Read a home's settings, an administrator's laid over them key by key as hermes does; never raises."""
    try:
        own, managed = read_config_files(home)
        if not own.there or not (_is_plain(own) and _is_plain(managed)):
            return NO_SETTINGS
        section = {**own.values, **managed.values}
        return Settings(
            read=True,
            auto_prune=_flag(section.get("auto_prune")),
            retention_days=_days(section.get("retention_days")),
            max_resume_messages=_limit(section.get("max_resume_messages")),
            max_export_messages=_limit(section.get("max_export_messages")),
        )
    except (OSError, ValueError, OverflowError):
        return NO_SETTINGS


def _is_plain(config: ConfigFile) -> bool:
    """Whether a file means the same to every release: a key given twice means one thing to one and not to another."""
    return config.broken is None and not config.doubled and isinstance(config.section, dict | None)


def _flag(value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise ValueError("neither true nor false")


def _days(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number of days")
    if not math.isfinite(value) or value < 0:
        raise ValueError("not a number of days that can be")
    return float(value)


def _limit(value: object) -> int | None:
    """Return a number of messages as hermes takes it (0.20.6 on): what is no number, or below 0, counts as not set."""
    if not isinstance(value, int | float | str):
        return None
    try:
        limit = int(value)
    except (ValueError, OverflowError):
        return None
    return limit if limit >= 0 else None
