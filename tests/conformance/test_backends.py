"""One program, other addresses: files, SeaStreamer's files, a server; the same calls."""

from __future__ import annotations

import asyncio
import builtins
import importlib
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

import bottomless
from bottomless import After, Newest, Since
from bottomless.errors import (
    BottomlessError,
    Conflict,
    DataDamaged,
    InvalidRequest,
    NotFound,
)
from tests.support.wire import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.server import ServerProcess

VALUES = [{"id": 1, "item": "tea"}, [1, 2.5, None], "ü", 2**60, {"deep": {"a": []}}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("backends")) as process:
        yield process


@pytest.fixture(params=["http", "folder", "file", "ss", "ss folder"])
def address(request: pytest.FixtureRequest, tmp_path: Path, server: ServerProcess) -> str:
    """An address; what is the stream's name in it is ``orders``, or is ignored."""
    return {
        "http": server.url,
        "folder": f"file://{tmp_path}",
        "file": f"file://{tmp_path}/orders.ndjson",
        "ss": f"file://{tmp_path}/orders.ss",
        "ss folder": f"file://{tmp_path}/my.ss.d",
    }[request.param]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"orders-{abs(hash(request.node.name)):x}"


def values_of(client: bottomless.Client, stream: str, start: object = "beginning") -> list[object]:
    return [record.value for record in client.consumer(stream, start, follow=False)]


def test_backends_are_written_and_read_by_the_same_program(address: str, name: str) -> None:
    with bottomless.connect(address) as client:
        with client.producer(name) as producer:
            for value in VALUES[:3]:
                producer.append(value)
            producer.flush()
            assert producer.delivered == 3
        client.append(name, *VALUES[3:])
        records = client.read(name)
        assert [record.value for record in records] == VALUES
        for index, record in enumerate(records):
            assert values_of(client, name, After(record.position)) == VALUES[index + 1 :]
        assert values_of(client, name, Newest(2)) == VALUES[-2:]
        assert values_of(client, name, "live") == []
        assert [record.value for record in client.read(name, limit=2)] == VALUES[:2]
        assert abs(records[0].time.timestamp() - time.time()) < 60


async def test_backends_are_written_and_read_without_blocking(address: str, name: str) -> None:
    async with bottomless.connect_async(address) as client:
        async with await client.producer(name) as producer:
            for value in VALUES:
                await producer.append(value)
        found = [record.value async for record in client.consumer(name, follow=False)]
        assert found == VALUES
        consumer = client.consumer(name)
        assert (await consumer.next()) is not None
        await consumer.rewind(Newest(1))
        record = await consumer.next()
        assert record is not None
        assert record.value == VALUES[-1]
        assert await consumer.next(0.05) is None
        await consumer.close()


def test_backends_follow_what_is_written_later(address: str, name: str) -> None:
    with bottomless.connect(address) as reading, bottomless.connect(address) as writing:
        consumer = reading.consumer(name)
        found: list[object] = []
        thread = threading.Thread(
            target=lambda: found.extend(consumer.next(10).value for _ in range(3))  # type: ignore[union-attr]
        )
        thread.start()
        for number in range(3):
            with writing.producer(name) as producer:
                producer.append(number)
        thread.join(20)
        assert found == [0, 1, 2]


def test_backends_say_what_they_do_not_have(tmp_path: Path) -> None:
    with bottomless.connect(f"file://{tmp_path}/x.ndjson") as client:
        client.append("", 1)
        with pytest.raises(
            InvalidRequest, match=r"cannot begin at a time \(Begin at beginning, live"
        ):
            client.read("", Since("1h"))
        with pytest.raises(InvalidRequest, match=r"file:// has no create; only servers"):
            client.create("x")
        with pytest.raises(InvalidRequest, match=r"does not store exactly once \(http:// does"):
            client.producer("x", mode="exactly-once")
        with pytest.raises(InvalidRequest, match="is inside a line"):
            client.read("", After("1"))
        with pytest.raises(InvalidRequest, match="99 is behind"):
            client.read("", After("99"))
    with (
        bottomless.connect("stdio:///orders") as client,
        pytest.raises(InvalidRequest, match="standard input cannot begin at the newest 3"),
    ):
        client.read("", Newest(3))


@pytest.mark.parametrize("url", ["ftp://x/y", "file://host/x", "file:///", "x", "stdio://host/k"])
def test_backends_refuse_addresses_that_are_none(url: str) -> None:
    with pytest.raises(InvalidRequest):
        bottomless.connect(url)


