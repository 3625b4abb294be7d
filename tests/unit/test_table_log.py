"""A table's log after power cuts and beside other programs: what is trusted, what is not."""

from __future__ import annotations

import shutil

import polars as pl
import pytest
from deltalake import DeltaTable

from engine import errors
from engine.settings import CommitSettings, EngineSettings
from engine.types import ProducerStamp
from tests.support.model import (
    BYTES,
    INTERVAL_MS,
    TEXT,
    Lives,
    entries,
    entries_folder,
    until,
)


async def three_commits(lives: Lives) -> None:
    await lives.create("s")
    for number in range(3):
        await lives.append("s", b"%d" % number)
        await lives.commit("s")


def entry(lives: Lives, version: int):
    return entries_folder(lives.root, "s") / f"{version:020d}.json"


async def test_table_log_with_empty_commits_above_the_mark_is_written_again(lives: Lives):
    await three_commits(lives)
    await lives.die()
    entry(lives, 1).write_bytes(b"")
    entry(lives, 2).write_bytes(b"")
    await lives.start()
    assert await lives.records("s") == [b"0", b"1", b"2"]
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b"0", b"1", b"2"]
    assert pl.read_delta(str(lives.root / "s")).sort("offset")["data"].to_list() == ["0", "1", "2"]


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_table_log_with_a_commit_cut_at_a_line_is_written_again(lives: Lives, kept: int):
    """Each line that is left is good JSON; only their number tells."""
    await three_commits(lives)
    await lives.die()
    lines = entry(lives, 2).read_bytes().splitlines(keepends=True)
    entry(lives, 2).write_bytes(b"".join(lines[:kept]))
    await lives.start()
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("damage", ["gone", "empty", "flipped"])
async def test_table_log_with_a_torn_data_file_above_the_mark_is_written_again(
    lives: Lives, damage: str
):
    await three_commits(lives)
    await lives.die()
    (path,) = [line["add"]["path"] for line in entries(lives.root, "s")[1] if "add" in line]
    file = lives.root / "s" / path
    data = bytearray(file.read_bytes())
    data[len(data) // 4] ^= 255
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(b"" if damage == "empty" else data)
    await lives.start()
    assert await lives.records("s") == [b"0", b"1", b"2"]
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b"0", b"1", b"2"]


async def test_table_log_with_an_empty_commit_below_the_mark_is_damaged(lives: Lives):
    await three_commits(lives)
    await lives.create("other")
    await lives.append("other", b"1")
    await lives.stop()
    entry(lives, 1).write_bytes(b"")
    await lives.start()
    with pytest.raises(errors.TableDamaged):
        await lives.records("s")
    assert await lives.records("other") == [b"1"]


async def test_table_log_that_lost_its_last_commits_below_the_mark_is_damaged(lives: Lives):
    await three_commits(lives)
    await lives.stop()
    entry(lives, 2).unlink()
    await lives.start()
    with pytest.raises(errors.TableDamaged):
        await lives.records("s")


async def test_table_log_with_a_torn_close_is_written_again(lives: Lives):
    """A commit without records: the WAL has nothing for the table but the state."""
    stamp = ProducerStamp("p", 0, 0)
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.restart()
    await lives.close("s", producer=stamp)
    await lives.commit("s", version=1)
    await lives.die()
    entry(lives, 1).write_bytes(b"")
    await lives.start()
    assert await lives.records("s") == [b"1"]
    assert lives.log.head("s").closed
    await lives.restart(without_wal=True)
    assert lives.log.head("s").closed
    assert (await lives.close("s", producer=stamp)).duplicate


async def test_table_log_whose_only_commit_is_a_torn_close_is_written_again(lives: Lives):
    await lives.create("s")
    await lives.close("s")
    await lives.commit("s", version=0)
    await lives.die()
    entry(lives, 0).write_bytes(b"")
    await lives.start()
    await lives.restart(without_wal=True)
    assert lives.log.head("s").closed


async def test_table_log_with_a_torn_commit_of_a_stop_is_written_again(lives: Lives):
    """A stop writes a last commit for a stream with a TTL although nothing was appended."""
    await lives.create("s", ttl_seconds=1000)
    await lives.append("s", b"1")
    await lives.restart()
    lives.storage.fail("sync_all")
    await lives.stop()
    assert entry(lives, 1).exists()
    entry(lives, 1).write_bytes(b"")
    await lives.start()
    assert await lives.records("s") == [b"1"]
    await lives.append("s", b"2")
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b"1", b"2"]


