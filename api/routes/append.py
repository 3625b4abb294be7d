"""Appends on the wire: what a request asks for, what an answer says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from api.asgi import render_lines
from api.chunk import CLOSED
from api.protocol import (
    parse_ack,
    parse_closed,
    parse_content_type,
    parse_producer,
    parse_stream_seq,
)
from engine import Ack, AppendRequest, format_wire

if TYPE_CHECKING:
    from api.asgi import Headers
    from engine import AppendResult
    from engine.settings import LimitSettings

_TABLE: Final = Ack.TABLE
_GIVEN_BY_WAL: Final = (b"stream-ack", b"wal")
_GIVEN_BY_TABLE: Final = (b"stream-ack", b"table")
_STORED: Final = b"stream-next-offset: %b\r\nstream-ack: wal\r\n"
_STORED_BY: Final = b"producer-epoch: %d\r\nproducer-seq: %d\r\n"


def parse_append(
    headers: dict[bytes, bytes], limits: LimitSettings, ack: str | None = None
) -> AppendRequest:
    """What the headers say, and the parameter ``ack``; the body comes later."""
    return AppendRequest(
        content_type=parse_content_type(
            headers.get(b"content-type"), bytes_max=limits.content_type_bytes
        ),
        body=b"",
        close=parse_closed(headers.get(b"stream-closed")),
        producer=parse_producer(headers, limits),
        stream_seq=parse_stream_seq(headers.get(b"stream-seq"), limits),
        ack=parse_ack(ack, headers.get(b"stream-ack")),
    )


def given_header(ack: Ack) -> tuple[bytes, bytes]:
    """Tells when an append was answered: when it was in the log, or in the table."""
    return _GIVEN_BY_TABLE if ack is _TABLE else _GIVEN_BY_WAL


def render_append(request: AppendRequest, result: AppendResult) -> tuple[int, Headers]:
    """Status and headers of an append that is durable."""
    tail = format_wire(result.tail).encode("ascii")
    reply: Headers = [(b"stream-next-offset", tail), given_header(result.ack)]
    if result.closed:
        reply.append(CLOSED)
    if request.producer is None:
        return 204, reply
    reply.append((b"producer-epoch", b"%d" % result.producer_epoch))
    reply.append((b"producer-seq", b"%d" % result.producer_seq))
    return 200 if request.body and not result.duplicate else 204, reply


def render_stored(request: AppendRequest, result: AppendResult) -> tuple[int, bytes]:
    """What `render_append` says, the headers as lines: for the many answers that are all alike."""
    if result.closed or result.ack is _TABLE:
        status, headers = render_append(request, result)
        return status, render_lines(headers)
    lines = _STORED % format_wire(result.tail).encode("ascii")
    if request.producer is None:
        return 204, lines
    lines += _STORED_BY % (result.producer_epoch, result.producer_seq)
    return 200 if request.body and not result.duplicate else 204, lines
