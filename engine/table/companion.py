"""The offset index of a table: one Parquet file beside the log, made by a job, read by the server.

It says for every row group of every file which offsets and times it holds, and carries the table's
txn numbers and properties, so that a table of 100,000 commits opens without listing or parsing its
log. It is only a shortcut: whatever is wrong with it, the log itself serves.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import crc32c
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.format.offset import COUNTER_BASE, format_stored
from engine.table.actions import DataFile
from engine.table.state import TableState
from engine.types import Offset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.storage import Storage

INDEX_FOLDER: Final = "_index"
# The one before the newest stays for whoever is reading it.
_KEPT: Final = 2
# The name holds the checksum of the whole file: those of the pages do not cover the footer.
_NAME: Final = re.compile(r"([0-9]{20})-([0-9a-f]{8})\.parquet", re.ASCII)
_STATE_KEY: Final = b"bottomless.state"
_SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("row_group", pa.int32(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("first_offset", pa.string(), nullable=False),
        pa.field("last_offset", pa.string(), nullable=False),
        pa.field("first_time", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("last_time", pa.timestamp("ms", tz="UTC"), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """What one row group holds."""

    rows: int
    first: Offset
    last: Offset


class _State(msgspec.Struct):
    version: int
    txns: dict[str, int]
    configuration: dict[str, str]


def index_versions(storage: Storage, folder: str) -> list[int]:
    """Versions that have an index, in order."""
    return sorted(_paths(storage, folder))


def write_index(
    storage: Storage, folder: str, state: TableState, groups: dict[str, list[GroupBounds]]
) -> int:
    """Put an index of ``state`` in place, durably, and drop the old ones; returns its bytes.

    The caller has synced the table: an index never speaks of a version that a power cut can take.
    """
    rows = [
        (file, number, group)
        for file in sorted(state.files.values(), key=lambda file: file.first)
        for number, group in enumerate(groups[file.path])
    ]
    columns = {
        "path": [file.path for file, _, _ in rows],
        "bytes": [file.size for file, _, _ in rows],
        "row_group": [number for _, number, _ in rows],
        "rows": [group.rows for _, _, group in rows],
        "first_offset": [format_stored(group.first) for _, _, group in rows],
        "last_offset": [format_stored(group.last) for _, _, group in rows],
        "first_time": [group.first // COUNTER_BASE for _, _, group in rows],
        "last_time": [group.last // COUNTER_BASE for _, _, group in rows],
    }
    meta = _State(state.version, state.txns, state.configuration)
    schema = _SCHEMA.with_metadata({_STATE_KEY: msgspec.json.encode(meta)})
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns, schema=schema), sink, compression="zstd", write_page_checksum=True
    )
    data = sink.getvalue().to_pybytes()
    storage.make_folder(f"{folder}/{INDEX_FOLDER}")
    name = f"{state.version:020d}-{crc32c.crc32c(data):08x}.parquet"
    storage.replace(f"{folder}/{INDEX_FOLDER}/{name}", data)
    paths = _paths(storage, folder)
    for version in sorted(paths)[:-_KEPT]:
        storage.remove(paths[version])
    return len(data)


def load_index(storage: Storage, folder: str, *, version_max: int | None) -> TableState | None:
    """The state that the newest readable index up to ``version_max`` describes."""
    for version, path in sorted(_paths(storage, folder).items(), reverse=True):
        if version_max is None or version <= version_max:
            try:
                return _decode(_read(storage, path))
            except (pa.ArrowException, OSError, KeyError, ValueError, msgspec.DecodeError):
                continue
    return None


def indexed_version(storage: Storage, folder: str) -> int:
    """The version of the newest readable index; -1 where there is none."""
    for version, path in sorted(_paths(storage, folder).items(), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            _read_bytes(storage, path)
            return version
    return -1


def load_groups(storage: Storage, folder: str) -> dict[str, list[GroupBounds]]:
    """Row groups by file, of the newest readable index; empty where there is none."""
    for _, path in sorted(_paths(storage, folder).items(), reverse=True):
        try:
            table = _read(storage, path)
        except (pa.ArrowException, OSError, ValueError):
            continue
        found: dict[str, list[GroupBounds]] = {}
        columns = (table.column(name).to_pylist() for name in _BOUNDS)
        for path, rows, first, last in zip(*columns, strict=True):
            bounds = GroupBounds(rows, Offset(int(first)), Offset(int(last)))
            found.setdefault(path, []).append(bounds)
        return found
    return {}


def drop_indexes_above(storage: Storage, folder: str, version: int) -> None:
    """After a recovery that has put versions aside: what speaks of them must go."""
    for found, path in _paths(storage, folder).items():
        if found > version:
            storage.remove(path)


_BOUNDS: Final = ("path", "rows", "first_offset", "last_offset")


def _paths(storage: Storage, folder: str) -> dict[int, str]:
    names = storage.names(f"{folder}/{INDEX_FOLDER}")
    return {
        int(match[1]): f"{folder}/{INDEX_FOLDER}/{name}"
        for name in names
        if (match := _NAME.fullmatch(name))
    }


def _read_bytes(storage: Storage, path: str) -> bytes:
    data = storage.read(path)
    if not path.endswith(f"-{crc32c.crc32c(data):08x}.parquet"):
        raise ValueError(f"{path} is damaged")
    return data


def _read(storage: Storage, path: str) -> pa.Table:
    data = _read_bytes(storage, path)
    with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
        return file.read(use_threads=False)


def _decode(table: pa.Table) -> TableState:
    meta = msgspec.json.decode(table.schema.metadata[_STATE_KEY], type=_State)
    state = TableState(meta.version, {}, meta.txns, meta.configuration)
    starts = np.flatnonzero(table.column("row_group").to_numpy() == 0)
    if len(starts):
        ends = np.append(starts[1:], len(table)) - 1
        rows = np.add.reduceat(table.column("rows").to_numpy(), starts).tolist()
        paths, sizes, firsts = (
            table.column(name).take(pa.array(starts)).to_pylist()
            for name in ("path", "bytes", "first_offset")
        )
        lasts = table.column("last_offset").take(pa.array(ends)).to_pylist()
        state.files = dict(_files(zip(paths, sizes, firsts, lasts, rows, strict=True)))
    return state


def _files(rows: Iterable[tuple[str, int, str, str, int]]) -> Iterable[tuple[str, DataFile]]:
    for path, size, first, last, count in rows:
        yield path, DataFile(path, size, Offset(int(first)), Offset(int(last)), count)
