"""The private copy of a damaged store, and which pages are right: those of the file alone, or with its log.

A log says itself whether it is whole, not whether it is this file's: one that was put beside an older or newer copy of
its file is replayed by SQLite without a question, and ruins it. So both are looked at.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import apsw

from hermes_doctor.host.bundle import Bundle, copy_file, sidecar
from hermes_doctor.host.wal_files import FRAME_HEADER_BYTES, LOG_HEADER_BYTES, read_log
from hermes_doctor.rescue.account import LostRange
from hermes_doctor.rescue.pages import HEADER_BYTES, MAGIC, Pages, encoding_of
from hermes_doctor.store.connecting import connect
from hermes_doctor.store.integrity import Stop, ask
from hermes_doctor.store.opening import copy_bundle

_LOG_MAGICS = (0x377F0682, 0x377F0683)
_PAGE_SIZES = tuple(1 << power for power in range(9, 17))
#: The pages by which the size of a page is told where nothing says it.
_LOOKED_AT = 400
#: SQLite's own choice.
_DEFAULT_PAGE = 4096
_LINES = 20


@dataclass
class Copy:
    """A private copy as it is read from now on.

    ``connection``: SQLite's, where it can open the copy at all. ``sound``: SQLite finds nothing wrong with it.
    ``header``: its first page begins as it should. ``notes``: what a person has to know of the choice. ``behind``: the
    pages as the log has them behind a frame that is broken, where hermes went on; None where there is no such part, and
    ``behind_numbers``: which pages these are.
    """

    store: Path
    pages: Pages
    connection: apsw.Connection | None
    sound: bool
    header: bool
    notes: list[str] = field(default_factory=list)
    behind: Pages | None = None
    behind_numbers: tuple[int, ...] = ()

    def close(self) -> None:
        """Let go of the files."""
        if self.behind is not None:
            self.behind.close()
        if self.connection is not None:
            self.connection.close()
        self.pages.close()


def make_copy(bundle: Bundle, folder: Path, told: Callable[[int], object], stop: Stop, stack: ExitStack) -> Copy:
    """Copy a store and its sidecars into a folder, and find out which pages are right; the stack closes it.

    ``told`` hears of the bytes that were copied; what it raises ends the copying. ``stop``: as for `ask`.
    Raises what `copy_bundle` does.
    """
    store = copy_bundle(bundle, folder, held=False, told=told)
    journal, log = sidecar(store, "-journal"), sidecar(store, "-wal")
    notes: list[str] = []
    if journal.exists() and bundle.journal_hot:
        _roll_back(bundle, store, told, stop, notes)
    copy = _opened(store, stop, notes, stack)
    # With the log of another file it would not be sound.
    if copy.sound or _size(log) <= LOG_HEADER_BYTES or _log_belongs(store, stop, notes):
        return copy
    copy.close()
    log.unlink()
    return _opened(store, stop, notes, stack)


def _roll_back(bundle: Bundle, store: Path, told: Callable[[int], object], stop: Stop, notes: list[str]) -> None:
    """Have SQLite undo in the copy what a transaction that was cut off did, unless that ruins the file."""
    before = _problems(store, "immutable=1", stop)
    if _problems(store, "mode=rw", stop) <= before:
        return
    notes.append(
        "The rollback journal beside the store does not fit it (with it more of the file would be damaged): it was "
        "left aside, so what was being written when hermes ended may be there in part"
    )
    for file in (store, sidecar(store, "-journal")):
        file.unlink(missing_ok=True)
    copy_file(bundle.real_path, store, told)


def _log_belongs(store: Path, stop: Stop, notes: list[str]) -> bool:
    """Whether the log is that of the file: with it, SQLite finds no more wrong than without."""
    with_it = _problems(store, "mode=rw", stop)
    if not with_it:
        return True
    alone = _problems(store, "immutable=1", stop)
    if with_it > alone or (with_it == alone and _rows_in_place(store, log=False) > _rows_in_place(store, log=True)):
        notes.append(
            "The write-ahead log beside the store is not of this file (with it more of the file would be damaged): it "
            "was left aside. Keep it: what hermes wrote last may be in it"
        )
        return False
    return True


def _problems(store: Path, options: str, stop: Stop) -> int:
    """Return how much SQLite finds wrong with a file, as far as it counts: more than that where it cannot open it."""
    try:
        connection = connect(store, options)
    except apsw.Error:
        return _LINES + 1
    try:
        connection.drop_modules(None)
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        connection.pragma("writable_schema", True)
        answer = ask(connection, _LINES, how="quick_check", stop=stop)
        return len(answer.problems) if answer.finished else _LINES + 1
    except apsw.Error:
        return _LINES + 1
    finally:
        connection.close()


def _rows_in_place(store: Path, *, log: bool) -> int:
    """Return how many rows of messages and sessions the trees lead to."""
    from hermes_doctor.rescue.schema import forms_of, read_entries
    from hermes_doctor.rescue.trees import TreeWalk

    pages, _ = _pages(store, log=log)
    with pages:
        lost: list[LostRange] = []
        entries = read_entries(pages, lost)
        return sum(
            len(found.cells)
            for entry, form in forms_of(entries)
            if entry.name in ("messages", "sessions")
            for found in TreeWalk(pages, entry.root, form)
        )


def _opened(store: Path, stop: Stop, notes: list[str], stack: ExitStack) -> Copy:
    connection: apsw.Connection | None = None
    sound = False
    try:
        connection = connect(store, "mode=rw")
        connection.drop_modules(None)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        answer = ask(connection, _LINES, how="quick_check", stop=stop)
        sound = answer.finished and not answer.problems
    except apsw.Error:
        if connection is not None:
            connection.close()
        connection = None
    wal = sidecar(store, "-wal")
    has_log = _size(wal) > LOG_HEADER_BYTES
    pages, frames = _pages(store, log=has_log)
    header = pages.page(1)[: len(MAGIC)] == MAGIC
    copy = Copy(store, pages, connection, sound, header, notes)
    stack.callback(copy.close)
    if has_log:
        behind = _frames(wal, pages.size, frames, None)
        if behind:
            copy.behind, copy.behind_numbers = pages.with_newer(behind), tuple(sorted(behind))
    return copy


def _pages(store: Path, *, log: bool) -> tuple[Pages, int]:
    """Read a copy by hand from now on, with what its log has of it; and say how many frames of the log that is.

    SQLite has proved the sums of the log's frames when it opened the copy, and says in the log's index how far they
    hold. Where it could not open it, they are proved here.
    """
    with store.open("rb") as file:
        header = file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0")
    wal = sidecar(store, "-wal")
    size = _page_size(header) or (_page_size_of_log(wal) if log else None)
    frames = _known_frames(store, size) if log and size is not None else 0
    newer = _frames(wal, size, 0, frames) if frames and size is not None else {}
    if 1 in newer:
        with wal.open("rb") as file:
            file.seek(newer[1])
            header = file.read(HEADER_BYTES)
    if size is None:
        size = _guessed_page_size(store)
    reserved = header[20] if header.startswith(MAGIC) and header[20] < size // 4 else 0
    return Pages(store, size, reserved, encoding_of(header), newer), frames


def _page_size(header: bytes) -> int | None:
    raw = int.from_bytes(header[16:18], "big")
    size = 65536 if raw == 1 else raw
    return size if header.startswith(MAGIC) and size in _PAGE_SIZES else None


def _page_size_of_log(log: Path) -> int | None:
    with log.open("rb") as file:
        header = file.read(LOG_HEADER_BYTES)
    size = int.from_bytes(header[8:12], "big")
    return size if int.from_bytes(header[:4], "big") in _LOG_MAGICS and size in _PAGE_SIZES else None


def _known_frames(store: Path, size: int) -> int:
    """Return how many frames of the log SQLite goes by; where it cannot open the copy, how many are proved by sums."""
    with suppress(apsw.Error):
        connection = connect(store, "mode=rw")
        try:
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
            known = read_log(store)
        finally:
            connection.close()
        if known is not None and known.index.page_size == size:
            return known.index.frames
    return proved_frames(sidecar(store, "-wal"), size)


def proved_frames(log: Path, size: int) -> int:
    """Return how many frames of a log have the sums that it gives, from the first on, as SQLite's format has it."""
    with log.open("rb") as file:
        header = file.read(LOG_HEADER_BYTES)
        if len(header) < LOG_HEADER_BYTES or int.from_bytes(header[:4], "big") not in _LOG_MAGICS:
            return 0
        # The lowest bit says in which order of bytes the sums are made.
        order = ">" if header[3] & 1 else "<"
        sums = _add((0, 0), header[:24], order)
        if header[24:32] != struct.pack(">2I", *sums):
            return 0
        for frame in count():
            head, data = file.read(FRAME_HEADER_BYTES), file.read(size)
            if len(data) < size or head[8:16] != header[16:24]:
                return frame
            sums = _add(_add(sums, head[:8], order), data, order)
            if head[16:24] != struct.pack(">2I", *sums):
                return frame
    raise AssertionError("a log has an end")


