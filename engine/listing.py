"""Lists of streams: a page of them in the order of their names, each with its size."""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING

from engine.errors import BottomlessError
from engine.format.offset import epoch_of
from engine.types import StreamSummary

if TYPE_CHECKING:
    from engine.read.reader import Reader
    from engine.streams.registry import Registry
    from engine.streams.stream import Stream
    from engine.types import StreamName


class Listing:
    """Looks through the registry; loads the tables of the streams on the page, and only those."""

    def __init__(self, registry: Registry, reader: Reader) -> None:
        self._registry = registry
        self._reader = reader

    async def page(self, prefix: str, after: str, count_max: int) -> list[StreamSummary]:
        """Up to ``count_max`` streams with that prefix, whose names come after ``after``."""
        streams = list(self._registry)

        def pick() -> list[StreamName]:
            names = (
                stream.name
                for stream in streams
                if stream.name > after
                and stream.name.startswith(prefix)
                and not stream.soft_deleted
            )
            return heapq.nsmallest(count_max, names)

        # A million names take a tenth of a second: not on the event loop.
        loop = asyncio.get_running_loop()
        summaries = []
        for name in await loop.run_in_executor(None, pick):
            stream = self._registry.visible(name)
            if stream is not None:
                summaries.append(await self._summary(stream))
        return summaries

    async def _summary(self, stream: Stream) -> StreamSummary:
        fault = stream.fault
        table = None
        try:
            if fault is None:
                table = await self._reader.table_of(stream)
        except BottomlessError as error:
            fault = error
        records, size, files = stream.buffer.records, stream.buffer.payload_bytes, 0
        if table is not None:
            records += table.records - table.records_trimmed
            files = len(table.files)
            size += sum(file.size for file in table.files.values())
        has_records = records > 0 or (table is not None and table.records > 0)
        return StreamSummary(
            info=stream.info(),
            records=records,
            bytes=size,
            files=files,
            last_append_ms=epoch_of(stream.tail) if has_records else None,
            fault=None if fault is None else fault.code,
        )
