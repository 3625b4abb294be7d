"""Start-up after every kind of end: snapshot, WAL and tables together, or the tables alone."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from engine import errors
from engine.format.frame import SEGMENT_HEADER_BYTES
from engine.types import ProducerStamp
from tests.support.model import BYTES, TEXT, Lives, entries_folder


async def test_recovery_brings_back_what_only_the_wal_holds(lives: Lives):
    await lives.create("s")
    tail = (await lives.append("s", b'[1,{"a":1.0},"x"]')).tail
    log = await lives.crash()
    assert await lives.records("s") == [b"1", b'{"a":1.0}', b'"x"']
    assert log.head("s").tail == tail


async def test_recovery_joins_table_and_wal(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"[1,2]")
    await lives.commit("s")
    await lives.append("s", b"[3]")
    await lives.crash()
    assert await lives.records("s") == [b"1", b"2", b"3"]


async def test_recovery_twice_without_writes_changes_nothing(lives: Lives):
    await lives.create("s", TEXT)
    tail = (await lives.append("s", "häß".encode())).tail
    for _ in range(3):
        log = await lives.crash()
        assert log.head("s").tail == tail
        assert await lives.content("s") == "häß".encode()


async def test_recovery_keeps_offsets_rising_after_the_clock_jumped_back(lives: Lives):
    await lives.create("s")
    tail = (await lives.append("s", b"1")).tail
    lives.clock.jump_wall(-3_600_000)
    await lives.crash()
    later = (await lives.append("s", b"2")).tail
    assert later > tail
    await lives.restart()
    assert (await lives.append("s", b"3")).tail > later
    assert await lives.records("s", tail) == [b"2", b"3"]


async def test_recovery_keeps_offsets_rising_over_delete_and_create(lives: Lives):
    await lives.create("s")
    tail = (await lives.append("s", b"[1,2,3]")).tail
    await lives.log.delete("s")
    await lives.crash()
    assert (await lives.create("s")).tail > tail
    assert await lives.records("s") == []


async def test_recovery_takes_a_segment_that_holds_only_its_header(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.restart()
    await lives.append("s", b"2")
    await lives.die()
    (segment,) = sorted((lives.root / "_wal").glob("*.wal"))[-1:]
    segment.write_bytes(segment.read_bytes()[:SEGMENT_HEADER_BYTES])
    await lives.start()
    assert await lives.records("s") == [b"1"]
    await lives.append("s", b"3")
    await lives.crash()
    assert await lives.records("s") == [b"1", b"3"]


@pytest.mark.parametrize("length", [0, 1, SEGMENT_HEADER_BYTES - 1])
async def test_recovery_takes_a_segment_whose_header_is_torn(lives: Lives, length: int):
    await lives.create("s")
    await lives.restart()
    await lives.append("s", b"1")
    await lives.die()
    (segment,) = sorted((lives.root / "_wal").glob("*.wal"))[-1:]
    segment.write_bytes(segment.read_bytes()[:length])
    await lives.start()
    await lives.append("s", b"2")
    await lives.crash()
    assert await lives.records("s") == [b"2"]


async def test_recovery_cuts_a_torn_last_frame_and_writes_on(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.append("s", b"2")
    await lives.die()
    (segment,) = sorted((lives.root / "_wal").glob("*.wal"))[-1:]
    segment.write_bytes(segment.read_bytes()[:-3])
    await lives.start()
    assert await lives.records("s") == [b"1"]
    await lives.append("s", b"3")
    await lives.crash()
    assert await lives.records("s") == [b"1", b"3"]


async def test_recovery_refuses_a_damaged_frame_in_the_middle(lives: Lives):
    await lives.create("s")
    await lives.append("s", b'"first"')
    await lives.append("s", b'"second"')
    await lives.die()
    (segment,) = sorted((lives.root / "_wal").glob("*.wal"))[-1:]
    segment.write_bytes(segment.read_bytes().replace(b"first", b"furst"))
    with pytest.raises(errors.ChecksumMismatch, match="damaged at byte"):
        await lives.start()


async def test_recovery_refuses_a_missing_segment(lives: Lives):
    await lives.create("s", BYTES)
    for _ in range(3):
        await lives.append("s", bytes(5000))
    await lives.die()
    segments = sorted((lives.root / "_wal").glob("*.wal"))
    assert len(segments) == 3
    segments[1].unlink()
    with pytest.raises(errors.ChecksumMismatch, match="missing"):
        await lives.start()


async def test_recovery_refuses_a_damaged_snapshot(lives: Lives):
    await lives.create("s")
    await lives.stop()
    path = lives.root / "_wal" / "snapshot"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.ChecksumMismatch, match="snapshot"):
        await lives.start()


async def test_recovery_keeps_producers_and_stream_seq(lives: Lives):
    stamp = ProducerStamp("p:epoch", 3, 0)
    await lives.create("s")
    await lives.append("s", b"1", producer=stamp, stream_seq="b")
    for again in (lives.crash, lives.restart):
        await again()
        assert (await lives.append("s", b"1", producer=stamp)).duplicate
        with pytest.raises(errors.SequenceRegressed):
            await lives.append("s", b"2", stream_seq="a")
        with pytest.raises(errors.StaleEpoch):
            await lives.append("s", b"2", producer=ProducerStamp("p:epoch", 2, 0))
    assert await lives.records("s") == [b"1"]


async def test_recovery_makes_a_name_free_whose_deleted_table_never_got_a_log(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.log.delete("s")
    await lives.die()
    (lives.root / "s" / "flush_date=2025-10-09").mkdir(parents=True)
    (lives.root / "s" / "flush_date=2025-10-09" / "part.parquet").write_bytes(b"cut short")
    await lives.start()
    assert (await lives.create("s")).created
    await lives.append("s", b"2")
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b"2"]


async def test_recovery_makes_a_name_free_whose_deleted_table_is_torn(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.commit("s")
    await lives.log.delete("s")
    lives.storage.die()
    await lives.die()
    entries_folder(lives.root, "s").mkdir(parents=True, exist_ok=True)
    (entries_folder(lives.root, "s") / f"{0:020d}.json").write_bytes(b"")
    await lives.start()
    assert (await lives.create("s")).created
    await lives.append("s", b"2")
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b"2"]


async def test_recovery_leaves_folders_of_others_alone(lives: Lives):
    await lives.stop()
    (lives.root / "theirs").mkdir()
    (lives.root / "theirs" / "note").write_text("mine")
    await lives.start()
    with pytest.raises(errors.StreamExists):
        await lives.create("theirs")
    await lives.restart(without_wal=True)
    assert (lives.root / "theirs" / "note").read_text() == "mine"


async def test_log_refuses_a_root_that_another_log_uses(lives: Lives):
    other = Lives(lives.folder)
    with pytest.raises(errors.RootLocked) as caught:
        await other.start()
    assert isinstance(caught.value, errors.Unavailable)
    await lives.create("s")
    await lives.stop()
    await other.start()
    assert other.log.head("s").tail > 0
    await other.stop()


@pytest.mark.parametrize("without_wal", [False, True])
async def test_recovery_leaves_tables_of_others_alone(lives: Lives, without_wal: bool):
    """Companions and roll-ups are ordinary Delta tables beside the streams."""
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.stop()
    write_deltalake(str(lives.root / "rollup"), pa.table({"hour": [1, 2], "count": [10, 20]}))
    await lives.start()
    await lives.restart(without_wal=without_wal)
    assert await lives.records("s") == [b"1"]
    with pytest.raises(errors.StreamExists):
        await lives.create("rollup")
    assert len(DeltaTable(str(lives.root / "rollup")).to_pyarrow_table()) == 2


async def test_recovery_starts_the_others_when_one_table_is_damaged(lives: Lives):
    for name in ("good", "bad"):
        await lives.create(name)
        await lives.append(name, b"1")
    await lives.stop()
    shutil.rmtree(lives.root / "_wal")
    (entries_folder(lives.root, "bad") / f"{0:020d}.json").write_bytes(b"{")
    await lives.start()
    assert await lives.records("good") == [b"1"]
    with pytest.raises((errors.DataCorrupt, errors.StreamExists)):
        await lives.create("bad")
