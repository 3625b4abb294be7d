"""From tails to Delta versions: when, how many, exactly once, whatever the storage does."""

from __future__ import annotations

import asyncio
import errno
import json
import threading

import polars as pl
import pytest

from engine import errors, metrics
from engine.settings import CommitSettings, EngineSettings
from engine.types import ProducerStamp
from tests.support.model import (
    BYTES,
    INTERVAL_MS,
    Lives,
    committed,
    entries,
    entries_folder,
    until,
)


def rows(lives: Lives, name: str) -> list[str]:
    """The data column as another program reads it, in offset order."""
    table = pl.read_delta(str(entries_folder(lives.root, name).parent)).sort("offset")
    return table["data"].to_list()


async def settle() -> None:
    """Give the committer every chance to do what it must not do."""
    await asyncio.sleep(5 * INTERVAL_MS / 1000)


async def test_committer_makes_one_file_of_all_appends_of_an_interval(lives: Lives):
    await lives.create("s")
    for number in range(100):
        await lives.append("s", b"%d" % number)
    await lives.commit("s")
    (actions,) = entries(lives.root, "s")
    assert len([action for action in actions if "add" in action]) == 1
    assert rows(lives, "s") == [str(number) for number in range(100)]


async def test_committer_commits_nothing_before_the_interval_is_over(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    lives.clock.advance(INTERVAL_MS - 1)
    await settle()
    assert committed(lives.root, "s") == -1
    lives.clock.advance(1)
    await until(lambda: committed(lives.root, "s") > 0)


async def test_committer_commits_nothing_for_an_idle_stream(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.commit("s")
    for _ in range(5):
        lives.clock.advance(INTERVAL_MS)
        await lives.log.read("s", 0)
    await settle()
    assert len(entries(lives.root, "s")) == 1


async def test_committer_does_not_wait_for_the_interval_when_a_tail_is_large(root):
    settings = EngineSettings(commit=CommitSettings(interval_ms=3_600_000, bytes=4096))
    lives = Lives(root, settings)
    await lives.start()
    await lives.create("s", BYTES)
    await lives.append("s", bytes(4096))
    await until(lambda: committed(lives.root, "s") > 0)
    await lives.bury()


async def test_committer_puts_producer_state_into_the_commit_of_its_records(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1", producer=ProducerStamp("é:seq", 7, 0))
    await lives.commit("s")
    (actions,) = entries(lives.root, "s")
    txns = {line["txn"]["appId"]: line["txn"]["version"] for line in actions if "txn" in line}
    assert txns["bottomless:producer:é:seq:epoch"] == 7
    assert txns["bottomless:producer:é:seq:seq"] == 0


@pytest.mark.parametrize("version", [0, 1])
async def test_committer_commits_rows_once_when_the_reply_is_lost(lives: Lives, version: int):
    await lives.create("s")
    if version:
        await lives.append("s", b"0")
        await lives.commit("s")
    lives.storage.fail("put_if_absent", after=True)
    await lives.append("s", b"[1,2]")
    lives.clock.advance(INTERVAL_MS)
    await until(lambda: lives.storage.calls["put_if_absent"] > version)
    await lives.append("s", b"3")
    await until(
        lambda: lives.clock.advance(100) or committed(lives.root, "s") >= lives.log.head("s").tail
    )
    expected = ["0", "1", "2", "3"][1 - version :]
    assert rows(lives, "s") == expected
    await lives.restart(without_wal=True)
    assert await lives.content("s") == b"[" + ",".join(expected).encode() + b"]"


async def test_committer_keeps_streams_apart_when_a_reply_is_lost_and_the_name_is_reused(
    lives: Lives,
):
    await lives.create("s")
    await lives.append("s", b'"old"')
    lives.storage.fail("put_if_absent", after=True)
    lives.clock.advance(INTERVAL_MS)
    await until(lambda: lives.storage.calls["put_if_absent"] == 1)
    await settle()
    await lives.log.delete("s")
    await lives.create("s")
    await lives.append("s", b'"new"')
    await lives.commit("s")
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b'"new"']
    assert rows(lives, "s") == ['"new"']


@pytest.mark.parametrize("operation", ["put_file", "make_folder"])
async def test_committer_tries_again_after_a_failure(lives: Lives, operation: str):
    await lives.create("s")
    lives.storage.fail(operation, code=errno.ENOSPC)
    await lives.append("s", b"1")
    await until(lambda: lives.clock.advance(500) or committed(lives.root, "s") > 0)
    assert rows(lives, "s") == ["1"]
    assert await lives.records("s") == [b"1"]


async def test_committer_goes_on_with_other_streams_while_one_fails(lives: Lives):
    await lives.create("bad")
    await lives.create("good")
    lives.storage.fail("put_if_absent", times=1000, path="bad/")
    await lives.append("bad", b"1")
    lives.clock.advance(INTERVAL_MS)
    await until(lambda: lives.storage.calls["put_if_absent"] == 1)
    await settle()
    await lives.append("good", b"1")
    lives.clock.advance(INTERVAL_MS)
    await until(lambda: committed(lives.root, "good") > 0, "the commit behind a failed one")


async def test_committer_that_fails_at_stop_leaves_everything_to_the_wal(lives: Lives):
    await lives.create("empty")
    await lives.create("full")
    await lives.append("full", b"1")
    await lives.create("lasting", ttl_seconds=1000)
    lives.storage.fail("put_if_absent", times=1000)
    await lives.stop()
    await lives.start()
    assert await lives.records("full") == [b"1"]
    await lives.stop()
    for name in ("empty", "full", "lasting"):
        assert committed(lives.root, name) >= 0, f"{name} has no table"


async def test_committer_that_failed_at_stop_for_an_empty_stream_keeps_the_wal(lives: Lives):
    await lives.create("empty")
    lives.storage.fail("put_if_absent", times=1000)
    await lives.stop()
    assert list((lives.root / "_wal").glob("*.wal")), "the only trace of the stream was removed"


async def test_committer_steps_down_when_another_owner_has_committed(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.commit("s")
    theirs = entries_folder(lives.root, "s") / f"{1:020d}.json"
    owner = lives.clock.now_ms() + 10**9
    theirs.write_text(
        f'{{"txn":{{"appId":"bottomless:owner","version":{owner}}}}}\n'
        '{"commitInfo":{"timestamp":1,"operation":"WRITE","actions":1}}\n'
    )
    await lives.append("s", b"2")
    lives.clock.advance(INTERVAL_MS)
    await until(lambda: is_fenced(lives), "the loss of ownership")
    assert len(entries(lives.root, "s")) == 2


def is_fenced(lives: Lives) -> bool:
    try:
        lives.log.head("s")
    except errors.OwnershipLost:
        return True
    return False


async def test_committer_takes_over_a_rewrite_of_a_job(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"[1,2]")
    await lives.commit("s")
    (actions,) = entries(lives.root, "s")
    (add,) = [action["add"] for action in actions if "add" in action]
    copy = add["path"].replace("part-", "part-rewritten-")
    folder = lives.root / "s"
    (folder / copy).write_bytes((folder / add["path"]).read_bytes())
    rewrite = [
        {"remove": {"path": add["path"], "dataChange": False, "deletionTimestamp": 1}},
        {"add": {**add, "path": copy, "dataChange": False}},
        {"commitInfo": {"operation": "OPTIMIZE", "actions": 2}},
    ]
    path = entries_folder(lives.root, "s") / f"{1:020d}.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in rewrite))
    (folder / add["path"]).unlink()
    assert await lives.records("s") == [b"1", b"2"]
    await lives.append("s", b"3")
    await lives.commit("s")
    assert await lives.records("s") == [b"1", b"2", b"3"]
    assert rows(lives, "s") == ["1", "2", "3"]
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("operation", ["size", "open_input", "read"])
async def test_committer_keeps_good_commits_when_reading_them_fails_for_a_moment(
    lives: Lives, operation: str
):
    await lives.create("s")
    for number in range(2):
        await lives.append("s", b"%d" % number)
        await lives.commit("s")
    lives.storage.fail("put_file", code=errno.ENOSPC)
    lives.storage.fail(operation, path="s/", code=errno.EMFILE)
    await lives.append("s", b"2")
    await lives.commit("s")
    # Whether the commit or the next read meets the failure is not the point; what it leaves is.
    lives.storage.heal()
    assert await lives.records("s") == [b"0", b"1", b"2"]
    assert rows(lives, "s") == ["0", "1", "2"]
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b"0", b"1", b"2"]


async def test_committer_frees_the_folder_of_a_deleted_stream_in_spite_of_a_failure(lives: Lives):
    await lives.create("s")
    await lives.append("s", b'"old"')
    await lives.commit("s")
    lives.storage.fail("rename", path="s")
    await lives.log.delete("s")
    await until(lambda: lives.storage.calls["rename"] > 0, "the attempt to remove the table")
    await lives.create("s")
    await lives.append("s", b'"new"')
    await lives.commit("s")
    assert rows(lives, "s") == ['"new"']
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b'"new"']


async def test_committer_keeps_a_stream_apart_from_the_one_it_replaced_in_mid_commit(lives: Lives):
    gate, reached = threading.Event(), threading.Event()

    def wait_once() -> None:
        if not reached.is_set():
            reached.set()
            gate.wait(5)

    lives.storage.hooks["put_if_absent"] = wait_once
    await lives.create("s")
    await lives.append("s", b'"old"')
    lives.clock.advance(INTERVAL_MS)
    await until(reached.is_set, "the first commit")
    await lives.log.delete("s")
    await lives.create("s")
    await lives.append("s", b'"new"')
    lives.clock.advance(INTERVAL_MS)
    gate.set()
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b'"new"']
    assert rows(lives, "s") == ['"new"']


async def test_committer_never_brings_a_deleted_stream_back(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.commit("s")
    lives.storage.fail("rename", path="s")
    await lives.log.delete("s")
    await until(lambda: lives.storage.calls["rename"] > 0, "the attempt to remove the table")
    for without_wal in (False, True):
        await lives.restart(without_wal=without_wal)
        with pytest.raises(errors.StreamNotFound):
            lives.log.head("s")
    assert (await lives.create("s")).created


async def test_committer_tells_the_lag_of_a_stream_whose_commit_fails(lives: Lives):
    await lives.create("bad")
    lives.storage.fail("put_if_absent", times=1000, path="bad/")
    await lives.append("bad", b"1")
    lives.clock.advance(INTERVAL_MS)
    await until(lambda: lives.storage.calls["put_if_absent"] == 1)
    lives.clock.advance(60_000)
    lag = "bottomless_commit_lag_seconds"
    await until(lambda: metrics.REGISTRY.get_sample_value(lag) >= 60, "the lag")
