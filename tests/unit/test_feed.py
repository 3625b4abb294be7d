"""Live readers in one event loop, where a test owns every moment: clients that stand still, fail or
leave while others read, and what ends a response.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import TYPE_CHECKING, Any

import pytest

from api.asgi import WRITE_NOW, Message, Part
from api.auth.gate import OpenGate
from api.routes.streams import StreamDialect
from api.settings import HttpSettings
from engine import errors
from engine.settings import LimitSettings
from engine.types import StreamName
from tests.support.model import Lives, until

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_DATA = re.compile(rb"event: data\ndata:([^\n]*)\n\n")
SETTLED = b'"upToDate":true}\n\n'


class Revocable(OpenGate):
    """Remembers how to tell running reads that their token does not count any more."""

    def __init__(self) -> None:
        self.ends: list[Any] = []

    def watch(self, scope: Any, end: Any) -> AbstractContextManager[None]:
        self.ends.append(end)
        return super().watch(scope, end)


class Client:
    """One response, and a client that takes it, stands still, breaks or leaves."""

    def __init__(
        self,
        dialect: StreamDialect,
        stream: str = "s",
        query: str = "live=sse",
        *,
        events_max: int = 1 << 30,
    ) -> None:
        self.received = bytearray()
        self.events_max = events_max
        """It stands still after so many data events."""
        self.status = 0
        self.failure: Exception | None = None
        self.taking, self.gone = asyncio.Event(), asyncio.Event()
        self.taking.set()
        scope = {
            "method": "GET",
            "raw_path": f"/v1/stream/{stream}".encode(),
            "query_string": f"offset=-1&{query}".encode(),
            "headers": [],
            "extensions": {WRITE_NOW: {"send": self.write_now}},
        }
        self.response = asyncio.ensure_future(dialect(scope, self.receive, self.send))

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.taking.wait()
        self.status = message.get("status", self.status)
        if not self.gone.is_set():
            self.received += message.get("body", b"")
        if len(_DATA.findall(self.received)) == self.events_max:
            self.taking.clear()

    def write_now(self, part: Part) -> bool:
        if self.failure is not None:
            raise self.failure
        if self.taking.is_set():
            self.received += part.body
        return self.taking.is_set()

    @property
    def records(self) -> list[object]:
        """What it got, in that order."""
        return [record for data in _DATA.findall(self.received) for record in json.loads(data)]

    async def settle(self) -> None:
        """Until it waits at the tail."""
        await until(lambda: self.received.endswith(SETTLED), "a reader at the tail")

    async def end(self) -> None:
        """Until the response is over."""
        await asyncio.wait_for(self.response, 5)


def dialect_of(lives: Lives, gate: OpenGate | None = None, **http: int) -> StreamDialect:
    return StreamDialect(
        lives.log,
        HttpSettings(**http),
        LimitSettings(),
        gate=gate or OpenGate(),
        clock=lives.clock,
        rng=random.Random(1),
    )


async def fill(lives: Lives, *, is_committed: bool = False) -> None:
    """Records that are a chunk each."""
    await lives.create("s")
    for number in range(20):
        await lives.append("s", b'"%d%s"' % (number, b"x" * 1500))
    if is_committed:
        await lives.commit("s")


@pytest.mark.parametrize("seed", range(8))
async def test_feed_gives_every_record_once_whatever_happens(lives: Lives, seed: int):
    rng = random.Random(seed)
    dialect = dialect_of(lives)
    await lives.create("s")
    await lives.append("s", b'["first"]')
    clients = [Client(dialect)]
    records: list[object] = ["first"]
    for number in range(120):
        match rng.randrange(8):
            case 0:
                clients.append(Client(dialect))
            case 1:
                rng.choice(clients).taking.clear()
            case 2:
                rng.choice(clients).taking.set()
            case 3:
                await lives.commit("s")
            case 4:
                await asyncio.sleep(0)
            case _:
                more = [f"{number}.{index}" + "x" * rng.choice([0, 400]) for index in range(3)]
                records += more
                await lives.append("s", json.dumps(more).encode())
    for client in clients:
        client.taking.set()
    await lives.close("s")
    for client in clients:
        await client.end()
        assert client.records == records
        assert client.received.endswith(b'"streamClosed":true}\n\n')


async def test_feed_that_fails_takes_neither_the_others_nor_the_append_with_it(lives: Lives):
    await lives.create("s")
    clients = [Client(dialect_of(lives)) for _ in range(3)]
    for client in clients:
        await client.settle()
    clients[0].failure = MemoryError("no room for the events")
    await lives.append("s", b"[1]")
    await until(lambda: all(client.records == [1] for client in clients[1:]), "the others' record")
    with pytest.raises(MemoryError):
        await clients[0].end()
    await lives.append("s", b"[2]")
    await until(lambda: all(client.records == [1, 2] for client in clients[1:]), "the next one")
    assert clients[0].records == []


@pytest.mark.parametrize("is_committed", [False, True])
async def test_feed_that_is_behind_ends_with_the_server(lives: Lives, is_committed: bool):
    await fill(lives, is_committed=is_committed)
    client = Client(dialect_of(lives), events_max=2)
    await until(lambda: len(client.records) == 2, "two events")
    lives.log.release_followers()
    client.taking.set()
    await client.end()
    # One more may have been on its way.
    assert len(client.records) in (2, 3)


@pytest.mark.parametrize("how", ["stop", "delete", "delete a source"])
async def test_feed_that_waits_is_told_of_the_end(lives: Lives, how: str):
    await lives.create("s")
    await lives.append("s", b"[1]")
    clients = [Client(dialect_of(lives)) for _ in range(3)]
    for client in clients:
        await client.settle()
    if how == "stop":
        lives.log.release_followers()
    else:
        if how == "delete a source":
            await lives.fork("t", "s")
        await lives.log.delete(StreamName("s"))
    for client in clients:
        await client.end()
        assert client.records == [1]


async def test_feed_ends_when_it_is_old_however_much_comes(lives: Lives):
    await lives.create("s")
    client = Client(dialect_of(lives, sse_lifetime_ms=1000))
    await client.settle()
    records: list[object] = []
    while not client.response.done():
        assert len(records) < 100, "it does not end"
        await lives.append("s", b"[%d]" % len(records))
        records.append(len(records))
        await asyncio.sleep(0.05)
    await client.end()
    assert len(client.records) > 0
    assert client.records == records[: len(client.records)]


async def test_feed_gives_all_of_an_append_that_is_larger_than_a_chunk(lives: Lives):
    await lives.create("s")
    clients = [Client(dialect_of(lives)) for _ in range(2)]
    for client in clients:
        await client.settle()
    records = [f"{number}" + "x" * 600 for number in range(5)]
    await lives.append("s", json.dumps(records).encode())
    for client in clients:
        await until(lambda client=client: client.records == records, "all of it")
        await client.settle()
        # Who is told that it is up to date has everything.
        assert client.received.count(SETTLED) == 2


async def test_feed_that_takes_all_it_gets_leaves_turns_to_others(lives: Lives):
    await fill(lives)
    client = Client(dialect_of(lives))
    turns = 0
    while not client.received.endswith(SETTLED):
        turns += 1
        await asyncio.sleep(0)
    assert len(client.records) == 20
    assert turns >= 20


async def test_feed_that_stood_still_gets_what_came_meanwhile(lives: Lives):
    await lives.create("s")
    client = Client(dialect_of(lives))
    await client.settle()
    client.taking.clear()
    for number in range(3):
        await lives.append("s", b"[%d]" % number)
        await asyncio.sleep(0)
    assert client.records == []
    # Nothing comes any more that would wake it.
    client.taking.set()
    await until(lambda: client.records == [0, 1, 2], "what it missed")


async def test_feed_mixes_up_neither_streams_nor_cursors(lives: Lives):
    dialect = dialect_of(lives)
    names, cursors = ("s", "t"), (1, 99_999_999)
    for name in names:
        await lives.create(name)
    clients = [
        (name, cursor, Client(dialect, name, f"live=sse&cursor={cursor}"))
        for cursor in cursors
        for name in names
    ]
    for _, _, client in clients:
        await client.settle()
    # One group: the streams' offsets are the same.
    await asyncio.gather(*[lives.append(name, json.dumps([name]).encode()) for name in names])
    for name, cursor, client in clients:
        await until(lambda client=client: client.received.count(SETTLED) == 2)
        assert client.records == [name]
        last = int(re.findall(rb'"streamCursor":"(\d+)"', client.received)[-1])
        assert (last > cursors[1]) == (cursor == cursors[1])


async def test_feed_that_is_behind_ends_when_it_is_old(lives: Lives):
    await fill(lives)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    client = Client(dialect_of(lives, sse_lifetime_ms=1000), events_max=2)
    await until(lambda: loop.time() >= begun_s + 1.1, "the end of its life")
    client.taking.set()
    await client.end()
    assert len(client.records) == 3


@pytest.mark.parametrize("is_behind", [False, True])
async def test_feed_ends_with_the_token(lives: Lives, is_behind: bool):
    gate = Revocable()
    await lives.create("s")
    await lives.append("s", b"[1]")
    client = Client(dialect_of(lives, gate))
    await client.settle()
    if is_behind:
        client.taking.clear()
        await lives.append("s", b"[2]")
        await asyncio.sleep(0)
    for end in gate.ends:
        end()
    await lives.append("s", b"[3]")
    client.taking.set()
    await client.end()
    assert 3 not in client.records


@pytest.mark.parametrize("how", ["leaves", "leaves stuck", "is cut"])
async def test_feed_leaves_nothing_behind(lives: Lives, how: str):
    await lives.create("s", ttl_seconds=5)
    client = Client(dialect_of(lives))
    await client.settle()
    lives.clock.advance(60_000)
    # Who waits keeps the stream alive.
    lives.log.head(StreamName("s"))
    if how == "leaves stuck":
        client.taking.clear()
        await lives.append("s", b"[1]")
        await asyncio.sleep(0)
    client.gone.set()
    client.taking.set()
    if how == "is cut":
        client.response.cancel()
    await asyncio.wait([client.response], timeout=5)
    assert client.response.done()
    lives.clock.advance(4000)
    lives.log.head(StreamName("s"))
    lives.clock.advance(1000)
    with pytest.raises(errors.StreamNotFound):
        lives.log.head(StreamName("s"))


async def test_long_poll_waits_for_nothing_once_its_client_has_left(lives: Lives):
    await lives.create("s")
    await lives.restart(without_wal=True)
    await lives.content("s")
    # Time to look for what jobs have done: the client leaves while that is read from the disk.
    lives.clock.advance(1000)
    client = Client(dialect_of(lives), query="live=long-poll")
    client.gone.set()
    await client.end()
    assert client.status == 0


async def test_feed_ends_where_its_stream_is_replaced(lives: Lives):
    await lives.create("s")
    dialect = dialect_of(lives)
    old = Client(dialect)
    await old.settle()
    await asyncio.gather(lives.log.delete(StreamName("s")), lives.create("s"))
    await lives.append("s", b"[2]")
    await old.end()
    assert old.records == []
    new = Client(dialect)
    await new.settle()
    assert new.records == [2]
    new.gone.set()
    await new.end()


async def test_feed_of_a_fork_goes_through_what_it_inherits(lives: Lives):
    await lives.create("source")
    for number in range(10):
        await lives.append("source", b'["%d%s"]' % (number, b"x" * 600))
    await lives.commit("source")
    await lives.append("source", b"[10]")
    await lives.fork("s", "source")
    client = Client(dialect_of(lives))
    await client.settle()
    await lives.append("source", b"[11]")
    await lives.append("s", b"[12]")
    await lives.log.delete(StreamName("source"))
    await lives.append("s", b"[13]")
    await until(lambda: client.records[-2:] == [12, 13], "the fork's own records")
    assert client.records[10:] == [10, 12, 13]
    assert len(client.records) == 13
    client.gone.set()
    await client.end()
