"""WAL bytes: a segment header, then frames. One frame holds everything one group commit made
durable.

The checksum covers a whole group, so a group is on disk entirely or not at all, and a bad frame
that is followed by a good one can only be damage: the good one was written after the bad one had
been synced. The layout is documented in docs/format.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import crc32c
import msgspec
import numpy as np

from engine.errors import ChecksumMismatch, VersionUnsupported
from engine.format.batch import Batch
from engine.format.offset import make_offset
from engine.types import Offset, StreamId

if TYPE_CHECKING:
    from collections.abc import Iterator

SEGMENT_MAGIC: Final = b"BTMLWAL1"
FRAME_MAGIC: Final = b"\xb0\x77\x0d\x1e"

_SEGMENT: Final = struct.Struct("<8sQQI4x")
_SEGMENT_CHECKED_BYTES: Final = 24
SEGMENT_HEADER_BYTES: Final = _SEGMENT.size
_FRAME: Final = struct.Struct("<4sIIIQQ")
FRAME_HEADER_BYTES: Final = _FRAME.size
_ENTRY: Final = struct.Struct("<BBxxIQ")
_APPEND: Final = struct.Struct("<QQQII")
_AFTER_CRC: Final = struct.Struct("<IQQQ")


class EntryKind(IntEnum):
    """What an entry does."""

    CREATE = 1
    APPEND = 2
    DELETE = 3


FLAG_CLOSE: Final = 1
_SECTOR_BYTES: Final = 512
WAY_OUT: Final = (
    "Records acknowledged after this place may be lost if it is cut. Restore the file from a copy."
    " To go on without what only the log holds, move the whole _wal folder aside: the tables tell"
    " the rest."
)
"""For whoever starts a server on a damaged log."""


class AppendMeta(msgspec.Struct, frozen=True, array_like=True):
    """The parts of an append that most appends do not have."""

    producer_id: str | None = None
    producer_epoch: int = 0
    producer_seq: int = 0
    stream_seq: str | None = None
    fence: int | None = None
    settings: str | None = None
    """JSON: the stream's settings from here on, whole."""


class StreamMeta(msgspec.Struct, frozen=True):
    """What is fixed when a stream is created."""

    id: int
    name: str
    content_type: str
    created_at_ms: int
    ttl_seconds: int | None = None
    expires_at: str | None = None
    expires_at_ms: int | None = None
    fork_source_id: int | None = None
    fork_source_name: str | None = None
    fork_offset: str | None = None
    fork_sub_offset: int = 0


_encode_meta: Final = msgspec.msgpack.Encoder().encode
_decode_append_meta: Final = msgspec.msgpack.Decoder(AppendMeta).decode
_decode_stream_meta: Final = msgspec.msgpack.Decoder(StreamMeta).decode


@dataclass(frozen=True, slots=True)
class CreateEntry:
    """A stream begins."""

    stream_id: StreamId
    meta: StreamMeta


@dataclass(frozen=True, slots=True)
class AppendEntry:
    """Records are appended, the stream is closed, or both."""

    stream_id: StreamId
    previous: Offset
    batch: Batch | None
    closes: bool
    meta: AppendMeta | None


@dataclass(frozen=True, slots=True)
class DeleteEntry:
    """A stream ends: deleted by a caller or expired."""

    stream_id: StreamId


Entry = CreateEntry | AppendEntry | DeleteEntry


@dataclass(frozen=True, slots=True)
class Frame:
    """One group commit."""

    lsn: int
    epoch: int
    entries: list[Entry]
    end: int
    """Position in the segment after this frame."""


def encode_segment_header(first_lsn: int, *, salt: int = 0) -> bytes:
    """The first bytes of a segment file. The salt goes into every checksum of the segment, so that
    bytes somebody stores in a stream can never pass for a frame.
    """
    checked = struct.pack("<8sQQ", SEGMENT_MAGIC, first_lsn, salt)
    return _SEGMENT.pack(SEGMENT_MAGIC, first_lsn, salt, crc32c.crc32c(checked))


