"""What all consumers have in common: iteration, `next`, and an end that is not forgotten.

Whoever can `fill` and `take_one` is read in the same way, by ``async for`` or without ``await``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeVar

from typing_extensions import override

from bottomless.errors import BottomlessError
from bottomless.positions import Since

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from bottomless.portal import Portal
    from bottomless.positions import Start

# What a call with a time-out may take longer, where it has to ask the server something first.
_GRACE_S: Final = 1.0


class Placed(Protocol):
    """A value that knows where it is."""

    @property
    def position(self) -> str:
        """To go on behind it."""


T = TypeVar("T", bound=Placed)


class AsyncReading(ABC, Generic[T]):
    """Read it with ``async with`` and ``async for``, or call `next`."""

    stream: str

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

    async def __anext__(self) -> T:
        record = await self.next()
        if record is None:
            raise StopAsyncIteration
        return record

    async def next(self, timeout_s: float | None = None) -> T | None:
        """The next value. None at the end, or where none came in ``timeout_s`` seconds."""
        record = self.take_one()
        if record is None and await self.fill(timeout_s):
            record = self.take_one()
        return record

    @property
    @abstractmethod
    def position(self) -> str | None:
        """Behind the last value that was handed out; None while that is not known."""

    @abstractmethod
    def take_one(self) -> T | None:
        """The next value if it is here already."""

    @abstractmethod
    def take(self) -> list[T]:
        """All values that are here already, without waiting."""

    @abstractmethod
    async def fill(self, timeout_s: float | None = None) -> bool:
        """Make `take` useful: wait for values; False at the end, or when the time is up."""

    @abstractmethod
    async def close(self) -> None:
        """Stop reading. May be called twice."""


class Buffered(AsyncReading[T]):
    """Values come by the page, and are handed out of it."""

    def __init__(self) -> None:
        self._ready: deque[T] = deque()
        self._behind: str | None = None

    @property
    @override
    def position(self) -> str | None:
        return self._behind

    @override
    def take_one(self) -> T | None:
        if not self._ready:
            return None
        record = self._ready.popleft()
        self._behind = record.position
        return record

    @override
    def take(self) -> list[T]:
        records = list(self._ready)
        self._ready.clear()
        if records:
            self._behind = records[-1].position
        return records

    async def seek(self, time: datetime | str) -> None:
        """Go on with what was stored at that time or later."""
        await self.rewind(Since(time))

    @abstractmethod
    async def rewind(self, start: Start = "beginning") -> None:
        """Go on from there."""


class Keeping(AsyncReading[T]):
    """The server knows how far it is. A value counts as handled when the next one is asked for;
    Fenced where what was in hand has gone to another.
    """

    @override
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        # What was in hand when it failed comes again.
        self._forget()
        with contextlib.suppress(BottomlessError):
            await self.close()

    @override
    async def fill(self, timeout_s: float | None = None) -> bool:
        """Make `take` useful: say what is handled, wait for values; False at the end, or when the
        time is up.
        """
        self._settle()
        if timeout_s is None:
            return await self._fill(math.inf)
        deadline_s = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S):
                return await self._fill(deadline_s)
        except TimeoutError:
            return False

    @abstractmethod
    async def commit(self) -> None:
        """Store that everything handed out so far is handled."""

    @abstractmethod
    def _settle(self) -> None:
        """What was handed out is handled: the program has come back for more."""

    @abstractmethod
    def _forget(self) -> None:
        """What is in hand will not be handled."""

    @abstractmethod
    async def _fill(self, deadline_s: float) -> bool:
        """What `fill` does, up to a monotonic time."""


class Reading(Generic[T]):
    """The same without ``await``."""

    def __init__(self, portal: Portal, reader: AsyncReading[T]) -> None:
        self._portal = portal
        self._reader = reader
        self.stream = reader.stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.call(self._reader.__aexit__(kind, error, trace))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        record = self.next()
        if record is None:
            raise StopIteration
        return record

    @property
    def position(self) -> str | None:
        """Behind the last value that was handed out; None while that is not known."""
        return self._reader.position

    def next(self, timeout_s: float | None = None) -> T | None:
        """The next value. None at the end, or where none came in ``timeout_s`` seconds."""
        record = self._reader.take_one()
        if record is None and self._portal.call(self._reader.fill(timeout_s)):
            record = self._reader.take_one()
        return record

    def take(self) -> list[T]:
        """All values that are here already, without waiting."""
        return self._reader.take()

    def close(self) -> None:
        """Stop reading. May be called twice."""
        self._portal.call(self._reader.close())
