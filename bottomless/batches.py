"""What a producer has taken and not sent yet: values become batches by size, count or age.

Values come from any thread; batches go to the event loop.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

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

    @property
    def count(self) -> int:
        """How many values."""
        return len(self.parts)


class Accumulator:
    """Cuts batches, in order. Every method may be called from any thread."""

    def __init__(self, *, batch_bytes: int, batch_records: int) -> None:
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._lock = threading.Lock()
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._cut: deque[Batch] = deque()
        self._number = 0
        self.bytes = 0
        """Everything that is not delivered yet."""

    def add(self, part: bytes) -> tuple[bool, bool]:
        """Take an encoded value; tells whether it is the first of its batch, and whether a batch is
        full.
        """
        with self._lock:
            is_full = bool(self._open) and self._open_bytes + len(part) > self._batch_bytes
            if is_full:
                self._cut_open()
            is_first = not self._open
            self._open.append(part)
            self._open_bytes += len(part)
            self.bytes += len(part)
            if len(self._open) >= self._batch_records or self._open_bytes >= self._batch_bytes:
                self._cut_open()
                is_full = True
            return is_first, is_full

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
