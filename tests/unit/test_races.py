"""What happens while something else is under way: deletes, forks, expiry, lost replies, a stop."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from typing import TYPE_CHECKING

import orjson
import polars
import pytest
from deltalake import DeltaTable

from engine import errors
from engine.settings import KIB, MIB, CommitSettings, EngineSettings, LimitSettings, ReadSettings
from engine.table.actions import encode_entry
from tests.support.model import BYTES, INTERVAL_MS, SMALL, Lives, entries, entries_folder, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.storage import FaultyStorage


class Gate:
    """Holds an operation of the storage back until it is opened."""

    def __init__(self, storage: FaultyStorage, operation: str) -> None:
        self._storage = storage
        self._operation = operation
        self._opened = threading.Event()
        self.entered = threading.Event()
        storage.hooks[operation] = self._wait

    def open(self) -> None:
        self._storage.hooks.pop(self._operation, None)
        self._opened.set()

    def _wait(self) -> None:
        self.entered.set()
        assert self._opened.wait(10)


async def answers(gate: Gate, *work: asyncio.Task) -> list[object]:
    """Let the work be judged while the group before it is on its way, then open the gate."""
    for _ in range(20):
        await asyncio.sleep(0)
    gate.open()
    return await asyncio.gather(*work, return_exceptions=True)


async def readable(lives: Lives, name: str) -> bytes | None:
    """The stream's content; None where there is no such stream."""
    with contextlib.suppress(errors.StreamNotFound, errors.StreamGone):
        return await lives.content(name)
    return None


async def test_fork_is_refused_while_its_source_is_on_its_way_out(lives: Lives) -> None:
    await lives.create("s")
    await lives.append("s", b"[1,2,3]")
    await lives.commit("s")
    await lives.fork("first", "s")
    await lives.create("other")
    gate = Gate(lives.storage, "sync")
    under_way = asyncio.create_task(lives.append("other", b"0"))
    await until(gate.entered.is_set)
    deletes = [asyncio.create_task(lives.log.delete(name)) for name in ("s", "first")]
    fork = asyncio.create_task(lives.fork("second", "s"))
    *_, result = await answers(gate, under_way, *deletes, fork)
    assert isinstance(result, errors.StreamExists)
    await lives.crash()
    assert await readable(lives, "second") is None


async def test_expired_source_keeps_its_name_while_a_fork_of_it_is_made(lives: Lives) -> None:
    await lives.create("s", ttl_seconds=10)
    await lives.append("s", b"[1,2,3]")
    await lives.commit("s")
    gate = Gate(lives.storage, "sync")
    fork = asyncio.create_task(lives.fork("f", "s", ttl_seconds=1000))
    await until(gate.entered.is_set)
    lives.clock.advance(11_000)
    again = asyncio.create_task(lives.create("s"))
    forked, refused = await answers(gate, fork, again)
    assert not isinstance(forked, BaseException)
    assert isinstance(refused, errors.StreamExists)
    assert await lives.content("f") == b"[1,2,3]"
    await lives.append("f", b"4")
    await lives.commit("f")
    await lives.crash()
    assert await lives.content("f") == b"[1,2,3,4]"


@pytest.mark.parametrize("has_table", [False, True])
async def test_reader_misses_nothing_after_a_commit_whose_reply_was_lost(
    lives: Lives, has_table: bool
) -> None:
    await lives.create("s")
    await lives.append("s", b"0")
    if has_table:
        await lives.commit("s")
    assert await lives.content("s") == b"[0]"
    await lives.append("s", b"1")
    puts = lives.storage.calls["put_if_absent"]
    lives.storage.fail("put_if_absent", after=True)
    lives.clock.advance(INTERVAL_MS)
    await until(lambda: lives.storage.calls["put_if_absent"] > puts, "the commit")
    await lives.append("s", b"2")
    await lives.commit("s")
    assert await lives.content("s") == b"[0,1,2]"


async def test_read_under_way_is_told_that_the_stream_is_deleted(lives: Lives) -> None:
    await lives.create("s")
    await lives.append("s", b"0")
    await lives.commit("s")
    await lives.append("s", b"1")
    rename, gate = Gate(lives.storage, "rename"), Gate(lives.storage, "open_input")
    reading = asyncio.create_task(lives.log.read("s", 0))
    await until(gate.entered.is_set)
    await lives.log.delete("s")
    gate.open()
    with pytest.raises(errors.StreamNotFound):
        await reading
    rename.open()


