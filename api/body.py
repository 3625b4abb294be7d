"""The body of a request: read within its limits, or refused before it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.errors import EncodingUnsupported
from engine.errors import PayloadTooLarge

if TYPE_CHECKING:
    from api.asgi import Receive


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


def check_framing(headers: dict[bytes, bytes], bytes_max: int) -> None:
    """Refuse by the headers alone, before the first byte of the body is asked for."""
    if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
        raise EncodingUnsupported(
            "compressed bodies are not supported", hint="Send the body without Content-Encoding."
        )
    length = headers.get(b"content-length")
    if length is not None and int(length) > bytes_max:
        raise _too_large(bytes_max)


async def read_body(receive: Receive, bytes_max: int) -> bytes:
    """The whole body; what is over the limit is refused as soon as that is known."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message["body"]
    if not message["more_body"]:
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        return body
    parts, size = [body], len(body)
    while message["more_body"]:
        if size > bytes_max:
            raise _too_large(bytes_max)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message["body"])
        size += len(parts[-1])
    if size > bytes_max:
        raise _too_large(bytes_max)
    return b"".join(parts)


def _too_large(bytes_max: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the body is larger than {bytes_max} bytes", hint="Send the records in several appends."
    )
