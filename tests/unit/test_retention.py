"""Reads of a stream that was trimmed beside the server, and what forks keep from being trimmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engine.errors import ChangeLost, OffsetTrimmed
from engine.settings import RetainSettings
from engine.storage import LocalStorage
from engine.table.change import commit_change, trim_of
from jobs.common.tables import StreamTable, find_table
from jobs.common.work import plan_trim
from tests.support.tables import DAY_MS, MONDAY_MS, TableBuilder, small_commits

if TYPE_CHECKING:
    from pathlib import Path

    from engine.table.actions import DataFile
    from tests.support.model import Lives

# The reader looks for what jobs have done once in a second.
LOOK_MS = 1000


async def flushes(lives: Lives, begin: int, end: int) -> list[int]:
    """A file per record; returns the offsets."""
    offsets = []
    for number in range(begin, end):
        offsets.append((await lives.append("s", b"%d" % number)).tail)
        await lives.commit("s")
    return offsets


def table_of(lives: Lives, name: str = "s") -> StreamTable:
    """The table as a job sees it, in a storage of its own."""
    return find_table(LocalStorage(lives.root), name)


def files_of(table: StreamTable) -> list[DataFile]:
    return sorted(table.state.files.values(), key=lambda file: file.first)


def trim(lives: Lives, count: int, *, is_vacuumed: bool = False, later_ms: int = LOOK_MS) -> None:
    """The oldest files go; the server's next look finds that, if it is later by a second."""
    table = table_of(lives)
    doomed = files_of(table)[:count]
    change = trim_of(table.state, doomed)
    now_ms = lives.clock.now_ms()
    commit_change(table.storage, table.folder, table.state, change, now_ms=now_ms)
    if is_vacuumed:
        for file in doomed:
            table.storage.remove(f"{table.folder}/{file.path}")
    lives.clock.advance(later_ms)


