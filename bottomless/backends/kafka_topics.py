"""kafka://: Kafka topics, with aiokafka (``pip install bottomless[kafka]``).

What is written goes to partition 0, so that its order is kept; all partitions are read. A position
names the next offset of each: ``0@17,1@4``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from bottomless.backends.base import Message, refuse_start, since_ms
from bottomless.backends.framing import JSON
from bottomless.errors import BottomlessError, InvalidRequest, NotAllowed, NotFound, Unavailable
from bottomless.positions import After, Newest, Since

try:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka import errors as kafka
except ImportError as missing:
    raise InvalidRequest(
        "kafka:// needs aiokafka", hint="pip install 'bottomless[kafka]'"
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from bottomless.backends.base import Sink, Source
    from bottomless.positions import Start

Answer = Any
"""What aiokafka gives back: it has no types."""

_PAGE: Final = 1000
_REQUEST_MS: Final = 10_000
# Its default of 1 MiB would refuse records that a server of ours takes; the broker has a limit too.
_REQUEST_BYTES: Final = 16 << 20


class KafkaBackend:
    """``kafka://host:port[,host:port…]/topic``; the topic may also come with the call."""

    def __init__(self, url: str) -> None:
        nodes, _, self._topic = url.removeprefix("kafka://").partition("/")
        if not nodes or "@" in nodes:
            raise InvalidRequest(
                f"{url!r} names no broker that can be asked",
                hint="Say kafka://HOST:9092/TOPIC; passwords are not supported.",
            )
        self.url = url
        self._nodes = [node if ":" in node else f"{node}:9092" for node in nodes.split(",")]

    def content_type(self, stream: str) -> str:
        """Kafka does not tell."""
        return JSON

    def source(self, stream: str, content_type: str) -> Source:
        """Reads the topic."""
        return KafkaSource(self._nodes, self._named(stream))

    async def sink(self, stream: str, content_type: str) -> Sink:
        """Appends to the topic."""
        return await KafkaSink.open(self._nodes, self._named(stream))

    async def close(self) -> None:
        """Sources and sinks have their own connections."""

    def _named(self, stream: str) -> str:
        if not (stream or self._topic):
            raise InvalidRequest("a topic is missing", hint="Say kafka://HOST:9092/TOPIC.")
        return stream or self._topic


class KafkaSource:
    """Reads all partitions of a topic, without a group: positions are the reader's own."""

    altered = 0

    def __init__(self, nodes: list[str], topic: str) -> None:
        self._nodes = nodes
        self._topic = topic
        self._start: Start = "beginning"
        self._consumer: Any = None
        self._next: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    @property
    def position(self) -> str:
        """The next offset of each partition."""
        return _text(self._next)

    async def begin(self, start: Start) -> None:
        """Anywhere."""
        if start not in ("beginning", "live") and not isinstance(start, After | Newest | Since):
            raise refuse_start(start, "a topic", "beginning, live, newest:N, a time or 0@17")
        await self.close()
        self._start = start

    async def read(self, wait_s: float, *, follow: bool) -> list[Message] | None:
        """The next records. Unless it follows, up to what was there when it began."""
        if self._consumer is None and not await self._open(follow=follow):
            await asyncio.sleep(min(wait_s, 0.5))
            return []
        if not follow and self._is_at_end():
            return None
        wait_ms = int((wait_s if follow else _REQUEST_MS / 1000) * 1000)
        answer = await _asked(self._consumer.getmany(timeout_ms=wait_ms, max_records=_PAGE))
        found: list[Message] = []
        for partition, rows in answer.items():
            for row in rows:
                if follow or row.offset < self._ends.get(partition.partition, 0):
                    self._next[row.partition] = row.offset + 1
                    found.append(_message(row, _text(self._next)))
        if not follow:
            await self._pass_gaps()
            return found or (None if self._is_at_end() else [])
        return found

    async def close(self) -> None:
        """End the connections."""
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.stop()

    async def _open(self, *, follow: bool) -> bool:
        """Connect and go to the start; False where there is no such topic yet."""
        consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=self._nodes,
            enable_auto_commit=False,
            auto_offset_reset="none",
            request_timeout_ms=_REQUEST_MS,
        )
        await _started(consumer)
        try:
            if self._topic not in await _asked(consumer.topics()):
                if not follow:
                    raise NotFound(f"there is no topic {self._topic!r} in Kafka")
                await consumer.stop()
                return False
            # Known only after the topic was asked for.
            numbers = consumer.partitions_for_topic(self._topic) or {0}
            partitions = [TopicPartition(self._topic, number) for number in sorted(numbers)]
            consumer.assign(partitions)
            ends = await _asked(consumer.end_offsets(partitions))
            self._ends = {place.partition: end for place, end in ends.items()}
            self._next = await self._places(consumer, partitions)
            for partition in partitions:
                consumer.seek(partition, self._next[partition.partition])
        except BaseException:
            await consumer.stop()
            raise
        self._consumer = consumer
        return True

    async def _places(self, consumer: Answer, partitions: list[Any]) -> dict[int, int]:
        """The first offset to read, of each partition."""
        firsts = await _asked(consumer.beginning_offsets(partitions))
        first = {place.partition: offset for place, offset in firsts.items()}
        match self._start:
            case "live":
                return dict(self._ends)
            case Newest(count):
                if len(first) > 1:
                    raise InvalidRequest(
                        f"{self._topic!r} has {len(first)} partitions, which have no common newest"
                    )
                return {0: max(first[0], self._ends[0] - count)}
            case Since(time):
                at_ms = since_ms(time)
                asked = dict.fromkeys(partitions, at_ms)
                found = await _asked(consumer.offsets_for_times(asked))
                ends = self._ends
                return {
                    place.partition: ends[place.partition] if mark is None else mark.offset
                    for place, mark in found.items()
                }
            case After(position):
                return first | _parsed(position, set(first))
            case _:
                return first

    def _is_at_end(self) -> bool:
        return all(self._next[number] >= end for number, end in self._ends.items())

    async def _pass_gaps(self) -> None:
        """Offsets without a record, such as marks of transactions, are passed over too."""
        for number in self._next:
            place = await _asked(self._consumer.position(TopicPartition(self._topic, number)))
            self._next[number] = max(self._next[number], min(place, self._ends[number]))


