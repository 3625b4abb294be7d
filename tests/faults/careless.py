"""A server with a precaution taken away, for negative controls: the oracle must notice.

    python -m tests.faults.careless no-wal-sync,no-table-sync serve --root DIR

The product has no switch for any of this; it is done to its classes from outside.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.format import frame
from engine.log import Log
from engine.read import rowgroups
from engine.storage import LocalStorage
from engine.streams import producers
from engine.streams.buffer import Tail
from engine.write import writer
from engine.write.backlog import Backlog
from engine.write.group import GroupCommit
from engine.write.operations import AppendOperation
from engine.write.segments import Segments
from engine.write.wal import Wal

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.format.batch import Batch
    from engine.types import StreamInfo, StreamName
    from engine.write.wal import Group


def no_wal_sync() -> None:
    """An ack rests on the page cache."""
    LocalStorage.sync = lambda self, descriptor: None


def no_table_sync() -> None:
    """The WAL is trimmed although the tables are not on the disk (F1)."""
    LocalStorage.sync_all = lambda self: None


def ack_first() -> None:
    """A group is written when the next one comes, but acknowledged at once."""
    write, held = Wal._write, []

    def write_later(self: Wal, group: Group) -> int:
        written = write(self, held.pop()) if held else 0
        held.append(group)
        return written

    Wal._write = write_later


def trust_failed_sync() -> None:
    """A sync that failed counts as one that did not (F5)."""
    sync = LocalStorage.sync

    def ignore(self: LocalStorage, descriptor: int) -> None:
        try:
            sync(self, descriptor)
        except OSError:
            return

    LocalStorage.sync = ignore


def trust_failed_write() -> None:
    """A write that failed counts as one that did not."""
    write = LocalStorage.write

    def ignore(self: LocalStorage, descriptor: int, parts: list[bytes]) -> None:
        try:
            write(self, descriptor, parts)
        except OSError:
            return

    LocalStorage.write = ignore


def no_checksum() -> None:
    """A frame is whole if its length fits."""

    def fits(data: bytes, position: int, salt: int) -> bool:
        if len(data) - position < frame.FRAME_HEADER_BYTES:
            return False
        magic, length, *_ = frame._FRAME.unpack_from(data, position)
        return magic == frame.FRAME_MAGIC and position + frame._FRAME.size + length <= len(data)

    frame._is_whole = fits


def cut_anywhere() -> None:
    """A bad frame ends the log, whatever follows it."""
    frame._refuse_if_frames_follow = lambda *_: None


def no_page_checksum() -> None:
    """Parquet is decoded as it is."""

    def open_any(source: pa.NativeFile, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
        return pq.ParquetFile(source, metadata=footer)

    rowgroups.open_file = open_any


def unbounded_backlog() -> None:
    """Recovery keeps in memory whatever no table holds."""
    Backlog.is_full = property(lambda self: False)


def put_over() -> None:
    """A log entry is looked for, then renamed over whatever is there by then (F2)."""

    def check_then_rename(self: LocalStorage, path: str, data: bytes) -> bool:
        target = Path(self._at(path))
        if target.exists():
            return False
        temporary = target.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(data)
        temporary.rename(target)
        return True

    LocalStorage.put_if_absent = check_then_rename


def wall_clock() -> None:
    """Epochs follow the wall clock, also backwards."""
    seal = GroupCommit._seal

    def seal_now(self: GroupCommit) -> None:
        self.epoch = 0
        seal(self)

    GroupCommit._seal = seal_now


def no_dedupe() -> None:
    """A producer's retry is an append like any other."""

    def never(*_: Any) -> bool:
        return False

    producers.is_duplicate = writer.is_duplicate = never


def early_trim() -> None:
    """A segment goes before its records are committed."""
    Segments._is_committed = lambda self, segment, registry: True


def no_cut_back() -> None:
    """A write that failed half way leaves its half frame in the log."""
    Wal._cut_back = lambda self: None


def replace_in_place() -> None:
    """What is there is removed before its replacement is durable."""

    def remove_then_write(self: LocalStorage, path: str, data: bytes) -> None:
        target = Path(self._at(path))
        target.unlink(missing_ok=True)
        target.write_bytes(data)

    LocalStorage.replace = remove_then_write


def slow_disk() -> None:
    """Nothing is taken away: what lies between asking and having is only long enough to be seen."""
    sync = LocalStorage.sync

    def sync_late(self: LocalStorage, descriptor: int) -> None:
        time.sleep(0.03)
        sync(self, descriptor)

    LocalStorage.sync = sync_late


def stale_tail() -> None:
    """HEAD answers what was true a moment ago."""
    head, kept = Log.head, {}

    def head_of_then(self: Log, name: StreamName) -> StreamInfo:
        now = time.monotonic()
        if name not in kept or now - kept[name][0] > 0.05:
            kept[name] = now, head(self, name)
        return kept[name][1]

    Log.head = head_of_then


def early_read() -> None:
    """Readers are served what is on its way to a disk that takes its time (I3)."""
    encode, append, write = AppendOperation.encode, Tail.append, Wal._write

    def encode_and_show(self: AppendOperation, epoch: int) -> list[bytes | memoryview]:
        parts = encode(self, epoch)
        if self.batch is not None:
            self.stream.buffer.append(self.batch)
            self.stream.tail = self.batch.last
        return parts

    def append_once(self: Tail, batch: Batch) -> None:
        if not self._lasts or batch.first > self._lasts[-1]:
            append(self, batch)

    def write_late(self: Wal, group: Group) -> int:
        time.sleep(0.05)
        return write(self, group)

    AppendOperation.encode, Tail.append, Wal._write = encode_and_show, append_once, write_late


def hasty_refusal() -> None:
    """A refusal is answered although what it rests on is still on its way."""
    GroupCommit.barrier = no_barrier


async def no_barrier(self: GroupCommit) -> None:
    """Does not wait."""


PRECAUTIONS: dict[str, Callable[[], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        no_wal_sync,
        no_table_sync,
        ack_first,
        trust_failed_sync,
        trust_failed_write,
        no_checksum,
        cut_anywhere,
        no_page_checksum,
        unbounded_backlog,
        put_over,
        wall_clock,
        no_dedupe,
        early_trim,
        replace_in_place,
        no_cut_back,
        slow_disk,
        stale_tail,
        early_read,
        hasty_refusal,
    )
}


def main() -> None:
    """Take the precautions away, then be `bottomless`."""
    for name in sys.argv.pop(1).split(","):
        PRECAUTIONS[name]()
    from bottomless.cli import main as bottomless

    bottomless()


if __name__ == "__main__":
    main()
