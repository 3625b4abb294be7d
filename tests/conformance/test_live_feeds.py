"""Many SSE readers of one stream: each gets every record once and in order, the quick and the slow,
through commits, and whatever is told of the end reaches all of them.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Connect = Callable[..., "Reader"]

READERS = 12
TIMEOUT_S = 20.0
# Of an event, alone and as the end of a chunk.
_ENDS = (b"\n\n\r\n", b"e}\n\n", b'"}\n\n')
_EVENT = re.compile(rb"event: (\w+)\n((?:data:[^\n]*\n)*)\n")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {
        "BOTTOMLESS_COMMIT__INTERVAL_MS": "100",
        "BOTTOMLESS_HTTP__SSE_KEEP_ALIVE_MS": "400",
    }
    with ServerProcess.start(tmp_path_factory.mktemp("feeds"), env=env) as running:
        yield running


class Reader:
    """An SSE reader on a socket of its own; takes nothing until told to."""

    def __init__(self, server: ServerProcess, stream: str, query: str = "", version: str = "1.1"):
        self.socket = socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S)
        target = f"/v1/stream/{stream}?offset=-1&live=sse{query}"
        self.socket.sendall(f"GET {target} HTTP/{version}\r\nHost: a\r\n\r\n".encode())
        self.is_chunked = version == "1.1"
        self.received = bytearray()

    def take(self, enough: str) -> None:
        """Receive until a control event with this in it is the last thing there is."""
        while enough.encode() not in self.received[-300:] or self.received[-4:] not in _ENDS:
            more = self.socket.recv(1 << 18)
            assert more, f"the response ended before {enough}"
            self.received += more

    def events(self) -> list[tuple[str, str]]:
        """Name and data of each event so far."""
        head, _, body = self.received.partition(b"\r\n\r\n")
        if not head:
            return []
        if self.is_chunked:
            body = unchunked(bytes(body))
        return [
            (name.decode(), data.replace(b"data:", b"").decode().strip("\n"))
            for name, data in _EVENT.findall(body)
        ]

    def records(self) -> list[object]:
        """The records of all data events."""
        found: list[object] = []
        for name, data in self.events():
            found += json.loads(data) if name == "data" else []
        return found


def unchunked(body: bytes) -> bytes:
    """Whole chunks of a chunked body that may not be there to the end."""
    parts, at = [], 0
    while (line_end := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:line_end], 16)
        begin, at = line_end + 2, line_end + 2 + size + 2
        if at > len(body):
            break
        assert body[at - 2 : at] == b"\r\n"
        parts.append(body[begin : begin + size])
    return b"".join(parts)


def fill(client: httpx.Client, stream: str, records: list[object]) -> str:
    """Append each by itself; the position after the last."""
    tail = ""
    for record in records:
        reply = client.post(f"/v1/stream/{stream}", json=record)
        assert reply.status_code == 204
        tail = reply.headers["stream-next-offset"]
    return tail


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as made:
        yield made


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Connect]:
    with ExitStack() as stack:

        def make(stream: str, query: str = "", version: str = "1.1") -> Reader:
            reader = Reader(server, stream, query, version)
            stack.enter_context(reader.socket)
            return reader

        yield make


def create(client: httpx.Client, stream: str) -> None:
    reply = client.put(f"/v1/stream/{stream}", headers={"content-type": "application/json"})
    assert reply.status_code == 201


def test_feeds_give_every_reader_every_record_once(connect: Connect, client: httpx.Client):
    create(client, "all")
    versions = ["1.0", "1.1"]
    cursors = ["", "&cursor=99999999", "&cursor=1"]
    readers = [
        connect("all", cursors[number % 3], versions[number % 2]) for number in range(READERS)
    ]
    records: list[object] = [{"n": number, "x": "é\u2028" * (number % 50)} for number in range(400)]
    tails: list[str] = []
    writer = threading.Thread(target=lambda: tails.append(fill(client, "all", records)))
    writer.start()
    for reader in readers[1:]:
        reader.take('"upToDate"')
    writer.join()
    # The first one has taken nothing so far.
    for reader in readers:
        reader.take(tails[0])
        assert reader.records() == records
        names = [name for name, _ in reader.events()]
        data = [index for index, name in enumerate(names) if name == "data"]
        assert all(names[index + 1] == "control" for index in data)


def test_feeds_of_readers_that_stand_still_go_on_where_they_were(
    connect: Connect, client: httpx.Client
):
    create(client, "still")
    still, lively = connect("still"), connect("still")
    lively.take('"upToDate"')
    # More than two kernels keep for a reader, and then the server for itself.
    records: list[object] = [f"{number}" + "x" * 60_000 for number in range(150)]
    tail = fill(client, "still", records)
    lively.take(tail)
    assert lively.records() == records
    still.take(tail)
    assert still.records() == records


def test_feeds_tell_a_sign_of_life_and_the_end(connect: Connect, client: httpx.Client):
    create(client, "end")
    readers = [connect("end") for _ in range(3)]
    for reader in readers:
        reader.take('"upToDate"')
    tail = fill(client, "end", [1])
    for reader in readers:
        reader.take(tail)
        while len(reader.events()) < 5:
            reader.received += reader.socket.recv(4096)
        names = [name for name, _ in reader.events()]
        assert names[:5] == ["control", "data", "control", "control", "control"]
    client.post("/v1/stream/end", headers={"stream-closed": "true"}).raise_for_status()
    for reader in readers:
        while not reader.received.endswith(b"0\r\n\r\n"):
            more = reader.socket.recv(4096)
            assert more
            reader.received += more
        assert reader.records() == [1]
        assert json.loads(reader.events()[-1][1])["streamClosed"] is True


def test_feeds_end_with_the_stream(connect: Connect, client: httpx.Client):
    create(client, "gone")
    readers = [connect("gone") for _ in range(3)]
    for reader in readers:
        reader.take('"upToDate"')
    fill(client, "gone", [1])
    assert client.delete("/v1/stream/gone").status_code == 204
    for reader in readers:
        while not reader.received.endswith(b"\r\n0\r\n\r\n"):
            more = reader.socket.recv(4096)
            assert more
            reader.received += more
        assert reader.records() == [1]
