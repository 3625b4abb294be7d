"""Commits that somebody waits for: they end, in a fair order, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import threading
from typing import TYPE_CHECKING

import pytest

from engine import errors
from engine.settings import MIB, CommitSettings, WalSettings
from engine.storage import LocalStorage
from engine.table.actions import OWNER_APP, encode_entry, encode_txn
from engine.table.replay import entry_path, load_state
from engine.types import Ack, StreamName
from engine.write.agenda import Agenda
from engine.write.snapshot import load_snapshot
from tests.support.model import INTERVAL_MS, SMALL, Lives, until

if TYPE_CHECKING:
    from pathlib import Path

HOUR_MS = 3_600_000


class Gate:
    """Holds every call of a storage operation back until it is opened."""

    def __init__(self, lives: Lives, operation: str) -> None:
        self._opened = threading.Event()
        self.entered = threading.Event()
        self._hooks = lives.storage.hooks
        self._operation = operation
        self._hooks[operation] = self._wait

    def open(self) -> None:
        self._hooks.pop(self._operation, None)
        self._opened.set()

    def _wait(self) -> None:
        self.entered.set()
        assert self._opened.wait(10)


def for_the_table(lives: Lives, name: str, body: bytes = b"1") -> asyncio.Task:
    return asyncio.create_task(lives.append(name, body, ack=Ack.TABLE))


async def outcome(task: asyncio.Task) -> object:
    """The result or the error; a wait without end fails the test."""
    [found] = await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 5)
    return found


def records_of(lives: Lives, name: str) -> int:
    return load_state(LocalStorage(lives.root), name).records


async def patient(root: Path, threads: int = 1) -> Lives:
    """An engine with one commit thread, and intervals that nobody lives to see."""
    commit = CommitSettings(interval_ms=HOUR_MS, threads=threads)
    lives = Lives(root, SMALL.model_copy(update={"commit": commit}))
    await lives.start()
    return lives


# Nobody waits without end.


async def test_commit_that_ends_in_a_fault_tells_everybody_who_waits(lives: Lives):
    await lives.create("s")
    assert (await for_the_table(lives, "s")).ack is Ack.TABLE
    gate = Gate(lives, "put_if_absent")
    first = for_the_table(lives, "s")
    await until(gate.entered.is_set)
    second = for_the_table(lives, "s")
    stranger = encode_entry([encode_txn(OWNER_APP, 10**15)], operation="WRITE", timestamp_ms=1)
    version = load_state(LocalStorage(lives.root), "s").version + 1
    lives.storage.inner.put_if_absent(entry_path("s", version), stranger)
    await asyncio.sleep(0)
    gate.open()
    for task in (first, second):
        assert isinstance(await outcome(task), errors.OwnershipLost)


async def test_commit_that_is_waited_for_begins_when_the_one_under_way_ends(lives: Lives):
    """Not an interval later, though there is more to commit by then; the clock stands still."""
    await lives.create("s")
    await for_the_table(lives, "s")
    gate = Gate(lives, "put_if_absent")
    first = for_the_table(lives, "s")
    await until(gate.entered.is_set)
    second = for_the_table(lives, "s")
    third = await lives.append("s", b"3")
    assert third.ack is Ack.WAL
    gate.open()
    for task in (first, second):
        assert (await outcome(task)).ack is Ack.TABLE
    await lives.fork("f", "s")


async def test_table_ack_of_a_stream_deleted_with_it_is_not_given(lives: Lives):
    await lives.create("s")
    await for_the_table(lives, "s")
    append = for_the_table(lives, "s")
    delete = asyncio.create_task(lives.log.delete(StreamName("s")))
    assert isinstance(await outcome(append), errors.StreamNotFound)
    await delete


async def test_two_deletes_in_mid_commit_leave_the_folder_alone_until_its_end(lives: Lives):
    """The second stream of the name has no commit of its own, but the first one's still runs."""
    await lives.create("other")
    await for_the_table(lives, "other")
    gate = Gate(lives, "put_if_absent")
    await lives.create("s")
    append = for_the_table(lives, "s")
    await until(gate.entered.is_set)
    await lives.log.delete(StreamName("s"))
    await lives.create("s")
    await lives.log.delete(StreamName("s"))
    # Folders are removed one after another: when this one is gone, "s" has been passed over.
    await lives.log.delete(StreamName("other"))
    await until(lambda: not lives.storage.exists("other"), "the removal of the other")
    assert lives.storage.exists("s"), "the folder was taken from under a commit"
    gate.open()
    assert (await outcome(append)).ack is Ack.TABLE
    await until(lambda: not lives.storage.exists("s"), "the removal")
    await lives.create("s")
    assert (await outcome(for_the_table(lives, "s", b"2"))).ack is Ack.TABLE
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b"2"]


