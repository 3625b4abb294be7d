"""The write-ahead log: segment files written by one thread, one write and one fdatasync per group.

After a failed sync the kernel may have dropped the pages and reports success next time (F5). So one
failed sync ends this process's right to acknowledge: the log is poisoned until the next start.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from engine.errors import BottomlessError, StorageUnavailable
from engine.format.frame import SEGMENT_HEADER_BYTES, encode_frame, encode_segment_header

if TYPE_CHECKING:
    import random

    from engine.clock import Clock
    from engine.settings import WalSettings
    from engine.storage import Storage

WAL_FOLDER: Final = "_wal"
_log: Final = structlog.get_logger("engine.wal")


def segment_path(first_lsn: int) -> str:
    """The file of the segment that begins with this LSN."""
    return f"{WAL_FOLDER}/{first_lsn:020d}.wal"


@dataclass(frozen=True, slots=True)
class Group:
    """What one write makes durable."""

    lsn: int
    epoch: int
    entry_count: int
    parts: list[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome: which segment holds the group, how long it took, or why it failed."""

    segment: int
    bytes: int
    seconds: float
    error: BottomlessError | None = None


Done = Callable[[Written], None]


class Wal:
    """Appends groups. ``done`` is called on the WAL thread, in order."""

    def __init__(
        self, storage: Storage, clock: Clock, settings: WalSettings, *, rng: random.Random
    ) -> None:
        self._storage = storage
        self._rng = rng
        self._salt = 0
        self._clock = clock
        self._settings = settings
        self._queue: queue.SimpleQueue[tuple[Group, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="wal", daemon=True)
        self._descriptor: int | None = None
        self._segment = 0
        self._length = 0
        self._poison: BottomlessError | None = None

    def start(self) -> None:
        """Begin to take groups; the first one opens a new segment."""
        self._storage.make_folder(WAL_FOLDER)
        self._thread.start()

    def submit(self, group: Group, done: Done) -> None:
        """Hand a group to the WAL thread."""
        self._queue.put((group, done))

    def stop(self) -> None:
        """Finish what was submitted, then end the thread."""
        self._queue.put(None)
        self._thread.join()
        self._close_segment()

    @property
    def is_poisoned(self) -> bool:
        """It has failed for good; nothing more will be acknowledged."""
        return self._poison is not None

    def poison(self, failure: Exception) -> BottomlessError:
        """After an error of our own: what memory holds may differ from what is on the disk, and
        only a start can tell. Returns what to tell whoever waits.
        """
        _log.error("the write-ahead log failed", exc_info=failure)
        self._poison = StorageUnavailable(
            "the write-ahead log failed", hint="Restart the server; its log says why."
        )
        return self._poison

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            group, done = item
            begun_s = self._clock.monotonic_s()
            written, error = 0, self._poison
            if error is None:
                try:
                    written = self._write(group)
                except OSError as failure:
                    error = self._poison or StorageUnavailable(
                        f"the write-ahead log cannot be written: {failure.strerror}",
                        hint="Free or repair the disk; nothing was acknowledged.",
                    )
                except Exception as failure:  # noqa: BLE001  (supervised: appends must not hang)
                    error = self.poison(failure)
            elapsed_s = self._clock.monotonic_s() - begun_s
            done(Written(self._segment, written, elapsed_s, error))

    def _write(self, group: Group) -> int:
        payload = b"".join(group.parts)
        if self._descriptor is None or self._length >= self._settings.segment_bytes:
            self._begin_segment(group.lsn)
        assert self._descriptor is not None
        header = encode_frame(group.lsn, group.epoch, group.entry_count, payload, salt=self._salt)
        frame_bytes = len(header) + len(payload)
        try:
            self._storage.write(self._descriptor, [header, payload])
        except OSError:
            self._cut_back()
            raise
        self._sync(self._descriptor)
        self._length += frame_bytes
        return frame_bytes

    def _begin_segment(self, lsn: int) -> None:
        path = segment_path(lsn)
        salt = self._rng.getrandbits(64)
        descriptor = self._storage.open_append(path)
        try:
            self._storage.write(descriptor, [encode_segment_header(lsn, salt=salt)])
        except OSError:
            self._storage.close(descriptor)
            self._storage.remove(path)
            raise
        try:
            self._close_segment()
        except OSError as failure:
            self._poison = StorageUnavailable(
                f"a segment of the write-ahead log cannot be closed: {failure.strerror}",
                hint="Restart the server on a healthy disk.",
            )
            raise
        self._descriptor, self._segment, self._salt = descriptor, lsn, salt
        self._length = SEGMENT_HEADER_BYTES

    def _sync(self, descriptor: int) -> None:
        try:
            self._storage.sync(descriptor)
        except OSError as failure:
            self._poison = StorageUnavailable(
                f"the disk failed to sync the write-ahead log: {failure.strerror}",
                hint="What was sent may or may not be stored. Appends are refused until the server"
                " is restarted on a healthy disk; repeat them then, with the same producer"
                " sequence.",
                retry_after_ms=5000,
            )
            raise

    def _cut_back(self) -> None:
        """A write failed half way, typically on a full disk: leave no half frame behind.

        The cut is synced, because this segment may never be written again.
        """
        assert self._descriptor is not None
        try:
            self._storage.truncate(self._descriptor, self._length)
            self._storage.sync(self._descriptor)
        except OSError as failure:
            self._poison = StorageUnavailable(
                f"the write-ahead log cannot be cut back: {failure.strerror}",
                hint="Restart the server on a healthy disk.",
            )

    def _close_segment(self) -> None:
        if self._descriptor is not None:
            self._storage.close(self._descriptor)
            self._descriptor = None
