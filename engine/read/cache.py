"""Bounded caches: decoded row groups, and the footers of Parquet files."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from engine.format.run import Run


@dataclass(frozen=True, slots=True)
class Footer:
    """What a Parquet file says about itself, and the offsets of each of its row groups."""

    metadata: pq.FileMetaData
    firsts: list[int]
    lasts: list[int]
    sizes: list[int]
    """Bytes of payload of each row group, roughly: what the file says before compression."""
    rows: int


class RunCache:
    """Least recently used runs go first. Keys are (file, row group); files never change."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._runs: OrderedDict[tuple[str, int], Run] = OrderedDict()

    def get(self, path: str, row_group: int) -> Run | None:
        """The run, if it is still here."""
        key = (path, row_group)
        run = self._runs.get(key)
        if run is not None:
            self._runs.move_to_end(key)
        return run

    def put(self, path: str, row_group: int, run: Run) -> None:
        """Keep a run; one larger than the whole cache is not kept."""
        key = (path, row_group)
        if run.memory_bytes > self._bytes_max or key in self._runs:
            return
        self._runs[key] = run
        self._bytes += run.memory_bytes
        while self._bytes > self._bytes_max:
            _, dropped = self._runs.popitem(last=False)
            self._bytes -= dropped.memory_bytes


class FooterCache:
    """Footers, least recently used dropped first."""

    def __init__(self, footers_max: int) -> None:
        self._footers_max = footers_max
        self._footers: OrderedDict[str, Footer] = OrderedDict()

    def get(self, path: str) -> Footer | None:
        """The footer, if it is still here."""
        footer = self._footers.get(path)
        if footer is not None:
            self._footers.move_to_end(path)
        return footer

    def put(self, path: str, footer: Footer) -> None:
        """Keep a footer."""
        self._footers[path] = footer
        while len(self._footers) > self._footers_max:
            self._footers.popitem(last=False)
