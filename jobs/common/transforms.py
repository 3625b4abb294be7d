"""Table transforms: functions from DataFrame to DataFrame, without any I/O of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  (the name everybody knows it by)
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from engine.format.offset import format_stored
from engine.types import Offset, PayloadKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

COLUMNS: Final = ("offset", "flushed_at", "key", "data", "append_seq")
BIN: Final = "bin"


def file_schema(kind: PayloadKind) -> StructType:
    """Columns inside a stream's Parquet files."""
    data = BinaryType() if kind is PayloadKind.BYTES else StringType()
    return StructType(
        [
            StructField("offset", StringType()),
            StructField("flushed_at", TimestampType()),
            StructField("key", StringType()),
            StructField("data", data),
            StructField("append_seq", IntegerType()),
        ]
    )


def into_bins(rows: DataFrame, lasts: Sequence[Offset]) -> DataFrame:
    """One sorted run of rows per bin; ``lasts`` are the last offsets of the bins, in order.

    The bounds are known from the log, so no sampling pass over the data is needed. How many tasks
    sort is left to Spark: bins are many where files are tiny, and a task each would cost more than
    the rows.
    """
    return (
        rows.select(*COLUMNS, F.expr(_bin_number(lasts)).alias(BIN))
        .repartition(BIN)
        .sortWithinPartitions(BIN, "offset")
    )


def _bin_number(lasts: Sequence[Offset], first: int = 0) -> str:
    """SQL that halves the bounds: a CASE in a CASE for each of them overflows the JVM's stack, and
    Column objects take seconds to make (measured: 2.4 s for 1000 bounds, SQL 0.01 s).
    """
    if len(lasts) == 1:
        return str(first)
    middle = len(lasts) // 2
    below, above = _bin_number(lasts[:middle], first), _bin_number(lasts[middle:], first + middle)
    return f"if(offset <= '{format_stored(lasts[middle - 1])}', {below}, {above})"


def fingerprint(rows: DataFrame) -> list[Column]:
    """Aggregates that are equal for equal sets of rows, in whatever order and files they lie."""
    row_hash = F.xxhash64(*(F.col(name) for name in COLUMNS if name in rows.columns))
    return [F.count(F.lit(1)).alias("rows"), F.bit_xor(row_hash).alias("digest")]


def in_offsets(rows: DataFrame, *, after: Offset, through: Offset) -> DataFrame:
    """Rows after one position and up to another: plain comparisons, which every reader can use to
    skip files and row groups.
    """
    return rows.where(
        (F.col("offset") > F.lit(format_stored(after)))
        & (F.col("offset") <= F.lit(format_stored(through)))
    )


def with_key(rows: DataFrame, key: str) -> DataFrame:
    """Rows of one routing key."""
    return rows.where(F.col("key") == F.lit(key))


def as_ndjson(rows: DataFrame, kind: PayloadKind) -> DataFrame:
    """One line of JSON per record. A JSON record goes in as it is, so that no number changes; line
    breaks can only be white space there.
    """
    if kind is PayloadKind.JSON:
        data: Column = F.regexp_replace(F.col("data"), "[\\r\\n]+", " ")
    else:
        data = _json_text(_as_text(kind))
    key = F.coalesce(_json_text(F.col("key")), F.lit("null"))
    line = F.concat(
        F.lit('{"offset":"'),
        F.col("offset"),
        F.lit('","flushed_at":"'),
        _iso(),
        F.lit('","key":'),
        key,
        F.lit(',"data":'),
        data,
        F.lit("}"),
    )
    return rows.select(line.alias("value"))


def as_csv(rows: DataFrame, kind: PayloadKind) -> DataFrame:
    """Columns of a CSV file; binary data as base64."""
    return rows.select("offset", _iso().alias("flushed_at"), "key", _as_text(kind).alias("data"))


def _as_text(kind: PayloadKind) -> Column:
    if kind is not PayloadKind.BYTES:
        return F.col("data")
    # Spark breaks base64 into lines of 76 characters, unless a setting of the session forbids it.
    return F.replace(F.base64("data"), F.lit("\r\n"), F.lit(""))


def _json_text(text: Column) -> Column:
    """A JSON string literal: Spark has no function for it but on structs."""
    document = F.to_json(F.struct(text.alias("v")))
    return F.when(
        text.isNotNull(),
        F.substring(document, 6, 2_147_483_647).substr(F.lit(1), F.length(document) - F.lit(6)),
    )


def _iso() -> Column:
    return F.date_format("flushed_at", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
