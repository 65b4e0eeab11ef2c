"""What a rule is given to look at: the store, its shape, the present time, and what the host says around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hermes_doctor.host.bundle import Bundle
from hermes_doctor.host.settings import NO_SETTINGS, Settings
from hermes_doctor.store.cells import Cell
from hermes_doctor.store.reader import Reader, Values
from hermes_doctor.store.shape import Shape

T = TypeVar("T")


@dataclass
class StoreView:
    """A store under examination.

    ``now``: seconds since the epoch. ``held``: ``no``, ``yes`` or ``unknown``: whether somebody has the
    store open. ``home``: its Hermes home, None where the store stands alone, so that references from outside
    cannot be seen. ``idle_floor``: seconds; raises a check's own idle threshold (``--idle``), never lowers it.
    ``bundle``: its files as they were found before it was opened, None where only a connection is looked through.
    ``deep``: the whole file is to be read, however long that takes (``--deep``). ``damage``: the errors of pages that
    could not be read so far.
    """

    reader: Reader
    shape: Shape
    now: float
    held: str = "unknown"
    home: Path | None = None
    profile: str = "default"
    idle_floor: float = 0.0
    settings: Settings = NO_SETTINGS
    bundle: Bundle | None = None
    deep: bool = False
    damage: list[Exception] = field(default_factory=list)
    _memo: dict[Callable[..., object], object] = field(default_factory=dict, init=False)
    _kept: dict[Callable[..., object], object] = field(default_factory=dict, init=False)

    @property
    def opened(self) -> Path:
        """The file that is read: the store's own, or a private copy of it."""
        try:
            return Path(self.reader.connection.filename)
        except UnicodeDecodeError:
            # A path that is no text; that of a private copy is one.
            assert self.bundle is not None, "whoever opened it so has looked at its files"
            return self.bundle.real_path

    def rows(self, sql: str, values: Sequence[Cell] = ()) -> list[Values]:
        """Run one short statement and give all its rows."""
        return list(self.reader.rows(sql, values))

    def once(self, make: Callable[[StoreView], T]) -> T:
        """Return ``make(view)``, computed when it is first asked for: evidence that several rules share."""
        if make not in self._memo:
            self._memo[make] = make(self)
        return self._memo[make]  # type: ignore[return-value]  # keyed by the very function that made it

    def keep(self, make: Callable[[StoreView], T], made: T) -> T:
        """Let `once` return this for ``make``, even after `forget`: what is too much to be read a second time."""
        self._memo[make] = self._kept[make] = made
        return made

    def forget(self) -> None:
        """Drop what `once` keeps, but for what it was told to `keep`: the store may have changed."""
        self._memo = dict(self._kept)

    def idle_limit(self, seconds: float) -> float:
        """Return a check's own threshold in seconds, raised to the user's ``--idle`` where that is longer."""
        return max(seconds, self.idle_floor)
