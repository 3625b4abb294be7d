"""Trimming: WAL segments go when every stream in them is committed and the tables are synced.

A trim first makes all commits durable with one sync (F1), then writes a snapshot of every stream with the
table version that is now certain, then removes segments. Start-up reads the snapshot and what is left.
"""

from __future__ import annotations

from typing import Final

import crc32c
import msgspec

from engine.errors import ChecksumMismatch
from engine.format.frame import StreamMeta
from engine.storage import Storage
from engine.streams.producers import ProducerState
from engine.streams.registry import Registry
from engine.streams.stream import Stream
from engine.types import Offset, ProducerStamp, StreamId
from engine.write.operations import AppendOperation, Operation
from engine.write.wal import WAL_FOLDER, segment_path

SNAPSHOT_PATH: Final = f"{WAL_FOLDER}/snapshot"
_MAGIC: Final = b"BTMLSNP1"


class StreamSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stream at the moment of a trim. Records are not in it: they are in the table or in the WAL."""

    meta: StreamMeta
    tail: str
    committed: str
    version: int
    accessed_ms: int
    closed: bool = False
    closed_by: ProducerStamp | None = None
    stream_seq: str | None = None
    soft_deleted: bool = False
    producers: dict[str, ProducerState] = {}
    uncommitted: bool = False
    """State (not records) that the table does not hold yet."""


class Snapshot(msgspec.Struct, frozen=True):
    """Every stream, and the LSN up to which the WAL is contained in it."""

    lsn: int
    epoch: int
    owner: int
    streams: list[StreamSnapshot]
    trash: list[tuple[str, int]]
    """Folders of deleted streams that may still be there, with the stream's id."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Bytes with a checksum in front."""
    body = msgspec.msgpack.encode(snapshot)
    return _MAGIC + crc32c.crc32c(body).to_bytes(4, "little") + body


def load_snapshot(storage: Storage) -> Snapshot | None:
    """The newest snapshot, or None where none was ever written."""
    if not storage.exists(SNAPSHOT_PATH):
        return None
    data = storage.read(SNAPSHOT_PATH)
    body = data[12:]
    if data[:8] != _MAGIC or crc32c.crc32c(body) != int.from_bytes(data[8:12], "little"):
        raise ChecksumMismatch(
            f"{SNAPSHOT_PATH} is damaged",
            hint="Restore it from a copy. If the server was stopped cleanly, the whole _wal folder may be"
            " deleted: the tables hold everything.",
        )
    return msgspec.msgpack.decode(body, type=Snapshot)


class Segments:
    """Which segments exist and what must be committed before each of them may go."""

    def __init__(self) -> None:
        self._needs: dict[int, dict[StreamId, Offset]] = {}
        self._bytes: dict[int, int] = {}

    @property
    def total_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(self._bytes.values())

    @property
    def newest(self) -> int:
        """The segment that is being written, 0 if none."""
        return max(self._needs, default=0)

    def written(self, segment: int, size: int, operations: list[Operation]) -> None:
        """A group went into a segment."""
        needs = self._needs.setdefault(segment, {})
        self._bytes[segment] = self._bytes.get(segment, 0) + size
        for operation in operations:
            if type(operation) is AppendOperation and operation.batch is not None:
                needs[operation.stream.id] = operation.batch.last

    def recovered(self, segment: int, size: int, needs: dict[StreamId, Offset]) -> None:
        """A segment found at start-up."""
        self._needs[segment] = needs
        self._bytes[segment] = size

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

    def remove(self, storage: Storage, segments: list[int]) -> None:
        """Delete the files, oldest first."""
        for segment in segments:
            storage.remove(segment_path(segment))
            del self._needs[segment]
            del self._bytes[segment]


def snapshot_stream(stream: Stream, *, accessed_ms: int) -> StreamSnapshot:
    """The stream as it is durable now."""
    return StreamSnapshot(
        meta=stream.meta,
        tail=str(stream.tail),
        committed=str(stream.committed),
        version=stream.version,
        accessed_ms=accessed_ms,
        closed=stream.closed,
        closed_by=stream.closed_by,
        stream_seq=stream.stream_seq,
        soft_deleted=stream.soft_deleted,
        producers=dict(stream.producers),
        uncommitted=stream.state_changed or bool(stream.producers_changed) or stream.is_committing,
    )
