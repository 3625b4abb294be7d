"""Replay: a range of a stream's history to files, to a table, or to another stream."""

from __future__ import annotations

import argparse
import sys
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the name everybody knows it by)

from engine.clock import SystemClock
from engine.errors import InvalidRequest
from engine.format.offset import epoch_of
from jobs.common.args import make_parser, positive_float, run_job
from jobs.common.lineage import Part, find_parts, require_untrimmed
from jobs.common.ranges import OffsetRange, make_range
from jobs.common.scan import ScanMeter, row_groups_in
from jobs.common.session import open_session
from jobs.common.sinks import (
    FILE_FORMATS,
    RatePacer,
    Request,
    StreamSink,
    output_folder,
    write_delta,
    write_files,
)
from jobs.common.tables import find_table, open_root
from jobs.common.transforms import in_offsets, with_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    speed.add_argument("--rate", type=positive_float, help="records a second, to a stream")
    speed.add_argument(
        "--pace", type=positive_float, help="1 = as it was recorded, 10 = ten times faster"
    )
    return run_job("replay", parser, replay, arguments)


def replay(options: argparse.Namespace, settings: StreamSettings, report: Report) -> None:
    """Read the range, write the sink, report what was scanned."""
    now_ms = SystemClock().now_ms()
    storage = open_root(settings.general.root)
    table = find_table(storage, options.stream)
    wanted = _range(options, now_ms)
    parts = find_parts(storage, table, wanted)
    if options.output is None:
        if not report.is_dry:
            raise InvalidRequest("--output is missing", hint="Name a folder, or a stream's URL.")
    elif options.to != "stream":
        output_folder(options.output, storage.root)
    if options.to == "stream":
        _require_settled(wanted, parts, now_ms)
        require_untrimmed(parts, wanted)
    groups = [row_groups_in(part.table, part.range) for part in parts]
    entry = report.add(
        table.name,
        version=table.state.version,
        files=sum(len(part.table.state.files) for part in parts),
        bytes=sum(part.table.bytes for part in parts),
        row_groups=sum(touched for touched, _ in groups),
        row_groups_in_files=sum(total for _, total in groups),
    )
    entry |= wanted.render()
    spark = open_session("replay")
    rows = reduce(
        DataFrame.unionByName,
        (
            select_rows(spark, part.table, part.range, key=options.key, where=options.where)
            for part in parts
        ),
    )
    meter = ScanMeter(spark)
    with report.progress(f"{table.name}: replay", spark):
        if report.is_dry:
            entry["rows"] = rows.count()
        else:
            token = settings.general.token.get_secret_value()
            _write(options, parts, wanted, rows, report, token=token)
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
    """A range of one table as a DataFrame. Delta skips days and files, Parquet skips row groups."""
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
    parts: list[Part],
    wanted: OffsetRange,
    rows: DataFrame,
    report: Report,
    *,
    token: str,
) -> None:
    entry, table = report.streams[-1], parts[-1].table
    facts = {**wanted.render(), "key": options.key, "where": options.where}
    request = Request(table.meta.id, {**facts, "stream": table.name})
    # A global sort samples first, which reads everything twice; a small range needs none.
    is_small = entry["row_groups"] <= _SMALL_ROW_GROUPS
    ordered = (
        rows.coalesce(1).sortWithinPartitions("offset") if is_small else rows.orderBy("offset")
    )
    if options.to == "stream":
        clock = SystemClock()
        pacer = RatePacer(clock, rate=options.rate, pace=options.pace)
        content_type = table.meta.content_type
        with (
            StreamSink(options.output, content_type, table.kind, request, token=token) as sink,
            report.progress(f"{table.name}: sent") as step,
        ):
            planned = ordered.toLocalIterator(prefetchPartitions=True)
            # Spark has chosen the files by now, maybe after a trim that was not there before.
            for part in parts:
                part.table.refresh()
            require_untrimmed(parts, wanted)
            sink.write(planned, pacer, step, clock)
        entry["rows"], entry["rows_known"] = sink.sent, sink.known
        return
    target = output_folder(options.output, table.storage.root)
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


def _require_settled(wanted: OffsetRange, parts: list[Part], now_ms: int) -> None:
    """A replay to a stream can only be repeated if its range can not grow any more."""
    if all(part.range.through <= part.table.state.committed for part in parts):
        return
    if not wanted.is_bounded or epoch_of(wanted.through) > now_ms - _SETTLED_MS:
        raise InvalidRequest(
            "a replay to a stream wants an end that is a minute ago or older",
            hint="Add --until with such a time: only then a second run sends the same records.",
        )


if __name__ == "__main__":
    sys.exit(main())
