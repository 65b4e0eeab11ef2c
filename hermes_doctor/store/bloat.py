"""What there is to be told about a store's own slack, in the words that go with its host and its release."""

from __future__ import annotations

from hermes_doctor.host.upstream import for_heavy_index, quoted
from hermes_doctor.store.compaction import Extent, Room, extent, room_for_vacuum
from hermes_doctor.store.hermes_command import hermes
from hermes_doctor.store.view import StoreView


def extent_of(view: StoreView) -> Extent | None:
    """Measure the store; None where only a connection is looked through."""
    if view.bundle is None:
        return None
    return extent(view.reader.connection, view.bundle.size, view.bundle.wal_bytes or 0)


def rooms_of(view: StoreView, size: int) -> tuple[Room, ...]:
    """Return the room that a VACUUM of so many bytes needs; none where it cannot be told."""
    if view.bundle is None:
        return ()
    try:
        return tuple(room_for_vacuum(view.bundle.real_path, size))
    except OSError:
        return ()


def compact_command(view: StoreView) -> str:
    """Return what to type to have the store's free pages given back."""
    return "doctor compact" if view.bundle is None else f"doctor compact {quoted(view.bundle.path)}"


def optimize_command(view: StoreView, *, inline: bool) -> str:
    """Return what to type to have a heavy search index made lighter."""
    return for_heavy_index(hermes(view), view.shape.schema_version, inline=inline)