async def test_failed_commit_of_a_deleted_stream_is_no_fault_of_the_storage(lives: Lives):
    gate = Gate(lives, "put_if_absent")
    lives.storage.fail("put_if_absent")
    await lives.create("s")
    append = for_the_table(lives, "s")
    await until(gate.entered.is_set)
    await lives.log.delete(StreamName("s"))
    gate.open()
    assert isinstance(await outcome(append), errors.StreamNotFound)
    await until(lambda: not lives.storage.exists("s"), "the removal")


async def test_table_ack_does_not_wait_for_a_folder_that_cannot_be_freed(lives: Lives):
    await lives.create("s")
    await for_the_table(lives, "s")
    lives.storage.fail("rename", times=1000)
    await lives.log.delete(StreamName("s"))
    await lives.create("s")
    assert isinstance(await outcome(for_the_table(lives, "s")), errors.StorageUnavailable)
    lives.storage.heal()
    again = for_the_table(lives, "s", b"2")
    await until(lambda: lives.clock.advance(INTERVAL_MS) or again.done())
    assert (await again).ack is Ack.TABLE


async def test_settings_changed_meanwhile_do_not_delay_a_commit_that_is_waited_for(root: Path):
    lives = await patient(root)
    try:
        for name in ("a", "b"):
            await lives.create(name)
            await for_the_table(lives, name)
        gate = Gate(lives, "put_file")
        blocking = for_the_table(lives, "b")
        await until(gate.entered.is_set)
        waiting = for_the_table(lives, "a")
        await until(lambda: lives.log.head(StreamName("a")).tail > 0)
        await lives.log.change_settings(StreamName("a"), {"retain": {"records": 5}})
        gate.open()
        assert (await outcome(blocking)).ack is Ack.TABLE
        assert (await outcome(waiting)).ack is Ack.TABLE
    finally:
        await lives.bury()


# Nobody is kept waiting by others.


async def test_streams_that_are_hurried_do_not_starve_the_others(root: Path):
    """One commit thread, and writers that always have a table ack waiting."""
    commit = CommitSettings(interval_ms=INTERVAL_MS, threads=1)
    lives = Lives(root, SMALL.model_copy(update={"commit": commit}))
    await lives.start()
    is_over = False

    async def write(name: str) -> None:
        while not is_over:
            await lives.append(name, b"1", ack=Ack.TABLE)
            lives.clock.advance(1)

    try:
        names = [f"busy-{number}" for number in range(4)]
        for name in (*names, "plain"):
            await lives.create(name)
            await lives.append(name, b"0", ack=Ack.TABLE)
        writers = [asyncio.create_task(write(name)) for name in names for _ in range(2)]
        await lives.append("plain", b"1")
        await until(lambda: records_of(lives, "plain") == 2, "the commit of the plain stream")
        is_over = True
        await asyncio.gather(*writers)
    finally:
        await lives.bury()


