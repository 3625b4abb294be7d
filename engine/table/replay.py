"""What a table's log says: replay of checkpoint and entries into one state.

Entries above the durable mark may be torn by a power cut (F1); they are put aside, not trusted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from engine.errors import TableDamaged
from engine.table.actions import EntryDamaged, LogEntry, decode_entry
from engine.table.checkpoint import (
    checkpoint_hint,
    drop_dangling_hint,
    drop_torn_checkpoints,
    load_checkpoint,
)
from engine.table.companion import drop_indexes_above, load_index
from engine.table.parquet import open_file
from engine.table.schema import LOG_FOLDER

if TYPE_CHECKING:
    from engine.storage import Storage
    from engine.table.actions import DataFile
    from engine.table.state import TableState

_ENTRY_NAME: Final = re.compile(r"([0-9]{20})\.json", re.ASCII)
_CHECKPOINT_NAME: Final = re.compile(r"([0-9]{20})\.checkpoint\.parquet", re.ASCII)
_ASIDE_FOLDER: Final = "_aside"
# Reading more entries than this one by one takes longer than a listing and a checkpoint.
_INDEX_LAG_MAX: Final = 1000


def entry_path(folder: str, version: int) -> str:
    """Where the log entry of a version lies."""
    return f"{folder}/{LOG_FOLDER}/{version:020d}.json"


def load_state(storage: Storage, folder: str) -> TableState:
    """The newest version; TableDamaged where an entry cannot be read. Changes nothing."""
    return _load_by_index(storage, folder) or replay_log(storage, folder)


def replay_log(storage: Storage, folder: str) -> TableState:
    """The newest version from checkpoint and entries alone."""
    listing = list_log(storage, folder)
    state = load_checkpoint(storage, folder, listing.checkpoints, version_max=None)
    for version in listing.entries:
        if version > state.version:
            try:
                state.apply(_read_entry(storage, folder, version, state.version + 1), version)
            except EntryDamaged as error:
                raise _damaged(folder, version, str(error)) from error
    return state


def _load_by_index(storage: Storage, folder: str) -> TableState | None:
    """Index and the few entries after it, without a listing; None where the log must be read."""
    state = load_index(storage, folder, version_max=None)
    if state is None:
        return None
    indexed, hinted = state.version, checkpoint_hint(storage, folder)
    if hinted - indexed > _INDEX_LAG_MAX:
        return None
    for entry in newer_entries(storage, folder, indexed):
        state.apply(entry, state.version + 1)
    # The entry of the index's own version is there: then clean-up has not reached those after it,
    # and the first that is missing is the end of the log.
    is_whole = state.version >= hinted and storage.exists(entry_path(folder, indexed))
    return state if is_whole else None


def read_log_entry(storage: Storage, folder: str, version: int) -> LogEntry | None:
    """One entry; None where it is gone or damaged."""
    try:
        return decode_entry(storage.read(entry_path(folder, version)))
    except (FileNotFoundError, EntryDamaged):
        return None


def newer_entries(storage: Storage, folder: str, version: int) -> list[LogEntry]:
    """Entries after ``version``, in order, without listing the log."""
    entries: list[LogEntry] = []
    while True:
        try:
            data = storage.read(entry_path(folder, version + 1 + len(entries)))
            entries.append(decode_entry(data))
        except FileNotFoundError:
            return entries
        except EntryDamaged as error:
            raise _damaged(folder, version + 1 + len(entries), str(error)) from error


def recover_state(storage: Storage, folder: str, *, durable_version: int) -> TableState:
    """The newest version that a power cut has left whole; only for start-up.

    Entries up to ``durable_version`` must be whole, or TableDamaged is raised. What is torn above
    it is put aside, with everything after it: its records are still in the WAL and will be
    committed again. Checkpoints above it are not trusted, for the files they name may be torn;
    without an older one they have to do.
    """
    listing = list_log(storage, folder)
    state = load_checkpoint(storage, folder, listing.checkpoints, version_max=durable_version)
    indexed = load_index(storage, folder, version_max=durable_version)
    if indexed is not None and indexed.version > state.version:
        state = indexed
    if listing.entries and listing.entries[0] > state.version + 1:
        state = load_checkpoint(storage, folder, listing.checkpoints, version_max=None)
    versions = [version for version in listing.entries if version > state.version]
    for version in versions:
        # After a failed sync memory may hold an entry that the disk does not (F5).
        if version > durable_version:
            storage.forget_cached(entry_path(folder, version))
    entries, damage = _read_entries(storage, folder, versions, state.version + 1)
    verified: set[str] = set()
    while (bad := _first_damaged(storage, folder, entries, durable_version, verified)) is not None:
        # What is cut off replaces nothing any more, so what is left is looked at again.
        index, damage = bad
        del entries[index:]
    for version, entry in entries:
        state.apply(entry, version)
    if state.version < durable_version:
        raise _damaged(folder, state.version + 1, str(damage or "it is missing"))
    put_aside(storage, folder, [version for version in versions if version > state.version])
    unsure = [version for version in listing.checkpoints if version > durable_version]
    drop_torn_checkpoints(storage, folder, unsure, state.version)
    drop_dangling_hint(storage, folder)
    drop_indexes_above(storage, folder, state.version)
    return state


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies in a log folder, by version, in order."""

    entries: list[int]
    checkpoints: list[int]


