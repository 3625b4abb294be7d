"""The Durable Streams dialect: /v1/stream/{name}. A raw ASGI callable, because a framework's route
costs as much CPU as everything else in an append together (F12).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from api.asgi import ALLOW, NO_STORE, Exchange, Headers, Receive, Scope, Send, respond
from api.body import ClientGone, check_framing, read_body
from api.chunk import CLOSED, body_of, chunk_headers, etag
from api.errors import BadHeader, Forbidden, problem, render_error
from api.protocol import (
    etag_matches,
    headers_by_name,
    next_cursor,
    parse_closed,
    parse_content_type,
    parse_expires_at,
    parse_number,
    parse_position,
    parse_query,
    parse_stream_path,
)
from api.refusal import send_refusal
from api.routes.append import parse_append, render_append
from api.routes.feed import Events
from api.routes.live import follow_by_sse, long_poll
from api.since import position_since
from engine import (
    BottomlessError,
    CreateRequest,
    ForkRequest,
    format_wire,
    parse_offset,
)
from engine.errors import BadOffset, InvalidRequest, StreamNotFound

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from api.auth.gate import Gate
    from api.auth.grants import Action
    from api.settings import HttpSettings
    from engine import Clock, Log, ReadResult, StreamName
    from engine.settings import LimitSettings

# A full chunk never changes. The last one does: it may be kept, but only used after asking (ETag).
_CACHE_CHUNK: Final = (b"cache-control", b"public, max-age=60, stale-while-revalidate=300")
_CACHE_TAIL: Final = (b"cache-control", b"no-cache")
# What a token opens is for whoever showed it, and for no cache between.
_KEEP_CHUNK: Final = (b"cache-control", b"private, max-age=60, stale-while-revalidate=300")
_KEEP_TAIL: Final = (b"cache-control", b"private, no-cache")
_ACTIONS: Final[dict[str, Action]] = {
    "GET": "read",
    "HEAD": "read",
    "POST": "append",
    "PUT": "create",
    "DELETE": "delete",
}


class StreamDialect:
    """PUT, POST, GET, HEAD, DELETE and OPTIONS of streams."""

    def __init__(
        self,
        log: Log,
        http: HttpSettings,
        limits: LimitSettings,
        *,
        gate: Gate,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.log = log
        self.http = http
        self.gate = gate
        self.events = Events()
        self._cache_chunk = _KEEP_CHUNK if gate.is_on else _CACHE_CHUNK
        self._cache_tail = _KEEP_TAIL if gate.is_on else _CACHE_TAIL
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
        handler = self._handlers.get(method)
        if handler is None:
            body = problem(405, "method_not_allowed", f"{method} is not a method of streams")
            content_type = (b"content-type", b"application/problem+json")
            await respond(send, 405, [ALLOW, content_type], body)
            return
        try:
            name = parse_stream_path(scope["raw_path"], bytes_max=self._limits.name_bytes)
            self.gate.require(scope, _ACTIONS[method], name)
            await handler(Exchange(scope, headers_by_name(scope["headers"]), name, receive, send))
        except ClientGone:
            return
        except BottomlessError as error:
            await send_refusal(send, method, error, render_error)

    def cursor(self, asked: str | None) -> str:
        """The cursor of a live response."""
        return next_cursor(asked, now_ms=self._clock.now_ms(), rng=self._rng)

    # Write.

    async def _post(self, exchange: Exchange) -> None:
        limits = self._limits
        check_framing(exchange.headers, limits.body_bytes)
        ack = parse_query(exchange.scope["query_string"]).get("ack")
        request = parse_append(exchange.headers, limits, ack)
        body = await read_body(exchange.receive, limits.body_bytes)
        request = msgspec.structs.replace(request, body=body)
        result = await self.log.append(exchange.name, request)
        status, reply = render_append(request, result)
        await respond(exchange.send, status, reply)

    async def _put(self, exchange: Exchange) -> None:
        check_framing(exchange.headers, self._limits.body_bytes)
        fork = self._fork_request(exchange)
        body = await read_body(exchange.receive, self._limits.body_bytes)
        request = self._create_request(exchange.headers, body, fork)
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

    def _create_request(
        self, headers: dict[bytes, bytes], body: bytes, fork: ForkRequest | None
    ) -> CreateRequest:
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
            fork=fork,
        )

    def _fork_request(self, exchange: Exchange) -> ForkRequest | None:
        headers = exchange.headers
        source = headers.get(b"stream-forked-from")
        offset = headers.get(b"stream-fork-offset")
        sub_offset = headers.get(b"stream-fork-sub-offset")
        if source is None:
            if offset is not None or sub_offset is not None:
                raise BadHeader("fork offsets need Stream-Forked-From")
            return None
        name = parse_stream_path(source, bytes_max=self._limits.name_bytes)
        self._require_source(exchange.scope, name)
        return ForkRequest(
            name,
            None if offset is None else parse_offset(offset.decode("latin-1")),
            0 if sub_offset is None else parse_number(sub_offset, "Stream-Fork-Sub-Offset"),
        )

    def _require_source(self, scope: Scope, name: StreamName) -> None:
        """A fork reads its source: one that may not be read looks like one that is missing."""
        try:
            self.gate.require(scope, "read", name)
        except Forbidden as error:
            raise StreamNotFound("there is no such stream", hint="Create it with PUT.") from error

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
        offset, since, live = query.get("offset"), query.get("since"), query.get("live")
        if since is None:
            position = parse_position(offset, tail=info.tail)
        elif offset is None:
            position = await position_since(
                self.log, exchange.name, since, now_ms=self._clock.now_ms()
            )
        else:
            raise BadOffset("offset and since exclude each other")
        if live is None:
            result = await self.log.read(exchange.name, position)
            is_moving = offset == "now" or since is not None
            await self._catch_up(exchange, result, is_moving=is_moving)
            return
        if offset is None and since is None:
            raise InvalidRequest(
                "live reads need an offset", hint="Add offset=-1, offset=now or since=-1h."
            )
        cursor = query.get("cursor")
        if live == "long-poll":
            await long_poll(self, exchange, position, cursor)
        elif live == "sse":
            await follow_by_sse(self, exchange, position, cursor)
        else:
            raise InvalidRequest("live must be long-poll or sse")

    async def _catch_up(self, exchange: Exchange, result: ReadResult, *, is_moving: bool) -> None:
        """``is_moving``: the same request means something else a moment later."""
        reply = chunk_headers(result)
        if is_moving:
            reply.append(NO_STORE)
        else:
            tag = etag(result)
            reply.append((b"etag", tag))
            reply.append(self._cache_tail if result.up_to_date else self._cache_chunk)
            if etag_matches(exchange.headers.get(b"if-none-match"), tag):
                await respond(exchange.send, 304, reply)
                return
        await respond(exchange.send, 200, reply, body_of(result))
