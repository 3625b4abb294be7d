"""Checkpoints: read by the engine, written by delta-rs together with its log clean-up.

deltalake is imported here and nowhere else, and only when a checkpoint is due: a server whose
streams are young never pays for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import crc32c
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.table.actions import data_file
from engine.table.companion import INDEX_FOLDER
from engine.table.schema import LOG_FOLDER
from engine.table.state import TableState

if TYPE_CHECKING:
    from engine.storage import Storage

_CHECKSUM_NAME: Final = re.compile(r"([0-9]{20})\.checkpoint\.([0-9a-f]{8})", re.ASCII)
_COLUMNS: Final = ["add.path", "add.size", "add.stats", "txn", "metaData.configuration"]


def write_checkpoint(storage: Storage, folder: str) -> None:
    """Write a checkpoint of the newest version, then drop entries past the log retention.

    The entries go only when the checkpoint that replaces them is on the disk (F1).
    """
    from deltalake import DeltaTable

    table = DeltaTable(storage.uri(folder))
    table.create_checkpoint()
    version = checkpoint_hint(storage, folder)
    storage.sync_path(_checkpoint_path(folder, version))
    storage.sync_path(_hint_path(folder))
    storage.sync_path(f"{folder}/{LOG_FOLDER}")
    _note_checksum(storage, folder, version)
    table.cleanup_metadata()


def _note_checksum(storage: Storage, folder: str, version: int) -> None:
    """A checkpoint has no checksums of its own: a flipped bit in it would be another offset."""
    data = storage.read(_checkpoint_path(folder, version))
    storage.make_folder(f"{folder}/{INDEX_FOLDER}")
    name = f"{version:020d}.checkpoint.{crc32c.crc32c(data):08x}"
    storage.replace(f"{folder}/{INDEX_FOLDER}/{name}", b"")
    for old in storage.names(f"{folder}/{INDEX_FOLDER}"):
        match = _CHECKSUM_NAME.fullmatch(old)
        if match and not storage.exists(_checkpoint_path(folder, int(match[1]))):
            storage.remove(f"{folder}/{INDEX_FOLDER}/{old}")


def is_damaged(storage: Storage, folder: str, version: int) -> bool:
    """A checkpoint that is there and cannot be used."""
    is_there = storage.exists(_checkpoint_path(folder, version))
    return is_there and _try_checkpoint(storage, folder, version) is None


def load_checkpoint(
    storage: Storage, folder: str, versions: list[int], *, version_max: int | None
) -> TableState:
    """The newest readable checkpoint up to ``version_max``, or an empty state.

    A torn checkpoint costs time, not data: an older one or the entries themselves serve.
    """
    for version in sorted(versions, reverse=True):
        if version_max is None or version <= version_max:
            state = _try_checkpoint(storage, folder, version)
            if state is not None:
                return state
    return TableState()


def drop_torn_checkpoints(
    storage: Storage, folder: str, versions: list[int], version_last: int
) -> None:
    """Remove checkpoints that cannot be read or describe a version that is gone.

    Every other Delta reader would trust them.
    """
    for version in versions:
        if version > version_last or _try_checkpoint(storage, folder, version) is None:
            storage.remove(_hint_path(folder))
            storage.remove(_checkpoint_path(folder, version))


def drop_dangling_hint(storage: Storage, folder: str) -> None:
    """Remove a _last_checkpoint that names no checkpoint: other readers fail on it."""
    path = _hint_path(folder)
    if not storage.exists(path):
        return
    if not storage.exists(_checkpoint_path(folder, checkpoint_hint(storage, folder))):
        storage.remove(path)


def checkpoint_hint(storage: Storage, folder: str) -> int:
    """The version that _last_checkpoint names; -1 where it names none."""
    try:
        return msgspec.json.decode(storage.read(_hint_path(folder)), type=_Hint).version
    except (FileNotFoundError, UnicodeDecodeError, msgspec.DecodeError):
        return -1


def checkpoint_tombstones(storage: Storage, folder: str, version: int) -> dict[str, int] | None:
    """Removed files that a checkpoint remembers, with the time (ms); None if it is unreadable."""
    try:
        data = storage.read(_checkpoint_path(folder, version))
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            table = file.read(columns=["remove.path", "remove.deletionTimestamp"])
    except (pa.ArrowException, OSError):
        return None
    if "remove" not in table.column_names:
        return {}
    return {row["path"]: row["deletionTimestamp"] or 0 for row in _present(table, "remove")}


class _Hint(msgspec.Struct):
    version: int


def _hint_path(folder: str) -> str:
    return f"{folder}/{LOG_FOLDER}/_last_checkpoint"


def _checkpoint_path(folder: str, version: int) -> str:
    return f"{folder}/{LOG_FOLDER}/{version:020d}.checkpoint.parquet"


def _try_checkpoint(storage: Storage, folder: str, version: int) -> TableState | None:
    try:
        data = storage.read(_checkpoint_path(folder, version))
        noted = [
            match[2]
            for name in storage.names(f"{folder}/{INDEX_FOLDER}")
            if (match := _CHECKSUM_NAME.fullmatch(name)) and int(match[1]) == version
        ]
        # Written twice, it was noted twice. Those of others are not noted.
        if noted and f"{crc32c.crc32c(data):08x}" not in noted:
            return None
        return _decode_checkpoint(data, version)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, msgspec.DecodeError):
        return None


def _decode_checkpoint(data: bytes, version: int) -> TableState:
    # Not pq.read_table: that does not know columns inside of structs.
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        table = file.read(columns=_COLUMNS)
    state = TableState(version=version)
    for row in _present(table, "add"):
        file = data_file(row["path"], row["size"], row["stats"])
        state.files[file.path] = file
    for row in _present(table, "txn"):
        state.txns[row["appId"]] = row["version"]
    for row in _present(table, "metaData"):
        state.configuration = dict(row["configuration"])
    return state


def _present(table: pa.Table, column: str) -> list[dict[str, Any]]:
    return list(pc.drop_null(table.column(column)).to_pylist())
