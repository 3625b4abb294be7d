"""What a table's log says: replay of checkpoint and entries into one state.

Entries above the durable mark may be torn by a power cut (F1); they are put aside, not trusted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from engine.errors import TableDamaged
from engine.table.actions import EntryDamaged, LogEntry, decode_entry
from engine.table.checkpoint import drop_torn_checkpoints, load_checkpoint
from engine.table.parquet import open_file
from engine.table.schema import LOG_FOLDER

if TYPE_CHECKING:
    from engine.storage import Storage
    from engine.table.state import TableState

_ENTRY_NAME: Final = re.compile(r"([0-9]{20})\.json", re.ASCII)
_CHECKPOINT_NAME: Final = re.compile(r"([0-9]{20})\.checkpoint\.parquet", re.ASCII)
_ASIDE_FOLDER: Final = "_aside"


def entry_path(folder: str, version: int) -> str:
    """Where the log entry of a version lies."""
    return f"{folder}/{LOG_FOLDER}/{version:020d}.json"


def load_state(storage: Storage, folder: str, *, durable_version: int | None) -> TableState:
    """Replay the log.

    Entries up to ``durable_version`` (None: all of them) must be whole, or TableDamaged is raised.
    What is torn above it is put aside, with everything after it: its records are still in the WAL
    and will be committed again. Checkpoints above it are not trusted, for the files they name may
    be torn; without an older one they have to do.
    """
    names = storage.names(f"{folder}/{LOG_FOLDER}")
    versions = sorted(int(match[1]) for name in names if (match := _ENTRY_NAME.fullmatch(name)))
    checkpoints = [int(match[1]) for name in names if (match := _CHECKPOINT_NAME.fullmatch(name))]
    state = load_checkpoint(storage, folder, checkpoints, version_max=durable_version)
    if versions and versions[0] > state.version + 1:
        state = load_checkpoint(storage, folder, checkpoints, version_max=None)
    for version in versions:
        if version <= state.version:
            continue
        try:
            if version != state.version + 1:
                raise EntryDamaged(f"version {state.version + 1} is missing")
            entry = decode_entry(storage.read(entry_path(folder, version)))
            if durable_version is not None and version > durable_version:
                _verify_files(storage, folder, entry)
        except EntryDamaged as error:
            if durable_version is None or version <= durable_version:
                raise _damaged(folder, version, str(error)) from error
            put_aside(storage, folder, [number for number in versions if number >= version])
            break
        state.apply(entry, version)
    if durable_version is not None:
        if state.version < durable_version:
            reason = f"it was durable up to version {durable_version}"
            raise _damaged(folder, state.version + 1, reason)
        unsure = [version for version in checkpoints if version > durable_version]
        drop_torn_checkpoints(storage, folder, unsure, state.version)
    return state


def _damaged(folder: str, version: int, reason: str) -> TableDamaged:
    return TableDamaged(
        f"version {version} of the table in {folder} cannot be read: {reason}",
        hint="Restore the folder from a copy, or move it out of the root to go on without it.",
    )


def _verify_files(storage: Storage, folder: str, entry: LogEntry) -> None:
    """A commit is only as good as its files: read them whole, checksums included."""
    for file in entry.adds:
        path = f"{folder}/{file.path}"
        try:
            if storage.size(path) != file.size:
                raise EntryDamaged(f"file {file.path} has a wrong size")
            storage.forget_cached(path)
            with open_file(storage.open_input(path)) as parquet:
                for batch in parquet.iter_batches():
                    del batch
        except (OSError, pa.ArrowException) as error:
            raise EntryDamaged(f"file {file.path} cannot be read: {error}") from error


def put_aside(storage: Storage, folder: str, versions: list[int]) -> None:
    """Move entries out of the log; they are kept for whoever wants to know what happened."""
    storage.make_folder(f"{folder}/{_ASIDE_FOLDER}")
    # From the top down: a crash in between leaves a shorter log, never a gap.
    for version in sorted(versions, reverse=True):
        storage.rename(entry_path(folder, version), f"{folder}/{_ASIDE_FOLDER}/{version:020d}.json")
