"""Reads that begin at a moment: one meaning in every dialect and every way of reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine import Offset, parse_moment, position_at
from engine.errors import OffsetTrimmed

if TYPE_CHECKING:
    from engine import Log, StreamName


async def position_since(log: Log, name: StreamName, text: str, *, now_ms: int) -> Offset:
    """The position before the first record that was flushed at that moment or later.

    Where retention has trimmed records of that time, the oldest that is left comes first.
    """
    position = position_at(parse_moment(text, now_ms=now_ms))
    while True:
        try:
            await log.read_records(name, position, count_max=1, bytes_max=1)
        except OffsetTrimmed as error:
            # A fork may inherit from several streams, each trimmed by itself.
            position = Offset(error.earliest)
        else:
            return position
