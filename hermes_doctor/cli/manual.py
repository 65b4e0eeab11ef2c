"""`doctor manual`: the man page, made from the commands, their help and the checks."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hermes_doctor import __version__
from hermes_doctor.cli.options import Output, page_options

if TYPE_CHECKING:
    from hermes_doctor.report.roff import ManPage

#: Options that so many commands have, with the same help, are told once.
_SHARED = 3

_DESCRIPTION = """
hermes-agent keeps every conversation of a host in one SQLite file, `state.db`. `doctor` finds what is wrong in it, says
it plainly, mends it, and can take back whatever it did. Nothing is ever changed without --apply.

A store that somebody has open is not written to unless --live is typed. What a fix is not sure of it leaves, and says
why; what is not safe in every case needs --unsafe. Of a store that is damaged, `doctor rescue` saves what can be read
into a new file.
"""

_MENDS = {"safe": "mends safely", "unsafe": "mends with --unsafe", "none": "only reported"}

_EXIT_CODES = {
    0: "Scan: nothing at or above --fail-on. Plan: nothing to change. Apply and undo: all that was planned is done, or"
    " was gone, and nothing that a chosen fix could mend is left. Rescue: all rows are saved, and none is in doubt.",
    1: "Scan: findings at or above --fail-on. Plan: it would change something. Apply and undo: something that was"
    " chosen is left. Rescue: rows are lost, cut or in doubt.",
    2: "A usage error; also a mistake in config.toml.",
    3: "The doctor failed: a defect, or the machine, as a full disk or a permission.",
    4: "A store is damaged or unreadable, or there is none. The next step is named. Rescue: nothing can be saved.",
    5: "Refused for safety, which only changes and rescues are: somebody has the store open, its schema is newer than"
    " known, there is no room, ...",
    6: "Another doctor is at work on that store.",
    7: "Stopped part-way, by a signal, a time limit or a lock. What was done stands; the same command carries on."
    " A rescue leaves nothing, and starts over.",
}

_ENVIRONMENT = {
    "HERMES_HOME": "The Hermes home of this host, where no TARGET is named. Else ~/.hermes, on Windows"
    " %LOCALAPPDATA%\\hermes.",
    "HERMES_DOCTOR_COMMAND_OPTION": "An option of a command, in capitals and with _ for -, as"
    " HERMES_DOCTOR_SCAN_FAIL_ON=error. It comes before config.toml, and what is typed comes before it. --apply,"
    " --unsafe, --yes and --live are only ever typed.",
    "NO_COLOR": "Without colour, unless --color says otherwise.",
    "COLUMNS": "The width of tables on a terminal.",
    "TMPDIR": "Where temporary copies of stores go.",
    "XDG_CONFIG_HOME, XDG_STATE_HOME": "Where the folders named under FILES are, in place of ~/.config and"
    " ~/.local/state.",
}

_FILES = {
    "~/.hermes/state.db, ~/.hermes/profiles/*/state.db": "The stores of this host. A scan leaves no trace in their"
    " folders.",
    "doctor/doctor.db beside a store": "The journal of all that was changed, by which it is taken back. It holds"
    " private text, as the store does, and is its owner's alone. Only --apply makes it.",
    "doctor/backups/ beside a store": "The copies that were made before a change.",
    "~/.config/hermes-state-doctor/config.toml": "What is set in place of defaults; see CONFIGURATION.",
    "~/.local/state/hermes-state-doctor/": "What the doctor keeps for its user: which runs there were, and what the"
    " last scans found and need for the next. No text of any conversation.",
}

_EXAMPLES = {
    "doctor scan": "What is wrong on this host? Nothing is changed.",
    "doctor explain open-zombies": "What is that, why does it matter, and how safe is its fix?",
    "doctor fix": "What would be mended?",
    "doctor fix --apply": "Mend it.",
    "doctor undo RUN --apply": "Take it back. The name of the run is told by doctor fix and by doctor runs.",
    "doctor rescue ~/.hermes/state.db rescued.db --inspect-only": "What can be saved of a damaged store? Without the"
    " last word it is saved.",
    "doctor scan --json --fail-on error /srv/hermes": "For a script: one JSON document, and exit code 1 for errors.",
}


@click.command(short_help="Show the manual; elsewhere than on a terminal: as a man page.")
@page_options
def manual(output: Output) -> None:
    """Show the manual: all commands, options, checks and exit codes, what is read and where files are.

    On a terminal man(1) shows it, if there is one. Else it comes as the source of a man page:
    doctor manual > doctor.1
    """
    from hermes_doctor.cli.output import destination

    page = man_page()
    with destination(output.file) as stream:
        if not (stream.isatty() and _shown(page)):
            stream.write(page)


def _shown(page: str) -> bool:
    """Have man(1) show the page; return whether it could."""
    import shutil
    import subprocess

    man = shutil.which("man")
    # -l is what man-db knows, and the man of the BSDs does not.
    return man is not None and subprocess.run([man, "-l", "-"], input=page, text=True, check=False).returncode == 0


def man_page() -> str:
    """Return the man page. It depends on nothing but the program: not on settings, nor on what else is installed."""
    from checks import CHECKS
    from hermes_doctor.cli.app import app
    from hermes_doctor.cli.tree import commands
    from hermes_doctor.report.roff import ManPage

    top = click.Context(app, info_name="doctor", **app.context_settings)
    known = [(name, context) for name, context in commands(top) if not context.command.hidden]
    contexts = [context for _, context in known]
    shared, told = _shared(contexts), _told_once(contexts)
    page = ManPage("doctor", 1, f"hermes-state-doctor {__version__}", "User Commands")
    page.section("Name")
    does = (app.help or "").rstrip(".")
    page.paragraph(f"doctor, hermes-state-doctor - {does[:1].lower()}{does[1:]}")
    page.section("Synopsis")
    page.verbatim(" ".join(["doctor", name, *context.command.collect_usage_pieces(context)]) for name, context in known)
    page.section("Description")
    page.prose("\n\n".join([_DESCRIPTION, *told]))
    page.section("Commands")
    before = top
    for name, context in known:
        group = context.parent or top
        # What config says of itself stands under a heading of its own.
        if group not in (top, before) and group.info_name != "config":
            page.part(f"doctor {group.info_name}")
            page.prose("\n\n".join(_paragraphs(group.command)))
        before = group
        _command(page, name, context, shared, told)
    page.section("Options")
    page.paragraph("These mean the same in all commands that have them.")
    for names, text in shared:
        page.item(names, text)
    page.section("Checks")
    page.paragraph("doctor explain CHECK shows the whole page of one.")
    for check in CHECKS:
        page.item(check.name, f"{check.severity.label}, {_MENDS[check.fix.value]}: {check.summary}.")
    for title, listed in (
        ("Exit status", {str(code): text for code, text in _EXIT_CODES.items()}),
        ("Environment", _ENVIRONMENT),
    ):
        page.section(title)
        for item, text in listed.items():
            page.item(item, text)
    page.section("Configuration")
    config = app.get_command(top, "config")
    assert config is not None
    page.prose("\n\n".join(_paragraphs(config)))
    for title, listed in (("Files", _FILES), ("Examples", _EXAMPLES)):
        page.section(title)
        for item, text in listed.items():
            page.item(item, text)
    return page.text()


def _shared(contexts: Sequence[click.Context]) -> list[tuple[str, str]]:
    """Return the options, each with its help, that many commands have alike, in the order in which they first come."""
    seen = Counter(record for context in contexts for record in _options(context))
    return [record for record, times in seen.items() if times >= _SHARED]


def _options(context: click.Context) -> list[tuple[str, str]]:
    """Return a command's options as its help has them."""
    options = (each for each in context.command.get_params(context) if isinstance(each, click.Option))
    return [record for record in (option.get_help_record(context) for option in options) if record is not None]


def _paragraphs(command: click.Command) -> list[str]:
    """Return a command's help in paragraphs."""
    return inspect.cleandoc(command.help or "").split("\n\n")


def _told_once(contexts: Sequence[click.Context]) -> list[str]:
    """Return the paragraphs that many commands' helps have alike."""
    seen = Counter(paragraph for context in contexts for paragraph in _paragraphs(context.command))
    return [paragraph for paragraph, times in seen.items() if times >= _SHARED]


def _command(
    page: ManPage, name: str, context: click.Context, shared: Sequence[tuple[str, str]], told: Sequence[str]
) -> None:
    """Write what a command does and the options that it has for itself, and name the others."""
    words = [word for word in context.command.collect_usage_pieces(context) if word != "[OPTIONS]"]
    page.part(" ".join(["doctor", name, *words]))
    page.prose("\n\n".join(paragraph for paragraph in _paragraphs(context.command) if paragraph not in told))
    options = _options(context)
    for names, text in options:
        if (names, text) not in shared:
            page.item(names, text)
    others = [names.split(",")[-1].split()[0] for names, text in options if (names, text) in shared]
    others.remove("--help")
    if others:
        page.paragraph(f"And {', '.join(others)}: see OPTIONS.")
