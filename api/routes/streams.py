"""The Durable Streams dialect: /v1/stream/{name}. A raw ASGI callable, because a framework's route
costs as much CPU as everything else in an append together (F12).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from api.asgi import ALLOW, NO_STORE, PREFLIGHT, Exchange, Headers, Receive, Scope, Send, respond
from api.body import ClientGone, check_framing, read_body
from api.chunk import CLOSED, chunk_headers, etag, join_pieces
from api.errors import BadHeader, problem, render_error
from api.protocol import (
    etag_matches,
    next_cursor,
    parse_closed,
    parse_content_type,
    parse_expires_at,
    parse_number,
    parse_position,
    parse_query,
    parse_stream_path,
)
from api.routes.append import parse_append, render_append
from api.routes.live import follow_by_sse, long_poll
from engine import (
    BottomlessError,
    CreateRequest,
    ForkRequest,
    format_wire,
    metrics,
    parse_offset,
)
from engine.errors import InvalidRequest

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from api.settings import HttpSettings
    from engine import Clock, Log, ReadResult
    from engine.settings import LimitSettings

# A full chunk never changes. The last one does: it may be kept, but only used after asking (ETag).
_CACHE_CHUNK: Final = (b"cache-control", b"public, max-age=60, stale-while-revalidate=300")
_CACHE_TAIL: Final = (b"cache-control", b"no-cache")
_ONLY_ONCE: Final = frozenset(
    {
        b"content-type",
        b"content-encoding",
        b"producer-id",
        b"producer-epoch",
        b"producer-seq",
        b"stream-closed",
        b"stream-expires-at",
        b"stream-fork-offset",
        b"stream-fork-sub-offset",
        b"stream-forked-from",
        b"stream-seq",
        b"stream-ttl",
    }
)


class StreamDialect:
    """PUT, POST, GET, HEAD, DELETE and OPTIONS of streams."""

    def __init__(
        self,
        log: Log,
        http: HttpSettings,
        limits: LimitSettings,
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.log = log
        self.http = http
        self._limits = limits
        self._clock = clock
        self._rng = rng
        self._handlers: dict[str, Callable[[Exchange], Awaitable[None]]] = {
            "GET": self._get,
            "HEAD": self._head,
            "POST": self._post,
            "PUT": self._put,
            "DELETE": self._delete,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. Errors of the engine become problem bodies here and nowhere else."""
        method = scope["method"]
        if method == "OPTIONS":
            await respond(send, 204, PREFLIGHT)
            return
        handler = self._handlers.get(method)
        if handler is None:
            body = problem(405, "method_not_allowed", f"{method} is not a method of streams")
            content_type = (b"content-type", b"application/problem+json")
            await respond(send, 405, [ALLOW, content_type], body)
            return
        try:
            name = parse_stream_path(scope["raw_path"], bytes_max=self._limits.name_bytes)
            await handler(Exchange(scope, _headers(scope), name, receive, send))
        except ClientGone:
            return
        except BottomlessError as error:
            if method == "POST":
                metrics.append_rejected.labels(code=error.code).inc()
            status, headers, body = render_error(error)
            if status in (413, 415):
                # The rest of the body is not looked at: the connection ends with it.
                headers.append((b"connection", b"close"))
            await respond(send, status, headers, body)

    def cursor(self, asked: str | None) -> str:
        """The cursor of a live response."""
        return next_cursor(asked, now_ms=self._clock.now_ms(), rng=self._rng)

    # Write.

    async def _post(self, exchange: Exchange) -> None:
        limits = self._limits
        check_framing(exchange.headers, limits.body_bytes)
        request = parse_append(exchange.headers, limits)
        body = await read_body(exchange.receive, limits.body_bytes)
        request = msgspec.structs.replace(request, body=body)
        result = await self.log.append(exchange.name, request)
        status, reply = render_append(request, result)
        await respond(exchange.send, status, reply)

    async def _put(self, exchange: Exchange) -> None:
        check_framing(exchange.headers, self._limits.body_bytes)
        body = await read_body(exchange.receive, self._limits.body_bytes)
        request = self._create_request(exchange.headers, body)
        result = await self.log.create(exchange.name, request)
        reply: Headers = [
            (b"content-type", result.content_type.encode("ascii")),
            (b"stream-next-offset", format_wire(result.tail).encode()),
        ]
        if result.closed:
            reply.append(CLOSED)
        if result.created:
            location = self._base_url(exchange.scope) + exchange.scope["raw_path"]
            reply.append((b"location", location))
        await respond(exchange.send, 201 if result.created else 200, reply)

    def _create_request(self, headers: dict[bytes, bytes], body: bytes) -> CreateRequest:
        ttl, expires = headers.get(b"stream-ttl"), headers.get(b"stream-expires-at")
        if ttl is not None and expires is not None:
            raise BadHeader("Stream-TTL and Stream-Expires-At exclude each other")
        expires_at, expires_at_ms = (None, None) if expires is None else parse_expires_at(expires)
        return CreateRequest(
            content_type=parse_content_type(
                headers.get(b"content-type"), bytes_max=self._limits.content_type_bytes
            ),
            ttl_seconds=None if ttl is None else parse_number(ttl, "Stream-TTL"),
            expires_at=expires_at,
            expires_at_ms=expires_at_ms,
            closed=parse_closed(headers.get(b"stream-closed")),
            body=body,
            fork=self._fork_request(headers),
        )

    def _fork_request(self, headers: dict[bytes, bytes]) -> ForkRequest | None:
        source = headers.get(b"stream-forked-from")
        offset = headers.get(b"stream-fork-offset")
        sub_offset = headers.get(b"stream-fork-sub-offset")
        if source is None:
            if offset is not None or sub_offset is not None:
                raise BadHeader("fork offsets need Stream-Forked-From")
            return None
        return ForkRequest(
            parse_stream_path(source, bytes_max=self._limits.name_bytes),
            None if offset is None else parse_offset(offset.decode("latin-1")),
            0 if sub_offset is None else parse_number(sub_offset, "Stream-Fork-Sub-Offset"),
        )

    def _base_url(self, scope: Scope) -> bytes:
        """Never from the Host header: whoever sends a request does not choose where others go."""
        if self.http.public_url:
            return self.http.public_url.rstrip("/").encode("ascii")
        host, port = scope["server"]
        return f"{scope['scheme']}://{f'[{host}]' if ':' in host else host}:{port}".encode("ascii")

    async def _delete(self, exchange: Exchange) -> None:
        await self.log.delete(exchange.name)
        await respond(exchange.send, 204, [])

    # Read.

    async def _head(self, exchange: Exchange) -> None:
        info = self.log.head(exchange.name)
        reply: Headers = [
            (b"content-type", info.content_type.encode("ascii")),
            (b"stream-next-offset", format_wire(info.tail).encode()),
            NO_STORE,
        ]
        if info.ttl_seconds is not None:
            reply.append((b"stream-ttl", b"%d" % info.ttl_seconds))
        if info.expires_at is not None:
            reply.append((b"stream-expires-at", info.expires_at.encode("ascii")))
        if info.closed:
            reply.append(CLOSED)
        await exchange.send({"type": "http.response.start", "status": 200, "headers": reply})
        await exchange.send({"type": "http.response.body"})

    async def _get(self, exchange: Exchange) -> None:
        info = self.log.head(exchange.name)
        query = parse_query(exchange.scope["query_string"])
        offset, live = query.get("offset"), query.get("live")
        position = parse_position(offset, tail=info.tail)
        if live is None:
            result = await self.log.read(exchange.name, position)
            await self._catch_up(exchange, result, is_now=offset == "now")
            return
        if offset is None:
            raise InvalidRequest("live reads need an offset", hint="Add offset=-1 or offset=now.")
        cursor = query.get("cursor")
        if live == "long-poll":
            await long_poll(self, exchange, position, cursor)
        elif live == "sse":
            await follow_by_sse(self, exchange, position, cursor)
        else:
            raise InvalidRequest("live must be long-poll or sse")

    async def _catch_up(self, exchange: Exchange, result: ReadResult, *, is_now: bool) -> None:
        reply = chunk_headers(result)
        if is_now:
            reply.append(NO_STORE)
        else:
            tag = etag(result)
            reply.append((b"etag", tag))
            reply.append(_CACHE_TAIL if result.up_to_date else _CACHE_CHUNK)
            if etag_matches(exchange.headers.get(b"if-none-match"), tag):
                await respond(exchange.send, 304, reply)
                return
        await respond(exchange.send, 200, reply, join_pieces(result))


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """By name. A protocol header that is sent twice could mean either value: refused."""
    pairs = scope["headers"]
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        for name in _ONLY_ONCE & found.keys():
            if names.count(name) > 1:
                raise BadHeader(f"{name.decode('ascii')} is sent more than once")
    return found
