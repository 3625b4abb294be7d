"""The values that cross the engine's border: frozen, validated at birth."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Final, NewType

import msgspec

from engine.errors import BadStreamName

Offset = NewType("Offset", int)
"""A position in a stream; see engine.format.offset for its two halves."""

StreamName = NewType("StreamName", str)
"""A name that passed check_stream_name."""

StreamId = NewType("StreamId", int)
"""One incarnation of a stream: a name that is deleted and created again gets another id."""

RESERVED_PREFIX: Final = "__ds"
_FORBIDDEN_SEGMENTS: Final = frozenset({"", ".", "..", "_delta_log", "_checkpoints", "_settings"})


def check_stream_name(name: str, *, bytes_max: int) -> StreamName:
    """Refuse names that storage, logs or other tools could misread.

    A name is one or more segments joined by ``/``. Control, format (bidi, zero width), surrogate,
    private and unassigned characters are refused, because two names that look alike must not
    differ.
    """
    if not name or len(name.encode("utf-8", "surrogatepass")) > bytes_max:
        raise BadStreamName(f"a stream name has 1 to {bytes_max} bytes")
    if not name.isprintable() or "\\" in name:
        raise BadStreamName("the stream name holds a character that is not allowed")
    segments = name.split("/")
    for segment in segments:
        if segment in _FORBIDDEN_SEGMENTS:
            raise BadStreamName(f"the stream name holds the segment {segment!r}")
    if segments[0] == RESERVED_PREFIX:
        raise BadStreamName("names below __ds are reserved")
    return StreamName(name)


@lru_cache(maxsize=1024)
def media_type_of(content_type: str) -> str:
    """The part of a content type that is compared: before the semicolon, trimmed, lower case."""
    return content_type.split(";", 1)[0].strip().lower()


class PayloadKind(Enum):
    """How a stream's records are checked, stored and joined on reading."""

    JSON = "json"
    TEXT = "text"
    BYTES = "bytes"


@lru_cache(maxsize=1024)
def payload_kind(content_type: str) -> PayloadKind:
    """JSON for application/json, TEXT for text/* in UTF-8, BYTES for everything else."""
    media_type = media_type_of(content_type)
    if media_type == "application/json":
        return PayloadKind.JSON
    if media_type.startswith("text/"):
        parameters = content_type.lower().replace(" ", "").replace('"', "")
        charset = parameters.partition("charset=")[2].split(";")[0]
        if charset in ("", "utf-8", "utf8", "us-ascii"):
            return PayloadKind.TEXT
    return PayloadKind.BYTES


class ForkRequest(msgspec.Struct, frozen=True):
    """Where a new stream branches off: the source and the position in it."""

    source: StreamName
    offset: Offset | None = None
    sub_offset: int = 0


class CreateRequest(msgspec.Struct, frozen=True):
    """Everything a PUT says about the stream it wants."""

    content_type: str | None = None
    ttl_seconds: int | None = None
    expires_at: str | None = None
    expires_at_ms: int | None = None
    closed: bool = False
    body: bytes = b""
    fork: ForkRequest | None = None


class ProducerStamp(msgspec.Struct, frozen=True):
    """One idempotent append: who, which life of it, which number."""

    id: str
    epoch: int
    seq: int


class Ack(Enum):
    """When an append is answered."""

    WAL = "wal"
    TABLE = "table"


class AppendRequest(msgspec.Struct, frozen=True):
    """Everything a POST says. An empty body with close=True only closes, one with a fence only
    raises the stream's version.
    """

    content_type: str | None
    body: bytes
    close: bool = False
    producer: ProducerStamp | None = None
    stream_seq: str | None = None
    fence: int | None = None
    """The producer's version: refused if lower than the stream's, raises it if higher."""
    ack: Ack | None = None
    """None for what the stream's settings say."""


class CreateResult(msgspec.Struct, frozen=True):
    """What a create did and the state after it."""

    created: bool
    content_type: str
    tail: Offset
    closed: bool


class AppendResult(msgspec.Struct, frozen=True):
    """What an append did: the last offset it wrote, and the producer state it left."""

    tail: Offset
    closed: bool
    count: int = 0
    """Records written; their offsets end with ``tail`` and have no gap."""
    ack: Ack = Ack.WAL
    duplicate: bool = False
    producer_epoch: int = 0
    producer_seq: int = 0


class StreamInfo(msgspec.Struct, frozen=True):
    """What HEAD tells."""

    name: StreamName
    id: StreamId
    content_type: str
    tail: Offset
    closed: bool
    ttl_seconds: int | None
    expires_at: str | None
    fence: int = 0


class StreamActivity(msgspec.Struct, frozen=True):
    """What happens to a stream right now."""

    appended_records: int
    """Since this process began, what it found in its log included."""
    appended_bytes: int
    uncommitted_records: int
    uncommitted_bytes: int
    commit_lag_ms: int
    """Age of the oldest record that is not in the table."""
    readers: int
    """Live readers that are connected."""
    writers: int
    """Producers that came more than once, and within the last minute."""


class StreamSummary(msgspec.Struct, frozen=True):
    """A stream in a list. A fork counts the records of its own."""

    info: StreamInfo
    records: int
    bytes: int
    """Files of the table, and payload that waits for its commit."""
    files: int
    last_append_ms: int | None
    fault: str | None
    """The code of what keeps the stream from being served."""
    activity: StreamActivity


class RecordsResult(msgspec.Struct, frozen=True):
    """Single records, each with its own offset."""

    kind: PayloadKind
    records: list[tuple[Offset, bytes]]
    end: Offset
    """The position after the last of them."""
    closed: bool
    """The stream is closed, and this was its end."""


class ReadResult(msgspec.Struct, frozen=True):
    """One chunk: whole records after ``start``, and the position after the last of them.

    ``pieces`` are runs of records; JSON runs hold their records joined by commas, other runs are
    plain concatenations. ``up_to_date`` says nothing more existed when the chunk was planned.
    """

    stream_id: StreamId
    content_type: str
    kind: PayloadKind
    start: Offset
    end: Offset
    pieces: tuple[bytes | memoryview, ...]
    up_to_date: bool
    closed: bool

    @property
    def is_empty(self) -> bool:
        """No record after ``start``."""
        return not self.pieces
