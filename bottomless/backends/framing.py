"""Framing: where a record ends in a file or a pipe, by the content type of its stream.

JSON and text: a record a line. NDJSON and CSV: the lines and rows themselves, with their ends.
MessagePack: its objects. Everything else has no marks: the bytes as they come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from bottomless.errors import DataDamaged, InvalidRequest
from bottomless.formats import end_of_object, format_of

if TYPE_CHECKING:
    from collections.abc import Callable

JSON: Final = "application/json"
Piece = tuple[bytes, int]
"""A record, and how many bytes of the medium it and what is before it take."""

# A file without a single line end is not lines; memory must not grow with it.
_PIECE_BYTES_MAX: Final = 64 << 20
_BY_ENDING: Final = {
    **dict.fromkeys((".csv",), "text/csv"),
    **dict.fromkeys((".msgpack", ".mpk", ".mp"), "application/msgpack"),
    **dict.fromkeys((".txt", ".log", ".text"), "text/plain"),
    **dict.fromkeys((".bin", ".dat", ".raw"), "application/octet-stream"),
}
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


def type_of_ending(ending: str) -> str:
    """The content type of a file by the ending of its name; JSON where it has none of these."""
    return _BY_ENDING.get(ending.lower(), JSON)


class Framing(Protocol):
    """One way to find records; holds what has come of the next one."""

    altered: int
    """Records that are not the medium's bytes, and white space that is in no record."""
    by_lines: bool
    keeps_ends: bool
    """Line ends are part of the records."""

    def feed(self, data: bytes) -> list[Piece]:
        """More bytes; returns the records that are whole now."""

    def end(self) -> list[Piece]:
        """There are no more; returns what is left of them."""

    def frame(self, record: bytes) -> bytes:
        """The bytes to write for a record."""


def framing_of(content_type: str, refused: Callable[[DataDamaged], None] | None = None) -> Framing:
    """The framing of a content type. A line that is no JSON goes to ``refused``, or is raised."""
    kinds = format_of(content_type).content_types
    if JSON in kinds:
        return Lines(is_json=True, refused=refused)
    if "text/plain" in kinds:
        return Lines()
    if "application/x-ndjson" in kinds:
        return Rows()
    if "text/csv" in kinds:
        return Rows(quotes=True)
    if "application/msgpack" in kinds:
        return Objects()
    return Chunks()


class _Splitter:
    """Cuts bytes behind line ends."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, without their ends."""
        if b"\n" not in data:
            self._size += len(data)
            if self._size > _PIECE_BYTES_MAX:
                raise InvalidRequest(
                    f"no line ends within {_PIECE_BYTES_MAX} bytes",
                    hint="application/octet-stream is for bytes without lines.",
                )
            self._rest.append(data)
            return []
        lines = data.split(b"\n")
        lines[0] = b"".join(self._rest) + lines[0]
        last = lines.pop()
        self._rest, self._size = [last] if last else [], len(last)
        return lines

    def end(self) -> bytes:
        """What is behind the last line end."""
        rest, self._rest, self._size = b"".join(self._rest), [], 0
        return rest


class Lines:
    """A record is a line without its end; blank lines are none."""

    by_lines = True
    keeps_ends = False

    def __init__(
        self, *, is_json: bool = False, refused: Callable[[DataDamaged], None] | None = None
    ) -> None:
        self._lines = _Splitter()
        self._is_json = is_json
        self._refused = refused
        self._number = 0
        self._passed = 0
        self.altered = 0

    def feed(self, data: bytes) -> list[Piece]:
        """The lines that are whole now."""
        found: list[Piece] = []
        for line in self._lines.feed(data):
            self._add(line, len(line) + 1, found)
        return found

    def end(self) -> list[Piece]:
        """A last line that has no end."""
        found: list[Piece] = []
        rest = self._lines.end()
        if rest:
            self.altered += 1
            self._add(rest, len(rest), found)
        return found

    def frame(self, record: bytes) -> bytes:
        """The record as a line. In JSON a line end is white space, which a blank can stand for."""
        if self._is_json and b"\n" in record:
            record = record.replace(b"\n", b" ")
        return record + b"\n"

    def _add(self, line: bytes, size: int, found: list[Piece]) -> None:
        self._number += 1
        self._passed += size
        record = b""
        if line.strip():
            record = self._json(line) if self._is_json else line
        if len(record) != len(line) or not record:
            self.altered += 1
        if record:
            found.append((record, self._passed))
            self._passed = 0

    def _json(self, line: bytes) -> bytes:
        try:
            return check_json(line, f"line {self._number}")
        except DataDamaged as error:
            if self._refused is None:
                raise
            self._refused(error)
            return b""


