"""Connections whose answer is due: in order, to who asked, once; or to nobody, without a fault."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from api.auth.gate import OpenGate
from api.connection import Connection, connection_class
from api.routes.quick import QuickAppend
from api.settings import HttpSettings
from engine.errors import StorageUnavailable
from engine.settings import LimitSettings
from engine.types import AppendRequest, AppendResult, Offset
from tests.support.model import until
from tests.unit.test_quick_append import HOST, JSON, post

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

GET = b"GET /v1/stream/s HTTP/1.1\r\nHost: h\r\n\r\n"


def append(body: bytes) -> bytes:
    return post(HOST, JSON, b"Content-Length: %d" % len(body), body=body)


class DueLog:
    """A log that answers when the test says so."""

    def __init__(self) -> None:
        self.due: dict[bytes, Callable[[Any], None]] = {}
        self.bodies: list[bytes] = []

    def append_soon(self, name: str, request: AppendRequest, done: Any) -> bool:
        del name
        assert request.body not in self.due
        self.bodies.append(request.body)
        self.due[request.body] = done
        return True

    def stored(self, body: bytes) -> None:
        self.due.pop(body)(AppendResult(Offset(int(body)), closed=False))

    def failed(self, body: bytes) -> None:
        self.due.pop(body)(StorageUnavailable("the disk"))


class Peer:
    """The client's end, and the connection at the other one."""

    def __init__(self, connection: Connection, reader: asyncio.StreamReader, writer: Any) -> None:
        self.connection = connection
        self.reader = reader
        self.writer = writer

    async def answer(self) -> tuple[int, dict[str, str]]:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)
        first, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(first.split(" ")[1]), headers

    async def offset(self) -> int:
        """That of an append which is stored."""
        status, headers = await self.answer()
        assert status == 204
        assert "connection" not in headers
        return int(headers["stream-next-offset"].rpartition("_")[2])

    async def has_ended(self) -> bool:
        return await asyncio.wait_for(self.reader.read(), 5) == b""

    async def leave(self) -> None:
        self.writer.transport.abort()
        await until(lambda: self.connection.parser is None, "the connection is lost")


class Server:
    """Connections over pairs of sockets; whatever is not quick is answered 200 by an app."""

    def __init__(self) -> None:
        self.log = DueLog()
        self.faults: list[object] = []
        self.state = ServerState()
        http = HttpSettings()
        quick = QuickAppend(self.log, http, LimitSettings(), OpenGate())  # type: ignore[arg-type]
        self.config = uvicorn.Config(
            self._app,
            http=connection_class(http, quick, bodies_bytes_max=1 << 20),
            lifespan="off",
            log_config=None,
            access_log=False,
        )
        self.config.load()
        self._peers: list[Peer] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.faults.append(context)
        )

    async def connect(self) -> Peer:
        made: list[Connection] = []

        def connection() -> Connection:
            one = self.config.http_protocol_class(self.config, self.state, {})
            made.append(one)
            return one

        ours, theirs = socket.socketpair()
        await asyncio.get_running_loop().connect_accepted_socket(connection, ours)
        peer = Peer(made[0], *await asyncio.open_connection(sock=theirs))
        self._peers.append(peer)
        return peer

    async def taken(self, *bodies: bytes) -> None:
        await until(lambda: self.log.bodies[-len(bodies) :] == list(bodies), f"{bodies} are taken")

    async def end(self) -> None:
        for peer in self._peers:
            peer.writer.transport.abort()
        for body in list(self.log.due):
            self.log.failed(body)
        await until(lambda: not self.state.connections, "every connection is forgotten")
        assert self.faults == []

    @staticmethod
    async def _app(scope: Any, receive: Any, send: Any) -> None:
        del scope
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    one = Server()
    yield one
    await one.end()


