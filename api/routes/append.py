"""Appends on the wire, and the short way for small ones.

A task, a coroutine per layer and an event per request cost a third of a small append's CPU. So a
small append whose body has arrived goes from its connection straight to the log, and its answer is
sent by the callback of the group commit. What is not plain goes the long way, through the route.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from api.chunk import CLOSED
from api.errors import render_error
from api.protocol import (
    parse_closed,
    parse_content_type,
    parse_producer,
    parse_stream_path,
    parse_stream_seq,
)
from engine import AppendRequest, BottomlessError, format_wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from api.asgi import Headers, Scope
    from engine import AppendResult, Log
    from engine.settings import LimitSettings

    Reply = Callable[[int, Headers, bytes], None]

_QUICK_BYTES_MAX: Final = 64 * 1024


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


class QuickAppend:
    """The short way. It never refuses: what it does not take goes the long way."""

    def __init__(self, log: Log, limits: LimitSettings) -> None:
        self._log = log
        self._limits = limits
        self.bytes_max = min(_QUICK_BYTES_MAX, limits.body_bytes)

    def __call__(self, scope: Scope, body: bytes, reply: Reply) -> bool:
        """Submit the append; ``reply`` is called when it is durable. False: not taken."""
        pairs = scope["headers"]
        headers = dict(pairs)
        if len(headers) != len(pairs) or b"content-encoding" in headers:
            return False
        try:
            name = parse_stream_path(scope["raw_path"], bytes_max=self._limits.name_bytes)
            request = parse_append(headers, self._limits, body)
            return self._log.append_soon(
                name, request, lambda outcome: _answer(request, outcome, reply)
            )
        except BottomlessError:
            return False


def _answer(request: AppendRequest, outcome: AppendResult | BottomlessError, reply: Reply) -> None:
    if isinstance(outcome, BottomlessError):
        reply(*render_error(outcome))
    else:
        status, headers = render_append(request, outcome)
        reply(status, headers, b"")
