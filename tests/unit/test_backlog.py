"""Recovery of more than it may hold: commits on the way, in bounds, and nothing lost by any end."""

from __future__ import annotations

import pytest

from engine import errors
from engine.format.frame import SEGMENT_HEADER_BYTES
from engine.types import ProducerStamp
from engine.write import backlog
from tests.support.model import BYTES, Lives, entries, entries_folder


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog of a few kilobytes is too much."""
    monkeypatch.setattr(backlog, "_BYTES_MAX", 20_000)
    monkeypatch.setattr(backlog, "_STREAM_BYTES_MIN", 1)


async def fill(lives: Lives, count: int = 30) -> list[bytes]:
    await lives.create("s")
    await lives.create("t")
    for number in range(count):
        stamp = ProducerStamp("p", 0, number)
        await lives.append("s", b'["%s",%d]' % (b"x" * 1000, number), producer=stamp)
        await lives.append("t", b'"%s"' % (b"y" * 1000))
    return await lives.records("s")


def versions(lives: Lives, name: str) -> int:
    return len(list(entries_folder(lives.root, name).glob("*.json")))


async def check_whole(lives: Lives, records: list[bytes]) -> None:
    assert await lives.records("s") == records
    assert len(await lives.records("t")) == 30
    stamp = ProducerStamp("p", 0, 29)
    assert (await lives.append("s", b"0", producer=stamp)).duplicate
    with pytest.raises(errors.SequenceGap):
        await lives.append("s", b"0", producer=ProducerStamp("p", 0, 31))


async def test_backlog_over_its_bound_is_committed_on_the_way(lives: Lives):
    records = await fill(lives)
    await lives.crash()
    assert versions(lives, "s") > 1
    await check_whole(lives, records)
    # The snapshot of this start is newer than the records it has left in the log.
    await lives.crash()
    await check_whole(lives, records)
    await lives.restart(without_wal=True)
    await check_whole(lives, records)


async def test_backlog_commits_hold_the_producers_their_records_came_from(lives: Lives):
    await fill(lives)
    await lives.crash()
    for version in range(versions(lives, "s")):
        lines = entries(lives.root, "s")[version]
        txns = {line["txn"]["appId"]: line["txn"]["version"] for line in lines if "txn" in line}
        # Two records per append, the first one is number 0.
        assert txns["bottomless:records"] == 2 * (txns["bottomless:producer:p:seq"] + 1)


async def test_backlog_whose_commits_fail_is_kept_in_memory(lives: Lives):
    records = await fill(lives)
    await lives.die()
    (lives.root / "s").write_bytes(b"in the way")
    await lives.start()
    await check_whole(lives, records)
    (lives.root / "s").unlink()
    await lives.crash()
    await check_whole(lives, records)


async def test_backlog_of_deleted_streams_goes_with_them(lives: Lives):
    await fill(lives)
    await lives.log.delete("s")
    await lives.create("s", BYTES)
    for _ in range(30):
        await lives.append("s", bytes(1000))
    for again in (lives.crash, lives.crash, lives.restart):
        await again()
        assert await lives.content("s") == bytes(30_000)
        assert len(await lives.records("t")) == 30


async def test_recovery_refuses_a_log_that_ends_before_its_snapshot(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.crash()
    await lives.die()
    (segment,) = sorted((lives.root / "_wal").glob("*.wal"))
    segment.write_bytes(segment.read_bytes()[:-1])
    with pytest.raises(errors.ChecksumMismatch, match="its end is missing"):
        await lives.start()


async def test_recovery_tells_of_records_that_only_the_snapshot_knows(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.crash()
    await lives.die()
    for segment in (lives.root / "_wal").glob("*.wal"):
        segment.unlink()
    await lives.start()
    with pytest.raises(errors.TableDamaged, match="missing"):
        await lives.records("s")


async def test_recovery_refuses_a_segment_whose_header_was_zeroed(lives: Lives):
    await lives.create("s")
    await lives.restart()
    for number in range(3):
        await lives.append("s", b'"%d%s"' % (number, b"x" * 600))
    await lives.die()
    (segment,) = sorted((lives.root / "_wal").glob("*.wal"))
    data = segment.read_bytes()
    for length in (SEGMENT_HEADER_BYTES, 512):
        segment.write_bytes(bytes(length) + data[length:])
        with pytest.raises(errors.ChecksumMismatch, match="header"):
            await lives.start()
        lives.storage.unlock()
    segment.write_bytes(data)
    await lives.start()
    assert len(await lives.records("s")) == 3


@pytest.mark.parametrize("length", [0, 8, 12])
async def test_recovery_refuses_a_snapshot_that_was_cut(lives: Lives, length: int):
    await lives.create("s")
    await lives.stop()
    path = lives.root / "_wal" / "snapshot"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(errors.ChecksumMismatch, match="snapshot"):
        await lives.start()


async def test_recovery_takes_the_table_s_word_where_the_log_has_lost_its_end(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1", producer=ProducerStamp("p", 0, 0))
    await lives.append("s", b"2", producer=ProducerStamp("p", 0, 1))
    await lives.commit("s")
    await lives.die()
    segment = sorted((lives.root / "_wal").glob("*.wal"))[-1]
    segment.write_bytes(segment.read_bytes()[:-1])
    await lives.start()
    assert await lives.records("s") == [b"1", b"2"]
    assert (await lives.append("s", b"2", producer=ProducerStamp("p", 0, 1))).duplicate