async def turns() -> None:
    """Whatever was sent has been received."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_connection_gets_the_answer_to_its_own_append(server: Server) -> None:
    peers = [await server.connect() for _ in range(3)]
    for _ in range(2):
        for number, peer in enumerate(peers):
            peer.writer.write(append(b"%d" % number))
            await server.taken(b"%d" % number)
        for number in (1, 2, 0):
            server.log.stored(b"%d" % number)
        for number, peer in enumerate(peers):
            assert await peer.offset() == number


async def test_connection_answers_in_order_what_was_sent_at_once(server: Server) -> None:
    peer = await server.connect()
    peer.writer.write(append(b"1"))
    await server.taken(b"1")
    for data in (append(b"2")[:10], append(b"2")[10:]):
        peer.writer.write(data)
        await turns()
    assert server.log.bodies == [b"1"]
    server.log.stored(b"1")
    assert await peer.offset() == 1
    await server.taken(b"1", b"2")
    peer.writer.write(GET)
    await turns()
    server.log.stored(b"2")
    assert await peer.offset() == 2
    assert (await peer.answer())[0] == 200
    peer.writer.write(append(b"3"))
    await server.taken(b"1", b"2", b"3")
    server.log.failed(b"3")
    assert (await peer.answer())[0] == 503
    peer.writer.write(append(b"4"))
    await server.taken(b"4")
    server.log.stored(b"4")
    assert await peer.offset() == 4


async def test_connection_refuses_what_is_wrong_behind_an_append_after_its_answer(
    server: Server,
) -> None:
    peer = await server.connect()
    peer.writer.write(append(b"1"))
    await server.taken(b"1")
    peer.writer.write(append(b"2").replace(HOST, HOST + b"\0"))
    await turns()
    server.log.stored(b"1")
    assert await peer.offset() == 1
    status, headers = await peer.answer()
    assert (status, headers["connection"]) == (400, "close")
    assert await peer.has_ended()
    assert server.log.bodies == [b"1"]


async def test_connection_of_a_client_that_has_left_keeps_nobody_from_his_answer(
    server: Server,
) -> None:
    gone, other = await server.connect(), await server.connect()
    gone.writer.write(append(b"1"))
    await server.taken(b"1")
    gone.writer.write(append(b"2"))
    other.writer.write(append(b"3"))
    await server.taken(b"1", b"3")
    await gone.leave()
    server.log.stored(b"1")
    server.log.stored(b"3")
    assert await other.offset() == 3
    # Nobody would be told of the second one.
    assert server.log.bodies == [b"1", b"3"]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_connection_that_shuts_down_answers_what_is_due(
    server: Server, is_stored: bool
) -> None:
    peer, gone, idle = await server.connect(), await server.connect(), await server.connect()
    peer.writer.write(append(b"1"))
    gone.writer.write(append(b"2"))
    await until(lambda: len(server.log.due) == 2)
    peer.writer.write(append(b"3"))
    await turns()
    for connection in list(server.state.connections):
        connection.shutdown()
    assert await idle.has_ended()
    await gone.leave()
    await turns()
    assert not peer.reader.at_eof()
    for body in (b"1", b"2"):
        (server.log.stored if is_stored else server.log.failed)(body)
    status, headers = await peer.answer()
    assert (status, headers["connection"]) == (204 if is_stored else 503, "close")
    assert await peer.has_ended()
    assert b"3" not in server.log.bodies


async def test_connection_whose_answer_is_due_is_not_idle(server: Server) -> None:
    peer = await server.connect()
    peer.writer.write(append(b"1"))
    await server.taken(b"1")
    now = asyncio.get_running_loop().time()
    for later_s in (3600, 7200):
        peer.connection.check_timeouts(now + later_s)
    await turns()
    server.log.stored(b"1")
    assert await peer.offset() == 1
    peer.connection.check_timeouts(now + 3600)
    assert await peer.has_ended()


async def test_connection_holds_little_while_an_answer_is_due(server: Server) -> None:
    peer = await server.connect()
    peer.writer.write(append(b"1"))
    await server.taken(b"1")
    data = append(b"2") * 40_000
    peer.writer.write(data)
    left: list[int] = []

    def has_settled() -> bool:
        left.append(peer.writer.transport.get_write_buffer_size())
        return len(left) > 20 and len(set(left[-20:])) == 1

    await until(has_settled, "the server reads on")
    # What is not in the client's own buffer is in the kernel's, or held.
    assert len(data) - left[-1] < 1_000_000 < len(data) / 2
    # That the client leaves is only seen when the connection is read again.
    peer.writer.transport.abort()
    server.log.stored(b"1")
    await until(lambda: not server.state.connections, "the connection is forgotten")
