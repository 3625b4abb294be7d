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

_EXPOSED: Final = (
    b"Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Producer-Epoch,"
    b" Producer-Seq, Producer-Expected-Seq, Producer-Received-Seq, Stream-SSE-Data-Encoding, ETag,"
    b" Location, Content-Type, Content-Encoding, Vary, Retry-After"
)
_ALLOWED_METHODS: Final = b"GET, POST, PUT, DELETE, HEAD, OPTIONS"
_ALLOWED_HEADERS: Final = (
    b"content-type, authorization, if-none-match, stream-seq, stream-ttl, stream-expires-at,"
    b" stream-closed, producer-id, producer-epoch, producer-seq, stream-forked-from,"
    b" stream-fork-offset, stream-fork-sub-offset"
)

# Browsers must neither guess a type nor run what a stream holds, and may read it from any origin.
EVERY_RESPONSE: Final[Headers] = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"cross-origin"),
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", _EXPOSED),
]
PREFLIGHT: Final[Headers] = [
    (b"access-control-allow-methods", _ALLOWED_METHODS),
    (b"access-control-allow-headers", _ALLOWED_HEADERS),
    (b"access-control-max-age", b"86400"),
]
NO_STORE: Final = (b"cache-control", b"no-store")
BODILESS: Final = frozenset({204, 304})
ALLOW: Final = (b"allow", _ALLOWED_METHODS)


class Exchange(NamedTuple):
    """One request for one stream, and the way to answer it."""

    scope: Scope
    headers: dict[bytes, bytes]
    name: StreamName
    receive: Receive
    send: Send


def with_length(status: int, headers: Headers, body: bytes) -> Headers:
    """The headers with the length of the body, where a response of that status has one."""
    if status in BODILESS:
        return headers
    return [*headers, (b"content-length", b"%d" % len(body))]


async def respond(send: Send, status: int, headers: Headers, body: bytes = b"") -> None:
    """Send a whole response."""
    headers = with_length(status, headers, body)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
