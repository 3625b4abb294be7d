"""What a list says about the present of a stream: appended, uncommitted, readers, writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.streams.producers import ActiveProducers
from engine.table.replay import load_state
from engine.types import Offset, ProducerStamp, StreamName

if TYPE_CHECKING:
    import pytest

    from engine.types import StreamSummary
    from tests.support.model import Lives

EPOCH = 10**16


async def one(lives: Lives, name: str = "s") -> StreamSummary:
    """The row of a stream."""
    (row,) = await lives.log.list_streams(prefix=name, count_max=10)
    return row


async def test_listing_counts_what_was_appended_whether_committed_or_not(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"[1,2,3]")
    lives.clock.advance(20)
    before = await one(lives)
    await lives.commit("s")
    await lives.append("s", b"[44]")
    after = await one(lives)

    assert (before.activity.appended_records, before.activity.appended_bytes) == (3, 5)
    assert (before.activity.uncommitted_records, before.activity.uncommitted_bytes) == (3, 5)
    assert before.activity.commit_lag_ms == 20
    assert (after.activity.appended_records, after.activity.appended_bytes) == (4, 7)
    assert (after.activity.uncommitted_records, after.activity.uncommitted_bytes) == (1, 2)
    assert after.activity.commit_lag_ms == 0
    assert (after.records, after.files) == (4, 1)


async def test_listing_lag_is_never_negative_when_the_clock_goes_back(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    lives.clock.jump_wall(-3_600_000)
    assert (await one(lives)).activity.commit_lag_ms == 0


async def test_listing_counts_live_readers_while_they_are_connected(lives: Lives):
    await lives.create("s")
    with lives.log.follow(StreamName("s"), "sse"), lives.log.follow(StreamName("s"), "sse"):
        inside = (await one(lives)).activity.readers
    assert (inside, (await one(lives)).activity.readers) == (2, 0)


async def test_listing_counts_producers_of_the_last_minute_that_came_twice(lives: Lives):
    await lives.create("s")
    for seq in (0, 1):
        for id_ in ("a", "b"):
            await lives.append("s", b"1", producer=ProducerStamp(id_, 0, seq))
    await lives.append("s", b"1", producer=ProducerStamp("once", 0, 0))
    first = (await one(lives)).activity.writers
    lives.clock.advance(50_000)
    await lives.append("s", b"1", producer=ProducerStamp("b", 0, 2))
    lives.clock.advance(11_000)
    second = (await one(lives)).activity.writers
    await lives.crash()
    third = (await one(lives)).activity.writers
    lives.clock.advance(60_000)
    last = (await one(lives)).activity.writers
    assert (first, second, third, last) == (2, 1, 1, 0)


def test_active_producers_do_not_pile_up_when_nobody_looks():
    active = ActiveProducers()
    for second in range(1000):
        active.saw(f"p{second}", Offset(second * 1000 * EPOCH))
    # Those of the last minute, and no others, are held: asked so that none is dropped now.
    assert active.count(0) == 61
    assert active.count(999_000) == 61


async def test_listing_newest_first_and_by_a_part_of_the_name(lives: Lives):
    for name in ("shop/a", "shop/b", "web/a", "web/b"):
        lives.clock.advance(5)
        await lives.create(name)
    lives.clock.advance(5)
    await lives.append("shop/a", b"1")

    async def names(**how: object) -> list[str]:
        found = await lives.log.list_streams(**how)  # type: ignore[arg-type]
        return [row.info.name for row in found]

    assert await names(newest_first=True) == ["shop/a", "web/b", "web/a", "shop/b"]
    assert await names(newest_first=True, count_max=2) == ["shop/a", "web/b"]
    assert await names(newest_first=True, prefix="web/") == ["web/b", "web/a"]
    assert await names(contains="p/") == ["shop/a", "shop/b"]
    assert await names(contains="/b", after="shop/b") == ["web/b"]


async def test_listing_does_not_read_a_table_again_each_time(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
):
    """Ten thousand idle streams under `top` would be ten thousand table reads a second."""
    await lives.create("s")
    await lives.append("s", b"[1,2]")
    await lives.restart()
    loads = []

    def load(storage: object, folder: str) -> object:
        loads.append(folder)
        return load_state(storage, folder)  # type: ignore[arg-type]

    monkeypatch.setattr("engine.read.reader.load_state", load)
    rows = [await one(lives) for _ in range(3)]
    assert (len(loads), {row.records for row in rows}, {row.files for row in rows}) == (1, {2}, {1})

    # A stream that grows is told anew at once; an idle one, which jobs may change, soon.
    await lives.append("s", b"3")
    await lives.commit("s")
    grown = await one(lives)
    assert (grown.records, grown.files) == (3, 2)
    await lives.restart()
    await one(lives)
    lives.clock.advance(10_000)
    await one(lives)
    assert len(loads) == 3
