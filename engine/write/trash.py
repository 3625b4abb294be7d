"""Tables of deleted streams: moved out of the way in one step, then removed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import structlog

from engine import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.storage import Storage
    from engine.streams.stream import Stream

TRASH_FOLDER: Final = "_trash"
_RETRY_S: Final = 0.5
_LAST_ATTEMPTS: Final = 3
_log: Final = structlog.get_logger("engine.trash")


class Trash:
    """Folders on their way out. A stream of the same name must not commit before they are free."""

    def __init__(self, storage: Storage, *, on_freed: Callable[[], None]) -> None:
        self._storage = storage
        self._on_freed = on_freed
        self._pool = ThreadPoolExecutor(1, "trash")
        self._pending: dict[Stream, None] = {}
        self._folders: Counter[str] = Counter()
        self._busy: dict[str, list[Stream]] = {}
        """Folders with a commit under way, and who wants them removed at its end."""
        self._abandoned: set[str] = set()
        self._stuck: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = asyncio.Event()

    @property
    def pending(self) -> list[Stream]:
        """Streams whose folders are still to be removed."""
        return list(self._pending)

    def holds(self, folder: str) -> bool:
        """The folder is not free yet."""
        return self._folders[folder] > 0

    def add(self, stream: Stream) -> None:
        """The stream's folder must go, once a commit under way in it has ended.

        That may be the commit of an earlier stream of this name, which is here already.
        """
        self._pending[stream] = None
        self._folders[stream.folder] += 1
        if stream.is_committing:
            assert stream.folder not in self._busy, "a commit began in a folder on its way out"
            self._busy[stream.folder] = []
        if stream.folder in self._busy:
            self._busy[stream.folder].append(stream)
        else:
            self._empty(stream)

    def commit_ended(self, stream: Stream) -> None:
        """The last commit of a deleted stream is over: its folder can go."""
        for waiting in self._busy.pop(stream.folder):
            self._empty(waiting)

    def _empty(self, stream: Stream) -> None:
        task = asyncio.get_running_loop().create_task(self._remove(stream))
        self._tasks.add(task)
        task.add_done_callback(self._removed)

    def _removed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._on_freed()

    def is_stuck(self, folder: str) -> bool:
        """Its removal has failed, and is tried again."""
        return folder in self._stuck

    def has_given_up(self, folder: str) -> bool:
        """The folder will not be free in this life."""
        return folder in self._abandoned

    def begin_drain(self) -> None:
        """From now on few attempts are made: what is left is removed by the next start."""
        self._draining.set()

    async def drain(self) -> None:
        """Wait until everything is removed or given up."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._pool.shutdown()

    async def _remove(self, stream: Stream) -> None:
        loop = asyncio.get_running_loop()
        last_attempts = 0
        while last_attempts < _LAST_ATTEMPTS:
            try:
                await loop.run_in_executor(self._pool, self._remove_blocking, stream)
            except OSError as error:
                metrics.storage_failures.labels(op="trash").inc()
                _log.error("a deleted table stays", stream=stream.name, error=str(error))
                self._stuck.add(stream.folder)
                # Whoever waits for the folder is told.
                self._on_freed()
            else:
                del self._pending[stream]
                self._stuck.discard(stream.folder)
                self._free(stream.folder)
                return
            last_attempts += self._draining.is_set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), _RETRY_S)
        self._abandoned.add(stream.folder)

    def _free(self, folder: str) -> None:
        self._folders[folder] -= 1
        if not self._folders[folder]:
            del self._folders[folder]

    def _remove_blocking(self, stream: Stream) -> None:
        if not self._storage.exists(stream.folder):
            return
        target = f"{TRASH_FOLDER}/{stream.folder}-{stream.id:x}"
        self._storage.make_folder(TRASH_FOLDER)
        self._storage.rename(stream.folder, target)
        self._storage.remove_folder(target)
