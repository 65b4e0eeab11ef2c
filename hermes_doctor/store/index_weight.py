"""How heavy the search indexes are, and how much text they serve: told from a few of their own records.

FTS5 keeps two records that tell all of an index: of which segments it consists, and of how many pages each (id 10 of
the ``_data`` table), and how many rows and tokens it holds (id 1). A page is a blob of about 4 KiB. A trigram index
has a token for every character but the last two of each text, so that its tokens are the text's length. Both are read
in no time, where measuring the tables or the texts would read all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import apsw

from hermes_doctor.store.search_index import INDEXES, Layout, layouts
from hermes_doctor.store.varints import varints
from hermes_doctor.store.view import StoreView

#: Bytes of a leaf page with what is around it: FTS5 fills pages of 4,050 bytes, releases set no other size.
_LEAF_BYTES = 4096
#: Ids of the two records in the ``_data`` table.
_AVERAGES, _STRUCTURE = 1, 10
#: Marks, behind the cookie, a structure of the second version (of indexes with deletable contentless rows).
_SECOND_VERSION = b"\xff\x00\x00\x01"
#: Numbers that a segment has more in the second version.
_MORE_IN_SECOND = 5
#: Messages that are looked at for how many bytes a character takes, and from which length on a text is left out.
_SAMPLED, _SAMPLED_BYTES = 100, 20_000

TRIGRAM = "messages_fts_trigram"
_WIDTH = f"""
SELECT sum(length(CAST(content AS BLOB))), sum(length(content))
  FROM messages
 WHERE id IN (SELECT id FROM messages ORDER BY id DESC LIMIT {_SAMPLED})
   AND CASE WHEN typeof(content) <> 'text' OR octet_length(content) > {_SAMPLED_BYTES} THEN 0
            ELSE instr(CAST(content AS BLOB), x'00') = 0 END
"""


class IndexWeight(NamedTuple):
    """How heavy search indexes are, in bytes, as estimated.

    ``by_index``: what each takes up. ``inline``: those that hold texts of their own; ``copies``: these texts, part of
    the weight. ``text``: what the trigram index serves. An inline word index serves the same; an external one also
    what is left out of the trigram index.
    """

    by_index: dict[str, int]
    inline: tuple[str, ...]
    copies: int
    text: int

    @property
    def judged(self) -> int:
        """The bytes that may be compared with the text: of all inline indexes, else of the trigram index alone."""
        return sum(self.by_index[name] for name in self.inline) if self.inline else self.by_index[TRIGRAM]


def weigh_indexes(view: StoreView) -> IndexWeight | None:
    """Weigh the indexes; None where there is no trigram index, or its records cannot be understood."""
    found = layouts(view.shape)
    present = [name for name in INDEXES if found[name] is not Layout.ABSENT]
    if TRIGRAM not in present or not view.shape.has("messages", "id", "content"):
        return None
    try:
        tokens = list(varints(_record(view, TRIGRAM, _AVERAGES)))
        leaves = {name: _leaves(_record(view, name, _STRUCTURE)) for name in present}
    except ValueError:
        return None
    if len(tokens) < 2:
        return None
    text = round((sum(tokens[1:]) + 2 * tokens[0]) * _bytes_a_character(view))
    inline = tuple(name for name in present if found[name] is Layout.INLINE)
    weights = {name: leaves[name] * _LEAF_BYTES + (text if name in inline else 0) for name in present}
    return IndexWeight(weights, inline, text * len(inline), text)


def _record(view: StoreView, index: str, number: int) -> bytes:
    """Read one record of an index. Raises ValueError where there is none."""
    columns = view.reader.value(
        "SELECT count(*) FROM pragma_table_info(?) WHERE name IN ('id', 'block')", (f"{index}_data",)
    )
    if columns != 2:
        raise ValueError(index)
    try:
        record = view.reader.value(f'SELECT block FROM "{index}_data" WHERE id = ?', (number,))
    except apsw.CorruptError:
        # That is said by others.
        record = None
    if not isinstance(record, bytes):
        raise ValueError(index)
    return record


def _leaves(structure: bytes) -> int:
    """Return of how many leaf pages an index consists. Raises ValueError for what is no structure record."""
    second = structure[4:8] == _SECOND_VERSION
    numbers = varints(structure[8 if second else 4 :])
    try:
        levels, segments, _writes = next(numbers), next(numbers), next(numbers)
        leaves = told = 0
        for _ in range(levels):
            _merging, here = next(numbers), next(numbers)
            for _ in range(here):
                _segment, first, last = next(numbers), next(numbers), next(numbers)
                for _ in range(_MORE_IN_SECOND if second else 0):
                    next(numbers)
                leaves += last - first + 1 if last >= first > 0 else 0
                told += 1
    except StopIteration:
        raise ValueError("cut short") from None
    if told != segments or next(numbers, None) is not None:
        raise ValueError("not what it says")
    return leaves


def _bytes_a_character(view: StoreView) -> float:
    """Return how many bytes a character of the newest messages takes, 1 to 4."""
    row = view.reader.row(_WIDTH)
    if row is None or not isinstance(row[0], int) or not isinstance(row[1], int) or not row[1]:
        return 1.0
    return min(max(row[0] / row[1], 1.0), 4.0)
