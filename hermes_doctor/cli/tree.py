"""The commands as one list, for what tells of all of them: settings and the manual."""

from __future__ import annotations

from collections.abc import Iterator

import click

from hermes_doctor.cli.lazy import WithMore


def commands(context: click.Context) -> Iterator[tuple[str, click.Context]]:
    """Give each command below a group, as it is typed (``runs forget``), with a context of it; not the groups."""
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None:
            yield from _of(name, command, context)


def _of(name: str, command: click.Command, parent: click.Context) -> Iterator[tuple[str, click.Context]]:
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    if isinstance(command, click.Group):
        for below, found in commands(context):
            yield f"{name} {below}", found
        return
    yield name, context
    if isinstance(command, WithMore):
        for below, more in command.more().items():
            yield from _of(f"{name} {below}", more, parent)
