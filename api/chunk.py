"""A chunk of records as HTTP: its headers, its ETag, its body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from engine import PayloadKind, format_wire

if TYPE_CHECKING:
    from api.asgi import Body, Headers
    from engine import ReadResult

CLOSED: Final = (b"stream-closed", b"true")
_UP_TO_DATE: Final = (b"stream-up-to-date", b"true")
_SANDBOX: Final = (b"content-security-policy", b"sandbox; default-src 'none'")
# What is neither JSON nor text is for programs: a browser saves it and shows none of it.
_ATTACHMENT: Final = (b"content-disposition", b"attachment")
# One write of one small string is cheaper than one of several; a large one is not worth a copy.
_COPY_BYTES_MAX: Final = 16 * 1024


def chunk_headers(result: ReadResult) -> Headers:
    """What every response to a read says."""
    reply: Headers = [
        (b"content-type", result.content_type.encode("ascii")),
        (b"stream-next-offset", format_wire(result.end).encode("ascii")),
        _SANDBOX,
    ]
    if result.kind is PayloadKind.BYTES:
        reply.append(_ATTACHMENT)
    if result.up_to_date:
        reply.append(_UP_TO_DATE)
    if result.closed:
        reply.append(CLOSED)
    return reply


def etag(result: ReadResult) -> bytes:
    """Changes with the incarnation, the range and the closing of what it names."""
    mark = ":c" if result.closed else ""
    start, end = format_wire(result.start), format_wire(result.end)
    return f'"{result.stream_id:x}:{start}:{end}{mark}"'.encode("ascii")


def join_pieces(result: ReadResult) -> bytes:
    """A JSON array, or the plain bytes one after another."""
    if result.kind is PayloadKind.JSON:
        return b"[%b]" % b",".join(result.pieces)
    return b"".join(result.pieces)


def body_of(result: ReadResult) -> Body:
    """What `join_pieces` says, but large pieces stay where they are, for the kernel to take them
    from the cache.
    """
    pieces = result.pieces
    if sum(map(len, pieces)) <= _COPY_BYTES_MAX:
        return join_pieces(result)
    if result.kind is not PayloadKind.JSON:
        return pieces
    body: list[bytes | memoryview] = [b","] * (2 * len(pieces) + 1)
    body[0], body[-1] = b"[", b"]"
    body[1::2] = pieces
    return tuple(body)
