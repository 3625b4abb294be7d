"""The snapshot: every stream as it was when the WAL was last trimmed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import crc32c
import msgspec

from engine.errors import ChecksumMismatch
from engine.format.frame import StreamMeta
from engine.streams.producers import ProducerState
from engine.types import ProducerStamp
from engine.write.wal import WAL_FOLDER

if TYPE_CHECKING:
    from engine.storage import Storage
    from engine.streams.stream import Stream

SNAPSHOT_PATH: Final = f"{WAL_FOLDER}/snapshot"
_MAGIC: Final = b"BTMLSNP1"


class StreamSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stream at the moment of a trim. Its records are in the table or in the WAL, not here."""

    meta: StreamMeta
    tail: str
    committed: str
    version: int
    accessed_ms: int
    closed: bool = False
    closed_by: ProducerStamp | None = None
    stream_seq: str | None = None
    soft_deleted: bool = False
    fence: int = 0
    settings: str | None = None
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
    if (
        len(data) <= 12
        or data[:8] != _MAGIC
        or crc32c.crc32c(body) != int.from_bytes(data[8:12], "little")
    ):
        raise ChecksumMismatch(
            f"{SNAPSHOT_PATH} is damaged",
            hint="Restore it from a copy. If the server was stopped cleanly, the whole _wal folder"
            " may be deleted: the tables hold everything.",
        )
    return msgspec.msgpack.decode(body, type=Snapshot)


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
        fence=stream.fence,
        settings=stream.settings_json,
        producers=dict(stream.producers),
        uncommitted=stream.state_changed or bool(stream.producers_changed) or stream.is_committing,
    )
