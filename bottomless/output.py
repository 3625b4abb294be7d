"""How results are shown: a table for people; json, jsonl, csv and raw for programs.

Standard output has the result and nothing else; what is said about it goes to standard error.
"""

from __future__ import annotations

import csv
import io
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Format(StrEnum):
    """Ways to show a result."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    RAW = "raw"
    CSV = "csv"


FormatFlag = Annotated[
    Format,
    typer.Option(
        "--output", "-o", help="How to show it: for people, or for programs.", case_sensitive=False
    ),
]

# Whatever is in a record: a terminal must not take it for an order.
_HARMLESS: Final = {
    **{code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]},
    **{ord(character): f"\\{letter}" for character, letter in zip("\n\r\t", "nrt", strict=True)},
    **{code: f"\\u{code:04x}" for code in [*range(0x200E, 0x2010), *range(0x202A, 0x202F)]},
    **{code: f"\\u{code:04x}" for code in range(0x2066, 0x206A)},
}


def harmless(text: str) -> str:
    """Text on one line, without control characters."""
    return text.translate(_HARMLESS)


def write(data: bytes) -> None:
    """To standard output, behind what was printed before."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def print_rows(
    rows: Iterable[Mapping[str, Any]], format_: Format, columns: Sequence[str], *, name: str
) -> None:
    """A list; a table has these columns, and raw only the one called ``name``."""
    match format_:
        case Format.TABLE:
            _print_table([[cell(row.get(key)) for key in columns] for row in rows], columns)
        case Format.JSON:
            _print_array(rows)
        case Format.JSONL:
            for row in rows:
                write(msgspec.json.encode(row) + b"\n")
        case Format.RAW:
            for row in rows:
                write(f"{row[name]}\n".encode())
        case Format.CSV:
            write(csv_line(columns))
            for row in rows:
                write(csv_line([cell(row.get(key)) for key in columns]))


def print_document(document: Mapping[str, Any], format_: Format, *, raw: str | None = None) -> None:
    """One result. Raw is one value of it, or all of them, a name and a value a line."""
    flat = flatten(document)
    match format_:
        case Format.TABLE:
            width = max(map(len, flat), default=0)
            for key, value in flat.items():
                typer.echo(f"{key.ljust(width)}  {harmless(cell(value))}".rstrip())
        case Format.JSON:
            write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        case Format.JSONL:
            write(msgspec.json.encode(document) + b"\n")
        case Format.RAW if raw is not None:
            write(f"{cell(flat[raw])}\n".encode())
        case Format.RAW:
            for key, value in flat.items():
                write(f"{key}\t{cell(value)}\n".encode())
        case Format.CSV:
            write(csv_line(list(flat)) + csv_line([cell(value) for value in flat.values()]))


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Names with dots instead of objects in objects."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def cell(value: object) -> str:
    """A value where there is no type."""
    if value is None or value == {}:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return str(value)


def csv_line(values: Sequence[str]) -> bytes:
    """One row (RFC 4180), but with a line end as everywhere else here."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode("utf-8", "surrogateescape")


def say(text: str) -> None:
    """Something about the result, for people."""
    typer.echo(text, err=True)


def _print_array(rows: Iterable[Mapping[str, Any]]) -> None:
    begin = b"["
    for row in rows:
        write(begin + b"\n" + msgspec.json.encode(row))
        begin = b","
    write(b"[]\n" if begin == b"[" else b"\n]\n")


def _print_table(rows: list[list[str]], columns: Sequence[str]) -> None:
    title = [column.replace("_", " ").upper() for column in columns]
    if sys.stdout.isatty():
        _print_rich(rows, title)
        return
    # Nothing is cut, so that grep and awk find all of it.
    shown = [title, *[[harmless(value) for value in row] for row in rows]]
    widths = [max(len(row[place]) for row in shown) for place in range(len(columns))]
    for row in shown:
        line = "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True))
        typer.echo(line.rstrip())


def _print_rich(rows: list[list[str]], title: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*title, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*[Text(harmless(value), overflow="ellipsis", no_wrap=True) for value in row])
    Console().print(table)
