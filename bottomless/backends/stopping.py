"""Ctrl-C and SIGTERM as a wish to stop, so that what was taken can be stored first."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


class Stop(asyncio.Event):
    """Set when we are told to stop."""

    code = 0
    """How to end where everything is done that was to be done: Ctrl-C has a code of its own."""


@contextlib.asynccontextmanager
async def stop_signals() -> AsyncIterator[Stop]:
    """An event that is set by the first signal; the second one ends the program as usual."""
    loop = asyncio.get_running_loop()
    stopped = Stop()

    def stop(number: int) -> None:
        stopped.code = 130 if number == signal.SIGINT else 0
        stopped.set()
        restore()

    def restore() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        yield stopped
    finally:
        restore()


async def run_until(stopped: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Do it until it is done (True), or until the event is set (False)."""
    task = asyncio.ensure_future(work)
    waiter = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
        is_done = task.done()
        task.cancel()
        await asyncio.gather(task, waiter, return_exceptions=True)
    if is_done:
        # Raises what went wrong.
        task.result()
    return is_done