def decode_segment_header(data: bytes, *, path: str) -> int | None:
    """The first LSN, or None where the header is torn (a crash while the file was begun)."""
    if len(data) < SEGMENT_HEADER_BYTES or not any(data[:SEGMENT_HEADER_BYTES]):
        return None
    magic, first_lsn, _, checksum = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise VersionUnsupported(
            f"{path} is not a WAL segment this version can read",
            hint="Start the version that wrote it, or move the file aside if it is not ours.",
        )
    if checksum != crc32c.crc32c(data[:_SEGMENT_CHECKED_BYTES]):
        raise ChecksumMismatch(f"the header of {path} fails its checksum", hint=WAY_OUT)
    return int(first_lsn)


def encode_create(meta: StreamMeta) -> list[bytes]:
    """Parts of a create entry."""
    body = _encode_meta(meta)
    return [_ENTRY.pack(EntryKind.CREATE, 0, len(body), meta.id), body]


def encode_delete(stream_id: StreamId) -> list[bytes]:
    """Parts of a delete entry."""
    return [_ENTRY.pack(EntryKind.DELETE, 0, 0, stream_id)]


def encode_append(
    stream_id: StreamId,
    previous: Offset,
    batch: Batch | None,
    *,
    closes: bool,
    meta: AppendMeta | None,
) -> list[bytes | memoryview]:
    """Parts of an append entry. ``previous`` is the tail it follows: the chain recovery checks."""
    meta_bytes = b"" if meta is None else _encode_meta(meta)
    previous_halves = divmod(previous, 10**16)
    if batch is None:
        count, first_counter, lengths = 0, 0, b""
        data: bytes | memoryview = b""
    else:
        count, first_counter, data = batch.count, batch.first % 10**16, batch.data
        lengths = b"" if count == 1 else batch.record_lengths().tobytes()
    head = _APPEND.pack(*previous_halves, first_counter, count, len(meta_bytes))
    body_bytes = len(head) + len(meta_bytes) + len(lengths) + len(data)
    entry = _ENTRY.pack(EntryKind.APPEND, FLAG_CLOSE if closes else 0, body_bytes, stream_id)
    return [entry, head, meta_bytes, lengths, data]


def encode_frame(lsn: int, epoch: int, entry_count: int, payload: bytes, *, salt: int = 0) -> bytes:
    """The header of a frame; its payload follows it."""
    head = _AFTER_CRC.pack(entry_count, lsn, epoch, salt)
    checksum = crc32c.crc32c(payload, crc32c.crc32c(head))
    return _FRAME.pack(FRAME_MAGIC, len(payload), checksum, entry_count, lsn, epoch)


def decode_frames(data: bytes, *, first_lsn: int, path: str) -> Iterator[Frame]:
    """The whole frames of a segment in order; ends at a torn tail.

    Raises ChecksumMismatch where a frame is bad although a good one follows it; then none is told.
    """
    end, _ = end_of_frames(data, first_lsn=first_lsn, path=path)
    position = SEGMENT_HEADER_BYTES
    while position < end:
        frame = _frame_at(data, position)
        yield frame
        position = frame.end


def end_of_frames(data: bytes, *, first_lsn: int, path: str) -> tuple[int, int]:
    """Where the whole frames of a segment end, and the LSN that comes next. Raises as above."""
    position, lsn = SEGMENT_HEADER_BYTES, first_lsn
    salt = _SEGMENT.unpack_from(data)[2]
    while position < len(data):
        if not _is_whole(data, position, salt) or _lsn_at(data, position) != lsn:
            _refuse_if_frames_follow(data, position, salt, lsn, path)
            break
        position += FRAME_HEADER_BYTES + int(_FRAME.unpack_from(data, position)[1])
        lsn += 1
    return position, lsn


