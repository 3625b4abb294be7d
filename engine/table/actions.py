"""Delta actions as the engine writes and reads them, and one log entry made of them.

commitInfo is the last line of an entry; it counts the lines before it and holds their checksum. So
an entry that a power cut left short or empty is recognised (F1), although each of its lines may be
good JSON, and a flipped bit is an error, never another offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import crc32c
import msgspec
import numpy as np
import orjson

from engine.errors import BadOffset
from engine.format.offset import epoch_of, flush_date, format_stored, parse_offset
from engine.table.schema import PARTITION_COLUMN

if TYPE_CHECKING:
    from engine.types import Offset

OWNER_APP: Final = "bottomless:owner"
EPOCH_APP: Final = "bottomless:epoch"
COUNTER_APP: Final = "bottomless:counter"
RECORDS_APP: Final = "bottomless:records"
TRIMMED_EPOCH_APP: Final = "bottomless:trimmed-epoch"
TRIMMED_COUNTER_APP: Final = "bottomless:trimmed-counter"
TRIMMED_RECORDS_APP: Final = "bottomless:trimmed-records"
CHANGE_APP: Final = "bottomless:change"
REWRITTEN_APP: Final = "bottomless:rewritten-records"
HELD_EPOCH_APP: Final = "bottomless:held-epoch"
HELD_COUNTER_APP: Final = "bottomless:held-counter"
ACCESSED_APP: Final = "bottomless:accessed"
PRODUCER_APP: Final = "bottomless:producer:"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of a stream: where it is and which offsets it holds."""

    path: str
    size: int
    first: Offset
    last: Offset
    rows: int

    @property
    def partition(self) -> str:
        """The day all of its records were flushed."""
        return flush_date(self.first)


@dataclass(slots=True)
class LogEntry:
    """What one version of the table says."""

    adds: list[DataFile] = field(default_factory=list)
    removes: dict[str, int] = field(default_factory=dict)
    """Paths, with the time (ms) at which each was removed."""
    txns: dict[str, int] = field(default_factory=dict)
    configuration: dict[str, str] | None = None


class _Values(msgspec.Struct):
    offset: str | None = None


class _Stats(msgspec.Struct):
    numRecords: int = 0
    minValues: _Values | None = None
    maxValues: _Values | None = None


class _Add(msgspec.Struct):
    path: str
    size: int
    stats: str | None = None


class _Remove(msgspec.Struct):
    path: str
    deletionTimestamp: int | None = None


class _Txn(msgspec.Struct):
    appId: str
    version: int


class _MetaData(msgspec.Struct):
    configuration: dict[str, str] = {}


class _CommitInfo(msgspec.Struct):
    actions: int | None = None
    crc32c: int | None = None


class _Line(msgspec.Struct):
    add: _Add | None = None
    remove: _Remove | None = None
    txn: _Txn | None = None
    metaData: _MetaData | None = None
    commitInfo: _CommitInfo | None = None


_decode_line: Final = msgspec.json.Decoder(_Line).decode
_decode_stats: Final = msgspec.json.Decoder(_Stats).decode


class EntryDamaged(ValueError):
    """A log entry is empty, cut short or not JSON."""


def data_file(path: str, size: int, stats: str | None) -> DataFile:
    """A file as the log describes it; ours always carry exact offset statistics."""
    values = _decode_stats(stats) if stats else _Stats()
    if values.minValues is None or values.maxValues is None:
        raise EntryDamaged(f"file {path} has no offset statistics")
    first, last = values.minValues.offset, values.maxValues.offset
    if first is None or last is None:
        raise EntryDamaged(f"file {path} has no offset statistics")
    try:
        return DataFile(path, size, parse_offset(first), parse_offset(last), values.numRecords)
    except BadOffset as error:
        raise EntryDamaged(f"file {path} has no offsets in its statistics") from error


def encode_add(file: DataFile, *, data_change: bool) -> bytes:
    """An add action with the statistics that let every reader skip files."""
    epoch_first, epoch_last = epoch_of(file.first), epoch_of(file.last)
    stats = {
        "numRecords": file.rows,
        "minValues": {
            "offset": format_stored(file.first),
            "flushed_at": _iso_ms(epoch_first),
        },
        "maxValues": {
            "offset": format_stored(file.last),
            "flushed_at": _iso_ms(epoch_last),
        },
        "nullCount": {"offset": 0, "flushed_at": 0},
    }
    add = {
        "path": file.path,
        "partitionValues": {PARTITION_COLUMN: file.partition},
        "size": file.size,
        "modificationTime": epoch_last,
        "dataChange": data_change,
        "stats": orjson.dumps(stats).decode(),
    }
    return orjson.dumps({"add": add})


def encode_remove(file: DataFile, *, deleted_at_ms: int, data_change: bool) -> bytes:
    """A remove action; the file itself stays until it is vacuumed."""
    remove = {
        "path": file.path,
        "deletionTimestamp": deleted_at_ms,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": {PARTITION_COLUMN: file.partition},
        "size": file.size,
    }
    return orjson.dumps({"remove": remove})


def encode_txn(app_id: str, version: int) -> bytes:
    """A txn action: a number that is replaced in one step with the data."""
    return orjson.dumps({"txn": {"appId": app_id, "version": version}})


def encode_entry(lines: list[bytes], *, operation: str, timestamp_ms: int) -> bytes:
    """A whole log entry."""
    info = {
        "timestamp": timestamp_ms,
        "operation": operation,
        "operationParameters": {},
        "engineInfo": "bottomless",
        "actions": len(lines),
        "crc32c": crc32c.crc32c(b"\n".join(lines)),
    }
    return b"\n".join([*lines, orjson.dumps({"commitInfo": info})]) + b"\n"


def decode_entry(data: bytes) -> LogEntry:
    """Read an entry; EntryDamaged where it is not whole."""
    if not data.endswith(b"\n"):
        raise EntryDamaged("the entry is empty or cut short")
    entry = LogEntry()
    lines = data.splitlines()
    info: _CommitInfo | None = None
    try:
        for raw in lines:
            line = _decode_line(raw)
            _collect(entry, line)
            if line.commitInfo is not None:
                info = line.commitInfo
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EntryDamaged(str(error)) from error
    if info is None:
        raise EntryDamaged("the entry has no commitInfo")
    # Entries of others have neither, and the first ones of ours had no checksum.
    if info.actions is not None and info.actions != len(lines) - 1:
        raise EntryDamaged(f"the entry has {len(lines) - 1} of {info.actions} actions")
    if info.crc32c is not None and info.crc32c != crc32c.crc32c(data[:-1].rpartition(b"\n")[0]):
        raise EntryDamaged("the entry fails its checksum")
    return entry


def _collect(entry: LogEntry, line: _Line) -> None:
    if line.add is not None:
        entry.adds.append(data_file(line.add.path, line.add.size, line.add.stats))
    if line.remove is not None:
        entry.removes[line.remove.path] = line.remove.deletionTimestamp or 0
    if line.txn is not None:
        entry.txns[line.txn.appId] = line.txn.version
    if line.metaData is not None:
        entry.configuration = line.metaData.configuration


def _iso_ms(epoch_ms: int) -> str:
    return f"{np.datetime64(epoch_ms, 'ms')}Z"
