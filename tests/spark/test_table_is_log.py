"""The table is the log: the same rows in the same order, byte for byte, for every reader."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.dataset as pads
import pytest
from deltalake import DeltaTable

from tests.support.load import Client, wait_for
from tests.support.server import EXECUTABLE, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

COMMITS = 5
NAMES = [
    "orders",
    "shop/orders",
    "shop_orders",
    "äöü 😀/日本",
    "a%2fb/..c",
    "q'uote\"s&+=#?;:@",
    "_wal",
    "-",
]
JSON_RECORDS = [
    b"123456789012345678901234567890",
    b"1.0",
    b"-0",
    b"1E+2",
    b'{"b":1,"a":2}',
    b'{"a":1,"a":2}',
    b'{ "spaced" : [ 1 , 2 ] }',
    '"😀 é 日本"'.encode(),
    b'"\\ud83d\\ude00 \\ud800 \\u0000"',
    b"[[1,[2,[]]],{}]",
    b'""',
    b"null",
    b"0.1000000000000000055511151231257827",
    b'"' + b"x" * 5000 + b'"',
]
TEXT_RECORDS = ["häß\r\n".encode(), b" ", "😀\x00 end".encode(), b'{"not":"json"', b"x" * 3000]
BINARY_RECORDS = [bytes(range(256)), b"\x00", b"\xff\xfe", b"plain", bytes(3000)]


@dataclass(frozen=True)
class Log:
    """A stream of the running server and what was sent to it, one append for each record."""

    name: str
    content_type: str
    records: list[bytes]
    table: Path
    body: bytes
    """What HTTP gives back."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("log") / "data"
    env = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "20", "BOTTOMLESS_COMMIT__CHECKPOINT_EVERY": "3"}
    with ServerProcess.start(root, env=env) as server:
        yield server


@pytest.fixture(scope="module")
def logs(server: ServerProcess) -> dict[str, Log]:
    """A JSON, a text and a binary stream, each with several commits; the server goes on."""
    return {
        kind: write_log(server, kind, content_type, records)
        for kind, content_type, records in (
            ("json", "application/json", JSON_RECORDS),
            ("text", "text/plain", TEXT_RECORDS),
            ("binary", "application/octet-stream", BINARY_RECORDS),
        )
    }


def write_log(server: ServerProcess, name: str, content_type: str, records: list[bytes]) -> Log:
    """Append all records several times, and let every pass become a commit."""
    table = server.root / name
    sent: list[bytes] = []
    with Client(server.url) as client:
        client.create(name, content_type=content_type)
        for _ in range(COMMITS):
            sent += append_all(client, name, content_type, records)
            count = len(sent)
            wait_for(lambda count=count: rows_committed(table) == count, "the commit")
        body = client.read(name).body
        if content_type == "application/json":
            assert client.records(name) == sent
        else:
            assert body == b"".join(sent)
    assert DeltaTable(table).version() >= COMMITS - 1
    return Log(name, content_type, sent, table, body)


def append_all(client: Client, name: str, kind: str, records: list[bytes]) -> list[bytes]:
    """One append for each record; a JSON array would be taken apart, so it goes into another."""
    for record in records:
        body = b"[" + record + b"]" if kind == "application/json" else record
        reply = client.append(name, body, kind)
        assert reply.status == 204, (record, reply.body)
    return records


def rows_committed(table: Path) -> int:
    if not any((table / "_delta_log").glob("*.json")):
        return 0
    return DeltaTable(table).count()


def as_bytes(values: list[str | bytes | bytearray]) -> list[bytes]:
    return [value.encode() if isinstance(value, str) else bytes(value) for value in values]


def spark_rows(frame: DataFrame) -> list[tuple[str, bytes]]:
    rows = frame.select("offset", "data").orderBy("offset").collect()
    return list(zip([row.offset for row in rows], as_bytes([r.data for r in rows]), strict=True))


def deltalake_rows(table: Path) -> list[tuple[str, bytes]]:
    rows = DeltaTable(table).to_pyarrow_table(columns=["offset", "data"]).sort_by("offset")
    data = as_bytes(rows.column("data").to_pylist())
    return list(zip(rows.column("offset").to_pylist(), data, strict=True))


def polars_rows(table: Path) -> list[tuple[str, bytes]]:
    rows = pl.read_delta(str(table)).sort("offset")
    return list(zip(rows["offset"].to_list(), as_bytes(rows["data"].to_list()), strict=True))


@pytest.mark.parametrize("kind", ["json", "text", "binary"])
def test_table_holds_the_rows_of_the_log_for_every_reader(
    spark: SparkSession, logs: dict[str, Log], kind: str
) -> None:
    log = logs[kind]
    frame = spark.read.format("delta").load(str(log.table))
    by_spark = spark_rows(frame)
    assert [data for _, data in by_spark] == log.records
    assert deltalake_rows(log.table) == by_spark
    assert polars_rows(log.table) == by_spark
    assert dict(frame.dtypes)["data"] == ("binary" if kind == "binary" else "string")
    offsets = [offset for offset, _ in by_spark]
    assert len(set(offsets)) == len(offsets)
    assert all(len(offset) == 32 for offset in offsets)