class KafkaSink:
    """Writes with an idempotent producer: what that one sends again is stored once."""

    def __init__(self, producer: Answer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._is_closed = False

    @classmethod
    async def open(cls, nodes: list[str], topic: str) -> KafkaSink:
        """Connect."""
        producer: Any = AIOKafkaProducer(
            bootstrap_servers=nodes,
            enable_idempotence=True,
            acks="all",
            linger_ms=1,
            max_batch_size=1 << 19,
            max_request_size=_REQUEST_BYTES,
            request_timeout_ms=_REQUEST_MS,
        )
        await _started(producer)
        return cls(producer, topic)

    async def write(self, parts: Sequence[bytes]) -> str | None:
        """In order, and return when the broker has all of them."""
        sent = [
            await _asked(self._producer.send(self._topic, bytes(part), partition=0))
            for part in parts
        ]
        marks = await _asked(asyncio.gather(*sent))
        return f"0@{marks[-1].offset + 1}"

    async def end(self) -> None:
        """Kafka has no mark for the end of a topic."""

    async def close(self) -> None:
        """End the connections. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            await self._producer.stop()


def _message(row: Answer, position: str) -> Message:
    data = row.value or b""
    return Message(
        data,
        data,
        f"{row.partition}@{row.offset}",
        position,
        key=row.topic,
        shard=row.partition,
        sequence=row.offset,
        at_ms=row.timestamp,
    )


def _text(places: dict[int, int]) -> str:
    return ",".join(f"{number}@{offset}" for number, offset in sorted(places.items()))


def _parsed(position: str, numbers: set[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for part in position.split(","):
        number, at, offset = part.partition("@")
        if not (at and number.isdecimal() and offset.isdecimal() and int(number) in numbers):
            raise InvalidRequest(
                f"{position!r} is no position in this topic", hint="They look like 0@17,1@4."
            )
        found[int(number)] = int(offset)
    return found


async def _started(client: Answer) -> None:
    try:
        await _asked(client.start())
    except BaseException:
        await client.stop()
        raise


async def _asked(work: Awaitable[Any]) -> Answer:
    """The answer, or what its refusal means."""
    try:
        return await work
    except (kafka.TopicAuthorizationFailedError, kafka.ClusterAuthorizationFailedError) as error:
        raise NotAllowed(f"Kafka: {error}") from error
    except (kafka.OffsetOutOfRangeError, kafka.NoOffsetForPartitionError) as error:
        raise InvalidRequest(f"Kafka has no such offset: {error}") from error
    except kafka.KafkaError as error:
        if error.retriable or isinstance(error, kafka.KafkaConnectionError):
            raise Unavailable(f"no answer from Kafka: {error}") from error
        raise BottomlessError(f"Kafka: {error}") from error
