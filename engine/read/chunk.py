"""A read in progress: what was taken so far, and whether there is room for more.

Chunks of joined bytes serve whoever wants a stream; chunks of single records whoever wants each
record with its own offset, which costs a step per record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from engine.errors import OffsetTrimmed
from engine.format.offset import START
from engine.types import Offset

if TYPE_CHECKING:
    from engine.format.batch import Batch
    from engine.format.run import Run


ANY_SIZE: Final = 1 << 62
"""A row group may be as large as it wants."""


@dataclass(slots=True)
class Chunk:
    """Joined records up to a number of bytes."""

    start: Offset
    position: Offset
    bytes_max: int
    size: int = 0
    is_full: bool = False
    pieces: list[bytes | memoryview] = field(default_factory=list)
    run: Run | None = None
    """The row group it was last filled from."""

    @property
    def room(self) -> int:
        """Bytes that still fit."""
        return self.bytes_max - self.size

    @property
    def run_bytes_max(self) -> int:
        """A row group may have this much, to be taken whole into a chunk that has something."""
        return self.room + self.bytes_max // 4 if self.pieces else ANY_SIZE

    def skip_trimmed(self, trimmed: Offset) -> None:
        """Records up to ``trimmed`` are gone: fine for who reads from the start, and only then."""
        if self.pieces:
            self.is_full = True
        elif self.start == START:
            self.start = self.position = trimmed
        else:
            raise OffsetTrimmed(trimmed)

    def take(self, piece: bytes | memoryview, position: Offset) -> None:
        """Add joined records up to ``position``."""
        self.pieces.append(piece)
        self.size += len(piece)
        self.position = position
        self.is_full = self.size >= self.bytes_max

    def take_run(self, run: Run, limit: Offset) -> bool:
        """Add what a row group holds after the position; False if that is nothing.

        A row group that does not fit is taken whole into a chunk that holds little so far, so that
        the next chunk begins where a row group begins. Else it is left for the next chunk: whoever
        reads from the middle of a row group would wait for two of them.
        """
        self.run = run
        begin, last = run.index_after(self.position), run.index_after(limit)
        if begin >= last:
            return False
        end = min(last, max(begin + 1, run.count_within(begin, self.bytes_max)))
        if end <= begin or (self.pieces and len(run.cut(begin, end)) > self.run_bytes_max):
            self.is_full = True
            return True
        self.take(run.cut(begin, end), run.offset_at(end - 1))
        return True

    def take_batch(self, batch: Batch, limit: Offset) -> None:
        """Add what a batch holds after the position, as far as it fits."""
        rest = batch.skip(max(0, self.position - batch.first + 1))
        if rest.last > limit:
            rest = rest.take(limit - rest.first + 1)
        fitting = rest.count_within(self.room)
        if fitting == 0 and self.pieces:
            self.is_full = True
            return
        taken = rest.take(max(1, fitting))
        self.take(taken.data, taken.last)
        self.is_full = self.is_full or taken.count < rest.count


@dataclass(slots=True)
class RecordChunk:
    """Single records up to a number of them, or of bytes; one at least."""

    start: Offset
    position: Offset
    count_max: int
    bytes_max: int
    run_bytes_max: ClassVar[int] = ANY_SIZE
    size: int = 0
    is_full: bool = False
    records: list[tuple[Offset, bytes]] = field(default_factory=list)

    def skip_trimmed(self, trimmed: Offset) -> None:
        """Records up to ``trimmed`` are gone: fine for who reads from the start, and only then."""
        if self.records:
            self.is_full = True
        elif self.start == START:
            self.start = self.position = trimmed
        else:
            raise OffsetTrimmed(trimmed)

    def take_run(self, run: Run, limit: Offset) -> bool:
        """Add what a row group holds after the position; False if that is nothing."""
        begin, last = run.index_after(self.position), run.index_after(limit)
        for index in range(begin, last):
            self._take(run.offset_at(index), bytes(run.cut(index, index + 1)))
            if self.is_full:
                break
        return begin < last

    def take_batch(self, batch: Batch, limit: Offset) -> None:
        """Add what a batch holds after the position."""
        rest = batch.skip(max(0, self.position - batch.first + 1))
        begin = 0
        for index, end in enumerate(rest.ends().tolist()):
            offset = Offset(rest.first + index)
            if self.is_full or offset > limit:
                return
            self._take(offset, bytes(rest.data[begin:end]))
            begin = end + 1

    def _take(self, offset: Offset, record: bytes) -> None:
        self.records.append((offset, record))
        self.size += len(record)
        self.position = offset
        self.is_full = len(self.records) >= self.count_max or self.size >= self.bytes_max
