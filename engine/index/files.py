"""The offset index: which file holds the records after a position. O(files), loaded once, kept
current.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from engine.format.offset import START

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.table.actions import DataFile
    from engine.types import Offset


class OffsetIndex:
    """Files in offset order. Files of a stream never overlap."""

    __slots__ = ("_files", "_lasts", "rows", "trimmed")

    def __init__(self, files: Iterable[DataFile] = (), *, trimmed: Offset = START) -> None:
        self.trimmed = trimmed
        """Up to here retention has removed the records."""
        self._files = sorted(files, key=lambda file: file.first)
        self._lasts = [file.last for file in self._files]
        self.rows = sum(file.rows for file in self._files)

    def __len__(self) -> int:
        """How many files there are."""
        return len(self._files)

    def append(self, files: Iterable[DataFile]) -> None:
        """Take in the files of a commit; they lie after all others, or are known already."""
        for file in files:
            if self._lasts and file.last <= self._lasts[-1]:
                continue
            assert not self._lasts or file.first > self._lasts[-1]
            self._files.append(file)
            self._lasts.append(file.last)
            self.rows += file.rows

    def after(self, position: Offset, *, count_max: int) -> list[DataFile]:
        """The first files that hold records after ``position``."""
        begin = bisect_right(self._lasts, position)
        return self._files[begin : begin + count_max]