@pytest.mark.parametrize(("module", "extra"), [("redis.asyncio", "redis"), ("aiokafka", "kafka")])
def test_backends_say_which_extra_is_missing(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.partition(".")[0] == module.partition(".")[0]:
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    home = {"redis": "redis_streams", "kafka": "kafka_topics"}[extra]
    monkeypatch.delitem(sys.modules, f"bottomless.backends.{home}", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidRequest, match=rf"pip install 'bottomless\[{extra}\]'"):
        bottomless.connect(f"{extra}://127.0.0.1/x")
    monkeypatch.undo()
    importlib.import_module(f"bottomless.backends.{home}")


# Plain files.


@pytest.mark.parametrize(
    ("ending", "values", "wanted"),
    [
        (".ndjson", [{"a": 1}, [2]], b'{"a":1}\n[2]\n'),
        (".jsonl", [1], b"1\n"),
        ("", ["x"], b'"x"\n'),
        (".csv", [["1", 'a "b",\nc'], ["2", "ü"]], '1,"a ""b"",\nc"\r\n2,ü\r\n'.encode()),
        (
            ".msgpack",
            [{"a": b"\xff"}, [1] * 20, None],
            b"\x81\xa1a\xc4\x01\xff\xdc\x00\x14" + b"\x01" * 20 + b"\xc0",
        ),
        (".txt", ["one", "two "], b"one\ntwo \n"),
        (".bin", [b"\x00\n\xff", b"y"], b"\x00\n\xffy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_have_the_format_of_their_ending(
    tmp_path: Path, ending: str, values: list[object], wanted: bytes
) -> None:
    with bottomless.connect(f"file://{tmp_path}") as client:
        client.append(f"x{ending}", *values)
        assert (tmp_path / f"x{ending}").read_bytes() == wanted
        found = values_of(client, f"x{ending}")
        assert found == ([b"\x00\n\xffy"] if ending == ".bin" else values)


def test_files_are_cut_right_wherever_a_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[str(number), 'a "quoted"\nline,' * (number % 4)] for number in range(40)]
    packed = [{"n": number, "data": b"\xc1" * number} for number in range(40)]
    with bottomless.connect(f"file://{tmp_path}") as client:
        client.append("rows.csv", *rows)
        client.append("objects.msgpack", *packed)
        for step in (1, 2, 3, 7, 100):
            monkeypatch.setattr("bottomless.backends.files.CHUNK_BYTES", step)
            assert values_of(client, "rows.csv") == rows
            assert values_of(client, "objects.msgpack") == packed
            places = [record.position for record in client.read("objects.msgpack")]
            assert values_of(client, "objects.msgpack", After(places[20])) == packed[21:]
            assert values_of(client, "rows.csv", Newest(7)) == rows[-7:]


def test_files_of_others_are_read_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "x.ndjson").write_bytes(b'\n {"a": 1}\r\n\n[2]  \n"no end"')
    with bottomless.connect(f"file://{tmp_path}/x.ndjson") as client:
        assert values_of(client, "") == [{"a": 1}, [2], "no end"]
        # An append does not run into a line that has no end.
        client.append("", 3)
        assert values_of(client, "", Newest(2)) == ["no end", 3]


def test_files_that_are_not_of_their_format_are_refused_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "x.ndjson").write_bytes(b"1\n1,2\n")
    (tmp_path / "half.msgpack").write_bytes(b"\x01\x92\x01")
    (tmp_path / "open.csv").write_bytes(b'a,"b\n')
    with bottomless.connect(f"file://{tmp_path}") as client:
        with pytest.raises(DataDamaged, match="line 2 is not JSON"):
            client.read("x.ndjson")
        with pytest.raises(DataDamaged, match="cut off after 2 bytes"):
            client.read("half.msgpack")
        with pytest.raises(DataDamaged, match="not CSV"):
            client.read("open.csv")
        with pytest.raises(NotFound, match="there is no file"):
            client.read("nothing.ndjson")


def test_files_do_not_lead_out_of_their_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with bottomless.connect(f"file://{tmp_path}/in") as client:
        for name in ("../out", "/etc/out", "a/../../out"):
            with pytest.raises(InvalidRequest, match="leads out"):
                client.producer(name)
        client.append("shop/orders.ndjson", 1)
        assert (tmp_path / "in/shop/orders.ndjson").read_bytes() == b"1\n"


