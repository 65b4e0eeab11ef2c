"""The kinds of values that the commands take: a duration, a check's name, a target."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_doctor.cli.lazy import did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhdw])", re.ASCII)
_LONGEST = 100 * 365 * 86400.0


class Duration(click.ParamType[float]):
    """A number with a unit (``90m``, ``24h``, ``7d``); comes as seconds. At most a hundred years."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; anything else is a usage error."""
        if isinstance(value, float):
            return value
        matched = _DURATION.fullmatch(str(value).strip().lower())
        if matched is None:
            self.fail(f"'{value}' is no duration. Write a number and a unit, as in 90m, 24h or 7d.", param, ctx)
        seconds = float(matched[1]) * _SECONDS[matched[2]]
        if seconds > _LONGEST:
            self.fail(f"'{value}' is longer than a hundred years.", param, ctx)
        return seconds


class CheckName(click.ParamType[str]):
    """The name of a known check, in kebab-case."""

    name = "check"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; an unknown one is a usage error that says which was probably meant."""
        from hermes_doctor.catalogue import catalogue

        known = catalogue().names
        if str(value) not in known:
            self.fail(f"there is no check '{value}'.{did_you_mean(str(value), known)}", param, ctx)
        return str(value)

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return what there is to choose from, by how bad it is."""
        import textwrap

        from hermes_doctor.catalogue import catalogue

        listed: dict[str, list[str]] = {}
        for check in sorted(catalogue().checks, key=lambda check: -check.severity):
            listed.setdefault(check.severity.label, []).append(check.name)
        blocks = [
            textwrap.fill(
                ", ".join(names), 80, initial_indent=f"  {label:<9}", subsequent_indent=" " * 11, break_on_hyphens=False
            )
            for label, names in listed.items()
        ]
        return "\n".join(["Name one of these:\n", *blocks, "\ndoctor checks says of each what it finds."])

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin so, each with what the check finds."""
        from click.shell_completion import CompletionItem

        from hermes_doctor.catalogue import catalogue

        return [
            CompletionItem(check.name, help=check.summary)
            for check in catalogue().checks
            if check.name.startswith(incomplete)
        ]


class RunName(click.ParamType[str]):
    """The name of a past run, or its beginning. Which one is meant the command finds out."""

    name = "run"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it was typed."""
        return str(value)

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return where the names are to be found."""
        return "doctor runs lists them, newest first."

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return those of the runs known here that begin so and still stand, newest first."""
        import time

        from click.shell_completion import CompletionItem

        from hermes_doctor.cli.run_lookup import past_runs
        from hermes_doctor.engine.run_index import RunIndex
        from hermes_doctor.report.words import ago, short_path

        now = time.time()
        return [
            CompletionItem(past.run.run, help=f"{ago(past.run.at, now)}, {short_path(past.store)}")
            for past in past_runs((), RunIndex.of_user()).runs
            if past.state in ("done", "unfinished") and past.run.run.startswith(incomplete)
        ]


class Target(click.ParamType[Path]):
    """A state.db or a Hermes home. Whether it is there, and what it is, the scan finds out."""

    name = "target"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; an empty one, as an unset variable gives, is a usage error."""
        if not value:
            self.fail("a target is empty. Name a state.db or a Hermes home, or none for this host.", param, ctx)
        return value if isinstance(value, Path) else Path(str(value))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leave it to the shell: a target is a file or a folder."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]
