"""AsyncProducer: takes values, sends batches, knows when they are stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from bottomless.batches import FIRST, FULL, OVER, TURN, Accumulator, Batch
from bottomless.delivery import Delivered, epoch_of_now
from bottomless.errors import BottomlessError, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from bottomless.delivery import Deliverer, ProducerOptions
    from bottomless.formats import Format, Value


class AsyncProducer:
    """Use it with ``async with``: at the end that delivers what is left."""

    def __init__(
        self,
        stream: str,
        format_: Format,
        options: ProducerOptions,
        deliver: Callable[[Callable[[Batch], None]], Deliverer],
    ) -> None:
        self.stream = stream
        self.id = options.id
        self.format = format_
        self._options = options
        self._delivery = deliver(self._ended)
        records = options.batch_records if self._delivery.takes_many else 1
        self.values = Accumulator(
            batch_bytes=options.batch_bytes,
            batch_records=records,
            buffer_bytes=options.buffer_bytes,
        )
        self._loop = asyncio.get_running_loop()
        self._progress = asyncio.Event()
        self._linger: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self.delivered = 0
        """Values that are stored."""
        self.failed = 0
        """Values that are not, or of which it is not known."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.detach()
        else:
            await self.abort()

    @property
    def epoch(self) -> int:
        """The epoch of what is sent now."""
        return self._delivery.epoch

    @property
    def error(self) -> BottomlessError | None:
        """What ended the delivery; `restart` begins it anew."""
        return self._delivery.error

    async def append(self, value: Value) -> None:
        """Take a value. Waits only where the buffer is full; it is sent in the background."""
        await self.append_encoded(self.format.encode(value))

    async def append_encoded(self, data: bytes) -> None:
        """Take a value whose bytes are of the stream's format already."""
        self.check()
        if news := self.values.add(data):
            if news & (FIRST | FULL):
                self.kick(news)
            if news & OVER:
                await self.wait_for_room()
            elif news & TURN:
                # Else a loop that appends would keep the event loop until the buffer is full.
                await asyncio.sleep(0)

    async def flush(self) -> None:
        """Return when everything taken so far is stored; raises where it is not."""
        self.values.cut()
        self._pump()
        while not self._is_drained():
            self._progress.clear()
            await self._progress.wait()
        if self.error is not None:
            raise self.error

    async def close(self, *final: Value) -> None:
        """Store what is left and these last values, and close the stream, in one step with them."""
        await self.flush()
        self.check()
        parts = [self.format.encode(value) for value in final]
        if parts:
            if len(parts) > 1 and not self._delivery.takes_many:
                raise InvalidRequest("a stream of this type ends with one value")
            size = sum(map(len, parts))
            batch = Batch(parts, size, number=-1)
            self.values.bytes += size
            self._delivery.send(batch, closes=True)
            await self.flush()
        else:
            await self._delivery.close_stream()
        self._is_stopped = True
        await self._delivery.finish()

    async def detach(self) -> None:
        """Store what is left and stop; the stream stays open."""
        try:
            await self.flush()
        finally:
            self._is_stopped = True
            self._disarm()
            await self._delivery.finish()

    async def abort(self) -> None:
        """Stop at once; what is not stored by now may be, or not."""
        self._is_stopped = True
        self._disarm()
        self.failed += self.values.clear()
        await self._delivery.cancel()
        await self._delivery.finish()

    async def restart(self) -> None:
        """Go on after an error, in a new epoch. What failed was told and is not sent again."""
        while not self._delivery.is_idle:
            self._progress.clear()
            await self._progress.wait()
        self._delivery.begin_anew(max(epoch_of_now(), self.epoch + 1))
        self._is_stopped = False

    def check(self) -> None:
        """Raises where nothing is taken any more."""
        # For every value: no property on the way.
        if (error := self._delivery.error) is not None:
            raise error
        if self._is_stopped:
            raise InvalidRequest("this producer was closed")

    async def wait_for_room(self) -> None:
        """Return when the buffer has room again, or the delivery has ended."""
        self._pump()
        while self.values.is_over and self.error is None:
            self._progress.clear()
            await self._progress.wait()

    def kick(self, news: int) -> None:
        """On the event loop: there is a first value, or a full batch."""
        if news & FULL:
            self._pump()
        elif self._linger is None:
            self._linger = self._loop.call_later(self._options.linger_ms / 1000, self._lingered)

    def _lingered(self) -> None:
        self._linger = None
        self.values.cut()
        self._pump()

    def _disarm(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _pump(self) -> None:
        while self._delivery.has_room and (batch := self.values.take()) is not None:
            self._delivery.send(batch)

    def _ended(self, batch: Batch) -> None:
        self.values.release(batch)
        if batch.error is None:
            self.delivered += batch.count
        else:
            self.failed += batch.count
            if self.error is not None:
                self.failed += self.values.clear()
        if self._options.on_delivered is not None:
            self._options.on_delivered(Delivered(batch.count, batch.offset, batch.error))
        self._loop.call_soon(self._pump)
        self._progress.set()

    def _is_drained(self) -> bool:
        if not self._delivery.is_idle:
            return False
        return self.error is not None or not self.values.bytes
