"""redis:// against a real redis-server, where there is one."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

import bottomless
from bottomless import After, Newest, Since
from bottomless.errors import Conflict, DataDamaged, InvalidRequest, NotFound, Unavailable
from tests.support.cli import Cli
from tests.support.server import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVER = shutil.which("redis-server")
pytestmark = pytest.mark.skipif(SERVER is None, reason="there is no redis-server here")
START_S = 10.0


class Redis:
    """A redis-server that keeps its data over a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert SERVER is not None
        options = ["--port", str(self.port), "--dir", str(self.folder), "--appendonly", "yes"]
        self.child = subprocess.Popen(
            [SERVER, *options, "--bind", "127.0.0.1", "--save", ""], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_S
        while self.command("PING") != b"PONG":
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        if self.child is not None:
            self.child.terminate()
            self.child.wait(START_S)
            self.child = None

    def command(self, *words: str | bytes) -> object:
        """Any command, by redis-py itself."""
        import redis

        with redis.Redis(port=self.port, decode_responses=False) as client:
            try:
                answer = client.execute_command(*words)
            except redis.exceptions.ConnectionError:
                return None
            return b"PONG" if answer is True else answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    made = Redis(tmp_path_factory.mktemp("redis"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def client(server: Redis) -> Iterator[bottomless.Client]:
    server.command("FLUSHALL")
    with bottomless.connect(server.url) as client:
        yield client


def values(client: bottomless.Client, key: str, start: object = "beginning") -> list[object]:
    return [record.value for record in client.consumer(key, start, follow=False)]


def test_redis_gives_back_what_it_took_from_any_place(client: bottomless.Client) -> None:
    with client.producer("orders") as producer:
        for number in range(2500):
            producer.append({"n": number})
    assert producer.delivered == 2500
    records = client.read("orders")
    assert [record.value["n"] for record in records] == list(range(2500))
    assert values(client, "orders", After(records[-2].position)) == [{"n": 2499}]
    assert values(client, "orders", records[-2].position) == [{"n": 2499}]
    assert values(client, "orders", Newest(2)) == [{"n": 2498}, {"n": 2499}]
    assert values(client, "orders", Newest(9999)) == [record.value for record in records]
    assert values(client, "orders", "live") == []
    assert values(client, "orders", Since("1h")) == [record.value for record in records]
    assert values(client, "orders", Since("2099-01-01")) == []
    middle = records[1200].time
    late = [record.value for record in records if record.time >= middle]
    assert values(client, "orders", Since(middle)) == late
    assert abs(middle.timestamp() - time.time()) < 60


def test_redis_follows(client: bottomless.Client, server: Redis) -> None:
    consumer = client.consumer("later")
    assert consumer.next(0.05) is None
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(consumer.next(10).value))  # type: ignore[union-attr]
    thread.start()
    client.append("later", "x")
    thread.join(15)
    assert found == ["x"]
    consumer.close()


def test_redis_reads_entries_of_others(client: bottomless.Client, server: Redis) -> None:
    server.command("XADD", "e", "1-1", "msg", "1")
    server.command("XADD", "e", "1-2", "only", "[2]")
    server.command("XADD", "e", "2-0", "item", "tea", "count", "3")
    records = client.read("e")
    assert [record.value for record in records] == [1, [2], {"item": "tea", "count": "3"}]
    assert [record.offset for record in records] == ["1-1", "1-2", "2-0"]
    server.command("XADD", "e", "3-0", "a", b"\xff", "b", "1")
    with pytest.raises(DataDamaged, match="entry 3-0 of 'e' has fields that are no text"):
        client.read("e")


def test_redis_keeps_any_bytes(client: bottomless.Client, server: Redis) -> None:
    blobs = [bytes(range(256)), b"", b"\xff\xfe\r\n"]
    with client.producer("b", content_type="application/octet-stream") as producer:
        for blob in blobs:
            producer.append(blob)
    reader = client.consumer("b", follow=False, content_type="application/octet-stream")
    assert [record.value for record in reader] == blobs
    assert server.command("XLEN", "b") == 3


def test_redis_says_what_is_wrong(client: bottomless.Client, server: Redis) -> None:
    with pytest.raises(NotFound, match="there is no key 'nothing'"):
        client.read("nothing")
    server.command("SET", "text", "x")
    with pytest.raises(Conflict, match="'text' is not a stream"):
        client.read("text")
    with pytest.raises(Conflict, match="'text' is not a stream"):
        client.append("text", 1)
    with pytest.raises(InvalidRequest, match="a key is missing"):
        client.read("")
    with pytest.raises(InvalidRequest, match="cannot begin at position"):
        client.read("text", After("1@2"))
    with pytest.raises(InvalidRequest, match=r"has a \? or #"):
        bottomless.connect("redis://127.0.0.1/x?db=1")


def test_redis_keys_and_databases_are_in_the_address(server: Redis) -> None:
    with bottomless.connect(f"{server.url}/2/shop/orders") as client:
        client.append("", 1)
        assert client.read("")[0].value == 1
    with bottomless.connect(f"{server.url}/shop/orders") as client, pytest.raises(NotFound):
        client.read("")


def test_redis_that_is_out_of_reach_is_told_in_time() -> None:
    retry = bottomless.Retry(give_up_s=0.2)
    with bottomless.connect(f"redis://127.0.0.1:{free_port()}/x", retry=retry) as client:
        with pytest.raises(Unavailable, match="no answer from Redis"):
            client.read("")
        with pytest.raises(Unavailable, match="no answer from Redis"):
            client.append("", 1)


async def test_redis_may_restart_under_a_reader_and_a_writer(tmp_path: Path) -> None:
    server = Redis(tmp_path)
    await asyncio.to_thread(server.start)
    try:
        async with bottomless.connect_async(server.url) as client:
            consumer = client.consumer("r")
            async with await client.producer("r") as producer:
                await producer.append(1)
                await producer.flush()
                first = await consumer.next(5)
                await asyncio.to_thread(server.stop)
                await producer.append(2)
                await asyncio.to_thread(server.start)
                await producer.flush()
            second = await consumer.next(10)
            assert [first and first.value, second and second.value] == [1, 2]
    finally:
        server.stop()


def test_redis_and_files_are_the_two_ends_of_a_relay(
    server: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cli = Cli(tmp_path / "config")
    text = b'{"a" : 1, "a":2}\n12345678901234567890123\n[ 1.0 , 1e400]\n' * 700
    (tmp_path / "in.ndjson").write_bytes(text)
    cli.ok("relay", "-i", "file://./in.ndjson", "-o", f"{server.url}/relayed")
    middle = cli.ok("relay", "-i", f"{server.url}/relayed", "-o", "file://./x.ss")
    assert middle.err.startswith("2,100 records, ")
    cli.ok("relay", "-i", "file://./x.ss/relayed", "-o", "file://./out.ndjson")
    assert (tmp_path / "out.ndjson").read_bytes() == text
