"""Saying what is damaged in a store's file, what to type, and what would make it worse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hermes_doctor.host.repairs import WORSE, Loss, way_out
from hermes_doctor.store.copies_beside import Copies, copies_beside
from hermes_doctor.store.damage import Damage
from hermes_doctor.store.file_damage import Examination, examine
from hermes_doctor.store.spans import in_words
from hermes_doctor.store.view import StoreView

if TYPE_CHECKING:
    from hermes_doctor.store.wreck import Wreck

#: From this size on, in bytes, it is told that a sample was one.
_LARGE = 1 << 30
#: Names and numbers of pages that are told.
_MOST = 20

Detail = Mapping[str, str | int | float | bool | Sequence[str] | None]


class Said(NamedTuple):
    """One thing to tell: a sentence, and the names and numbers behind it. ``damaged``: else it is for information."""

    summary: str
    detail: Detail
    damaged: bool = True


@dataclass(frozen=True)
class _Store:
    """What is known of the store that is spoken of, and of its copies."""

    path: Path
    schema_version: int | None = None
    profile: str | None = None
    copies: Copies = field(default_factory=Copies)

    def sentence(self, what: str, loss: Loss) -> str:
        """Return what is damaged, with what to type and what not to do."""
        command = way_out(loss, self.path, self.schema_version, self.profile)
        damaged, sound = self.copies.damaged, self.copies.sound
        warned = f", and so does putting back {_listed(damaged)}, damaged as well" if damaged else ""
        first = "stop hermes, then"
        # What is lost since a copy was made is not lost by an index that is made anew.
        if loss is Loss.ROWS:
            copy = f"{_listed(sound)} beside it looks sound" if sound else "look for a sound backup first"
            first = f"{copy}; else stop hermes, and"
        return f"{what}; {first}: {command}; {WORSE[loss]}{warned}"

    def detail(self, loss: Loss, **more: str | int | bool | Sequence[str] | None) -> Detail:
        """Return the same for programs."""
        copies = {"damaged_copies": list(self.copies.damaged), "sound_copies": list(self.copies.sound)}
        command = way_out(loss, self.path, self.schema_version, self.profile)
        return {"damage": loss.name.lower(), **more, "next": command, **{k: v for k, v in copies.items() if v}}


def of_store(view: StoreView, *, again: bool = False) -> list[Said]:
    """Look at the file of an open store and say what is damaged. ``again``: what was found is to be found again."""
    found = examine(view, again=again)
    if not found.damage:
        return list(_not_looked_at(view, found))
    path = view.opened if view.bundle is None else view.bundle.path
    store = _Store(path, view.shape.schema_version, view.profile if view.home else None, copies_beside(path))
    looked_at: dict[str, int | bool | Sequence[str]] = {
        "pages": found.pages,
        "pages_looked_at": found.looked_at,
        "whole_file": found.whole,
    }
    more = "" if found.whole else " (as far as a sample shows: doctor scan --deep looks at all of it)"
    if found.unverified:
        looked_at |= {"unverified": list(found.unverified)}
        more = f" (and {_listed(found.unverified)} could not be checked in full without making hermes wait)"
    return [Said(said.summary + more, {**said.detail, **looked_at}) for said in _of_damage(found.damage, store)]


def _not_looked_at(view: StoreView, found: Examination) -> Iterator[Said]:
    """Say of a store in which no damage was found what of it was not looked at, where that is worth telling."""
    looked_at: Detail = {"pages": found.pages, "pages_looked_at": found.looked_at, "whole_file": found.whole}
    if found.unverified:
        tables = _listed(found.unverified)
        yield Said(
            f"no damage was found, but {tables} could not be checked in full without making hermes wait:"
            " stop it for as long as doctor scan --deep takes",
            {**looked_at, "unverified": list(found.unverified)},
            damaged=False,
        )
    elif not found.whole and view.bundle is not None and view.bundle.size_with_log >= _LARGE:
        seconds = found.deep_seconds
        takes = "" if seconds is None else f", which may take {_span(seconds)}"
        yield Said(
            f"{found.looked_at:,} of its {found.pages:,} pages were looked at, and no damage was found:"
            f" doctor scan --deep looks at all{takes}",
            {**looked_at, "deep_seconds": None if seconds is None else round(seconds)},
            damaged=False,
        )


def _span(seconds: float) -> str:
    return f"about {max(1, round(seconds))} s" if seconds < 90 else f"about {in_words(seconds)}"


def of_wreck(path: Path) -> list[Said]:
    """Look at the file of a store that cannot be opened and say what can be told of it."""
    # Here, and not with the others: a scan needs it of those stores only that cannot be opened.
    from hermes_doctor.store.wreck import look_at_wreck

    try:
        wreck = look_at_wreck(path)
    except OSError:
        # That it is not there, or cannot be read, is said already.
        return []
    store = _Store(path, wreck.schema_version, copies=copies_beside(path))
    said = list(_of_wreck(wreck, store))
    if wreck.damage is not None:
        said += _of_damage(wreck.damage, store)
    return said


def _of_wreck(wreck: Wreck, store: _Store) -> Iterator[Said]:
    if wreck.no_header:
        sound = store.copies.sound
        copy = f"; {_listed(sound)} beside it looks sound, else" if sound else "; where no copy is left"
        what = "its first page is lost, and with it the list of what the file holds"
        yield Said(f"{what}{copy}: {way_out(Loss.HEADER, store.path)}; {WORSE[Loss.HEADER]}", store.detail(Loss.HEADER))
    if wreck.missing or wreck.torn:
        lacks = f"{wreck.missing:,} pages are missing at its end" if wreck.missing else "its last page is cut off"
        if wreck.damage is not None and not wreck.damage.trees:
            lacks += ", and none of them held rows"
        yield Said(
            store.sentence(f"the file is too short: {lacks}", Loss.ROWS),
            store.detail(Loss.ROWS, missing_pages=wreck.missing, ends_within_page=wreck.torn),
        )
    if wreck.twice:
        names = _listed(wreck.twice)
        yield Said(
            store.sentence(f"its schema lists {names} twice, which hides all that the store holds", Loss.SCHEMA),
            store.detail(Loss.SCHEMA, names=wreck.twice[:_MOST]),
        )
    elif wreck.unreadable:
        yield Said(
            store.sentence("its schema, the list of what the file holds, cannot be read", Loss.ROWS),
            store.detail(Loss.ROWS, tables=["sqlite_schema"]),
        )


def _of_damage(damage: Damage, store: _Store) -> Iterator[Said]:
    """Say what is damaged, the worst first."""
    if damage.rows or damage.schema:
        tables = [*damage.rows, *(["sqlite_schema"] if damage.schema else [])]
        pages = damage.pages_of(tables)
        yield Said(
            store.sentence(f"rows of {_listed(tables)} are lost or out of reach{_many(pages)}", Loss.ROWS),
            store.detail(Loss.ROWS, tables=tables, damaged_pages=_numbers(pages), problems=damage.problems),
        )
    if damage.free or damage.shared or damage.unused or damage.unplaced:
        yield _of_pages(damage, store)
    if damage.indexes:
        names = sorted(damage.indexes)
        pages = damage.pages_of(names)
        of = _listed(sorted(set(damage.indexes.values())))
        lost = "no row is lost by it" if damage.rows else "no row is lost"
        what = f"{_listed(names)} of {of} {'is' if len(names) == 1 else 'are'} damaged{_many(pages)}: an index, {lost}"
        yield Said(
            store.sentence(what, Loss.INDEX),
            store.detail(Loss.INDEX, indexes=names, damaged_pages=_numbers(pages), problems=damage.problems),
        )
    if damage.search:
        pages = damage.pages_of(damage.search)
        what = f"the search index is damaged in {_listed(damage.search)}{_many(pages)}"
        lost = "by that " if damage.rows else ""
        yield Said(
            store.sentence(f"{what}: nothing of the conversations is lost {lost}".rstrip(), Loss.SEARCH),
            store.detail(Loss.SEARCH, tables=damage.search, damaged_pages=_numbers(pages), problems=damage.problems),
        )


def _of_pages(damage: Damage, store: _Store) -> Said:
    """Say what is wrong with pages that are no table's, or of which it is not known whose they are."""
    if damage.free:
        # Hermes's repair writes the file anew, without the list.
        loss, what = (
            Loss.INDEX,
            "the list of free pages is damaged: no row is lost yet, the next write may overwrite some",
        )
    elif damage.shared:
        loss = Loss.ROWS
        what = "pages are used in two places at once: nothing is lost yet, the next write to one harms the other"
    elif damage.unused:
        loss, what = Loss.INDEX, f"{damage.unused:,} pages belong to nothing: rows may once have been in them"
    else:
        loss, what = Loss.ROWS, "SQLite finds the file damaged, and does not say where"
    return Said(
        store.sentence(what, loss),
        {**store.detail(loss, problems=damage.problems), "damage": "pages", "damaged_pages": _numbers(damage.shared)},
    )


def _listed(names: Sequence[str]) -> str:
    """Return names as a person lists them, at most three of them."""
    first = list(names[:3])
    rest = len(names) - len(first)
    if rest:
        return f"{', '.join(first)} and {rest:,} more"
    return first[0] if len(first) == 1 else f"{', '.join(first[:-1])} and {first[-1]}"


def _many(pages: Sequence[int]) -> str:
    return f" ({len(pages):,} damaged page{'' if len(pages) == 1 else 's'})" if pages else ""


def _numbers(pages: Iterable[int]) -> list[str]:
    return [str(page) for page in sorted(pages)[:_MOST]]
