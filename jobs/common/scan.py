"""What a query really read, from Spark's own books: files and bytes of its scans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobs.common.ranges import OffsetRange
    from jobs.common.tables import StreamTable


@dataclass(frozen=True, slots=True)
class Scanned:
    """Files opened and bytes taken from storage by the stages of some queries."""

    files: int
    bytes: int


class ScanMeter:
    """Adds up the scans of all queries between its making and its reading."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # What Parquet's vectored reads take from a file is in no statistics of Hadoop, so Spark
        # would report footers only (measured: 6 kB instead of 180 kB).
        spark.conf.set("parquet.hadoop.vectored.io.enabled", "false")
        # Private API of PySpark, and the only way from Python to the SQL tab's numbers.
        self._sql = spark._jsparkSession.sharedState().statusStore()
        self._core = spark.sparkContext._jsc.sc().statusStore()
        self._seen = {execution.executionId() for execution in self._executions()}

    def read(self) -> Scanned:
        """What was scanned since."""
        self._spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        files = size = 0
        for execution in self._executions():
            if execution.executionId() in self._seen:
                continue
            found = self._files(execution.executionId())
            if found is None:
                continue
            files += found
            for stage_id in _items(execution.stages()):
                size += int(self._core.lastStageAttempt(int(stage_id)).inputBytes())
        return Scanned(files, size)

    def _executions(self) -> list[Any]:
        return _items(self._sql.executionsList())

    def _files(self, execution_id: int) -> int | None:
        """Data files of a query; None for one that only reads a Delta log."""
        values = self._sql.executionMetrics(execution_id)
        found: int | None = None
        for node in _items(self._sql.planGraph(execution_id).allNodes()):
            if not node.name().startswith("Scan parquet") or "DeltaLog" in node.desc():
                continue
            found = found or 0
            for metric in _items(node.metrics()):
                value = values.get(metric.accumulatorId())
                if metric.name() == "number of files read" and value.isDefined():
                    found += int(value.get().replace(",", ""))
        return found


def _items(sequence: Any) -> list[Any]:  # noqa: ANN401  (a Scala collection behind py4j)
    iterator = sequence.iterator()
    found = []
    while iterator.hasNext():
        found.append(iterator.next())
    return found


def row_groups_in(table: StreamTable, wanted: OffsetRange) -> tuple[int, int]:
    """Row groups that the range touches, and those of the whole stream's touched files."""
    touched = total = 0
    for file in table.state.files.values():
        if file.last <= wanted.after or file.first > wanted.through:
            continue
        with pq.ParquetFile(table.storage.uri(f"{table.folder}/{file.path}")) as parquet:
            for index in range(parquet.metadata.num_row_groups):
                statistics = parquet.metadata.row_group(index).column(0).statistics
                total += 1
                touched += int(statistics.max) > wanted.after and (
                    int(statistics.min) <= wanted.through
                )
    return touched, total
