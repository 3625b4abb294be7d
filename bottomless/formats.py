"""Formats: what a value looks like as bytes, chosen by the stream's content type.

JSON streams keep every value as a record of its own. In every other stream an append is one record
and holds a whole batch, so these formats can also tell where a value ends: lines, CSV rows,
MessagePack objects. Raw bytes have no such mark: one value is one append.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from bottomless.errors import DataDamaged, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_UNWRITABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)
Value = Any
"""What a format makes of bytes: it depends on the format, and often on the data."""


class Format(Protocol):
    """One way to write values."""

    @property
    def content_types(self) -> tuple[str, ...]:
        """What it is used for; ``text/*`` and ``*/*`` for all others of a kind."""

    @property
    def joins(self) -> bool:
        """Whether several values can share one append."""

    def encode(self, value: Value) -> bytes:
        """One value; InvalidRequest where it cannot be written."""

    def join(self, parts: Sequence[bytes]) -> bytes:
        """The body of an append of these encoded values."""

    def decode(self, record: bytes) -> Iterable[Value]:
        """All values of one record; DataDamaged where it is not of this format."""


class Json:
    """Any JSON value. ``msgspec.Raw`` goes through as it is."""

    content_types = ("application/json",)
    joins = True

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode

    def encode(self, value: Value) -> bytes:
        """The value's JSON text."""
        try:
            return self._encode(value)
        except _UNWRITABLE as error:
            raise _unwritable(value, error) from error

    def join(self, parts: Sequence[bytes]) -> bytes:
        """An array, which the server takes apart again; also of a single value, which may itself be
        an array.
        """
        return b"[" + b",".join(parts) + b"]"

    def decode(self, record: bytes) -> Iterable[Value]:
        """The one value."""
        return (_decoded(_json_value, record),)


class Ndjson:
    """JSON, one value a line."""

    content_types = ("application/x-ndjson", "application/jsonl", "application/ndjson")
    joins = True

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode

    def encode(self, value: Value) -> bytes:
        """One line."""
        return _encoded(self._encode, value).replace(b"\n", b" ") + b"\n"

    def join(self, parts: Sequence[bytes]) -> bytes:
        """The lines."""
        return b"".join(parts)

    def decode(self, record: bytes) -> Iterable[Value]:
        """A value for each line that is not blank."""
        return [_decoded(_json_value, line) for line in record.split(b"\n") if line.strip()]


