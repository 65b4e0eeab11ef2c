"""Records are read as SQLite reads them: every type, every length, and nothing is raised whatever lies there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hermes_doctor.rescue.records import layout_of, only_blobs, read_record, signed, varint
from hermes_doctor.store.cells import BadText
from tests.rescue.lab import ask, make, page, pages_of, read, root_of

#: Values of each serial type: 0 to 9, blobs and texts, and the borders between them.
VALUES: list[Any] = [
    None, 0, 1, -1, 2, 127, -128, 128, -129, 32767, -32768, 32768, 8388607, -8388608, 8388608, 2147483647, -2147483648,
    2147483648, 140737488355327, -140737488355328, 140737488355328, 9223372036854775807, -9223372036854775808,
    0.5, -0.0, 1e300, math.inf, -math.inf, 5.0, "", "a", "ä€😀", "a\0b", "x" * 57, "x" * 58, "x" * 8185, "x" * 8186,
    b"", b"\0", b"\xff" * 57, b"y" * 58, b"z" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
def test_every_type_is_read_as_sqlite_reads_it(store: Path, encoding: str) -> None:
    make(store, "CREATE TABLE t(a, b, c)", encoding=encoding)
    import apsw

    connection = apsw.Connection(str(store))
    connection.executemany("INSERT INTO t VALUES ('before', ?, 'behind')", [(value,) for value in VALUES])
    rows = dict(connection.execute("SELECT rowid, b FROM t"))
    connection.close()
    with read(store, encoding=encoding) as pages:
        found: dict[int, Any] = {}
        for number in pages_of(store, "t", "leaf"):
            leaf = pages.leaf(number)
            assert leaf is not None
            assert leaf.whole
            for cell in leaf.cells:
                record = pages.record(number, cell)
                assert record is not None
                assert not record.is_cut
                assert (record.values[0], record.values[2]) == ("before", "behind")
                found[cell.number] = record.values[1]
    assert found.keys() == rows.keys()
    for number, value in found.items():
        # -0.0 and 0.0 are equal, and so are 5 and 5.0.
        assert (repr(value), type(value)) == (repr(rows[number]), type(rows[number]))


@pytest.mark.parametrize(
    ("encoding", "raw"),
    [
        ("UTF-8", b"\xff\xfe"), ("UTF-8", b"a\xc0\x80"), ("UTF-8", b"\xed\xa0\x80"), ("UTF-8", b"\xf4\x90\x80\x80"),
        ("UTF-16le", b"\x00\xd8A\x00"), ("UTF-16be", b"\xd8\x00\x00A"), ("UTF-16le", b"A"),
    ],
)  # fmt: skip
def test_text_that_is_none_keeps_its_bytes(encoding: str, raw: bytes) -> None:
    payload = bytes([2, 13 + 2 * len(raw)]) + raw
    layout = layout_of(payload)
    assert layout is not None
    [value] = read_record(payload, layout, encoding).values
    assert isinstance(value, BadText)
    assert bytes(value) == raw


@given(st.integers(0, (1 << 64) - 1))
@example(127)
@example(128)
@example((1 << 56) - 1)
@example(1 << 56)
def test_integers_of_every_length(number: int) -> None:
    written = _varint(number)
    assert varint(written + b"\xff", 0) == (number, len(written))
    assert varint(b"\x81" * 3 + written, 3) == (number, 3 + len(written))
    assert signed(number) == int.from_bytes(number.to_bytes(8, "big"), "big", signed=True)
    for length in range(len(written)):
        with pytest.raises(IndexError):
            varint(written[:length], 0)


def _varint(number: int) -> bytes:
    """As the file format describes it."""
    if number >> 56:
        head = number >> 8
        return bytes([(head >> 7 * n & 0x7F) | 0x80 for n in range(7, -1, -1)]) + bytes([number & 0xFF])
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(number & 0x7F | 0x80)
    return bytes(reversed(groups))


def test_a_row_that_is_cut_keeps_what_is_whole() -> None:
    payload = bytes([4, 1, 13 + 2 * 6, 12 + 2 * 4]) + b"\x07" + "zwölf".encode() + b"blob"
    layout = layout_of(payload)
    assert layout is not None
    assert layout.bytes == len(payload)
    assert read_record(payload, layout, "UTF-8").values == [7, "zwölf", b"blob"]
    in_the_text = read_record(payload[:8], layout, "UTF-8")
    assert (in_the_text.is_cut, in_the_text.values, in_the_text.partial) == (True, [7], "zw")
    in_the_blob = read_record(payload[:-1], layout, "UTF-8")
    assert (in_the_blob.is_cut, in_the_blob.values, in_the_blob.partial) == (True, [7, "zwölf"], None)
    nothing = read_record(payload[:4], layout, "UTF-8")
    assert (nothing.is_cut, nothing.values) == (True, [])


def test_where_only_blobs_are() -> None:
    layout = layout_of(bytes([5, 13 + 2 * 3, 12 + 2 * 4, 0, 9]) + b"abcDDDD")
    assert layout is not None
    assert [only_blobs(layout, begin) for begin in (7, 8, 11)] == [False, True, True]
    text_last = layout_of(bytes([3, 12 + 2 * 4, 13 + 2 * 3]) + b"DDDDabc")
    assert text_last is not None
    assert not only_blobs(text_last, 9)


@given(st.binary(max_size=80), st.sampled_from(["UTF-8", "UTF-16le", "UTF-16be", "nonsense"]))
@example(b"\x80\x01", "UTF-8")
@example(b"\x81", "UTF-8")
@example(b"\x02\xff", "UTF-8")
@example(b"\x0a" + b"\xff" * 9, "UTF-8")
@example(b"\x02\x0a", "UTF-8")
@example(b"", "UTF-8")
def test_whatever_lies_there_nothing_is_raised(payload: bytes, encoding: str) -> None:
    layout = layout_of(payload)
    if layout is not None:
        assert len(payload) >= layout.header_bytes
        record = read_record(payload, layout, encoding)
        assert record.is_cut == (len(record.values) < len(layout.types))
        assert record.is_cut or len(payload) >= layout.bytes


@given(st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 20, 31]), max_size=20), st.data())
def test_a_record_that_is_shorter_gives_the_same_values_or_fewer(kinds: list[int], data: st.DataObject) -> None:
    header = bytes([len(kinds) + 1, *kinds])
    layout = layout_of(header + bytes(300))
    assert layout is not None
    body = data.draw(st.binary(min_size=layout.bytes - len(header), max_size=layout.bytes - len(header)))
    whole = read_record(header + body, layout, "UTF-8")
    assert not whole.is_cut
    cut = read_record((header + body)[: data.draw(st.integers(len(header), layout.bytes))], layout, "UTF-8")
    assert repr(cut.values) == repr(whole.values[: len(cut.values)])


def test_long_headers_are_not_kept_in_mind(store: Path) -> None:
    from hermes_doctor.rescue import records

    before = records._layout.cache_info().currsize
    for n in range(20):
        layout_of(b"\x87\x6a" + bytes([n % 9]) * 1000)
    assert records._layout.cache_info().currsize == before


def test_the_first_page_has_its_rows_behind_its_header(store: Path) -> None:
    make(store, "CREATE TABLE t(a)")
    assert root_of(store, "t") == 2
    assert page(store, 1)[100] == 0x0D
    assert len(ask(store, "SELECT 1 FROM sqlite_schema")) == 1
    with read(store) as pages:
        leaf = pages.leaf(1)
        assert leaf is not None
        record = pages.record(1, leaf.cells[0])
        assert record is not None
        assert record.values == ["table", "t", "t", 2, "CREATE TABLE t(a)"]
