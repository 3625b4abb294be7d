"""Parquet files of a stream: batches to bytes, row groups back to runs. No loop over records."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.format.batch import SEPARATOR, Batch
from engine.format.offset import COUNTER_BASE, stored_column
from engine.format.run import Run
from engine.table.schema import arrow_schema, data_type
from engine.types import PayloadKind

_COMPRESSION: Final = "zstd"
_COMPRESSION_LEVEL: Final = 1
_READ_COLUMNS: Final = ["offset", "data"]


def encode_batches(batches: list[Batch], kind: PayloadKind, *, row_group_bytes: int) -> pa.Buffer:
    """One Parquet file holding the batches in order."""
    table = batches_to_arrow(batches, kind)
    rows = _rows_per_group(table, row_group_bytes)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=rows,
        compression=_COMPRESSION,
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=["flushed_at", "key"],
        write_statistics=["offset", "flushed_at"],
        # A flipped bit is then an error, never a wrong record.
        write_page_checksum=True,
        store_schema=False,
    )
    return sink.getvalue()


def batches_to_arrow(batches: list[Batch], kind: PayloadKind) -> pa.Table:
    """The rows of the batches with the columns of the public layout."""
    counts = np.fromiter((batch.count for batch in batches), dtype=np.int64, count=len(batches))
    epochs = np.fromiter((batch.first // COUNTER_BASE for batch in batches), np.int64, len(batches))
    counters = np.fromiter(
        (batch.first % COUNTER_BASE for batch in batches), np.int64, len(batches)
    )
    total = int(counts.sum())
    begins = np.cumsum(counts) - counts
    append_seq = np.arange(total, dtype=np.int64) - np.repeat(begins, counts)
    row_epochs = np.repeat(epochs, counts)
    offsets = stored_column(row_epochs, np.repeat(counters, counts) + append_seq)
    columns = [
        _strings(pa.string(), np.full(total, 32, dtype=np.int64), pa.py_buffer(offsets)),
        _numbers(pa.timestamp("us", tz="UTC"), row_epochs * 1000),
        pa.nulls(total, pa.string()),
        _data_column(batches, kind),
        _numbers(pa.int32(), append_seq.astype(np.int32)),
    ]
    return pa.Table.from_arrays(columns, schema=arrow_schema(kind))


def open_file(source: pa.NativeFile, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Open for reading row groups; page checksums are verified. For one thread at a time."""
    return pq.ParquetFile(source, metadata=footer, page_checksum_verification=True)


def row_group_bounds(file: pq.ParquetFile) -> list[tuple[int, int]]:
    """First and last offset of each row group, from the footer's statistics."""
    bounds = []
    for index in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(index).column(0).statistics
        bounds.append((int(statistics.min), int(statistics.max)))
    return bounds


def row_group_sizes(file: pq.ParquetFile) -> list[int]:
    """What the data column of each row group takes before compression."""
    metadata = file.metadata
    data = metadata.schema.names.index("data")
    groups = range(metadata.num_row_groups)
    return [metadata.row_group(group).column(data).total_uncompressed_size for group in groups]


def read_row_group(file: pq.ParquetFile, index: int, kind: PayloadKind) -> Run:
    """Decode one row group into joined bytes and the places where records end."""
    table = file.read_row_group(index, columns=_READ_COLUMNS, use_threads=False)
    offsets = _one_chunk(table.column("offset"))
    data = _one_chunk(table.column("data"))
    keys = np.frombuffer(offsets.buffers()[2], dtype="S32")[offsets.offset :][: len(offsets)]
    starts = np.frombuffer(data.buffers()[1], dtype=np.int32)[data.offset :][: len(data) + 1]
    ends = np.cumsum(np.diff(starts), dtype=np.int64)
    if kind is PayloadKind.JSON:
        ends += np.arange(len(data))
        bounds = _numbers(pa.int32(), np.array([0, len(data)], dtype=np.int32))
        rows = pa.ListArray.from_arrays(bounds, data)
        joined = pc.binary_join(rows, _SEPARATOR_SCALAR)[0].as_buffer()
    else:
        joined = data.buffers()[2].slice(int(starts[0]), int(ends[-1]))
    return Run(
        keys, ends, joined, separator_bytes=len(SEPARATOR) if kind is PayloadKind.JSON else 0
    )


def read_append_seq(file: pq.ParquetFile, index: int) -> np.ndarray:
    """The append_seq column of one row group: a zero is where an append begins."""
    table = file.read_row_group(index, columns=["append_seq"], use_threads=False)
    column = _one_chunk(table.column(0))
    return np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset :][: len(column)]


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _rows_per_group(table: pa.Table, row_group_bytes: int) -> int:
    average: int = max(1, table.column("data").nbytes // max(1, len(table)))
    return max(1, row_group_bytes // average)


def _data_column(batches: list[Batch], kind: PayloadKind) -> pa.Array:
    lengths = np.concatenate([batch.record_lengths() for batch in batches]).astype(np.int64)
    if kind is not PayloadKind.JSON:
        joined = b"".join([batch.data for batch in batches])
        return _strings(data_type(kind), lengths, pa.py_buffer(joined))
    # Records and separators alternate: view all of them as strings, then take every second one.
    joined = SEPARATOR.join([batch.data for batch in batches])
    alternating = np.full(2 * len(lengths) - 1, len(SEPARATOR), dtype=np.int64)
    alternating[::2] = lengths
    everything = _strings(data_type(kind), alternating, pa.py_buffer(joined))
    return everything.take(_numbers(pa.int64(), np.arange(0, len(alternating), 2)))


def _numbers(type_: pa.DataType, values: np.ndarray) -> pa.Array:
    """An Arrow view of a numpy array. pa.array would do, but it imports pandas where that is
    installed.
    """
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def _strings(type_: pa.DataType, lengths: np.ndarray, values: pa.Buffer) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    assert offsets[-1] <= 2**31 - 1, "a commit holds less than 2 GiB"
    return pa.Array.from_buffers(
        type_, len(lengths), [None, pa.py_buffer(offsets.astype(np.int32)), values]
    )


# Made of buffers for the same reason: with a plain str the first read after a start took 1.3 s.
_SEPARATOR_SCALAR: Final = _strings(pa.string(), np.array([1]), pa.py_buffer(SEPARATOR))[0]
