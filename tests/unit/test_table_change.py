"""Rewrites and trims beside a live writer: nothing is lost, nothing is there twice."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from engine.errors import ChangeLost, StorageUnavailable
from engine.format.offset import counter_of, epoch_of, format_stored
from engine.storage import LocalStorage
from engine.table.actions import HELD_COUNTER_APP, HELD_EPOCH_APP, DataFile
from engine.table.change import TableChange, commit_change, rewrite_of, trim_of
from engine.table.replay import list_log, load_state, replay_log
from tests.support.model import INTERVAL_MS, Lives, entries
from tests.support.storage import FaultyStorage
from tests.support.tables import DAY_MS, MONDAY_MS, TableBuilder, events, small_commits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from engine.storage import Storage
    from engine.table.state import TableState
    from engine.types import Offset

NOW_MS = MONDAY_MS + DAY_MS
COMMITS, ROWS = 4, 3


class Job:
    """A job beside the writer of a table: a storage that fails, and a state of its own."""

    def __init__(self, root: Path, folder: str) -> None:
        self.storage = FaultyStorage(root)
        self.folder = folder
        self.state = load_state(self.storage, folder)

    @property
    def files(self) -> list[DataFile]:
        return in_order(self.state)

    def commit(self, change: TableChange) -> int:
        return commit_change(self.storage, self.folder, self.state, change, now_ms=NOW_MS)

    def rewrite(self, files: list[DataFile], name: str = "joined") -> TableChange:
        """Join files, as compact does it."""
        joined = join(self.storage, self.folder, files, name)
        return rewrite_of(self.state, files, [joined])

    def trim(self, files: list[DataFile]) -> TableChange:
        return trim_of(self.state, files)

    def hold(self, offset: Offset) -> TableChange:
        """What the server's commit says once the stream was forked there."""
        txns = {HELD_EPOCH_APP: epoch_of(offset), HELD_COUNTER_APP: counter_of(offset)}
        return TableChange("WRITE", [], [], changes_data=False, txns=txns)

    def race(self, *others: Callable[[], object]) -> None:
        """Each of the others comes between a check of the inputs and the put after it."""
        waiting = list(others)

        def next_other() -> None:
            if waiting:
                waiting.pop(0)()

        self.storage.hooks["put_if_absent"] = next_other


def join(storage: Storage, folder: str, files: list[DataFile], name: str) -> DataFile:
    """One file with the rows of all, in order."""
    parts = []
    for file in files:
        with pq.ParquetFile(storage.uri(f"{folder}/{file.path}")) as parquet:
            parts.append(parquet.read())
    sink = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(parts), sink, row_group_size=ROWS, write_page_checksum=True)
    data = sink.getvalue()
    path = f"{files[0].path.rpartition('/')[0]}/{name}.parquet"
    storage.put_file(f"{folder}/{path}", data)
    rows = sum(file.rows for file in files)
    return DataFile(path, data.size, files[0].first, files[-1].last, rows)


def in_order(state: TableState) -> list[DataFile]:
    return sorted(state.files.values(), key=lambda file: file.first)


def delta_rows(path: Path, version: int | None = None) -> list[str]:
    """The records as delta-rs reads them, in offset order; each offset must be there once."""
    table = DeltaTable(path, version=version).to_pyarrow_table(columns=["offset", "data"])
    rows = sorted(zip(table["offset"].to_pylist(), table["data"].to_pylist(), strict=True))
    assert all(first[0] < second[0] for first, second in pairwise(rows)), "an offset is there twice"
    return [data for _, data in rows]


def expected_rows(begin: int, end: int) -> list[str]:
    return [record.decode() for record in events(begin, end)]


def append(table: TableBuilder, number: int) -> None:
    """The next flush of the server."""
    begin = number * ROWS
    table.commit(MONDAY_MS + number * 1000, list(events(begin, begin + ROWS)))


@pytest.fixture
def table(root: Path) -> TableBuilder:
    """The server's view of a table of four flushes."""
    return small_commits(root, "s", commits=COMMITS, rows=ROWS)


@pytest.fixture
def job(root: Path, table: TableBuilder) -> Job:
    return Job(root, table.folder)


