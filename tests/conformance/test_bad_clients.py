"""Clients that are slow, greedy, gone or many, a server told to stop, and a disk that is full.

The numbers are those of sections B, C and E of the list of bad inputs.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.server import ServerProcess
from tests.support.wire import (
    BYTES,
    TEXT,
    Canary,
    Reply,
    Wire,
    WireClosed,
    assert_refused,
    connect,
    request,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

MIB = 1024 * 1024
TIMEOUT_MS = 500
# The server looks at its connections once a second.
ENDED_S = TIMEOUT_MS / 1000 + 1 + 2
CONNECTIONS_MAX = 250
LIVE_READERS_MAX = 5
STREAMS_MAX = 100
PLAIN = "Content-Type: text/plain"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(
        tmp_path_factory.mktemp("clients"),
        http__header_timeout_ms=TIMEOUT_MS,
        http__body_timeout_ms=TIMEOUT_MS,
        http__write_timeout_ms=TIMEOUT_MS,
        http__long_poll_timeout_ms=TIMEOUT_MS,
        http__connections=CONNECTIONS_MAX,
        limits__live_readers=LIVE_READERS_MAX,
        limits__streams=STREAMS_MAX,
    ) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with connect(server) as made:
        yield made


@pytest.fixture
def canary(client: httpx.Client) -> Iterator[Canary]:
    made = Canary(client, TEXT)
    yield made
    client.delete(made.path)


def post(path: str, body: bytes, *headers: str) -> bytes:
    return request("POST", path, PLAIN, f"Content-Length: {len(body)}", *headers, body=body)


def wait_until(is_true: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


# Slow clients. They all wait at the same time, or the tests would take a second or two each.

HALF_A_BODY = [PLAIN, "Content-Length: 100"]
HALF_A_CHUNK = [PLAIN, "Transfer-Encoding: chunked"]
SLOW = {
    "51-half-a-body": request("POST", "{path}", *HALF_A_BODY, body=b"ab"),
    "51-no-body": request("POST", "{path}", *HALF_A_BODY),
    "51-half-a-create": request("PUT", "{path}/new", *HALF_A_BODY, body=b"ab"),
    "53-no-last-chunk": request("POST", "{path}", *HALF_A_CHUNK, body=b"2\r\nab\r\n"),
    "53-half-a-chunk": request("POST", "{path}", *HALF_A_CHUNK, body=b"9\r\nab"),
    "53-no-end-of-trailers": request("POST", "{path}", *HALF_A_CHUNK, body=b"2\r\nab\r\n0\r\n"),
    "100-no-bytes": b"",
    "100-half-a-line": b"POST {path}",
    "100-half-a-header": b"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Le",
    "100-second-request-never-ends": request("GET", "{path}") + b"POST {path} HTTP/1.1\r\nHo",
}


@pytest.fixture(scope="module")
def slow(server: ServerProcess, client: httpx.Client) -> Iterator[dict[str, Future[list[Reply]]]]:
    path = Canary(client, TEXT).path

    def run(data: bytes) -> list[Reply]:
        with Wire(server.port) as wire:
            begun = time.monotonic()
            wire.send(data.replace(b"{path}", path.encode()))
            replies = []
            while True:
                try:
                    replies.append(wire.reply())
                except WireClosed:
                    assert time.monotonic() - begun < ENDED_S
                    return replies

    with ThreadPoolExecutor(len(SLOW)) as pool:
        found = {case: pool.submit(run, data) for case, data in SLOW.items()}
    assert client.get(path).content == b"", "half a body was appended"
    assert client.head(f"{path}/new").status_code == 404, "half a body has created"
    yield found
    client.delete(path)


@pytest.mark.parametrize("case", SLOW)
def test_client_that_falls_silent_is_ended(slow: dict[str, Future[list[Reply]]], case: str) -> None:
    replies = slow[case].result()
    assert [reply.status for reply in replies[:-1]] == [200] * ("second" in case)
    assert_refused(replies[-1], 408)


def test_client_that_drips_its_headers_is_ended(server: ServerProcess, canary: Canary) -> None:
    """Case 100: each byte alone would not be too slow."""
    begun = time.monotonic()
    with canary.untouched(), Wire(server.port) as wire:
        wire.socket.settimeout(TIMEOUT_MS / 5000)
        for byte in request("GET", canary.path, "X-A: " + "a" * 1000):
            wire.send(bytes([byte]))
            try:
                head = wire.read_until(b"\r\n")
                break
            except TimeoutError:
                assert time.monotonic() - begun < ENDED_S
    assert b" 408 " in head


@pytest.mark.parametrize("way", ["fin", "rst"])
@pytest.mark.parametrize("case", ["51-half-a-body", "53-half-a-chunk", "100-half-a-header"])
def test_client_that_leaves_half_way_appends_nothing(
    server: ServerProcess, canary: Canary, case: str, way: str
) -> None:
    """Case 52."""
    with canary.untouched():
        for _ in range(20):
            with Wire(server.port) as wire:
                wire.send(SLOW[case].replace(b"{path}", canary.path.encode()))
                leave(wire, way)
    assert canary.read() == b"good"


def leave(wire: Wire, way: str) -> None:
    if way == "rst":
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.socket.close()


@pytest.mark.parametrize("way", ["fin", "rst"])
def test_client_that_leaves_before_the_answer_can_repeat(
    server: ServerProcess, client: httpx.Client, canary: Canary, way: str
) -> None:
    """Case 54: with the same producer sequence there is one copy, whatever became of the first."""
    for seq in range(20):
        producer = {"producer-id": "p", "producer-epoch": "0", "producer-seq": str(seq)}
        lines = [f"{name}: {value}" for name, value in producer.items()]
        with Wire(server.port) as wire:
            wire.send(post(canary.path, b"%d;" % seq, *lines))
            leave(wire, way)
        again = client.post(canary.path, headers={**TEXT, **producer}, content=b"%d;" % seq)
        assert again.status_code in (200, 204), again.text
    assert canary.read() == b"".join([b"%d;" % seq for seq in range(20)])


# Pipelining.

BAD_SECOND = {
    "43-bad-framing": (400, post("{path}", b"two", "Content-Length: 9"), True),
    "43-no-host": (400, b"POST {path} HTTP/1.1\r\nContent-Length: 3\r\n\r\ntwo", True),
    "43-bad-chunk": (400, request("POST", "{path}", *HALF_A_CHUNK, body=b"3\r\ntwo\r\nZZ"), True),
    "43-compressed": (415, post("{path}", b"two", "Content-Encoding: gzip"), True),
    "43-bad-producer": (400, post("{path}", b"two", "Producer-Id: p"), False),
}


@pytest.mark.parametrize("packets", [1, 3])
@pytest.mark.parametrize(("status", "second", "ends"), BAD_SECOND.values(), ids=BAD_SECOND)
def test_pipeline_with_a_bad_second_request_keeps_order(
    server: ServerProcess, canary: Canary, status: int, second: bytes, ends: bool, packets: int
) -> None:
    """What the connection's framing survives is answered; after anything else nothing is run."""
    first, third = post(canary.path, b"one"), post(canary.path, b"three")
    parts = [first, second.replace(b"{path}", canary.path.encode()), third]
    with Wire(server.port) as wire:
        for part in [b"".join(parts)] if packets == 1 else parts:
            wire.send(part)
        assert wire.reply().status == 204
        assert_refused(wire.reply(), status)
        if ends:
            assert wire.has_ended()
        else:
            assert wire.reply().status == 204
    assert canary.read() == (b"one" if ends else b"onethree")


