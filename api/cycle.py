"""One request and its response: uvicorn's cycle, with one write and little work per header.

Profiled at 64 connections: checking every header with two regular expressions and writing head and
body separately took a sixth of an append's CPU. Our routes only send values they have checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from api.asgi import BODILESS, render_lines

if TYPE_CHECKING:
    from api.asgi import Headers, Message, Part


class DefaultHeaders:
    """The headers of every response as bytes. uvicorn makes a new list when the date changes."""

    def __init__(self) -> None:
        self._source: Headers | None = None
        self._rendered = b""

    def render(self, source: Headers) -> bytes:
        """The bytes of ``source``, rendered once per list."""
        if source is not self._source:
            self._rendered = render_lines(source)
            self._source = source
        return self._rendered


_default_headers: Final = DefaultHeaders()


def render_head(status: int, lines: bytes, default_headers: Headers, *, keep_alive: bool) -> bytes:
    """Status line and headers (given as lines) of a response, with the empty line."""
    defaults = _default_headers.render(default_headers)
    end = b"\r\n" if keep_alive else b"connection: close\r\n\r\n"
    return b"".join((STATUS_LINE[status], defaults, lines, end))


def render_whole(
    status: int, lines: bytes, body: bytes, default_headers: Headers, *, keep_alive: bool
) -> bytes:
    """A whole response."""
    if status not in BODILESS:
        lines += b"content-length: %d\r\n" % len(body)
    return render_head(status, lines, default_headers, keep_alive=keep_alive) + body


class Cycle(RequestResponseCycle):
    """Holds the head back until the first part of the body, and sends both at once."""

    is_followed = False
    """Requests wait behind this one."""
    is_lingering = False
    """Answered, but the body still comes; it is thrown away."""
    _head: bytes = b""
    _has_held_body = False

    @override
    async def send(self, message: Message) -> None:  # type: ignore[override]
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected or self.transport.is_closing():
            self.disconnected = True
            return
        if message["type"] == "http.response.start":
            assert not self.response_started
            self._start(message["status"], message["headers"])
        else:
            assert self.response_started
            assert not self.response_complete
            self._write(message.get("body", b""), is_last=not message.get("more_body", False))

    def write_now(self, part: Part) -> bool:
        """Send a part of the body; False, and nothing is sent, where that would have to wait."""
        is_ready = self.response_started and not self._head and not self.response_complete
        if not is_ready or self.flow.write_paused or self.transport.is_closing():
            return False
        self.transport.write(part.chunk if self.chunked_encoding else part.body)
        return True

    @override
    async def receive(self) -> Message:  # type: ignore[override]
        """uvicorn's own, but it reads on only for a body: not for more requests behind this one."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            if self.more_body or not self.is_followed:
                self.flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def _start(self, status: int, headers: Headers) -> None:
        self.response_started = True
        if self.waiting_for_100_continue:
            # The client holds its body back and may never send it: what comes next is unclear.
            self.waiting_for_100_continue = False
            self.keep_alive = False
            self._has_held_body = True
        scope = self.scope
        # HTTP/1.0 knows no chunks; there the end of the connection is the end of the body.
        self.chunked_encoding = (
            status not in BODILESS and scope["method"] != "HEAD" and scope["http_version"] != "1.0"
        )
        for name, value in headers:
            if name == b"content-length":
                self.chunked_encoding = False
            elif name == b"connection" and value == b"close":
                self.keep_alive = False
        kept = [header for header in headers if header[0] != b"connection"]
        if self.chunked_encoding:
            kept.append((b"transfer-encoding", b"chunked"))
        lines = render_lines(kept)
        self._head = render_head(status, lines, self.default_headers, keep_alive=self.keep_alive)

    def _write(self, body: Any, *, is_last: bool) -> None:  # noqa: ANN401  (bytes-like)
        parts = [self._head] if self._head else []
        self._head = b""
        if self.scope["method"] != "HEAD":
            if self.chunked_encoding:
                parts += _chunked(body, is_last=is_last)
            elif isinstance(body, tuple):
                # Large: the transport keeps references, and nobody copies.
                parts += body
            elif body:
                parts.append(body)
        if len(parts) == 1:
            self.transport.write(parts[0])
        elif parts:
            self.transport.writelines(parts)
        if is_last:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self._close()
            self.on_response()

    def _close(self) -> None:
        """A client that still sends its body would lose the answer with the connection: it gets
        the time to finish, and the connection ends with the body.
        """
        if self.more_body and not self._has_held_body:
            self.is_lingering = True
        else:
            self.transport.close()


def _chunked(body: bytes, *, is_last: bool) -> list[bytes]:
    parts = [b"%x\r\n" % len(body), body, b"\r\n"] if body else []
    return [*parts, b"0\r\n\r\n"] if is_last else parts
