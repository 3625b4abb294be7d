"""The PyPI package durable-streams, unchanged, reads and writes on a real server."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import httpx
import pytest
from durable_streams import (
    AsyncDurableStream,
    DurableStream,
    SeqConflictError,
    StreamExistsError,
    StreamNotFoundError,
    astream,
    stream,
)

import bottomless
from tests.support.wire import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.server import ServerProcess

JSON = "application/json"
BYTES = "application/octet-stream"
# Numbers, signs and shapes that clumsy servers change. (Python's own floats, so no 30 digits.)
VALUES = [{"id": 1, "price": 4.5}, [1, [2, []]], "zwei äöü 😀", 2**70, None, True, -0.0, {}]
LIVE = ("long-poll", "sse")
PACKETS = [bytes(range(256)), b"\x00", b"\r\n\r\n", "ä".encode()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("theirs"), http__long_poll_timeout_ms=1000) as process:
        yield process


@pytest.fixture
def url(server: ServerProcess, request: pytest.FixtureRequest) -> str:
    return f"{server.url}/v1/stream/{request.node.name.replace('[', '-').replace(']', '')}"


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """The package's own client would listen to the machine's proxy settings."""
    with httpx.Client(trust_env=False, timeout=10) as client:
        yield client


@pytest.fixture
async def ahttp() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        yield client


def read_here(server: ServerProcess, url: str) -> list[object]:
    """The same stream through our own library."""
    name = url.removeprefix(f"{server.url}/v1/stream/")
    with bottomless.connect(server.url) as client:
        return [record.value for record in client.read(name)]


def test_their_client_writes_and_reads_json(
    server: ServerProcess, url: str, http: httpx.Client
) -> None:
    handle = DurableStream.create(url, content_type=JSON, client=http)
    ends = [handle.append(value).next_offset for value in VALUES]
    assert ends == sorted(set(ends))
    assert handle.head().content_type == JSON
    assert handle.head().offset == ends[-1]
    assert handle.stream(live=False).read_json() == VALUES
    # Each offset it was told is a place to go on from.
    for index, end in enumerate(ends, 1):
        rest = stream(url, offset=end, live=False, client=http)
        assert list(rest.iter_json()) == VALUES[index:]
    assert read_here(server, url) == VALUES


def test_their_client_writes_and_reads_bytes(
    server: ServerProcess, url: str, http: httpx.Client
) -> None:
    handle = DurableStream.create(url, content_type=BYTES, body=PACKETS[0], client=http)
    for packet in PACKETS[1:]:
        handle.append(packet)
    assert handle.stream(live=False).read_bytes() == b"".join(PACKETS)
    assert b"".join(handle.stream(live=False)) == b"".join(PACKETS)
    assert read_here(server, url) == PACKETS


def test_their_client_batches_what_threads_append_at_once(
    server: ServerProcess, url: str, http: httpx.Client
) -> None:
    handle = DurableStream.create(url, content_type=JSON, client=http)

    def append(thread: int) -> None:
        for number in range(50):
            handle.append([thread, number])

    threads = [threading.Thread(target=append, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = read_here(server, url)
    assert handle.stream(live=False).read_json() == values
    for thread in range(8):
        assert [value for value in values if value[0] == thread] == [
            [thread, number] for number in range(50)
        ]


@pytest.mark.parametrize("live", LIVE)
def test_their_client_follows_json_live(
    server: ServerProcess, url: str, http: httpx.Client, live: str
) -> None:
    DurableStream.create(url, content_type=JSON, body=b"[0,1]", client=http)
    name = url.removeprefix(f"{server.url}/v1/stream/")
    seen = []
    with (
        bottomless.connect(server.url) as writer,
        stream(url, offset="-1", live=live, client=http) as response,
    ):
        for value in response.iter_json():
            seen.append(value)
            if value % 2 and value < 40:
                # It has everything and waits when these are stored.
                writer.append(name, value + 1, value + 2)
            elif value == 41:
                break
    assert seen == list(range(42))


def test_their_client_follows_bytes_live(
    server: ServerProcess, url: str, http: httpx.Client
) -> None:
    handle = DurableStream.create(url, content_type=BYTES, body=PACKETS[0], client=http)
    read, written = b"", 1
    with stream(url, offset="-1", live="long-poll", client=http) as response:
        for chunk in response:
            read += chunk
            if read == b"".join(PACKETS):
                break
            if read == b"".join(PACKETS[:written]):
                handle.append(PACKETS[written])
                written += 1
    assert written == len(PACKETS)


def test_their_client_follows_text_with_events(
    server: ServerProcess, url: str, http: httpx.Client
) -> None:
    lines = ["one\n", "zwei äöü 😀\n", "event: data\n\n"]
    handle = DurableStream.create(url, content_type="text/plain", body=lines[0], client=http)
    read, offsets = "", []
    with stream(url, offset="-1", live="sse", client=http) as response:
        for event in response.iter_events(mode="text"):
            read += event.data
            offsets.append(event.next_offset)
            if len(offsets) == len(lines):
                break
            handle.append(lines[len(offsets)])
    assert read == "".join(lines)
    rest = stream(url, offset=offsets[1], live=False, client=http)
    assert rest.read_text() == lines[2]


def test_their_client_understands_refusals(url: str, http: httpx.Client) -> None:
    with pytest.raises(StreamNotFoundError):
        stream(url, live=False, client=http)
    handle = DurableStream.create(url, content_type=JSON, client=http)
    with pytest.raises(StreamExistsError):
        DurableStream.create(url, content_type="text/plain", client=http)
    handle.append(1, seq="b")
    with pytest.raises(SeqConflictError):
        handle.append(2, seq="a")
    assert handle.stream(live=False).read_json() == [1]
    handle.delete()
    with pytest.raises(StreamNotFoundError):
        handle.head()


async def test_their_async_client_writes_and_reads(
    server: ServerProcess, url: str, ahttp: httpx.AsyncClient
) -> None:
    handle = await AsyncDurableStream.create(url, content_type=JSON, client=ahttp)
    await asyncio.gather(*(handle.append(number) for number in range(100)))
    async with handle.stream(live=False) as response:
        values = await response.read_json()
    assert sorted(values) == list(range(100))
    assert read_here(server, url) == values
    packets = await AsyncDurableStream.create(f"{url}-b", content_type=BYTES, client=ahttp)
    for packet in PACKETS:
        await packets.append(packet)
    async with packets.stream(live=False) as response:
        assert await response.read_bytes() == b"".join(PACKETS)


@pytest.mark.parametrize("live", LIVE)
async def test_their_async_client_follows_live(
    url: str, ahttp: httpx.AsyncClient, live: str
) -> None:
    handle = await AsyncDurableStream.create(url, content_type=JSON, body=b"[0]", client=ahttp)
    seen = []
    async with astream(url, offset="-1", live=live, client=ahttp) as response:
        async for value in response.iter_json():
            seen.append(value)
            if value == 20:
                break
            await handle.append(value + 1)
    assert seen == list(range(21))
