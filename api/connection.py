"""One HTTP connection: uvicorn's httptools protocol with the bounds it lacks (F7).

Header bytes and count, time to send headers and body, readers that stop reading, chunk overhead,
and framing that two parsers could read differently. A refused request never reaches a route.
"""

from __future__ import annotations

import fcntl
import termios
from array import array
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import httptools
from typing_extensions import override
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.asgi import WRITE_NOW, render_lines
from api.cycle import Cycle, render_whole
from api.errors import PROBLEM_TYPE, problem
from api.routes.quick import QUICK_START

if TYPE_CHECKING:
    import asyncio
    import socket

    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from api.routes.quick import QuickAppend
    from api.settings import HttpSettings

# Chunk sizes and extensions may cost this much, or this many times what they frame.
_CHUNK_OVERHEAD_BYTES: Final = 64 * 1024
_CHUNK_OVERHEAD_RATIO: Final = 16
_BODY_BYTES_PER_S_MIN: Final = 16 * 1024
# A body of this size is let through in any case: its connection costs as much.
_BODY_BYTES_FREE: Final = 64 * 1024
_LINGER_SILENT_MS: Final = 2000
# What is still read and thrown away after a refusal, so that the client can read the answer.
_DISCARD_BYTES_MAX: Final = 64 * 1024 * 1024


# uvicorn has no setting for the class of its cycles; it looks this name up for every request.
httptools_impl.RequestResponseCycle = Cycle  # type: ignore[misc]


class Phase(Enum):
    """What the parser waits for."""

    HEAD = 1
    BODY = 2
    NOTHING = 3


class RequestRefused(ValueError):
    """Raised inside parser callbacks; carries the status of the refusal."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Bodies:
    """Bytes of bodies that are being received, all connections together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max

    @property
    def are_too_many(self) -> bool:
        """Memory would end before the bodies do."""
        return self.bytes > self._bytes_max


