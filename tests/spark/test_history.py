"""One hour out of a month: what the job reads for it, and how soon HTTP answers."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from jobs import check, replay
from tests.support.history import history_rows, make_history, moment, offset_of
from tests.support.load import Client
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.tables import TableBuilder

RECORDS = 300_000
HOUR = (17, 14)
PER_HOUR = RECORDS // (30 * 24)


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> TableBuilder:
    root = tmp_path_factory.mktemp("history") / "root"
    return make_history(spark, root, "orders", records=RECORDS, row_group_bytes=1 << 16)


def hour_of(spark: SparkSession) -> list[str]:
    """The records of the hour, from how they were made."""
    begin, end = (moment(HOUR[0], HOUR[1] + hour) for hour in (0, 1))
    rows = history_rows(spark, RECORDS).where(
        f"unix_millis(flushed_at) >= {begin} and unix_millis(flushed_at) < {end}"
    )
    return [row.data for row in rows.orderBy("offset").select("data").collect()]


def touched_bytes(history: TableBuilder, begin: int, end: int) -> int:
    """The column chunks that hold the range: whoever says that he read less has miscounted."""
    size = 0
    day = datetime.fromtimestamp(begin / 1000, UTC).date()
    for path in history.path.glob(f"flush_date={day}/*.parquet"):
        with pq.ParquetFile(path) as file:
            for index in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(index)
                bounds = group.column(0).statistics
                if int(bounds.max[:16]) >= begin and int(bounds.min[:16]) < end:
                    size += sum(group.column(i).total_compressed_size for i in range(4))
    assert size > 0
    return size


def rfc3339(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat()


def test_replay_of_an_hour_reads_little_of_a_month(
    spark: SparkSession,
    history: TableBuilder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begin, end = moment(*HOUR), moment(HOUR[0], HOUR[1] + 1)
    arguments = ["--root", str(history.storage.root), "--stream", "orders", "--quiet"]
    arguments += ["--since", rfc3339(begin), "--until", rfc3339(end)]

    assert replay.main([*arguments, "--output", str(tmp_path / "out")]) == 0

    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    lines = [
        line
        for part in sorted((tmp_path / "out").glob("part-*"))
        for line in part.read_text().splitlines()
    ]
    assert len(lines) == PER_HOUR
    texts = [line.partition('"data":')[2].removesuffix("}") for line in lines]
    assert texts == hour_of(spark)
    assert report["files_scanned"] == 1
    assert report["row_groups"] < report["row_groups_in_files"] / 4
    assert touched_bytes(history, begin, end) <= report["bytes_scanned"] < 0.02 * report["bytes"]


def test_history_is_served_from_any_hour(spark: SparkSession, history: TableBuilder) -> None:
    assert check.main(["--root", str(history.storage.root), "--quiet"]) == 0
    with ServerProcess.start(history.storage.root) as server, Client(server.url) as client:
        begun = time.perf_counter()
        reply = client.call("GET", "orders", query=f"?offset={offset_of(moment(*HOUR))}")
        cold_ms = (time.perf_counter() - begun) * 1000
        found = client.split(reply.body)[:PER_HOUR]
        assert server.terminate() == 0

    assert [record.decode() for record in found] == hour_of(spark)
    assert cold_ms < 1000, "the figure is in docs/jobs.md; this is a bound for a busy machine"
