"""A change that a job makes to a stream's table beside the live server: a rewrite, or a trim.

Spark never commits here (F2). A change is one log entry, put in place if absent, the same way as an
append. Before every attempt its inputs must still be live; where they are not, another change came
first and this one is dropped. The reply to a put may be lost, so what lies there is read (F3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from engine.errors import ChangeLost, CommitUnknown, StorageUnavailable
from engine.format.offset import counter_of, epoch_of
from engine.table.actions import (
    CHANGE_APP,
    REWRITTEN_APP,
    TRIMMED_COUNTER_APP,
    TRIMMED_EPOCH_APP,
    TRIMMED_RECORDS_APP,
    DataFile,
    EntryDamaged,
    LogEntry,
    decode_entry,
    encode_add,
    encode_entry,
    encode_remove,
    encode_txn,
)
from engine.table.replay import entry_path

if TYPE_CHECKING:
    from engine.storage import Storage
    from engine.table.state import TableState

# A live server commits about once a second; each of its commits may take the version we wanted.
_ATTEMPTS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class TableChange:
    """Files that go and files that come, in one version."""

    operation: str
    removes: list[DataFile]
    adds: list[DataFile]
    changes_data: bool
    """False for a rewrite: the same rows in other files, which streaming readers do not notice."""
    txns: dict[str, int] = field(default_factory=dict)


def rewrite_of(state: TableState, removes: list[DataFile], adds: list[DataFile]) -> TableChange:
    """The same rows in other files; the table counts what was rewritten."""
    rows = sum(file.rows for file in removes)
    assert rows == sum(file.rows for file in adds)
    txns = {REWRITTEN_APP: state.txns.get(REWRITTEN_APP, 0) + rows}
    return TableChange("OPTIMIZE", removes, adds, changes_data=False, txns=txns)


def trim_of(state: TableState, removes: list[DataFile]) -> TableChange:
    """The oldest files go, and the table remembers up to where its records are gone."""
    last = max(file.last for file in removes)
    txns = {
        TRIMMED_EPOCH_APP: epoch_of(last),
        TRIMMED_COUNTER_APP: counter_of(last),
        TRIMMED_RECORDS_APP: state.records_trimmed + sum(file.rows for file in removes),
    }
    return TableChange("DELETE", removes, [], changes_data=True, txns=txns)


def commit_change(
    storage: Storage, folder: str, state: TableState, change: TableChange, *, now_ms: int
) -> int:
    """Put the change in place and return its version; ``state`` is brought up to it.

    The files of ``change.adds`` must be durable already. ChangeLost where an input is gone.
    """
    number = max(now_ms, state.txns.get(CHANGE_APP, 0) + 1)
    ours = LogEntry(
        list(change.adds),
        {file.path: now_ms for file in change.removes},
        {CHANGE_APP: number, **change.txns},
    )
    data = encode_entry(
        _lines(change, ours, now_ms), operation=change.operation, timestamp_ms=now_ms
    )
    for _ in range(_ATTEMPTS_MAX):
        _require_inputs(folder, state, change)
        version = state.version + 1
        if _put(storage, folder, version, data):
            state.apply(ours, version)
            return version
        theirs = _read_taken(storage, folder, version)
        state.apply(theirs, version)
        if _is_same(theirs, ours):
            return version
    raise CommitUnknown(f"{_ATTEMPTS_MAX} versions of {folder} were taken by others")


def _lines(change: TableChange, entry: LogEntry, now_ms: int) -> list[bytes]:
    lines = [encode_txn(app_id, number) for app_id, number in entry.txns.items()]
    lines += [
        encode_remove(file, deleted_at_ms=now_ms, data_change=change.changes_data)
        for file in change.removes
    ]
    lines += [encode_add(file, data_change=change.changes_data) for file in change.adds]
    return lines


def _require_inputs(folder: str, state: TableState, change: TableChange) -> None:
    if change.changes_data and any(file.first <= state.held for file in change.removes):
        raise ChangeLost(f"a fork of {folder} needs records that were to be trimmed")
    gone = [file.path for file in change.removes if state.files.get(file.path) != file]
    if gone:
        raise ChangeLost(
            f"{len(gone)} of {len(change.removes)} files were replaced in {folder} meanwhile",
            hint="Nothing was changed. Run the job again: it starts from what is there now.",
        )


def _put(storage: Storage, folder: str, version: int, data: bytes) -> bool:
    path = entry_path(folder, version)
    try:
        return storage.put_if_absent(path, data)
    except FileNotFoundError as error:
        raise ChangeLost(f"the stream in {folder} was deleted meanwhile") from error
    except OSError as error:
        if storage.exists(path):
            return False
        raise StorageUnavailable(f"the change of {folder} could not be written: {error}") from error


def _read_taken(storage: Storage, folder: str, version: int) -> LogEntry:
    try:
        return decode_entry(storage.read(entry_path(folder, version)))
    except (EntryDamaged, OSError) as error:
        raise CommitUnknown(f"version {version} of {folder} cannot be read: {error}") from error


def _is_same(theirs: LogEntry, ours: LogEntry) -> bool:
    return (
        theirs.txns == ours.txns
        and theirs.removes.keys() == ours.removes.keys()
        and [file.path for file in theirs.adds] == [file.path for file in ours.adds]
    )
