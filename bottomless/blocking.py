"""The same client, producer and consumer without ``await``: calls run on the client's portal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from bottomless import connect_async
from bottomless.batches import FIRST, FULL, OVER, TURN
from bottomless.blocking_modes import Member, Resumable
from bottomless.client import JSON
from bottomless.portal import Portal
from bottomless.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from types import TracebackType

    from bottomless.client import AsyncClient, ListedStream, StreamInfo
    from bottomless.committed import Committed
    from bottomless.consumer import AsyncConsumer, Record
    from bottomless.errors import BottomlessError
    from bottomless.formats import Value
    from bottomless.group import GroupInfo
    from bottomless.positions import Start
    from bottomless.producer import AsyncProducer


class Client:
    """One server, or another backend; use it with ``with``. May be shared by threads."""

    def __init__(self, url: str, **options: Any) -> None:
        self._portal = Portal()
        try:
            self._client = self._portal.call(_make(url, options))
        except BaseException:
            self._portal.close()
            raise
        self.url = self._client.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.aclose()

    def aclose(self) -> None:
        """Give the connections back. Safe to call twice."""
        if not self._portal.loop.is_closed():
            self._portal.call(self._client.aclose())
            self._portal.close()

    def create(self, stream: str, content_type: str = JSON, **options: Any) -> bool:
        """Make a stream; False where it is there already."""
        return self._portal.call(self._client.create(stream, content_type, **options))

    def info(self, stream: str) -> StreamInfo:
        """Type, tail and whether it is closed."""
        return self._portal.call(self._client.info(stream))

    def streams(self, prefix: str = "", *, page: int = 1000) -> Iterator[ListedStream]:
        """All streams, or those whose names begin so."""
        rows = self._client.streams(prefix, page=page)
        while (row := self._portal.call(anext(rows, None))) is not None:
            yield row

    def append(self, stream: str, *values: Value, ack: str | None = None) -> str | None:
        """Store values, in one step and once."""
        return self._portal.call(self._client.append(stream, *values, ack=ack))

    def read(
        self, stream: str = "", start: Start = "beginning", *, limit: int | None = None
    ) -> list[Record]:
        """What is there now."""
        return self._portal.call(self._client.read(stream, start, limit=limit))

    def close(self, stream: str) -> None:
        """Close a stream."""
        self._portal.call(self._client.close(stream))

    def delete(self, stream: str) -> None:
        """Delete a stream."""
        self._portal.call(self._client.delete(stream))

    def settings(self, stream: str, **changes: Any) -> dict[str, Any]:
        """A stream's own settings, after these changes."""
        return self._portal.call(self._client.settings(stream, **changes))

    def producer(self, stream: str = "", **options: Any) -> Producer:
        """A producer; the options are those of ProducerOptions. Without a name it is of the stream
        that the address names.
        """
        return Producer(self._portal, self._portal.call(self._client.producer(stream, **options)))

    def consumer(
        self, stream: str = "", start: Start = "beginning", *, follow: bool = True, **options: Any
    ) -> Consumer:
        """A reader from a place on."""
        reader = self._client.consumer(stream, start, follow=follow, **options)
        return Consumer(self._portal, reader)

    def resumable(
        self, stream: str, name: str, start: Start = "beginning", **options: Any
    ) -> Resumable:
        """A reader that goes on where the last one of its name stopped."""
        return Resumable(self._portal, self._client.resumable(stream, name, start, **options))

    def committed(self, stream: str, name: str) -> Committed | None:
        """Where the next resumable consumer of that name would begin; None where none was."""
        return self._portal.call(self._client.committed(stream, name))

    def balanced(
        self, stream: str, group: str, start: Start = "beginning", **options: Any
    ) -> Member:
        """A member of a group that shares the records."""
        return Member(self._portal, self._client.balanced(stream, group, start, **options))

    def group_info(self, stream: str, group: str) -> GroupInfo:
        """How far a group is, and who works on what."""
        return self._portal.call(self._client.group_info(stream, group))


class Producer:
    """Takes values from any thread, sends batches in the background."""

    def __init__(self, portal: Portal, producer: AsyncProducer) -> None:
        self._portal = portal
        self._producer = producer
        self._encode = producer.format.encode
        self._add = producer.values.add
        self.id = producer.id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.call(self._producer.__aexit__(kind, error, trace))

    @property
    def delivered(self) -> int:
        """Values that are stored."""
        return self._producer.delivered

    @property
    def failed(self) -> int:
        """Values that are not, or of which it is not known."""
        return self._producer.failed

    @property
    def error(self) -> BottomlessError | None:
        """What ended the delivery."""
        return self._producer.error

    def append(self, value: Value) -> None:
        """Take a value. Waits only where the buffer is full."""
        producer = self._producer
        producer.check()
        if news := self._add(self._encode(value)):
            if news & (FIRST | FULL):
                self._portal.loop.call_soon_threadsafe(producer.kick, news)
            if news & OVER:
                self._portal.call(producer.wait_for_room())
            elif news & TURN:
                # Hands the interpreter over: a loop that appends gives it away every 5 ms only,
                # and the thread that sends needs it several times for each request.
                time.sleep(0)  # noqa: TID251

    def flush(self) -> None:
        """Return when everything taken so far is stored; raises where it is not."""
        self._portal.call(self._producer.flush())

    def close(self, *final: Value) -> None:
        """Store what is left and these last values, and close the stream."""
        self._portal.call(self._producer.close(*final))

    def detach(self) -> None:
        """Store what is left and stop; the stream stays open."""
        self._portal.call(self._producer.detach())

    def abort(self) -> None:
        """Stop at once."""
        self._portal.call(self._producer.abort())

    def restart(self) -> None:
        """Go on after an error, in a new epoch."""
        self._portal.call(self._producer.restart())


class Consumer(Reading["Record"]):
    """Iterate over it, or call `next`."""

    def __init__(self, portal: Portal, consumer: AsyncConsumer) -> None:
        super().__init__(portal, consumer)
        self._consumer = consumer

    def seek(self, time: datetime | str) -> None:
        """Go on with what was stored at that time or later."""
        self._portal.call(self._consumer.seek(time))

    def rewind(self, start: Start = "beginning") -> None:
        """Go on from there."""
        self._portal.call(self._consumer.rewind(start))


async def _make(url: str, options: dict[str, Any]) -> AsyncClient:
    return connect_async(url, **options)
