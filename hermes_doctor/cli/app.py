"""The command ``doctor``: its commands by name, each in a file of its own that is imported when it is needed."""

from __future__ import annotations

import click

from hermes_doctor import __version__
from hermes_doctor.cli.lazy import LazyGroup

#: Every command in the order of `doctor --help`. A new command is a module and one line here.
COMMANDS = {
    "scan": "hermes_doctor.cli.scan:scan",
    "fix": "hermes_doctor.cli.fix:fix",
    "undo": "hermes_doctor.cli.undo:undo",
    "compact": "hermes_doctor.cli.compact:compact",
    "rescue": "hermes_doctor.cli.rescue:rescue",
    "runs": "hermes_doctor.cli.runs:runs",
    "history": "hermes_doctor.cli.history:history",
    "mute": "hermes_doctor.cli.mute:mute",
    "unmute": "hermes_doctor.cli.mute:unmute",
    "lineage": "hermes_doctor.cli.lineage:lineage",
    "checks": "hermes_doctor.cli.checks:checks",
    "explain": "hermes_doctor.cli.explain:explain",
    "schedule": "hermes_doctor.cli.schedule:schedule",
    "demo": "hermes_doctor.cli.demo:demo",
    "config": "hermes_doctor.cli.config:config",
    "completion": "hermes_doctor.cli.completion:completion",
    "manual": "hermes_doctor.cli.manual:manual",
    "nightly": "hermes_doctor.cli.nightly:nightly",
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    invoke_without_command=True,
    context_settings={"auto_envvar_prefix": "HERMES_DOCTOR", "help_option_names": ["-h", "--help"]},
    help="Find, explain and mend what is wrong in the state.db of hermes-agent.",
    epilog="Start with: doctor scan",
)
@click.version_option(__version__, prog_name="hermes-state-doctor", message="%(prog)s %(version)s")
@click.pass_context
def app(context: click.Context) -> None:
    """The group; its help is given above. What the user's own file sets becomes the commands' defaults."""
    if context.invoked_subcommand is None:
        from hermes_doctor.cli.welcome import welcome

        welcome()
        return
    from hermes_doctor.cli.config_toml import defaults

    context.default_map = defaults(context)
