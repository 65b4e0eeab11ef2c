"""The section ``sessions`` of ``config.yaml`` as it stands there, and whether hermes can read the file at all.

Where settings.py takes only what is plainly understood, this says what is written, so that it can be told what each
release makes of it. Of a file that is no YAML, no mapping or no UTF-8, hermes takes nothing: 0.13.0 to 0.20.6 run on
their defaults then, 0.21.5 on first look for the last good copy in ``backups/config``. A key that is given twice makes
the file unreadable for 0.22.2; to older releases the last one counts (all executed).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_LARGEST = 8 * 1024 * 1024


class ConfigFile(NamedTuple):
    """One ``config.yaml``, the home's own or an administrator's.

    ``there``: whether there is such a file. ``broken``: why hermes cannot read it, None where it can. ``doubled``:
    whether a key is given twice. ``section``: what stands under ``sessions``, be it a mapping or not.
    """

    there: bool = True
    broken: str | None = None
    doubled: bool = False
    section: object = None

    @property
    def values(self) -> dict[str, object]:
        """What the section holds; nothing where it is no mapping."""
        return {str(name): value for name, value in self.section.items()} if isinstance(self.section, dict) else {}


@dataclass(frozen=True)
class SessionsConfig:
    """What a home's ``config.yaml`` says of sessions.

    ``there``, ``broken``, ``doubled``: of the home's own file. ``mapping``: whether the section, if there is one, is a
    mapping as it must be. ``values``: what it holds; an administrator's file is laid over it, as hermes does.
    """

    there: bool = True
    broken: str | None = None
    doubled: bool = False
    mapping: bool = True
    values: Mapping[str, object] = field(default_factory=dict)


def read_sessions_config(home: Path) -> SessionsConfig | None:
    """Read what a home's config says of sessions; never raises. None where it cannot be told what hermes reads.

    That is: a file that we may not read, no file at all but something else of that name, or of absurd size.
    """
    try:
        own, managed = read_config_files(home)
    except (OSError, ValueError):
        return None
    if own.broken:
        return SessionsConfig(broken=own.broken)
    if managed.broken:
        return None
    if own.section and not isinstance(own.section, dict):
        return SessionsConfig(doubled=own.doubled, mapping=False)
    return SessionsConfig(own.there, doubled=own.doubled, values={**own.values, **managed.values})


def has_good_copy(home: Path) -> bool:
    """Whether there is a copy of the last config that hermes could read: 0.21.5 on takes it for a broken one."""
    try:
        return any((home / "backups" / "config").iterdir())
    except OSError:
        return False


def read_config_files(home: Path) -> tuple[ConfigFile, ConfigFile]:
    """Read a home's own config, and an administrator's (``$HERMES_MANAGED_DIR``, else ``/etc/hermes``; 0.17 on).

    Raises OSError where one cannot be read, ValueError where one is no plausible file.
    """
    managed = Path(os.environ.get("HERMES_MANAGED_DIR", "").strip() or "/etc/hermes")
    return _read(home / "config.yaml"), _read(managed / "config.yaml")


def _read(path: Path) -> ConfigFile:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return ConfigFile(there=False)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
        raise ValueError("not a configuration file of plausible size")
    return _parsed(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=32)
def _parsed(path: Path, *_moment: int) -> ConfigFile:
    """Parse a file, once for each state of it: that takes longer than all else that is done with it."""
    import yaml

    doubled = False

    class Loader(yaml.SafeLoader):
        """Notes a key that is given twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
            nonlocal doubled
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            doubled = doubled or len(set(names)) < len(names)
            return dict(super().construct_mapping(node, deep))

    try:
        loaded = yaml.load(path.read_text(encoding="utf-8-sig"), Loader)  # a SafeLoader that notes one thing more
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        return ConfigFile(broken=f"it has an error{line}")
    except (yaml.YAMLError, RecursionError):
        return ConfigFile(broken="it is no YAML")
    except UnicodeDecodeError:
        return ConfigFile(broken="it is no UTF-8")
    except (ValueError, LookupError, AttributeError):
        # The last two are what PyYAML raises for a value that is not of the type that its tag says.
        return ConfigFile(broken="it holds a value that cannot be")
    if loaded is not None and not isinstance(loaded, dict):
        return ConfigFile(broken="its top level is no mapping")
    return ConfigFile(doubled=doubled, section=(loaded or {}).get("sessions"))
