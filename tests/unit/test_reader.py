"""Reads: chunks cut between records, through files, tail and every ancestor of a fork."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from typing import TYPE_CHECKING

import msgspec
import pytest

from engine import errors
from engine.format.offset import START
from engine.settings import ReadSettings
from engine.types import CreateRequest, ForkRequest, StreamName
from tests.support.model import BYTES, JSON, SMALL, TEXT, Lives

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 1024


async def check_chunks(lives: Lives, name: str, records: list[bytes]) -> list[int]:
    """Every chunk is a run of whole records, and every boundary is a place to go on from."""
    pieces, ends = await lives.chunks(name)
    found: list[bytes] = []
    for piece in pieces:
        part = msgspec.json.decode(b"[" + piece + b"]", type=list[msgspec.Raw])
        found += [bytes(record) for record in part]
        assert len(part) == 1 or len(piece) <= 2 * CHUNK
    assert found == records
    taken = 0
    for piece, end in zip(pieces, ends, strict=True):
        taken += len(msgspec.json.decode(b"[" + piece + b"]", type=list[msgspec.Raw]))
        assert await lives.records(name, end) == records[taken:]
    return ends


@pytest.mark.parametrize("sizes", [[1], [10, 700], [1500], [1, 5000, 3], [1023, 1024, 1025]])
async def test_reader_cuts_chunks_between_records(lives: Lives, sizes: list[int]):
    records = [b'"%s"' % (b"x" * sizes[number % len(sizes)]) for number in range(40)]
    await lives.create("s")
    for begin in range(0, 40, 8):
        await lives.append("s", b"[" + b",".join(records[begin : begin + 8]) + b"]")
        if begin == 16:
            await lives.commit("s")
    await check_chunks(lives, "s", records)
    await lives.restart(without_wal=True)
    await check_chunks(lives, "s", records)


async def test_reader_serves_many_small_appends(lives: Lives):
    records = [b"%d" % number for number in range(600)]
    await lives.create("s")
    await asyncio.gather(*[lives.append("s", record) for record in records])
    await check_chunks(lives, "s", records)
    await lives.commit("s")
    await check_chunks(lives, "s", records)


@pytest.mark.parametrize("content_type", [TEXT, BYTES])
async def test_reader_never_cuts_a_record_of_text_or_bytes(lives: Lives, content_type: str):
    rng = random.Random(1)
    records = [("é" * rng.choice([1, 100, 2000])).encode() for _ in range(30)]
    await lives.create("s", content_type)
    tails = [(await lives.append("s", record)).tail for record in records]
    for _ in range(2):
        pieces, ends = await lives.chunks("s")
        assert b"".join(pieces) == b"".join(records)
        assert set(ends) <= set(tails)
        for piece in pieces:
            piece.decode("utf-8")
        for index, tail in enumerate(tails):
            assert await lives.content("s", tail) == b"".join(records[index + 1 :])
        await lives.restart(without_wal=True)


async def test_reader_takes_a_moment_as_a_position(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    lives.clock.advance(1000)
    moment = lives.clock.now_ms() * 10**16
    await lives.append("s", b"2")
    for _ in range(2):
        assert await lives.records("s", moment) == [b"2"]
        await lives.restart()


async def test_reader_beyond_the_tail_is_caught_up(lives: Lives):
    await lives.create("s", JSON, body=b"[1]")
    position = lives.log.head("s").tail + 10**18
    result = await lives.log.read("s", position)
    assert (result.is_empty, result.up_to_date, result.end) == (True, True, position)


async def test_reader_tells_the_tail_as_it_is_now(lives: Lives):
    await lives.create("s")
    base = lives.log.head(StreamName("s")).tail
    for number in range(1, 4):
        tail = (await lives.append("s", b"%d" % number)).tail
        for _ in range(2):
            result = await lives.log.read(StreamName("s"), base)
            assert (len(result.pieces), result.end, result.closed) == (number, tail, False)
    await lives.close("s")
    assert (await lives.log.read(StreamName("s"), base)).closed


async def test_reader_of_a_deleted_stream_is_told_so(lives: Lives):
    await lives.create("s")
    base = lives.log.head(StreamName("s")).tail
    await lives.append("s", b"1")
    with lives.log.follow(StreamName("s"), "test") as follower:
        assert (await follower.read(base)).pieces
        await asyncio.gather(lives.log.delete(StreamName("s")), lives.create("s"))
        for position in (base, START):
            with pytest.raises(errors.StreamNotFound):
                await follower.read(position)


async def test_reader_keeps_nothing_of_what_is_committed(root: Path):
    lives = Lives(root, SMALL.model_copy(update={"read": ReadSettings(cache_bytes=0)}))
    await lives.start()
    tracemalloc.start()
    try:
        for number in range(8):
            name = f"s{number}"
            await lives.create(name)
            await lives.append(name, b'["%s"]' % (b"x" * 1_000_000))
            before = (await lives.append(name, b'["%s",1]' % (b"y" * 1_000_000))).tail - 1
            # The last record is small; a large append is what it lies in.
            assert await lives.records(name, before) == [b"1"]
            await lives.commit(name)
        gc.collect()
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 4_000_000
    await lives.bury()


async def test_reader_goes_through_three_levels_of_forks(lives: Lives):
    await lives.create("a")
    first = (await lives.append("a", b"[1,2]")).tail
    await lives.append("a", b"[3,4]")
    await lives.fork("b", "a", first, 1)
    assert await lives.records("b") == [b"1", b"2", b"3"]
    await lives.commit("a")
    await lives.append("b", b"[5,6]")
    middle = lives.log.head("b").tail
    await lives.append("b", b"7")
    await lives.fork("c", "b", middle, body=b"[8]")
    await lives.append("c", b"9")
    await lives.fork("d", "c", first)
    await lives.append("d", b"[10]")
    await lives.append("a", b"[11]")
    expected = {
        "a": [b"1", b"2", b"3", b"4", b"11"],
        "b": [b"1", b"2", b"3", b"5", b"6", b"7"],
        "c": [b"1", b"2", b"3", b"5", b"6", b"8", b"9"],
        "d": [b"1", b"2", b"10"],
    }
    for again in (None, lives.crash, lives.restart):
        if again is not None:
            await again()
        for name, records in expected.items():
            assert await lives.records(name) == records
        assert await lives.records("c", first) == expected["c"][2:]
        assert await lives.records("c", middle) == [b"8", b"9"]


async def test_fork_sub_offset_stays_within_one_append(lives: Lives):
    await lives.create("s")
    start = lives.log.head("s").tail
    await lives.append("s", b"[1,2,3]")
    await lives.append("s", b"[4]")
    tail = lives.log.head("s").tail
    for again in range(2):
        await lives.fork(f"whole{again}", "s", start, 3)
        assert await lives.records(f"whole{again}") == [b"1", b"2", b"3"]
        for offset, sub in ((start, 4), (tail, 1), (tail + 1, 0)):
            with pytest.raises(errors.BadFork):
                await lives.fork("bad", "s", offset, sub)
        await lives.commit("s")


async def test_fork_of_text_is_not_cut_inside_a_character(lives: Lives):
    await lives.create("s", TEXT)
    start = lives.log.head("s").tail
    await lives.append("s", "aé".encode())
    with pytest.raises(errors.BadFork):
        await lives.fork("t", "s", start, 2)
    await lives.fork("t", "s", start, 3)
    assert await lives.content("t") == "aé".encode()


async def test_fork_that_fails_takes_no_reference(lives: Lives):
    await lives.create("s", JSON, body=b"[1]")
    request = CreateRequest(content_type=TEXT, fork=ForkRequest("s"))
    with pytest.raises(errors.ContentTypeMismatch):
        await lives.log.create("f", request)
    await lives.log.delete("s")
    with pytest.raises(errors.StreamNotFound):
        lives.log.head("s")


async def test_fork_chain_goes_with_its_last_member(lives: Lives):
    await lives.create("a", JSON, body=b"[1]")
    await lives.fork("b", "a")
    await lives.fork("c", "b")
    await lives.log.delete("a")
    await lives.log.delete("b")
    await lives.crash()
    for name in "ab":
        with pytest.raises(errors.StreamGone):
            await lives.log.delete(name)
    with pytest.raises(errors.StreamExists):
        await lives.fork("x", "a")
    assert await lives.records("c") == [b"1"]
    await lives.log.delete("c")
    for _ in range(2):
        for name in "abc":
            with pytest.raises(errors.StreamNotFound):
                lives.log.head(name)
        await lives.restart(without_wal=True)


async def test_reader_sees_a_prefix_at_every_moment(lives: Lives):
    """Reads while appends and commits go on never miss, repeat or reorder."""
    await lives.create("s")
    sent: list[bytes] = []

    async def write() -> None:
        for number in range(60):
            await lives.append("s", b"%d" % number)
            sent.append(b"%d" % number)
            lives.clock.advance(4)

    writing = asyncio.create_task(write())
    while not writing.done():
        acknowledged = len(sent)
        found = await lives.records("s")
        assert found == [b"%d" % number for number in range(len(found))]
        assert len(found) >= acknowledged
        await asyncio.sleep(0)
    await writing
    assert await lives.records("s") == sent