def test_files_have_one_writer_at_a_time(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    with bottomless.connect(url) as one, bottomless.connect(url) as two:
        for stream in ("x.ndjson", "y.ss/orders"):
            with one.producer(stream) as producer:
                producer.append(1)
                with pytest.raises(Conflict, match="another program writes"):
                    two.producer(stream)
            two.append(stream, 2)
            assert values_of(two, stream) == [1, 2]


def test_files_that_are_full_keep_whole_records_only() -> None:
    """/dev/full takes nothing: the error is raised, and told of every value."""
    with bottomless.connect("file:///dev/full") as client:
        producer = client.producer("")
        producer.append(1)
        with pytest.raises(BottomlessError, match="No space left on device"):
            producer.flush()
        assert (producer.delivered, producer.failed) == (0, 1)
        producer.abort()


def test_files_follow_waits_for_the_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    with bottomless.connect(f"file://{tmp_path}") as client, path.open("wb", buffering=0) as file:
        consumer = client.consumer("x.ndjson")
        file.write(b'{"a":')
        assert consumer.next(0.2) is None
        file.write(b"1}\n2\n")
        assert [consumer.next(5).value, consumer.next(5).value] == [{"a": 1}, 2]  # type: ignore[union-attr]
        os.truncate(path, 3)
        with pytest.raises(DataDamaged, match="was cut to 3 bytes"):
            consumer.next(5)


# SeaStreamer's files.


def test_ss_files_hold_many_streams_with_their_times(tmp_path: Path) -> None:
    with bottomless.connect(f"file://{tmp_path}/all.ss") as client:
        for number in range(6):
            client.append(("orders", "logs")[number % 2], number)
        assert values_of(client, "orders") == [0, 2, 4]
        assert values_of(client, "logs", Newest(2)) == [3, 5]
        everything = client.read("")
        assert [record.value for record in everything] == list(range(6))
        assert [record.key for record in everything[:2]] == ["orders", "logs"]
        assert [record.sequence for record in everything] == [1, 1, 2, 2, 3, 3]
        fourth = everything[3]
        later = values_of(client, "", Since(fourth.time))
        assert later == [record.value for record in everything if record.time >= fourth.time]
        assert values_of(client, "", Since("2099-01-01")) == []
        with pytest.raises(InvalidRequest, match="no stream key"):
            client.producer("shop/orders")
        with pytest.raises(InvalidRequest, match="needs a stream key"):
            client.append("", 1)


def test_ss_files_end_readers_that_follow_and_go_on_all_the_same(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/x.ss/orders"
    with bottomless.connect(url) as client:
        with client.producer() as producer:
            producer.append(1)
            producer.close(2)
        assert [record.value for record in client.consumer()] == [1, 2]
        client.append("", 3)
        assert values_of(client, "") == [1, 2, 3]


def test_ss_file_that_is_damaged_says_where_after_all_that_is_right(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    with bottomless.connect(f"file://{path}") as client:
        client.append("a", "first", "second", "third")
        data = bytearray(path.read_bytes())
        place = data.index(b"second")
        data[place] ^= 1
        path.write_bytes(data)
        consumer = client.consumer("a", follow=False)
        assert consumer.next().value == "first"  # type: ignore[union-attr]
        with pytest.raises(DataDamaged, match=r"x\.ss is damaged at byte 168: .* checksum"):
            consumer.next()
        with pytest.raises(DataDamaged):
            client.append("a", "more")
        assert path.read_bytes() == data


def test_ss_file_that_is_cut_off_is_read_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    with bottomless.connect(f"file://{path}") as client:
        client.append("a", "first", "second")
        os.truncate(path, path.stat().st_size - 1)
        assert values_of(client, "a") == ["first"]
        consumer = client.consumer("a")
        assert consumer.next().value == "first"  # type: ignore[union-attr]
        assert consumer.next(0.1) is None
        client.append("a", "third")
        assert values_of(client, "a") == ["first", "third"]


def test_backends_producer_tells_what_became_of_each_batch(tmp_path: Path) -> None:
    told: list[bottomless.Delivered] = []

    async def write() -> None:
        async with (
            bottomless.connect_async(f"file://{tmp_path}") as client,
            await client.producer(
                "x.ndjson", batch_records=2, on_delivered=told.append
            ) as producer,
        ):
            for number in range(5):
                await producer.append(number)

    asyncio.run(write())
    assert [batch.count for batch in told] == [2, 2, 1]
    assert [batch.offset for batch in told] == ["4", "8", "10"]
    assert json.loads(
        b"[" + (tmp_path / "x.ndjson").read_bytes().replace(b"\n", b",")[:-1] + b"]"
    ) == [*range(5)]
