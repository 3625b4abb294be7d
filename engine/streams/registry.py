"""Which streams exist: by name as readers see it, by name as the next append will find it, by id.

Deletion counts forks: a stream that forks still read is only hidden, and really goes with the last
of them, up the chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.format.offset import START

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.streams.stream import Stream
    from engine.types import StreamId, StreamName


class Registry:
    """All streams of a server."""

    def __init__(self) -> None:
        self._visible: dict[StreamName, Stream] = {}
        self._soon: dict[StreamName, Stream | None] = {}
        self._by_id: dict[StreamId, Stream] = {}
        self.mortal: set[Stream] = set()
        """Streams with a TTL or an expiry."""
        self.foreign_folders: set[str] = set()
        """Folders in the root that are not ours: no stream may be created on top of them."""

    def __len__(self) -> int:
        """Streams that exist, hidden ones included."""
        return len(self._by_id)

    def __iter__(self) -> Iterator[Stream]:
        """Every stream, in no special order."""
        return iter(list(self._by_id.values()))

    def visible(self, name: StreamName) -> Stream | None:
        """The stream as readers see it."""
        return self._visible.get(name)

    def soon(self, name: StreamName) -> Stream | None:
        """The stream as it will be once everything under way is durable."""
        if name in self._soon:
            return self._soon[name]
        return self._visible.get(name)

    def by_id(self, stream_id: StreamId) -> Stream | None:
        """The stream of that id, if it still exists."""
        return self._by_id.get(stream_id)

    def announce(self, name: StreamName, stream: Stream | None) -> None:
        """A create (or delete: None) of that name is under way."""
        self._soon[name] = stream

    def forget_announcements(self) -> None:
        """Nothing is under way any more, or all of it has failed."""
        self._soon.clear()

    def settle(self, name: StreamName, stream: Stream | None) -> None:
        """The announced change is durable; later announcements of the name stay."""
        if name in self._soon and self._soon[name] is stream:
            del self._soon[name]

    def add(self, stream: Stream) -> None:
        """A stream has become durable."""
        self._by_id[stream.id] = stream
        self._visible[stream.name] = stream
        if stream.is_mortal:
            self.mortal.add(stream)
        if stream.source is not None:
            stream.source.forks += 1
            stream.source.held = max(stream.source.held, stream.fork_offset)

    def remove(self, stream: Stream) -> list[Stream]:
        """Delete a stream; returns those that are really gone (none, it, or it and its sources)."""
        if stream.forks > 0:
            stream.soft_deleted = True
            stream.state_changed = True
            return []
        gone = []
        victim: Stream | None = stream
        while victim is not None:
            self._drop(victim)
            gone.append(victim)
            source = victim.source
            if source is not None:
                source.forks -= 1
                if source.forks + source.forks_pending + source.holds_pending == 0:
                    source.held = START
                    source.state_changed = True
            victim = source if source and source.soft_deleted and source.forks == 0 else None
        return gone

    def _drop(self, stream: Stream) -> None:
        stream.gone = True
        self._by_id.pop(stream.id, None)
        self.mortal.discard(stream)
        if self._visible.get(stream.name) is stream:
            del self._visible[stream.name]