def test_pipeline_is_answered_in_order(server: ServerProcess, canary: Canary) -> None:
    """Case 43."""
    with Wire(server.port) as wire:
        for number in range(30):
            wire.send(post(canary.path, b"%d;" % number) + request("GET", canary.path))
        seen = b""
        for number in range(30):
            seen += b"%d;" % number
            assert wire.reply().status == 204
            assert wire.reply().body == seen


# Many clients, and clients that do not read.


def test_live_readers_are_bounded(
    server: ServerProcess, client: httpx.Client, canary: Canary
) -> None:
    """Case 101: the next one is told to come back; appends and plain reads go on."""
    path = f"{canary.path}?offset=now&live=sse"
    with ExitStack() as open_wires:
        wires = [open_wires.enter_context(Wire(server.port)) for _ in range(LIVE_READERS_MAX)]
        for wire in wires:
            wire.send(request("GET", path))
            assert b" 200 " in wire.read_until(b"event: control")
        for live in ("sse", "long-poll"):
            refused = client.get(f"{canary.path}?offset=now&live={live}")
            assert assert_refused(refused, 429) == "too_many_readers"
            assert int(refused.headers["retry-after"]) > 0
        with canary.untouched():
            pass
        assert canary.read() == b"good"
        wires[0].socket.close()
        wait_until(lambda: poll_status(client, canary) == 204, "a place was never given back")


