"""Batches of a producer on their way to a sink: one after the other, so their order is kept."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from bottomless.errors import BottomlessError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from bottomless.backends.base import Sink
    from bottomless.backoff import Retry
    from bottomless.batches import Batch
    from bottomless.delivery import ProducerOptions


class SinkDelivery:
    """The Deliverer of every backend but a server."""

    takes_many = True

    def __init__(
        self, sink: Sink, options: ProducerOptions, retry: Retry, done: Callable[[Batch], None]
    ) -> None:
        self._sink = sink
        self._in_flight = options.in_flight
        self._retries = options.mode != "fire-and-forget"
        self._retry = retry
        self._done = done
        self._queue: deque[tuple[Batch, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.epoch = options.epoch
        self.error: BottomlessError | None = None

    @property
    def has_room(self) -> bool:
        """Whether one more batch may go."""
        return self.error is None and len(self._queue) < self._in_flight

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way."""
        return not self._queue

    def send(self, batch: Batch, *, closes: bool = False) -> None:
        """Write it behind those before it; ``done`` is told how it ended."""
        self._queue.append((batch, closes))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="batches")

    def begin_anew(self, epoch: int) -> None:
        """After a failure; what had failed is not written again."""
        assert self.is_idle
        self.epoch, self.error = epoch, None

    async def close_stream(self) -> None:
        """Tell readers that nothing more comes."""
        await self._sink.end()

    async def cancel(self) -> None:
        """Give up what is on its way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def finish(self) -> None:
        """Make it durable and close."""
        await self._sink.close()

    async def _run(self) -> None:
        try:
            while self._queue:
                batch, closes = self._queue[0]
                batch.error = Unavailable("the producer was stopped before this was delivered")
                batch.error = await self._deliver(batch, closes=closes)
                self._queue.popleft()
                self._done(batch)
        finally:
            self._task = None
            if self._queue and self.error is None:
                # Cancelled, or something unexpected: nothing may look as if it was stored.
                self.error = Unavailable("the delivery has ended before everything was stored")
            while self._queue:
                batch, _ = self._queue.popleft()
                batch.error = Unavailable("the producer was stopped before this was delivered")
                self._done(batch)

    async def _deliver(self, batch: Batch, *, closes: bool) -> BottomlessError | None:
        if self.error is not None:
            return self.error
        backoff = self._retry.begin()
        while True:
            try:
                batch.offset = await self._sink.write(batch.parts)
                if closes:
                    await self._sink.end()
            except Unavailable as error:
                if not self._retries:
                    return error
                try:
                    await backoff.pause(error)
                except Unavailable:
                    self.error = error
                    return error
            except BottomlessError as error:
                self.error = error
                return error
            else:
                return None
