"""The backlog: records of the WAL that no table is known to hold yet, while a start-up reads it.

It is kept in bounds: a log that grew while commits failed may be larger than the memory of the
machine. Over the bound recovery commits the largest parts of it, and goes on reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from engine.streams.producers import ProducerState

if TYPE_CHECKING:
    from engine.format.batch import Batch
    from engine.format.frame import AppendEntry
    from engine.types import Offset, StreamId

# A commit needs several times what it commits, so the peak of a start-up is a few of these and one
# segment.
_BYTES_MAX: Final = 32 << 20
# Less than this of a stream is not worth a commit: thousands of streams may have a little each.
_STREAM_BYTES_MIN: Final = 128 << 10
# What a batch costs beside its payload, and a row while it is made into Parquet (measured).
_BATCH_BYTES: Final = 400
_ROW_BYTES: Final = 100


@dataclass(slots=True)
class Held:
    """What is held of one stream."""

    batches: list[tuple[Offset, Batch]] = field(default_factory=list)
    """Each with the tail it follows."""
    producers: dict[str, ProducerState] = field(default_factory=dict)
    """The state that these appends have led to."""
    bytes: int = 0


class Backlog:
    """What is held of all streams, and whether it is too much."""

    def __init__(self) -> None:
        self._held: dict[StreamId, Held] = {}
        self._bytes = 0
        self._bytes_max = _BYTES_MAX

    def add(self, entry: AppendEntry) -> None:
        """Hold the records of an append."""
        assert entry.batch is not None
        held = self._held.get(entry.stream_id)
        if held is None:
            held = self._held[entry.stream_id] = Held()
        held.batches.append((entry.previous, entry.batch))
        size = _size(entry.batch)
        held.bytes += size
        self._bytes += size
        if entry.meta is not None and entry.meta.producer_id is not None:
            state = ProducerState(entry.meta.producer_epoch, entry.meta.producer_seq)
            held.producers[entry.meta.producer_id] = state

    def take(self, stream_id: StreamId) -> Held:
        """Everything that is held of a stream; nothing of it is held after that."""
        held = self._held.pop(stream_id, None) or Held()
        self._bytes -= held.bytes
        return held

    def put_back(self, stream_id: StreamId, held: Held) -> None:
        """Hold again what was taken and could not be committed."""
        self._held[stream_id] = held
        self._bytes += held.bytes

    @property
    def is_full(self) -> bool:
        """It is time to commit."""
        return self._bytes > self._bytes_max

    def to_commit(self) -> list[StreamId]:
        """Streams whose commit brings it down to half of its bound, the largest ones first."""
        found = []
        rest = self._bytes
        for stream_id in sorted(self._held, key=lambda one: self._held[one].bytes, reverse=True):
            size = self._held[stream_id].bytes
            if 2 * rest <= _BYTES_MAX or size < _STREAM_BYTES_MIN:
                break
            found.append(stream_id)
            rest -= size
        return found

    def relieved(self) -> None:
        """Where many streams have a little each, it grows on, and is looked at less often."""
        self._bytes_max = max(self._bytes_max, self._bytes + _BYTES_MAX // 2)

    def lift_bound(self) -> None:
        """Commits fail: from now on everything is held."""
        self._bytes_max = 1 << 62


def _size(batch: Batch) -> int:
    return len(batch.data) + _BATCH_BYTES + _ROW_BYTES * batch.count
