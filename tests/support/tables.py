"""Tables of streams without a server: as many commits as a test wants, in a second or two.

Everything goes through the engine's own commit, so the tables are what a server would have left
after a clean stop, and a server started on the root serves them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow.parquet as pq

from engine.format.batch import SEPARATOR, Batch
from engine.format.frame import StreamMeta
from engine.format.names import table_folder
from engine.format.offset import make_offset
from engine.storage import LocalStorage
from engine.table.checkpoint import write_checkpoint
from engine.table.commit import CommitRequest, commit
from engine.table.schema import STREAM_PROPERTY, table_properties
from engine.table.state import TableState
from engine.types import StreamName, payload_kind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

JSON = "application/json"
DAY_MS = 86_400_000
MONDAY_MS = 1_794_873_600_000
"""2026-11-17T00:00:00Z."""
OWNER = 1


class TableBuilder:
    """One stream's table, commit by commit."""

    def __init__(
        self, root: Path, name: str, *, content_type: str = JSON, row_group_bytes: int = 1 << 20
    ) -> None:
        self.storage = LocalStorage(root)
        self.name = StreamName(name)
        self.folder = table_folder(self.name)
        self.path = root / self.folder
        self.state = TableState()
        self._kind = payload_kind(content_type)
        self._row_group_bytes = row_group_bytes
        self._meta = StreamMeta(
            id=random.Random(name).getrandbits(63),
            name=name,
            content_type=content_type,
            created_at_ms=MONDAY_MS,
        )

    def commit(self, epoch_ms: int, records: list[bytes], *, appends: int = 1) -> None:
        """One version: the records in one epoch, split over several appends."""
        batches = []
        step = max(1, len(records) // appends)
        for begin in range(0, len(records), step):
            part = records[begin : begin + step]
            lengths = np.array([len(record) for record in part], dtype="<u4")
            first = make_offset(epoch_ms, begin + 1)
            batches.append(Batch(first, len(part), SEPARATOR.join(part), lengths))
        self.commit_batches(batches, epoch_ms)

    def commit_batches(self, batches: list[Batch], now_ms: int) -> None:
        """One version of batches that the caller has made."""
        version = self.state.version + 1
        request = CommitRequest(
            stream_id=self._meta.id,
            stream_name=self._meta.name,
            kind=self._kind,
            batches=batches,
            tail=batches[-1].last,
            owner=OWNER,
            now_ms=now_ms,
            created_at_ms=self._meta.created_at_ms,
            row_group_bytes=self._row_group_bytes,
            file_token=f"{version:08d}",
            configuration=self._properties() if version == 0 else None,
        )
        for number, entry in commit(self.storage, self.folder, self.state, request):
            self.state.apply(entry, number)

    def _properties(self) -> dict[str, str]:
        return {
            **table_properties(checkpoint_every=100, log_retention_days=30),
            STREAM_PROPERTY: msgspec.json.encode(self._meta).decode(),
        }

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version."""
        write_checkpoint(self.storage, self.folder)


def small_commits(
    root: Path,
    name: str,
    *,
    commits: int,
    rows: int,
    begin_ms: int = MONDAY_MS,
    step_ms: int = 1000,
) -> TableBuilder:
    """A table of many small flushes, as a slow stream leaves them behind."""
    table = TableBuilder(root, name)
    for number in range(commits):
        first = number * rows
        table.commit(begin_ms + number * step_ms, list(events(first, first + rows)))
    return table


def events(begin: int, end: int) -> Iterable[bytes]:
    """JSON records of about 150 bytes, each unlike all others."""
    for number in range(begin, end):
        mixed = (number * 2654435761) & 0xFFFFFFFF
        yield (
            b'{"id":%d,"user":"user-%04d","item":"item-%03d","price":%d.%02d,'
            b'"note":"%08x%08x","at":"2026-11-17T%02d:%02d:%02dZ"}'
            % (
                *(number, mixed % 5000, mixed % 300, mixed % 90, mixed % 100),
                *(mixed, mixed ^ 0xA5A5A5A5, number // 3600 % 24, number // 60 % 60, number % 60),
            )
        )


def streamed(
    spark: SparkSession, path: Path, scratch: Path, *, timeout_s: int = 600
) -> list[tuple[str, str]]:
    """What readStream sees from version 0 on."""
    target = scratch / "seen"
    query = (
        spark.readStream.format("delta")
        .option("startingVersion", "0")
        .load(str(path))
        .select("offset", "data")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(target))
    )
    query.awaitTermination(timeout_s)
    assert not query.isActive, "readStream did not end"
    return pairs_of(pq.read_table(target))


def pairs_of(rows: Any) -> list[tuple[str, str]]:
    """Offset and data of every row, in order."""
    return sorted(zip(rows["offset"].to_pylist(), rows["data"].to_pylist(), strict=True))
