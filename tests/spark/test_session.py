"""The Spark set-up itself: the pinned Spark, Delta and jars work together, offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_spark_writes_and_reads_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    spark.range(10).write.format("delta").save(table)
    spark.range(10, 20).write.format("delta").mode("append").save(table)

    rows = spark.read.format("delta").load(table).orderBy("id").collect()

    assert [row.id for row in rows] == list(range(20))


def test_spark_writes_tables_that_need_no_reader_feature(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    spark.range(3).write.format("delta").save(table)

    protocol = deltalake.DeltaTable(table).protocol()

    assert protocol.min_reader_version == 1


def test_spark_runs_delta_commands(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    spark.range(10).repartition(4).write.format("delta").save(table)

    spark.sql(f"OPTIMIZE delta.`{table}`").collect()

    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
    assert [row.operation for row in history] == ["OPTIMIZE", "WRITE"]
