"""A server with a precaution taken away, for negative controls: the oracle must notice.

    python -m tests.faults.careless no-wal-sync,no-table-sync serve --root DIR

The product has no switch for any of this; it is done to its classes from outside.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.format import frame
from engine.storage import LocalStorage
from engine.streams import producers
from engine.write import writer
from engine.write.group import GroupCommit
from engine.write.segments import Segments
from engine.write.wal import Wal

if TYPE_CHECKING:
    from collections.abc import Callable

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


def no_checksum() -> None:
    """A frame is whole if its length fits."""

    def fits(data: bytes, position: int, salt: int) -> bool:
        if len(data) - position < frame.FRAME_HEADER_BYTES:
            return False
        magic, length, *_ = frame._FRAME.unpack_from(data, position)
        return magic == frame.FRAME_MAGIC and position + frame._FRAME.size + length <= len(data)

    frame._is_whole = fits


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


PRECAUTIONS: dict[str, Callable[[], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        no_wal_sync,
        no_table_sync,
        ack_first,
        trust_failed_sync,
        no_checksum,
        put_over,
        wall_clock,
        no_dedupe,
        early_trim,
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
