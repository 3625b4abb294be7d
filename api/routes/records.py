"""The records dialect (DurableStreams): /v1/records/{name}, and /{name} where a setting says so.

The same streams as in /v1/stream: a record here is a message there. Nothing is created beforehand;
the first append does it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from api.asgi import Exchange, Headers, Receive, Scope, Send, respond
from api.body import ClientGone, check_framing, read_body
from api.chunk import CLOSED
from api.protocol import JSON_TYPE, headers_by_name, parse_query
from api.records import (
    JSON_HEADERS,
    NO_RECORDS,
    RESPONSE_BYTES,
    TIMEOUT_MS_MAX,
    RecordsQuery,
    parse_get,
    parse_post,
    parse_records_path,
    render_appended,
    render_not_allowed,
    render_records,
    render_refusal,
    render_version,
)
from api.refusal import send_refusal
from api.routes.append import given_header
from api.routes.live import watch_client
from api.since import position_since
from engine import (
    START,
    BottomlessError,
    CreateRequest,
    parse_moment,
    position_at,
)
from engine.errors import (
    InvalidRequest,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamNotFound,
    VersionTooOld,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from api.auth.gate import Gate
    from api.auth.grants import Action
    from api.settings import HttpSettings
    from engine import (
        AppendRequest,
        AppendResult,
        Clock,
        Follower,
        Log,
        Offset,
        RecordsResult,
        StreamName,
    )
    from engine.settings import LimitSettings

_ALLOW: Final = (b"allow", b"GET, HEAD, POST, DELETE, OPTIONS")
_DELETED: Final = b'{"success":true}'
# A stream that is deleted as often as it is created gives up its writer after a few rounds.
_CREATE_TRIES: Final = 4
# A stream that has expired is still there until its end is durable.
_EXPIRY_POLL_S: Final = 0.02
_ACTIONS: Final[dict[str, Action]] = {
    "GET": "read",
    "HEAD": "read",
    "POST": "append",
    "DELETE": "delete",
}


class RecordsDialect:
    """POST, GET, HEAD and DELETE of streams."""

    def __init__(
        self,
        log: Log,
        http: HttpSettings,
        limits: LimitSettings,
        *,
        gate: Gate,
        clock: Clock,
    ) -> None:
        self._log = log
        self._limits = limits
        self._gate = gate
        self._clock = clock
        self._timeout_ms_max = max(TIMEOUT_MS_MAX, http.long_poll_timeout_ms)
        self._handlers: dict[str, Callable[[Exchange], Awaitable[None]]] = {
            "GET": self._get,
            "HEAD": self._get,
            "POST": self._post,
            "DELETE": self._delete,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. Errors of the engine become refusals here and nowhere else."""
        method = scope["method"]
        handler = self._handlers.get(method)
        if handler is None:
            await respond(send, 405, [*JSON_HEADERS, _ALLOW], render_not_allowed(method))
            return
        try:
            name = parse_records_path(scope["raw_path"], bytes_max=self._limits.name_bytes)
            self._gate.require(scope, _ACTIONS[method], name)
            await handler(Exchange(scope, headers_by_name(scope["headers"]), name, receive, send))
        except ClientGone:
            return
        except BottomlessError as error:
            await send_refusal(send, method, error, render_refusal)

    # Write.

    async def _post(self, exchange: Exchange) -> None:
        check_framing(exchange.headers, self._limits.body_bytes)
        body = await read_body(exchange.receive, self._limits.body_bytes)
        query = parse_query(exchange.scope["query_string"])
        request = parse_post(query, exchange.headers, self._limits, body)
        if not request.body and not request.close:
            await self._post_nothing(exchange, request)
            return
        result = await self._append(exchange, request)
        reply: Headers = [*JSON_HEADERS, given_header(result.ack)]
        if result.closed:
            reply.append(CLOSED)
        if request.producer is not None:
            reply.append((b"producer-epoch", b"%d" % result.producer_epoch))
            reply.append((b"producer-seq", b"%d" % result.producer_seq))
        await respond(exchange.send, 200, reply, render_appended(result))

    async def _post_nothing(self, exchange: Exchange, request: AppendRequest) -> None:
        """No records: the version is told, and kept if it is higher than any before."""
        if request.producer is not None or request.stream_seq is not None:
            raise InvalidRequest("an append of no records has no sequence number")
        known, wanted = self._version_of(exchange.name), request.fence
        if wanted is not None and wanted < known:
            raise VersionTooOld(current=known, provided=wanted)
        if wanted is not None and wanted > known:
            result = await self._append(exchange, request)
            if result.duplicate:
                # A closed stream takes nothing any more, so it says that this is all there is.
                raise StreamClosed(result.tail)
            known = wanted
        await respond(exchange.send, 200, JSON_HEADERS, render_version(known))

    def _version_of(self, name: StreamName) -> int:
        try:
            return self._log.head(name).fence
        except StreamNotFound:
            return 0

    async def _append(self, exchange: Exchange, request: AppendRequest) -> AppendResult:
        """Append, and create the stream if that is what is missing."""
        refusal: BottomlessError = StreamNotFound("the stream was deleted again and again")
        for _ in range(_CREATE_TRIES):
            try:
                return await self._log.append(exchange.name, request)
            except StreamNotFound:
                self._gate.require(exchange.scope, "create", exchange.name)
            if request.fence is not None and request.fence < 0:
                raise VersionTooOld(current=0, provided=request.fence)
            try:
                await self._log.create(exchange.name, CreateRequest(content_type=JSON_TYPE))
            except StreamExists as error:
                # Somebody else was faster, with settings of their own: the append says if they fit.
                refusal = error
        raise refusal

    async def _delete(self, exchange: Exchange) -> None:
        # Whoever repeats a DELETE wants the same as whoever was first.
        with contextlib.suppress(StreamNotFound, StreamGone):
            await self._log.delete(exchange.name)
        await respond(exchange.send, 200, JSON_HEADERS, _DELETED)

    # Read.

    async def _get(self, exchange: Exchange) -> None:
        parameters = parse_query(exchange.scope["query_string"])
        query = parse_get(parameters, timeout_ms_max=self._timeout_ms_max)
        name = exchange.name
        position = await self._position(name, query)
        result: RecordsResult | None = None
        with contextlib.suppress(StreamNotFound):
            result = await self._log.read_records(
                name, position, count_max=query.limit, bytes_max=RESPONSE_BYTES
            )
        if query.timeout_ms and (result is None or not (result.records or result.closed)):
            patience = Patience(self._log, name, query.timeout_ms)
            with watch_client(exchange, patience, self._gate) as peer:
                result = await patience.read(position, count_max=query.limit)
                if peer.is_gone:
                    return
                peer.check()
        reply = [*JSON_HEADERS, CLOSED] if result is not None and result.closed else JSON_HEADERS
        body = NO_RECORDS if result is None else render_records(result)
        await respond(exchange.send, 200, reply, body)

    async def _position(self, name: StreamName, query: RecordsQuery) -> Offset:
        """Where to begin, also in a stream that does not exist yet."""
        if query.position is not None:
            return query.position
        now_ms = self._clock.now_ms()
        try:
            if query.since is None:
                return self._log.head(name).tail
            return await position_since(self._log, name, query.since, now_ms=now_ms)
        except StreamNotFound:
            return (
                START
                if query.since is None
                else position_at(parse_moment(query.since, now_ms=now_ms))
            )


