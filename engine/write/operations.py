"""What can be made durable: create, append (with or without closing), delete.

An operation is encoded when its group is sealed, which is when offsets are given out, and applied
when the group is durable, which is when readers may see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from engine.format.batch import Batch
from engine.format.frame import AppendMeta, encode_append, encode_create, encode_delete
from engine.format.offset import START, epoch_of, make_offset
from engine.settings import StreamOverrides
from engine.streams.producers import ProducerState
from engine.streams.stream import Pending, Stream
from engine.types import Offset, ProducerStamp

if TYPE_CHECKING:
    from engine.errors import BottomlessError
    from engine.write.ingest import Records


class Outcome(Protocol):
    """Where a durable operation takes effect; the Log is one."""

    def created(self, stream: Stream) -> None:
        """A stream exists."""

    def appended(self, stream: Stream, batch: Batch | None) -> None:
        """A stream has grown or was closed."""

    def deleted(self, stream: Stream) -> None:
        """A stream was deleted or has expired."""


Done = Callable[["BottomlessError | None"], None]
"""Told once how an operation ended: None when it is durable, or why it is not."""


class CreateOperation:
    """A new stream; records and closing follow as operations of their own in the same group."""

    __slots__ = ("_base", "_follower", "done", "payload_bytes", "stream")

    def __init__(self, stream: Stream, done: Done) -> None:
        self.stream = stream
        self.done = done
        self.payload_bytes = 0
        self._base = START
        self._follower: AppendOperation | None = None

    def tail_from(self, append: AppendOperation) -> None:
        """The stream is created with what this appends, too."""
        if append.records.count:
            self._follower = append

    @property
    def tail(self) -> Offset:
        """Where the stream ended when it was created; others may have appended since."""
        if self._follower is not None and self._follower.batch is not None:
            return self._follower.batch.last
        return self._base

    def encode(self, epoch: int) -> list[bytes | memoryview]:
        """The tail of an empty stream is the moment it was created; a fork's is where it branched
        off.
        """
        base = self.stream.fork_offset if self.stream.source else make_offset(epoch, 0)
        self._base = base
        self.stream.begin_at(base)
        return [*encode_create(self.stream.meta)]

    def apply(self, outcome: Outcome) -> None:
        """The stream exists from now on."""
        outcome.created(self.stream)


class AppendOperation:
    """Records for one stream, closing it, or both."""

    __slots__ = ("batch", "closes", "done", "meta", "payload_bytes", "records", "stream")

    def __init__(
        self,
        stream: Stream,
        records: Records,
        done: Done,
        *,
        closes: bool,
        producer: ProducerStamp | None = None,
        meta: AppendMeta | None = None,
    ) -> None:
        self.stream = stream
        self.records = records
        self.done = done
        self.closes = closes
        self.payload_bytes = len(records.data)
        self.batch: Batch | None = None
        self.meta = meta
        self._announce(producer)

    def _announce(self, producer: ProducerStamp | None) -> None:
        """Later appends are judged as if this one were durable already."""
        pending = self.stream.pending
        if pending is None:
            pending = self.stream.pending = Pending()
        pending.operations += 1
        if producer is not None:
            pending.producers[producer.id] = ProducerState(producer.epoch, producer.seq)
        if (meta := self.meta) is not None:
            if meta.stream_seq is not None:
                pending.stream_seq = meta.stream_seq
            if meta.fence is not None:
                pending.fence = meta.fence
            if meta.settings is not None:
                pending.settings = StreamOverrides.model_validate_json(meta.settings)
        if self.closes:
            pending.closed = True
            pending.closed_by = producer

    def encode(self, epoch: int) -> list[bytes | memoryview]:
        """Give out offsets: the counter goes on within an epoch and restarts with a new one."""
        stream, records = self.stream, self.records
        previous = stream.assigned
        if records.count:
            first = next_offset(previous, epoch)
            self.batch = Batch(first, records.count, records.data, records.lengths)
            stream.assigned = self.batch.last
        return encode_append(stream.id, previous, self.batch, closes=self.closes, meta=self.meta)

    def apply(self, outcome: Outcome) -> None:
        """The records can be read from now on."""
        stream = self.stream
        pending = stream.pending
        if pending is not None:
            pending.operations -= 1
            if pending.operations == 0:
                stream.pending = None
        if self.batch is not None:
            stream.buffer.append(self.batch)
            stream.tail = self.batch.last
        if self.meta is not None or self.closes:
            stream.apply_append(closes=self.closes, meta=self.meta)
        outcome.appended(stream, self.batch)


class DeleteOperation:
    """The end of a stream."""

    __slots__ = ("done", "payload_bytes", "stream")

    def __init__(self, stream: Stream, done: Done) -> None:
        self.stream = stream
        self.done = done
        self.payload_bytes = 0

    def encode(self, epoch: int) -> list[bytes | memoryview]:
        """A delete names the incarnation, so it can never hit its successor."""
        del epoch
        return [*encode_delete(self.stream.id)]

    def apply(self, outcome: Outcome) -> None:
        """The stream is gone, or hidden while forks need it."""
        outcome.deleted(self.stream)


Operation = CreateOperation | AppendOperation | DeleteOperation


def next_offset(previous: Offset, epoch: int) -> Offset:
    """The offset after ``previous`` in a group of this epoch."""
    if previous != START and epoch_of(previous) >= epoch:
        return Offset(previous + 1)
    return make_offset(epoch, 1)
