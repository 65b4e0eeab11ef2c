"""The few settings of hermes that decide how safe a fix is, from ``config.yaml``.

What upstream's prune does to ended sessions hangs on them, so anything that is not plainly understood counts as not
read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

_LARGEST = 8 * 1024 * 1024


@dataclass(frozen=True)
class Settings:
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
    """Read a home's settings; never raises.

    An administrator's ``config.yaml`` (``$HERMES_MANAGED_DIR``, else ``/etc/hermes``; 0.17 and newer) is laid over
    the home's own key by key, as hermes does.
    """
    try:
        own = _sessions_section(home / "config.yaml")
        managed_folder = Path(os.environ.get("HERMES_MANAGED_DIR", "").strip() or "/etc/hermes")
        managed = managed_folder / "config.yaml"
        section = {**own, **(_sessions_section(managed) if managed.exists() else {})}
        return Settings(
            read=True,
            auto_prune=_flag(section.get("auto_prune")),
            retention_days=_days(section.get("retention_days")),
            max_resume_messages=_limit(section.get("max_resume_messages")),
            max_export_messages=_limit(section.get("max_export_messages")),
        )
    except (OSError, ValueError, OverflowError, RecursionError):
        return NO_SETTINGS


def _sessions_section(path: Path) -> dict[Hashable, object]:
    """Return the section ``sessions`` of a YAML file. Raises OSError, or ValueError for anything odd."""
    import yaml

    if path.stat().st_size > _LARGEST or not path.is_file():
        raise ValueError("not a configuration file of plausible size")

    class Loader(yaml.SafeLoader):
        """A key that is given twice means one thing to one release and another to the next: it is odd."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if len(set(keys)) != len(keys):
                raise ValueError("a key is given twice")
            return super().construct_mapping(node, deep)

    try:
        text = path.read_text(encoding="utf-8-sig")
        loaded = yaml.load(text, Loader)  # a SafeLoader with one more check
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ValueError("the top level is no mapping")
    section = loaded.get("sessions")
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise ValueError("the section is no mapping")
    return section


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
