"""Broken files, by a seed: stores that releases wrote and that hold faults, with bytes flipped, cut, moved or put in.

`tests/whole/breaking.py` damages what a disk damages, whole pages, and says what it hit. Here anything may be hit: the
header, the pages of the schema, a cell's length, the log, a journal that was never there.

``python -m tests.whole.odd_files FOLDER SEED`` makes one by hand and says what was done to it.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.whole.damaged import damaged
from tests.whole.odd_stores import Odd

#: Of which releases, and in which journal mode, the stores are.
SOURCES = (("0.13.0", "delete"), ("0.19.0", "wal"), ("0.20.6", "delete"), ("0.22.2", "wal"), ("0.22.2", "delete"))
_HEADER = 100
_PAGE = 4096
#: Places in the header: page size, versions of the format, reserved bytes, fractions, size in pages, list of free
#: pages, schema's cookie and format, encoding, vacuum, and a few of no meaning.
_FIELDS = (16, 17, 18, 19, 20, 21, 22, 23, 28, 31, 32, 36, 39, 40, 44, 47, 52, 56, 59, 64, 92, 96)


def sources(folder: Path, templates: Path | None = None) -> tuple[Path, ...]:
    """The folders of the stores that are broken, made once and kept in ``folder``.

    ``templates``: where other tests may have made them already.
    """
    made = []
    for version, mode in SOURCES:
        home = folder / f"whole-{version}-{mode}"
        if not home.exists():
            damaged(templates or folder / "damaged", home, version, mode)
        made.append(home)
    return tuple(made)


def make(folder: Path, known: Sequence[Path], seed: int) -> Odd:
    """Make the broken store of that seed in a folder that is not there yet."""
    chance = random.Random(seed)
    source = chance.choice(known)
    shutil.copytree(source, folder, symlinks=True)
    odd = Odd(seed, folder / "state.db", [source.name])
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        name, deed = chance.choice(_DEEDS)
        target = chance.choice([odd.store] * 4 + [path for path in folder.glob("state.db-*") if path.is_file()])
        if not target.exists():
            continue
        data = bytearray(target.read_bytes())
        deed(data, chance)
        target.write_bytes(data)
        odd.notes.append(f"{name} in {target.name}")
    for name, chosen in (("state.db-wal", 0.1), ("state.db-shm", 0.15)):
        if chance.random() < chosen and (folder / name).exists():
            (folder / name).unlink()
            odd.notes.append(f"{name} is gone")
    if chance.random() < 0.05:
        magic = bytes.fromhex("d9d505f920a163d7")
        (folder / "state.db-journal").write_bytes(magic + chance.randbytes(chance.choice((20, 600, 5000))))
        odd.notes.append("a journal of nobody's")
    return odd


def _flip(data: bytearray, chance: random.Random, begin: int = 0, end: int | None = None) -> None:
    for _ in range(chance.choice((1, 1, 3, 20))):
        at = chance.randrange(begin, min(end or len(data), len(data))) if len(data) > begin else None
        if at is not None:
            data[at] = chance.choice((0, 0xFF, data[at] ^ (1 << chance.randrange(8)), chance.randrange(256)))


def _flip_header(data: bytearray, chance: random.Random) -> None:
    for place in chance.sample(_FIELDS, chance.choice((1, 2, 4))):
        if place < len(data):
            data[place] = chance.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF, chance.randrange(256)))


def _flip_schema(data: bytearray, chance: random.Random) -> None:
    _flip(data, chance, _HEADER, 6 * _PAGE)


def _flip_page_header(data: bytearray, chance: random.Random) -> None:
    page = chance.randrange(max(1, len(data) // _PAGE))
    begin = page * _PAGE + (_HEADER if page == 0 else 0)
    _flip(data, chance, begin, begin + chance.choice((8, 12, 60)))


def _cut(data: bytearray, chance: random.Random) -> None:
    ends = (0, 1, 15, 16, 99, 100, 101, 511, 512, _PAGE, len(data) - 1)
    del data[chance.choice((*ends, *(chance.randrange(len(data) + 1) for _ in ends))) :]


def _cut_out(data: bytearray, chance: random.Random) -> None:
    begin = chance.randrange(len(data) + 1)
    del data[begin : begin + chance.choice((1, 7, 512, _PAGE))]


def _put_in(data: bytearray, chance: random.Random) -> None:
    begin = chance.randrange(len(data) + 1)
    data[begin:begin] = chance.choice((b"\x00", b"\n", bytes(512), chance.randbytes(_PAGE)))


def _overwrite(data: bytearray, chance: random.Random) -> None:
    begin = chance.randrange(len(data) + 1)
    length = chance.choice((16, 512, _PAGE, 5 * _PAGE))
    filling = chance.choice((bytes(length), b"\xff" * length, chance.randbytes(length), b"SQLite format 3\x00" * 40))
    data[begin : begin + length] = filling[: len(data[begin : begin + length])]


def _swap(data: bytearray, chance: random.Random) -> None:
    pages = len(data) // _PAGE
    if pages > 2:
        one, other = (n * _PAGE for n in chance.sample(range(pages), 2))
        data[one : one + _PAGE], data[other : other + _PAGE] = data[other : other + _PAGE], data[one : one + _PAGE]


def _as_text(data: bytearray, chance: random.Random) -> None:
    """What a transfer does that takes a database for text."""
    data[:] = chance.choice(
        (data.replace(b"\n", b"\r\n"), data.replace(b"\r\n", b"\n"), data.decode("latin-1").encode(), data[:3] + data)
    )


def _grow(data: bytearray, chance: random.Random) -> None:
    data += chance.choice((b"\x00" * 10, bytes(_PAGE), chance.randbytes(3 * _PAGE)))


_DEEDS: tuple[tuple[str, Callable[[bytearray, random.Random], None]], ...] = (
    ("bytes flipped", _flip),
    ("bytes flipped", _flip),
    ("header flipped", _flip_header),
    ("schema flipped", _flip_schema),
    ("a page's header flipped", _flip_page_header),
    ("a page's header flipped", _flip_page_header),
    ("cut off", _cut),
    ("bytes cut out", _cut_out),
    ("bytes put in", _put_in),
    ("overwritten", _overwrite),
    ("pages swapped", _swap),
    ("sent as text", _as_text),
    ("grown", _grow),
)


if __name__ == "__main__":
    _folder, _seed = Path(sys.argv[1]), int(sys.argv[2])
    for line in make(_folder / f"broken-{_seed}", sources(_folder / "sources"), _seed).notes:
        sys.stdout.write(f"{line}\n")
