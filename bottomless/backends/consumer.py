"""SourceConsumer: what AsyncConsumer is for a server, over the source of any other backend."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from bottomless.backends.base import start_of
from bottomless.backoff import Retry
from bottomless.errors import DataDamaged, InvalidRequest, Unavailable
from bottomless.positions import After
from bottomless.reading import Buffered

if TYPE_CHECKING:
    from bottomless.backends.base import Message, Source
    from bottomless.formats import Format
    from bottomless.positions import Start

_POLL_S: Final = 20.0


class SourceConsumer(Buffered["Message"]):
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
        super().__init__()
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
        self._is_closed = False
        self.has_ended = False
        """Nothing more comes; `fill` was not only out of time."""
        self._retry = retry or Retry()

    @override
    async def close(self) -> None:
        self._ready.clear()
        self._is_closed = True
        await self._release()

    @override
    async def fill(self, timeout_s: float | None = None) -> bool:
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

    @override
    async def rewind(self, start: Start = "beginning") -> None:
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
