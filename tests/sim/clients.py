"""The clients of a simulated server: what they send, and what they make of the answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine import errors
from engine.types import (
    Ack,
    AppendRequest,
    CreateRequest,
    ForkRequest,
    Offset,
    ProducerStamp,
    StreamName,
)
from tests.sim import jobs
from tests.sim.oracle import (
    Attempt,
    Fate,
    Incarnation,
    Producer,
    Seen,
    with_stream,
    without_stream,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from engine.log import Log
    from engine.types import AppendResult
    from tests.sim.schedule import Schedule
    from tests.sim.storage import SimStorage

JSON = "application/json"
TYPES = [JSON, JSON, "text/plain", "application/octet-stream"]
NAMES = ["a", "b/c", "d"]
PAUSES_S = [0.0, 0.0, 0.001, 0.02, 0.5, 1.5]


class Clients:
    """Everybody who uses one life of the server."""

    def __init__(self, log: Log, schedule: Schedule, beside: SimStorage) -> None:
        self.log = log
        self._beside = beside
        """The disk as another process has it."""
        self.oracle = schedule.oracle
        self.rng = schedule.rng
        self.clock = schedule.clock
        self._trace = schedule.trace
        self._temper = schedule.temper
        self._count = 0
        self._creating: set[str] = set()
        """Names that a create is on its way for: nobody else may meet the new stream."""

    async def work(self) -> None:
        """All of them at the same time."""
        draw = self.rng.randint
        appends, changes, reads = draw(1, 8), draw(1, 5), draw(0, 3)
        writers = [self.appender(f"p{number}", appends) for number in range(draw(1, 3))]
        others = [self.changer(changes), self.reader(reads)]
        if self.rng.random() < 0.3:
            others.append(jobs.work(self, self._beside, draw(1, 3)))
        await asyncio.gather(*writers, *others)

    async def _pause(self) -> None:
        await asyncio.sleep(self.rng.choice(PAUSES_S))

    def _note(self, what: str, stream: str, result: object) -> None:
        name = type(result).__name__ if isinstance(result, Exception) else str(result)
        self._trace.note(what, f"{stream} {name}")

    def pick(self) -> Incarnation | None:
        """A stream to use; not one of which it is not known whether it exists."""
        if len(self.oracle.possible) > 1:
            return None
        names = [name for name, (_, soft) in self.oracle.state.items() if not soft]
        names = [name for name in names if name not in self._creating]
        return self.oracle.state[self.rng.choice(names)][0] if names else None

    # Appends.

    async def appender(self, producer_id: str, count: int) -> None:
        """Plain appends, and those of one producer that repeats what was not answered."""
        for _ in range(count):
            await self._pause()
            stream = self.pick()
            if stream is None:
                continue
            draw = self.rng.random()
            if draw < 0.45:
                await self._append(stream, producer_id)
            elif draw < 0.9:
                await self._produce(stream, producer_id)
            else:
                await self._probe(stream, producer_id)

    async def _append(self, stream: Incarnation, client: str) -> None:
        closes = self.rng.random() < 0.03
        attempt = self.oracle.begin(stream, self._records(stream, client), closes=closes)
        was_closed = stream.is_closed
        work = self._send(stream, attempt, None)
        if self.rng.random() < 0.05:
            work = asyncio.wait_for(work, self.rng.choice([0.0001, 0.002]))
        try:
            result = await work
        except TimeoutError:
            return
        except errors.BottomlessError as error:
            self._refused(stream, attempt, error)
            return
        self.oracle.require(not was_closed, stream, "a closed stream took an append")
        self.oracle.acknowledge(stream, attempt, result.tail)

    async def _produce(self, stream: Incarnation, producer_id: str) -> None:
        producer = stream.producers.setdefault(producer_id, Producer())
        is_again = producer.open is not None
        if producer.open is None:
            if producer.seq >= 0 and self.rng.random() < 0.1:
                producer.epoch, producer.seq = producer.epoch + 1, -1
            producer.open = self.oracle.begin(stream, self._records(stream, producer_id))
        attempt = producer.open
        stamp = ProducerStamp(producer_id, producer.epoch, producer.seq + 1)
        was_there = attempt.is_placed
        try:
            result = await self._send(stream, attempt, stamp)
        except errors.StreamClosed as error:
            self._may(stream, error)
            if not is_again:
                attempt.fate, producer.open = Fate.REFUSED, None
            return
        except errors.BottomlessError as error:
            self._may(stream, error)
            return
        self.oracle.require(is_again or not result.duplicate, stream, "a first append is a repeat")
        self.oracle.require(result.duplicate or not was_there, stream, "a repeat was stored again")
        self.oracle.acknowledge(stream, attempt, None if result.duplicate else result.tail)
        producer.seq, producer.open = producer.seq + 1, None

    async def _probe(self, stream: Incarnation, producer_id: str) -> None:
        """What a producer must be told that repeats, skips or is outdated (I5)."""
        producer = stream.producers.get(producer_id)
        if producer is None or producer.open is not None or producer.seq < 0:
            return
        what = self.rng.choice(["repeat", "gap", "old"])
        epoch, seq = producer.epoch, producer.seq
        expected: type[Exception] | None = None
        if what == "gap":
            seq, expected = seq + 2, errors.SequenceGap
        elif what == "old":
            epoch, seq, expected = epoch - 1, 0, errors.StaleEpoch
            if epoch < 0:
                return
        stamp = ProducerStamp(producer_id, epoch, seq)
        request = AppendRequest(stream.content_type, b'"probe"', producer=stamp)
        try:
            result = await self.log.append(StreamName(stream.name), request)
        except errors.BottomlessError as error:
            self._note(what, stream.name, error)
            if type(error) is not expected:
                self._may(stream, error)
            return
        self._note(what, stream.name, result)
        if not stream.is_leaving:
            is_repeat = expected is None and result.duplicate
            self.oracle.require(is_repeat, stream, f"a {what} was stored")

    async def _send(
        self, stream: Incarnation, attempt: Attempt, stamp: ProducerStamp | None
    ) -> AppendResult:
        ack = Ack.TABLE if self.rng.random() < self._temper.table_acks else None
        separator = b"," if stream.content_type == JSON else b""
        body = separator.join(attempt.records)
        if stream.content_type == JSON:
            body = b"[" + body + b"]"
        request = AppendRequest(stream.content_type, body, attempt.closes, stamp, ack=ack)
        try:
            result = await self.log.append(StreamName(stream.name), request)
        except errors.BottomlessError as error:
            self._note("append", stream.name, error)
            attempt.may_stay = attempt.may_stay or ack is Ack.TABLE
            raise
        self._note("append", stream.name, result.tail)
        return result

    def _refused(self, stream: Incarnation, attempt: Attempt, error: Exception) -> None:
        self._may(stream, error)
        is_certain = isinstance(error, errors.Conflict) or self.log.is_ready
        if is_certain and not attempt.may_stay:
            attempt.fate = Fate.REFUSED

    def _may(self, stream: Incarnation, error: Exception) -> None:
        """Whether the server may answer so."""
        if isinstance(error, errors.StreamClosed):
            is_fine = stream.may_be_closed
        elif isinstance(error, errors.NotFound | errors.Gone):
            is_fine = stream.is_leaving
        else:
            is_fine = isinstance(error, errors.Unavailable | errors.CommitUnknown)
        self.oracle.require(is_fine, stream, f"the answer was {error!r}")

    def _records(self, stream: Incarnation, client: str) -> tuple[bytes, ...]:
        count = self.rng.choice([1, 1, 1, 2, 5]) if stream.content_type == JSON else 1
        found = []
        for index in range(count):
            pad = "x" * self.rng.choice([0, 0, 20, 300, 300, 1500])
            self._count += 1
            text = f"{client}/{self.oracle.tick()}/{index}/{pad}"
            found.append(f'"{text}"'.encode() if stream.content_type == JSON else text.encode())
        return tuple(found)

    # Reads.

    async def reader(self, count: int) -> None:
        """Reads from anywhere; what it has seen once stays."""
        for _ in range(count):
            await self._pause()
            stream = self.pick()
            if stream is not None and not stream.is_leaving:
                start = 0
                if stream.seen and self.rng.random() < 0.5:
                    start = self.rng.choice(stream.seen)[0]
                await self.look(stream, start)

    async def look(self, stream: Incarnation, start: int = 0) -> bool:
        """Read all of it and check that; False where the server could not answer."""
        since, floor = self.oracle.tick(), len(stream.seen)
        try:
            observed = await self._read(stream, start)
            info = self.log.head(StreamName(stream.name))
        except errors.OffsetTrimmed as error:
            self.oracle.require(max(stream.trims) > start, stream, f"nobody trimmed: {error!r}")
            return True
        except errors.BottomlessError as error:
            self._may(stream, error)
            return False
        self._note("read", stream.name, len(observed))
        if stream.is_leaving or info.id != stream.id:
            return True
        self.oracle.verify(stream, start, observed, since=since, floor=floor)
        self.oracle.check_tail(stream, info.tail, is_closed=info.closed)
        return True

    async def _read(self, stream: Incarnation, start: int) -> Seen:
        name, position, found = StreamName(stream.name), Offset(start), []
        while True:
            page = await self.log.read_records(name, position, count_max=20, bytes_max=4000)
            found += [(int(offset), bytes(record)) for offset, record in page.records]
            if not page.records:
                return found
            position = page.records[-1][0]

    # Creates, deletes and settings: one after the other, so that at most one is ever unsure.

    async def changer(self, count: int) -> None:
        """One client that makes and removes streams, closes them, and sets their clock wrong."""
        for _ in range(count):
            await self._pause()
            if len(self.oracle.possible) > 1:
                return
            state = self.oracle.state
            name = self.rng.choice(NAMES)
            if name not in state:
                await self._create(name)
            elif not state[name][1]:
                await self._change(state[name][0])

    async def _change(self, stream: Incarnation) -> None:
        draw = self.rng.random()
        if draw < 0.35:
            await self._delete(stream)
        elif draw < 0.5:
            await self._close(stream)
        elif draw < 0.65:
            await self._set(stream)
        elif draw < 0.8:
            self.clock.jump(self.rng.choice([-3_600_000, -5, 5, 3_600_000, 86_400_000]))

    async def _create(self, name: str) -> None:
        source = self.pick()
        stream = Incarnation(name, self.rng.choice(TYPES))
        request = CreateRequest(content_type=stream.content_type)
        is_fork = source is not None and source.seen and max(source.trims) == 0
        if is_fork and self.rng.random() < 0.4:
            assert source is not None
            offset = self.rng.choice(source.seen)[0]
            stream = Incarnation(name, source.content_type, source, offset)
            stream.seen = [item for item in source.seen if item[0] <= offset]
            stream.last_offset = stream.base = offset
            request = CreateRequest(fork=ForkRequest(StreamName(source.name), Offset(offset)))
        before = self.oracle.state
        after = with_stream(before, stream)
        self._creating.add(name)
        created = await self._answered(
            [before, after], name, "create", self.log.create(StreamName(name), request)
        )
        self._creating.discard(name)
        if created is not None:
            assert not isinstance(created, str)
            info = self.log.head(StreamName(name))
            stream.id = info.id
            self.oracle.require(created.created, stream, "a new stream was there already")
            if stream.source is None:
                self.oracle.require(
                    created.tail > self.oracle.highest.get(name, 0), stream, "offsets come again"
                )
                stream.base = created.tail
            else:
                self.oracle.require(created.tail == stream.base, stream, "it forked elsewhere")
            stream.tail = max(stream.tail, created.tail)

    async def _delete(self, stream: Incarnation) -> None:
        before = self.oracle.state
        after = without_stream(before, stream.name)
        self.oracle.note_gone()
        stream.is_leaving = True
        name = StreamName(stream.name)
        deleted = await self._answered([before, after], name, "delete", self._deleted(name))
        if deleted is None and self.oracle.possible == [before]:
            stream.is_leaving = False
        if deleted is not None:
            self.oracle.note_gone()

    async def _deleted(self, name: StreamName) -> str:
        await self.log.delete(name)
        return "done"

    async def _answered(self, states: list, name: str, what: str, work: Awaitable) -> object:
        """The result, with what exists then; None where it failed."""
        before, after = states
        self.oracle.possible = [before, after]
        try:
            result = await work
        except errors.BottomlessError as error:
            self._note(what, name, error)
            is_fine = isinstance(error, errors.Unavailable | errors.CommitUnknown)
            self.oracle.require(is_fine, name, f"{what} was answered with {error!r}")
            if self.log.is_ready:
                self.oracle.possible = [before]
            return None
        self._note(what, name, "done")
        self.oracle.possible = [after]
        self.oracle.checked += 1
        return result

    async def _close(self, stream: Incarnation) -> None:
        attempt = self.oracle.begin(stream, (), closes=True)
        request = AppendRequest(None, b"", close=True)
        try:
            result = await self.log.append(StreamName(stream.name), request)
        except errors.BottomlessError as error:
            self._note("close", stream.name, error)
            self._refused(stream, attempt, error)
            return
        self._note("close", stream.name, result.tail)
        self.oracle.acknowledge(stream, attempt, None)

    async def _set(self, stream: Incarnation) -> None:
        settings = {"commit": {"interval_ms": self.rng.choice([10, 500, 5000])}}
        before = stream.settings
        stream.settings = [*before, settings]
        try:
            await self.log.change_settings(StreamName(stream.name), settings)
        except errors.BottomlessError as error:
            self._note("settings", stream.name, error)
            self._may(stream, error)
            return
        self._note("settings", stream.name, "done")
        stream.settings = [settings]
        self.oracle.checked += 1
