"""The agenda: streams that want a commit, by the time it is due.

One order for all of them: whoever is overdue for longest comes first, so neither a stream that is
hurried again and again nor one with a short interval keeps the others waiting.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.streams.stream import Stream

# Entries that were moved or removed stay in the heap until they come up, but not too many of them.
_STALE_MIN: Final = 64


class Agenda:
    """Each stream once."""

    def __init__(self) -> None:
        self._due: dict[Stream, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, Stream]] = []
        self._numbers = count()

    def __len__(self) -> int:
        """How many streams wait."""
        return len(self._due)

    def __contains__(self, stream: Stream) -> bool:
        """Whether it waits."""
        return stream in self._due

    def __iter__(self) -> Iterator[Stream]:
        """All of them, in no special order."""
        return iter(list(self._due))

    def due_ms(self, stream: Stream) -> int | None:
        """When its commit is due; None where it does not wait."""
        entry = self._due.get(stream)
        return None if entry is None else entry[0]

    def put(self, stream: Stream, due_ms: int) -> bool:
        """Add or move it; True if it is the first now."""
        entry = (due_ms, next(self._numbers))
        self._due[stream] = entry
        if len(self._heap) > 2 * len(self._due) + _STALE_MIN:
            self._heap = [(*when, one) for one, when in self._due.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (*entry, stream))
        return self._heap[0][2] is stream

    def remove(self, stream: Stream) -> None:
        """It wants no commit any more."""
        self._due.pop(stream, None)

    def first(self) -> tuple[int, Stream] | None:
        """Who is due first, and when."""
        while self._heap:
            due_ms, number, stream = self._heap[0]
            if self._due.get(stream) == (due_ms, number):
                return due_ms, stream
            heapq.heappop(self._heap)
        return None