def versions(job: Job) -> list[int]:
    return list_log(job.storage, job.folder).entries


# A rewrite.


def test_rewrite_leaves_the_same_rows_in_other_files(job: Job, table: TableBuilder):
    before = job.state.records
    version = job.commit(job.rewrite(job.files[:3]))
    assert version == job.state.version == COMMITS
    assert [file.rows for file in job.files] == [3 * ROWS, ROWS]
    assert job.state == replay_log(job.storage, job.folder)
    assert job.state.records == before
    assert job.state.records_trimmed == 0
    assert job.state.write_amplification == 1 + 3 / COMMITS
    assert delta_rows(table.path) == expected_rows(0, COMMITS * ROWS)


def test_rewrite_says_that_no_data_has_changed(job: Job, root: Path):
    job.commit(job.rewrite(job.files))
    *actions, info = entries(root, "s")[-1]
    changes = [line[kind]["dataChange"] for line in actions for kind in line if kind != "txn"]
    assert changes == [False] * (COMMITS + 1)
    assert info["commitInfo"]["operation"] == "OPTIMIZE"


def test_rewrite_leaves_older_versions_readable(job: Job, table: TableBuilder):
    job.commit(job.rewrite(job.files))
    for version in range(COMMITS):
        assert delta_rows(table.path, version) == expected_rows(0, (version + 1) * ROWS)


def test_rewrite_of_rewritten_files_is_counted_again(job: Job, table: TableBuilder):
    job.commit(job.rewrite(job.files[:2], "first"))
    job.commit(job.rewrite(job.files, "second"))
    assert job.state.write_amplification == 1 + (2 + 4) / COMMITS
    assert delta_rows(table.path) == expected_rows(0, COMMITS * ROWS)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_rewrite_that_races_with_appends_comes_after_them(
    job: Job, table: TableBuilder, count: int
):
    change = job.rewrite(job.files[:3])
    numbers = range(COMMITS, COMMITS + count)
    job.race(*[lambda number=number: append(table, number) for number in numbers])
    assert job.commit(change) == COMMITS + count
    assert versions(job) == list(range(COMMITS + count + 1))
    assert job.state == replay_log(job.storage, job.folder)
    assert [file.rows for file in job.files] == [3 * ROWS] + [ROWS] * (1 + count)
    assert job.state.committed == table.state.committed
    assert delta_rows(table.path) == expected_rows(0, (COMMITS + count) * ROWS)


def test_append_that_races_with_a_rewrite_comes_after_it(job: Job, table: TableBuilder, root: Path):
    change = job.rewrite(job.files[:3])
    server = FaultyStorage(root)
    server.hooks["put_if_absent"] = lambda: server.hooks.clear() or job.commit(change)
    table.storage = server
    append(table, COMMITS)
    assert job.state.version == COMMITS
    assert table.state.version == COMMITS + 1
    assert table.state == replay_log(job.storage, job.folder)
    assert delta_rows(table.path) == expected_rows(0, (COMMITS + 1) * ROWS)


def test_writer_goes_on_after_changes_it_did_not_know_of(job: Job, table: TableBuilder):
    job.commit(job.rewrite(job.files[:2], "first"))
    job.commit(job.rewrite(job.files[1:], "second"))
    job.commit(job.trim(job.files[:1]))
    for number in (COMMITS, COMMITS + 1):
        append(table, number)
    assert table.state == replay_log(job.storage, job.folder)
    assert table.state.records == (COMMITS + 2) * ROWS
    assert table.state.records_trimmed == 2 * ROWS
    assert delta_rows(table.path) == expected_rows(2 * ROWS, (COMMITS + 2) * ROWS)


# The reply of a put, lost or bad.


def test_change_whose_reply_is_lost_is_there_once(job: Job, table: TableBuilder):
    change = job.rewrite(job.files)
    job.storage.fail("put_if_absent", after=True)
    assert job.commit(change) == COMMITS
    assert versions(job) == list(range(COMMITS + 1))
    assert job.state == replay_log(job.storage, job.folder)
    assert delta_rows(table.path) == expected_rows(0, COMMITS * ROWS)


