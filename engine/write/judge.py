"""What a create or an append is judged by: pure checks of a request against a stream as it will be
once everything under way is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import (
    ContentTypeMismatch,
    InvalidRequest,
    SequenceRegressed,
    StreamClosed,
    VersionTooOld,
)
from engine.format.frame import AppendMeta
from engine.format.offset import format_stored
from engine.types import Ack, AppendRequest, CreateRequest, media_type_of, payload_kind

if TYPE_CHECKING:
    from engine.streams.stream import Stream


def check_not_empty(request: AppendRequest) -> None:
    """It must want something."""
    if not request.body and not request.close and request.fence is None:
        raise InvalidRequest("the body is empty", hint="Send records, or Stream-Closed: true.")
    if request.body and request.content_type is None:
        raise InvalidRequest("the Content-Type header is missing")


def check_fence(stream: Stream, fence: int | None) -> None:
    """A producer whose version is lower than one that was seen has been replaced."""
    if fence is not None and fence < stream.fence_soon:
        raise VersionTooOld(current=stream.fence_soon, provided=fence)


def difference(stream: Stream, request: CreateRequest, *, default_content_type: str) -> str | None:
    """The first setting in which a repeated create differs."""
    meta, fork = stream.meta, request.fork
    wanted_type = request.content_type or (
        meta.content_type if fork is not None else default_content_type
    )
    ttl_seconds, expires_at = request.ttl_seconds, request.expires_at
    if fork is not None and ttl_seconds is None and expires_at is None:
        ttl_seconds, expires_at = meta.ttl_seconds, meta.expires_at
    checks = {
        "content type": media_type_of(wanted_type) == media_type_of(meta.content_type),
        "TTL": ttl_seconds == meta.ttl_seconds,
        "expiry": expires_at == meta.expires_at,
        "closed state": request.closed == stream.closed_soon,
        "fork source": (None if fork is None else fork.source) == meta.fork_source_name,
    }
    if fork is not None:
        asked = None if fork.offset is None else format_stored(fork.offset)
        checks["fork offset"] = asked is None or asked == meta.fork_offset
        checks["fork sub-offset"] = fork.sub_offset == meta.fork_sub_offset
    return next((name for name, is_same in checks.items() if not is_same), None)


def check_closing_again(stream: Stream, request: AppendRequest) -> None:
    """On a closed stream only the repetition of what closed it is fine."""
    is_plain_close = not request.body and request.producer is None
    is_repeated = request.producer is not None and request.producer == stream.closed_by_soon
    if not is_plain_close and not is_repeated:
        raise StreamClosed(stream.assigned)


def check_media_type(stream: Stream, content_type: str) -> None:
    """The append's type is the stream's."""
    if media_type_of(content_type) != media_type_of(stream.meta.content_type):
        raise ContentTypeMismatch(
            f"the stream's content type is {stream.meta.content_type}",
            hint="Send the content type the stream was created with.",
        )
    if payload_kind(content_type) is not stream.kind:
        raise ContentTypeMismatch("the append's charset is not the stream's")


def append_meta(stream: Stream, request: AppendRequest) -> AppendMeta | None:
    """What most appends do not have; None for those."""
    stamp, seq, fence = request.producer, request.stream_seq, request.fence
    if fence is not None and fence == stream.fence_soon:
        fence = None
    if stamp is not None:
        return AppendMeta(stamp.id, stamp.epoch, stamp.seq, seq, fence)
    if seq is None and fence is None:
        return None
    return AppendMeta(stream_seq=seq, fence=fence)


def wants_table(stream: Stream, request: AppendRequest) -> bool:
    """The append is answered only when the table has it."""
    if request.ack is not None:
        return request.ack is Ack.TABLE
    return stream.in_force.ack == Ack.TABLE.value


def check_stream_seq(stream: Stream, stream_seq: str | None) -> None:
    """Compared byte by byte; must rise."""
    last = stream.stream_seq_soon
    if stream_seq is not None and last is not None and stream_seq <= last:
        raise SequenceRegressed(
            f"Stream-Seq must be greater than {last!r} (compared byte by byte)",
        )
