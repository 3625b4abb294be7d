"""The write-ahead log when the disk misbehaves: what is acknowledged is there, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest

from engine import errors
from engine.settings import EngineSettings, WalSettings
from engine.types import AppendRequest, ProducerStamp
from tests.support.model import BYTES, JSON, Lives, until


async def test_wal_acknowledges_nothing_after_a_failed_sync(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    lives.storage.fail("sync")
    with pytest.raises(errors.StorageUnavailable):
        await lives.append("s", b"2")
    assert not lives.log.is_ready
    with pytest.raises(errors.StorageUnavailable):
        await lives.append("s", b"3")
    assert await lives.records("s") == [b"1"]
    await lives.crash()
    assert lives.log.is_ready
    assert await lives.records("s") in ([b"1"], [b"1", b"2"])
    await lives.append("s", b"4")


async def test_wal_lets_a_producer_find_out_after_a_failed_sync(lives: Lives):
    stamp = ProducerStamp("p", 0, 0)
    await lives.create("s")
    lives.storage.fail("sync", after=True)
    with pytest.raises(errors.StorageUnavailable):
        await lives.append("s", b"1", producer=stamp)
    await lives.crash()
    await lives.append("s", b"1", producer=stamp)
    assert await lives.records("s") == [b"1"]


async def test_wal_stops_cleanly_after_a_failed_sync(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    lives.storage.fail("sync")
    with pytest.raises(errors.StorageUnavailable):
        await lives.append("s", b"2")
    lives.storage.heal()
    await lives.restart()
    assert await lives.records("s") in ([b"1"], [b"1", b"2"])
    await lives.append("s", b"3")


@pytest.mark.parametrize("after", [False, True])
async def test_wal_works_again_after_the_disk_was_full(lives: Lives, after: bool):
    await lives.create("s")
    await lives.append("s", b"1")
    lives.storage.fail("write", code=errno.ENOSPC, after=after)
    with pytest.raises(errors.StorageUnavailable):
        await lives.append("s", b"2")
    tail = (await lives.append("s", b"3")).tail
    assert await lives.records("s") == [b"1", b"3"]
    await lives.crash()
    assert await lives.records("s") == [b"1", b"3"]
    assert lives.log.head("s").tail == tail


@pytest.mark.parametrize("operation", ["open_append", "write"])
async def test_wal_works_again_after_a_segment_could_not_be_begun(lives: Lives, operation: str):
    lives.storage.fail(operation, code=errno.ENOSPC)
    with pytest.raises(errors.StorageUnavailable):
        await lives.create("s")
    with pytest.raises(errors.StreamNotFound):
        lives.log.head("s")
    assert (await lives.create("s")).created
    await lives.append("s", b"1")
    await lives.crash()
    assert await lives.records("s") == [b"1"]


async def test_wal_goes_on_when_rotation_fails_once(lives: Lives):
    await lives.create("s", BYTES)
    await lives.append("s", bytes(5000))
    lives.storage.fail("open_append", code=errno.ENOSPC)
    with pytest.raises(errors.StorageUnavailable):
        await lives.append("s", b"lost")
    await lives.append("s", b"kept")
    await lives.crash()
    assert await lives.content("s") == bytes(5000) + b"kept"


async def test_wal_that_cannot_be_cut_back_acknowledges_nothing_more(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    lives.storage.fail("write", after=True, code=errno.ENOSPC)
    lives.storage.fail("truncate")
    for body in (b"2", b"3"):
        with pytest.raises(errors.StorageUnavailable):
            await lives.append("s", body)
    assert not lives.log.is_ready
    await lives.crash()
    assert await lives.records("s") in ([b"1"], [b"1", b"2"])


async def test_wal_failure_takes_back_what_was_judged_with_it(lives: Lives):
    await lives.create("s")
    lives.storage.fail("write", code=errno.ENOSPC)
    appends = [
        lives.append("s", b"%d" % seq, producer=ProducerStamp("p", 0, seq), stream_seq=str(seq))
        for seq in range(3)
    ]
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert [type(result) for result in results] == [errors.StorageUnavailable] * 3
    result = await lives.append("s", b"0", producer=ProducerStamp("p", 0, 0), stream_seq="0")
    assert not result.duplicate
    assert await lives.records("s") == [b"0"]


async def test_wal_failure_takes_back_a_close(lives: Lives):
    await lives.create("s")
    lives.storage.fail("write", code=errno.ENOSPC)
    with pytest.raises(errors.StorageUnavailable):
        await lives.close("s")
    assert not lives.log.head("s").closed
    await lives.append("s", b"1")


async def test_wal_makes_one_group_of_what_arrives_together(lives: Lives):
    await lives.create("s")
    before = lives.storage.calls["sync"]
    await asyncio.gather(*[lives.append("s", b"%d" % number) for number in range(50)])
    assert lives.storage.calls["sync"] - before <= 2
    assert await lives.records("s") == [b"%d" % number for number in range(50)]


async def test_wal_append_that_was_cancelled_does_not_cancel_its_repetition(lives: Lives):
    """A client that gave up and tries again meets its own first attempt on the way to the disk."""
    await lives.create("s")
    request = AppendRequest(JSON, b"1", producer=ProducerStamp("p", 0, 0))
    first = asyncio.create_task(lives.log.append("s", request))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    second = asyncio.create_task(lives.log.append("s", request))
    await asyncio.wait([first, second], timeout=2)
    assert not second.cancelled(), "another client's cancellation reached this request"
    assert second.result().duplicate
    assert await lives.records("s") == [b"1"]


async def test_wal_duplicate_is_confirmed_only_when_the_first_copy_is_durable(lives: Lives):
    await lives.create("s")
    request = AppendRequest(JSON, b"1", producer=ProducerStamp("p", 0, 0))
    lives.storage.fail("write", code=errno.ENOSPC)
    pair = [lives.log.append("s", request) for _ in range(2)]
    results = await asyncio.gather(*pair, return_exceptions=True)
    assert [type(result) for result in results] == [errors.StorageUnavailable] * 2


async def test_wal_refuses_more_when_the_segments_hold_too_much(root):
    lives = Lives(root, EngineSettings(wal=WalSettings(segment_bytes=4096, bytes_max=1 << 20)))
    await lives.start()
    await lives.create("s", BYTES)
    lives.storage.fail("put_if_absent", times=1000)
    for _ in range(11):
        await lives.append("s", bytes(100_000))
    with pytest.raises(errors.Overloaded):
        await lives.append("s", b"one more")
    await lives.bury()


@pytest.mark.parametrize("seed", range(8))
async def test_wal_keeps_every_acknowledged_append_over_a_power_cut(lives: Lives, seed: int):
    rng = random.Random(seed)
    expected: dict[str, list[bytes]] = {"a": [], "b": []}
    for name in expected:
        await lives.create(name)
    for _ in range(4):
        for number in range(rng.randrange(1, 6)):
            name = rng.choice("ab")
            record = b'"%d%s"' % (number, b"x" * rng.choice([1, 3000]))
            await lives.append(name, record)
            expected[name].append(record)
            if rng.random() < 0.4:
                await lives.commit(name)
        await lives.crash(rng)
        for name, records in expected.items():
            assert await lives.records(name) == records, f"seed {seed}"
    await lives.restart(without_wal=True)
    for name, records in expected.items():
        assert await lives.records(name) == records, f"seed {seed}"


async def test_wal_segment_goes_when_its_records_are_committed(lives: Lives):
    await lives.create("s", BYTES)
    for _ in range(3):
        await lives.append("s", bytes(5000))
    await lives.commit("s")
    segments = lambda: len(list((lives.root / "_wal").glob("*.wal")))  # noqa: E731
    await until(lambda: segments() == 1, "the trim")
    await lives.crash()
    assert await lives.content("s") == bytes(15_000)
