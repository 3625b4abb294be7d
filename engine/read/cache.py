"""A bounded cache of decoded row groups, and of open Parquet files with their footers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from engine.format.run import Run


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A Parquet file and the last offset of each of its row groups."""

    parquet: pq.ParquetFile
    lasts: list[int]


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


class FileCache:
    """Open files, least recently used closed first."""

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._files: OrderedDict[str, OpenFile] = OrderedDict()

    def get(self, path: str) -> OpenFile | None:
        """The open file, if it is still here."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
        return file

    def put(self, path: str, file: OpenFile) -> None:
        """Keep a file open. One that falls out is closed when its last reader lets go of it."""
        self._files[path] = file
        while len(self._files) > self._files_max:
            self._files.popitem(last=False)
