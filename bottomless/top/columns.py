"""What can be shown of a stream, and how it is ordered by that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bottomless.errors import InvalidRequest
from bottomless.top import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bottomless.top.model import Row

NAME: Final = "name"
DEFAULT_SORT: Final = "rec/s"
_NAME_WIDTH_MIN: Final = 18
_GAP: Final = 1


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of every stream."""

    key: str
    """Its heading, and what it is called where it is chosen to sort by."""
    width: int
    rank: int
    """Where there is no room for all, the low ones stay."""
    value: Callable[[Row], Any]
    """What it sorts by; None comes last."""
    text: Callable[[Any], str]


COLUMNS: Final = (
    Column("rec/s", 7, 1, lambda row: row.rates.records_s, figures.count),
    Column("B/s", 8, 2, lambda row: _told(row, row.rates.bytes_s), figures.size),
    Column("rec/min", 7, 5, lambda row: row.rates.records_minute, figures.count),
    Column("B/min", 8, 7, lambda row: _told(row, row.rates.bytes_minute), figures.size),
    Column("rec/h", 7, 6, lambda row: row.rates.records_hour, figures.count),
    Column("B/h", 8, 8, lambda row: _told(row, row.rates.bytes_hour), figures.size),
    Column("records", 8, 9, lambda row: row.stream.records, figures.count),
    Column("size", 8, 10, lambda row: row.stream.bytes, figures.size),
    Column("files", 6, 11, lambda row: row.stream.files, figures.count),
    Column("last", 5, 3, lambda row: row.age_s, figures.age),
    Column("lag", 6, 4, lambda row: row.stream.commit_lag_ms, figures.lag),
    Column("readers", 7, 12, lambda row: row.stream.readers, figures.count),
    Column("writers", 7, 13, lambda row: row.stream.writers, figures.count),
    Column("tail", 33, 14, lambda row: row.stream.tail, str),
)
BY_KEY: Final = {column.key: column for column in COLUMNS}
SORT_KEYS: Final = (NAME, *BY_KEY)
# Of these the small ones are what one looks for: the name that is first, the latest append.
_ASCENDING: Final = frozenset({NAME, "last"})


def _told(row: Row, value: float | None) -> float | None:
    """Of servers that do not count bytes, nothing."""
    return None if row.stream.appended_bytes is None else value


def find_sort_key(text: str) -> str:
    """The column that is meant; InvalidRequest where there is none. Its beginning is enough."""
    wanted = text.strip().lower()
    for key in SORT_KEYS:
        if key.lower() == wanted:
            return key
    found = [key for key in SORT_KEYS if key.lower().startswith(wanted)] if wanted else []
    if len(found) == 1:
        return found[0]
    raise InvalidRequest(f"there is no column {text!r} to sort by", hint=" ".join(SORT_KEYS))


def matches(name: str, name_filter: str) -> bool:
    """``^shop/``: begins so. ``shop``: holds it."""
    if name_filter.startswith("^"):
        return name.startswith(name_filter[1:])
    return name_filter in name


def select(
    rows: Iterable[Row], *, name_filter: str = "", sort: str = DEFAULT_SORT, reverse: bool = False
) -> list[Row]:
    """Those that match, in order; those without a figure come last, equal ones by name."""
    found = sorted(
        (row for row in rows if matches(row.stream.name, name_filter)),
        key=lambda row: row.stream.name,
    )
    descending = (sort not in _ASCENDING) is not reverse
    if sort == NAME:
        return found[::-1] if descending else found
    value = BY_KEY[sort].value
    known = [row for row in found if value(row) is not None]
    known.sort(key=value, reverse=descending)
    return known + [row for row in found if value(row) is None]


def fitting(width: int, sort: str) -> tuple[int, list[Column]]:
    """The width of the name, and the columns there is room for beside it; the one that is sorted
    by is always among them.
    """
    room = width - _NAME_WIDTH_MIN
    chosen = set()
    for column in sorted(COLUMNS, key=lambda column: (column.key != sort, column.rank)):
        if column.width + _GAP <= room:
            chosen.add(column.key)
            room -= column.width + _GAP
    return _NAME_WIDTH_MIN + room, [column for column in COLUMNS if column.key in chosen]