def poll_status(client: httpx.Client, canary: Canary) -> int:
    return client.get(f"{canary.path}?offset=now&live=long-poll").status_code


def test_connections_are_bounded(server: ServerProcess, canary: Canary) -> None:
    """Case 101: what is over the bound is told so; who is connected goes on."""
    with canary.untouched(), ExitStack() as open_wires:
        wires = [open_wires.enter_context(Wire(server.port)) for _ in range(CONNECTIONS_MAX)]
        beyond = open_wires.enter_context(Wire(server.port))
        assert_refused(beyond.reply(), 503)
        assert beyond.has_ended()
        wires[0].send(post(canary.path, b"x", "Producer-Id: refused"))
        assert_refused(wires[0].reply(), 400)


def test_hot_stream_takes_appends_of_many_connections(
    server: ServerProcess, canary: Canary
) -> None:
    """Case 108: 1000 appends from 200 connections, all sent before the first answer is read."""
    with ExitStack() as open_wires:
        wires = [open_wires.enter_context(Wire(server.port)) for _ in range(200)]
        for wire in wires:
            wire.send(post(canary.path, b"x") * 5)
        statuses = [wire.reply().status for wire in wires for _ in range(5)]
    assert set(statuses) <= {204, 429, 503}
    assert len(canary.read()) == statuses.count(204) > 0
    with canary.untouched():
        pass


def test_streams_are_bounded(client: httpx.Client, canary: Canary) -> None:
    """Case 107."""
    made = []
    while (created := client.put(f"{canary.path}/{len(made)}")).status_code == 201:
        made.append(f"{canary.path}/{len(made)}")
        assert len(made) <= STREAMS_MAX
    assert assert_refused(created, 429) == "too_many_streams"
    assert created.headers["retry-after"]
    with canary.untouched():
        assert client.delete(made.pop()).status_code == 204
        assert client.put(f"{canary.path}/again").status_code == 201
    for path in [*made, f"{canary.path}/again"]:
        assert client.delete(path).status_code == 204


STALLED = {
    "102-sse": (request("GET", "{path}?offset=-1&live=sse"), 1),
    "103-catch-up": (request("GET", "{path}?offset=-1"), 60),
}


@pytest.mark.parametrize(("data", "times"), STALLED.values(), ids=STALLED)
def test_reader_that_stops_reading_is_cut_off(
    server: ServerProcess, client: httpx.Client, data: bytes, times: int
) -> None:
    """Bounded memory for it, and no effect on the writer."""
    canary = Canary(client, BYTES)
    part = os.urandom(MIB)
    with Wire(server.port, receive_buffer=4096) as wire:
        client.post(canary.path, headers=BYTES, content=part)
        wire.send(data.replace(b"{path}", canary.path.encode()) * times)
        before = resident_mib(server)
        for _ in range(30):
            assert client.post(canary.path, headers=BYTES, content=part).status_code == 204
        # The appends themselves stay in memory until their commit, and in the WAL's buffers.
        assert resident_mib(server) - before < 150
        wait_until(lambda: live_readers(client) == 0, "the reader was not cut off", ENDED_S + 5)
        time.sleep(ENDED_S)
        assert len(wire.read_to_end()) < 10 * MIB
    with canary.untouched():
        pass
    client.delete(canary.path)


def resident_mib(server: ServerProcess) -> float:
    status = Path(f"/proc/{server.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


def live_readers(client: httpx.Client) -> float:
    found = re.findall(r"^bottomless_followers\S* (\S+)$", client.get("/metrics").text, re.M)
    return sum(map(float, found))


def test_catch_up_is_answered_in_bounded_chunks(client: httpx.Client) -> None:
    """Case 103: a reader asks for the next part when it is ready for it."""
    canary = Canary(client, BYTES)
    part = os.urandom(MIB // 2)
    for _ in range(10):
        client.post(canary.path, headers=BYTES, content=part)
    offset, seen = "-1", b""
    while True:
        read = client.get(canary.path, params={"offset": offset})
        assert len(read.content) <= 2 * MIB
        seen += read.content
        offset = read.headers["stream-next-offset"]
        if "stream-up-to-date" in read.headers:
            break
    assert seen == part * 10
    client.delete(canary.path)
