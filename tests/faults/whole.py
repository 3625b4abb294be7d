"""The last look at a root whose server has stopped: every way to read a table shows the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.format.names import table_folder
from engine.types import StreamName
from jobs import check
from tests.support.load import LogBroken
from tests.support.tables import streamed
from tests.support.workload import check_table, table_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.load import StreamHistory


class WholeCheck:
    """Snapshot, readStream from version 0, and fsck (I6)."""

    def __init__(self, spark: SparkSession, scratch: Path) -> None:
        self._spark = spark
        self._scratch = scratch
        self._count = 0

    def __call__(self, root: Path, histories: Mapping[str, StreamHistory]) -> None:
        """LogBroken where a table is not the log that clients have seen."""
        for name, history in histories.items():
            rows = table_rows(root, name)
            if len(rows) != len(history.verified):
                raise LogBroken(f"{name}: {len(rows)} rows, {len(history.verified)} records")
            check_table(history, rows)
            if rows:
                self._count += 1
                self._check_streamed(root, name, rows)
        if check.main(["--root", str(root), "--quiet"]) != 0:
            raise LogBroken("the check job finds damage")

    def _check_streamed(self, root: Path, name: str, rows: list[tuple[str, bytes]]) -> None:
        table = root / table_folder(StreamName(name))
        seen = streamed(self._spark, table, self._scratch / str(self._count))
        if [(offset, data.encode()) for offset, data in seen] != rows:
            raise LogBroken(f"{name}: readStream sees other rows than the snapshot holds")
