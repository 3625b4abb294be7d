"""Lists of streams: a page of them, each with its size and what happens to it."""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.errors import BottomlessError
from engine.format.offset import epoch_of
from engine.table.state import NO_VERSION, TableState
from engine.types import StreamActivity, StreamSummary

if TYPE_CHECKING:
    from engine.clock import Clock
    from engine.read.reader import Reader
    from engine.streams.registry import Registry
    from engine.streams.stream import Stream
    from engine.types import StreamId, StreamName

# Who looks at a list once a second must not make the server read every table each time.
_SIZES_MAX: Final = 20_000
_SIZES_AGE_MS: Final = 10_000
_TURN_STREAMS: Final = 100


class Sizes(NamedTuple):
    """What a version of a table adds up to."""

    version: int
    looked_ms: int
    records_ever: int
    records: int
    bytes: int
    files: int


class Listing:
    """Looks through the registry; loads the tables of the streams on the page, and only those."""

    def __init__(self, registry: Registry, reader: Reader, clock: Clock) -> None:
        self._registry = registry
        self._reader = reader
        self._clock = clock
        self._sizes: OrderedDict[StreamId, Sizes] = OrderedDict()

    async def page(
        self,
        prefix: str,
        after: str,
        count_max: int,
        *,
        contains: str = "",
        newest_first: bool = False,
    ) -> list[StreamSummary]:
        """Up to ``count_max`` streams that match, whose names come after ``after``: in the order of
        their names, or those that were appended to last.
        """
        streams = list(self._registry)

        def pick() -> list[StreamName]:
            found = (
                stream
                for stream in streams
                if stream.name > after
                and stream.name.startswith(prefix)
                and contains in stream.name
                and not stream.soft_deleted
            )
            if newest_first:
                # The tail of a stream is the time of its last append.
                latest = heapq.nlargest(count_max, ((one.tail, one.name) for one in found))
                return [name for _, name in latest]
            return heapq.nsmallest(count_max, (one.name for one in found))

        # A million names take a tenth of a second: not on the event loop.
        loop = asyncio.get_running_loop()
        summaries: list[StreamSummary] = []
        for index, name in enumerate(await loop.run_in_executor(None, pick)):
            if index % _TURN_STREAMS == 0:
                # Appends need not wait for a whole page.
                await asyncio.sleep(0)
            stream = self._registry.visible(name)
            if stream is not None:
                summaries.append(await self._summary(stream))
        return summaries

    async def _summary(self, stream: Stream) -> StreamSummary:
        fault = stream.fault
        sizes = None
        try:
            if fault is None:
                sizes = await self._sizes_of(stream)
        except BottomlessError as error:
            fault = error
        # No await from here on: a commit moves records from the tail into the table.
        records, size, files = stream.buffer.records, stream.buffer.payload_bytes, 0
        has_records = records > 0
        if sizes is not None:
            records += sizes.records
            size += sizes.bytes
            files = sizes.files
            has_records |= sizes.records_ever > 0
        return StreamSummary(
            info=stream.info(),
            records=records,
            bytes=size,
            files=files,
            last_append_ms=epoch_of(stream.tail) if has_records else None,
            fault=None if fault is None else fault.code,
            activity=self._activity(stream),
        )

    def _activity(self, stream: Stream) -> StreamActivity:
        buffer, now_ms = stream.buffer, self._clock.now_ms()
        oldest = buffer.first
        return StreamActivity(
            appended_records=buffer.appended_records,
            appended_bytes=buffer.appended_bytes,
            uncommitted_records=buffer.records,
            uncommitted_bytes=buffer.payload_bytes,
            # Offsets never go back, so after a clock did they are ahead of it.
            commit_lag_ms=0 if oldest is None else max(0, now_ms - epoch_of(oldest)),
            readers=stream.followers,
            writers=0 if stream.writers is None else stream.writers.count(now_ms),
        )

    async def _sizes_of(self, stream: Stream) -> Sizes | None:
        """The sizes of the stream's table; None where there is none."""
        known = self._sizes.get(stream.id)
        table = stream.table
        now_ms = self._clock.monotonic_ms()
        if table is None:
            if stream.version == NO_VERSION:
                return None
            if (
                known is not None
                and known.version >= stream.version
                and now_ms - known.looked_ms < _SIZES_AGE_MS
            ):
                return known
            table = await self._reader.table_of(stream)
            if stream.table is not None:
                # Loaded or committed meanwhile: newer than what was read here.
                table = stream.table
        if table is None:
            return None
        if known is None or known.version != table.version:
            known = _add_up(table, now_ms)
        self._sizes[stream.id] = known._replace(looked_ms=now_ms)
        self._sizes.move_to_end(stream.id)
        if len(self._sizes) > _SIZES_MAX:
            self._sizes.popitem(last=False)
        return known


def _add_up(table: TableState, now_ms: int) -> Sizes:
    return Sizes(
        version=table.version,
        looked_ms=now_ms,
        records_ever=table.records,
        records=table.records - table.records_trimmed,
        bytes=sum(file.size for file in table.files.values()),
        files=len(table.files),
    )
