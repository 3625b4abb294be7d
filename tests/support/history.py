"""A long history made by Spark: as many records over as many days as a test or a benchmark wants.

The files are what `compact` leaves behind, one per day; the table is what a server left after a
clean stop, and a server started on the root serves it.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  (the name everybody knows it by)

from engine.format.offset import make_offset
from engine.table.actions import COUNTER_APP, EPOCH_APP, RECORDS_APP, DataFile
from engine.table.change import TableChange, commit_change
from jobs.common.rewrite import write_options
from jobs.common.work import read_groups
from tests.support.tables import DAY_MS, TableBuilder

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

DAYS = 30
HISTORY_MS = 1_791_072_000_000
"""2026-10-04T00:00:00Z, when every history begins."""


def make_history(
    spark: SparkSession, root: Path, name: str, *, records: int, row_group_bytes: int = 1 << 20
) -> TableBuilder:
    """``records`` records, evenly over 30 days; before them one that makes the table."""
    table = TableBuilder(root, name)
    table.commit(HISTORY_MS - 1, [b'{"id":-1}'])
    staging = root / "_staging"
    (
        history_rows(spark, records)
        .write.partitionBy("flush_date")
        .options(**write_options(row_group_bytes))
        .parquet(str(staging))
    )
    adds = [_move(table, path) for path in sorted(staging.glob("flush_date=*/*.parquet"))]
    shutil.rmtree(staging)
    last = max(file.last for file in adds)
    txns = {
        EPOCH_APP: last // 10**16,
        COUNTER_APP: last % 10**16,
        RECORDS_APP: table.state.records + sum(file.rows for file in adds),
    }
    change = TableChange("WRITE", [], adds, changes_data=True, txns=txns)
    commit_change(table.storage, table.folder, table.state, change, now_ms=HISTORY_MS + 30 * DAY_MS)
    table.checkpoint()
    return table


def history_rows(spark: SparkSession, records: int) -> DataFrame:
    """Each record in a flush of its own; about 150 bytes of JSON, each unlike all others."""
    span_ms = DAYS * DAY_MS
    assert records % DAYS == 0, "a day has a whole number of records"
    assert records <= span_ms
    # Spark cuts the numbers into one slice per day, so each task writes the file of one day.
    epoch = F.expr(f"{HISTORY_MS} + id * {span_ms} div {records}")
    mixed = F.expr("pmod(id * 2654435761, 4294967296)")
    data = F.format_string(
        '{"id":%d,"user":"user-%04d","item":"item-%03d","price":%d.%02d,"note":"%08x%08x"}',
        *(F.col("id"), mixed % 5000, mixed % 300, mixed % 90, mixed % 100),
        *(mixed, F.pmod(mixed * 40503, F.lit(4294967296))),
    )
    return (
        spark.range(0, records, 1, DAYS)
        .select("id", epoch.alias("epoch"))
        .select(
            F.concat(F.lpad(F.col("epoch").cast("string"), 16, "0"), F.lit(f"{1:016d}")).alias(
                "offset"
            ),
            F.timestamp_millis("epoch").alias("flushed_at"),
            F.lit(None).cast("string").alias("key"),
            data.alias("data"),
            F.lit(0).alias("append_seq"),
            F.timestamp_millis("epoch").cast("date").alias("flush_date"),
        )
    )


def _move(table: TableBuilder, source: Path) -> DataFile:
    path = f"{source.parent.name}/part-{source.name}"
    target = table.path / path
    target.parent.mkdir(exist_ok=True)
    source.rename(target)
    groups = read_groups(str(target))
    first, last = groups[0].first, groups[-1].last
    rows = sum(group.rows for group in groups)
    return DataFile(path, target.stat().st_size, first, last, rows)


def moment(day: int, hour: int) -> int:
    """The start of an hour of the history, in ms."""
    assert day < DAYS
    return HISTORY_MS + day * DAY_MS + hour * 3_600_000


def offset_of(epoch_ms: int) -> str:
    """The position before everything flushed at that time or later."""
    return f"{make_offset(epoch_ms, 0):032d}"