def list_log(storage: Storage, folder: str) -> Listing:
    """The versions of a table's log."""
    names = storage.names(f"{folder}/{LOG_FOLDER}")
    return Listing(
        sorted(int(match[1]) for name in names if (match := _ENTRY_NAME.fullmatch(name))),
        sorted(int(match[1]) for name in names if (match := _CHECKPOINT_NAME.fullmatch(name))),
    )


def _read_entry(storage: Storage, folder: str, version: int, expected: int) -> LogEntry:
    if version != expected:
        raise EntryDamaged(f"version {expected} is missing")
    return decode_entry(storage.read(entry_path(folder, version)))


def _read_entries(
    storage: Storage, folder: str, versions: list[int], expected: int
) -> tuple[list[tuple[int, LogEntry]], EntryDamaged | None]:
    """Entries up to the first that is not whole, and what is wrong with that one."""
    entries: list[tuple[int, LogEntry]] = []
    for version in versions:
        try:
            entries.append((version, _read_entry(storage, folder, version, expected)))
        except EntryDamaged as error:
            return entries, error
        expected += 1
    return entries, None


def _damaged(folder: str, version: int, reason: str) -> TableDamaged:
    return TableDamaged(
        f"version {version} of the table in {folder} cannot be read: {reason}",
        hint="Restore the folder from a copy, or move it out of the root to go on without it.",
    )


def _first_damaged(
    storage: Storage,
    folder: str,
    entries: list[tuple[int, LogEntry]],
    durable_version: int,
    verified: set[str],
) -> tuple[int, EntryDamaged] | None:
    """The first entry above the durable mark whose files are not whole.

    A commit is only as good as its files. Those that a later rewrite replaced may be gone.
    """
    replaced = {path for _, entry in entries for path in entry.removes}
    for index, (version, entry) in enumerate(entries):
        if version <= durable_version:
            continue
        for file in entry.adds:
            if file.path in replaced or file.path in verified:
                continue
            try:
                _verify_file(storage, folder, file)
            except EntryDamaged as error:
                return index, error
            verified.add(file.path)
    return None


def _verify_file(storage: Storage, folder: str, file: DataFile) -> None:
    """Read it whole, checksums included.

    A disk that cannot be read is no proof of damage: that error goes up and nothing is changed.
    """
    path = f"{folder}/{file.path}"
    try:
        storage.forget_cached(path)
        data = storage.read(path)
    except FileNotFoundError as error:
        raise EntryDamaged(f"file {file.path} is missing") from error
    if len(data) != file.size:
        raise EntryDamaged(f"file {file.path} has a wrong size")
    try:
        with open_file(pa.BufferReader(data)) as parquet:
            for batch in parquet.iter_batches():
                del batch
    except (OSError, pa.ArrowException) as error:
        raise EntryDamaged(f"file {file.path} cannot be read: {error}") from error


def put_aside(storage: Storage, folder: str, versions: list[int]) -> None:
    """Move entries out of the log; they are kept for whoever wants to know what happened."""
    if versions:
        storage.make_folder(f"{folder}/{_ASIDE_FOLDER}")
    # From the top down: a crash in between leaves a shorter log, never a gap.
    for version in sorted(versions, reverse=True):
        storage.rename(entry_path(folder, version), f"{folder}/{_ASIDE_FOLDER}/{version:020d}.json")
