"""Records on standard output: their own bytes, lines of JSON, an array, CSV, or a table."""

from __future__ import annotations

import base64
import shutil
import sys
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from bottomless.errors import InvalidRequest
from bottomless.formats import Csv, Json, MessagePack, Ndjson, Text, format_of
from bottomless.output import Format, csv_line, harmless, write

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bottomless.consumer import Record

COLUMNS: Final = ("offset", "time", "data")
_OFFSET_WIDTH: Final = 32
_TIME_WIDTH: Final = 24
_GAP: Final = "  "


class Printer(Protocol):
    """One way to show records."""

    def begin(self) -> None:
        """Before the first record."""

    def show(self, records: Iterable[Record]) -> None:
        """Some records, at once."""

    def end(self) -> None:
        """After the last one."""


class Values:
    """The values of records, as bytes."""

    def __init__(self, content_type: str) -> None:
        self._format = format_of(content_type)
        self._lines: tuple[str, list[bytes]] = ("", [])
        self._shown = ""

    def raw(self, record: Record) -> bytes:
        """Its own bytes. Values of JSON, NDJSON and text end with a line end; of CSV and
        MessagePack, where a record is many values, it comes with the first of them; all else is
        as it was stored.
        """
        match self._format:
            case Json():
                return record.data + b"\n"
            case Ndjson():
                return self._line_of(record) + b"\n"
            case Text():
                return record.data if record.data.endswith(b"\n") else record.data + b"\n"
            case Csv() | MessagePack():
                is_shown, self._shown = record.offset == self._shown, record.offset
                return b"" if is_shown else record.data
            case _:
                return record.data

    def json(self, record: Record, *, is_line: bool = True) -> bytes:
        """JSON is its own bytes, but for line ends if it is to be a line; bytes are base64."""
        match self._format:
            case Json():
                line = record.data
            case Ndjson():
                line = self._line_of(record)
            case Csv() | Text():
                return msgspec.json.encode(record.value)
            case MessagePack():
                return _json_of(record)
            case _:
                return b'"' + base64.b64encode(record.data) + b'"'
        # A line end inside JSON is white space between its parts.
        if is_line and (b"\n" in line or b"\r" in line):
            return line.replace(b"\r", b" ").replace(b"\n", b" ")
        return line

    def text(self, record: Record) -> str:
        """For a cell."""
        match self._format:
            case Text():
                return str(record.value)
            case Csv():
                return csv_line(record.value).decode().removesuffix("\n")
            case Json() | Ndjson() | MessagePack():
                return self.json(record).decode(errors="replace")
            case _:
                return base64.b64encode(record.data).decode()

    def _line_of(self, record: Record) -> bytes:
        """The line of this value, of all lines of its record."""
        offset, lines = self._lines
        if offset != record.offset:
            lines = [line.strip() for line in record.data.split(b"\n") if line.strip()]
            self._lines = (record.offset, lines)
        _, _, behind = record.position.partition(":")
        return lines[int(behind) - 1 if behind else -1]


class RawPrinter:
    """Bytes, one behind the other."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def begin(self) -> None:
        """Nothing."""

    def show(self, records: Iterable[Record]) -> None:
        """As they were stored."""
        write(b"".join(map(self._values.raw, records)))

    def end(self) -> None:
        """Nothing."""


class JsonPrinter:
    """JSON, one value a line; as an array with brackets and commas around the lines."""

    def __init__(self, values: Values, *, is_array: bool, with_offsets: bool) -> None:
        self._values = values
        self._is_array = is_array
        self._with_offsets = with_offsets
        self._is_first = True

    def begin(self) -> None:
        """The first bracket."""
        if self._is_array:
            write(b"[")

    def show(self, records: Iterable[Record]) -> None:
        """A line for each."""
        lines = [self._line(record) for record in records]
        if self._is_array:
            write((b"\n" if self._is_first else b",\n") + b",\n".join(lines))
            self._is_first = False
        else:
            write(b"\n".join(lines) + b"\n")

    def end(self) -> None:
        """The last bracket."""
        if self._is_array:
            write(b"]\n" if self._is_first else b"\n]\n")

    def _line(self, record: Record) -> bytes:
        value = self._values.json(record, is_line=not self._is_array)
        if not self._with_offsets:
            return value
        place = f'{{"offset":"{record.offset}","time":"{time_of(record)}","data":'
        return place.encode() + value + b"}"


class CsvPrinter:
    """Offset, time and data of each record."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def begin(self) -> None:
        """The names."""
        write(csv_line(COLUMNS))

    def show(self, records: Iterable[Record]) -> None:
        """A row for each."""
        rows = [(record.offset, time_of(record), self._values.text(record)) for record in records]
        write(b"".join(map(csv_line, rows)))

    def end(self) -> None:
        """Nothing."""


class TablePrinter:
    """The same for people: on a terminal, cut to its width."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def begin(self) -> None:
        """The title."""
        self._print("OFFSET", "TIME", "DATA")

    def show(self, records: Iterable[Record]) -> None:
        """A line for each."""
        for record in records:
            self._print(record.offset, time_of(record), harmless(self._values.text(record)))

    def end(self) -> None:
        """Nothing."""

    def _print(self, offset: str, time: str, data: str) -> None:
        line = _GAP.join((offset.ljust(_OFFSET_WIDTH), time.ljust(_TIME_WIDTH), data))
        if sys.stdout.isatty():
            width = shutil.get_terminal_size().columns
            line = line if len(line) <= width else f"{line[: width - 1]}…"
        write(line.encode(errors="replace") + b"\n")


def printer_of(format_: Format, content_type: str, *, with_offsets: bool = False) -> Printer:
    """What shows records of this type in this way."""
    values = Values(content_type)
    match format_:
        case Format.RAW:
            return RawPrinter(values)
        case Format.CSV:
            return CsvPrinter(values)
        case Format.TABLE:
            return TablePrinter(values)
        case Format.JSON | Format.JSONL:
            is_array = format_ is Format.JSON
            return JsonPrinter(values, is_array=is_array, with_offsets=with_offsets)


def time_of(record: Record) -> str:
    """When it was stored."""
    return record.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json_of(record: Record) -> bytes:
    try:
        return msgspec.json.encode(record.value)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest(
            f"record {record.offset} cannot be shown as JSON: {error}", hint="Use -o raw."
        ) from error
