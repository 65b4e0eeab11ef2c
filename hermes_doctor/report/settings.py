"""`doctor config show`: what each option is set to, and by what."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hermes_doctor.report.document import plain
from hermes_doctor.report.layout import Look, Paragraphs, next_lines, table, wrapped
from hermes_doctor.report.words import short_path, visible


class Setting(NamedTuple):
    """One option of one command, and its origin: ``option``, ``environment``, ``config.toml`` or ``default``.

    ``variable``: what it is called in the environment, None where it is only ever typed. ``mistake``: why the value
    cannot be.
    """

    command: str
    option: str
    value: object
    origin: str
    variable: str | None
    mistake: str | None


def settings_json(file: Path, settings: Sequence[Setting], unread: Mapping[str, str]) -> str:
    """Return it as JSON (schemas/config.json); ``unread``: variables that set nothing, and why."""
    document = {
        "file": {"path": file, "exists": file.exists()},
        "settings": [setting._asdict() for setting in settings],
        "unread": [{"variable": variable, "reason": reason} for variable, reason in unread.items()],
    }
    return json.dumps(plain(document), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def settings_text(
    file: Path, settings: Sequence[Setting], unread: Mapping[str, str], look: Look, *, everything: bool
) -> str:
    """Return it for a person; unless ``everything`` is wanted, without what has its default."""
    import io

    stream = io.StringIO()
    out = Paragraphs(stream)
    shown = [each for each in settings if everything or each.origin != "default"]
    state = "" if file.exists() else "   not there, so it sets nothing"
    out.add([look.ink.bold(short_path(file)) + state])
    if shown:
        rows = [[f"{each.command} {each.option}", _value(each.value), _origin(each)] for each in shown]
        out.add([table(["option", "value", "set by"], rows, "lll", look.width)])
    notes = [
        f"{each.command} {each.option} cannot be that: {visible(each.mistake)}." for each in settings if each.mistake
    ]
    notes += [f"{visible(variable)} sets nothing: {reason}." for variable, reason in unread.items()]
    for note in notes:
        out.add(wrapped(note, look.width, "", "  "))
    if not everything and not look.quiet:
        rest = "Everything else has its default." if shown else "Everything has its default."
        out.add([rest, *next_lines(["doctor config show scan (all of one command)"], look.width)])
    return stream.getvalue()


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(visible(str(each)) for each in value) or "-"
    return "-" if value is None else visible(str(value))


def _origin(setting: Setting) -> str:
    if setting.origin == "environment":
        return f"environment ({setting.variable})"
    if setting.variable is None and setting.origin == "default":
        return "default (only ever typed)"
    return setting.origin
