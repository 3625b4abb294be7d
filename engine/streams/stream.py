"""One incarnation of a stream: what is durable and visible, what is on its way, where its table
stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.format.names import table_folder
from engine.format.offset import START, parse_offset
from engine.settings import NO_OVERRIDES, StreamOverrides, overlay
from engine.streams.audience import Audience
from engine.streams.buffer import Tail
from engine.streams.producers import ActiveProducers, ProducerState
from engine.table.state import NO_VERSION, TableState
from engine.types import Offset, ProducerStamp, StreamId, StreamInfo, StreamName, payload_kind

if TYPE_CHECKING:
    from engine.errors import BottomlessError
    from engine.format.frame import AppendMeta, StreamMeta
    from engine.index.files import OffsetIndex


@dataclass(slots=True)
class Pending:
    """What appends on their way will have changed. Dropped whole if their group fails."""

    operations: int = 0
    closed: bool = False
    closed_by: ProducerStamp | None = None
    producers: dict[str, ProducerState] = field(default_factory=dict)
    stream_seq: str | None = None
    fence: int | None = None
    settings: StreamOverrides | None = None


class Stream:
    """State of one stream. Only the event loop touches it."""

    def __init__(self, meta: StreamMeta, *, source: Stream | None, accessed_ms: int) -> None:
        self.meta = meta
        self.id = StreamId(meta.id)
        self.name = StreamName(meta.name)
        self.kind = payload_kind(meta.content_type)
        self.folder = table_folder(self.name)
        self.source = source
        self.is_mortal = meta.ttl_seconds is not None or meta.expires_at_ms is not None
        """It can expire."""
        self.fork_offset = parse_offset(meta.fork_offset) if meta.fork_offset else START
        self.forks = 0
        self.forks_pending = 0
        self.holds_pending = 0
        """Forks that wait for the table to tell retention of them."""
        self.held = START
        """Up to here forks read its records; told to the table, for retention to leave them."""

        # Durable and visible.
        self.tail = START
        self.closed = False
        self.closed_by: ProducerStamp | None = None
        self.producers: dict[str, ProducerState] = {}
        self.stream_seq: str | None = None
        self.fence = 0
        """The highest version a producer has shown; a lower one may not append."""
        self.settings = NO_OVERRIDES
        """Its own; None in them for what it inherits."""
        self.in_force = NO_OVERRIDES
        """Its own on top of what conf/streams.toml says; None for the server's."""
        self._inherited = NO_OVERRIDES
        self.soft_deleted = self.gone = False
        self.accessed_ms = accessed_ms
        """Monotonic clock: a TTL must not move when the wall clock does."""
        self.buffer = Tail()
        self.audience = Audience()
        # Live readers that are connected, waiting or not.
        self.followers = 0
        # None until a producer has come twice: most streams never need it.
        self.writers: ActiveProducers | None = None

        # On its way.
        self.delete_pending = False
        self.pending: Pending | None = None
        self.assigned = START

        # The table.
        self.table: TableState | None = None
        self.index: OffsetIndex | None = None
        self.committed = START
        self.durable_version = NO_VERSION
        """The version known to have survived a sync: the mark recovery insists on (F1)."""
        self.version = NO_VERSION
        self.looked_ms = accessed_ms
        """When the table was last looked at for changes that jobs have made."""
        self.state_changed = False
        self.producers_changed: set[str] = set()
        self.dirty_since_ms: int | None = None
        self.is_committing = False
        self.fault: BottomlessError | None = None

    def begin_at(self, tail: Offset) -> None:
        """Set the position before the first record."""
        self.tail = self.assigned = self.committed = tail

    def begin_tail(self, tail: Offset) -> None:
        """Move the tail forward while the WAL is replayed."""
        self.tail = self.assigned = max(self.tail, tail)

    @property
    def is_leaving(self) -> bool:
        """Deleted and kept for its forks, or about to be: nothing new may rest on it."""
        return self.soft_deleted or self.delete_pending

    # What appends still on their way will have done counts for the next append.

    @property
    def closed_soon(self) -> bool:
        """Closed, or about to be."""
        return self.closed or (self.pending is not None and self.pending.closed)

    @property
    def closed_by_soon(self) -> ProducerStamp | None:
        """The producer stamp that closed it or is about to."""
        if self.pending is not None and self.pending.closed:
            return self.pending.closed_by
        return self.closed_by

    def producer_soon(self, producer_id: str) -> ProducerState | None:
        """The producer's state with what is on its way."""
        if self.pending is not None and producer_id in self.pending.producers:
            return self.pending.producers[producer_id]
        return self.producers.get(producer_id)

    @property
    def stream_seq_soon(self) -> str | None:
        """The last Stream-Seq with what is on its way."""
        if self.pending is not None and self.pending.stream_seq is not None:
            return self.pending.stream_seq
        return self.stream_seq

    @property
    def fence_soon(self) -> int:
        """The version with what is on its way."""
        if self.pending is not None and self.pending.fence is not None:
            return self.pending.fence
        return self.fence

    @property
    def settings_soon(self) -> StreamOverrides:
        """The settings with what is on its way."""
        if self.pending is not None and self.pending.settings is not None:
            return self.pending.settings
        return self.settings

    @property
    def settings_json(self) -> str | None:
        """The settings as they are kept; None where there are none."""
        if self.settings is NO_OVERRIDES:
            return None
        return self.settings.model_dump_json(exclude_defaults=True)

    def adopt_settings(self, text: str | None) -> None:
        """Take over settings as they are kept."""
        if text is not None:
            settings = StreamOverrides.model_validate_json(text)
            self.settings = settings if settings != NO_OVERRIDES else NO_OVERRIDES
            self.inherit(self._inherited)

    def inherit(self, settings: StreamOverrides) -> None:
        """Take over what conf/streams.toml says about its name."""
        self._inherited = settings
        if settings is NO_OVERRIDES:
            self.in_force = self.settings
        else:
            self.in_force = overlay(settings, self.settings)

    def producer_count_soon(self) -> int:
        """Producer ids, those on their way included (an upper bound)."""
        extra = 0 if self.pending is None else len(self.pending.producers)
        return len(self.producers) + extra

    def apply_append(self, *, closes: bool, meta: AppendMeta | None) -> None:
        """The part of a durable append that is not records."""
        stamp = None
        if meta is not None:
            if meta.producer_id is not None:
                state = ProducerState(meta.producer_epoch, meta.producer_seq)
                self.producers[meta.producer_id] = state
                self.producers_changed.add(meta.producer_id)
                stamp = ProducerStamp(meta.producer_id, state.epoch, state.seq)
                if state.seq > 0:
                    # One that comes once has sent a single append and is no live writer.
                    if self.writers is None:
                        self.writers = ActiveProducers()
                    self.writers.saw(meta.producer_id, self.tail)
            if meta.stream_seq is not None:
                self.stream_seq = meta.stream_seq
                self.state_changed = True
            if meta.fence is not None:
                self.fence = meta.fence
                self.state_changed = True
            if meta.settings is not None:
                self.adopt_settings(meta.settings)
                self.state_changed = True
        if closes:
            self.closed = True
            self.closed_by = stamp
            self.state_changed = True

    def is_expired(self, *, now_ms: int, monotonic_ms: int) -> bool:
        """Past its Expires-At, or its TTL has run out since the last access."""
        if self.meta.expires_at_ms is not None and now_ms >= self.meta.expires_at_ms:
            return True
        if self.meta.ttl_seconds is None or self.audience:
            return False
        return monotonic_ms - self.accessed_ms >= self.meta.ttl_seconds * 1000

    @property
    def needs_commit(self) -> bool:
        """Something durable is not in the table yet (a fresh stream without records can wait)."""
        if self.buffer.records:
            return True
        return bool(self.producers_changed) or self.state_changed

    def wake(self) -> None:
        """Tell every live reader that something changed."""
        self.audience.wake()

    def info(self) -> StreamInfo:
        """What HEAD tells."""
        return StreamInfo(
            name=self.name,
            id=self.id,
            content_type=self.meta.content_type,
            tail=self.tail,
            closed=self.closed,
            ttl_seconds=self.meta.ttl_seconds,
            expires_at=self.meta.expires_at,
            fence=self.fence,
        )
