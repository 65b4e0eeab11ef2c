"""The user's own settings: ``config.toml``, whose tables are named as commands and set what is not typed.

``[scan]`` with ``fail-on = "error"`` is as if ``doctor scan`` had that for its default; what is typed comes before it,
and so does the environment. A file with a mistake in it is not half used: it is a usage error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hermes_doctor.cli.lazy import did_you_mean
from hermes_doctor.cli.options import TypedOnly
from hermes_doctor.report.words import short_path, visible

_FOLDER = "hermes-state-doctor"

#: What no file may say, of whichever command.
_ONLY_TYPED = ("apply", "unsafe", "yes", "live")


class ConfigError(click.UsageError):
    """A mistake in the file: one line, which names the file and the place in it."""

    def show(self, file: Any = None) -> None:
        """Write the line; how a command is used has nothing to do with it."""
        click.echo(f"doctor: {self.message}", file=file, err=file is None)


def config_file() -> Path:
    """Return where the settings are looked for; ``XDG_CONFIG_HOME`` is honoured. Nothing needs to be there."""
    named = os.environ.get("XDG_CONFIG_HOME", "").strip()
    if named and Path(named).is_absolute():
        folder = Path(named) / _FOLDER
    elif sys.platform in ("win32", "darwin"):
        from platformdirs import user_config_path

        folder = user_config_path(_FOLDER, appauthor=False)
    else:
        # What platformdirs says, too; but every command would pay for its import.
        folder = Path(os.path.expanduser("~/.config")) / _FOLDER  # noqa: PTH111  (pathlib raises without a home)
    return folder / "config.toml"


def defaults(context: click.Context) -> dict[str, Any]:
    """Return what the file sets, as click's ``default_map`` of the group that the context is of.

    Raises ConfigError for anything in it that is not understood, and OSError where it cannot be read.
    """
    path = config_file()
    tables = _read(path)
    return _of_group(path, context, tables, ()) if tables else {}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        owner = path.stat().st_uid
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        # Where this user may not even look there is nothing of theirs: HOME can be somebody else's.
        return {}
    if os.name == "posix" and owner not in (0, os.geteuid()):
        # sudo can leave HOME as it was, and what is set there may name files to write and commands to run.
        click.echo(f"doctor: {short_path(path)} is left alone: it belongs to another user.", err=True)
        return {}
    # Here, and not with the others: most have no such file.
    import tomllib

    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{short_path(path)} is not text in UTF-8. Next: save it as UTF-8") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        told = f"{short_path(path)} is not TOML: {visible(str(error))}. doctor config --help shows how it has to look"
        raise ConfigError(told) from error


def _of_group(path: Path, context: click.Context, tables: Mapping[str, Any], within: tuple[str, ...]) -> dict[str, Any]:
    """Return a group's tables, each as a map from its command's parameters to their values."""
    group = context.command
    assert isinstance(group, click.Group)
    known = group.list_commands(context)
    result: dict[str, Any] = {}
    for name, table in tables.items():
        command = group.get_command(context, name)
        words = (*within, name)
        if not isinstance(table, dict):
            first = ".".join((*within, known[0]))
            raise _wrong(path, within, name, f"stands outside of the tables. Write it under a command's, as [{first}]")
        if command is None:
            raise _wrong(path, words, None, f"is no command's table.{did_you_mean(name, known)}")
        sub = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            result[name] = _of_group(path, sub, table, words)
        else:
            result[name] = _of_command(path, sub, table, words)
    return result


def _of_command(path: Path, context: click.Context, table: Mapping[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    """Return one command's table as a map from its parameters' names to their values."""
    options = settable(context.command)
    result: dict[str, Any] = {}
    for key, value in table.items():
        option = options.get(key)
        if isinstance(option, TypedOnly) or (option is not None and key in _ONLY_TYPED):
            raise _wrong(path, words, key, f"cannot be set: --{key} is only ever typed")
        if option is None:
            known = [name for name, each in options.items() if not isinstance(each, TypedOnly)]
            raise _wrong(path, words, key, f"is no option of doctor {' '.join(words)}.{did_you_mean(key, known)}")
        result[option.name or key] = _value(path, context, option, key, value, words)
    return result


def settable(command: click.Command) -> dict[str, click.Option]:
    """Return a command's options by the names that they are typed by, without the dashes."""
    return {
        max(option.opts, key=len).removeprefix("--"): option
        for option in command.params
        if isinstance(option, click.Option)
    }


def _value(
    path: Path, context: click.Context, option: click.Option, key: str, value: object, words: tuple[str, ...]
) -> object:
    """Return a value as click takes it, once the option's own type has said that it is one."""
    several = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not option.multiple:
        raise _wrong(path, words, key, f"takes one value, {_allowed(option)}, and no list")
    for each in several:
        if option.is_flag != isinstance(each, bool) or not isinstance(each, str | int | float):
            raise _wrong(path, words, key, f"has to be {_allowed(option)}")
        try:
            option.type.convert(each, option, context)
        except click.BadParameter as error:
            raise _wrong(path, words, key, f"is not allowed: {visible(error.message.rstrip('.'))}") from error
    return several if option.multiple else value


def _allowed(option: click.Option) -> str:
    if option.is_flag:
        return "true or false"
    if isinstance(option.type, click.Choice):
        return "one of " + ", ".join(f'"{choice}"' for choice in option.type.choices)
    if isinstance(option.type, click.types.IntParamType):
        return "a whole number"
    examples = {"duration": 'a duration, as "90m", "24h" or "7d"', "check": "the name of a check, or a list of such"}
    return examples.get(option.type.name, "text in quotes")


def _wrong(path: Path, words: tuple[str, ...], key: str | None, reason: str) -> ConfigError:
    table = f" [{visible('.'.join(words))}]" if words else ""
    return ConfigError(f"{short_path(path)}:{table}{'' if key is None else ' ' + visible(key)} {reason}")