def holds_frames(data: bytes, *, first_lsn: int) -> bool:
    """Whether a segment without a header was more than begun, so that it has been damaged.

    A crash loses whole sectors, so what follows in the header's own is lost with it. And the second
    frame was written when the first had been synced; it is known by its shape alone, for the salt
    is lost with the header.
    """
    if any(data[SEGMENT_HEADER_BYTES:_SECTOR_BYTES]):
        return True
    candidate = data.find(FRAME_MAGIC, SEGMENT_HEADER_BYTES)
    while candidate != -1 and len(data) - candidate >= FRAME_HEADER_BYTES:
        _, length, _, entry_count, lsn, _ = _FRAME.unpack_from(data, candidate)
        fits = candidate + FRAME_HEADER_BYTES + length <= len(data)
        if fits and entry_count and first_lsn < lsn < first_lsn + len(data):
            return True
        candidate = data.find(FRAME_MAGIC, candidate + 1)
    return False


def _refuse_if_frames_follow(data: bytes, bad_at: int, salt: int, lsn: int, path: str) -> None:
    """A later frame was written after the bad one had been synced. Copies of older frames in the
    payload of a torn one prove nothing.
    """
    candidate = data.find(FRAME_MAGIC, bad_at + 1)
    while candidate != -1:
        if _is_whole(data, candidate, salt) and _lsn_at(data, candidate) > lsn:
            raise ChecksumMismatch(
                f"WAL segment {path} is damaged at byte {bad_at}:"
                f" a good frame follows at byte {candidate}",
                hint=WAY_OUT,
                path=path,
                position=bad_at,
            )
        candidate = data.find(FRAME_MAGIC, candidate + 1)


def _lsn_at(data: bytes, position: int) -> int:
    return int(_FRAME.unpack_from(data, position)[4])


def _is_whole(data: bytes, position: int, salt: int) -> bool:
    if len(data) - position < FRAME_HEADER_BYTES:
        return False
    magic, length, checksum, entry_count, lsn, epoch = _FRAME.unpack_from(data, position)
    begin = position + FRAME_HEADER_BYTES
    if magic != FRAME_MAGIC or begin + length > len(data):
        return False
    seed = crc32c.crc32c(_AFTER_CRC.pack(entry_count, lsn, epoch, salt))
    return bool(checksum == crc32c.crc32c(memoryview(data)[begin : begin + length], seed))


def _frame_at(data: bytes, position: int) -> Frame:
    _, length, _, entry_count, lsn, epoch = _FRAME.unpack_from(data, position)
    begin = position + FRAME_HEADER_BYTES
    entries = list(_entries(data, begin, begin + length, epoch))
    assert len(entries) == entry_count
    return Frame(lsn, epoch, entries, begin + length)


def _entries(data: bytes, begin: int, end: int, epoch: int) -> Iterator[Entry]:
    while begin < end:
        kind, flags, body_bytes, stream_id = _ENTRY.unpack_from(data, begin)
        begin += _ENTRY.size
        body = memoryview(data)[begin : begin + body_bytes]
        begin += body_bytes
        if kind == EntryKind.APPEND:
            yield _decode_append(StreamId(stream_id), body, epoch, closes=bool(flags & FLAG_CLOSE))
        elif kind == EntryKind.CREATE:
            yield CreateEntry(StreamId(stream_id), _decode_stream_meta(body))
        elif kind == EntryKind.DELETE:
            yield DeleteEntry(StreamId(stream_id))
        else:
            raise VersionUnsupported(
                f"the WAL holds an entry of kind {kind}, which this version does not know",
                hint="Start the newer version that wrote it.",
            )


def _decode_append(
    stream_id: StreamId, body: memoryview, epoch: int, *, closes: bool
) -> AppendEntry:
    previous_epoch, previous_counter, first_counter, count, meta_bytes = _APPEND.unpack_from(body)
    place = _APPEND.size
    meta = _decode_append_meta(body[place : place + meta_bytes]) if meta_bytes else None
    place += meta_bytes
    batch = None
    if count:
        lengths = None
        if count > 1:
            lengths = np.frombuffer(body[place : place + 4 * count], dtype="<u4").copy()
            place += 4 * count
        batch = Batch(make_offset(epoch, first_counter), count, bytes(body[place:]), lengths)
    previous = make_offset(previous_epoch, previous_counter)
    return AppendEntry(stream_id, previous, batch, closes, meta)
