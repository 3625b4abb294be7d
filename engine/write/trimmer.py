"""Trimming: WAL segments go when every stream in them is committed and the tables are synced.

A trim first makes all commits durable with one sync (F1), then writes a snapshot of every stream
with the table version that is now certain, then removes segments. Start-up reads the snapshot and
what is left.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from engine import metrics
from engine.write.snapshot import (
    SNAPSHOT_PATH,
    Snapshot,
    encode_snapshot,
    snapshot_stream,
)
from engine.write.wal import WAL_FOLDER, segment_path

if TYPE_CHECKING:
    from engine.clock import Clock
    from engine.storage import Storage
    from engine.streams.registry import Registry
    from engine.write.committer import Committer
    from engine.write.group import GroupCommit
    from engine.write.segments import Segments

# The durable mark follows the commits at least this closely, so that a start-up has few commits to
# verify even where a slow stream needs days to fill a segment.
_SNAPSHOT_INTERVAL_MS: Final = 60_000
_log: Final = structlog.get_logger("engine.trimmer")


class Trimmer:
    """The only place that forgets anything of the WAL."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        *,
        registry: Registry,
        segments: Segments,
        group: GroupCommit,
        committer: Committer,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._registry = registry
        self._segments = segments
        self._group = group
        self._committer = committer
        self._saved_ms = clock.monotonic_ms()
        self._saved = (-1, -1, -1)
        self.access_count = 0
        """Reads that moved a sliding TTL; told to the next snapshot, for a read costs no write."""
        self.is_poisoned = False
        """A sync of the tables has failed. The kernel reports that once and then says all is well
        (F5), so nothing may be trimmed any more: the next start reads the files and decides."""

    async def trim(self, *, everything: bool = False) -> None:
        """Remove what can be removed; refresh the snapshot where it has grown old."""
        if self.is_poisoned or self._group.is_broken:
            return
        removable = self._segments.removable(self._registry, everything=everything)
        if removable or everything or self._is_due():
            await self.save()
            if not self.is_poisoned:
                await self._on_thread(self._remove, removable)
                self._segments.forget(removable)

    async def save(self) -> None:
        """Make all commits durable, then write down everything as it is now."""
        versions = [(stream, stream.version) for stream in self._registry]
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        progress = self._progress()
        snapshot = Snapshot(
            lsn=self._group.lsn,
            epoch=self._group.epoch,
            owner=self._committer.owner,
            streams=[
                snapshot_stream(stream, accessed_ms=now_ms - (monotonic_ms - stream.accessed_ms))
                for stream, _ in versions
            ],
            trash=[(stream.folder, stream.id) for stream in self._committer.trash.pending],
        )
        try:
            await self._on_thread(self._storage.sync_all)
        except OSError as error:
            self.poison(error)
        if self.is_poisoned:
            # Another sync may have been told of the error, and this one that all is well.
            return
        await self._on_thread(self._storage.replace, SNAPSHOT_PATH, encode_snapshot(snapshot))
        self._saved, self._saved_ms = progress, monotonic_ms
        for stream, version in versions:
            stream.durable_version = max(stream.durable_version, version)

    def poison(self, error: Exception) -> None:
        """A sync has failed: never trust the tables of this life again."""
        self.is_poisoned = True
        metrics.storage_failures.labels(op="sync").inc()
        _log.error(
            "the tables could not be synced; the WAL is kept from now on",
            error=str(error),
            hint="Repair the disk, then restart the server: it will check every file.",
        )

    def _is_due(self) -> bool:
        elapsed_ms = self._clock.monotonic_ms() - self._saved_ms
        return elapsed_ms >= _SNAPSHOT_INTERVAL_MS and self._progress() != self._saved

    def _progress(self) -> tuple[int, int, int]:
        return self._group.lsn, self._committer.commit_count, self.access_count

    def _remove(self, segments: list[int]) -> None:
        """Oldest first: a crash in between leaves a WAL without a gap.

        Each removal is synced, for a power cut may keep a later one and lose an earlier one.
        """
        for segment in segments:
            self._storage.remove(segment_path(segment))
            self._storage.sync_path(WAL_FOLDER)

    async def _on_thread(self, work: object, *arguments: object) -> None:
        assert callable(work)
        await asyncio.get_running_loop().run_in_executor(None, work, *arguments)