class Patience:
    """Waits for the records of a stream that exists, has to be created first, or is replaced."""

    def __init__(self, log: Log, name: StreamName, timeout_ms: int) -> None:
        self._log = log
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_ms / 1000
        self._is_over = False
        self._follower: Follower | None = None
        self._coming: asyncio.Task[bool] | None = None
        self._misses = 0

    async def read(self, position: Offset, *, count_max: int) -> RecordsResult | None:
        """The first records after ``position``; none when the time is up or it was interrupted."""
        while not self._is_over:
            try:
                with self._log.follow(self._name, "records") as self._follower:
                    result = await self._follow(self._follower, position, count_max)
            except StreamNotFound:
                await self._expect()
            else:
                if result is not None:
                    return result
            finally:
                self._follower = None
        return None

    def interrupt(self) -> None:
        """End the wait for good."""
        self._is_over = True
        if self._follower is not None:
            self._follower.interrupt()
        if self._coming is not None:
            self._coming.cancel()

    def _remaining_ms(self) -> int:
        return max(0, int((self._deadline - self._loop.time()) * 1000))

    async def _follow(
        self, follower: Follower, position: Offset, count_max: int
    ) -> RecordsResult | None:
        """None if the stream went away, or nothing came."""
        self._misses = 0
        while not (follower.is_gone or self._is_over):
            result = await follower.read_records(
                position, count_max=count_max, bytes_max=RESPONSE_BYTES
            )
            if result.records or result.closed:
                return result
            # No await between the read and this: no append can slip through.
            is_changed = await follower.wait(self._remaining_ms())
            if not is_changed and not follower.is_gone:
                self._is_over = True
        return None

    async def _expect(self) -> None:
        """Wait for a stream of that name."""
        if self._misses:
            # An expired stream is there, and is not, until its end is durable.
            await asyncio.sleep(_EXPIRY_POLL_S)
        self._misses += 1
        self._coming = self._loop.create_task(
            self._log.wait_for_stream(self._name, self._remaining_ms())
        )
        try:
            await asyncio.wait({self._coming})
            if self._coming.cancelled() or not self._coming.result() or not self._remaining_ms():
                self._is_over = True
        finally:
            self._coming.cancel()
            self._coming = None
