"""A pile of findings that does not grow in memory: past a few thousand it lies in a temporary file."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from typing import Self

from hermes_doctor.engine.model import Finding

#: Bytes of pickled findings that are kept in memory before they go to a temporary file (mode 0600, unnamed).
_IN_MEMORY = 4 << 20


class Findings:
    """Findings in the order in which they were added; may be gone through any number of times, also at once."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        # Closed by close(); the pile outlives any one block.
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self._count = 0
        self._end = 0
        for finding in findings:
            self.add(finding)

    def add(self, finding: Finding) -> None:
        """Put one finding on the pile; one that is being gone through does not see it any more."""
        self._file.seek(self._end)
        pickle.dump(finding, self._file, protocol=pickle.HIGHEST_PROTOCOL)
        self._end = self._file.tell()
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Finding]:
        place, end = 0, self._end
        while place < end:
            # Whoever takes the findings may add some meanwhile, or go through them a second time.
            self._file.seek(place)
            finding: Finding = pickle.load(self._file)
            place = self._file.tell()
            yield finding

    def close(self) -> None:
        """Let the temporary file go."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
