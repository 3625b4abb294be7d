"""One commit: Parquet files, then one log entry put in place if absent. The same path for every
writer.

The reply to a put may be lost and other processes may commit rewrites, so a taken version is read
back: ours already there is success, a rewrite is taken over and the next version tried, a higher
owner ends our right to commit (F3, F4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

import orjson
import pyarrow as pa

from engine.errors import CommitUnknown, OwnershipLost, StorageUnavailable
from engine.format.offset import DAY_MS, counter_of, epoch_of, flush_date
from engine.table.actions import (
    COUNTER_APP,
    EPOCH_APP,
    OWNER_APP,
    RECORDS_APP,
    DataFile,
    EntryDamaged,
    LogEntry,
    decode_entry,
    encode_add,
    encode_entry,
    encode_txn,
)
from engine.table.parquet import encode_batches
from engine.table.replay import entry_path
from engine.table.schema import LOG_FOLDER, PARTITION_COLUMN, PROTOCOL, delta_schema, table_id
from engine.table.state import NO_VERSION, TableState

if TYPE_CHECKING:
    from engine.format.batch import Batch
    from engine.storage import Storage
    from engine.types import Offset, PayloadKind

_ATTEMPTS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """What the next version of a stream's table shall hold."""

    stream_id: int
    stream_name: str
    kind: PayloadKind
    batches: list[Batch]
    tail: Offset
    owner: int
    now_ms: int
    created_at_ms: int
    row_group_bytes: int
    file_token: str
    txns: dict[str, int] = field(default_factory=dict)
    configuration: dict[str, str] | None = None


Applied = list[tuple[int, LogEntry]]
"""Versions that were found or put in place, in order; the last one is the commit's own."""


def commit(storage: Storage, folder: str, state: TableState, request: CommitRequest) -> Applied:
    """Write files and entry. ``state`` is only read: the caller applies what is returned."""
    stored_owner = state.txns.get(OWNER_APP, 0)
    if stored_owner > request.owner:
        raise _ownership_lost(folder, stored_owner, request.owner)
    try:
        if state.version == NO_VERSION:
            storage.make_folder(f"{folder}/{LOG_FOLDER}")
        files = _write_files(storage, folder, request)
        return _put_entry(storage, folder, state, request, files)
    except (OSError, pa.ArrowException) as error:
        raise StorageUnavailable(f"the commit to {folder} failed: {error}") from error


def _write_files(storage: Storage, folder: str, request: CommitRequest) -> list[DataFile]:
    files = []
    by_day = groupby(request.batches, key=lambda batch: epoch_of(batch.first) // DAY_MS)
    for index, (_, batches_of_day) in enumerate(by_day):
        batches = list(batches_of_day)
        partition = f"{PARTITION_COLUMN}={flush_date(batches[0].first)}"
        path = f"{partition}/part-{request.file_token}-{index}.parquet"
        data = encode_batches(batches, request.kind, row_group_bytes=request.row_group_bytes)
        storage.put_file(f"{folder}/{path}", data)
        files.append(
            DataFile(
                path,
                len(data),
                batches[0].first,
                batches[-1].last,
                sum(batch.count for batch in batches),
            )
        )
    return files


def _put_entry(
    storage: Storage,
    folder: str,
    state: TableState,
    request: CommitRequest,
    files: list[DataFile],
) -> Applied:
    version = state.version + 1
    records = state.records + sum(file.rows for file in files)
    ours = LogEntry(files, {}, _txns(request, records), request.configuration)
    assert version or request.configuration, "the first commit carries the stream's properties"
    lines = _lines(request, ours, first=version == 0)
    data = encode_entry(lines, operation="WRITE", timestamp_ms=request.now_ms)
    applied: Applied = []
    while len(applied) < _ATTEMPTS_MAX:
        if storage.put_if_absent(entry_path(folder, version), data):
            return [*applied, (version, ours)]
        theirs = _read_taken(storage, folder, version, request.owner)
        applied.append((version, theirs))
        if _is_same(theirs, ours):
            return applied
        if EPOCH_APP in theirs.txns:
            # An append we did not know of, most likely our own whose reply was lost: it may hold
            # the very rows of this one. The caller looks at the table anew and decides.
            raise CommitUnknown(f"version {version} of {folder} holds an unexpected append")
        version += 1
    raise CommitUnknown(f"{_ATTEMPTS_MAX} versions of {folder} were taken by others")


def _txns(request: CommitRequest, records: int) -> dict[str, int]:
    return {
        OWNER_APP: request.owner,
        EPOCH_APP: epoch_of(request.tail),
        COUNTER_APP: counter_of(request.tail),
        RECORDS_APP: records,
        **request.txns,
    }


def _read_taken(storage: Storage, folder: str, version: int, owner: int) -> LogEntry:
    try:
        entry = decode_entry(storage.read(entry_path(folder, version)))
    except EntryDamaged as error:
        raise CommitUnknown(f"version {version} of {folder} cannot be read: {error}") from error
    stored_owner = entry.txns.get(OWNER_APP, 0)
    if stored_owner > owner:
        raise _ownership_lost(folder, stored_owner, owner)
    return entry


def _is_same(theirs: LogEntry, ours: LogEntry) -> bool:
    """The entry is our own, put there by a request whose reply was lost."""
    their_paths, our_paths = ([file.path for file in entry.adds] for entry in (theirs, ours))
    return theirs.txns == ours.txns and their_paths == our_paths


def _lines(request: CommitRequest, entry: LogEntry, *, first: bool) -> list[bytes]:
    lines = [orjson.dumps(PROTOCOL)] if first else []
    if entry.configuration is not None:
        lines.append(_metadata(request, entry.configuration))
    lines += [encode_txn(app_id, number) for app_id, number in entry.txns.items()]
    lines += [encode_add(file, data_change=True) for file in entry.adds]
    return lines


def _metadata(request: CommitRequest, configuration: dict[str, str]) -> bytes:
    return orjson.dumps(
        {
            "metaData": {
                "id": table_id(request.stream_id),
                "name": request.stream_name,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": delta_schema(request.kind),
                "partitionColumns": [PARTITION_COLUMN],
                "configuration": configuration,
                "createdTime": request.created_at_ms,
            }
        }
    )


def _ownership_lost(folder: str, stored: int, ours: int) -> OwnershipLost:
    return OwnershipLost(
        f"the table in {folder} belongs to owner {stored}; this process is owner {ours}",
        hint="Another server writes to this root. Stop one of the two.",
    )