def _add(sums: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second


def _frames(log: Path, size: int, first: int, end: int | None) -> dict[int, int]:
    """Return where the last copy of each page lies in the log, of those frames that a transaction's end follows.

    ``first`` and ``end``: the frames that are looked at, counted from 0; None for all that follow.
    """
    newer: dict[int, int] = {}
    waiting: dict[int, int] = {}
    with log.open("rb") as file:
        salts = file.read(LOG_HEADER_BYTES)[16:24]
        for frame in count(first) if end is None else range(first, end):
            place = LOG_HEADER_BYTES + frame * (FRAME_HEADER_BYTES + size) + FRAME_HEADER_BYTES
            file.seek(place - FRAME_HEADER_BYTES)
            header = file.read(FRAME_HEADER_BYTES)
            # What was left of an earlier round has other salts.
            if header[8:16] != salts or place + size > _size(log):
                break
            waiting[int.from_bytes(header[:4], "big")] = place
            if header[4:8] != bytes(4):
                newer.update(waiting)
                waiting.clear()
    newer.pop(0, None)
    return newer


def _guessed_page_size(store: Path) -> int:
    """Return the size of a page by what the file holds: the smallest in which most pages are whole ones of a table.

    In pages of twice the size every other page looks whole, too; in those of half the size none does.
    """
    whole: Counter[int] = Counter()
    for size in _PAGE_SIZES:
        with Pages(store, size) as pages:
            step = max(1, pages.count // _LOOKED_AT)
            looked = 0
            for number in range(2, pages.count + 1, step):
                page = pages.leaf(number) or pages.branch(number)
                looked += not pages.is_zeros(number)
                whole[size] += page is not None and page.whole
            if looked:
                whole[size] = whole[size] * 1000 // looked
    best = max(whole.values(), default=0)
    return next((size for size in _PAGE_SIZES if best and whole[size] * 2 >= best), _DEFAULT_PAGE)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
