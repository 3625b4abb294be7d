"""Appends on the wire: what a request asks for, what an answer says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.chunk import CLOSED
from api.protocol import (
    parse_closed,
    parse_content_type,
    parse_producer,
    parse_stream_seq,
)
from engine import AppendRequest, format_wire

if TYPE_CHECKING:
    from api.asgi import Headers
    from engine import AppendResult
    from engine.settings import LimitSettings


def parse_append(
    headers: dict[bytes, bytes], limits: LimitSettings, body: bytes = b""
) -> AppendRequest:
    """What the headers say, with the body if it is there already."""
    return AppendRequest(
        content_type=parse_content_type(
            headers.get(b"content-type"), bytes_max=limits.content_type_bytes
        ),
        body=body,
        close=parse_closed(headers.get(b"stream-closed")),
        producer=parse_producer(headers, limits),
        stream_seq=parse_stream_seq(headers.get(b"stream-seq"), limits),
    )


def render_append(request: AppendRequest, result: AppendResult) -> tuple[int, Headers]:
    """Status and headers of an append that is durable."""
    reply: Headers = [(b"stream-next-offset", format_wire(result.tail).encode("ascii"))]
    if result.closed:
        reply.append(CLOSED)
    if request.producer is None:
        return 204, reply
    reply.append((b"producer-epoch", b"%d" % result.producer_epoch))
    reply.append((b"producer-seq", b"%d" % result.producer_seq))
    return 200 if request.body and not result.duplicate else 204, reply
