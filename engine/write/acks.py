"""Acks of the table: answers that wait until an append is in the Delta table, durably (F1).

One sync serves everybody who waited for it. A sync that fails ends the trust in the tables for
good, as in a trim (F5).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine.errors import StorageUnavailable, StreamNotFound
from engine.table.state import NO_VERSION

if TYPE_CHECKING:
    from engine.storage import Storage
    from engine.streams.stream import Stream
    from engine.write.committer import Committer
    from engine.write.trimmer import Trimmer


class TableAcks:
    """Waits for commits, then for the disk."""

    def __init__(self, storage: Storage, committer: Committer, trimmer: Trimmer) -> None:
        self._storage = storage
        self.committer = committer
        self._trimmer = trimmer
        self._waiting: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Task[None] | None = None

    async def wait(self, stream: Stream) -> None:
        """Return when everything durable of the stream is in its table, and that on the disk.

        Where that fails the records are still in the log, and will be committed: a producer's
        repeated append waits for that without storing anything twice.
        """
        if stream.gone:
            raise StreamNotFound("the stream was deleted meanwhile")
        if stream.is_committing or stream.needs_commit or stream.version == NO_VERSION:
            await self.committer.commit_now(stream)
        if self._trimmer.is_poisoned:
            raise StorageUnavailable("the tables could not be synced; restart the server")
        synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(synced)
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.get_running_loop().create_task(self._sync())
        await synced

    async def _sync(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                await loop.run_in_executor(None, self._storage.sync_all)
            except Exception as error:  # noqa: BLE001  (supervised: whoever waits is told)
                self._trimmer.poison(error)
            for synced in waiting:
                if synced.done():
                    continue
                # The error of a sync may have been told to the trimmer, and only to it.
                if self._trimmer.is_poisoned:
                    synced.set_exception(StorageUnavailable("the tables could not be synced"))
                else:
                    synced.set_result(None)
