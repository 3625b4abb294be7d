"""JSON text taken apart without changing a byte of what is inside.

Big integers, 1.0, key order, duplicate keys and escapes all survive: nothing is parsed and written
again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from engine.errors import BadJson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

JSON_SPACE: Final = b" \t\r\n"
_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_one: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_LETTER: Final = rb"\\u0041"


def split_json(body: bytes) -> Sequence[bytes | memoryview | msgspec.Raw]:
    """The records' own bytes: the elements of an array, or the one value that is no array."""
    return _exactly(body, _decode_json)


def json_member(body: bytes, name: str) -> bytes | None:
    """The own bytes of an object's member; None where the body is no object, or has none."""
    if not body.lstrip(JSON_SPACE).startswith(b"{"):
        split_json(body)
        return None

    def member(text: bytes) -> list[msgspec.Raw]:
        # Of a name that comes twice the last one counts.
        found = _decode_object(text).get(name)
        return [] if found is None else [found]

    found = _exactly(body, member)
    return bytes(found[0]) if found else None


def _exactly(
    body: bytes, decode: Callable[[bytes], Sequence[bytes | msgspec.Raw]]
) -> Sequence[bytes | memoryview | msgspec.Raw]:
    try:
        try:
            return decode(body)
        except msgspec.DecodeError:
            # RFC 8259 allows an escape that is half a surrogate pair; msgspec does not.
            if not _SURROGATE.search(body):
                raise
            plain = _SURROGATE.sub(_LETTER, without_pairs(body))
            return _same_places(body, plain, decode(plain))
    except msgspec.DecodeError as error:
        raise BadJson(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise BadJson("the JSON body is nested too deeply") from error


def _decode_json(body: bytes) -> Sequence[bytes | msgspec.Raw]:
    if body.lstrip(JSON_SPACE).startswith(b"["):
        return _decode_array(body)
    return [bytes(_decode_one(body)).strip(JSON_SPACE)]


def without_pairs(body: bytes) -> bytes:
    """The body with escaped backslashes masked: every backslash left begins another escape."""
    return body.replace(b"\\\\", b"__")


def _same_places(
    body: bytes, plain: bytes, found: Sequence[bytes | msgspec.Raw]
) -> list[memoryview]:
    """The bytes of ``body`` where ``plain``, which has the same length, holds what was found."""
    records, view, start = [], memoryview(body), _address(plain)
    for record in found:
        # A value is a view of the text; one that stands alone is a copy, without spaces around it.
        place = plain.index(record) if isinstance(record, bytes) else _address(record) - start
        end = place + len(record)
        assert plain[place:end] == bytes(record), "the value lies elsewhere"
        records.append(view[place:end])
    return records


def _address(data: bytes | msgspec.Raw) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)
