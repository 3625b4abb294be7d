"""What a producer has taken and not sent yet: values become batches by size, count or age.

Values come from any thread; batches go to the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bottomless.errors import BottomlessError


@dataclass(slots=True, eq=False)
class Batch:
    """The values of one append."""

    parts: list[bytes]
    bytes: int
    number: int
    """Batches of a producer are counted from 0."""
    seq: int = -1
    """Producer-Seq; given when it is sent for the first time."""
    epoch: int = -1
    is_doubtful: bool = False
    """An answer was lost: it may be stored."""
    error: BottomlessError | None = None
    offset: str | None = None
    """The stream's tail after it, once it is delivered; None where it was stored before."""
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    sent: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """All of it has been sent once, or could not be."""

    @property
    def count(self) -> int:
        """How many values."""
        return len(self.parts)


# What `Accumulator.add` has to tell; mostly nothing.
FIRST: Final = 1
"""The value is the first of its batch."""
FULL: Final = 2
"""A batch is ready."""
OVER: Final = 4
"""More is waiting than may."""
TURN: Final = 8
"""Time to let others run: who appends in a loop has taken a good deal since the last time."""
_TURN_BYTES: Final = 1 << 16


class Accumulator:
    """Cuts batches, in order. Every method may be called from any thread."""

    def __init__(self, *, batch_bytes: int, batch_records: int, buffer_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._buffer_bytes = buffer_bytes
        self._lock = threading.Lock()
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._cut: deque[Batch] = deque()
        self._number = 0
        self._turn_bytes = 0
        self.bytes = 0
        """Everything that is not delivered yet."""

    @property
    def is_over(self) -> bool:
        """More is waiting than may."""
        return self.bytes > self._buffer_bytes

    def add(self, part: bytes) -> int:
        """Take an encoded value; tells what is to be done now: FIRST, FULL, OVER, TURN."""
        size, news = len(part), 0
        with self._lock:
            if self._open_bytes + size > self._batch_bytes and self._open:
                self._cut_open()
                news = FULL
            if not self._open:
                news |= FIRST
            self._open.append(part)
            self._open_bytes += size
            self.bytes += size
            self._turn_bytes += size
            if self._open_bytes >= self._batch_bytes or len(self._open) >= self._batch_records:
                self._cut_open()
                news |= FULL
            if self._turn_bytes >= _TURN_BYTES:
                self._turn_bytes = 0
                news |= TURN
            if self.bytes > self._buffer_bytes:
                news |= OVER
        return news

    def cut(self) -> None:
        """What is open is a batch, however small."""
        with self._lock:
            if self._open:
                self._cut_open()

    def take(self) -> Batch | None:
        """The next batch, if there is one."""
        with self._lock:
            return self._cut.popleft() if self._cut else None

    def release(self, batch: Batch) -> None:
        """It is delivered, or given up."""
        with self._lock:
            self.bytes -= batch.bytes

    def clear(self) -> int:
        """Drop everything that was not taken yet; returns how many values that were."""
        with self._lock:
            if self._open:
                self._cut_open()
            dropped = sum(batch.count for batch in self._cut)
            self.bytes -= sum(batch.bytes for batch in self._cut)
            self._cut.clear()
            return dropped

    def _cut_open(self) -> None:
        self._cut.append(Batch(self._open, self._open_bytes, self._number))
        self._number += 1
        self._open, self._open_bytes = [], 0