def test_change_whose_reply_is_lost_after_a_race_is_there_once(job: Job, table: TableBuilder):
    change = job.trim(job.files[:1])
    job.race(lambda: append(table, COMMITS))
    job.storage.fail("put_if_absent", nth=2, after=True)
    assert job.commit(change) == COMMITS + 1
    assert versions(job) == list(range(COMMITS + 2))
    assert job.state == replay_log(job.storage, job.folder)
    assert job.state.records_trimmed == ROWS
    assert delta_rows(table.path) == expected_rows(ROWS, (COMMITS + 1) * ROWS)


def test_change_that_fails_where_an_append_came_first_tries_the_next_version(
    job: Job, table: TableBuilder
):
    change = job.rewrite(job.files)
    job.race(lambda: append(table, COMMITS))
    job.storage.fail("put_if_absent")
    assert job.commit(change) == COMMITS + 1
    assert job.state == replay_log(job.storage, job.folder)
    assert delta_rows(table.path) == expected_rows(0, (COMMITS + 1) * ROWS)


def test_change_that_cannot_be_written_leaves_everything_as_it_was(job: Job, table: TableBuilder):
    change = job.rewrite(job.files)
    job.storage.fail("put_if_absent")
    with pytest.raises(StorageUnavailable):
        job.commit(change)
    assert job.state == table.state == replay_log(job.storage, job.folder)
    assert job.commit(change) == COMMITS
    assert delta_rows(table.path) == expected_rows(0, COMMITS * ROWS)


# Inputs that are gone.


@pytest.mark.parametrize("kind", ["rewrite", "trim"])
def test_change_of_files_that_were_replaced_is_lost(
    job: Job, table: TableBuilder, root: Path, kind: str
):
    other = Job(root, table.folder)
    change = job.rewrite(job.files[:2]) if kind == "rewrite" else job.trim(job.files[:2])
    job.race(lambda: other.commit(other.rewrite(other.files[1:], "theirs")))
    with pytest.raises(ChangeLost):
        job.commit(change)
    assert versions(job) == list(range(COMMITS + 1))
    assert job.state == other.state == replay_log(job.storage, job.folder)
    assert delta_rows(table.path) == expected_rows(0, COMMITS * ROWS)


def test_rewrite_of_files_that_were_trimmed_is_lost(job: Job, table: TableBuilder, root: Path):
    other = Job(root, table.folder)
    change = job.rewrite(job.files[:2])
    job.race(lambda: append(table, COMMITS), lambda: other.commit(other.trim(other.files[:1])))
    other.state = table.state
    with pytest.raises(ChangeLost):
        job.commit(change)
    assert job.state == replay_log(job.storage, job.folder)
    assert delta_rows(table.path) == expected_rows(ROWS, (COMMITS + 1) * ROWS)


def test_change_of_a_file_that_differs_from_the_table_is_lost(job: Job):
    first, *_ = job.files
    change = job.trim([replace(first, rows=first.rows + 1)])
    with pytest.raises(ChangeLost):
        job.commit(change)
    assert versions(job) == list(range(COMMITS))


# A trim.


def test_trim_remembers_what_is_gone(job: Job, table: TableBuilder):
    doomed = job.files[:2]
    job.commit(job.trim(doomed))
    assert job.state.trimmed == doomed[-1].last
    assert job.state.records == COMMITS * ROWS
    assert job.state.records_trimmed == 2 * ROWS
    assert job.state == replay_log(job.storage, job.folder)
    job.commit(job.trim(job.files[:1]))
    assert job.state.records_trimmed == 3 * ROWS
    assert format_stored(job.state.trimmed) < format_stored(job.files[0].first)
    assert delta_rows(table.path) == expected_rows(3 * ROWS, COMMITS * ROWS)


def test_trim_of_everything_keeps_the_tail(job: Job, table: TableBuilder):
    tail = job.state.committed
    job.commit(job.trim(job.files))
    assert job.state.files == {}
    assert job.state.committed == job.state.trimmed == tail
    append(table, COMMITS)
    assert delta_rows(table.path) == expected_rows(COMMITS * ROWS, (COMMITS + 1) * ROWS)


