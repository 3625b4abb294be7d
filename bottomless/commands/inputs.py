"""Where records come from: lines, JSON, CSV or bytes become values of a stream's format."""

from __future__ import annotations

import base64
import csv
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bottomless.errors import BottomlessError, InvalidRequest
from bottomless.formats import Csv, Json, MessagePack, Ndjson, Raw, Text, format_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

    from bottomless.formats import Value

# Bytes of any length become records of this size: below the largest body a server takes.
_PIECE_BYTES: Final = 1 << 20


class Input(StrEnum):
    """How what comes in is cut into records."""

    LINES = "lines"
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    RAW = "raw"


def default_input(content_type: str) -> Input:
    """What people mean who do not say it."""
    match format_of(content_type):
        case MessagePack():
            return Input.JSONL
        case Raw():
            return Input.RAW
        case _:
            return Input.LINES


class Source:
    """Values for a stream, one after the other, from bytes that come in."""

    def __init__(
        self,
        stream: BinaryIO,
        input_: Input,
        content_type: str,
        *,
        lines: Iterable[bytes] | None = None,
    ) -> None:
        self._stream = stream
        self._lines = stream if lines is None else lines
        self._input = input_
        self._content_type = content_type
        self._format = format_of(content_type)
        self.line = 0
        """Where it is."""
        self.blank = 0
        """Lines without anything: they are no records."""

    def __iter__(self) -> Iterator[Value]:
        """All of them; InvalidRequest says in which line it went wrong."""
        values = self._values()
        while True:
            try:
                value = next(values)
            except StopIteration:
                return
            except BottomlessError as error:
                where = f"line {self.line}: " if self.line else ""
                raise InvalidRequest(f"{where}{error.message}", hint=error.hint) from error
            yield value

    def _values(self) -> Iterator[Value]:
        match self._input:
            case Input.RAW:
                return self._whole()
            case Input.JSON:
                return (self._from_json(item) for item in json_items(self._stream.read()))
            case Input.CSV:
                return self._from_rows()
            case Input.LINES if isinstance(self._format, Csv):
                return self._rows()
            case _:
                return self._from_lines()

    # Bytes.

    def _whole(self) -> Iterator[Value]:
        match self._format:
            case Raw():
                # A pipe gives what there is: pieces of a file are all alike.
                while piece := self._stream.read(_PIECE_BYTES):
                    yield piece
            case Text():
                if data := self._stream.read():
                    yield text_of(data)
            case Json():
                yield json_of(self._stream.read())
            case packed:
                # What is in the format already is taken apart by it.
                yield from packed.decode(self._stream.read())

    # Lines.

    def _from_lines(self) -> Iterator[Value]:
        parse = self._from_json if self._input is Input.JSONL else self._from_text
        for line in self._lines:
            self.line += 1
            data = line.removesuffix(b"\n").removesuffix(b"\r")
            if not data.strip():
                self.blank += 1
                continue
            yield parse(data)

    def _from_text(self, data: bytes) -> Value:
        """A line as people write it."""
        match self._format:
            case Text():
                return text_of(data)
            case Raw():
                return data
            case _:
                return self._from_json(data)

    def _from_json(self, data: bytes) -> Value:
        """A value that was written as JSON."""
        match self._format:
            case Json() | Ndjson():
                return json_of(data)
            case Csv():
                return _decoded(data, list[Any], "an array: the row")
            case Text():
                return _decoded(data, str, "a string")
            case Raw():
                return _base64(_decoded(data, str, "a string"))
            case _:
                return _decoded(data, object, "JSON")

    # CSV.

    def _rows(self) -> Iterator[list[str]]:
        rows = csv.reader(map(text_of, self._stream), strict=True)
        try:
            for row in rows:
                self.line = rows.line_num
                if row:
                    yield row
                else:
                    self.blank += 1
        except csv.Error as error:
            self.line = rows.line_num
            raise InvalidRequest(f"this is not CSV: {error}") from error

    def _from_rows(self) -> Iterator[Value]:
        rows = self._rows()
        if isinstance(self._format, Csv):
            yield from rows
            return
        if isinstance(self._format, Text | Raw):
            raise InvalidRequest(f"rows of CSV cannot become {self._content_type}")
        names = next(rows, [])
        if len(set(names)) < len(names):
            raise InvalidRequest("two columns have the same name")
        for row in rows:
            if len(row) != len(names):
                raise InvalidRequest(f"{len(row)} values for {len(names)} columns")
            yield dict(zip(names, row, strict=True))


def json_items(data: bytes) -> Iterable[bytes]:
    """The elements of an array, each with its own bytes; any other value is one."""
    whole = bytes(json_of(data))
    if not whole.startswith(b"["):
        return [whole]
    found: list[bytes] = []
    end = 1
    for item in msgspec.json.decode(_plain(whole), type=list[msgspec.Raw]):
        begin = end
        while whole[begin] in _BETWEEN:
            begin += 1
        end = begin + len(item)
        found.append(whole[begin:end])
    return found


def json_of(data: bytes) -> msgspec.Raw:
    """A JSON value, with its own bytes."""
    text_of(data)
    try:
        msgspec.json.decode(_plain(data), type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"this is not JSON: {error}", hint=_NOT_JSON) from error
    return msgspec.Raw(data.strip(_SPACE))


def _plain(data: bytes) -> bytes:
    """The same JSON to its last place, without halves of surrogate pairs: RFC 8259 allows them,
    and servers take them, but msgspec does not.
    """
    if not _SURROGATE.search(data):
        return data
    # Without escaped backslashes every backslash that is left begins another escape.
    return _SURROGATE.sub(rb"\\u0041", data.replace(rb"\\", b"__"))


_SPACE: Final = b" \t\r\n"
_BETWEEN: Final = frozenset(_SPACE + b",")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_NOT_JSON: Final = "Lines of text want a stream that was made with --type text."


def text_of(data: bytes) -> str:
    """UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"this is not UTF-8: {error}") from error


def _decoded(data: bytes, kind: Any, wanted: str) -> Any:  # noqa: ANN401  (of that kind)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"this is not {wanted}: {error}") from error


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidRequest(f"this is not base64: {error}") from error
