"""The offset index: a shortcut that says what the log says, or is not taken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from engine.errors import TableDamaged
from engine.format.offset import parse_offset
from engine.table.actions import RECORDS_APP
from engine.table.change import commit_change, trim_of
from engine.table.companion import (
    INDEX_FOLDER,
    GroupBounds,
    drop_indexes_above,
    index_versions,
    load_groups,
    load_index,
    write_index,
)
from engine.table.replay import entry_path, load_state, recover_state, replay_log
from engine.table.state import TableState
from tests.support.storage import FaultyStorage
from tests.support.tables import MONDAY_MS, TableBuilder, events, small_commits

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.model import Lives

COMMITS, ROWS = 5, 4
LIE = 10**9


@pytest.fixture
def table(root: Path) -> TableBuilder:
    """Files of several row groups each."""
    table = TableBuilder(root, "s", row_group_bytes=300)
    for number in range(COMMITS):
        append(table, number)
    return table


def append(table: TableBuilder, number: int) -> None:
    begin = number * ROWS
    table.commit(MONDAY_MS + number * 1000, list(events(begin, begin + ROWS)))


def groups_of(table_path: Path, state: TableState) -> dict[str, list[GroupBounds]]:
    """What the footers say."""
    found = {}
    for path in state.files:
        with pq.ParquetFile(table_path / path) as file:
            rows = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
        statistics = [group.column(0).statistics for group in rows]
        found[path] = [
            GroupBounds(group.num_rows, parse_offset(bounds.min), parse_offset(bounds.max))
            for group, bounds in zip(rows, statistics, strict=True)
        ]
    return found


def index(table: TableBuilder) -> None:
    """Make the index of the newest version."""
    write_index(table.storage, table.folder, table.state, groups_of(table.path, table.state))


def index_with_a_lie(table: TableBuilder) -> None:
    """An index that shows whether anybody believes it: it counts a billion records."""
    state = table.state
    lying = TableState(
        state.version, state.files, {**state.txns, RECORDS_APP: LIE}, state.configuration
    )
    write_index(table.storage, table.folder, lying, groups_of(table.path, table.state))


def index_path(table: TableBuilder, version: int) -> Path:
    [path] = (table.path / INDEX_FOLDER).glob(f"{version:020d}-*.parquet")
    return path


def entry_file(table: TableBuilder, version: int) -> Path:
    return table.storage.root / entry_path(table.folder, version)


def trim_first(table: TableBuilder) -> None:
    """A change of a job, of the oldest file."""
    oldest = min(table.state.files.values(), key=lambda file: file.first)
    change = trim_of(table.state, [oldest])
    commit_change(table.storage, table.folder, table.state, change, now_ms=MONDAY_MS)


# What it holds.


def test_index_says_what_the_log_says(table: TableBuilder):
    index(table)
    state = load_index(table.storage, table.folder, version_max=None)
    assert state == replay_log(table.storage, table.folder) == table.state
    assert load_state(table.storage, table.folder) == state
    assert state.records == COMMITS * ROWS
    assert state.committed == table.state.committed


def test_index_holds_the_bounds_of_every_row_group(table: TableBuilder):
    index(table)
    groups = load_groups(table.storage, table.folder)
    assert groups == groups_of(table.path, table.state)
    assert all(len(of_file) > 1 for of_file in groups.values())


def test_index_of_a_table_without_files_says_what_the_log_says(table: TableBuilder):
    for _ in range(COMMITS):
        trim_first(table)
    index(table)
    assert load_state(table.storage, table.folder) == replay_log(table.storage, table.folder)
    assert load_state(table.storage, table.folder).trimmed == table.state.committed
    assert load_groups(table.storage, table.folder) == {}


def test_index_keeps_the_one_before_the_newest(table: TableBuilder):
    for number in range(COMMITS, COMMITS + 4):
        index(table)
        append(table, number)
    newest = COMMITS + 2
    assert index_versions(table.storage, table.folder) == [newest - 1, newest]
    for version in (newest - 1, newest):
        found = load_index(table.storage, table.folder, version_max=version)
        assert found.version == version
    assert load_index(table.storage, table.folder, version_max=newest - 2) is None


# Who takes it.


def test_load_state_opens_a_table_by_its_index_without_its_log(table: TableBuilder, root: Path):
    index(table)
    append(table, COMMITS)
    storage = FaultyStorage(root)
    assert load_state(storage, table.folder) == table.state
    # Not the log: only the folder of the index is listed.
    assert storage.calls["names"] == 1
    # The index, the hint, one entry, and the one that is not there.
    assert storage.calls["read"] == 4


def test_load_state_applies_the_entries_after_the_index(table: TableBuilder):
    index_with_a_lie(table)
    assert load_state(table.storage, table.folder).records == LIE
    table.state.txns[RECORDS_APP] = LIE
    append(table, COMMITS)
    trim_first(table)
    append(table, COMMITS + 1)
    state = load_state(table.storage, table.folder)
    assert state.version == COMMITS + 2
    assert state.records == LIE + 2 * ROWS
    assert state.records_trimmed == ROWS
    assert state == replay_log(table.storage, table.folder)


def test_load_state_finds_a_damaged_entry_after_the_index(table: TableBuilder):
    index(table)
    append(table, COMMITS)
    entry_file(table, COMMITS).write_bytes(b"")
    with pytest.raises(TableDamaged):
        load_state(table.storage, table.folder)


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped page", "no parquet", "a folder"])
def test_load_state_ignores_a_damaged_index(table: TableBuilder, damage: str):
    index_with_a_lie(table)
    path = index_path(table, COMMITS - 1)
    data = bytearray(path.read_bytes())
    if damage == "a folder":
        path.unlink()
        path.mkdir()
    else:
        data[len(b"PAR1") + 40] ^= 255
        left = {"empty": b"", "cut": data[:-100], "no parquet": b"x" * 1000, "flipped page": data}
        path.write_bytes(left[damage])
    assert load_index(table.storage, table.folder, version_max=None) is None
    assert load_groups(table.storage, table.folder) == {}
    assert load_state(table.storage, table.folder) == table.state


def test_load_state_takes_the_older_index_where_the_newest_is_damaged(table: TableBuilder):
    index_with_a_lie(table)
    table.state.txns[RECORDS_APP] = LIE
    append(table, COMMITS)
    index(table)
    index_path(table, COMMITS).write_bytes(b"torn")
    state = load_state(table.storage, table.folder)
    assert (state.version, state.records) == (COMMITS, LIE + ROWS)


@pytest.mark.parametrize("cleaned_through", [2, 3, 6])
@pytest.mark.parametrize("has_hint", [True, False])
def test_load_state_does_not_trust_an_index_that_the_log_has_left_behind(
    root: Path, cleaned_through: int, has_hint: bool
):
    table = small_commits(root, "s", commits=3, rows=ROWS)
    index_with_a_lie(table)
    for number in range(3, 7):
        append(table, number)
    table.checkpoint()
    append(table, 7)
    for version in range(cleaned_through + 1):
        entry_file(table, version).unlink(missing_ok=True)
    if not has_hint:
        (table.path / "_delta_log" / "_last_checkpoint").unlink()
    state = load_state(table.storage, table.folder)
    assert state == table.state
    assert (state.version, state.records) == (7, 8 * ROWS)


def test_load_state_does_not_take_a_gap_before_the_checkpoint_for_the_end(root: Path):
    """The entry of the index is there, the one after it is not."""
    table = small_commits(root, "s", commits=3, rows=ROWS)
    index_with_a_lie(table)
    for number in range(3, 7):
        append(table, number)
    table.checkpoint()
    entry_file(table, 3).unlink()
    assert load_state(table.storage, table.folder) == table.state


def test_load_state_does_not_trust_an_index_far_behind_the_checkpoint(table: TableBuilder):
    """Its own entry is there, but to read every one after it would take too long."""
    index_with_a_lie(table)
    hint = table.path / "_delta_log" / "_last_checkpoint"
    hint.write_text(json.dumps({"version": COMMITS + 2000, "size": 1}))
    assert load_state(table.storage, table.folder).records == COMMITS * ROWS


def test_load_state_does_not_trust_an_index_of_a_version_that_is_gone(table: TableBuilder):
    index_with_a_lie(table)
    entry_file(table, COMMITS - 1).unlink()
    state = load_state(table.storage, table.folder)
    assert (state.version, state.records) == (COMMITS - 2, (COMMITS - 1) * ROWS)


# Recovery.


def recover(table: TableBuilder, durable_version: int) -> TableState:
    return recover_state(table.storage, table.folder, durable_version=durable_version)


def test_recovery_begins_with_the_index(table: TableBuilder):
    index_with_a_lie(table)
    table.state.txns[RECORDS_APP] = LIE
    append(table, COMMITS)
    for version in range(COMMITS - 1):
        entry_file(table, version).unlink()
    state = recover(table, COMMITS)
    assert (state.version, state.records) == (COMMITS, LIE + ROWS)
    assert state.files == table.state.files
    assert index_versions(table.storage, table.folder) == [COMMITS - 1]


def test_recovery_does_not_begin_with_an_index_above_the_mark(table: TableBuilder):
    """It may speak of files that a power cut has torn."""
    index_with_a_lie(table)
    assert recover(table, COMMITS - 2) == table.state
    assert index_versions(table.storage, table.folder) == [COMMITS - 1]


@pytest.mark.parametrize("damage", ["entry", "file"])
def test_recovery_drops_indexes_of_versions_it_has_put_aside(table: TableBuilder, damage: str):
    index(table)
    whole = replay_log(table.storage, table.folder)
    append(table, COMMITS)
    index(table)
    if damage == "entry":
        entry_file(table, COMMITS).write_bytes(b"")
    else:
        (newest,) = table.state.files.keys() - whole.files.keys()
        (table.path / newest).write_bytes(b"")
    assert recover(table, COMMITS - 1) == whole
    assert index_versions(table.storage, table.folder) == [COMMITS - 1]
    assert load_state(table.storage, table.folder) == whole
    # The version is given out anew, with other records.
    table.state = whole
    table.commit(MONDAY_MS + 3_600_000, [b"1"])
    assert load_state(table.storage, table.folder) == table.state


def test_indexes_above_a_version_are_dropped_and_no_others(table: TableBuilder):
    index(table)
    append(table, COMMITS)
    index(table)
    drop_indexes_above(table.storage, table.folder, COMMITS)
    assert index_versions(table.storage, table.folder) == [COMMITS - 1, COMMITS]
    drop_indexes_above(table.storage, table.folder, COMMITS - 1)
    assert index_versions(table.storage, table.folder) == [COMMITS - 1]


# Beside a server.


@pytest.mark.parametrize("without_wal", [True, False])
async def test_server_goes_on_with_a_table_that_was_indexed(lives: Lives, without_wal: bool):
    await lives.create("s")
    for number in range(3):
        await lives.append("s", b"%d" % number)
        await lives.commit("s")
    state = load_state(lives.storage, "s")
    write_index(lives.storage, "s", state, groups_of(lives.root / "s", state))
    await lives.append("s", b"3")
    await lives.commit("s")
    await lives.restart(without_wal=without_wal)
    assert await lives.records("s") == [b"0", b"1", b"2", b"3"]
    await lives.append("s", b"4")
    await lives.commit("s")
    await lives.crash()
    assert await lives.records("s") == [b"0", b"1", b"2", b"3", b"4"]
    assert index_versions(lives.storage, "s") == [2]
    assert load_state(lives.storage, "s") == replay_log(lives.storage, "s")


def test_no_flipped_byte_of_the_index_is_believed(root: Path):
    """Parquet's own checksums leave its footer out, which is where the numbers are."""
    table = small_commits(root, "s", commits=2, rows=2)
    index(table)
    told = replay_log(table.storage, table.folder)
    (path,) = (table.path / INDEX_FOLDER).glob("*.parquet")
    sound = path.read_bytes()
    for position in range(0, len(sound), 7):
        flipped = bytearray(sound)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        assert load_index(table.storage, table.folder, version_max=None) is None
        assert load_state(table.storage, table.folder) == told
