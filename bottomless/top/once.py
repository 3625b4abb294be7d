"""One look for scripts: what came in during one interval, as a table, JSON or CSV."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from bottomless.output import Format, print_rows, write
from bottomless.top.columns import select
from bottomless.top.model import Model
from bottomless.top.view import once_table

if TYPE_CHECKING:
    from bottomless.top.controls import Controls
    from bottomless.top.model import Board, Row
    from bottomless.top.sampling import Sampler

_FIELDS: Final = (
    "name",
    "records_per_s",
    "bytes_per_s",
    "records",
    "bytes",
    "files",
    "tail",
    "last_append",
    "uncommitted_records",
    "uncommitted_bytes",
    "commit_lag_ms",
    "readers",
    "writers",
)


async def look_once(sampler: Sampler, name_filter: str, interval_s: float) -> Board:
    """Two looks, and the time between them."""
    model = Model()
    model.take(await sampler.look(name_filter))
    await asyncio.sleep(interval_s)
    return model.take(await sampler.look(name_filter))


def print_board(board: Board, controls: Controls, format_: Format) -> None:
    """The streams that match, in order. One interval says nothing about a minute or an hour."""
    rows = select(
        board.rows,
        name_filter=controls.name_filter,
        sort=controls.sort,
        reverse=controls.reverse,
    )
    if controls.rows_max is not None:
        rows = rows[: controls.rows_max]
    if format_ is Format.TABLE:
        for line in once_table(board, rows, controls):
            typer.echo(line)
    elif format_ is Format.JSON:
        write(msgspec.json.format(msgspec.json.encode(_document(board, rows)), indent=2) + b"\n")
    else:
        print_rows(map(_fields, rows), format_, _FIELDS, name="name")


def _document(board: Board, rows: list[Row]) -> dict[str, Any]:
    totals = board.totals
    return {
        "now": board.now,
        "interval_s": round(board.watched_s, 3),
        "total": {
            "records_per_s": _rounded(board.total.records_s),
            "bytes_per_s": _rounded(board.total.bytes_s),
            "streams": totals.streams,
            "readers": totals.readers,
            "uncommitted_records": totals.uncommitted_records,
            "uncommitted_bytes": totals.uncommitted_bytes,
            "commit_lag_ms": round(totals.lag_s * 1000),
        },
        "has_more": board.is_cut,
        "streams": [_fields(row) for row in rows],
    }


def _fields(row: Row) -> dict[str, Any]:
    rates = {
        "records_per_s": _rounded(row.rates.records_s),
        "bytes_per_s": _rounded(row.rates.bytes_s),
    }
    found = msgspec.structs.asdict(row.stream) | rates
    found["tail"] = row.stream.tail.replace("_", "")
    return {key: found[key] for key in _FIELDS}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
