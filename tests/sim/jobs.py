"""Another process beside the server: it trims and rewrites tables through the engine's own change.

Its planning is a toy, its commits are those of the jobs (engine.table.change).
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from engine import errors
from engine.format.names import table_folder
from engine.table.actions import DataFile
from engine.table.change import commit_change, rewrite_of, trim_of
from engine.table.replay import load_state
from engine.types import StreamName

if TYPE_CHECKING:
    from engine.table.state import TableState
    from tests.sim.clients import Clients
    from tests.sim.oracle import Incarnation
    from tests.sim.storage import SimStorage

# None yet: the oracle cannot follow trims that readers see before they are durable.
TRIMS = 0.0
LOST = (errors.BottomlessError, OSError)


async def work(clients: Clients, storage: SimStorage, rounds: int) -> None:
    """Some rounds over streams that exist."""
    for _ in range(rounds):
        await asyncio.sleep(clients.rng.choice([0.1, 1.0, 2.0]))
        stream = clients.pick()
        if stream is None or stream.is_leaving:
            continue
        job = Job(clients, storage, stream)
        await (job.trim() if clients.rng.random() < TRIMS else job.rewrite())


class Job:
    """One run for one stream."""

    def __init__(self, clients: Clients, storage: SimStorage, stream: Incarnation) -> None:
        self._clients = clients
        self._storage = storage
        self._stream = stream
        self._folder = table_folder(StreamName(stream.name))
        self._last = 0

    async def trim(self) -> None:
        """The oldest files go."""
        stream, before = self._stream, list(self._stream.trims)
        try:
            await self._on_thread(self._trim)
        except errors.ChangeLost:
            stream.trims = before
        except LOST:
            return
        else:
            if self._last:
                stream.trims = [self._last]

    async def rewrite(self) -> None:
        """Two neighbours become one file; then the old ones are removed."""
        try:
            await self._on_thread(self._rewrite)
        except LOST:
            return

    async def _on_thread(self, run: object) -> None:
        assert callable(run)
        await asyncio.get_running_loop().run_in_executor(None, run)

    def _load(self) -> tuple[TableState, list[DataFile]]:
        state = load_state(self._storage, self._folder)
        return state, sorted(state.files.values(), key=lambda file: file.first)

    def _trim(self) -> None:
        state, files = self._load()
        doomed = files[: self._clients.rng.randint(1, 2)]
        if not doomed or self._stream.is_leaving:
            return
        last = int(doomed[-1].last)
        self._stream.trims.append(last)
        now_ms = self._clients.clock.now_ms()
        commit_change(self._storage, self._folder, state, trim_of(state, doomed), now_ms=now_ms)
        self._storage.sync_all()
        self._last = last

    def _rewrite(self) -> None:
        state, files = self._load()
        pairs = [
            pair for pair in itertools.pairwise(files) if pair[0].partition == pair[1].partition
        ]
        if not pairs or self._stream.is_leaving:
            return
        old = list(self._clients.rng.choice(pairs))
        new = self._join(old)
        self._storage.sync_all()
        now_ms = self._clients.clock.now_ms()
        commit_change(
            self._storage, self._folder, state, rewrite_of(state, old, [new]), now_ms=now_ms
        )
        self._storage.sync_all()
        for file in old:
            self._storage.remove(f"{self._folder}/{file.path}")

    def _join(self, old: list[DataFile]) -> DataFile:
        tables = []
        for file in old:
            data = self._storage.read(f"{self._folder}/{file.path}")
            with pq.ParquetFile(pa.BufferReader(data)) as parquet:
                tables.append(parquet.read(use_threads=False))
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.concat_tables(tables),
            sink,
            write_statistics=["offset", "flushed_at"],
            write_page_checksum=True,
            store_schema=False,
        )
        data = sink.getvalue()
        token = self._clients.rng.getrandbits(64)
        path = f"flush_date={old[0].partition}/joined-{token:016x}.parquet"
        self._storage.put_file(f"{self._folder}/{path}", data)
        rows = sum(file.rows for file in old)
        return DataFile(path, len(data), old[0].first, old[-1].last, rows)
