"""What may leave the disk: replaced files past the horizon, old orphans, and nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from engine.table.change import TableChange, commit_change, rewrite_of, trim_of
from engine.table.replay import entry_path, list_log
from engine.table.vacuum import ORPHAN_AGE_MIN_MS, StrayFile, stray_files, tombstones
from tests.support.tables import MONDAY_MS, TableBuilder, events, small_commits

if TYPE_CHECKING:
    from pathlib import Path

    from engine.table.actions import DataFile

HOUR_MS = 3_600_000
COMMITS = 4


@pytest.fixture
def table(root: Path) -> TableBuilder:
    return small_commits(root, "s", commits=COMMITS, rows=2)


def files_of(table: TableBuilder) -> list[DataFile]:
    return sorted(table.state.files.values(), key=lambda file: file.first)


def commit(table: TableBuilder, change: TableChange, now_ms: int) -> None:
    commit_change(table.storage, table.folder, table.state, change, now_ms=now_ms)


def rewrite(table: TableBuilder, file: DataFile, now_ms: int) -> DataFile:
    """The same rows under another name."""
    copy = replace(file, path=file.path.replace("part-", "copy-"))
    (table.path / copy.path).write_bytes((table.path / file.path).read_bytes())
    commit(table, rewrite_of(table.state, [file], [copy]), now_ms)
    return copy


def trim(table: TableBuilder, file: DataFile, now_ms: int) -> None:
    commit(table, trim_of(table.state, [file]), now_ms)


def orphan(table: TableBuilder, name: str, modified_ms: int) -> str:
    """A file that no entry speaks of."""
    folder = files_of(table)[0].path.rpartition("/")[0]
    path = f"{folder}/{name}.parquet"
    (table.path / path).write_bytes(b"orphan")
    os.utime(table.path / path, ns=(modified_ms * 10**6, modified_ms * 10**6))
    return path


def strays(table: TableBuilder) -> dict[str, StrayFile]:
    return {stray.path: stray for stray in stray_files(table.storage, table.folder, table.state)}


def drop_entries(table: TableBuilder) -> None:
    """What clean-up does once a checkpoint covers them."""
    for version in list_log(table.storage, table.folder).entries:
        table.storage.remove(entry_path(table.folder, version))


def recent_ms(table: TableBuilder) -> int:
    """A time that delta-rs, which reads the wall clock, finds recent: that of a new file."""
    return int((table.path / "_delta_log").stat().st_mtime * 1000)


# What is a stray.


def test_stray_files_of_a_table_that_only_grew_are_none(table: TableBuilder):
    assert strays(table) == {}
    assert tombstones(table.storage, table.folder) == {}


def test_stray_files_are_those_that_were_replaced_or_trimmed(table: TableBuilder):
    first, second, *_ = files_of(table)
    rewrite(table, first, MONDAY_MS + 1)
    trim(table, second, MONDAY_MS + 2)
    found = strays(table)
    assert {path: stray.removed_ms for path, stray in found.items()} == {
        first.path: MONDAY_MS + 1,
        second.path: MONDAY_MS + 2,
    }
    assert found[first.path].size == first.size


def test_stray_files_are_never_live(table: TableBuilder):
    """Whatever was done to the table, before and after checkpoints."""
    for number in range(12):
        oldest, *_, newest = files_of(table)
        if number % 3 == 0:
            rewrite(table, newest, MONDAY_MS + number)
        elif number % 3 == 1:
            trim(table, oldest, MONDAY_MS + number)
        table.commit(MONDAY_MS + 10_000 + number, list(events(number, number + 1)))
        if number % 5 == 4:
            table.checkpoint()
        found = strays(table)
        assert not found.keys() & table.state.files.keys()
        on_disk = {str(path.relative_to(table.path)) for path in table.path.glob("flush_date=*/*")}
        assert found.keys() | table.state.files.keys() == on_disk


def test_stray_files_know_nothing_outside_of_the_partitions(table: TableBuilder):
    for folder in ("_index", "_staging", "_aside", "other=1"):
        (table.path / folder).mkdir()
        (table.path / folder / "file.parquet").write_bytes(b"x")
    (table.path / "notes.parquet").write_bytes(b"x")
    assert strays(table) == {}


def test_stray_files_of_an_older_state_are_not_those_it_still_names(table: TableBuilder):
    """A job that has not looked since spares what it believes to be live."""
    first, *_ = files_of(table)
    seen = replace(table.state, files=dict(table.state.files))
    copy = rewrite(table, first, MONDAY_MS)
    table.commit(MONDAY_MS + 10_000, [b"1"])
    newer = table.state.files.keys() - seen.files.keys()
    found = {stray.path: stray for stray in stray_files(table.storage, table.folder, seen)}
    assert found.keys() == newer
    # What was committed meanwhile looks like an orphan, but a young one.
    for path in (copy.path, *newer):
        stray = found[path]
        assert stray.removed_ms is None
        assert not stray.is_expired(now_ms=stray.modified_ms + HOUR_MS - 1, horizon_ms=0)


# Tombstones.


def test_tombstones_come_from_entries(table: TableBuilder):
    first, second, *_ = files_of(table)
    copy = rewrite(table, first, MONDAY_MS + 1)
    trim(table, second, MONDAY_MS + 2)
    trim(table, copy, MONDAY_MS + 3)
    assert tombstones(table.storage, table.folder) == {
        first.path: MONDAY_MS + 1,
        second.path: MONDAY_MS + 2,
        copy.path: MONDAY_MS + 3,
    }


def test_tombstones_come_from_a_checkpoint_and_the_entries_after_it(table: TableBuilder):
    first, second, *_ = files_of(table)
    now_ms = recent_ms(table)
    rewrite(table, first, now_ms)
    table.checkpoint()
    drop_entries(table)
    assert tombstones(table.storage, table.folder) == {first.path: now_ms}
    trim(table, second, now_ms + 5)
    expected = {first.path: now_ms, second.path: now_ms + 5}
    assert tombstones(table.storage, table.folder) == expected
    assert {path: stray.removed_ms for path, stray in strays(table).items()} == expected


def test_tombstones_of_a_torn_checkpoint_come_from_the_entries(table: TableBuilder):
    first, *_ = files_of(table)
    rewrite(table, first, MONDAY_MS)
    table.checkpoint()
    (checkpoint,) = (table.path / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-10])
    assert tombstones(table.storage, table.folder) == {first.path: MONDAY_MS}


def test_tombstones_that_a_checkpoint_has_forgotten_leave_orphans(table: TableBuilder):
    """They are then as old as their file; live files stay what they are."""
    first, *_ = files_of(table)
    rewrite(table, first, recent_ms(table) - 8 * 24 * HOUR_MS)
    table.checkpoint()
    drop_entries(table)
    assert {path: stray.removed_ms for path, stray in strays(table).items()} == {first.path: None}


# When a stray may go.


@pytest.mark.parametrize("hours", [0, 1, 168])
def test_replaced_file_expires_at_the_horizon(table: TableBuilder, hours: int):
    first, *_ = files_of(table)
    rewrite(table, first, MONDAY_MS)
    stray = strays(table)[first.path]
    horizon_ms = hours * HOUR_MS
    at_ms = MONDAY_MS + horizon_ms
    assert stray.is_expired(now_ms=at_ms, horizon_ms=horizon_ms)
    assert not stray.is_expired(now_ms=at_ms - 1, horizon_ms=horizon_ms)


def test_replaced_file_is_as_old_as_its_removal(table: TableBuilder):
    """Readers may have opened the version before it a moment ago, however old the file is."""
    first, *_ = files_of(table)
    os.utime(table.path / first.path, (0, 0))
    rewrite(table, first, MONDAY_MS)
    assert not strays(table)[first.path].is_expired(now_ms=MONDAY_MS + 1, horizon_ms=HOUR_MS)


@pytest.mark.parametrize("hours", [0, 1, 168])
def test_orphan_expires_at_the_horizon_but_never_young(table: TableBuilder, hours: int):
    horizon_ms = hours * HOUR_MS
    age_ms = max(horizon_ms, ORPHAN_AGE_MIN_MS)
    old = orphan(table, "old", MONDAY_MS - age_ms)
    young = orphan(table, "young", MONDAY_MS - age_ms + 1)
    found = strays(table)
    assert found.keys() == {old, young}
    assert found[old].removed_ms is None
    assert found[old].is_expired(now_ms=MONDAY_MS, horizon_ms=horizon_ms)
    assert not found[young].is_expired(now_ms=MONDAY_MS, horizon_ms=horizon_ms)
