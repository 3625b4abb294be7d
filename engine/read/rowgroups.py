"""Decoded row groups: opened, decoded and cached once, however many readers ask at the same time.

A ParquetFile must not be used by two threads at once (it crashes the process), so every decode gets
one of its own; opening costs 25 us where the footer is known already.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from engine.errors import BottomlessError, StorageUnavailable, TableDamaged
from engine.read.cache import Footer, FooterCache, RunCache
from engine.table.parquet import (
    open_file,
    read_append_seq,
    read_row_group,
    row_group_bounds,
    row_group_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from engine.format.run import Run
    from engine.settings import ReadSettings
    from engine.storage import Storage
    from engine.table.actions import DataFile
    from engine.types import Offset, PayloadKind

T = TypeVar("T")
_DEPTH: Final = 2
"""Row groups that are decoded before a reader that walks forward asks for them."""
_AHEAD_CACHE_RATIO: Final = 8


class RowGroups:
    """Reads row groups on threads; the event loop never waits for a disk."""

    def __init__(self, storage: Storage, settings: ReadSettings) -> None:
        self._storage = storage
        self._pool = ThreadPoolExecutor(settings.threads, "read")
        self._runs = RunCache(settings.cache_bytes)
        self._footers = FooterCache(settings.footers_max)
        self._decoding: dict[tuple[str, int], asyncio.Future[Run]] = {}
        self._opening: dict[str, asyncio.Future[Footer]] = {}
        self._ahead_max = _DEPTH * settings.threads
        # What is decoded ahead must still be there when it is asked for.
        self._ahead_bytes_max = settings.cache_bytes // _AHEAD_CACHE_RATIO

    def stop(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    async def after(
        self, folder: str, data: DataFile, position: Offset, kind: PayloadKind, *, bytes_max: int
    ) -> tuple[Run | None, int]:
        """The row group of a file that holds the first record after ``position``, and its index.

        None instead of one that begins there and has more than about ``bytes_max``. Raises
        FileNotFoundError where the file is gone, TableDamaged where it is not what the log says.
        """
        path = f"{folder}/{data.path}"
        footer = await self._footer(path)
        told = (data.first, data.last, data.rows)
        if (footer.firsts[0], footer.lasts[-1], footer.rows) != told:
            raise _damaged(path, "it holds other records than the log says")
        index = bisect_right(footer.lasts, position)
        if footer.sizes[index] > bytes_max and position < footer.firsts[index]:
            return None, index
        run = self._runs.get(path, index)
        if run is None:
            # Shielded: a reader that goes away must not take the others' decode with it.
            run = await asyncio.shield(self._decode_once(path, index, footer, kind))
        return run, index

    def prepare(self, folder: str, data: DataFile, position: Offset, kind: PayloadKind) -> None:
        """Begin to decode what `after` will be asked for, and the row group behind it."""
        path = f"{folder}/{data.path}"
        footer = self._footers.get(path)
        if footer is not None:
            self._decode_ahead(path, footer, position, kind)
        elif path not in self._opening and len(self._opening) < self._ahead_max:
            opening = asyncio.ensure_future(self._footer(path))
            self._opening[path] = opening
            opening.add_done_callback(lambda done: self._opened(path, position, kind, done))

    def _opened(
        self, path: str, position: Offset, kind: PayloadKind, done: asyncio.Future[Footer]
    ) -> None:
        del self._opening[path]
        # What cannot be read is told to whoever asks for it.
        if not done.cancelled() and done.exception() is None:
            self._decode_ahead(path, done.result(), position, kind)

    def _decode_ahead(self, path: str, footer: Footer, position: Offset, kind: PayloadKind) -> None:
        begin = bisect_right(footer.lasts, position)
        for index in range(begin, min(begin + _DEPTH, len(footer.lasts))):
            is_small = footer.sizes[index] <= self._ahead_bytes_max
            has_room = is_small and len(self._decoding) < self._ahead_max
            if has_room and self._runs.get(path, index) is None:
                self._decode_once(path, index, footer, kind)

    async def append_seqs(self, path: str, index: int) -> np.ndarray:
        """Where appends begin in a row group: the zeros."""
        footer = await self._footer(path)
        return await self.on_thread(self._read_append_seq, path, index, footer)

    async def on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Run blocking work on a reading thread; what fails there becomes an error of ours."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, work, *arguments)
        except FileNotFoundError:
            raise
        except pa.ArrowException as error:
            raise TableDamaged(f"a file cannot be decoded: {error}") from error
        except OSError as error:
            raise StorageUnavailable(f"a file cannot be read: {error.strerror}") from error

    async def _footer(self, path: str) -> Footer:
        footer = self._footers.get(path)
        if footer is None:
            footer = await self.on_thread(self._read_footer, path)
            self._footers.put(path, footer)
        return footer

    def _decode_once(
        self, path: str, index: int, footer: Footer, kind: PayloadKind
    ) -> asyncio.Future[Run]:
        """Readers that come while a row group is decoded wait for that decode."""
        key = (path, index)
        decoding = self._decoding.get(key)
        if decoding is None:
            work = self.on_thread(self._read_run, path, index, footer, kind)
            decoding = asyncio.ensure_future(work)
            self._decoding[key] = decoding
            decoding.add_done_callback(lambda done: self._decoded(key, done))
        return decoding

    def _decoded(self, key: tuple[str, int], done: asyncio.Future[Run]) -> None:
        del self._decoding[key]
        if not done.cancelled() and done.exception() is None:
            self._runs.put(*key, done.result())

    def _read_footer(self, path: str) -> Footer:
        with _naming(path), self._storage.open_input(path) as source, open_file(source) as file:
            bounds = row_group_bounds(file)
            edges = [offset for pair in bounds for offset in pair]
            if not edges or edges != sorted(edges):
                raise _damaged(path, "its row groups overlap")
            firsts, lasts = edges[::2], edges[1::2]
            sizes = row_group_sizes(file)
            return Footer(file.metadata, firsts, lasts, sizes, file.metadata.num_rows)

    def _read_run(self, path: str, index: int, footer: Footer, kind: PayloadKind) -> Run:
        with (
            _naming(path),
            self._storage.open_input(path) as source,
            open_file(source, footer.metadata) as file,
        ):
            run = read_row_group(file, index, kind)
            # Pages have checksums, the footer has none.
            if (run.first, run.last) != (footer.firsts[index], footer.lasts[index]):
                raise _damaged(path, "its footer tells other offsets than it holds")
            return run

    def _read_append_seq(self, path: str, index: int, footer: Footer) -> np.ndarray:
        with (
            _naming(path),
            self._storage.open_input(path) as source,
            open_file(source, footer.metadata) as file,
        ):
            return read_append_seq(file, index)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Damage breaks a decoder in any way; whatever it says, the file is named."""
    try:
        yield
    except (BottomlessError, MemoryError):
        raise
    except Exception as error:
        # An error of the disk has a number, one of the decoder has none.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        lines = str(error).splitlines() or [type(error).__name__]
        raise _damaged(path, lines[0]) from error


def _damaged(path: str, reason: str) -> TableDamaged:
    return TableDamaged(
        f"the file {path} is damaged: {reason}",
        hint="Restore it from a copy. `bottomless check` reads every file and names the others.",
    )
