"""What the WAL forgets: nothing before the tables are durable, nothing after a failed sync."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from engine.errors import StorageUnavailable
from engine.log import Log
from tests.support.clock import ManualClock
from tests.support.model import BYTES, SMALL, Lives, until
from tests.support.storage import FaultyStorage

if TYPE_CHECKING:
    from pathlib import Path


def segments(lives: Lives) -> list[Path]:
    return sorted((lives.root / "_wal").glob("*.wal"))


async def fill(lives: Lives, name: str, count: int = 3) -> None:
    for _ in range(count):
        await lives.append(name, bytes(5000))


async def test_trimmer_keeps_segments_that_one_stream_still_needs(lives: Lives):
    await lives.create("slow", BYTES)
    await lives.create("quick", BYTES)
    lives.storage.fail("put_if_absent", times=1000, path="slow/")
    await lives.append("slow", b"needed")
    await fill(lives, "quick")
    await lives.commit("quick")
    before = segments(lives)
    await until(lambda: lives.storage.calls["sync_all"] > 0)
    await asyncio.sleep(1.1)
    assert segments(lives) == before
    await lives.crash()
    assert await lives.content("slow") == b"needed"


async def test_trimmer_ends_for_good_when_the_tables_cannot_be_synced(lives: Lives):
    await lives.create("s", BYTES)
    await fill(lives, "s")
    before = segments(lives)
    snapshot = (lives.root / "_wal" / "snapshot").read_bytes()
    lives.storage.fail("sync_all")
    await lives.commit("s")
    await until(lambda: not lives.log.is_ready, "the end of trimming")
    await lives.stop()
    assert segments(lives) == before
    assert (lives.root / "_wal" / "snapshot").read_bytes() == snapshot
    await lives.start()
    assert lives.log.is_ready
    assert await lives.content("s") == bytes(15_000)
    await lives.append("s", b"more")


async def test_trimmer_that_cannot_sync_at_stop_keeps_everything(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    lives.storage.fail("sync_all")
    await lives.stop()
    assert segments(lives)
    await lives.start()
    assert await lives.records("s") == [b"1"]


async def test_log_that_cannot_sync_at_start_is_not_ready_or_does_not_start(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.die()
    original = FaultyStorage.call

    def failing(self, name, *rest):
        if name == "sync_all":
            raise OSError(5, "no")
        return original(self, name, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FaultyStorage, "call", failing)
        try:
            await lives.start()
        except Exception:  # noqa: BLE001
            return
        assert not lives.log.is_ready
    assert await lives.records("s") == [b"1"]


async def test_trimmer_snapshot_that_is_late_does_not_replace_the_last_one(lives: Lives):
    """The housekeeper's snapshot waits for the disk while the server stops."""
    gate, reached = threading.Event(), threading.Event()

    def wait_once() -> None:
        if not reached.is_set():
            reached.set()
            gate.wait(5)

    await lives.create("s", BYTES)
    await fill(lives, "s")
    lives.storage.hooks["sync_all"] = wait_once
    await lives.commit("s")
    await until(reached.is_set, "the housekeeper's sync")
    tail = (await lives.append("s", b"last")).tail
    stopping = asyncio.create_task(lives.stop())
    await asyncio.wait([stopping], timeout=0.3)
    gate.set()
    await stopping
    await asyncio.sleep(0.05)
    await lives.start()
    assert lives.log.head("s").tail == tail
    assert await lives.content("s") == bytes(15_000) + b"last"


async def test_stop_leaves_no_segments(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.stop()
    assert segments(lives) == []
    await lives.start()
    assert await lives.records("s") == [b"1"]


async def test_trimmer_syncs_each_removal_before_the_next(lives: Lives):
    """A power cut may keep a later removal and lose an earlier one: that would be a gap."""
    await lives.create("s", BYTES)
    await fill(lives, "s")
    await lives.commit("s")
    assert len(segments(lives)) > 2
    steps: list[str] = []
    lives.storage.hooks["remove"] = lambda: steps.append("remove")
    lives.storage.hooks["sync_path"] = lambda: steps.append("sync")
    await until(lambda: len(segments(lives)) == 1, "the trim")
    await until(lambda: len(steps) >= 4, "its last sync")
    assert steps == ["remove", "sync"] * (len(steps) // 2)


async def test_trimmer_that_cannot_sync_at_the_start_ends_the_start(root: Path):
    """A log without a snapshot would be read beside tables that nobody has verified."""
    storage = FaultyStorage(root)
    storage.fail("sync_all")
    with pytest.raises(StorageUnavailable):
        await Log(SMALL, storage, clock=ManualClock()).start()
    assert not (root / "_wal" / "snapshot").exists()
    lives = Lives(root.parent)
    lives.root = root
    await lives.start()
    await lives.create("s")
    await lives.bury()