async def test_readers_of_one_file_do_not_disturb_each_other(root: Path) -> None:
    """Two threads on one ParquetFile ended the process with a segmentation fault."""
    read = ReadSettings(chunk_bytes=4096, row_group_bytes=4096, cache_bytes=0, threads=4)
    lives = Lives(root, EngineSettings(wal=SMALL.wal, commit=SMALL.commit, read=read))
    await lives.start()
    await lives.create("s")
    record = b'"' + b"x" * 200 + b'"'
    tail = (await lives.append("s", b"[" + b",".join([record] * 2000) + b"]")).tail
    await lives.commit("s")
    places = [tail - back for back in range(1, 2000, 13)] * 4
    results = await asyncio.gather(*[lives.log.read("s", place) for place in places])
    for place, result in zip(places, results, strict=True):
        found = b",".join(result.pieces).split(b",")
        assert set(found) == {record}
        assert len(found) == result.end - place
    await lives.bury()


async def test_full_tails_are_committed_before_their_interval(root: Path) -> None:
    limits = LimitSettings(tail_bytes=MIB, body_bytes=512 * KIB)
    patient = EngineSettings(commit=CommitSettings(interval_ms=3_600_000), limits=limits)
    lives = Lives(root, patient)
    await lives.start()
    for name in ("a", "b", "c"):
        await lives.create(name, BYTES)
    for name in ("a", "b"):
        await lives.append(name, bytes(400_000))
    with contextlib.suppress(errors.Overloaded):
        await lives.append("c", bytes(400_000))
    metric = lives.log._committer  # the only place that knows: tails are not visible from outside
    await until(lambda: metric.tail_bytes < limits.tail_bytes // 2, "room")
    await lives.append("c", bytes(400_000))
    await lives.bury()


async def test_stop_ends_although_a_deleted_folder_cannot_be_removed(lives: Lives) -> None:
    await lives.create("s")
    await lives.append("s", b'"old"')
    await lives.commit("s")
    lives.storage.fail("rename", times=10**6, path="s")
    await lives.log.delete("s")
    await lives.create("s")
    await lives.append("s", b'"new"')
    await asyncio.wait_for(lives.log.stop(), 8)
    await lives.start()
    assert await lives.content("s") == b'["new"]'


async def test_damaged_stream_can_be_deleted(lives: Lives) -> None:
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.restart()
    shutil.rmtree(lives.root / "s")
    await lives.append("s", b"2")
    lives.clock.advance(INTERVAL_MS)
    await until(lambda: is_damaged(lives, "s"), "the commit that finds no table")
    with pytest.raises(errors.DataCorrupt):
        await lives.append("s", b"3")
    await lives.log.delete("s")
    assert (await lives.create("s")).created


def is_damaged(lives: Lives, name: str) -> bool:
    try:
        lives.log.head(name)
    except errors.DataCorrupt:
        return True
    return False


async def test_recovery_verifies_what_a_torn_rewrite_seemed_to_replace(lives: Lives) -> None:
    await lives.create("s")
    await lives.append("s", b"0")
    await lives.commit("s")
    await lives.restart()
    await lives.append("s", b"1")
    await lives.commit("s")
    folder = entries_folder(lives.root, "s")
    [add] = [action["add"] for action in entries(lives.root, "s")[-1] if "add" in action]
    version = len(entries(lives.root, "s"))
    rewritten = {**add, "path": add["path"].replace("part-", "part-new-"), "dataChange": False}
    shutil.copy(folder.parent / add["path"], folder.parent / rewritten["path"])
    remove = {"path": add["path"], "deletionTimestamp": 1, "dataChange": False}
    lines = [orjson.dumps({"remove": remove}), orjson.dumps({"add": rewritten})]
    entry = encode_entry(lines, operation="OPTIMIZE", timestamp_ms=1)
    (folder / f"{version:020d}.json").write_bytes(entry)
    await lives.die()
    for path in (add["path"], rewritten["path"]):
        (lives.root / "s" / path).write_bytes(b"")
    await lives.start()
    assert await lives.content("s") == b"[0,1]"
    await lives.restart(without_wal=True)
    assert await lives.content("s") == b"[0,1]"


@pytest.mark.parametrize("hint", [None, b"", bytes(40)], ids=["kept", "empty", "zeros"])
async def test_recovery_removes_a_hint_to_a_checkpoint_that_is_gone(
    root: Path, hint: bytes | None
) -> None:
    commit = CommitSettings(interval_ms=INTERVAL_MS, checkpoint_every=4)
    lives = Lives(root, EngineSettings(wal=SMALL.wal, commit=commit))
    await lives.start()
    await lives.create("s")
    for number in range(5):
        await lives.append("s", b"%d" % number)
        await lives.commit("s")
    found = entries_folder(lives.root, "s") / "_last_checkpoint"
    await until(found.exists, "the checkpoint")
    await lives.die()
    folder = entries_folder(lives.root, "s")
    if hint is None:
        for checkpoint in folder.glob("*.checkpoint.parquet"):
            checkpoint.unlink()
    else:
        (folder / "_last_checkpoint").write_bytes(hint)
    await lives.start()
    assert DeltaTable(folder.parent).version() >= 4
    assert polars.read_delta(str(folder.parent)).height == 5
    await lives.bury()
