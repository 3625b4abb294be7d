"""The front door: create, append, close, delete, TTL, limits, and what a clean stop leaves."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from engine import errors
from engine.settings import EngineSettings, LimitSettings
from engine.types import ProducerStamp
from tests.support.model import BYTES, JSON, TEXT, Lives, until


async def test_log_rebuilds_everything_from_the_tables_alone(lives: Lives):
    closer = ProducerStamp("closer", 2, 0)
    await lives.create("plain/ü", "Text/Plain; charset=utf-8")
    await lives.append("plain/ü", b"x")
    await lives.create("empty", JSON, ttl_seconds=500)
    await lives.create(
        "dated", BYTES, expires_at="2099-01-01T00:00:00Z", expires_at_ms=4_000_000_000_000
    )
    await lives.create("closed", JSON, closed=True)
    await lives.create("ended", JSON)
    await lives.append("ended", b"[1,2]", producer=ProducerStamp("p", 3, 0), stream_seq="m")
    await lives.append("ended", b"3", close=True, producer=closer)
    await lives.create("source", JSON)
    middle = (await lives.append("source", b"[1,2,3]")).tail
    await lives.append("source", b"[4,5]")
    await lives.fork("fork", "source", middle, 1)
    await lives.append("fork", b"6", producer=ProducerStamp("p", 0, 0))
    await lives.fork("bare", "fork", middle)
    await lives.log.delete("source")
    names = ["plain/ü", "empty", "dated", "closed", "ended", "fork", "bare"]
    before = {name: (lives.log.head(name), await lives.content(name)) for name in names}
    assert before["fork"][1] == b"[1,2,3,4,6]"
    for _ in range(2):
        await lives.restart(without_wal=True)
        for name in names:
            assert (lives.log.head(name), await lives.content(name)) == before[name]
        with pytest.raises(errors.StreamGone):
            lives.log.head("source")
        with pytest.raises(errors.StreamExists):
            await lives.create("source")
        assert (await lives.append("ended", b"9", close=True, producer=closer)).duplicate
        with pytest.raises(errors.StreamClosed):
            await lives.append("ended", b"9", producer=ProducerStamp("p", 3, 0))
        with pytest.raises(errors.SequenceGap):
            await lives.append("fork", b"9", producer=ProducerStamp("p", 0, 2))
    await lives.log.delete("bare")
    await lives.log.delete("fork")
    with pytest.raises(errors.StreamNotFound):
        lives.log.head("source")
    await lives.restart(without_wal=True)
    assert (await lives.create("source")).created


async def test_log_create_again_confirms_only_the_same(lives: Lives):
    first = await lives.create("s", JSON, ttl_seconds=60)
    again = await lives.create("s", "Application/Json ; charset=utf-8", ttl_seconds=60)
    assert (first.created, again.created) == (True, False)
    assert again.tail == first.tail
    for different in ({"ttl_seconds": 61}, {}, {"ttl_seconds": 60, "closed": True}):
        with pytest.raises(errors.StreamExists):
            await lives.create("s", JSON, **different)
    with pytest.raises(errors.StreamExists):
        await lives.create("s", TEXT, ttl_seconds=60)


async def test_log_creates_a_stream_once_when_asked_twice_at_the_same_time(lives: Lives):
    results = await asyncio.gather(*[lives.create("s", body=b"[1]") for _ in range(5)])
    assert sorted(result.created for result in results) == [False] * 4 + [True]
    assert len({result.tail for result in results}) == 1
    assert await lives.records("s") == [b"1"]


async def test_log_delete_and_create_at_the_same_time_leave_no_old_records(lives: Lives):
    old = (await lives.create("s", body=b"[1,2,3]")).tail
    _, result = await asyncio.gather(lives.log.delete("s"), lives.create("s", TEXT))
    assert result.created
    assert result.tail > old
    assert await lives.content("s") == b""
    await lives.crash()
    assert lives.log.head("s").content_type == TEXT


async def test_log_closes_once(lives: Lives):
    await lives.create("s")
    tail = (await lives.append("s", b"1", close=True)).tail
    assert lives.log.head("s").closed
    assert (await lives.close("s")).tail == tail
    with pytest.raises(errors.StreamClosed) as caught:
        await lives.append("s", b"2")
    assert caught.value.tail == tail
    result = await lives.log.read("s", 0)
    assert (result.closed, result.up_to_date) == (True, True)


async def test_log_refuses_bad_appends_in_the_order_of_the_protocol(lives: Lives):
    await lives.create("s")
    with pytest.raises(errors.StreamNotFound):
        await lives.close("unknown")
    with pytest.raises(errors.InvalidRequest):
        await lives.append("s", b"")
    with pytest.raises(errors.InvalidRequest):
        await lives.append("s", b"1", content_type=None)
    with pytest.raises(errors.ContentTypeMismatch):
        await lives.append("s", b"1", content_type=TEXT)
    with pytest.raises(errors.InvalidRequest):
        await lives.append("s", b"[]")
    await lives.append("s", b"1", stream_seq="B")
    await lives.append("s", b"1", stream_seq="a")
    with pytest.raises(errors.SequenceRegressed):
        await lives.append("s", b"1", stream_seq="C")


@pytest.mark.parametrize("again", ["crash", "restart"])
async def test_log_ttl_slides_with_reads_and_appends_but_not_with_head(lives: Lives, again: str):
    await lives.create("s", JSON, ttl_seconds=10)
    for touch in (lambda: lives.append("s", b"1"), lambda: lives.log.read("s", 0)):
        lives.clock.advance(9000)
        await touch()
    lives.clock.jump_wall(3_600_000)
    lives.clock.advance(9000)
    lives.log.head("s")
    lives.clock.advance(1000)
    with pytest.raises(errors.StreamNotFound):
        lives.log.head("s")
    assert (await lives.create("s", JSON, ttl_seconds=10)).created
    assert await lives.records("s") == []
    await lives.append("s", b"2")
    lives.clock.advance(4000)
    await getattr(lives, again)()
    lives.clock.advance(5900)
    lives.log.head("s")
    lives.clock.advance(200)
    with pytest.raises(errors.StreamNotFound):
        await lives.log.read("s", 0)


async def test_log_ttl_remembers_reads_over_a_crash(lives: Lives):
    """The last minute may be forgotten, for a read costs no write; hours of reading may not."""
    await lives.create("s", JSON, body=b"[1]", ttl_seconds=600)
    snapshot = lives.root / "_wal" / "snapshot"
    for _ in range(2):
        before = snapshot.read_bytes()
        for _ in range(20):
            lives.clock.advance(300_000)
            await lives.log.read("s", 0)
        with contextlib.suppress(AssertionError):
            await until(lambda was=before: snapshot.read_bytes() != was, timeout_s=1.5)
    await lives.crash()
    assert await lives.records("s") == [b"1"]


async def test_log_expires_at_is_never_extended(lives: Lives):
    at = lives.clock.now_ms() + 10_000
    await lives.create("s", JSON, expires_at="soon", expires_at_ms=at)
    lives.clock.advance(9999)
    await lives.append("s", b"1")
    lives.clock.advance(1)
    with pytest.raises(errors.StreamNotFound):
        await lives.append("s", b"2", content_type=JSON)


async def test_log_expiry_of_a_source_leaves_its_forks(lives: Lives):
    await lives.create("source", JSON, body=b"[1,2]", ttl_seconds=10)
    await lives.fork("fork", "source", ttl_seconds=1000)
    lives.clock.advance(10_000)
    with pytest.raises(errors.StreamGone):
        lives.log.head("source")
    assert await lives.records("fork") == [b"1", b"2"]
    await lives.restart(without_wal=True)
    assert await lives.records("fork") == [b"1", b"2"]
    with pytest.raises(errors.StreamGone):
        lives.log.head("source")


async def test_log_producer_follows_the_table_of_the_protocol(lives: Lives):
    await lives.create("s")

    def send(epoch: int, seq: int):
        return lives.append("s", b"%d%d" % (epoch, seq), producer=ProducerStamp("p", epoch, seq))

    with pytest.raises(errors.SequenceGap) as gap:
        await send(5, 1)
    assert (gap.value.expected, gap.value.received) == (0, 1)
    await send(5, 0)
    await send(5, 1)
    duplicate = await send(5, 0)
    assert (duplicate.duplicate, duplicate.producer_epoch, duplicate.producer_seq) == (True, 5, 1)
    with pytest.raises(errors.SequenceGap):
        await send(5, 3)
    with pytest.raises(errors.StaleEpoch) as stale:
        await send(4, 0)
    assert stale.value.current == 5
    with pytest.raises(errors.BadProducer):
        await send(6, 1)
    await send(6, 0)
    assert await lives.records("s") == [b"50", b"51", b"60"]


async def test_log_pipelined_producer_is_judged_in_order(lives: Lives):
    await lives.create("s")
    stamps = [ProducerStamp("p", 0, seq) for seq in (0, 1, 1, 3, 2)]
    sent = [lives.append("s", b"%d" % stamp.seq, producer=stamp) for stamp in stamps]
    results = await asyncio.gather(*sent, return_exceptions=True)
    assert isinstance(results[3], errors.SequenceGap)
    assert results[2].duplicate
    assert await lives.records("s") == [b"0", b"1", b"2"]


async def test_log_bounds_are_kept(root):
    limits = LimitSettings(producers_per_stream=1, streams=1, live_readers=1, tail_bytes=1 << 20)
    lives = Lives(root, EngineSettings(limits=limits))
    await lives.start()
    await lives.create("s", BYTES)
    with pytest.raises(errors.TooManyStreams):
        await lives.create("t")
    await lives.append("s", b"1", producer=ProducerStamp("p", 0, 0))
    with pytest.raises(errors.TooManyProducers):
        await lives.append("s", b"1", producer=ProducerStamp("q", 0, 0))
    with lives.log.follow("s", "test"), pytest.raises(errors.TooManyReaders):
        lives.log.follow("s", "test").__enter__()
    await lives.append("s", bytes(600_000))
    with pytest.raises(errors.Overloaded):
        await lives.append("s", bytes(600_000))
    await lives.bury()


async def test_log_follower_wakes_for_appends_close_and_delete(lives: Lives):
    await lives.create("s")
    with lives.log.follow("s", "test") as follower:
        for change in (lives.append("s", b"1"), lives.close("s"), lives.log.delete("s")):
            waiting = asyncio.create_task(follower.wait(2000))
            await asyncio.sleep(0)
            await change
            assert await waiting
        assert follower.is_gone
        assert not await follower.wait(2000)
    await lives.create("s")
    with lives.log.follow("s", "test") as follower:
        assert not await follower.wait(10)


async def test_log_follower_that_was_interrupted_waits_no_more(lives: Lives):
    await lives.create("s")
    for is_waiting in (True, False):
        with lives.log.follow("s", "test") as follower:
            waiting = asyncio.create_task(follower.wait(60_000))
            if is_waiting:
                await asyncio.sleep(0)
            # As when a client leaves: it is told once, and maybe while its follower reads.
            follower.interrupt()
            assert not await asyncio.wait_for(waiting, 5)
            assert not await asyncio.wait_for(follower.wait(60_000), 5)


async def test_log_that_stops_wakes_followers_and_refuses_appends(lives: Lives):
    await lives.create("s")
    with lives.log.follow("s", "test") as follower:
        waiting = asyncio.create_task(follower.wait(5000))
        await asyncio.sleep(0)
        await lives.stop()
        await asyncio.wait_for(waiting, 1)
    with pytest.raises(errors.Unavailable):
        await lives.append("s", b"1")
