"""The section ``sessions`` of ``config.yaml`` as it stands there, and whether hermes can read the file at all.

Where settings.py takes only what is plainly understood, this says what is written, so that it can be told what each
release makes of it. Of a file that is no YAML, no mapping or no UTF-8, hermes takes nothing: 0.13.0 to 0.20.6 run on
their defaults then, 0.21.5 on first look for the last good copy in ``backups/config``. A key that is given twice makes
the file unreadable for 0.22.2; to older releases the last one counts (all executed).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_LARGEST = 8 * 1024 * 1024


@dataclass(frozen=True)
class SessionsConfig:
    """What a home's ``config.yaml`` says of sessions.

    ``there``: whether there is such a file. ``broken``: why hermes cannot read it, None where it can. ``doubled``:
    whether a key is given twice. ``mapping``: whether the section, if there is one, is a mapping as it must be.
    ``values``: what it holds; an administrator's file is laid over it, as hermes does.
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
        own = _read(home / "config.yaml")
        managed = _read(Path(os.environ.get("HERMES_MANAGED_DIR", "").strip() or "/etc/hermes") / "config.yaml")
    except (OSError, ValueError):
        return None
    if own.broken or managed.broken or not own.mapping or not managed.mapping:
        return own if own.broken or not managed.broken else None
    return SessionsConfig(own.there, None, own.doubled, values={**own.values, **managed.values})


def has_good_copy(home: Path) -> bool:
    """Whether there is a copy of the last config that hermes could read: 0.21.5 on takes it for a broken one."""
    try:
        return any((home / "backups" / "config").iterdir())
    except OSError:
        return False


def _read(path: Path) -> SessionsConfig:
    """Read one file. Raises OSError where it cannot be read, ValueError where it is no plausible file."""
    import yaml

    if not os.path.lexists(path):
        return SessionsConfig(there=False)
    if not path.is_file() or path.stat().st_size > _LARGEST:
        raise ValueError("not a configuration file of plausible size")
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
        return SessionsConfig(broken=f"it has an error{line}")
    except (yaml.YAMLError, RecursionError):
        return SessionsConfig(broken="it is no YAML")
    except UnicodeDecodeError:
        return SessionsConfig(broken="it is no UTF-8")
    except ValueError:
        return SessionsConfig(broken="it holds a value that cannot be")
    if loaded is not None and not isinstance(loaded, dict):
        return SessionsConfig(broken="its top level is no mapping")
    section = (loaded or {}).get("sessions")
    if section is not None and not isinstance(section, dict):
        return SessionsConfig(doubled=doubled, mapping=not section)
    return SessionsConfig(doubled=doubled, values={str(name): value for name, value in (section or {}).items()})
