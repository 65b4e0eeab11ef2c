"""`doctor lineage SESSION`: one conversation with its kin, drawn as a tree."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_doctor.cli.changing import say
from hermes_doctor.cli.options import Output, output_options
from hermes_doctor.cli.types import Target

if TYPE_CHECKING:
    from hermes_doctor.engine.lineage_tree import Matches, Tree
    from hermes_doctor.engine.model import ExitCode
    from hermes_doctor.engine.scan import StoreScan
    from hermes_doctor.host.homes import StoreRef
    from hermes_doctor.store.cells import Key

#: Sessions that an error names.
_NAMED = 5


@click.command(short_help="Draw one conversation as a tree.")
@click.argument("session", metavar="SESSION")
@click.argument("target", required=False, type=Target(), metavar="[TARGET]")
@output_options
@click.pass_context
def lineage(context: click.Context, session: str, target: Path | None, output: Output) -> None:
    """Draw the tree that a session belongs to: how each came from its parent, how it ended, how many messages it holds.

    Beside that: what the checks find of these sessions, and which one hermes opens when SESSION is resumed. Nothing is
    ever changed.

    SESSION is a session's id, or its beginning. TARGET is a state.db or a Hermes home, in each of whose stores the
    session is looked for. With none: this host.

    Exit codes: 0 shown, 2 usage error (there is no such session),
    3 a check failed, 4 a store is damaged, unreadable or missing.
    """
    from hermes_doctor.cli.output import destination
    from hermes_doctor.engine.model import worst
    from hermes_doctor.host.homes import resolve_targets

    refs = resolve_targets([] if target is None else [target])
    matches: dict[StoreRef, Matches] = {}
    codes: list[ExitCode] = []
    for ref in refs:
        codes.append(_look_for(session, ref, matches))
    meant = _meant(session, list(matches.values()))
    if meant is None:
        # What could not be read may be where it is.
        if any(codes):
            context.exit(worst(codes))
        raise click.UsageError(_unknown(session, list(matches.values())))
    with destination(output.file, [ref.path for ref in refs]) as stream:
        found = [drawn for ref in matches if meant in matches[ref].ids and (drawn := _draw(ref, meant, output, codes))]
        if not found and not any(codes):
            raise click.UsageError(f"'{session}' was deleted this very moment.")
        if output.format == "json":
            from hermes_doctor.report.lineage_json import lineage_json
            from hermes_doctor.store.library import library

            if found:
                stream.write(lineage_json(found, library().version, worst(codes)))
        else:
            from hermes_doctor.cli.look import look_for
            from hermes_doctor.report.lineage import lineage_text

            look = look_for(output, stream)
            stream.write("\n".join(lineage_text(scan, tree, look) for scan, tree in found))
            if found and not output.quiet:
                stream.write(_next(found))
    context.exit(worst(codes))


def _look_for(session: str, ref: StoreRef, matches: dict[StoreRef, Matches]) -> ExitCode:
    """Look for the session in one store; say why if it cannot be read."""
    from hermes_doctor.engine.lineage_tree import match
    from hermes_doctor.engine.scan import ScanOptions, scan_store
    from hermes_doctor.report.words import short_path, visible
    from hermes_doctor.store.view import StoreView

    def look(_scan: StoreScan, view: StoreView) -> None:
        matches[ref] = match(view, session)

    result = scan_store(ref, (), ScanOptions(), look=look)
    with result.findings:
        code = result.exit_code(None)
        if code:
            following = result.next_step or "name another state.db, or a Hermes home"
            reason = visible(result.reason or str(result.condition))
            say(f"{short_path(ref.path)} cannot be read: {reason}. Next: {visible(following)}")
        return code


def _draw(ref: StoreRef, session: Key, output: Output, codes: list[ExitCode]) -> tuple[StoreScan, Tree] | None:
    """Scan one store with all checks and take the session's tree out of it."""
    from hermes_doctor.catalogue import catalogue
    from hermes_doctor.engine.lineage_tree import tree_of
    from hermes_doctor.engine.scan import ScanOptions, scan_store
    from hermes_doctor.report.words import visible
    from hermes_doctor.store.view import StoreView

    trees: list[Tree | None] = []

    def look(scan: StoreScan, view: StoreView) -> None:
        trees[:] = [tree_of(view, session, scan.findings)]

    with output.show_progress() as progress:
        result = scan_store(ref, catalogue().checks, ScanOptions(), progress, look)
    with result.findings:
        codes.append(result.exit_code(None))
        for check in result.checks:
            if check.status == "failed":
                say(f"{check.check.name} could not be checked in full: {visible(check.reason or '')}")
        tree = trees[0] if trees else None
        return None if tree is None else (result, tree)


def _meant(name: str, matches: Sequence[Matches]) -> Key:
    """Return the one id that is called so, else the only one that begins so; several are a usage error."""
    from hermes_doctor.report.words import key_text

    exact = [ids for each in matches if each.exact for ids in each.ids]
    begun = list(dict.fromkeys(exact[:1] or [ids for each in matches for ids in each.ids]))
    if len(begun) > 1:
        shown = ", ".join(key_text(each) for each in begun[:_NAMED])
        more = " and more" if len(begun) > _NAMED else ""
        raise click.UsageError(f"'{name}' is the beginning of several sessions: {shown}{more}. Type more of it.")
    return begun[0] if begun else None


def _unknown(name: str, matches: Sequence[Matches]) -> str:
    """Return what a person is told of a name that no session has."""
    from hermes_doctor.report.words import visible

    known = list(dict.fromkeys(each for some in matches for each in some.alike))
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    close = close or [each for each in known if len(name) > 3 and name in each][:3]
    hint = (
        f" Did you mean {' or '.join(map(visible, close))}?" if close else " hermes sessions list shows what there is."
    )
    where = "" if len(matches) == 1 else f" in any of {len(matches)} stores"
    return f"there is no session '{visible(name)}'{where}.{hint}"


def _next(found: Sequence[tuple[StoreScan, Tree]]) -> str:
    """Return what may be typed next, where something was found."""
    names = [finding.check for _scan, tree in found for node in tree.nodes.values() for finding in node.findings]
    return f"\nNext: doctor explain {names[0]} (what it means, and how it is mended)\n" if names else ""