async def test_interval_of_one_stream_does_not_fill_the_log_for_all(root: Path):
    wal = WalSettings(segment_bytes=4096, bytes_max=MIB)
    lives = Lives(root, SMALL.model_copy(update={"wal": wal}))
    await lives.start()
    try:
        for name in ("slow", "s"):
            await lives.create(name)
        await lives.log.change_settings(StreamName("slow"), {"commit": {"interval_ms": HOUR_MS}})
        await lives.append("slow", b"1")
        body = b'"%b"' % (b"x" * 40_000)
        for _ in range(60):
            await lives.append("s", body)
            lives.clock.advance(INTERVAL_MS)
            await lives.log._trimmer.trim()
            await asyncio.sleep(0.002)
        assert records_of(lives, "slow") == 1
    finally:
        await lives.bury()


def test_agenda_keeps_the_order_of_due_times():
    agenda, streams = Agenda(), [object() for _ in range(200)]
    assert agenda.put(streams[0], 50)
    assert not agenda.put(streams[1], 60)
    assert agenda.put(streams[1], 40)
    assert agenda.first() == (40, streams[1])
    agenda.remove(streams[1])
    assert agenda.first() == (50, streams[0])
    for round_ in range(5):
        for index, stream in enumerate(streams):
            agenda.put(stream, 1000 * round_ - index)
    seen = []
    while (first := agenda.first()) is not None:
        seen.append(first)
        agenda.remove(first[1])
    assert seen == [(4000 - index, streams[index]) for index in range(199, -1, -1)]
    assert len(agenda) == 0


# A failed sync is told to everybody.


async def test_sync_that_another_was_told_of_marks_nothing_as_durable(lives: Lives):
    """The kernel reports an error once: here the table ack gets it, the snapshot's sync a zero."""
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.commit("s")
    before = load_snapshot(lives.storage.inner)
    gate = Gate(lives, "sync_all")
    save = asyncio.create_task(lives.log._trimmer.save())
    await until(gate.entered.is_set)
    lives.log._trimmer.poison(OSError("told to the table ack"))
    gate.open()
    await save
    assert load_snapshot(lives.storage.inner) == before


async def test_sync_that_the_snapshot_was_told_of_gives_no_table_ack(lives: Lives):
    await lives.create("s")
    gate = Gate(lives, "sync_all")
    ack = for_the_table(lives, "s")
    await until(gate.entered.is_set)
    lives.log._trimmer.poison(OSError("told to the snapshot"))
    gate.open()
    assert isinstance(await outcome(ack), errors.StorageUnavailable)


def test_sync_error_is_remembered_by_the_storage(root: Path, monkeypatch: pytest.MonkeyPatch):
    storage = LocalStorage(root / "data")
    answers = [-1, 0]

    class Libc:
        @staticmethod
        def syncfs(descriptor: int) -> int:
            del descriptor
            return answers.pop(0)

    ctypes.set_errno(errno.EIO)
    monkeypatch.setattr(storage, "_libc", Libc)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            storage.sync_all()


# Forks.


async def test_hold_stays_while_another_fork_is_being_created(lives: Lives):
    """The last fork goes and another one comes, in two groups; the source commits in between."""
    await lives.create("s")
    tail = (await lives.append("s", b"[1,2,3]")).tail
    await lives.commit("s")
    await lives.fork("old", "s")
    gate_calls = 0
    opened = threading.Event()

    def hold_second_group() -> None:
        nonlocal gate_calls
        gate_calls += 1
        if gate_calls == 2:
            assert opened.wait(10)

    lives.storage.hooks["write"] = hold_second_group
    delete = asyncio.create_task(lives.log.delete(StreamName("old")))
    create = asyncio.create_task(lives.fork("new", "s"))
    await delete
    await until(lambda: gate_calls == 2)
    for _ in range(50):
        lives.clock.advance(INTERVAL_MS)
        await asyncio.sleep(0.002)
    opened.set()
    await create
    assert load_state(LocalStorage(lives.root), "s").held == tail
