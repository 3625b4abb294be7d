"""Replay: a range of a stream's history to files, to a table, or to another stream."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  (the name everybody knows it by)

from engine.clock import SystemClock
from engine.errors import InvalidRequest
from engine.format.offset import epoch_of
from jobs.common.args import make_parser, run_job
from jobs.common.ranges import OffsetRange, make_range
from jobs.common.scan import ScanMeter, row_groups_in
from jobs.common.session import open_session
from jobs.common.sinks import (
    FILE_FORMATS,
    RatePacer,
    Request,
    StreamSink,
    write_delta,
    write_files,
)
from jobs.common.tables import find_table, open_root
from jobs.common.transforms import in_offsets, with_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jobs.common.report import Report
    from jobs.common.settings import StreamSettings
    from jobs.common.tables import StreamTable

EPILOG = """examples:
  bottomless replay --stream orders --since 2026-11-17T14:00:00Z --until 2026-11-17T15:00:00Z \\
      --to ndjson --output /tmp/tuesday
  bottomless replay --stream orders --since -1d --where "get_json_object(data, '$.item') = 'tea'" \\
      --to csv --output /tmp/tea
  bottomless replay --stream orders --since 2026-11-17 --until 2026-11-18 \\
      --to stream --output http://127.0.0.1:4437/v1/stream/orders-again --rate 5000

--where takes Spark SQL on the columns offset, flushed_at, key and data. A second run of the same
replay makes no second copy. What is not in the table yet (about a second's worth) is left
out."""

# A range that ends so long ago has all of its records in the table.
_SETTLED_MS = 60_000
# About a MiB of payload each: one task sorts so much without a shuffle.
_SMALL_ROW_GROUPS = 256


def main(arguments: list[str] | None = None) -> int:
    """Run the job."""
    parser = make_parser("replay", "Replay a range of a stream's history.", epilog=EPILOG)
    parser.add_argument("--stream", required=True, metavar="NAME", help="the source")
    parser.add_argument("--since", help="first time: RFC 3339, a date, -2h")
    parser.add_argument("--until", help="time of the end, not included")
    parser.add_argument("--after", metavar="OFFSET", help="begin after this offset")
    parser.add_argument("--through", metavar="OFFSET", help="last offset, included")
    parser.add_argument("--key", help="only records of this routing key")
    parser.add_argument("--where", metavar="SQL", help="only records for which this holds")
    parser.add_argument(
        "--to", choices=[*FILE_FORMATS, "delta", "stream"], default="ndjson", help="(ndjson)"
    )
    parser.add_argument("--output", help="folder, or URL of a stream")
    parser.add_argument("--overwrite", action="store_true", help="replace what lies in the folder")
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--rate", type=float, help="records a second, to a stream")
    speed.add_argument("--pace", type=float, help="1 = as it was recorded, 10 = ten times faster")
    return run_job("replay", parser, replay, arguments)


def replay(options: argparse.Namespace, settings: StreamSettings, report: Report) -> None:
    """Read the range, write the sink, report what was scanned."""
    clock = SystemClock()
    table = find_table(open_root(settings.general.root), options.stream)
    wanted = _range(options, clock.now_ms())
    if options.output is None and not report.is_dry:
        raise InvalidRequest("--output is missing", hint="Name a folder, or a stream's URL.")
    if options.to == "stream":
        _require_settled(wanted, table, clock.now_ms())
    groups, groups_total = row_groups_in(table, wanted)
    entry = report.add(
        table.name,
        version=table.state.version,
        files=len(table.state.files),
        bytes=table.bytes,
        row_groups=groups,
        row_groups_in_files=groups_total,
    )
    entry |= wanted.render()
    spark = open_session("replay")
    rows = select_rows(spark, table, wanted, key=options.key, where=options.where)
    meter = ScanMeter(spark)
    with report.progress(f"{table.name}: replay", spark):
        if report.is_dry:
            entry["rows"] = rows.count()
        else:
            _write(options, table, wanted, rows, report)
    scanned = meter.read()
    entry["files_scanned"], entry["bytes_scanned"] = scanned.files, scanned.bytes


def select_rows(
    spark: SparkSession,
    table: StreamTable,
    wanted: OffsetRange,
    *,
    key: str | None,
    where: str | None,
) -> DataFrame:
    """The range as a DataFrame. Delta skips days and files, Parquet skips row groups."""
    first, last = wanted.days
    rows = (
        spark.read.format("delta")
        .load(str(table.path))
        .where(F.col("flush_date").between(F.lit(first).cast("date"), F.lit(last).cast("date")))
    )
    rows = in_offsets(rows, after=wanted.after, through=wanted.through)
    if key is not None:
        rows = with_key(rows, key)
    return rows if where is None else rows.where(where)


def _write(
    options: argparse.Namespace,
    table: StreamTable,
    wanted: OffsetRange,
    rows: DataFrame,
    report: Report,
) -> None:
    entry = report.streams[-1]
    facts = {**wanted.render(), "key": options.key, "where": options.where}
    request = Request(table.meta.id, {**facts, "stream": table.name})
    # A global sort samples first, which reads everything twice; a small range needs none.
    is_small = entry["row_groups"] <= _SMALL_ROW_GROUPS
    ordered = (
        rows.coalesce(1).sortWithinPartitions("offset") if is_small else rows.orderBy("offset")
    )
    if options.to == "stream":
        sink = StreamSink(options.output, table.meta.content_type, table.kind, request)
        clock = SystemClock()
        with report.progress(f"{table.name}: sent") as step:
            pacer = RatePacer(clock, rate=options.rate, pace=options.pace)
            sink.write(ordered.toLocalIterator(prefetchPartitions=True), pacer, step, clock)
        entry["rows"], entry["rows_known"] = sink.sent, sink.known
        return
    target = Path(options.output)
    if options.to == "delta":
        write_delta(ordered, target, request)
        return
    entry["written"] = write_files(
        ordered, table.kind, options.to, target, request, over=options.overwrite
    )
    entry["bytes_out"] = sum(file.stat().st_size for file in target.glob("part-*"))


def _range(options: argparse.Namespace, now_ms: int) -> OffsetRange:
    try:
        return make_range(
            since=options.since,
            until=options.until,
            after=options.after,
            through=options.through,
            now_ms=now_ms,
        )
    except argparse.ArgumentTypeError as error:
        raise InvalidRequest(str(error)) from error


def _require_settled(wanted: OffsetRange, table: StreamTable, now_ms: int) -> None:
    """A replay to a stream can only be repeated if its range can not grow any more."""
    if wanted.through <= table.state.committed:
        return
    if not wanted.is_bounded or epoch_of(wanted.through) > now_ms - _SETTLED_MS:
        raise InvalidRequest(
            "a replay to a stream wants an end that is a minute ago or older",
            hint="Add --until with such a time: only then a second run sends the same records.",
        )


if __name__ == "__main__":
    sys.exit(main())
