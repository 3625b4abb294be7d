"""A job beside the server, and the stream under it changes: deleted, created anew, forked."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from engine.errors import ChangeLost, Unavailable
from engine.settings import RetainSettings
from engine.storage import LocalStorage
from engine.table.change import commit_change, trim_of
from engine.table.checkpoint import write_checkpoint
from engine.table.replay import list_log, replay_log
from engine.types import StreamName
from jobs.common.report import Report
from jobs.common.tables import StreamTable, find_table
from jobs.common.work import Worker, plan_trim
from tests.support.model import until
from tests.support.tables import MONDAY_MS

if TYPE_CHECKING:
    from tests.support.model import Lives

RETRY_MS = 1000
ONE = RetainSettings(records=1, vacuum_hours=0)


def table_of(lives: Lives, name: str = "s") -> StreamTable:
    """The table as a job sees it, in a storage of its own."""
    return find_table(LocalStorage(lives.root), name)


async def flushes(lives: Lives, begin: int, end: int) -> list[int]:
    """A file per record; returns the offsets."""
    offsets = []
    for number in range(begin, end):
        offsets.append((await lives.append("s", b"%d" % number)).tail)
        await lives.commit("s")
    return offsets


async def replace_stream(lives: Lives, records: int) -> None:
    """Delete it and create it anew, with a table of its own."""
    await lives.log.delete(StreamName("s"))
    await lives.create("s")
    await flushes(lives, 100, 100 + records)


def worker(lives: Lives) -> Worker:
    return Worker(Report("test", is_quiet=True), lives.clock, row_group_bytes=1 << 20)


# A stream that is deleted and created anew while a job works on it.


async def test_change_of_a_deleted_stream_does_not_reach_its_successor(lives: Lives):
    await lives.create("s")
    await flushes(lives, 0, 5)
    table = table_of(lives)
    change = trim_of(table.state, list(table.state.files.values())[:3])
    await replace_stream(lives, 3)
    entries = list_log(lives.storage, "s").entries

    with pytest.raises(ChangeLost):
        commit_change(table.storage, table.folder, table.state, change, now_ms=MONDAY_MS)

    assert list_log(lives.storage, "s").entries == entries
    assert await lives.records("s") == [b"100", b"101", b"102"]
    await lives.restart()
    assert await lives.records("s") == [b"100", b"101", b"102"]


async def test_index_of_a_deleted_stream_does_not_reach_its_successor(lives: Lives):
    await lives.create("s")
    await flushes(lives, 0, 5)
    table = table_of(lives)
    await replace_stream(lives, 8)

    with pytest.raises(OSError, match="No such file"):
        worker(lives).index(table)

    assert lives.storage.names("s/_index") == []
    await lives.restart()
    assert await lives.records("s") == [b"%d" % number for number in range(100, 108)]


async def test_retain_of_a_deleted_stream_leaves_the_files_of_its_successor(lives: Lives):
    await lives.create("s")
    await flushes(lives, 0, 5)
    table = table_of(lives)
    await replace_stream(lives, 8)
    for path in lives.root.glob("s/flush_date=*/*"):
        os.utime(path, (1, 1))

    with pytest.raises((OSError, ChangeLost)):
        worker(lives).retain(table, ONE)

    assert await lives.records("s") == [b"%d" % number for number in range(100, 108)]
    await lives.restart()
    assert await lives.records("s") == [b"%d" % number for number in range(100, 108)]


# A fork that has just been acknowledged.


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_fork_is_acknowledged_only_when_retention_knows_of_it(
    lives: Lives, is_restarted: bool
):
    await lives.create("s")
    offsets = await flushes(lives, 0, 5)
    if is_restarted:
        await lives.restart()

    await lives.fork("f", "s")

    table = table_of(lives)
    assert table.state.held == offsets[-1]
    assert plan_trim(table, ONE, now_ms=lives.clock.now_ms()) == []
    assert await lives.records("f") == [b"0", b"1", b"2", b"3", b"4"]


async def test_fork_right_after_the_last_fork_was_deleted_is_held(lives: Lives):
    """The commit that lifts the old hold is under way when the new one is asked for."""
    await lives.create("s")
    offsets = await flushes(lives, 0, 5)
    await lives.fork("f", "s")
    await lives.log.delete(StreamName("f"))
    await lives.fork("g", "s")
    await lives.commit("s")
    assert table_of(lives).state.held == offsets[-1]
    assert plan_trim(table_of(lives), ONE, now_ms=lives.clock.now_ms()) == []


async def test_fork_fails_where_its_source_cannot_commit(lives: Lives):
    await lives.create("s")
    await flushes(lives, 0, 5)
    lives.storage.fail("put_if_absent", times=100)
    with pytest.raises(Unavailable):
        await lives.fork("f", "s")
    lives.storage.heal()
    fork = asyncio.ensure_future(lives.fork("f", "s"))
    await until(lambda: lives.clock.advance(RETRY_MS) or fork.done(), "the fork")
    await fork
    assert await lives.records("f") == [b"0", b"1", b"2", b"3", b"4"]


async def test_fork_of_a_stream_without_a_table_does_not_wait(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"0")
    await lives.fork("f", "s")
    assert not lives.storage.exists("s")
    assert await lives.records("f") == [b"0"]
    await lives.commit("s")
    assert table_of(lives).state.held > 0


# A checkpoint that replaces log entries.


async def test_log_clean_up_waits_for_a_durable_checkpoint(lives: Lives):
    await lives.create("s")
    await flushes(lives, 0, 5)
    for path in lives.root.glob("s/_delta_log/*.json"):
        os.utime(path, (1, 1))
    lives.storage.fail("sync_path")

    with pytest.raises(OSError, match="Input/output"):
        write_checkpoint(lives.storage, "s")

    assert list_log(lives.storage, "s").entries == [0, 1, 2, 3, 4]
    write_checkpoint(lives.storage, "s")
    assert list_log(lives.storage, "s").entries != [0, 1, 2, 3, 4], "the test lost its point"
    assert len(replay_log(lives.storage, "s").files) == 5