@pytest.mark.parametrize("kind", ["json", "text", "binary"])
def test_table_offsets_are_the_positions_http_reads_from(
    server: ServerProcess, logs: dict[str, Log], kind: str
) -> None:
    log = logs[kind]
    rows = deltalake_rows(log.table)
    with Client(server.url) as client:
        for index in (0, len(rows) // 2, len(rows) - 1):
            offset = rows[index][0]
            rest = log.records[index + 1 :]
            if kind == "json":
                assert client.records(log.name, offset) == rest
            else:
                assert client.read(log.name, offset).body == b"".join(rest)


@pytest.mark.parametrize("kind", ["json", "binary"])
def test_table_streams_every_row_once(
    spark: SparkSession, server: ServerProcess, tmp_path: Path, kind: str
) -> None:
    content_type = {"json": "application/json", "binary": "application/octet-stream"}[kind]
    records = {"json": JSON_RECORDS, "binary": BINARY_RECORDS}[kind]
    log = write_log(server, f"streamed-{kind}", content_type, records)
    assert follow(spark, log.table, tmp_path) == log.records
    with Client(server.url) as client:
        more = append_all(client, log.name, content_type, records[:3])
    total = len(log.records) + 3
    wait_for(lambda: rows_committed(log.table) == total, "the commit")
    assert follow(spark, log.table, tmp_path) == [*log.records, *more]


def follow(spark: SparkSession, table: Path, folder: Path) -> list[bytes]:
    """Run a streaming query from version 0, or from where it stopped; returns all it ever saw."""
    query = (
        spark.readStream.format("delta")
        .option("startingVersion", 0)
        .load(str(table))
        .writeStream.format("parquet")
        .option("path", str(folder / "seen"))
        .option("checkpointLocation", str(folder / "state"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    return [data for _, data in spark_rows(spark.read.parquet(str(folder / "seen")))]


@pytest.mark.parametrize("name", NAMES)
def test_table_of_any_name_is_where_the_command_line_says(
    spark: SparkSession, server: ServerProcess, name: str
) -> None:
    record = f'"record of {NAMES.index(name)}"'.encode()
    with Client(server.url) as client:
        client.create(name, record)
    path = table_path(server, name)
    assert path.parent == server.root.resolve()
    wait_for(lambda: rows_committed(path) == 1, "the commit")
    frame = spark.read.format("delta").load(str(path))
    assert [data for _, data in spark_rows(frame)] == [record]
    assert deltalake_rows(path) == polars_rows(path) == spark_rows(frame)
    assert DeltaTable(path).metadata().name == name


def table_path(server: ServerProcess, name: str) -> Path:
    """What `bottomless path` prints."""
    command = [str(EXECUTABLE), "path", "--root", str(server.root), "--", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    (line,) = done.stdout.splitlines()
    return type(server.root)(line)


@pytest.mark.parametrize("kind", ["json", "text", "binary"])
def test_table_needs_no_reader_feature(logs: dict[str, Log], kind: str) -> None:
    table = DeltaTable(logs[kind].table)
    protocol = table.protocol()
    assert protocol.min_reader_version == 1
    assert not protocol.reader_features
    assert protocol.min_writer_version == 2
    assert table.metadata().partition_columns == ["flush_date"]


@pytest.mark.parametrize("column", ["offset", "flushed_at"])
def test_table_files_are_pruned_by_their_statistics(
    spark: SparkSession, logs: dict[str, Log], tmp_path: Path, column: str
) -> None:
    """Files that a filter excludes are not touched: the query works although they are gone."""
    table = tmp_path / "table"
    shutil.copytree(logs["json"].table, table)
    adds = DeltaTable(table).get_add_actions(flatten=True)
    files = sorted(
        zip(
            *(adds.column(name).to_pylist() for name in ("min.offset", "max.offset", "path")),
            adds.column("num_records").to_pylist(),
            strict=True,
        )
    )
    assert len(files) >= COMMITS
    assert all(old[1] < new[0] for old, new in pairwise(files)), "files do not overlap"
    # Cut where the pause was longest: Delta takes a maximum for up to 1 ms more than it says.
    cut = max(range(1, len(files)), key=lambda at: epoch(files[at][0]) - epoch(files[at - 1][1]))
    assert epoch(files[cut][0]) - epoch(files[cut - 1][1]) > 1
    begin, rows = files[cut][0], sum(count for *_, count in files[cut:])
    for *_, path, _ in files[:cut]:
        (table / path).unlink()

    frame = spark.read.format("delta").load(str(table))
    bound = {
        "offset": f"offset >= '{begin}'",
        "flushed_at": f"flushed_at >= timestamp_millis({epoch(begin)})",
    }[column]
    assert len(frame.filter(bound).select("data").collect()) == rows
    # The control: without the filter the missing files are missed.
    with pytest.raises(Exception, match=r"(?i)file_not_exist|does not exist|FileNotFound"):
        frame.select("data").collect()

    if column == "offset":
        dataset = DeltaTable(table).to_pyarrow_dataset()
        after = pads.field("offset") >= begin
        assert len(list(dataset.get_fragments(filter=after))) == len(files) - cut
        assert dataset.to_table(columns=["data"], filter=after).num_rows == rows


def epoch(offset: str) -> int:
    """The flush time in ms."""
    return int(offset[:16])
