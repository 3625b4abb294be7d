"""The hot tail: records that are durable in the WAL and not yet in the table."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.format.batch import Batch
    from engine.types import Offset


class Tail:
    """Batches in offset order. Only the event loop changes it; a batch itself never changes."""

    __slots__ = (
        "_batches",
        "_lasts",
        "appended_bytes",
        "appended_records",
        "payload_bytes",
        "records",
    )

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._lasts: list[Offset] = []
        self.payload_bytes = 0
        self.records = 0
        # Never lowered: who looks twice knows what came in between.
        self.appended_bytes = 0
        self.appended_records = 0

    @property
    def first(self) -> Offset | None:
        """The oldest record that is not committed; None where all are."""
        return self._batches[0].first if self._batches else None

    def append(self, batch: Batch) -> None:
        """Take in a batch that has become durable."""
        assert not self._lasts or batch.first > self._lasts[-1]
        self._batches.append(batch)
        self._lasts.append(batch.last)
        size = len(batch.data)
        self.payload_bytes += size
        self.records += batch.count
        self.appended_bytes += size
        self.appended_records += batch.count

    def batches(self) -> list[Batch]:
        """All of them, as a list of the caller's own."""
        return list(self._batches)

    def after(self, position: Offset) -> Sequence[Batch]:
        """Batches that hold records after ``position``; the first may begin before it."""
        begin = bisect_right(self._lasts, position)
        return self._batches[begin:]

    def drop_through(self, position: Offset) -> None:
        """Forget batches that are committed."""
        end = bisect_right(self._lasts, position)
        for batch in self._batches[:end]:
            self.payload_bytes -= len(batch.data)
            self.records -= batch.count
        del self._batches[:end]
        del self._lasts[:end]
