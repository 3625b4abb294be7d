"""Files that no version needs any more: replaced or trimmed ones past the horizon, and orphans.

A replaced file stays as long as readers of older versions may want it. An orphan is a file no entry
speaks of: what a job or a commit left that was cut short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from engine.table.checkpoint import checkpoint_tombstones
from engine.table.replay import list_log, read_log_entry
from engine.table.schema import PARTITION_COLUMN

if TYPE_CHECKING:
    from engine.storage import Storage
    from engine.table.state import TableState

# A commit writes its file first and its entry after it; a file this young may be on its way.
ORPHAN_AGE_MIN_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class StrayFile:
    """A Parquet file in the table's folders that is not part of its newest version."""

    path: str
    size: int
    modified_ms: int
    removed_ms: int | None
    """When a version has removed it; None for an orphan."""

    def is_expired(self, *, now_ms: int, horizon_ms: int) -> bool:
        """Nobody may want it any more."""
        if self.removed_ms is not None:
            return now_ms - self.removed_ms >= horizon_ms
        return now_ms - self.modified_ms >= max(horizon_ms, ORPHAN_AGE_MIN_MS)


def stray_files(storage: Storage, folder: str, state: TableState) -> list[StrayFile]:
    """Everything in the partition folders that ``state`` does not name."""
    removed = tombstones(storage, folder)
    found = []
    for partition in storage.names(folder):
        if not partition.startswith(f"{PARTITION_COLUMN}="):
            continue
        for name, size, modified_ms in storage.sizes(f"{folder}/{partition}"):
            path = f"{partition}/{name}"
            if path not in state.files:
                found.append(StrayFile(path, size, modified_ms, removed.get(path)))
    return found


def tombstones(storage: Storage, folder: str) -> dict[str, int]:
    """Removed files that the log still remembers, with the time of their removal (ms).

    A checkpoint leaves out what was removed longer ago than delta.deletedFileRetentionDuration.
    """
    listing = list_log(storage, folder)
    found: dict[str, int] = {}
    covered = -1
    for version in reversed(listing.checkpoints):
        remembered = checkpoint_tombstones(storage, folder, version)
        if remembered is not None:
            found, covered = remembered, version
            break
    for version in listing.entries:
        entry = read_log_entry(storage, folder, version) if version > covered else None
        if entry is not None:
            found |= entry.removes
    return found
