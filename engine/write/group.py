"""Group commit: all operations that arrive while one group is being written become the next group.

One group is in flight at a time. So offsets are given out against durable state only, and a failed
group takes everything down that was judged against it: nothing speculative survives.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from engine import metrics
from engine.errors import BottomlessError, Overloaded, StorageUnavailable
from engine.write.operations import (
    AppendOperation,
    CreateOperation,
    DeleteOperation,
    Operation,
    Outcome,
)
from engine.write.wal import Group, Wal, Written

if TYPE_CHECKING:
    from engine.clock import Clock
    from engine.settings import WalSettings
    from engine.streams.registry import Registry
    from engine.write.segments import Segments

_CLOSED: Final = "the server is stopping"
_log: Final = structlog.get_logger("engine.group")


class GroupCommit:
    """Collects operations, seals them into groups, applies them when they are durable."""

    def __init__(
        self,
        wal: Wal,
        clock: Clock,
        settings: WalSettings,
        *,
        registry: Registry,
        segments: Segments,
        outcome: Outcome,
    ) -> None:
        self._wal = wal
        self._clock = clock
        self._settings = settings
        self._registry = registry
        self._segments = segments
        self._outcome = outcome
        self._loop = asyncio.get_running_loop()
        self._open: list[Operation] = []
        self._open_bytes = 0
        self._opened_s = 0.0
        self._in_flight_since_s = 0.0
        self._in_flight: list[Operation] | None = None
        self._seal_scheduled = False
        self._barriers_open: list[asyncio.Future[None]] = []
        self._barriers_in_flight: list[asyncio.Future[None]] = []
        self._idle: asyncio.Future[None] | None = None
        self._stopped = False
        self.lsn = 0
        """The LSN of the last durable group."""
        self.epoch = 0
        """No group may get a lower epoch than this."""
        self.is_broken = False
        """An error of our own has kept a group from memory: only the WAL knows it, and keeps it."""

    def check_room(self, payload_bytes: int) -> None:
        """Refuse before anything is changed."""
        self.check_open()
        if self._open_bytes + payload_bytes > self._settings.group_bytes_max and self._open:
            raise Overloaded(
                "too many bytes wait for the disk", hint="Try again shortly.", retry_after_ms=200
            )
        if self._segments.total_bytes > self._settings.bytes_max:
            raise Overloaded(
                "the write-ahead log is full",
                hint="Commits do not keep up or fail; the server's log says why.",
            )

    def check_open(self) -> None:
        """Refuse what comes after the stop has begun."""
        if self._stopped:
            raise StorageUnavailable(_CLOSED)

    def future(self) -> asyncio.Future[None]:
        """A future for the next operation."""
        return self._loop.create_future()

    def submit(self, operation: Operation) -> None:
        """Add to the open group; it is told when the group is durable, or has failed."""
        if not self._open:
            self._opened_s = self._clock.monotonic_s()
        self._open.append(operation)
        self._open_bytes += operation.payload_bytes
        if self._in_flight is None and not self._seal_scheduled:
            # One turn of the loop later: everything parsed in this turn shares the write.
            self._seal_scheduled = True
            self._loop.call_soon(self._seal)

    async def barrier(self) -> None:
        """Wait until everything submitted so far is durable or has failed."""
        if not self._open and self._in_flight is None:
            return
        # A future of its own: that of an operation may be cancelled by whoever waits for it.
        done = self.future()
        (self._barriers_open if self._open else self._barriers_in_flight).append(done)
        await done

    async def drain(self) -> None:
        """Take no more operations and wait for those under way."""
        self._stopped = True
        while self._in_flight is not None or self._open:
            if self._idle is None:
                self._idle = self._loop.create_future()
            await self._idle

    def _seal(self) -> None:
        self._seal_scheduled = False
        if not self._open:
            return
        assert self._in_flight is None, "one group at a time"
        operations = self._take_group()
        self._in_flight, self._in_flight_since_s = operations, self._opened_s
        if not self._open:
            # What waits for everything waits for the last group.
            self._barriers_in_flight, self._barriers_open = self._barriers_open, []
        self.epoch = max(self.epoch, self._clock.now_ms())
        parts: list[bytes | memoryview] = []
        try:
            for operation in operations:
                parts += operation.encode(self.epoch)
        except Exception as failure:  # noqa: BLE001  (supervised: appends must not hang)
            # Later: those of the group before are told first.
            self._loop.call_soon(self._end, operations, self._wal.poison(failure))
            return
        group = Group(self.lsn + 1, self.epoch, len(operations), parts)
        self._wal.submit(group, self._written_on_wal_thread)

    def _take_group(self) -> list[Operation]:
        """Everything that is open, but a create never shares a group with a delete before it: the
        new stream must begin above every offset of the old one, and a group has one epoch.
        """
        operations, self._open = self._open, []
        has_delete = False
        for index, operation in enumerate(operations):
            if type(operation) is CreateOperation and has_delete:
                operations, self._open = operations[:index], operations[index:]
                break
            has_delete = has_delete or type(operation) is DeleteOperation
        self._open_bytes = sum(operation.payload_bytes for operation in self._open)
        return operations

    def _written_on_wal_thread(self, written: Written) -> None:
        self._loop.call_soon_threadsafe(self._written, written)

    def _written(self, written: Written) -> None:
        operations, error = self._in_flight, written.error
        assert operations is not None
        if error is None:
            try:
                self._apply(operations, written)
            except Exception as failure:  # noqa: BLE001  (supervised: appends must not hang)
                self.is_broken = True
                error = self._wal.poison(failure)
        self._end(operations, error)

    def _end(self, operations: list[Operation], error: BottomlessError | None) -> None:
        """The group in flight is over, one way or the other."""
        self._in_flight = None
        if error is not None:
            operations = self._fail(operations, error)
        # The disk works on while the answers go out.
        if self._open:
            self._seal()
        self._resolve(operations, error)
        if self._idle is not None and self._in_flight is None and not self._open:
            self._idle.set_result(None)
            self._idle = None

    def _apply(self, operations: list[Operation], written: Written) -> None:
        for operation in operations:
            operation.apply(self._outcome)
            if type(operation) is DeleteOperation:
                # A successor of the same name must start above every offset of this one.
                self.epoch += 1
        for barrier in self._barriers_in_flight:
            settle(barrier, None)
        self._barriers_in_flight = []
        self._segments.written(written.segment, written.bytes, operations)
        self.lsn += 1
        self._count(operations, written)

    def _resolve(self, operations: list[Operation], error: BottomlessError | None) -> None:
        """Tell whoever waits, when all state is as it will be: who is told may submit more."""
        for operation in operations:
            try:
                # Both know each other: without this only the garbage collector would part them.
                done = operation.done
                del operation.done
                done(error)
            except Exception as failure:  # noqa: BLE001  (supervised: the others wait, too)
                _log.error("whoever waited could not be told", exc_info=failure)

    def _count(self, operations: list[Operation], written: Written) -> None:
        records = payload_bytes = 0
        for operation in operations:
            if type(operation) is AppendOperation:
                records += operation.records.count
                payload_bytes += operation.payload_bytes
        metrics.append_records.inc(records)
        metrics.append_bytes.inc(payload_bytes)
        metrics.append_batch_records.observe(records)
        metrics.wal_fsync_seconds.observe(written.seconds)
        metrics.append_ack_seconds.observe(self._clock.monotonic_s() - self._in_flight_since_s)
        metrics.queue_bytes.set(self._open_bytes)

    def _fail(self, operations: list[Operation], error: BottomlessError) -> list[Operation]:
        """Everything that was judged as if these were durable fails with them; returns that."""
        metrics.storage_failures.labels(op="wal").inc()
        operations, self._open, self._open_bytes = operations + self._open, [], 0
        for operation in operations:
            stream = operation.stream
            stream.pending = None
            stream.delete_pending = False
            stream.assigned = stream.tail
        for barrier in self._barriers_in_flight + self._barriers_open:
            settle(barrier, error)
        self._barriers_open, self._barriers_in_flight = [], []
        self._registry.forget_announcements()
        return operations


def settle(future: asyncio.Future[None], error: BottomlessError | None) -> None:
    """End a future that may have been cancelled, or that nobody may ever look at."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        # One error serves many: without this its traceback would grow with every one of them.
        future.set_exception(error.with_traceback(None))
        future.exception()
