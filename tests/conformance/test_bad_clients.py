"""Clients that are slow, greedy, gone or many, a server told to stop, and a disk that is full.

The numbers are those of sections B, C and E of the list of bad inputs.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import struct
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
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
    faults_in,
    is_held,
    request,
    resident_mib,
    serving,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1024 * 1024
TIMEOUT_MS = 500
# A window on loopback opens in steps of about 95 KB, so progress shows about once a second.
WRITE_TIMEOUT_MS = 2000
KEEP_ALIVE_MS = 2000
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
        http__write_timeout_ms=WRITE_TIMEOUT_MS,
        http__long_poll_timeout_ms=TIMEOUT_MS,
        http__keep_alive_ms=KEEP_ALIVE_MS,
        http__connections=CONNECTIONS_MAX,
        limits__live_readers=LIVE_READERS_MAX,
        limits__streams=STREAMS_MAX,
    ) as process:
        yield process


@pytest.fixture
def canary(client: httpx.Client) -> Iterator[Canary]:
    made = Canary(client, TEXT)
    yield made
    client.delete(made.path)


def post(path: str, body: bytes, *headers: str) -> bytes:
    return request("POST", path, PLAIN, f"Content-Length: {len(body)}", *headers, body=body)


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


@pytest.mark.parametrize("line", [b"\r\n", b"\r"], ids=["100-crlf", "100-cr"])
def test_idle_connection_is_not_kept_by_empty_lines(
    server: ServerProcess, canary: Canary, line: bytes
) -> None:
    with Wire(server.port) as wire:
        wire.send(request("GET", canary.path))
        assert wire.reply().status == 200
        wire.send(line)
        wire.socket.settimeout(KEEP_ALIVE_MS / 1000 + ENDED_S)
        assert wire.read_to_end()[:12] in (b"", b"HTTP/1.1 408")


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


@pytest.mark.parametrize("way", ["fin", "rst"])
def test_clients_that_leave_by_the_hundred_are_no_fault(
    server: ServerProcess, client: httpx.Client, canary: Canary, way: str
) -> None:
    """Case 52: the log stays clean (looked at in the end), and every append is whole or absent."""
    for data in (post(canary.path, b"whole"), request("GET", canary.path)):
        for _ in range(150):
            with Wire(server.port) as wire:
                wire.send(data)
                leave(wire, way)
    assert client.post(canary.path, headers=TEXT, content=b"good").status_code == 204
    assert re.fullmatch(rb"(whole)*good(whole)*", canary.read())


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
        polled = f"{canary.path}?offset=now&live=long-poll"
        wait_until(lambda: client.get(polled).status_code == 204, "a place was never given back")


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
        wait_until(lambda: not is_held(server, wire), "the reader was not cut off")
        assert len(wire.read_to_end()) < 10 * MIB
    with canary.untouched():
        pass
    client.delete(canary.path)


def test_reader_that_reads_slowly_is_kept(server: ServerProcess, client: httpx.Client) -> None:
    """Cases 102 and 103: slow is not stalled; it takes something far more often than it must."""
    canary = Canary(client, BYTES)
    for _ in range(8):
        client.post(canary.path, headers=BYTES, content=os.urandom(MIB))
    with Wire(server.port, receive_buffer=65536) as wire:
        wire.send(request("GET", f"{canary.path}?offset=-1&live=sse"))
        ends_at = time.monotonic() + ENDED_S + WRITE_TIMEOUT_MS / 1000
        while time.monotonic() < ends_at:
            assert wire.socket.recv(2048)
            assert is_held(server, wire), "a reader that reads was cut off"
            time.sleep(0.02)
    client.delete(canary.path)


def live_readers(client: httpx.Client) -> float:
    found = re.findall(r"^bottomless_followers\S* (\S+)$", client.get("/metrics").text, re.M)
    return sum(map(float, found))


@pytest.mark.parametrize("live", ["sse", "long-poll"])
@pytest.mark.parametrize("way", ["fin", "rst"])
def test_reader_that_pipelines_and_leaves_is_forgotten(
    server: ServerProcess, client: httpx.Client, canary: Canary, way: str, live: str
) -> None:
    """Cases 43 and 101: the request behind the live one must not hide that the client has gone."""
    assert live_readers(client) == 0
    for _ in range(LIVE_READERS_MAX):
        with Wire(server.port) as wire:
            wire.send(request("GET", f"{canary.path}?offset=now&live={live}"))
            wire.send(request("GET", canary.path))
            if live == "sse":
                wire.read_until(b"event: control")
            leave(wire, way)

    def is_forgotten() -> bool:
        with canary.untouched():
            pass
        return live_readers(client) == 0

    wait_until(is_forgotten, "readers that have gone still count")


def test_catch_up_is_answered_in_bounded_chunks(client: httpx.Client) -> None:
    """Case 103: a reader asks for the next part when it is ready for it."""
    canary = Canary(client, BYTES)
    part = os.urandom(MIB // 2)
    for _ in range(10):
        client.post(canary.path, headers=BYTES, content=part)
    assert len(client.get(canary.path).content) <= 2 * MIB
    assert canary.read() == part * 10
    client.delete(canary.path)


# SIGTERM.


def test_sigterm_under_load_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    """Case 110: exit code 0, and after a restart every acknowledged append is there once."""
    acked: list[list[bytes]] = [[] for _ in range(8)]
    with serving(tmp_path) as server, connect(server) as client:
        canary = Canary(client, TEXT)

        def load(number: int) -> None:
            with connect(server) as own:
                for seq in range(100_000):
                    body = b"%d-%d;" % (number, seq)
                    try:
                        reply = own.post(canary.path, headers=TEXT, content=body)
                    except httpx.TransportError:
                        return
                    if reply.status_code != 204:
                        assert_refused(reply, 503)
                        return
                    acked[number].append(body)

        with ThreadPoolExecutor(len(acked)) as pool:
            running = [pool.submit(load, number) for number in range(len(acked))]
            wait_until(lambda: min(map(len, acked)) > 20, "the load does not run")
            assert server.terminate() == 0, server.log_tail()
            for future in running:
                future.result()
        server.restart()
        stored = canary.read().split(b";")[:-1]
    assert len(set(stored)) == len(stored), "an append is there twice"
    for number, bodies in enumerate(acked):
        own = [body + b";" for body in stored if body.startswith(b"%d-" % number)]
        # The last one may have become durable without its answer getting through.
        assert own[: len(bodies)] == bodies
        assert len(own) <= len(bodies) + 1


def test_sigterm_ends_live_readers_at_once(tmp_path: Path) -> None:
    """Case 110: with a proper end, so that they come back; not after the drain's time-out."""
    with ServerProcess.start(tmp_path / "data") as server, connect(server) as client:
        path = Canary(client, TEXT).path
        events = Wire(server.port)
        with (
            events,
            Wire(server.port) as poll,
            Wire(server.port) as idle,
            Wire(server.port) as half,
        ):
            events.send(request("GET", f"{path}?offset=now&live=sse"))
            events.read_until(b"event: control")
            poll.send(request("GET", f"{path}?offset=now&live=long-poll"))
            half.send(b"GET / HTTP/1.1\r\nHo")
            idle.send(request("GET", path))
            assert idle.reply().status == 200
            wait_until(lambda: live_readers(client) == 2, "the readers do not wait")
            begun = time.monotonic()
            assert server.terminate() == 0, server.log_tail()
            assert time.monotonic() - begun < 5
            assert events.read_to_end().endswith(b"0\r\n\r\n")
            assert poll.reply().status in (204, 503)
            assert poll.has_ended()
            assert idle.has_ended()
    assert faults_in(server) == []


