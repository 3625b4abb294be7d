"""Which WAL segments exist, and what must be committed before each of them may go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.write.operations import AppendOperation, Operation

if TYPE_CHECKING:
    from engine.streams.registry import Registry
    from engine.types import Offset, StreamId


class Segments:
    """The bookkeeping; the files themselves are the WAL's and the trimmer's."""

    def __init__(self) -> None:
        self._needs: dict[int, dict[StreamId, Offset]] = {}
        self._bytes: dict[int, int] = {}
        self.total_bytes = 0
        """Bytes of all segments."""

    @property
    def newest(self) -> int:
        """The segment that is being written, 0 if none."""
        return max(self._needs, default=0)

    def written(self, segment: int, size: int, operations: list[Operation]) -> None:
        """A group went into a segment."""
        needs = self._needs.setdefault(segment, {})
        self._bytes[segment] = self._bytes.get(segment, 0) + size
        self.total_bytes += size
        for operation in operations:
            if type(operation) is AppendOperation and operation.batch is not None:
                needs[operation.stream.id] = operation.batch.last

    def recovered(self, segment: int, size: int, needs: dict[StreamId, Offset]) -> None:
        """A segment found at start-up."""
        self._needs[segment] = needs
        self._bytes[segment] = size
        self.total_bytes += size

    def removable(self, registry: Registry, *, everything: bool = False) -> list[int]:
        """Closed segments from the oldest on whose records are all committed."""
        found = []
        newest = self.newest
        for segment in sorted(self._needs):
            if (segment == newest and not everything) or not self._is_committed(segment, registry):
                break
            found.append(segment)
        return found

    def _is_committed(self, segment: int, registry: Registry) -> bool:
        for stream_id, last in self._needs[segment].items():
            stream = registry.by_id(stream_id)
            if stream is not None and stream.committed < last:
                return False
        return True

    def forget(self, segments: list[int]) -> None:
        """The files of these segments are gone."""
        for segment in segments:
            del self._needs[segment]
            self.total_bytes -= self._bytes.pop(segment)
