"""The client library's producer: everything once and in order, whatever the line and server do."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import TYPE_CHECKING

import httpx
import pytest

import bottomless
from bottomless.errors import Conflict, DeliveryUnknown, Fenced, InvalidRequest, Unavailable
from tests.support.careless_proxy import CarelessProxy
from tests.support.load import Client as PlainClient
from tests.support.server import ServerProcess
from tests.support.wire import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS = 10_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("producer")) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[bottomless.Client]:
    with bottomless.connect(server.url) as client:
        yield client


def values_of(client: bottomless.Client, stream: str) -> list[object]:
    return [record.value for record in client.read(stream)]


def test_producer_stores_everything_once_through_a_careless_proxy(
    server: ServerProcess, client: bottomless.Client
) -> None:
    with CarelessProxy(server, share=0.1) as proxy, bottomless.connect(proxy.url) as far:
        with far.producer("proxied", batch_records=50, in_flight=5) as producer:
            for number in range(RECORDS):
                producer.append(number)
        assert producer.delivered == RECORDS
        assert proxy.dropped > 5
        assert proxy.delayed > 5
    assert values_of(client, "proxied") == list(range(RECORDS))


def test_producer_without_numbers_doubles_what_it_sends_again(
    server: ServerProcess, client: bottomless.Client
) -> None:
    """The control of the test above, and what at-least-once means."""
    with CarelessProxy(server, share=0.3) as proxy, bottomless.connect(proxy.url) as far:
        producer = far.producer("doubled", batch_records=20, mode="at-least-once")
        for number in range(2000):
            producer.append(number)
        producer.detach()
    values = values_of(client, "doubled")
    assert len(values) > 2000
    assert list(dict.fromkeys(values)) == list(range(2000))


def test_producer_goes_on_over_a_kill_of_the_server(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("killed") / "data"
    with ServerProcess.start(root) as server, bottomless.connect(server.url) as client:
        with client.producer("orders", batch_records=10, buffer_bytes=1000) as producer:
            stop = threading.Event()

            def append() -> None:
                number = 0
                while not stop.is_set():
                    producer.append(number)
                    number += 1
                sent.append(number)

            sent: list[int] = []
            thread = threading.Thread(target=append)
            thread.start()
            for _ in range(2):
                floor = producer.delivered + 500
                while producer.delivered < floor:
                    assert thread.is_alive()
                    time.sleep(0.01)
                server.kill9()
                server.restart()
            stop.set()
            thread.join()
        values = values_of(client, "orders")
        assert producer.failed == 0
        assert values == list(range(sent[0]))
        assert server.terminate() == 0


def test_producer_of_a_name_fences_the_one_before_it(client: bottomless.Client) -> None:
    first = client.producer("tills", id="till-1")
    first.append("first")
    first.flush()
    second = client.producer("tills", id="till-1")
    second.append("second")
    second.flush()
    first.append("late")
    with pytest.raises(Fenced):
        first.flush()
    with pytest.raises(Fenced):
        first.append("later")
    assert first.failed == 1
    first.restart()
    first.append("again")
    first.detach()
    assert values_of(client, "tills") == ["first", "second", "again"]


def test_producer_claims_its_name_from_a_clock_that_was_ahead(
    client: bottomless.Client, server: ServerProcess
) -> None:
    client.create("ahead")
    with PlainClient(server.url) as plain:
        reply = plain.produce("ahead", b'["theirs"]', ("till-1", 2**53 - 10, 0))
        assert reply.status == 200
    with client.producer("ahead", id="till-1", batch_records=1, in_flight=4) as producer:
        for number in range(8):
            producer.append(number)
    assert values_of(client, "ahead") == ["theirs", *range(8)]


def test_producer_with_the_epoch_of_another_loses_nothing(
    client: bottomless.Client, server: ServerProcess
) -> None:
    """The same name, epoch and number: the server takes it for a copy, and drops it."""
    client.create("twins")
    with PlainClient(server.url) as plain:
        assert plain.produce("twins", b'["theirs"]', ("till-1", 7, 0)).status == 200
    with client.producer("twins", id="till-1", epoch=7) as producer:
        producer.append("ours")
    assert values_of(client, "twins") == ["theirs", "ours"]


def test_producer_tells_what_it_cannot_know(
    server: ServerProcess, client: bottomless.Client
) -> None:
    """An answer was lost, and then somebody took over: stored or not? Nobody may guess."""
    client.create("doubt")
    with CarelessProxy(server, share=0.0) as proxy, bottomless.connect(proxy.url) as far:
        producer = far.producer("doubt", id="till-1", epoch=1)
        producer.append(1)
        producer.flush()
        proxy._share = 2.0  # Every answer is lost from here on.
        producer.append(2)
        deadline = time.monotonic() + 20
        while proxy.dropped == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with PlainClient(server.url) as plain:
            assert plain.produce("doubt", b"[3]", ("till-1", 2, 0)).status == 200
        proxy._share = 0.0
        with pytest.raises(DeliveryUnknown, match="may be stored or not"):
            producer.flush()


def test_producer_sends_side_by_side_without_sending_everything_twice(
    server: ServerProcess, client: bottomless.Client
) -> None:
    """A batch that overtakes is refused; all behind it were, too, and so for ever."""
    before = gaps_of(server)
    with client.producer("wide", batch_records=1000, in_flight=4) as producer:
        for number in range(100_000):
            producer.append({"n": number, "pad": "x" * 80})
    # One hundred batches. It was one refusal for nearly each of them.
    assert gaps_of(server) - before < 75
    assert [value["n"] for value in values_of(client, "wide")] == list(range(100_000))


def gaps_of(server: ServerProcess) -> int:
    text = httpx.get(f"{server.url}/metrics", trust_env=False).text
    found = re.search(r'_append_rejected_total\{code="sequence_gap"\} (\d+)', text)
    return int(found[1]) if found else 0


async def test_producer_ends_where_its_numbers_are_forgotten() -> None:
    """No server does that; if one did, nobody should try for ever."""
    tries: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "HEAD":
            head = {"content-type": "application/json", "stream-next-offset": "0" * 32}
            return httpx.Response(200, headers=head)
        tries.append(request.headers["producer-seq"])
        if tries[-1] == "0":
            return httpx.Response(200, headers={"stream-next-offset": "0" * 32})
        return httpx.Response(409, json={"status": 409, "code": "sequence_gap", "detail": "gap"})

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    async with bottomless.connect_async("http://nowhere", http=http) as client:
        producer = await client.producer("forgotten", batch_records=1)
        await producer.append(1)
        await producer.append(2)
        with pytest.raises(Conflict, match="gap"):
            await producer.flush()
        await producer.abort()
    assert tries == ["0", "1", "1", "1"]


async def test_async_producer_leaves_the_event_loop_to_others(server: ServerProcess) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with bottomless.connect_async(server.url) as client:
        producer = await client.producer("polite")
        task = asyncio.create_task(other())
        for number in range(20_000):
            await producer.append({"n": number, "pad": "x" * 80})
        task.cancel()
        await producer.detach()
    # Two megabytes, and a turn for each 64 KiB; the buffer would have held them all.
    assert turns > 20


def test_producer_tells_of_every_batch(client: bottomless.Client) -> None:
    told: list[bottomless.Delivered] = []
    with client.producer("told", batch_records=3, on_delivered=told.append) as producer:
        for number in range(8):
            producer.append(number)
    assert [one.count for one in told] == [3, 3, 2]
    assert all(one.error is None for one in told)
    assert client.info("told").tail == told[-1].offset


def test_producer_sends_after_a_while_without_being_told(client: bottomless.Client) -> None:
    producer = client.producer("lingering", linger_ms=20)
    producer.append(1)
    with client.consumer("lingering") as consumer:
        record = consumer.next(timeout_s=10)
    assert record is not None
    assert record.value == 1
    producer.detach()


def test_producer_closes_with_its_last_values(client: bottomless.Client) -> None:
    producer = client.producer("closing")
    producer.append(1)
    producer.close(2, 3)
    assert client.info("closing").is_closed
    assert values_of(client, "closing") == [1, 2, 3]
    with pytest.raises(InvalidRequest, match="was closed"):
        producer.append(4)
    late = client.producer("closing")
    late.append(5)
    with pytest.raises(Conflict) as refusal:
        late.flush()
    assert refusal.value.code == "stream_closed"


def test_producer_that_never_tries_again_tells_what_is_lost(tmp_path) -> None:
    with ServerProcess.start(tmp_path / "data") as server, bottomless.connect(server.url) as client:
        producer = client.producer("lost", mode="fire-and-forget", batch_records=1)
        producer.append(1)
        producer.flush()
        server.kill9()
        producer.append(2)
        producer.flush()
        assert (producer.delivered, producer.failed) == (1, 1)


def test_producer_gives_up_after_its_time(tmp_path) -> None:
    with ServerProcess.start(tmp_path / "data") as server:
        retry = bottomless.Retry(give_up_s=0.5)
        with bottomless.connect(server.url, retry=retry) as client:
            producer = client.producer("gone")
            server.kill9()
            producer.append(1)
            with pytest.raises(Unavailable):
                producer.flush()
            producer.abort()


@pytest.mark.parametrize(
    "options", [{"mode": "exactly-never"}, {"batch_records": 0}, {"in_flight": 0}]
)
def test_producer_refuses_options_that_make_no_sense(
    client: bottomless.Client, options: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest):
        client.producer("options", **options)


def test_producer_of_a_bounded_buffer_waits(client: bottomless.Client) -> None:
    with client.producer("bounded", batch_bytes=1000, buffer_bytes=5000) as producer:
        for number in range(2000):
            producer.append({"n": number, "pad": "x" * 100})
            assert producer._producer.values.bytes <= 5000 + 200
    assert [value["n"] for value in values_of(client, "bounded")] == list(range(2000))


async def test_async_producer_has_the_same_shape(server: ServerProcess) -> None:
    async with bottomless.connect_async(server.url) as client:
        async with await client.producer("async", batch_records=7) as producer:
            for number in range(100):
                await producer.append(number)
        records = [record async for record in client.consumer("async", follow=False)]
    assert [record.value for record in records] == list(range(100))