# A full disk.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting is not possible here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_full_disk_refuses_appends_until_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    """Case 109: nothing is acknowledged that is not stored, and reads go on."""
    ballast = small_disk / "ballast"
    log_path = tmp_path / "server.log"
    env = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "50"}
    with (
        ServerProcess.start(small_disk / "data", env=env, log_path=log_path) as server,
        connect(server) as client,
    ):
        canary = Canary(client, BYTES)
        part = os.urandom(64 * 1024)
        acked = [part]
        assert client.post(canary.path, headers=BYTES, content=part).status_code == 204
        fill(ballast)
        for number in range(200):
            body = b"%08d" % number + part
            reply = client.post(canary.path, headers=BYTES, content=body)
            if reply.status_code != 204:
                break
            acked.append(body)
        assert_refused(reply, 503, 507)
        for _ in range(20):
            assert_refused(client.post(canary.path, headers=BYTES, content=part), 503, 507)
            assert_refused(client.put(f"{canary.path}/new", content=part), 503, 507)
        assert client.head(f"{canary.path}/new").status_code == 404
        assert canary.read() == b"".join(acked)
        ballast.unlink()
        with canary.untouched():
            pass
        assert client.put(f"{canary.path}/new", content=part).status_code == 201
        assert canary.read() == b"".join([*acked, b"good"])
        assert server.terminate() == 0, server.log_tail()
        server.restart()
        assert canary.read() == b"".join([*acked, b"good"])
        assert client.get(f"{canary.path}/new").content == part


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
