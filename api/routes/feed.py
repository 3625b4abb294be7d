"""One SSE reader: catches up in its task, and is then written to by whoever tells of a change.

While it waits at the tail a new group costs it no turn of its own: the events are rendered once for
all readers at that position, and written where the client takes what it is sent. Everything else
(a client that is behind, files to read, the end) wakes the task.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from api.asgi import WRITE_NOW, Part
from api.sse import render_control, render_data

if TYPE_CHECKING:
    from api.asgi import Exchange
    from api.routes.live import Client
    from api.routes.streams import StreamDialect
    from engine import Follower, Offset, ReadResult


class Events:
    """The events that were rendered last: readers at the same position get the same bytes."""

    def __init__(self) -> None:
        self._result: ReadResult | None = None
        self._cursor = ""
        self._data = b""
        self._part = Part(b"")

    def render(self, result: ReadResult, cursor: str) -> Part:
        """The data event and the control event after it."""
        if result is not self._result:
            self._result, self._data, self._cursor = result, render_data(result), ""
        if cursor != self._cursor:
            control = render_control(result.end, cursor=cursor, up_to_date=True, closed=False)
            self._part, self._cursor = Part(self._data + control), cursor
        return self._part


class Feed:
    """Sends events to one reader until the stream, the client or the response ends."""

    def __init__(
        self,
        dialect: StreamDialect,
        follower: Follower,
        exchange: Exchange,
        cursor: str | None,
    ) -> None:
        self._dialect = dialect
        self._follower = follower
        self._send = exchange.send
        self._write_now = exchange.scope["extensions"][WRITE_NOW]["send"]
        self._cursor = cursor
        self._loop = loop = asyncio.get_running_loop()
        self._ends_at = loop.time() + dialect.http.sse_lifetime_ms / 1000
        self._sent_at = 0.0
        self._position: Offset
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def interrupt(self) -> None:
        """End the wait that runs now, if any."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    async def run(self, result: ReadResult, peer: Client) -> None:
        """Send what was read, and then everything that comes."""
        self._follower.listen(self._push)
        control_is_due = True
        try:
            while await self._catch_up(result, peer, control_is_due=control_is_due):
                # No await since the last read: no change can slip through.
                control_is_due = not await self._wait()
                result = await self._follower.read(self._position)
        finally:
            self._follower.unlisten(self._push)

    def _is_over(self, peer: Client) -> bool:
        """However much is left: the reader goes on from there with another response."""
        is_unwanted = peer.is_gone or peer.is_refused or self._follower.is_gone
        return is_unwanted or self._dialect.log.is_stopping or self._loop.time() >= self._ends_at

    async def _catch_up(self, result: ReadResult, peer: Client, *, control_is_due: bool) -> bool:
        """Send until nothing is left; False if this was all there will be."""
        while not self._is_over(peer):
            if not (result.pieces or result.closed or control_is_due):
                self._position = result.end
                return True
            control_is_due = False
            control = render_control(
                result.end,
                cursor=self._dialect.cursor(self._cursor),
                up_to_date=result.up_to_date,
                closed=result.closed,
            )
            # Both events in one write: no reader sees data without the position after it.
            events = render_data(result) + control if result.pieces else control
            await self._send({"type": "http.response.body", "body": events, "more_body": True})
            self._sent_at = self._loop.time()
            if result.closed:
                return False
            if not result.up_to_date:
                # Neither the send nor the read waits where the client is quick and nothing has to
                # be decoded: appends waited for a second behind 200 MB of hot tail.
                await asyncio.sleep(0)
            result = await self._follower.read(result.end)
        return False

    async def _wait(self) -> bool:
        """Until there is something that cannot be written at once; False when a sign of life is
        due.
        """
        self._waiter = self._loop.create_future()
        self._set_timer()
        try:
            return await self._waiter
        finally:
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()

    def _push(self) -> None:
        """The stream has changed."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            # The task has its turn, and looks for itself before it waits.
            return
        try:
            if not self._write_news():
                self.interrupt()
        except Exception as error:  # noqa: BLE001  (supervised: the other readers wait, too)
            waiter.set_exception(error)

    def _write_news(self) -> bool:
        """Write what has come; False, and nothing is written, where the task has to see to it."""
        if self._follower.is_gone or self._dialect.log.is_stopping:
            return False
        result = self._follower.read_now(self._position)
        if result is None or result.closed or not result.up_to_date:
            return False
        if result.pieces:
            events = self._dialect.events.render(result, self._dialect.cursor(self._cursor))
            if not self._write_now(events):
                return False
            self._position, self._sent_at = result.end, self._loop.time()
        return True

    def _set_timer(self) -> None:
        """One timer per wait, whatever is written meanwhile."""
        alive_until = self._sent_at + self._dialect.http.sse_keep_alive_ms / 1000
        self._timer = self._loop.call_at(min(alive_until, self._ends_at), self._ring)

    def _ring(self) -> None:
        now, keep_alive_s = self._loop.time(), self._dialect.http.sse_keep_alive_ms / 1000
        if now < self._ends_at and now < self._sent_at + keep_alive_s:
            self._set_timer()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)