class Csv:
    """Rows: sequences of values, which come back as lists of text."""

    content_types = ("text/csv",)
    joins = True

    def encode(self, value: Value) -> bytes:
        """One row, with quotes where they are needed (RFC 4180)."""
        if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
            raise InvalidRequest(
                f"a row of CSV is a sequence of values, not {type(value).__name__}"
            )
        text = io.StringIO()
        csv.writer(text).writerow(value)
        return _encoded(str.encode, text.getvalue())

    def join(self, parts: Sequence[bytes]) -> bytes:
        """The rows."""
        return b"".join(parts)

    def decode(self, record: bytes) -> Iterable[Value]:
        """A list of text for each row."""
        try:
            return list(csv.reader(io.StringIO(record.decode(), newline=""), strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataDamaged(f"a record is not CSV: {error}") from error


class MessagePack:
    """Any MessagePack object, one behind the other."""

    content_types = ("application/msgpack", "application/vnd.msgpack", "application/x-msgpack")
    joins = True

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode

    def encode(self, value: Value) -> bytes:
        """One object."""
        return _encoded(self._encode, value)

    def join(self, parts: Sequence[bytes]) -> bytes:
        """The objects."""
        return b"".join(parts)

    def decode(self, record: bytes) -> Iterable[Value]:
        """A value for each object."""
        found, begin = [], 0
        while begin < len(record):
            end = end_of_object(record, begin)
            if end is None:
                raise DataDamaged("a MessagePack object is cut off")
            found.append(_decoded(msgspec.msgpack.decode, record[begin:end]))
            begin = end
        return found


class Text:
    """Text, one value an append."""

    content_types = ("text/plain", "text/*")
    joins = False

    def encode(self, value: Value) -> bytes:
        """UTF-8."""
        if not isinstance(value, str):
            raise InvalidRequest(f"this stream takes text, not {type(value).__name__}")
        return _encoded(str.encode, value)

    def join(self, parts: Sequence[bytes]) -> bytes:
        """The one text."""
        (part,) = parts
        return part

    def decode(self, record: bytes) -> Iterable[Value]:
        """The text."""
        try:
            return (record.decode(),)
        except UnicodeDecodeError as error:
            raise DataDamaged(f"a record is not UTF-8: {error}") from error


class Raw:
    """Bytes, one value an append."""

    content_types = ("application/octet-stream", "*/*")
    joins = False

    def encode(self, value: Value) -> bytes:
        """The bytes themselves."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidRequest(f"this stream takes bytes, not {type(value).__name__}")
        return bytes(value)

    def join(self, parts: Sequence[bytes]) -> bytes:
        """The one value."""
        (part,) = parts
        return part

    def decode(self, record: bytes) -> Iterable[Value]:
        """The bytes themselves."""
        return (record,)


FORMATS: Final[dict[str, Format]] = {}


def register_format(format_: Format) -> None:
    """Use a format for its content types, from now on."""
    for content_type in format_.content_types:
        FORMATS[content_type] = format_


_BUILT_IN: Final[tuple[Format, ...]] = (Json(), Ndjson(), Csv(), MessagePack(), Text(), Raw())
for _format in _BUILT_IN:
    register_format(_format)


def format_of(content_type: str) -> Format:
    """The format of a content type: its own, that of its family (``text/*``), or raw bytes."""
    media_type = content_type.partition(";")[0].strip().lower()
    family = f"{media_type.partition('/')[0]}/*"
    found = FORMATS.get(media_type) or FORMATS.get(family)
    return found or FORMATS["*/*"]


def _encoded(encode: Callable[[Value], bytes], value: Value) -> bytes:
    try:
        return encode(value)
    except _UNWRITABLE as error:
        raise _unwritable(value, error) from error


def _unwritable(value: Value, error: Exception) -> InvalidRequest:
    return InvalidRequest(f"{type(value).__name__} cannot be written: {error}")


def _json_value(data: bytes) -> Value:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        # RFC 8259 allows an escape that is half a surrogate pair; msgspec does not.
        if b"\\u" not in data:
            raise
        return json.loads(data)


def _decoded(decode: Callable[[bytes], Value], data: bytes) -> Value:
    try:
        return decode(data)
    except (ValueError, RecursionError) as error:
        raise DataDamaged(f"a record cannot be read: {error}") from error


# MessagePack: how many bytes a length or a value has, by the first byte.
_FIXED: Final = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 0),
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
}
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
# Containers: bytes of the count, items an entry has.
_COUNTED: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def end_of_object(data: bytes, begin: int) -> int | None:
    """Where the MessagePack object that begins there ends; None where it is cut off."""
    place, left = begin, 1
    while left and place < len(data):
        kind = data[place]
        place, left = place + 1, left - 1
        if kind < 0x80 or kind >= 0xE0:
            continue
        if kind < 0xA0:
            left += (kind & 0x0F) * (2 if kind < 0x90 else 1)
        elif kind < 0xC0:
            place += kind & 0x1F
        elif kind in _COUNTED:
            width, items = _COUNTED[kind]
            left += int.from_bytes(data[place : place + width], "big") * items
            place += width
        elif kind in _SIZED or kind in _EXTENSIONS:
            width = _SIZED.get(kind) or _EXTENSIONS[kind]
            place += width + int.from_bytes(data[place : place + width], "big")
            place += kind in _EXTENSIONS
        elif kind in _FIXED:
            place += _FIXED[kind]
        else:
            raise DataDamaged(f"a record is not MessagePack: byte {kind:#x}")
    return None if left or place > len(data) else place
