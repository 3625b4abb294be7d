"""The client library's consumer: from any place, live, over disconnects, nothing lost or twice."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import httpx
import msgspec
import pytest

import bottomless
from bottomless import After, Newest, Since
from bottomless.errors import Gone, InvalidRequest, NotAllowed, NotFound
from tests.support.careless_proxy import CarelessProxy
from tests.support.server import ServerProcess
from tests.support.wire import serving

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("consumer")) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[bottomless.Client]:
    with bottomless.connect(server.url) as client:
        yield client


@pytest.fixture
def stream(client: bottomless.Client, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    client.create(name)
    for number in range(10):
        client.append(name, number)
    return name


def read(client: bottomless.Client, stream: str, start: bottomless.positions.Start) -> list[object]:
    return [record.value for record in client.consumer(stream, start, follow=False)]


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("beginning", 0),
        ("live", 10),
        (Newest(3), 7),
        (Newest(0), 10),
        (Newest(99), 0),
        ("newest:4", 6),
        (Since("1h"), 0),
        ("2h", 0),
        (Since(datetime.now(UTC) + timedelta(hours=1)), 10),
        (Since(datetime.now(UTC).date()), 0),
        (Since("2020-01-01T00:00:00Z"), 0),
    ],
    ids=str,
)
def test_consumer_starts_where_it_is_told(
    client: bottomless.Client, server: ServerProcess, start: object, first: int
) -> None:
    client.create("starts")
    if not client.read("starts"):
        client.append("starts", *range(10))
    assert read(client, "starts", start) == list(range(first, 10))


def test_consumer_goes_on_behind_any_record(client: bottomless.Client, stream: str) -> None:
    for record in client.read(stream):
        rest = read(client, stream, After(record.position))
        assert rest == list(range(record.value + 1, 10))
        assert read(client, stream, record.offset) == rest


def test_consumer_seeks_to_the_moment_of_a_record(client: bottomless.Client, stream: str) -> None:
    records = client.read(stream)
    assert len({record.time for record in records}) == 10, "ten appends, ten moments"
    consumer = client.consumer(stream, follow=False)
    for record in (records[7], records[0], records[9]):
        consumer.seek(record.time)
        assert [one.value for one in consumer] == list(range(record.value, 10))
    consumer.rewind()
    assert [one.value for one in consumer] == list(range(10))
    consumer.rewind("live")
    assert list(consumer) == []


def test_consumer_waits_for_a_stream_that_is_not_there_yet(client: bottomless.Client) -> None:
    consumer = client.consumer("later")
    assert consumer.next(timeout_s=0.2) is None
    client.create("later")
    client.append("later", "here")
    record = consumer.next(timeout_s=10)
    assert record is not None
    assert record.value == "here"


def test_consumer_ends_with_a_closed_stream(client: bottomless.Client, stream: str) -> None:
    seen: list[object] = []
    thread = threading.Thread(
        target=lambda: seen.extend(record.value for record in client.consumer(stream))
    )
    thread.start()
    client.append(stream, 10)
    client.close(stream)
    thread.join(20)
    assert not thread.is_alive()
    assert seen == list(range(11))


def test_consumer_reads_everything_once_over_kills_and_lost_answers(tmp_path) -> None:
    with ServerProcess.start(tmp_path / "data") as server:
        with CarelessProxy(server, share=0.1) as proxy:
            _tail_over_kills(server, proxy)
        assert server.terminate() == 0


def _tail_over_kills(server: ServerProcess, proxy: CarelessProxy) -> None:
    with bottomless.connect(proxy.url) as far, bottomless.connect(server.url) as near:
        near.create("orders")
        seen: list[object] = []
        consumer = far.consumer("orders", page=7)
        thread = threading.Thread(target=lambda: seen.extend(one.value for one in consumer))
        thread.start()
        with near.producer("orders", batch_records=5) as producer:
            for number in range(3000):
                producer.append(number)
                if number in (1000, 2000):
                    producer.flush()
                    server.kill9()
                    server.restart()
        near.close("orders")
        thread.join(60)
        assert not thread.is_alive()
        assert seen == list(range(3000))


@pytest.mark.parametrize("content_type", ["text/csv", "application/msgpack", "application/jsonl"])
def test_consumer_goes_on_in_the_middle_of_a_record(
    client: bottomless.Client, content_type: str
) -> None:
    name = f"packed/{content_type}"
    client.create(name, content_type)
    client.append(name, ["a", "1"], ["b,", "2"], ['"c"', "3"])
    client.append(name, ["d", "4"])
    records = client.read(name)
    values = [record.value for record in records]
    assert values == [["a", "1"], ["b,", "2"], ['"c"', "3"], ["d", "4"]]
    for index, record in enumerate(records):
        assert read(client, name, After(record.position)) == values[index + 1 :]


def test_consumer_reads_text_and_bytes_as_they_were_sent(client: bottomless.Client) -> None:
    client.create("text", "text/plain")
    client.append("text", 'one "line"\n')
    client.append("text", "zwei äöü 😀")
    assert read(client, "text", "beginning") == ['one "line"\n', "zwei äöü 😀"]
    client.create("bytes", "application/octet-stream")
    client.append("bytes", bytes(range(256)))
    assert read(client, "bytes", "beginning") == [bytes(range(256))]


def test_consumer_shows_a_records_own_bytes(client: bottomless.Client) -> None:
    client.create("own")
    client.append("own", msgspec.Raw(b'{"b": 1.0,  "a": 12345678901234567890123}'))
    (record,) = client.read("own")
    assert record.data == b'{"b": 1.0,  "a": 12345678901234567890123}'


def test_consumer_reads_half_a_surrogate_pair(client: bottomless.Client) -> None:
    """RFC 8259 allows the escape, the server takes it, Python's own parser reads it."""
    client.create("halves")
    own = [
        rb'"\ud800"',
        rb'{"\udc00\\\ud800": "\ud83d\ude00", "data": [{"offset":"1"}]}',
        b'"next"',
    ]
    for data in own:
        client.append("halves", msgspec.Raw(data))
    records = client.read("halves")
    assert [record.data for record in records] == own
    assert [record.value for record in records] == [json.loads(data) for data in own]
    client.create("halves.ndjson", "application/x-ndjson")
    client.append("halves.ndjson", msgspec.Raw(own[0]), 2)
    assert read(client, "halves.ndjson", "beginning") == ["\ud800", 2]


