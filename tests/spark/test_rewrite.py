"""What compaction writes: any number of days, records of any size, a root of any name."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from engine.table.replay import load_state
from jobs import check, compact, replay
from tests.support.tables import DAY_MS, MONDAY_MS, TableBuilder, events, small_commits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

GROUP_BYTES = 1 << 20
RECORD_BYTES = 512 << 10


class Jobs:
    """Jobs on one root; each must end well."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys

    def run(self, module: Any, *arguments: str) -> dict[str, Any]:
        self._capsys.readouterr()
        code = module.main(["--root", str(self.root), "--quiet", *arguments])
        printed = self._capsys.readouterr()
        assert code == 0, printed
        report: dict[str, Any] = json.loads(printed.out.splitlines()[-1])
        return report


@pytest.fixture
def jobs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Jobs:
    del spark
    return Jobs(tmp_path / "root", capsys)


def rows_of(table: TableBuilder) -> list[tuple[str, str]]:
    """From the live files: delta-rs does not open every path."""
    found = []
    for path in load_state(table.storage, table.folder).files:
        rows = pq.ParquetFile(table.path / path).read(["offset", "data"])
        found += zip(rows["offset"].to_pylist(), rows["data"].to_pylist(), strict=True)
    return sorted(found)


def row_groups(table: TableBuilder) -> Iterator[tuple[int, int]]:
    """Rows and payload bytes of each row group of the live files."""
    for path in load_state(table.storage, table.folder).files:
        with pq.ParquetFile(table.path / path) as file:
            for index in range(file.num_row_groups):
                data = file.read_row_group(index, columns=["data"])["data"].to_pylist()
                yield len(data), sum(map(len, data))


def test_compact_joins_a_backlog_of_more_days_than_a_year(jobs: Jobs) -> None:
    table = TableBuilder(jobs.root, "slow")
    for day in range(400):
        for number in range(2):
            table.commit(MONDAY_MS - (500 - day) * DAY_MS + number * 1000, [b"%d" % number])
    before = rows_of(table)

    report = jobs.run(compact, "--files-min", "2")

    assert (report["files_in"], report["files_out"]) == (400 * 2, 400)
    assert rows_of(table) == before
    assert jobs.run(compact, "--files-min", "2")["files_in"] == 0


def large_records(count: int) -> list[bytes]:
    """Records that no compression makes smaller."""
    rng = random.Random(7)
    return [b'"%s"' % rng.randbytes(RECORD_BYTES // 2).hex().encode() for _ in range(count)]


def test_compact_cuts_row_groups_of_large_records(jobs: Jobs) -> None:
    table = TableBuilder(jobs.root, "large")
    records = large_records(60)
    for number in range(12):
        table.commit(MONDAY_MS + number * 1000, records[number * 5 : number * 5 + 5])

    assert jobs.run(compact)["files_out"] == 1

    groups = list(row_groups(table))
    assert sum(rows for rows, _ in groups) == len(records)
    assert max(size for _, size in groups) <= 4 * GROUP_BYTES


def test_compact_cuts_row_groups_where_large_records_follow_small_ones(jobs: Jobs) -> None:
    """What the small ones say about the size of a row is wrong for the large ones."""
    table = TableBuilder(jobs.root, "mixed")
    small, large = list(events(0, 4000)), large_records(24)
    for number in range(4):
        at_ms = MONDAY_MS + number * 10_000
        table.commit(at_ms, small[number * 1000 : number * 1000 + 1000])
        table.commit(at_ms + 1000, large[number * 6 : number * 6 + 6])

    assert jobs.run(compact)["files_out"] == 1

    groups = list(row_groups(table))
    assert sum(rows for rows, _ in groups) == len(small) + len(large)
    assert max(size for _, size in groups) <= 4 * GROUP_BYTES


def test_compact_fills_row_groups_of_small_records(jobs: Jobs) -> None:
    table = small_commits(jobs.root, "small", commits=20, rows=2000)

    jobs.run(compact)

    *full, _ = [size for _, size in row_groups(table)]
    assert min(full) >= GROUP_BYTES / 2
    assert max(full) <= 2 * GROUP_BYTES


@pytest.mark.parametrize("name", ["g{1} [2]", "a*b?c", "%20 \\d"])
def test_jobs_take_a_root_with_characters_of_patterns(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    del spark
    jobs = Jobs(tmp_path / name / "root", capsys)
    # What an unescaped pattern would find instead.
    small_commits(tmp_path / "g1 2" / "root", "orders", commits=12, rows=5)
    table = small_commits(jobs.root, "orders", commits=12, rows=3)
    before = rows_of(table)
    output = tmp_path / name / "out"

    assert jobs.run(compact)["files_out"] == 1
    jobs.run(replay, "--stream", "orders", "--output", str(output))
    jobs.run(replay, "--stream", "orders", "--to", "delta", "--output", f"{output}-delta")

    assert rows_of(table) == before
    lines = [line for part in output.glob("part-*") for line in part.read_text().splitlines()]
    assert [json.loads(line)["offset"] for line in lines] == [offset for offset, _ in before]
    [copy] = (tmp_path / name / "out-delta").glob("*.parquet")
    assert pq.ParquetFile(copy).read(["offset"])["offset"].to_pylist() == [at for at, _ in before]
    assert jobs.run(check)["problems"] == []
