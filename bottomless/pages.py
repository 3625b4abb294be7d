"""Pages of stored records as the server sends them, each with its offset (docs/records.md)."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Final

import msgspec

from bottomless.errors import DataDamaged

if TYPE_CHECKING:
    import httpx

# RFC 8259 allows an escape that is half a surrogate pair, and so does the server; msgspec does not.
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_LETTER: Final = rb"\\u0041"


class Stored(msgspec.Struct):
    """A stored record."""

    offset: str
    data: msgspec.Raw
    encoding: str = ""

    def json(self) -> bytes:
        """Of a JSON stream: the value as it was sent."""
        return bytes(self.data)

    def text(self) -> str:
        """Of a text stream."""
        return _decode_text(self.data)

    def bytes(self) -> bytes:
        """Of all others."""
        return base64.b64decode(_decode_text(self.data))


class _Page(msgspec.Struct):
    records: list[Stored]


_decode: Final = msgspec.json.Decoder(_Page).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


def records_of(response: httpx.Response) -> list[Stored]:
    """The records of one answer."""
    body = response.content
    try:
        try:
            return _decode(body).records
        except msgspec.DecodeError:
            if not _SURROGATE.search(body):
                raise
            # An escaped backslash is no beginning of another escape.
            plain = _SURROGATE.sub(_LETTER, body.replace(b"\\\\", b"__"))
            return _own_bytes(body, _decode(plain).records)
    except (msgspec.DecodeError, ValueError) as error:
        raise DataDamaged(
            f"the answer of {response.url} is not what servers send: {error}"
        ) from error


def _own_bytes(body: bytes, records: list[Stored]) -> list[Stored]:
    """Records of a text of the same length, with the bytes that ``body`` has in their places."""
    place = 0
    for record in records:
        head = b'{"offset":"%s","data":' % record.offset.encode()
        begin = body.index(head, place) + len(head)
        place = begin + len(bytes(record.data))
        record.data = msgspec.Raw(body[begin:place])
    return records