def test_consumer_is_told_what_is_wrong(client: bottomless.Client) -> None:
    with pytest.raises(InvalidRequest, match="no place to start"):
        client.consumer("x", "yesterday").next()
    with pytest.raises(NotFound, match="missing"):
        client.read("missing")
    with pytest.raises(InvalidRequest, match="no address"):
        bottomless.connect("localhost:4437")


def test_consumer_is_told_of_what_was_trimmed() -> None:
    error = bottomless.errors.error_of
    request = httpx.Request("GET", "http://x/v1/stream/a")
    response = httpx.Response(410, json={"code": "offset_trimmed", "detail": "d"}, request=request)
    assert isinstance(error(response, response.content), Gone)
    response = httpx.Response(401, json={"detail": "d", "hint": "h"}, request=request)
    assert isinstance(error(response, response.content), NotAllowed)
    assert str(error(response, response.content)) == "d (h)"


def test_client_lists_settings_and_deletes(client: bottomless.Client) -> None:
    client.create("listed/a", ttl_s=100)
    client.create("listed/b", "text/plain")
    rows = {row.name: row for row in client.streams("listed/")}
    assert list(rows) == ["listed/a", "listed/b"]
    assert rows["listed/a"].ttl_seconds == 100
    assert client.settings("listed/a", ack="table")["own"]["ack"] == "table"
    client.delete("listed/a")
    assert [row.name for row in client.streams("listed/")] == ["listed/b"]
    with pytest.raises(NotFound):
        client.delete("listed/a")


def test_client_forks(client: bottomless.Client, stream: str) -> None:
    fourth = client.read(stream)[3]
    assert client.create("forked", fork_of=stream, fork_at=fourth.offset)
    client.append("forked", "own")
    assert read(client, "forked", "beginning") == [0, 1, 2, 3, "own"]


async def test_async_consumer_has_the_same_shape(server: ServerProcess) -> None:
    async with bottomless.connect_async(server.url) as client:
        await client.create("async")
        await client.append("async", 1, 2, 3)
        async with client.consumer("async", Newest(2)) as consumer:
            first, second = await consumer.next(), await consumer.next()
            begun = time.monotonic()
            assert await consumer.next(timeout_s=0.3) is None
            assert time.monotonic() - begun >= 0.25
        assert [one.value for one in (first, second) if one] == [2, 3]
        assert [row.name async for row in client.streams("async")] == ["async"]