def check_json(data: bytes, where: str) -> bytes:
    """One JSON value without the white space around it. Nobody else looks: what is not one value
    would become two records, or spoil the whole batch.
    """
    try:
        _check_json(data)
        data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataDamaged(
            f"{where} is not JSON: {error}: {_shown(data)}",
            hint="Say --type text, or another type, where it is something else.",
        ) from error
    return data.strip(b" \t\r\n")


def _shown(line: bytes) -> str:
    text = line[:60].decode(errors="replace")
    return text + " …" if len(line) > 60 else text


class Rows:
    """A record is a line with its end; in CSV a line end between quotes is part of the row."""

    by_lines = True
    keeps_ends = True

    def __init__(self, *, quotes: bool = False) -> None:
        self._lines = _Splitter()
        self._quotes = quotes
        self._row: list[bytes] = []
        self._row_bytes = 0
        self._is_open = False
        self._needs_end = False
        self.altered = 0

    def feed(self, data: bytes) -> list[Piece]:
        """The rows that are whole now."""
        found: list[Piece] = []
        for line in self._lines.feed(data):
            if self._quotes and line.count(b'"') % 2:
                self._is_open = not self._is_open
            if not self._is_open and not self._row:
                found.append((line + b"\n", len(line) + 1))
                continue
            self._row.append(line + b"\n")
            self._row_bytes += len(line) + 1
            if not self._is_open:
                found.append(self._take())
            elif self._row_bytes > _PIECE_BYTES_MAX:
                raise DataDamaged('a row of CSV does not end: a " is missing')
        return found

    def end(self) -> list[Piece]:
        """A last row that has no end."""
        rest = self._lines.end()
        if rest:
            self._row.append(rest)
        self._is_open = False
        return [self._take()] if self._row else []

    def frame(self, record: bytes) -> bytes:
        """The record; a row without an end gets one when another follows."""
        framed = b"\n" + record if self._needs_end else record
        self._needs_end = not record.endswith(b"\n")
        return framed

    def _take(self) -> Piece:
        row, self._row, self._row_bytes = b"".join(self._row), [], 0
        return row, len(row)


class Objects:
    """A record is a MessagePack object."""

    by_lines = False
    keeps_ends = False

    def __init__(self) -> None:
        self._rest = b""
        self.altered = 0

    def feed(self, data: bytes) -> list[Piece]:
        """The objects that are whole now."""
        data, found, begin = self._rest + data, [], 0
        while begin < len(data):
            end = end_of_object(data, begin)
            if end is None:
                break
            found.append((data[begin:end], end - begin))
            begin = end
        self._rest = data[begin:]
        if len(self._rest) > _PIECE_BYTES_MAX:
            raise DataDamaged(f"a MessagePack object is longer than {_PIECE_BYTES_MAX} bytes")
        return found

    def end(self) -> list[Piece]:
        """Nothing may be left."""
        rest, self._rest = self._rest, b""
        if rest:
            raise DataDamaged(f"the last MessagePack object is cut off after {len(rest)} bytes")
        return []

    def frame(self, record: bytes) -> bytes:
        """The objects themselves."""
        return record


class Chunks:
    """The bytes as they come."""

    by_lines = False
    keeps_ends = False
    altered = 0

    def feed(self, data: bytes) -> list[Piece]:
        """All of them."""
        return [(data, len(data))] if data else []

    def end(self) -> list[Piece]:
        """Nothing is held back."""
        return []

    def frame(self, record: bytes) -> bytes:
        """The bytes themselves."""
        return record
