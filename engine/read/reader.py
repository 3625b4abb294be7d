"""Reads: files, then the hot tail, through every ancestor of a fork; one view of old and fresh.

Every step looks at the stream anew, so a commit that moves records from the tail into a file
between two steps is not noticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from engine import metrics
from engine.errors import OffsetTrimmed, StreamNotFound, TableDamaged
from engine.index.files import OffsetIndex
from engine.read.ahead import ReadAhead
from engine.read.chunk import ANY_SIZE, Chunk, RecordChunk
from engine.read.rowgroups import RowGroups
from engine.table.actions import EPOCH_APP
from engine.table.replay import load_state, newer_entries
from engine.table.state import NO_VERSION, TableState
from engine.types import Offset, ReadResult, RecordsResult, StreamId

if TYPE_CHECKING:
    from engine.clock import Clock
    from engine.format.run import Run
    from engine.settings import ReadSettings
    from engine.storage import Storage
    from engine.streams.stream import Stream

_ENDLESS: Final = Offset(10**32)
_INDEX_RELOADS_MAX: Final = 3
# Results that are kept for the live readers of as many streams.
_SHARED_MAX: Final = 64
_SHARED_BYTES_MAX: Final = 64 * 1024
# Jobs rewrite and trim tables. A stream that grows learns of it with its next commit; one that is
# only read looks for it this often.
_LOOK_INTERVAL_MS: Final = 1000
_SECONDS_TAIL: Final = metrics.read_seconds.labels(source="tail")
_SECONDS_TABLE: Final = metrics.read_seconds.labels(source="table")


def lineage(stream: Stream) -> list[tuple[Stream, Offset]]:
    """Where records lie: each ancestor with the last offset that is inherited from it."""
    limit = _ENDLESS
    found = [(stream, limit)]
    while stream.source is not None:
        limit = min(limit, stream.fork_offset)
        stream = stream.source
        found.append((stream, limit))
    return found[::-1]


class Reader:
    """Serves records after a position."""

    def __init__(self, storage: Storage, clock: Clock, settings: ReadSettings) -> None:
        self._storage = storage
        self._clock = clock
        self._row_groups = RowGroups(storage, settings)
        self._ahead = ReadAhead(self._row_groups)
        self._shared: dict[StreamId, ReadResult] = {}

    def stop(self) -> None:
        """End the threads."""
        self._row_groups.stop()

    async def read(self, stream: Stream, position: Offset, *, bytes_max: int) -> ReadResult:
        """One chunk after ``position``; at least one record if there is any."""
        begun_s = self._clock.monotonic_s()
        result = self.read_now(stream, position, bytes_max=bytes_max)
        if result is not None:
            _SECONDS_TAIL.observe(self._clock.monotonic_s() - begun_s)
            return result
        chunk = Chunk(position, position, bytes_max)
        for part, limit in lineage(stream):
            await self._read_part(part, limit, chunk)
            if chunk.is_full:
                if chunk.run is not None:
                    self._ahead.served(part, position, chunk.position, last_run=chunk.run)
                break
        _SECONDS_TABLE.observe(self._clock.monotonic_s() - begun_s)
        metrics.read_bytes.inc(chunk.size)
        if stream.gone:
            raise StreamNotFound("the stream was deleted while it was read")
        # No await from here on: what is said about the tail is true at this moment.
        return self._result(stream, chunk)

    def read_now(self, stream: Stream, position: Offset, *, bytes_max: int) -> ReadResult | None:
        """What `read` says where all of it lies in the hot tail; else None.

        Live readers of a stream wait at the same position: they share one result.
        """
        is_inherited = stream.source is not None and position < stream.fork_offset
        if position < stream.committed or is_inherited or stream.gone:
            return None
        shared = self._shared.get(stream.id)
        if (
            shared is not None
            and shared.start == position
            and shared.end == stream.tail
            and shared.closed == stream.closed
        ):
            metrics.read_bytes.inc(sum(map(len, shared.pieces)))
            return shared
        chunk = Chunk(position, position, bytes_max)
        for batch in stream.buffer.after(position):
            chunk.take_batch(batch, _ENDLESS)
            if chunk.is_full:
                break
        metrics.read_bytes.inc(chunk.size)
        result = self._result(stream, chunk)
        # A view would keep all of the append that it is a part of.
        is_whole = all(isinstance(piece, bytes) for piece in result.pieces)
        if result.pieces and is_whole and result.up_to_date and chunk.size <= _SHARED_BYTES_MAX:
            self._shared.pop(stream.id, None)
            self._shared[stream.id] = result
            if len(self._shared) > _SHARED_MAX:
                del self._shared[next(iter(self._shared))]
        return result

    @staticmethod
    def _result(stream: Stream, chunk: Chunk) -> ReadResult:
        reached = not chunk.is_full or chunk.position >= stream.tail
        return ReadResult(
            stream_id=stream.id,
            content_type=stream.meta.content_type,
            kind=stream.kind,
            start=chunk.start,
            end=max(chunk.position, stream.tail) if reached else chunk.position,
            pieces=tuple(chunk.pieces),
            up_to_date=reached,
            closed=stream.closed and reached,
        )

    async def read_records(self, stream: Stream, chunk: RecordChunk) -> RecordsResult:
        """Fill the chunk with single records."""
        for part, limit in lineage(stream):
            await self._read_part(part, limit, chunk)
            if chunk.is_full:
                break
        metrics.read_bytes.inc(chunk.size)
        if stream.gone:
            raise StreamNotFound("the stream was deleted while it was read")
        reached = not chunk.is_full or chunk.position >= stream.tail
        return RecordsResult(
            kind=stream.kind,
            records=chunk.records,
            end=max(chunk.position, stream.tail) if reached else chunk.position,
            closed=stream.closed and reached,
        )

    async def table_of(self, stream: Stream) -> TableState | None:
        """The stream's table as it is known; None if there is none.

        One that nobody has read yet is loaded, and not kept: a list must not fill the memory.
        """
        if stream.table is None and stream.version != NO_VERSION:
            return await self._row_groups.on_thread(self._load_state, stream)
        return stream.table

    async def append_at(self, stream: Stream, position: Offset, *, count_max: int) -> list[bytes]:
        """The first records of the append that begins after ``position``; empty at the tail."""
        for part, limit in lineage(stream):
            records: list[bytes] = []
            while len(records) < count_max and position < min(limit, part.tail):
                more = await self._append_part(part, limit, position, is_first=not records)
                if not more:
                    break
                records += [record for record, _ in more]
                position = more[-1][1]
            if records:
                return records[:count_max]
        return []

    async def _append_part(
        self, stream: Stream, limit: Offset, position: Offset, *, is_first: bool
    ) -> list[tuple[bytes, Offset]]:
        """Records after ``position`` up to the next append, within one row group or batch."""
        if position < stream.committed:
            found = await self._next_run(stream, position, ANY_SIZE)
            if found is not None:
                run, path, row_group = found
                assert run is not None
                seqs = await self._row_groups.append_seqs(path, row_group)
                begin, last = run.index_after(position), run.index_after(limit)
                if begin < last and not is_first and seqs[begin] == 0:
                    return []
                end = begin + 1
                while end < last and seqs[end] != 0:
                    end += 1
                return [(bytes(run.cut(i, i + 1)), run.offset_at(i)) for i in range(begin, end)]
        if not is_first:
            return []
        for batch in stream.buffer.after(position)[:1]:
            rest = batch.skip(max(0, position - batch.first + 1))
            count = min(rest.count, limit - rest.first + 1)
            singles = [rest.skip(index).take(1) for index in range(count)]
            return [(bytes(single.data), single.last) for single in singles]
        return []

    async def _read_part(self, stream: Stream, limit: Offset, chunk: Chunk | RecordChunk) -> None:
        """Records of one stream of the lineage, up to ``limit``."""
        while not chunk.is_full and chunk.position < min(limit, stream.tail):
            if chunk.position < stream.committed:
                try:
                    found = await self._next_run(stream, chunk.position, chunk.run_bytes_max)
                except OffsetTrimmed as error:
                    chunk.skip_trimmed(min(limit, Offset(error.earliest)))
                    continue
                if found is not None:
                    if found[0] is None:
                        chunk.is_full = True
                    elif not chunk.take_run(found[0], limit):
                        return
                    continue
            batches = stream.buffer.after(chunk.position)
            if not batches:
                return
            for batch in batches:
                if chunk.is_full or batch.first > limit:
                    return
                chunk.take_batch(batch, limit)

    async def _next_run(
        self, stream: Stream, position: Offset, bytes_max: int
    ) -> tuple[Run | None, str, int] | None:
        """The row group that holds the first committed record after ``position``; without the run
        where one begins that has more than about ``bytes_max``.

        OffsetTrimmed where records after it are gone: said by the very index that the run is found
        with, for a trim may come to light between two looks.
        """
        for _ in range(_INDEX_RELOADS_MAX):
            index = await self._index(stream)
            if position < index.trimmed:
                raise OffsetTrimmed(index.trimmed)
            files = index.after(position, count_max=1)
            if not files:
                return None
            try:
                path = f"{stream.folder}/{files[0].path}"
                run, row_group = await self._row_groups.after(
                    stream.folder, files[0], position, stream.kind, bytes_max=bytes_max
                )
            except FileNotFoundError:
                # Compaction replaced the file and vacuum removed it: the log
                # tells where the rows are.
                if stream.gone:
                    raise StreamNotFound("the stream was deleted while it was read") from None
                stream.index = stream.table = None
            else:
                return run, path, row_group
        raise TableDamaged(f"a file of {stream.name} is missing")

    async def _index(self, stream: Stream) -> OffsetIndex:
        """The stream's index, no older than the last look for what jobs have changed."""
        table = stream.table
        if table is None:
            return await self._load_index(stream)
        now_ms = self._clock.monotonic_ms()
        if now_ms - stream.looked_ms >= _LOOK_INTERVAL_MS and not stream.is_committing:
            stream.looked_ms = now_ms
            version = table.version
            newer = await self._row_groups.on_thread(
                newer_entries, self._storage, stream.folder, version
            )
            is_same = stream.table is table and table.version == version
            if newer and is_same and not stream.is_committing:
                for entry in newer:
                    if EPOCH_APP in entry.txns:
                        # An append of somebody else: the committer has to judge that.
                        break
                    version += 1
                    table.apply(entry, version)
                    stream.version = version
                    stream.index = None
        return stream.index or await self._load_index(stream)

    async def _load_index(self, stream: Stream) -> OffsetIndex:
        """Build the index from the table's log, as new as the newest commit."""
        for _ in range(_INDEX_RELOADS_MAX):
            if stream.index is not None:
                return stream.index
            state = stream.table
            if state is None and stream.version != NO_VERSION:
                try:
                    state = await self._row_groups.on_thread(self._load_state, stream)
                except FileNotFoundError:
                    # An entry was cleaned up between listing and reading: list again.
                    state = TableState()
                if stream.gone:
                    raise StreamNotFound("the stream was deleted while it was read")
                if state.version < stream.version or stream.index is not None:
                    continue
                if stream.table is None and not stream.is_committing:
                    stream.table = state
            if state is None:
                stream.index = OffsetIndex()
            else:
                stream.index = OffsetIndex(state.files.values(), trimmed=state.trimmed)
        if stream.index is None:
            raise TableDamaged(f"the table of {stream.name} lost versions it had")
        return stream.index

    def _load_state(self, stream: Stream) -> TableState:
        return load_state(self._storage, stream.folder)
