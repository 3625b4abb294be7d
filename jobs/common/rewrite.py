"""A rewrite: Spark reads small files, sorts, writes large ones; the commit is a log entry of ours.

Spark never commits (F2). Its files are written aside, checked against what was read, synced, moved
into the table's folders and only then named by an entry that is put in place if absent. Killed at
any moment, nothing is lost: what is not named by the log is litter, and the next run removes it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
from pyspark.sql import Observation

from engine.errors import TableDamaged
from engine.format.offset import parse_offset
from engine.table.actions import DataFile
from engine.table.change import commit_change, rewrite_of
from engine.table.schema import PARTITION_COLUMN
from engine.table.vacuum import stray_files
from jobs.common.paths import glob_escape
from jobs.common.transforms import BIN, file_schema, fingerprint, into_bins

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from engine.clock import Clock
    from jobs.common.plan import Bin
    from jobs.common.tables import StreamTable

STAGING_FOLDER: Final = "_staging"
_FILE_PREFIX: Final = "compact-"
# Parquet cuts a row group where it looks at its size: by default at row 100, and then as many rows
# on as the rows so far let it expect, which is wrong where large records follow small ones. To look
# at every fourth row costs nothing that shows (200,000 rows compacted, 3 million written).
_SIZE_CHECK_ROWS: Final = 4


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What a rewrite did."""

    files_in: int
    files_out: int
    bytes_in: int
    bytes_out: int
    rows: int
    version: int


class Rewriter:
    """Rewrites bins of one table. The caller holds the table's lock."""

    def __init__(
        self, spark: SparkSession, table: StreamTable, clock: Clock, *, row_group_bytes: int
    ) -> None:
        self._spark = spark
        self._table = table
        self._storage = table.storage
        self._clock = clock
        self._row_group_bytes = row_group_bytes

    def clean(self) -> int:
        """Remove what a killed run left behind; returns how many files that were."""
        table, storage = self._table, self._storage
        storage.remove_folder(f"{table.folder}/{STAGING_FOLDER}")
        litter = [
            stray.path
            for stray in stray_files(storage, table.folder, table.state)
            if stray.removed_ms is None and _FILE_PREFIX in stray.path
        ]
        for path in litter:
            storage.remove(f"{table.folder}/{path}")
        return len(litter)

    def rewrite(self, bins: list[Bin], before_commit: Callable[[], None] | None = None) -> Rewrite:
        """Write and commit; ChangeLost where another change came first."""
        table, storage = self._table, self._storage
        token = f"{self._clock.now_ms():013d}-{secrets.token_hex(8)}"
        staging = f"{table.folder}/{STAGING_FOLDER}/{token}"
        removes = [file for bin_ in bins for file in bin_.files]
        try:
            self._write(bins, storage.uri(staging))
            adds = self._move(bins, staging, token)
        finally:
            storage.remove_folder(staging)
        # Everything that the entry will name is durable before it is named (F1).
        storage.sync_all()
        if before_commit is not None:
            before_commit()
        version = commit_change(
            storage,
            table.folder,
            table.state,
            rewrite_of(table.state, removes, adds),
            now_ms=self._clock.now_ms(),
        )
        storage.sync_all()
        return Rewrite(
            files_in=len(removes),
            files_out=len(adds),
            bytes_in=sum(file.size for file in removes),
            bytes_out=sum(file.size for file in adds),
            rows=sum(file.rows for file in adds),
            version=version,
        )

    def _write(self, bins: list[Bin], target: str) -> None:
        table = self._table
        folder = self._storage.uri(table.folder)
        paths = [f"{folder}/{file.path}" for bin_ in bins for file in bin_.files]
        schema = file_schema(table.kind)
        rows = self._spark.read.schema(schema).parquet(*map(glob_escape, paths))
        # Taken while the rows pass by: reading thousands of small files twice costs as much again.
        read = Observation("read")
        observed = rows.observe(read, *fingerprint(rows))
        (
            into_bins(observed, [bin_.last for bin_ in bins])
            .write.partitionBy(BIN)
            .options(**write_options(self._row_group_bytes))
            .parquet(target)
        )
        written = self._spark.read.schema(schema).parquet(glob_escape(target))
        [row] = written.agg(*fingerprint(written)).collect()
        before, after = read.get, row.asDict()
        if before != after:
            raise TableDamaged(
                f"the rewrite of {table.name} has other rows than its input: {before}, {after}",
                hint="Nothing was changed. Run `bottomless check`.",
            )

    def _move(self, bins: list[Bin], staging: str, token: str) -> list[DataFile]:
        """Into the folders of the table, with what the footers say."""
        adds = []
        for number, bin_ in enumerate(bins):
            source = f"{staging}/{BIN}={number}"
            names = [name for name in self._storage.names(source) if name.endswith(".parquet")]
            for index, name in enumerate(names):
                partition = f"{PARTITION_COLUMN}={bin_.partition}"
                path = f"{partition}/{_FILE_PREFIX}{token}-{number}-{index}.parquet"
                self._storage.make_folder(f"{self._table.folder}/{partition}")
                target = f"{self._table.folder}/{path}"
                self._storage.rename(f"{source}/{name}", target)
                adds.append(_describe(path, self._storage.uri(target)))
            of_bin = adds[len(adds) - len(names) :]
            _check_bin(bin_, of_bin)
        return adds


def write_options(row_group_bytes: int) -> dict[str, str]:
    """How Spark writes a stream's files: row groups of what one read returns, page checksums, no
    dictionary for columns whose values are all different.
    """
    return {
        "compression": "zstd",
        "parquet.block.size": str(row_group_bytes),
        "parquet.page.size.row.check.min": "1",
        "parquet.page.size.row.check.max": str(_SIZE_CHECK_ROWS),
        "parquet.page.write-checksum.enabled": "true",
        "parquet.enable.dictionary#offset": "false",
        "parquet.enable.dictionary#data": "false",
    }


def _describe(path: str, full_path: str) -> DataFile:
    """A file from its own footer: the statistics of the log are those of the file."""
    with pq.ParquetFile(full_path) as file:
        footer = file.metadata
        groups = [
            footer.row_group(index).column(0).statistics for index in range(footer.num_row_groups)
        ]
        size = _size(full_path)
        first, last = min(group.min for group in groups), max(group.max for group in groups)
        return DataFile(path, size, parse_offset(first), parse_offset(last), footer.num_rows)


def _size(full_path: str) -> int:
    return Path(full_path).stat().st_size


def _check_bin(bin_: Bin, files: list[DataFile]) -> None:
    rows = sum(file.rows for file in files)
    is_whole = (
        rows == bin_.rows
        and min(file.first for file in files) == bin_.first
        and max(file.last for file in files) == bin_.last
    )
    if not is_whole:
        raise TableDamaged(
            f"a rewritten file holds {rows} rows, not {bin_.rows}, or other offsets",
            hint="Nothing was changed. Run `bottomless check`.",
        )
