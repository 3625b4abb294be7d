"""Live reads: told when a stream changes. One wake-up per group and stream, whoever listens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from engine.read.chunk import RecordChunk

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.streams.stream import Stream
    from engine.types import Offset, ReadResult, RecordsResult, StreamInfo


class Source(Protocol):
    """What a follower reads from; the Log is one."""

    is_stopping: bool

    def touch(self, stream: Stream) -> None:
        """An access."""

    async def read_stream(self, stream: Stream, position: Offset) -> ReadResult:
        """One chunk of this incarnation."""

    def read_stream_now(self, stream: Stream, position: Offset) -> ReadResult | None:
        """The same, if that needs no file; None if it may need one."""

    async def read_stream_records(self, stream: Stream, chunk: RecordChunk) -> RecordsResult:
        """Single records of this incarnation."""


class Follower:
    """One live reader of one incarnation of a stream."""

    def __init__(self, log: Source, stream: Stream) -> None:
        self._log = log
        self._stream = stream
        self._waiter: asyncio.Future[bool] | None = None
        self._is_interrupted = False

    @property
    def is_gone(self) -> bool:
        """The stream was deleted or replaced meanwhile."""
        return self._stream.gone or self._stream.soft_deleted

    @property
    def info(self) -> StreamInfo:
        """The stream as it is now."""
        return self._stream.info()

    async def read(self, position: Offset) -> ReadResult:
        """One chunk of records after ``position``."""
        self._log.touch(self._stream)
        return await self._log.read_stream(self._stream, position)

    def read_now(self, position: Offset) -> ReadResult | None:
        """What `read` says, if that needs no file; None if it may need one."""
        self._log.touch(self._stream)
        return self._log.read_stream_now(self._stream, position)

    async def read_records(
        self, position: Offset, *, count_max: int, bytes_max: int
    ) -> RecordsResult:
        """Single records after ``position``, each with its offset."""
        self._log.touch(self._stream)
        return await self._log.read_stream_records(
            self._stream, RecordChunk(position, position, count_max, bytes_max)
        )

    async def wait(self, timeout_ms: int) -> bool:
        """Wait for the next change; False when the time is up, at a stop, or if interrupted.

        A running wait keeps a sliding TTL alive.
        """
        if self._log.is_stopping or self.is_gone or self._is_interrupted:
            return False
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            return await wait_for_change(self._stream, self._waiter, timeout_ms)
        finally:
            self._waiter = None
            self._log.touch(self._stream)

    def interrupt(self) -> None:
        """End the wait that runs now, and begin no other: it may be told while it reads."""
        self._is_interrupted = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)

    def listen(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` after each change, once per group, until `unlisten`.

        For who serves many readers: a wait costs a future, a timer and a task's turn each time.
        """
        self._stream.audience.listen(tell)

    def unlisten(self, tell: Callable[[], None]) -> None:
        """Do not call it any more."""
        self._stream.audience.unlisten(tell)
        self._log.touch(self._stream)


async def wait_for_change(stream: Stream, waiter: asyncio.Future[bool], timeout_ms: int) -> bool:
    """Wait until the stream grows, closes or goes; False after ``timeout_ms``.

    The caller looks at the stream, then waits, with no other await in between: both happen in one
    turn of the event loop, so no change can slip through.
    """
    loop = asyncio.get_running_loop()
    stream.audience.waiters.add(waiter)
    timer = loop.call_later(timeout_ms / 1000, _give_up, waiter)
    try:
        return await waiter
    finally:
        timer.cancel()
        stream.audience.waiters.discard(waiter)


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
