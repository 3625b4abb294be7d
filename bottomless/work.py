"""Work: the range a member of a group works on: its records, and how far the program is."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from bottomless.consumer import AsyncConsumer
from bottomless.errors import Gone
from bottomless.positions import After

if TYPE_CHECKING:
    from bottomless.assignment import Range
    from bottomless.consumer import Record
    from bottomless.transport import Transport


class Work:
    """The range a member works on."""

    def __init__(self, transport: Transport, stream: str, held: Range) -> None:
        self.range = held
        self.stream = stream
        self.handed: str | None = None
        """Behind what the program has in hand; None where it has nothing."""
        self.handled = held.at
        """Behind what the program is done with; the group is told."""
        self.was_seen = False
        """Whether the program has got any of it."""
        self.ready: deque[Record] = deque()
        self._reader = AsyncConsumer(
            transport, stream, After(held.at), follow=False, page=held.count
        )
        self._is_loaded = False
        self._is_whole = False

    @property
    def position(self) -> str | None:
        """Behind what was handed out last; None before."""
        return self.handed or (self.handled if self.was_seen else None)

    @property
    def is_handled(self) -> bool:
        """Nothing of it is left to do."""
        return self._is_loaded and not self.ready and self.handed is None

    def take(self, count: int | None) -> list[Record]:
        """Hand out."""
        count = len(self.ready) if count is None else min(count, len(self.ready))
        if not count:
            return []
        # The heartbeat may look at any moment, from another thread: what leaves `ready` is in
        # hand before, so that it never takes a range for handled that is not.
        self.handed, self.was_seen = self.ready[count - 1].position, True
        return [self.ready.popleft() for _ in range(count)]

    def settle(self) -> None:
        """What was handed out is handled."""
        if self.handed is not None:
            self.handled, self.handed = self.handed, None

    def forget(self) -> None:
        """What was handed out is not handled, and nothing more of this range will be."""
        self._is_loaded, self.handed = False, None

    async def load(self) -> None:
        """Read on. Gone, once, where records are no longer there; the next call goes on."""
        upto = self.range.upto
        try:
            is_there = await self._reader.fill()
        except Gone:
            # The oldest that is left comes next.
            await self._reader.rewind()
            self._is_whole = True
            raise
        records = self._reader.take()
        self.ready.extend(record for record in records if record.offset <= upto)
        self._is_whole = self._is_whole or any(record.offset == upto for record in records)
        self._is_loaded = not is_there or records[-1].offset >= upto
        if self._is_loaded and not self._is_whole:
            self._is_whole = True
            raise Gone(f"records of {self.stream} up to {upto} are no longer there")