def numbers(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


async def check_reads(lives: Lives, offsets: list[int], trimmed: int, name: str = "s") -> None:
    """From the start, and from each offset: what is left, or an error that says where to go on."""
    left = numbers(trimmed, len(offsets))
    assert await lives.records(name) == left
    for index, offset in enumerate(offsets):
        if index < trimmed - 1:
            with pytest.raises(OffsetTrimmed) as caught:
                await lives.records(name, offset)
            earliest = caught.value.earliest
            assert earliest == offsets[trimmed - 1]
            assert await lives.records(name, earliest) == left
        else:
            assert await lives.records(name, offset) == numbers(index + 1, len(offsets))


# Reads after a trim.


async def test_first_read_after_a_trim_learns_of_it_before_it_answers(lives: Lives):
    await lives.create("s")
    offsets = await flushes(lives, 0, 5)
    trim(lives, 3)
    with pytest.raises(OffsetTrimmed) as caught:
        await lives.records("s", offsets[0])
    assert caught.value.earliest == offsets[2]


async def test_read_of_files_vacuumed_since_the_last_look_skips_nothing(lives: Lives):
    await lives.create("s")
    offsets = await flushes(lives, 0, 5)
    for _ in range(2):
        assert await lives.records("s", offsets[3]) == numbers(4, 5)
    trim(lives, 3, is_vacuumed=True, later_ms=0)
    with pytest.raises(OffsetTrimmed) as caught:
        await lives.records("s", offsets[0])
    assert caught.value.earliest == offsets[2]


@pytest.mark.parametrize("is_vacuumed", [False, True])
@pytest.mark.parametrize("is_read_before", [False, True])
async def test_read_after_a_trim_begins_with_the_oldest_record_left(
    lives: Lives, is_vacuumed: bool, is_read_before: bool
):
    await lives.create("s")
    offsets = await flushes(lives, 0, 5)
    if is_read_before:
        await check_reads(lives, offsets, trimmed=0)
    trim(lives, 3, is_vacuumed=is_vacuumed)
    await check_reads(lives, offsets, trimmed=3)


async def test_read_after_a_trim_says_where_it_began(lives: Lives):
    await lives.create("s")
    offsets = await flushes(lives, 0, 3)
    await check_reads(lives, offsets, trimmed=0)
    trim(lives, 2)
    result = await lives.log.read("s", 0)
    assert result.start == offsets[1]
    assert result.end == offsets[2]
    assert result.up_to_date


async def test_read_after_a_trim_of_everything_waits_at_the_tail(lives: Lives):
    await lives.create("s")
    offsets = await flushes(lives, 0, 3)
    await check_reads(lives, offsets, trimmed=0)
    trim(lives, 3)
    result = await lives.log.read("s", 0)
    assert (result.pieces, result.start, result.end) == ((), offsets[-1], offsets[-1])
    assert result.up_to_date
    await check_reads(lives, offsets, trimmed=3)
    offsets += await flushes(lives, 3, 5)
    await check_reads(lives, offsets, trimmed=3)


async def test_read_after_a_trim_goes_on_into_the_tail(lives: Lives):
    await lives.create("s")
    offsets = await flushes(lives, 0, 3)
    trim(lives, 2)
    for number in (3, 4):
        offsets.append((await lives.append("s", b"%d" % number)).tail)
    await check_reads(lives, offsets, trimmed=2)
    await lives.commit("s")
    await check_reads(lives, offsets, trimmed=2)


@pytest.mark.parametrize("without_wal", [False, True])
async def test_read_after_a_trim_and_a_restart_begins_with_the_oldest_record_left(
    lives: Lives, without_wal: bool
):
    await lives.create("s")
    offsets = await flushes(lives, 0, 4)
    trim(lives, 2, is_vacuumed=True)
    await lives.restart(without_wal=without_wal)
    await check_reads(lives, offsets, trimmed=2)
    offsets += await flushes(lives, 4, 5)
    trim(lives, 1, is_vacuumed=True)
    await check_reads(lives, offsets, trimmed=3)


async def test_read_after_a_trim_and_a_crash_never_brings_records_back(lives: Lives):
    """They may still be in the WAL."""
    await lives.create("s")
    offsets = await flushes(lives, 0, 4)
    trim(lives, 2)
    await lives.crash()
    await check_reads(lives, offsets, trimmed=2)
    offsets += await flushes(lives, 4, 6)
    await lives.restart(without_wal=True)
    await check_reads(lives, offsets, trimmed=2)


async def test_read_that_is_under_way_during_a_trim_ends_with_an_error(lives: Lives):
    await lives.create("s")
    offsets = await flushes(lives, 0, 4)
    assert await lives.records("s", offsets[0]) == numbers(1, 4)
    trim(lives, 3)
    with pytest.raises(OffsetTrimmed):
        await lives.log.read("s", offsets[0])


async def test_trim_says_nothing_about_other_streams(lives: Lives):
    await lives.create("other")
    await lives.append("other", b"1")
    await lives.commit("other")
    await lives.create("s")
    offsets = await flushes(lives, 0, 2)
    trim(lives, 1)
    await check_reads(lives, offsets, trimmed=1)
    assert await lives.records("other") == [b"1"]


# Forks.


EVERYTHING = RetainSettings(age_seconds=1)


def doomed(lives: Lives, name: str = "s", config: RetainSettings = EVERYTHING) -> list[DataFile]:
    now_ms = lives.clock.now_ms() + DAY_MS
    return plan_trim(table_of(lives, name), config, now_ms=now_ms)


async def test_fork_keeps_its_source_from_being_trimmed(lives: Lives):
    await lives.create("s")
    offsets = await flushes(lives, 0, 4)
    assert len(doomed(lives)) == 4
    await lives.fork("fork", "s", offsets[1])
    await lives.commit("s", version=4)
    for config in (EVERYTHING, RetainSettings(bytes=1), RetainSettings(records=1)):
        assert doomed(lives, config=config) == []
    table = table_of(lives)
    assert table.state.held == offsets[1]
    with pytest.raises(ChangeLost):
        trim(lives, 1)
    assert await lives.records("fork") == numbers(0, 2)


@pytest.mark.parametrize("without_wal", [False, True])
async def test_fork_keeps_its_source_from_being_trimmed_after_a_restart(
    lives: Lives, without_wal: bool
):
    await lives.create("s")
    offsets = await flushes(lives, 0, 3)
    await lives.fork("fork", "s", offsets[0])
    await lives.restart(without_wal=without_wal)
    assert doomed(lives) == []
    await flushes(lives, 3, 4)
    assert doomed(lives) == []
    assert await lives.records("fork") == numbers(0, 1)


async def test_fork_that_is_gone_keeps_nothing(lives: Lives):
    await lives.create("s")
    offsets = await flushes(lives, 0, 3)
    await lives.fork("fork", "s", offsets[0])
    await lives.commit("s", version=3)
    await lives.log.delete("fork")
    await lives.commit("s", version=4)
    assert table_of(lives).state.held == 0
    assert len(doomed(lives)) == 3
    trim(lives, 2)
    await check_reads(lives, offsets, trimmed=2)


async def test_fork_keeps_a_source_that_was_deleted(lives: Lives):
    await lives.create("s")
    offsets = await flushes(lives, 0, 3)
    await lives.fork("fork", "s", offsets[2])
    await lives.log.delete("s")
    await lives.restart()
    assert doomed(lives) == []
    assert await lives.records("fork") == numbers(0, 3)


async def test_fork_of_a_trimmed_source_begins_with_the_oldest_record_left(lives: Lives):
    await lives.create("s")
    offsets = await flushes(lives, 0, 4)
    trim(lives, 2)
    await lives.fork("fork", "s", offsets[3])
    await check_reads(lives, offsets, trimmed=2, name="fork")
    await lives.append("fork", b"4")
    assert await lives.records("fork") == numbers(2, 5)


async def test_fork_at_an_offset_that_was_trimmed_has_its_own_records(lives: Lives):
    await lives.create("s")
    offsets = await flushes(lives, 0, 4)
    trim(lives, 3)
    await lives.fork("fork", "s", offsets[1])
    await lives.append("fork", b"4")
    assert await lives.records("fork") == [b"4"]


# What is trimmed.


@pytest.fixture
def table(root: Path) -> StreamTable:
    """Ten flushes of three records, a second apart."""
    small_commits(root, "s", commits=10, rows=3)
    return find_table(LocalStorage(root), "s")


def count_doomed(table: StreamTable, now_ms: int = MONDAY_MS, **config: int) -> int:
    found = plan_trim(table, RetainSettings(**config), now_ms=now_ms)
    assert found == files_of(table)[: len(found)], "the oldest go first"
    return len(found)


def test_plan_trim_keeps_everything_without_a_bound(table: StreamTable):
    assert count_doomed(table, now_ms=MONDAY_MS + 1000 * DAY_MS) == 0


def test_plan_trim_takes_files_whose_last_record_is_too_old(table: StreamTable):
    now_ms = MONDAY_MS + 60_000
    assert count_doomed(table, now_ms, age_seconds=60) == 0
    assert count_doomed(table, now_ms + 1, age_seconds=60) == 1
    assert count_doomed(table, now_ms + 4001, age_seconds=60) == 5
    assert count_doomed(table, now_ms + DAY_MS, age_seconds=60) == 10


def test_plan_trim_keeps_as_many_records_as_asked_for_or_a_few_more(table: StreamTable):
    expected = {30: 0, 28: 0, 27: 1, 26: 1, 4: 8, 3: 9, 1: 9}
    for records, count in expected.items():
        assert count_doomed(table, records=records) == count


def test_plan_trim_takes_files_until_the_table_fits(table: StreamTable):
    sizes = [file.size for file in files_of(table)]
    assert count_doomed(table, bytes=sum(sizes)) == 0
    assert count_doomed(table, bytes=sum(sizes) - 1) == 1
    assert count_doomed(table, bytes=sum(sizes[4:])) == 4
    assert count_doomed(table, bytes=1) == 10


def test_plan_trim_takes_what_any_bound_wants(table: StreamTable):
    now_ms = MONDAY_MS + 60_001
    assert count_doomed(table, now_ms, age_seconds=60, records=20) == 3
    assert count_doomed(table, now_ms + 5000, age_seconds=60, records=20) == 6


def test_plan_trim_of_a_table_that_was_compacted_looks_at_its_files(root: Path):
    """A file goes as a whole: one record that is young keeps all others of its file."""
    builder = TableBuilder(root, "s")
    builder.commit(MONDAY_MS, [b"1"])
    builder.commit(MONDAY_MS + 10_000, [b"2"])
    table = find_table(builder.storage, "s")
    assert count_doomed(table, MONDAY_MS + 65_000, age_seconds=60) == 1
