"""SourceConsumer: what AsyncConsumer is for a server, over the source of any other backend."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from bottomless.backends.base import start_of
from bottomless.backoff import Retry
from bottomless.errors import DataDamaged, InvalidRequest, Unavailable
from bottomless.positions import After, Since

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from bottomless.backends.base import Message, Source
    from bottomless.formats import Format
    from bottomless.positions import Start

_POLL_S: Final = 20.0


class SourceConsumer:
    """Iterate over it, or call `next`. Ends where the stream says so, or, unless it follows, at the
    end of what is there.
    """

    def __init__(
        self,
        source: Source,
        format_: Format | None,
        start: Start,
        *,
        follow: bool,
        retry: Retry | None = None,
        open_: set[SourceConsumer] | None = None,
    ) -> None:
        self.stream = ""
        """Its name, for messages."""
        self._open: set[SourceConsumer] = set() if open_ is None else open_
        """Those of its client that hold something."""
        self.follow = follow
        self.source = source
        self._format = format_
        """None where records stay as they are."""
        self._start = start
        self._has_begun = False
        self._has_read = False
        self._skip = 0
        self._behind: str | None = None
        self._ready: deque[Message] = deque()
        self._is_closed = False
        self.has_ended = False
        """Nothing more comes; `fill` was not only out of time."""
        self._retry = retry or Retry()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        record = await self.next()
        if record is None:
            raise StopAsyncIteration
        return record

    async def close(self) -> None:
        """Stop reading. May be called twice."""
        self._ready.clear()
        self._is_closed = True
        await self._release()

    @property
    def position(self) -> str | None:
        """Behind the last value that was handed out; None while that is not known."""
        return self._behind

    async def next(self, timeout_s: float | None = None) -> Message | None:
        """The next value. None at the end, or where none came in ``timeout_s`` seconds."""
        if not self._ready:
            await self.fill(timeout_s)
        return self.take_one()

    def take_one(self) -> Message | None:
        """The next value if it is here already."""
        if not self._ready:
            return None
        record = self._ready.popleft()
        self._behind = record.position
        return record

    def take(self) -> list[Message]:
        """All values that are here already, without waiting."""
        records = list(self._ready)
        self._ready.clear()
        if records:
            self._behind = records[-1].position
        return records

    async def fill(self, timeout_s: float | None = None) -> bool:
        """Make `take` useful: wait for values; False at the end, or when the time is up."""
        retry = self._retry
        if self.follow and self._has_read:
            # Who follows has nothing better to do than to wait; but an address may be wrong.
            retry = replace(retry, give_up_s=math.inf)
        backoff = retry.begin()
        now_s = asyncio.get_running_loop().time
        deadline = math.inf if timeout_s is None else now_s() + timeout_s
        while not self._ready:
            if self._is_closed or self.has_ended:
                return False
            try:
                if not self._has_begun:
                    await self._begin()
                place = self.source.position
                wait_s = min(_POLL_S, max(0.0, deadline - now_s()))
                found = await self.source.read(wait_s, follow=self.follow)
            except Unavailable as error:
                await backoff.pause(error)
                continue
            backoff.reset()
            self._has_read = True
            if found is None:
                self.has_ended = True
                await self._release()
                return False
            self._add(found, place)
            if not self._ready and now_s() >= deadline:
                return False
        return True

    async def seek(self, time: datetime | str) -> None:
        """Go on with what was stored at that time or later."""
        await self.rewind(Since(time))

    async def rewind(self, start: Start = "beginning") -> None:
        """Go on from there."""
        self._ready.clear()
        self._start, self._has_begun, self._behind, self._skip = start, False, None, 0
        self._is_closed = self.has_ended = False

    async def _release(self) -> None:
        await self.source.close()
        self._open.discard(self)

    async def _begin(self) -> None:
        start = start_of(self._start)
        skip = 0
        if isinstance(start, After):
            self._behind = start.position
            place, _, inside = start.position.partition(":")
            if inside:
                if not inside.isdecimal() or self._format is None:
                    raise InvalidRequest(f"{start.position!r} is no position to begin at")
                skip = int(inside)
            start = After(place) if place else "beginning"
        self._open.add(self)
        await self.source.begin(start)
        self._skip = skip
        self._has_begun = True

    def _add(self, messages: list[Message], place: str) -> None:
        """Decode them. Behind a value that is not its record's last, the place is ``before:n``."""
        if self._format is None:
            self._ready.extend(messages)
            return
        for message in messages:
            try:
                values = list(self._format.decode(message.data))
            except DataDamaged as error:
                raise DataDamaged(
                    f"{self.stream or 'the stream'}, record at {message.offset}: {error.message}",
                    hint="Say content_type= where it is of another type.",
                ) from error
            for index in range(self._skip, len(values)):
                is_last = index == len(values) - 1
                behind = message.position if is_last else f"{place}:{index + 1}"
                self._ready.append(replace(message, value=values[index], position=behind))
            self._skip, place = 0, message.position
