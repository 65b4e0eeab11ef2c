"""A group that imports a command's module when the command is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping

import click


class LazyGroup(click.Group):
    """A group whose commands are named as ``module:attribute`` and listed in the order given."""

    def __init__(self, *, lazy: Mapping[str, str], **settings: object) -> None:
        # click.Group's own keywords, handed through unchanged.
        super().__init__(**settings)  # type: ignore[arg-type]  # click checks them
        self.lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names in the order in which a newcomer needs them."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, None where there is none of that name."""
        target = self.lazy.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is a usage error that says which was probably meant."""
        name = args[0]
        if name not in self.lazy and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"there is no command '{name}'.{did_you_mean(name, self.lazy)}", ctx)
        return super().resolve_command(ctx, args)


class WithMore(click.Command):
    """A command that is another one where its first word says so."""

    def more(self) -> dict[str, click.Command]:
        """Return these others, by that word."""
        return {}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean …?" for the known words that look alike, else the list of all of them."""
    # Here, and not with the others: every start would pay for it.
    import difflib

    names = list(known)
    spelled = word.lower().replace("_", "-")
    # One that is nearly the same is the one; else those that look somewhat alike.
    close = difflib.get_close_matches(spelled, names, n=1, cutoff=0.85)
    close = close or difflib.get_close_matches(spelled, names, n=3, cutoff=0.5)
    if close:
        return f" Did you mean {' or '.join(close)}?"
    return f" Known: {', '.join(names)}." if names else ""
