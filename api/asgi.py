"""The few ASGI words the data plane needs, and the headers every response carries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from engine import StreamName

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
Body = bytes | tuple[bytes | memoryview, ...]
"""The bytes of a response, or the pieces they are made of: our own cycle sends those uncopied."""

_EXPOSED: Final = (
    b"Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-Ack,"
    b" Producer-Epoch, Producer-Seq, Producer-Expected-Seq, Producer-Received-Seq,"
    b" Stream-SSE-Data-Encoding, Stream-Earliest-Offset, ETag, Location, Content-Type,"
    b" Content-Encoding, Vary, Retry-After"
)
_ALLOWED_METHODS: Final = b"GET, POST, PUT, DELETE, HEAD, OPTIONS"
_ALLOWED_HEADERS: Final = (
    b"content-type, authorization, auth, if-none-match, stream-seq, stream-ttl, stream-expires-at,"
    b" stream-closed, stream-ack, producer-id, producer-epoch, producer-seq, stream-forked-from,"
    b" stream-fork-offset, stream-fork-sub-offset"
)

PREFLIGHT: Final[Headers] = [
    # PATCH is for the settings of a stream, not for the stream itself.
    (b"access-control-allow-methods", _ALLOWED_METHODS + b", PATCH"),
    (b"access-control-allow-headers", _ALLOWED_HEADERS),
    (b"access-control-max-age", b"86400"),
]
NO_STORE: Final = (b"cache-control", b"no-store")
BODILESS: Final = frozenset({204, 304})
ALLOW: Final = (b"allow", _ALLOWED_METHODS)


def every_response(origins: tuple[str, ...], *, is_guarded: bool) -> Headers:
    """The headers of every response there is.

    Browsers must neither guess a type nor run what a stream holds. A page of any origin may read it
    (no cookie is ever used, so a page has no right but the token it was given), or only the pages
    of a list: then `allow_origin` adds who may, and nobody else may embed it.
    """
    varies = [b"Authorization, auth"] if is_guarded else []
    is_public = "*" in origins
    headers: Headers = [(b"x-content-type-options", b"nosniff")]
    if is_public:
        headers.append((b"access-control-allow-origin", b"*"))
    else:
        varies.append(b"Origin")
    headers.append(
        (b"cross-origin-resource-policy", b"cross-origin" if is_public else b"same-origin")
    )
    headers.append((b"access-control-expose-headers", _EXPOSED))
    if varies:
        headers.append((b"vary", b", ".join(varies)))
    return headers


def allow_origin(origins: frozenset[bytes], scope: Scope, send: Send) -> Send:
    """Let the page of a listed origin read the response. Compared whole: ``null``, another scheme,
    port or a longer host are other origins.
    """
    asked = [value for name, value in scope["headers"] if name == b"origin"]
    if len(asked) != 1 or asked[0] not in origins:
        return send
    return add_header(send, (b"access-control-allow-origin", asked[0]))


def add_header(send: Send, header: tuple[bytes, bytes]) -> Send:
    """A way to send with one header more, unless the response has one of that name."""

    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message["headers"]
            if all(name != header[0] for name, _ in headers):
                message = {**message, "headers": [*headers, header]}
        await send(message)

    return send_with


WRITE_NOW: Final = "bottomless.write_now"
"""Extension of the scope: its ``send`` sends a `Part` at once, or says False where it cannot."""


class Part:
    """A part of a body that many readers get: framed once."""

    __slots__ = ("body", "chunk")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.chunk = b"%x\r\n%b\r\n" % (len(body), body)
        """As chunked transfer encoding sends it."""


class Exchange(NamedTuple):
    """One request for one stream, and the way to answer it."""

    scope: Scope
    headers: dict[bytes, bytes]
    name: StreamName
    receive: Receive
    send: Send


def render_lines(headers: Headers) -> bytes:
    """The headers as they are sent."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def with_length(status: int, headers: Headers, body: Body) -> Headers:
    """The headers with the length of the body, where a response of that status has one."""
    if status in BODILESS:
        return headers
    length = len(body) if isinstance(body, bytes) else sum(map(len, body))
    return [*headers, (b"content-length", b"%d" % length)]


async def respond(send: Send, status: int, headers: Headers, body: Body = b"") -> None:
    """Send a whole response."""
    headers = with_length(status, headers, body)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
