"""A run: one decoded row group, ready to be served. Unlike in a batch, offsets may have jumps."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Protocol

from engine.format.offset import format_stored
from engine.types import Offset

if TYPE_CHECKING:
    import numpy as np


class Buffer(Protocol):
    """Bytes that a memoryview can be made of."""

    def __len__(self) -> int:
        """Bytes in it."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """The bytes themselves."""


class Run:
    """Records in offset order: their offsets, their joined bytes, where each one ends."""

    __slots__ = ("count", "data", "ends", "first", "keys", "last", "separator_bytes")

    def __init__(
        self, keys: np.ndarray, ends: np.ndarray, data: Buffer, *, separator_bytes: int
    ) -> None:
        assert len(keys) == len(ends) > 0
        self.keys = keys
        self.ends = ends
        self.data = data
        self.count = len(keys)
        self.first = Offset(int(keys[0]))
        self.last = Offset(int(keys[-1]))
        self.separator_bytes = separator_bytes

    @property
    def memory_bytes(self) -> int:
        """What keeping it in a cache costs."""
        return len(self.data) + self.keys.nbytes + self.ends.nbytes

    def index_after(self, position: Offset) -> int:
        """Index of the first record after ``position``."""
        if position < self.first:
            return 0
        if position >= self.last:
            return self.count
        # Not np.searchsorted: that copies all keys first.
        return bisect_right(self.keys, format_stored(position).encode())

    def offset_at(self, index: int) -> Offset:
        """The offset of a record."""
        return Offset(int(self.keys[index]))

    def count_within(self, begin: int, bytes_max: int) -> int:
        """Index of the end of the records from ``begin`` that fit into ``bytes_max``."""
        room = self._start(begin) + bytes_max
        if room >= len(self.data):
            return self.count
        return int(self.ends.searchsorted(room, side="right"))

    def cut(self, begin: int, end: int) -> memoryview:
        """The joined bytes of records ``begin`` to ``end``."""
        return memoryview(self.data)[self._start(begin) : int(self.ends[end - 1])]

    def _start(self, index: int) -> int:
        return 0 if index == 0 else int(self.ends[index - 1]) + self.separator_bytes