@pytest.mark.parametrize("where", ["first", "last"])
def test_trim_of_what_a_fork_reads_is_refused(job: Job, table: TableBuilder, where: str):
    held = job.files[1]
    job.commit(job.hold(getattr(held, where)))
    for files in (job.files[:1], job.files[:2], job.files[1:2]):
        with pytest.raises(ChangeLost):
            job.commit(job.trim(files))
    assert versions(job) == list(range(COMMITS + 1))
    assert job.commit(job.trim(job.files[2:])) == COMMITS + 1
    assert delta_rows(table.path) == expected_rows(0, 2 * ROWS)


def test_trim_is_refused_when_a_fork_comes_between(job: Job, table: TableBuilder, root: Path):
    other = Job(root, table.folder)
    change = job.trim(job.files[:1])
    job.race(lambda: other.commit(other.hold(other.files[0].first)))
    with pytest.raises(ChangeLost):
        job.commit(change)
    assert job.state == other.state == replay_log(job.storage, job.folder)
    assert delta_rows(table.path) == expected_rows(0, COMMITS * ROWS)


def test_rewrite_of_what_a_fork_reads_is_fine(job: Job, table: TableBuilder):
    job.commit(job.hold(job.files[-1].last))
    job.commit(job.rewrite(job.files))
    assert len(job.files) == 1
    assert delta_rows(table.path) == expected_rows(0, COMMITS * ROWS)


# Beside a server.


async def flushes(lives: Lives, count: int) -> None:
    await lives.create("s")
    for number in range(count):
        await lives.append("s", b"%d" % number)
        await lives.commit("s")


async def test_server_goes_on_appending_after_a_rewrite(lives: Lives):
    await flushes(lives, 3)
    job = Job(lives.root, "s")
    replaced = job.files
    job.commit(job.rewrite(replaced))
    for file in replaced:
        (lives.root / "s" / file.path).unlink()
    assert await lives.records("s") == [b"0", b"1", b"2"]
    await lives.append("s", b"3")
    await lives.commit("s")
    assert len(entries(lives.root, "s")) == 5
    assert await lives.records("s") == [b"0", b"1", b"2", b"3"]
    assert delta_rows(lives.root / "s") == ["0", "1", "2", "3"]
    for without_wal in (False, True):
        await lives.restart(without_wal=without_wal)
        assert await lives.records("s") == [b"0", b"1", b"2", b"3"]


async def test_server_whose_version_a_rewrite_takes_commits_once(lives: Lives):
    await flushes(lives, 3)
    job = Job(lives.root, "s")
    change = job.rewrite(job.files)

    def rewrite_first() -> None:
        if lives.storage.hooks.pop("put_if_absent", None):
            job.commit(change)

    lives.storage.hooks["put_if_absent"] = rewrite_first
    await lives.append("s", b"3")
    await lives.commit("s")
    assert job.state.version == 3
    assert len(entries(lives.root, "s")) == 5
    assert await lives.records("s") == [b"0", b"1", b"2", b"3"]
    assert delta_rows(lives.root / "s") == ["0", "1", "2", "3"]
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b"0", b"1", b"2", b"3"]


async def test_server_that_was_killed_after_a_rewrite_loses_nothing(lives: Lives):
    await flushes(lives, 3)
    job = Job(lives.root, "s")
    job.commit(job.rewrite(job.files))
    await lives.append("s", b"3")
    await lives.crash()
    assert await lives.records("s") == [b"0", b"1", b"2", b"3"]
    await lives.append("s", b"4")
    await lives.commit("s")
    assert delta_rows(lives.root / "s") == ["0", "1", "2", "3", "4"]


async def test_rewrites_and_appends_of_a_server_take_turns(lives: Lives):
    await lives.create("s")
    storage = LocalStorage(lives.root)
    for number in range(20):
        await lives.append("s", b"%d" % number)
        await lives.commit("s")
        if number % 3 == 2:
            job = Job(lives.root, "s")
            job.commit(job.rewrite(job.files, f"joined-{number}"))
            lives.clock.advance(INTERVAL_MS)
    state = load_state(storage, "s")
    assert [file.rows for file in in_order(state)] == [18, 1, 1]
    assert state.records == 20
    assert await lives.records("s") == [b"%d" % number for number in range(20)]
    assert delta_rows(lives.root / "s") == [str(number) for number in range(20)]
