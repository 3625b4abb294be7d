"""The tables that hold a stream's history: its own, and for a fork those of its ancestors.

A fork's table has only the fork's own records. What it inherits lies in the tables of its source,
up to the fork offset, that record included; and so on up to the first ancestor. The server reads in
the same way (`engine.read.reader.lineage`). Nothing an ancestor got later has a lower offset than
the fork's own records, so the parts follow one another by offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import Gone, StreamNotFound
from engine.format.names import table_folder
from engine.format.offset import START, format_stored, parse_offset
from engine.types import Offset, StreamName
from jobs.common.ranges import OffsetRange
from jobs.common.tables import StreamTable, open_table

if TYPE_CHECKING:
    from engine.storage import LocalStorage


class RangeTrimmed(Gone):
    """Retention has removed records that a replay wants."""

    code = "range_trimmed"


@dataclass(frozen=True, slots=True)
class Part:
    """What one table contributes."""

    table: StreamTable
    range: OffsetRange

    @property
    def trimmed(self) -> Offset:
        """Up to here the part has lost records."""
        return min(self.table.state.trimmed, self.range.through)

    @property
    def is_empty(self) -> bool:
        """No file of the table can hold a record of the range."""
        after, through = self.range.after, self.range.through
        files = self.table.state.files.values()
        return all(file.last <= after or file.first > through for file in files)


def find_parts(storage: LocalStorage, table: StreamTable, wanted: OffsetRange) -> list[Part]:
    """The range as parts of the stream's table and of its ancestors', the oldest first.

    StreamNotFound where a source has no table; RangeTrimmed where retention has torn a hole.
    """
    parts = [Part(table, wanted)]
    limit = wanted.through
    while (fork_offset := parts[-1].table.meta.fork_offset) is not None:
        limit = min(limit, parse_offset(fork_offset))
        if limit <= wanted.after:
            # Nothing older is wanted.
            break
        source = _source_of(storage, parts[-1].table)
        parts.append(Part(source, OffsetRange(wanted.after, limit)))
    parts.reverse()
    _refuse_holes(parts, wanted)
    return parts


def require_untrimmed(parts: list[Part], wanted: OffsetRange) -> None:
    """RangeTrimmed unless every record of the range is still there.

    A replay to a stream numbers its batches from the first record of the range, and the target
    knows them by their numbers: with records gone from the start, the others would be taken for
    copies of those it has.
    """
    trimmed = max(part.trimmed for part in parts)
    if trimmed > wanted.after:
        raise RangeTrimmed(
            f"{parts[-1].table.name}: retention has removed records of this range, so it cannot be"
            " sent as it was asked for",
            hint=f"Start after what is gone: --after {format_stored(trimmed)}. That is another"
            " replay: a target that already has a part of this one would get records twice.",
        )


def _source_of(storage: LocalStorage, fork: StreamTable) -> StreamTable:
    name = fork.meta.fork_source_name
    assert name is not None
    source = open_table(storage, table_folder(StreamName(name)))
    if source is None or source.meta.id != fork.meta.fork_source_id:
        raise StreamNotFound(
            f"{fork.name} was forked from {name}, whose table is not below {storage.root}",
            hint="The first commit makes it, a second after the first record; for a stream without"
            " records of its own, the next stop of the server does. If it was removed by hand, put"
            f" it back, or start where {fork.name} branched off:"
            f" --after {format_stored(parse_offset(fork.meta.fork_offset or ''))}.",
        )
    return source


def _refuse_holes(parts: list[Part], wanted: OffsetRange) -> None:
    """What is read from the start begins with the oldest record left, of a fork too; but nothing
    may be missing after it.
    """
    has_begun = len(parts) > 1 and wanted.after != START
    for part in parts:
        if has_begun and part.trimmed > wanted.after:
            raise RangeTrimmed(
                f"{parts[-1].table.name}: retention has removed records that it inherited or wrote"
                f" in the middle of this range, from {part.table.name}",
                hint=f"Start after them: --after {format_stored(part.trimmed)}.",
            )
        has_begun = has_begun or not part.is_empty
