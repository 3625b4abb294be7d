"""spark.read and readStream over HTTP: table and hot tail as one, nothing lost or twice."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import deltalake
import httpx
import msgspec
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

import bottomless
from bottomless.spark import register
from tests.support.guarded import Guarded
from tests.support.server import ServerProcess
from tests.support.wire import serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

RAW = [b'{"b": 1.0,  "a": 123456789012345678901234567890}', b'"\\ud800 zwei \xc3\xa4"', b"[[],1e5]"]
# The table gets only what asks for it; everything else stays in the hot tail.
LAZY = {"commit__interval_ms": 600_000}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("source"), **LAZY) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[bottomless.Client]:
    with bottomless.connect(server.url) as client:
        yield client


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def load(session: SparkSession, server: ServerProcess, stream: str, **options: object) -> DataFrame:
    reader = session.read.format("bottomless").option("url", server.url).option("stream", stream)
    for name, value in options.items():
        reader = reader.option(name.rstrip("_"), str(value))
    return reader.load()


def data_of(frame: DataFrame) -> list[Any]:
    return [row["data"] for row in frame.orderBy("offset").collect()]


def body_of(server: ServerProcess, stream: str) -> bytes:
    return httpx.get(f"{server.url}/v1/stream/{stream}?offset=-1", trust_env=False).content


def test_source_reads_table_and_hot_tail_byte_for_byte(
    session: SparkSession, server: ServerProcess, client: bottomless.Client
) -> None:
    client.create("orders")
    for number in range(50):
        client.append("orders", *map(msgspec.Raw, RAW), number)
    client.append("orders", "in the table", ack="table")
    for number in range(50):
        client.append("orders", *map(msgspec.Raw, RAW), -number)

    rows = load(session, server, "orders", page=7).orderBy("offset").collect()

    assert len(rows) == 401
    assert "[" + ",".join(row["data"] for row in rows) + "]" == body_of(server, "orders").decode()
    assert [row["offset"] for row in rows] == [one.offset for one in client.read("orders")]
    for row in rows:
        assert row["flushed_at"].timestamp() * 1000 == int(row["offset"][:16])
    # The table holds the first half only: what comes after it was in the hot tail.
    table = deltalake.DeltaTable(str(server.root / "orders")).to_pyarrow_dataset().to_table()
    assert table.num_rows == 201
    assert load(session, server, "orders").schema["data"].dataType.simpleString() == "string"


@pytest.mark.parametrize(
    ("content_type", "type_", "values"),
    [
        ("text/plain", "string", ['one "line"\n', "zwei äöü 😀", "\u2028"]),
        ("application/octet-stream", "binary", [bytes(range(256)), b"\x00", b"\xff\xfe"]),
        ("text/plain; charset=latin-1", "binary", [b"\xe4"]),
    ],
)
def test_source_has_the_tables_type(
    session: SparkSession,
    server: ServerProcess,
    client: bottomless.Client,
    content_type: str,
    type_: str,
    values: list[Any],
) -> None:
    name = f"typed/{content_type.partition(';')[0]}/{type_}"
    client.create(name, content_type)
    url = f"{server.url}/v1/stream/{name}"
    for value in values:
        body = value if isinstance(value, bytes) else value.encode()
        sent = httpx.post(
            url, content=body, headers={"content-type": content_type}, trust_env=False
        )
        assert sent.is_success, sent.text
    frame = load(session, server, name)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("offset", "string"),
        ("flushed_at", "timestamp"),
        ("data", type_),
    ]
    assert data_of(frame) == values


def test_source_reads_in_parallel_what_it_would_read_alone(
    session: SparkSession, server: ServerProcess, client: bottomless.Client
) -> None:
    client.create("wide")
    for number in range(100):
        client.append("wide", number)
    frame = load(session, server, "wide", partitions=4)
    parts = frame.groupBy(F.spark_partition_id().alias("part")).count().collect()
    assert len(parts) == 4
    assert sum(part["count"] for part in parts) == 100
    assert data_of(frame) == [str(number) for number in range(100)]


def test_source_reads_a_part(
    session: SparkSession, server: ServerProcess, client: bottomless.Client
) -> None:
    client.create("part")
    for number in range(10):
        client.append("part", number)
    records = client.read("part")
    fourth, eighth = records[3], records[7]
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()

    def numbers(**options: object) -> list[int]:
        return list(map(int, data_of(load(session, server, "part", **options))))

    assert numbers(from_=fourth.offset) == [4, 5, 6, 7, 8, 9]
    assert numbers(since=fourth.time.isoformat()) == [3, 4, 5, 6, 7, 8, 9]
    assert numbers(until=eighth.time.isoformat()) == [0, 1, 2, 3, 4, 5, 6]
    assert numbers(until=eighth.offset) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert numbers(since="1h", until=eighth.offset, partitions=3) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert numbers(from_="newest:2") == [8, 9]
    assert numbers(from_="live") == numbers(since=tomorrow) == numbers(until="1h") == []
    assert numbers(from_=eighth.offset, until=fourth.offset) == []


def test_source_reads_an_empty_stream(
    session: SparkSession, server: ServerProcess, client: bottomless.Client
) -> None:
    client.create("empty")
    # The name of the stream may be said there, too.
    frame = session.read.format("bottomless").option("url", server.url).load("empty")
    assert frame.collect() == []


def test_source_says_what_is_wrong(
    session: SparkSession, server: ServerProcess, client: bottomless.Client
) -> None:
    client.create("right")
    for options, words in (
        ({"stream": "missing"}, "missing"),
        ({"stream": "right", "offsets": "x"}, "there is no option offsets"),
        ({"stream": "right", "since": "1h", "from": "live"}, "two beginnings"),
        ({"stream": "right", "since": "0" * 32}, "since is a time"),
        ({"stream": "right", "partitions": "no"}, "partitions is a number"),
        ({"stream": ""}, "which stream"),
    ):
        with pytest.raises(PySparkException, match=words):
            session.read.format("bottomless").options(url=server.url, **options).load().collect()
    reader = session.read.format("bottomless").options(url=server.url, stream="right")
    with pytest.raises(PySparkException, match="the columns are"):
        reader.schema("a int").load().collect()


def test_source_shows_its_token(session: SparkSession, tmp_path: Path) -> None:
    with serving(tmp_path, auth__mode="on") as process:
        guarded = Guarded(process)
        token = guarded.token("read,append,create:secret")
        with bottomless.connect(process.url, token=token) as client:
            client.create("secret")
            client.append("secret", 1, 2)
        assert data_of(load(session, process, "secret", token=token)) == ["1", "2"]
        with pytest.raises(AnalysisException, match="NotAllowed"):
            load(session, process, "secret")
        guarded.close()


class Query:
    """readStream into Parquet files, with a checkpoint."""

    def __init__(self, session: SparkSession, url: str, stream: str, folder: Path) -> None:
        self._session = session
        self._options = {"url": url, "stream": stream}
        self._folder = folder

    def start(self, **options: str) -> Any:
        """Start it, or start it again where it has stopped."""
        trigger = (
            {"availableNow": True} if options.pop("now", "") else {"processingTime": "0 seconds"}
        )
        return (
            self._session.readStream.format("bottomless")
            .options(**self._options, **options)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(**trigger)
            .start(str(self._folder / "out"))
        )

    def numbers(self) -> list[int]:
        """What has come out, in order."""
        # Spark's own list of the files that count; a repeated batch may leave others.
        frame = self._session.read.parquet(str(self._folder / "out"))
        return [int(row["data"]) for row in frame.orderBy("offset").collect()]


def rows_of(running: Any) -> int:
    """What a query has written since it was started."""
    assert running.isActive, running.exception()
    return sum(progress["numInputRows"] for progress in running.recentProgress)


def test_stream_goes_on_over_kills_of_the_server_and_its_own_end(
    session: SparkSession, tmp_path: Path
) -> None:
    with ServerProcess.start(tmp_path / "data") as server, bottomless.connect(server.url) as client:
        client.create("orders")
        query = Query(session, server.url, "orders", tmp_path)
        running = query.start()
        stop, sent = threading.Event(), []

        def write() -> None:
            with client.producer("orders", batch_records=5) as producer:
                while not stop.is_set():
                    producer.append(len(sent))
                    sent.append(len(sent))
                    time.sleep(0.002)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for goal in (50, 200):
                wait_until(lambda goal=goal: rows_of(running) >= goal, "rows", timeout_s=30)
                server.kill9()
                server.restart()
            running.stop()
            running = query.start()
            wait_until(lambda: rows_of(running) > 0, "more rows", timeout_s=30)
            stop.set()
            writer.join(60)
            running.processAllAvailable()
        finally:
            stop.set()
            running.stop()
        assert query.numbers() == list(range(len(sent)))
        assert server.terminate() == 0


def test_stream_takes_what_is_available_now(
    session: SparkSession, server: ServerProcess, client: bottomless.Client, tmp_path: Path
) -> None:
    client.create("now")
    client.append("now", *range(100))
    query = Query(session, server.url, "now", tmp_path)
    first = query.start(now="yes", max_rows="60")
    assert first.awaitTermination(60)
    assert query.numbers() == list(range(100))
    assert [progress["numInputRows"] for progress in first.recentProgress] == [60, 40]
    client.append("now", *range(100, 150))
    second = query.start(now="yes", partitions="3")
    assert second.awaitTermination(60)
    assert query.numbers() == list(range(150))
    assert second.lastProgress["sources"][0]["numInputRows"] == 50
    third = query.start(now="yes")
    assert third.awaitTermination(60)
    assert query.numbers() == list(range(150))


def test_stream_repeats_its_first_batch_from_the_same_place(
    session: SparkSession, server: ServerProcess, client: bottomless.Client, tmp_path: Path
) -> None:
    """It begins "live", and the first batch fails: what it held is not "live" any more."""
    client.create("live")
    client.append("live", *range(10))
    seen: list[int] = []
    is_broken = True

    def sink(batch: DataFrame, _: int) -> None:
        if is_broken:
            raise RuntimeError("the sink is broken")
        seen.extend(int(value) for value in data_of(batch))

    def start() -> Any:
        options = {"url": server.url, "stream": "live", "from": "live"}
        frame = session.readStream.format("bottomless").options(**options).load()
        writer = frame.writeStream.foreachBatch(sink)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    running = start()
    wait_until(lambda: bool(list((tmp_path / "checkpoint").glob("metadata"))), "the start")
    deadline = time.monotonic() + 30
    sent = 10
    while running.isActive and time.monotonic() < deadline:
        client.append("live", sent)
        sent += 1
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        running.awaitTermination(10)
    is_broken = False
    client.append("live", sent)
    running = start()
    running.processAllAvailable()
    running.stop()
    assert seen[-1] == sent
    # Whatever it has taken for the beginning, there is no hole behind it.
    assert seen == list(range(seen[0], sent + 1))
    assert 10 <= seen[0] < sent - 1
