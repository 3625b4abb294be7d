"""kill -9 of `compact`, started by spark-submit from a plain shell, at random moments of its work.

Each leaves a table that `check` finds clean and that holds the same rows, and the next run needs no
help. Four kills by default; BOTTOMLESS_KILLS=10 makes it the ten of the documentation.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from typing import TYPE_CHECKING

import deltalake
import pytest

from engine.table.replay import replay_log
from engine.table.vacuum import stray_files
from jobs import check
from tests.support.job_process import JobProcess
from tests.support.tables import TableBuilder, small_commits

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("BOTTOMLESS_KILLS", "4"))
COMMITS, ROWS = 600, 300
# Small files and small rounds: several commits, so that most kills fall between two of them.
FLAGS = ("--target-file-bytes", "256KiB", "--round-bytes", "1MiB")

pytestmark = pytest.mark.timeout(60 + 30 * KILLS)


class CompactProcess(JobProcess):
    """`compact` of one table."""

    def __init__(self, table: TableBuilder) -> None:
        self.table = table
        super().__init__("compact", table.storage.root, "--stream", table.name, *FLAGS)


@pytest.fixture
def pristine(spark: SparkSession, tmp_path: Path) -> TableBuilder:
    del spark
    return small_commits(tmp_path / "pristine", "orders", commits=COMMITS, rows=ROWS)


def copy_of(table: TableBuilder, root: Path) -> TableBuilder:
    shutil.copytree(table.storage.root, root)
    return TableBuilder(root, table.name)


def rows_of(table: TableBuilder) -> list[tuple[str, str]]:
    found = deltalake.DeltaTable(str(table.path)).to_pyarrow_table(columns=["offset", "data"])
    return sorted(zip(found["offset"].to_pylist(), found["data"].to_pylist(), strict=True))


def test_compact_killed_at_any_moment_loses_nothing(
    pristine: TableBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Moments are drawn over the whole of the work, from the first file to the last commit."""
    rows = rows_of(pristine)
    whole = CompactProcess(copy_of(pristine, tmp_path / "whole"))
    whole.wait_begun()
    begun = time.monotonic()
    assert whole.wait() == 0, whole.log_path.read_text()
    duration_s = time.monotonic() - begun
    files_whole = files_of(whole.table)
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    files: list[int] = []
    for number in range(KILLS):
        job = CompactProcess(copy_of(pristine, tmp_path / f"root-{number}"))
        job.wait_begun()
        time.sleep(rng.uniform(0, duration_s))  # The moment of the kill, not a wait for a fact.
        was_alive = job.kill9()
        files += [files_of(job.table)] if was_alive else []
        at = f"seed {seed}, kill {number}"
        assert check.main(["--root", str(job.table.storage.root), "--quiet"]) == 0, at
        assert rows_of(job.table) == rows, at
    with capsys.disabled():
        print(f"\n{duration_s:.1f} s of work, seed {seed}: {COMMITS} to {files_whole} files,")
        print(f"{len(files)} of {KILLS} kills in time, which left {files} files")
    assert files, "every kill came too late"

    again = CompactProcess(job.table)
    assert again.wait() == 0, again.log_path.read_text()
    assert files_of(job.table) <= files_whole + 1
    assert litter_of(job.table) == []
    assert rows_of(job.table) == rows


def files_of(table: TableBuilder) -> int:
    return len(replay_log(table.storage, table.folder).files)


def litter_of(table: TableBuilder) -> list[str]:
    """What a killed run leaves: files that no version has ever named."""
    state = replay_log(table.storage, table.folder)
    stray = stray_files(table.storage, table.folder, state)
    staged = table.storage.names(f"{table.folder}/_staging")
    return staged + [file.path for file in stray if file.removed_ms is None]
