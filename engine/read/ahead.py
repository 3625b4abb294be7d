"""Read-ahead: whoever walks forward finds the next row groups decoded when it asks for them.

While a chunk is on its way to the client, a reading thread decodes what comes after it. Only for
readers that go on where a chunk has ended: one that jumps about would pay for what it never asks.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from engine.format.offset import START

if TYPE_CHECKING:
    from engine.format.run import Run
    from engine.read.rowgroups import RowGroups
    from engine.streams.stream import Stream
    from engine.types import Offset, StreamId

_ENDS_MAX: Final = 1024


class ReadAhead:
    """Remembers where chunks ended, and decodes what follows for whoever goes on from there."""

    def __init__(self, row_groups: RowGroups) -> None:
        self._row_groups = row_groups
        self._ends: OrderedDict[tuple[StreamId, Offset], None] = OrderedDict()

    def served(self, stream: Stream, start: Offset, end: Offset, *, last_run: Run) -> None:
        """A full chunk from ``start`` to ``end`` was read; ``last_run`` is what it ends in."""
        ends = self._ends
        is_walking = start == START or ends.pop((stream.id, start), "never") is None
        ends[(stream.id, end)] = None
        if len(ends) > _ENDS_MAX:
            ends.popitem(last=False)
        index = stream.index
        if not is_walking or index is None or index.trimmed > end:
            return
        position = last_run.last
        files = index.after(position, count_max=1)
        if files:
            self._row_groups.prepare(stream.folder, files[0], position, stream.kind)