async def test_read_never_changes_a_table(lives: Lives):
    """A file that is missing is an error of the read, not a reason to rewrite history."""
    await three_commits(lives)
    (path,) = [line["add"]["path"] for line in entries(lives.root, "s")[0] if "add" in line]
    file = lives.root / "s" / path
    data = file.read_bytes()
    file.unlink()
    with pytest.raises(errors.DataCorrupt):
        await lives.records("s")
    assert len(entries(lives.root, "s")) == 3
    file.write_bytes(data)
    assert await lives.records("s") == [b"0", b"1", b"2"]


@pytest.fixture
async def often(root):
    """An engine that writes a checkpoint every second version."""
    settings = EngineSettings(commit=CommitSettings(interval_ms=INTERVAL_MS, checkpoint_every=2))
    lives = Lives(root, settings)
    await lives.start()
    await three_commits(lives)
    checkpoint = entries_folder(lives.root, "s") / f"{2:020d}.checkpoint.parquet"
    await until(checkpoint.exists, "the checkpoint")
    await until((entries_folder(lives.root, "s") / "_last_checkpoint").exists)
    yield lives, checkpoint.name
    await lives.bury()


async def test_table_log_does_not_trust_a_checkpoint_above_the_mark(often):
    lives, _ = often
    await lives.die()
    (path,) = [line["add"]["path"] for line in entries(lives.root, "s")[1] if "add" in line]
    (lives.root / "s" / path).write_bytes(b"")
    await lives.start()
    assert await lives.records("s") == [b"0", b"1", b"2"]
    await lives.restart(without_wal=True)
    assert await lives.records("s") == [b"0", b"1", b"2"]
    table = DeltaTable(str(lives.root / "s")).to_pyarrow_table()
    assert sorted(table["data"].to_pylist()) == ["0", "1", "2"]


async def test_table_log_removes_a_torn_checkpoint(often):
    lives, name = often
    await lives.die()
    (entries_folder(lives.root, "s") / name).write_bytes(b"PAR1 torn")
    await lives.start()
    assert await lives.records("s") == [b"0", b"1", b"2"]
    table = DeltaTable(str(lives.root / "s")).to_pyarrow_table()
    assert sorted(table["data"].to_pylist()) == ["0", "1", "2"]


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("without_wal", [False, True])
async def test_table_log_is_rebuilt_from_a_checkpoint(often, cleaned: bool, without_wal: bool):
    lives, _ = often
    await lives.append("s", b"3", producer=ProducerStamp("p", 1, 0))
    await lives.stop()
    if cleaned:
        for version in range(3):
            entry(lives, version).unlink()
    if without_wal:
        shutil.rmtree(lives.root / "_wal")
    await lives.start()
    assert await lives.records("s") == [b"0", b"1", b"2", b"3"]
    assert (await lives.append("s", b"3", producer=ProducerStamp("p", 1, 0))).duplicate
    await lives.append("s", b"4")
    await lives.commit("s")
    assert await lives.records("s") == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("content_type", [TEXT, BYTES])
async def test_table_read_by_others_equals_the_log(lives: Lives, content_type: str):
    bodies = [f"zeile {number} é😀\x00\n".encode() * (1 + number % 3) for number in range(40)]
    await lives.create("a/b c", content_type)
    for number, body in enumerate(bodies):
        await lives.append("a/b c", body)
        if number % 15 == 14:
            lives.clock.advance(86_400_000)
            await lives.commit("a/b c")
    await lives.stop()
    folder = str(entries_folder(lives.root, "a/b c").parent)
    expected = bodies if content_type == BYTES else [body.decode() for body in bodies]
    polars = pl.read_delta(folder).sort("offset")
    assert polars["data"].to_list() == expected
    arrow = DeltaTable(folder).to_pyarrow_table().sort_by("offset")
    assert arrow["data"].to_pylist() == expected
    offsets = arrow["offset"].to_pylist()
    assert offsets == sorted(set(offsets))
    assert all(len(offset) == 32 for offset in offsets)
    assert [int(offset[:16]) for offset in offsets] == [
        int(moment.timestamp() * 1000) for moment in arrow["flushed_at"].to_pylist()
    ]
