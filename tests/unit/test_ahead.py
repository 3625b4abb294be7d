"""Read-ahead, told from the files that are opened: once for a footer, once for each row group."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from engine import errors
from engine.settings import KIB, ReadSettings
from engine.types import Offset, StreamName
from tests.support.model import SMALL, Lives, until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RECORDS = [b'"%03d%s"' % (number, b"x" * 1000) for number in range(8)]
STREAM = StreamName("s")


class Watched:
    """An engine with one file of eight row groups, a record in each, and what it opens of it."""

    def __init__(
        self, root: Path, cache_bytes: int, records: Sequence[bytes] = tuple(RECORDS)
    ) -> None:
        self.records = records
        read = ReadSettings(chunk_bytes=KIB, row_group_bytes=KIB, cache_bytes=cache_bytes)
        self.lives = Lives(root, SMALL.model_copy(update={"read": read}))
        self.opened = 0
        self.held = threading.Lock()
        """Whoever has it keeps files from being opened."""
        self.offsets: list[Offset] = []

    async def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Fill the stream, and start anew so that nothing is in memory."""
        await self.lives.start()
        await self.lives.create(STREAM)
        for record in self.records:
            self.offsets.append((await self.lives.append(STREAM, record)).tail)
        await self.lives.restart(without_wal=True)
        storage = self.lives.storage
        open_input = storage.open_input

        def count(path: str) -> object:
            self.opened += path.endswith(".parquet")
            with self.held:
                return open_input(path)

        monkeypatch.setattr(storage, "open_input", count)

    async def read(self, position: int = 0) -> list[bytes]:
        """One chunk."""
        return [bytes(piece) for piece in (await self.lives.log.read(STREAM, position)).pieces]

    def remove_files(self) -> None:
        """As vacuum does, but with nothing in their place."""
        for path in self.lives.root.rglob("*.parquet"):
            path.unlink()


@pytest.fixture
async def unhandled() -> list[object]:
    """What the event loop would log, such as an exception that nobody has looked at."""
    found: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


async def test_ahead_decodes_what_a_reader_from_the_start_asks_for_next(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    watched = Watched(root, 64 * KIB)
    await watched.begin(monkeypatch)
    assert await watched.read() == [RECORDS[0]]
    await until(lambda: watched.opened == 4, "one footer, one row group and two ahead")
    assert await watched.read(watched.offsets[0]) == [RECORDS[1]]
    await until(lambda: watched.opened == 5, "one more ahead")
    # Decoded is more than opened: the stop waits for the threads, the next read for nobody.
    assert await watched.read(watched.offsets[1]) == [RECORDS[2]]
    watched.remove_files()
    assert await watched.read(watched.offsets[2]) == [RECORDS[3]]
    await watched.lives.stop()


@pytest.mark.parametrize(("cache_bytes", "begin"), [(64 * KIB, 3), (2 * KIB, 0), (0, 0)])
async def test_ahead_decodes_nothing_for_who_jumps_or_where_there_is_no_room(
    root: Path, monkeypatch: pytest.MonkeyPatch, cache_bytes: int, begin: int
):
    watched = Watched(root, cache_bytes)
    await watched.begin(monkeypatch)
    position = watched.offsets[begin - 1] if begin else 0
    assert await watched.read(position) == [RECORDS[begin]]
    # Ends when the threads have done all they were told to do.
    await watched.lives.stop()
    assert watched.opened == 2


async def test_ahead_leaves_alone_what_would_push_the_rest_out_of_the_cache(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    records = [b'"%d%s"' % (number, b"x" * 9 * KIB) for number in range(4)]
    watched = Watched(root, 64 * KIB, records)
    await watched.begin(monkeypatch)
    assert await watched.read() == [records[0]]
    await watched.lives.stop()
    assert watched.opened == 2


async def test_ahead_of_damage_is_told_to_who_asks_for_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, unhandled: list[object]
):
    watched = Watched(root, 64 * KIB)
    await watched.begin(monkeypatch)
    [path] = watched.lives.root.rglob("*.parquet")
    metadata = pq.read_metadata(path)
    column = metadata.row_group(1).column(metadata.schema.names.index("data"))
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 2] ^= 1
    path.write_bytes(data)
    assert await watched.read() == [RECORDS[0]]
    await until(lambda: watched.opened == 4, "two row groups ahead")
    for _ in range(2):
        with pytest.raises(errors.TableDamaged):
            await watched.read(watched.offsets[0])
    assert await watched.read(watched.offsets[1]) == [RECORDS[2]]
    await watched.lives.stop()
    gc.collect()
    assert unhandled == []


async def test_ahead_of_readers_that_leave_ends_by_itself(
    root: Path, monkeypatch: pytest.MonkeyPatch, unhandled: list[object]
):
    watched = Watched(root, 64 * KIB)
    await watched.begin(monkeypatch)
    await watched.read(watched.offsets[0])
    watched.opened = 0
    readers = [asyncio.ensure_future(watched.read()) for _ in range(3)]
    with watched.held:
        await until(lambda: watched.opened == 1, "a row group being decoded for three")
        # The one it was begun for is among them.
        for reader in readers[:2]:
            reader.cancel()
        await asyncio.wait(readers[:2])
    assert await readers[2] == [RECORDS[0]]
    watched.remove_files()
    last = asyncio.ensure_future(watched.read(watched.offsets[5]))
    await asyncio.sleep(0)
    last.cancel()
    await asyncio.wait([last])
    await watched.lives.stop()
    gc.collect()
    assert unhandled == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_ahead_of_files_that_are_gone_is_told_to_who_asks_for_them(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    watched = Watched(root, 64 * KIB)
    await watched.begin(monkeypatch)
    assert await watched.read() == [RECORDS[0]]
    await until(lambda: watched.opened == 4, "two row groups ahead")
    await watched.read(watched.offsets[0])
    watched.remove_files()
    with pytest.raises(errors.TableDamaged, match="missing"):
        await watched.read(watched.offsets[5])
    await watched.lives.stop()
