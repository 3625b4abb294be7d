"""What must hold for a stream's table, checked on its bytes. Runs in Spark's Python workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from engine.format.offset import COUNTER_BASE, counter_of, epoch_of
from engine.table.parquet import open_file, read_row_group, row_group_bounds
from engine.types import Offset, PayloadKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from engine.table.actions import DataFile
    from jobs.common.tables import StreamTable

RESULT_SCHEMA: Final = "path string, rows bigint, problem string"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the log says of a file; offsets as the table writes them."""

    path: str
    full_path: str
    size: int
    first: str
    last: str
    rows: int
    kind: str


def verify_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: rows of FileFacts in, one row per file out."""
    for batch in batches:
        facts = [FileFacts(**row) for row in batch.to_pylist()]
        results = [verify_file(fact) for fact in facts]
        yield pa.RecordBatch.from_pydict(
            {
                "path": [fact.path for fact in facts],
                "rows": pa.array([rows for rows, _ in results], pa.int64()),
                "problem": pa.array([problem for _, problem in results], pa.string()),
            }
        )


def verify_file(fact: FileFacts) -> tuple[int, str | None]:
    """Rows, and what is wrong: reads every page, checksums included."""
    try:
        with pa.OSFile(fact.full_path) as source:
            if source.size() != fact.size:
                return 0, f"has {source.size()} bytes, the log says {fact.size}"
            with open_file(source) as file:
                return _verify_rows(fact, file)
    except Exception as error:  # noqa: BLE001  (supervised: damage breaks a reader in any way)
        lines = str(error).splitlines() or [type(error).__name__]
        return 0, f"cannot be read: {lines[0]}"


def _verify_rows(fact: FileFacts, file: pa.NativeFile) -> tuple[int, str | None]:
    rows, previous = 0, None
    first = last = b""
    for index, bounds in enumerate(row_group_bounds(file)):
        keys = read_row_group(file, index, PayloadKind(fact.kind)).keys
        rows += len(keys)
        if previous is not None:
            keys = np.concatenate([previous, keys])
        problem = _verify_order(keys)
        if problem is not None:
            return rows, problem
        low, high = keys[0 if previous is None else 1], keys[-1]
        if (int(low), int(high)) != bounds:
            return rows, f"row group {index} has other offsets than its statistics say"
        first, last, previous = first or low, high, keys[-1:]
    if rows != fact.rows:
        return rows, f"has {rows} rows, the log says {fact.rows}"
    if (first.decode(), last.decode()) != (fact.first, fact.last):
        return rows, f"holds {first.decode()} to {last.decode()}, the log says otherwise"
    return rows, None


def _verify_order(keys: np.ndarray) -> str | None:
    """Counters go on by one within an epoch and begin at 1 in a new one."""
    digits = keys.view(np.uint8).reshape(len(keys), 32)[:, :].astype(np.int64) - ord("0")
    if ((digits < 0) | (digits > 9)).any():
        return "holds an offset that is not 32 digits"
    weights = 10 ** np.arange(15, -1, -1, dtype=np.int64)
    epochs, counters = digits[:, :16] @ weights, digits[:, 16:] @ weights
    same = epochs[1:] == epochs[:-1]
    is_next = np.where(same, counters[1:] == counters[:-1] + 1, counters[1:] == 1)
    bad = np.flatnonzero(~(is_next & (epochs[1:] >= epochs[:-1])))
    if len(bad):
        index = int(bad[0])
        return (
            f"{keys[index + 1].decode()} does not follow {keys[index].decode()}:"
            " a record is missing, doubled or out of order"
        )
    return None


def verify_log(table: StreamTable) -> list[str]:
    """What the log alone can tell: order and gaps between files, and the counts."""
    state = table.state
    files = sorted(state.files.values(), key=lambda file: file.first)
    problems = []
    previous: DataFile | None = None
    for file in files:
        if file.last < file.first or file.rows < 1:
            problems.append(f"{file.path}: the log gives it no rows, or they end before they begin")
        if previous is not None and not _follows(previous.last, file.first):
            word = "overlaps" if file.first <= previous.last else "leaves a gap after"
            problems.append(f"{file.path}: {word} {previous.path}")
        previous = file
    if files and files[0].first <= state.trimmed:
        problems.append(f"{files[0].path}: holds records that the log calls trimmed")
    if previous is not None and previous.last != state.committed:
        problems.append(f"the last file ends at {previous.last}, the log at {state.committed}")
    live = state.records - state.records_trimmed
    if table.rows != live:
        problems.append(f"the files hold {table.rows} records, the log counts {live}")
    return problems


def _follows(last: Offset, first: Offset) -> bool:
    if epoch_of(first) == epoch_of(last):
        return first == last + 1
    return first > last and counter_of(first) == 1


assert COUNTER_BASE == 10**16, "an offset is two halves of 16 digits"
