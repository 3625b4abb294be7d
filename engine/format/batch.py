"""A batch: the records of one append, as they lie in the WAL, in the hot tail and on their way to
Parquet.

JSON batches keep their records joined by commas, so that a read needs no loop over records; the
lengths tell where each one ends. Other batches hold one record.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.types import Offset

SEPARATOR: Final = b","


class Batch:
    """Records with consecutive offsets ``first`` to ``last``; ``lengths`` only where there are
    several.
    """

    __slots__ = ("count", "data", "first", "last", "lengths")

    def __init__(
        self, first: Offset, count: int, data: bytes | memoryview, lengths: np.ndarray | None = None
    ) -> None:
        assert count == 1 or lengths is not None
        self.first = first
        self.count = count
        self.last = Offset(first + count - 1)
        self.data = data
        self.lengths = lengths

    def record_lengths(self) -> np.ndarray:
        """Bytes of each record."""
        if self.lengths is not None:
            return self.lengths
        return np.array([len(self.data)], dtype="<u4")

    def ends(self) -> np.ndarray:
        """Where each record ends in ``data``, separators counted."""
        lengths = self.record_lengths().astype(np.int64)
        return np.cumsum(lengths) + np.arange(self.count)

    def skip(self, count: int) -> Batch:
        """The batch without its first ``count`` records."""
        if count == 0:
            return self
        begin = int(self.ends()[count - 1]) + len(SEPARATOR)
        return Batch(
            Offset(self.first + count),
            self.count - count,
            memoryview(self.data)[begin:],
            self.record_lengths()[count:],
        )

    def take(self, count: int) -> Batch:
        """The first ``count`` records, at least one."""
        if count == self.count:
            return self
        end = int(self.ends()[count - 1])
        return Batch(self.first, count, memoryview(self.data)[:end], self.record_lengths()[:count])

    def count_within(self, bytes_max: int) -> int:
        """How many records from the start fit into ``bytes_max``."""
        if len(self.data) <= bytes_max:
            return self.count
        return int(np.searchsorted(self.ends(), bytes_max, side="right"))
