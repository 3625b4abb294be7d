"""What a table's log says: replay of checkpoint and entries into one state.

Entries above the durable mark may be torn by a power cut (F1); they are reported, not trusted.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.errors import TableDamaged
from engine.format.offset import make_offset
from engine.storage import Storage
from engine.table.actions import (
    COUNTER_APP,
    EPOCH_APP,
    DataFile,
    EntryDamaged,
    LogEntry,
    data_file,
    decode_entry,
)
from engine.table.parquet import open_file
from engine.table.schema import LOG_FOLDER
from engine.types import Offset

_ENTRY_NAME: Final = re.compile(r"([0-9]{20})\.json", re.ASCII)
_CHECKPOINT_NAME: Final = re.compile(r"([0-9]{20})\.checkpoint\.parquet", re.ASCII)
_ASIDE_FOLDER: Final = "_aside"
NO_VERSION: Final = -1


@dataclass(slots=True)
class TableState:
    """A version of the table: its live files in offset order, its txn numbers, its properties."""

    version: int = NO_VERSION
    files: dict[str, DataFile] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)
    configuration: dict[str, str] = field(default_factory=dict)

    @property
    def committed(self) -> Offset:
        """The last offset that is in the table."""
        return make_offset(self.txns.get(EPOCH_APP, 0), self.txns.get(COUNTER_APP, 0))

    def apply(self, entry: LogEntry, version: int) -> None:
        """Advance by one entry."""
        for path in entry.removes:
            self.files.pop(path, None)
        for file in entry.adds:
            self.files[file.path] = file
        self.txns.update(entry.txns)
        if entry.configuration is not None:
            self.configuration = entry.configuration
        self.version = version


def entry_path(folder: str, version: int) -> str:
    """Where the log entry of a version lies."""
    return f"{folder}/{LOG_FOLDER}/{version:020d}.json"


def load_state(storage: Storage, folder: str, *, durable_version: int | None) -> TableState:
    """Replay the log.

    Entries up to ``durable_version`` (None: all of them) must be whole, or TableDamaged is raised. What is
    torn above it is put aside, with everything after it: its records are still in the WAL and will be
    committed again.
    """
    names = storage.names(f"{folder}/{LOG_FOLDER}")
    state = _load_checkpoint(storage, folder, names)
    versions = sorted(int(match[1]) for name in names if (match := _ENTRY_NAME.fullmatch(name)))
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
            _put_aside(storage, folder, [number for number in versions if number >= version])
            break
        state.apply(entry, version)
    if durable_version is not None and state.version < durable_version:
        raise _damaged(folder, state.version + 1, f"it was durable up to version {durable_version}")
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
            with open_file(storage.open_input(path)) as parquet:
                for batch in parquet.iter_batches():
                    del batch
        except (OSError, pa.ArrowException) as error:
            raise EntryDamaged(f"file {file.path} cannot be read: {error}") from error


def _put_aside(storage: Storage, folder: str, versions: list[int]) -> None:
    storage.make_folder(f"{folder}/{_ASIDE_FOLDER}")
    # From the top down: a crash in between leaves a shorter log, never a gap.
    for version in sorted(versions, reverse=True):
        storage.rename(entry_path(folder, version), f"{folder}/{_ASIDE_FOLDER}/{version:020d}.json")


def _load_checkpoint(storage: Storage, folder: str, names: list[str]) -> TableState:
    found = [int(match[1]) for name in names if (match := _CHECKPOINT_NAME.fullmatch(name))]
    for version in sorted(found, reverse=True):
        path = f"{folder}/{LOG_FOLDER}/{version:020d}.checkpoint.parquet"
        try:
            return _decode_checkpoint(storage.read(path), version)
        except (pa.ArrowException, OSError, msgspec.DecodeError, EntryDamaged):
            # A torn checkpoint costs time, not data: an older one or the entries themselves serve.
            continue
    return TableState()


def _decode_checkpoint(data: bytes, version: int) -> TableState:
    table = pq.read_table(
        io.BytesIO(data),
        columns=["add.path", "add.size", "add.stats", "txn", "metaData.configuration"],
    )
    state = TableState(version=version)
    for row in _present(table, "add"):
        file = data_file(row["path"], row["size"], row["stats"])
        state.files[file.path] = file
    for row in _present(table, "txn"):
        state.txns[row["appId"]] = row["version"]
    for row in _present(table, "metaData"):
        state.configuration = dict(row["configuration"])
    return state


def _present(table: pa.Table, column: str) -> list[dict]:  # type: ignore[type-arg]
    values = table.column(column)
    return list(pc.drop_null(values).to_pylist())
