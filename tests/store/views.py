"""A view of one real store, as a scan would give it to the rules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_doctor.host.settings import NO_SETTINGS, read_settings
from hermes_doctor.store.opening import open_without_trace
from hermes_doctor.store.reader import Reader
from hermes_doctor.store.shape import read_shape
from hermes_doctor.store.view import StoreView


@contextmanager
def view_of(
    path: Path, *, home: Path | None = None, now: float | None = None, held: str | None = None
) -> Iterator[StoreView]:
    """Opens the store; ``held`` and ``now`` override what the host says."""
    store = open_without_trace(path)
    try:
        shape = read_shape(store.connection)
        yield StoreView(
            reader=Reader(store.connection, store.pace, encoding=shape.encoding, rests=store.holding.state != "no"),
            shape=shape,
            now=time.time() if now is None else now,
            held=store.holding.state if held is None else held,
            home=home,
            settings=read_settings(home) if home else NO_SETTINGS,
        )
    finally:
        store.close()