class Connection(HttpToolsProtocol):
    """Bounds are set on a subclass per server, see ``connection_class``."""

    http: HttpSettings
    quick_append: QuickAppend
    bodies: Bodies

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._phase = Phase.HEAD
        self._since = self.loop.time()
        self._head_bytes = 0
        self._running: Cycle | None = None
        self._received_at = self._since
        self._is_between = True
        self._is_quick = False
        self._is_last = False
        self._held = b""
        self._reading = 0
        self._begun = 0
        self._is_chunked = False
        self._body_raw_bytes = 0
        self._body_bytes = 0
        self._held_bytes = 0
        self._refusal: RequestRefused | None = None
        self._is_refused = False
        self._unsent_bytes = 0
        self._unsent_since = 0.0
        if len(self.connections) > self.http.connections:
            self._refuse(RequestRefused(503, "too many connections"))

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_quick:
            self._hold(data)
            return
        self._unset_keepalive_if_required()
        if self._is_between and data.startswith(QUICK_START) and self._is_free():
            self._is_quick = self.quick_append(data, self._answer_quickly)
            if self._is_quick:
                self._phase = Phase.NOTHING
                return
        phase = self._phase
        self._reading, self._begun = len(data), 0
        try:
            self.parser.feed_data(data)
            self._count(len(data), phase)
        except httptools.HttpParserUpgrade:
            # Other protocols are not offered; the request itself is answered as plain HTTP.
            self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, RequestRefused):
                cause = RequestRefused(400, "the request is not valid HTTP")
            self._refuse_in_order(cause)
        except RequestRefused as refusal:
            self._refuse_in_order(refusal)

    def _is_free(self) -> bool:
        """Nothing is under way, and the client takes its answers."""
        return not self._is_answering() and not self.flow.write_paused

    def _hold(self, data: bytes) -> None:
        """What comes while a quick append is under way waits for its answer."""
        self._held += data
        if len(self._held) > self.http.header_bytes:
            self.flow.pause_reading()

    def _answer_quickly(self, status: int, lines: bytes, body: bytes) -> None:
        self._is_quick = False
        if self.transport.is_closing():
            return
        default_headers, keep_alive = self.server_state.default_headers, not self._is_last
        self.transport.write(
            render_whole(status, lines, body, default_headers, keep_alive=keep_alive)
        )
        self._since = self.loop.time()
        if self._is_last:
            self.transport.close()
        elif self._held:
            held, self._held = self._held, b""
            self.flow.resume_reading()
            self.data_received(held)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._let_go()
        # uvicorn tells only the newest request; with pipelining an older one may be running.
        self.pipeline.clear()
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        assert isinstance(cycle, Cycle)
        self._running = cycle
        cycle.is_followed = bool(self.pipeline)
        cycle.scope["extensions"] = {WRITE_NOW: {"send": cycle.write_now}}
        super()._start_asgi_task(cycle, app)

    @override
    def shutdown(self) -> None:
        """A quick append under way is answered first."""
        if self._is_quick:
            self._is_last = True
        else:
            super().shutdown()

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun += 1
        self._is_between = False
        self._phase = Phase.HEAD
        self._since = self.loop.time()
        self._head_bytes = 0

    @override
    def on_headers_complete(self) -> None:
        self._check_head()
        self._phase = Phase.BODY
        self._since = self.loop.time()
        self._body_raw_bytes = self._body_bytes = 0
        super().on_headers_complete()
        if self.pipeline and self._running is not None:
            self._running.is_followed = True
        # Trailers come after the body and must not pass for headers: they go nowhere.
        self.headers = []

    @override
    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if not self.cycle.response_complete:
            self._held_bytes += len(body)
            self.bodies.bytes += len(body)
            if self.bodies.are_too_many and self._held_bytes > _BODY_BYTES_FREE:
                raise RequestRefused(503, "too many bodies are being received, try again shortly")
        super().on_body(body)

    def _let_go(self) -> None:
        """The body is whole and the engine's own bounds hold for it, or nobody wants it."""
        self.bodies.bytes -= self._held_bytes
        self._held_bytes = 0

    @override
    def on_message_complete(self) -> None:
        if self._is_chunked:
            self._check_overhead(self._reading if self._begun <= 1 else 0)
        self._let_go()
        self._phase = Phase.NOTHING
        self._is_between = True
        super().on_message_complete()
        if self._is_lingering():
            self.transport.close()

    @override
    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        self._since = self.loop.time()
        super().on_response_complete()
        if self.pipeline:
            # uvicorn reads on after every answer; what is parsed already must be answered first.
            self.flow.pause_reading()
        if is_last and self._refusal is not None:
            self._refuse(self._refusal)

    def check_timeouts(self, now: float) -> None:
        """Called about once a second: end what takes too long."""
        if self.transport.is_closing():
            self._check_stalled(now)
            return
        waited_ms = (now - self._since) * 1000
        if self._is_lingering():
            silent_ms = (now - self._received_at) * 1000
            if silent_ms > _LINGER_SILENT_MS or waited_ms > self._body_allowance_ms():
                self.transport.close()
            return
        if self._is_behind():
            self._check_stalled(now)
        elif self._phase is Phase.HEAD and waited_ms > self.http.header_timeout_ms:
            self._refuse(RequestRefused(408, "the headers took too long"))
        elif self._phase is Phase.BODY and waited_ms > self._body_allowance_ms():
            self._refuse(RequestRefused(408, "the body took too long"))
        elif self._is_idle() and waited_ms > self.http.keep_alive_ms:
            self.transport.close()
        else:
            self._check_stalled(now)

    def _is_behind(self) -> bool:
        """What is being received waits for the answer to an earlier request, and so may we."""
        if self._phase is Phase.HEAD:
            return self._is_answering()
        return bool(self.pipeline)

    def _is_idle(self) -> bool:
        return self._phase is Phase.NOTHING and not self._is_quick and not self._is_answering()

    def _body_allowance_ms(self) -> float:
        """Time for the whole body so far: a trickle does not hold a connection for ever."""
        earned_ms = 1000 * self._body_raw_bytes / _BODY_BYTES_PER_S_MIN
        return self.http.body_timeout_ms + earned_ms

    def _check_stalled(self, now: float) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            # The kernel holds megabytes more, which a slow reader takes before any of ours moves.
            unsent += _kernel_unsent_bytes(self.transport.get_extra_info("socket"))
        if unsent == 0 or unsent != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent, now
        elif (now - self._unsent_since) * 1000 > self.http.write_timeout_ms:
            self.transport.abort()

    def _count(self, received: int, phase: Phase) -> None:
        if self._phase is Phase.NOTHING and phase is Phase.NOTHING and not self._is_answering():
            # Empty lines begin no request, but they have stopped the keep-alive timer.
            self._phase, self._since = Phase.HEAD, self.loop.time()
            return
        if self._phase is Phase.HEAD and phase is Phase.HEAD:
            # A read in which several requests begin says little about the last one's head.
            self._head_bytes += received if self._begun <= 1 else 0
            if self._head_bytes > self.http.header_bytes:
                raise RequestRefused(431, "the headers are too large")
        elif self._phase is Phase.BODY:
            self._body_raw_bytes += received
            self._received_at = self.loop.time()
            if self._is_chunked:
                self._check_overhead(0)
            if self.cycle.response_complete and self._body_raw_bytes > _DISCARD_BYTES_MAX:
                self.transport.abort()

    def _check_overhead(self, unread: int) -> None:
        """Refuse chunks that are mostly framing; ``unread`` bytes are not counted yet."""
        overhead = self._body_raw_bytes + unread - self._body_bytes
        allowed = max(_CHUNK_OVERHEAD_BYTES, _CHUNK_OVERHEAD_RATIO * self._body_bytes)
        if overhead > allowed + self.http.header_bytes:
            raise RequestRefused(400, "the chunks carry more framing than data")

    def _check_head(self) -> None:
        """Refuse what is too much, and what other HTTP software might read otherwise."""
        size, hosts = len(self.url), 0
        encodings: list[bytes] = []
        for name, value in self.headers:
            size += len(name) + len(value)
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                encodings.append(value.lower())
        if size > self.http.header_bytes or len(self.headers) > self.http.header_count:
            raise RequestRefused(431, "the headers are too large or too many")
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise RequestRefused(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise RequestRefused(400, "one Host header is needed")
        if encodings and encodings != [b"chunked"]:
            _refuse_encodings(encodings)
        self._is_chunked = bool(encodings)
        if self._is_chunked and version == "1.0":
            raise RequestRefused(400, "HTTP/1.0 has no transfer encodings")

    def _refuse_in_order(self, refusal: RequestRefused) -> None:
        """Earlier requests of the connection get their answers first."""
        if self._phase is Phase.BODY and self.pipeline:
            # The refused request waits behind others: it must not run with half a body.
            self.pipeline.popleft()
            is_busy = True
        else:
            is_busy = self._phase is not Phase.BODY and self._is_answering()
        if is_busy:
            self._refusal = refusal
            self._is_refused = True
            self.flow.pause_reading()
        else:
            self._refuse(refusal)

    def _is_lingering(self) -> bool:
        return isinstance(self.cycle, Cycle) and self.cycle.is_lingering

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, refusal: RequestRefused) -> None:
        """Answer and close. A route that waits for the rest of the body sees a client gone."""
        self._is_refused = True
        if self._phase is Phase.BODY and self._is_answering() and self.cycle.response_started:
            self.transport.abort()
            return
        status = refusal.status
        body = problem(status, HTTPStatus(status).name.lower(), refusal.detail)
        headers, defaults = [(b"content-type", PROBLEM_TYPE)], self.server_state.default_headers
        if status == 503:
            headers.append((b"retry-after", b"1"))
        lines = render_lines(headers)
        self.transport.write(render_whole(status, lines, body, defaults, keep_alive=False))
        self.transport.close()


def _kernel_unsent_bytes(connected: socket.socket) -> int:
    """Bytes the kernel has taken and the peer has not acknowledged."""
    count = array("i", [0])
    fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, count)
    return count[0]


def _refuse_encodings(encodings: list[bytes]) -> None:
    """Known but not offered is one thing, ambiguous framing another."""
    codings = [coding.strip() for coding in encodings[0].split(b",")]
    is_clear = len(encodings) == 1 and codings[-1] == b"chunked" and len(codings) > 1
    if is_clear and b"identity" not in codings and b"" not in codings:
        raise RequestRefused(501, "the only transfer encoding is chunked")
    raise RequestRefused(400, "the transfer encoding is not clear")


def connection_class(
    http: HttpSettings, quick_append: QuickAppend, *, bodies_bytes_max: int
) -> type[Connection]:
    """The protocol class that uvicorn makes one instance of per connection."""
    bodies = Bodies(bodies_bytes_max)
    namespace = {"http": http, "quick_append": quick_append, "bodies": bodies}
    return type("BoundedConnection", (Connection,), namespace)
