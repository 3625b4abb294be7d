"""Live reads: long-poll and server-sent events, both on one wake-up per group and stream.

A live reader reads, and waits only if that read found nothing, with no other await in between: so
no append can slip through.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Protocol

from api.asgi import NO_STORE, Headers, respond
from api.chunk import chunk_headers, etag, join_pieces
from api.errors import Unauthorized
from api.protocol import SSE_TYPE
from api.routes.feed import Feed
from engine import BottomlessError, PayloadKind, payload_kind
from engine.errors import StreamNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from api.asgi import Exchange
    from api.auth.gate import Gate
    from api.routes.streams import StreamDialect
    from engine import Offset

_NO_CACHE: Final = (b"cache-control", b"no-cache")
_PRIVATE: Final = (b"cache-control", b"private, no-cache")
_BASE64: Final = (b"stream-sse-data-encoding", b"base64")


class Waiting(Protocol):
    """Something that waits, and can be told to stop."""

    def interrupt(self) -> None:
        """End the wait that runs now, if any."""


class Client:
    """The other end of a live read."""

    is_gone = False
    is_refused = False
    """Its token was revoked or has expired meanwhile."""

    def check(self) -> None:
        """Unauthorized if it may not read any more."""
        if self.is_refused:
            raise Unauthorized("this token does not count any more", hint="Get another one.")


@contextlib.contextmanager
def watch_client(exchange: Exchange, follower: Waiting, gate: Gate) -> Iterator[Client]:
    """Notice that the client has gone, or may not read any more, and end the wait it is in."""
    client = Client()

    async def until_gone() -> None:
        while (await exchange.receive())["type"] != "http.disconnect":
            pass
        client.is_gone = True
        follower.interrupt()

    def refuse() -> None:
        client.is_refused = True
        follower.interrupt()

    task = asyncio.get_running_loop().create_task(until_gone())
    try:
        with gate.watch(exchange.scope, refuse):
            yield client
    finally:
        task.cancel()


async def long_poll(
    dialect: StreamDialect, exchange: Exchange, position: Offset, cursor: str | None
) -> None:
    """Answer when there is something after the position, or when the time is up."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + dialect.http.long_poll_timeout_ms / 1000
    is_over = False
    with (
        dialect.log.follow(exchange.name, "long-poll") as follower,
        watch_client(exchange, follower, dialect.gate) as peer,
    ):
        while True:
            if follower.is_gone:
                raise StreamNotFound("the stream was deleted while it was read")
            result = await follower.read(position)
            if peer.is_gone:
                return
            peer.check()
            if result.pieces or result.closed or is_over:
                break
            remaining_ms = int((deadline - loop.time()) * 1000)
            is_over = remaining_ms <= 0 or not await follower.wait(remaining_ms)
    reply = chunk_headers(result)
    reply.append((b"stream-cursor", dialect.cursor(cursor).encode("ascii")))
    if result.pieces:
        reply.append((b"etag", etag(result)))
        if dialect.gate.is_on:
            reply.append(_PRIVATE)
        await respond(exchange.send, 200, reply, join_pieces(result))
    else:
        reply.append(NO_STORE)
        await respond(exchange.send, 204, reply)


async def follow_by_sse(
    dialect: StreamDialect, exchange: Exchange, position: Offset, cursor: str | None
) -> None:
    """Send everything after the position as it comes, until closed, gone or old enough."""
    send = exchange.send
    with dialect.log.follow(exchange.name, "sse") as follower:
        # Before the status is sent: an offset that is not retained any more is a 410, not an end.
        result = await follower.read(position)
        no_cache = _PRIVATE if dialect.gate.is_on else _NO_CACHE
        headers: Headers = [(b"content-type", SSE_TYPE), no_cache]
        if payload_kind(follower.info.content_type) is PayloadKind.BYTES:
            headers.append(_BASE64)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        feed = Feed(dialect, follower, exchange, cursor)
        # A stream that is deleted while it is read ends here like any other.
        with (
            watch_client(exchange, feed, dialect.gate) as peer,
            contextlib.suppress(BottomlessError),
        ):
            await feed.run(result, peer)
    await send({"type": "http.response.body", "body": b""})
