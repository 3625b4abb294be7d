"""A run: one decoded row group, ready to be served. Unlike in a batch, offsets may have jumps."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from engine.format.offset import format_stored
from engine.types import Offset


class Buffer(Protocol):
    """Bytes that a memoryview can be made of."""

    def __len__(self) -> int:
        """Bytes in it."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """The bytes themselves."""


class Run:
    """Records in offset order: their offsets, their joined bytes, where each one ends."""

    __slots__ = ("count", "data", "ends", "keys", "separator_bytes")

    def __init__(
        self, keys: np.ndarray, ends: np.ndarray, data: Buffer, *, separator_bytes: int
    ) -> None:
        assert len(keys) == len(ends)
        self.keys = keys
        self.ends = ends
        self.data = data
        self.count = len(keys)
        self.separator_bytes = separator_bytes

    @property
    def memory_bytes(self) -> int:
        """What keeping it in a cache costs."""
        return len(self.data) + self.keys.nbytes + self.ends.nbytes

    def index_after(self, position: Offset) -> int:
        """Index of the first record after ``position``."""
        return int(np.searchsorted(self.keys, format_stored(position).encode(), side="right"))

    def offset_at(self, index: int) -> Offset:
        """The offset of a record."""
        return Offset(int(self.keys[index]))

    def count_within(self, begin: int, bytes_max: int) -> int:
        """Index of the end of the records from ``begin`` that fit into ``bytes_max``."""
        return int(np.searchsorted(self.ends, self._start(begin) + bytes_max, side="right"))

    def cut(self, begin: int, end: int) -> memoryview:
        """The joined bytes of records ``begin`` to ``end``."""
        return memoryview(self.data)[self._start(begin) : int(self.ends[end - 1])]

    def _start(self, index: int) -> int:
        return 0 if index == 0 else int(self.ends[index - 1]) + self.separator_bytes
