"""Live reads: wait until a stream changes. One wake-up per group and stream, whoever listens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.streams.stream import Stream


async def wait_for_change(stream: Stream, waiter: asyncio.Future[bool], timeout_ms: int) -> bool:
    """Wait until the stream grows, closes or goes; False after ``timeout_ms``.

    The caller looks at the stream, then waits, with no other await in between: both happen in one
    turn of the event loop, so no change can slip through.
    """
    loop = asyncio.get_running_loop()
    stream.waiters.add(waiter)
    timer = loop.call_later(timeout_ms / 1000, _give_up, waiter)
    try:
        return await waiter
    finally:
        timer.cancel()
        stream.waiters.discard(waiter)


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
