"""Log: the engine's front door. Composes write, read and streams; owns start-up and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final

import structlog

from engine import metrics
from engine.clock import Clock, SystemClock
from engine.errors import StorageUnavailable, StreamGone, StreamNotFound, TooManyReaders
from engine.forks import Forks
from engine.job_status import load_status, show_status
from engine.listing import Listing
from engine.read.chunk import RecordChunk
from engine.read.live import Follower
from engine.read.reader import Reader
from engine.settings import EngineSettings, inherited
from engine.storage import LocalStorage, Storage
from engine.write.acks import TableAcks
from engine.write.committer import Committer
from engine.write.group import GroupCommit
from engine.write.ingest import NO_RECORDS
from engine.write.recovery import Recovered, Recovery
from engine.write.trimmer import Trimmer
from engine.write.wal import Wal
from engine.write.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from engine.errors import BottomlessError
    from engine.format.batch import Batch
    from engine.settings import StreamOverrides
    from engine.streams.stream import Stream
    from engine.types import (
        AppendRequest,
        AppendResult,
        CreateRequest,
        CreateResult,
        Offset,
        ReadResult,
        RecordsResult,
        StreamInfo,
        StreamName,
        StreamSummary,
    )

_HOUSEKEEPING_MS: Final = 1000
_log: Final = structlog.get_logger("engine.log")


class Log:
    """All streams below one root. One process owns a root at a time."""

    def __init__(
        self,
        settings: EngineSettings,
        storage: Storage,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.settings = settings
        self._storage = storage
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._is_ready = False
        self.is_stopping = False
        """Live readers are told to come back later."""
        self._followers = 0
        self._expected: dict[StreamName, set[asyncio.Future[bool]]] = {}
        """Who waits for streams that do not exist yet."""

    @classmethod
    def at(cls, root: Path, settings: EngineSettings | None = None) -> Log:
        """A log in a local folder."""
        return cls(settings or EngineSettings(), LocalStorage(root))

    # Life cycle.

    async def start(self) -> None:
        """Recover, then take requests. Must run on the event loop that will use the log."""
        loop = asyncio.get_running_loop()
        begun_s = self._clock.monotonic_s()
        self._storage.lock()
        try:
            await self._start(loop)
        except BaseException:
            self._storage.unlock()
            raise
        elapsed_s = self._clock.monotonic_s() - begun_s
        metrics.recovery_seconds.set(elapsed_s)
        _log.info("recovered", streams=len(self._registry), seconds=round(elapsed_s, 3))
        self._is_ready = True

    async def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        recovery = Recovery(self._storage, self._clock, self.settings, rng=self._rng)
        found = await loop.run_in_executor(None, recovery.run)
        self._compose(found)
        # What the tables were found to hold becomes durable now: the next start need not
        # look again. And nothing is promised before this life's snapshot is there: a log without
        # one would be read beside tables that nobody has verified.
        await self._trimmer.save()
        if self._trimmer.is_poisoned:
            raise StorageUnavailable(
                "the disk failed to sync the tables at the start",
                hint="Repair the disk, then start again. Nothing was changed.",
            )
        self._wal.start()
        self._committer.start()
        for stream in self._registry:
            if stream.needs_commit:
                buffer = stream.buffer
                self._committer.changed(
                    stream, payload_bytes=buffer.payload_bytes, records=buffer.records
                )
        self._rest = asyncio.Event()
        self._housekeeper = loop.create_task(self._keep_house(), name="housekeeper")

    def _compose(self, found: Recovered) -> None:
        settings, clock = self.settings, self._clock
        self._registry = found.registry
        for stream in self._registry:
            stream.inherit(inherited(settings.streams, stream.name))
        self._segments = found.segments
        owner = max(clock.now_ms(), found.owner + 1)
        self._wal = Wal(self._storage, clock, settings.wal, rng=self._rng)
        self._committer = Committer(
            self._storage,
            clock,
            settings,
            segments=self._segments,
            rng=self._rng,
            owner=owner,
        )
        self._group = GroupCommit(
            self._wal,
            clock,
            settings.wal,
            registry=self._registry,
            segments=self._segments,
            outcome=self,
        )
        self._group.lsn, self._group.epoch = found.lsn, found.epoch
        self._trimmer = Trimmer(
            self._storage,
            clock,
            registry=self._registry,
            segments=self._segments,
            group=self._group,
            committer=self._committer,
        )
        self._reader = Reader(self._storage, clock, settings.read)
        self._writer = Writer(
            settings,
            clock,
            self._rng,
            registry=self._registry,
            group=self._group,
            acks=TableAcks(self._storage, self._committer, self._trimmer),
        )

        self._forks = Forks(self._reader, self._writer, self._committer)
        self._listing = Listing(self._registry, self._reader, clock)

    def release_followers(self) -> None:
        """End every wait, now and from now on: the server is about to stop."""
        self._is_ready = False
        self.is_stopping = True
        for stream in self._registry:
            stream.wake()
        for waiters in list(self._expected.values()):
            self._tell_expecting(waiters, is_there=False)

    async def stop(self) -> None:
        """Take no more, make everything durable in the tables, and leave no WAL behind."""
        self.release_followers()
        # Not cancelled: a trim must not go on beside the last one.
        self._rest.set()
        await self._housekeeper
        await self._group.drain()
        unsaved = await self._committer.drain(
            [stream for stream in self._registry if self._is_unsaved(stream)]
        )
        self._wal.stop()
        self._reader.stop()
        await self._trimmer.trim(everything=not unsaved)
        if unsaved:
            _log.error("not everything could be committed; the WAL keeps it", streams=len(unsaved))
        self._storage.unlock()

    def _is_unsaved(self, stream: Stream) -> bool:
        """The tables alone must tell all: streams without records and late accesses count here."""
        is_fresh = stream.version < 0
        return stream.needs_commit or is_fresh or stream.meta.ttl_seconds is not None

    @property
    def is_ready(self) -> bool:
        """Recovered, running, and able to acknowledge."""
        return self._is_ready and not self._wal.is_poisoned and not self._trimmer.is_poisoned

    # Requests.

    async def create(self, name: StreamName, request: CreateRequest) -> CreateResult:
        """Create a stream, or confirm an equal one; durable on return."""
        source: Stream | None = None
        prefix = NO_RECORDS
        if request.fork is not None and self._is_absent(name):
            source, prefix, request = await self._forks.prepare(request, request.fork)
        return await self._writer.create(name, request, source=source, prefix=prefix)

    async def append(self, name: StreamName, request: AppendRequest) -> AppendResult:
        """Append and/or close; durable on return."""
        return await self._writer.append(name, request)

    def append_soon(
        self,
        name: StreamName,
        request: AppendRequest,
        done: Callable[[AppendResult | BottomlessError], None],
    ) -> bool:
        """Append without waiting: ``done`` is told the outcome; False (and silence) if repeated."""
        return self._writer.append_soon(name, request, done)

    def stream_settings(self, name: StreamName) -> tuple[StreamOverrides, StreamOverrides]:
        """What the stream has of its own, and that on top of what it inherits."""
        stream = self._require(name)
        return stream.settings, stream.in_force

    async def change_settings(self, name: StreamName, patch: dict[str, Any]) -> StreamOverrides:
        """Change some of the stream's own settings; durable and in force on return."""
        return await self._writer.change_settings(name, patch)

    async def list_streams(
        self,
        *,
        prefix: str = "",
        contains: str = "",
        after: str = "",
        count_max: int = 100,
        newest_first: bool = False,
    ) -> list[StreamSummary]:
        """Streams in the order of their names, or of their last appends, each with its size."""
        return await self._listing.page(
            prefix, after, count_max, contains=contains, newest_first=newest_first
        )

    async def delete(self, name: StreamName) -> None:
        """Delete a stream; durable on return."""
        await self._writer.delete(name)

    def head(self, name: StreamName) -> StreamInfo:
        """What is known about a stream; does not count as an access."""
        return self._require(name).info()

    async def read(self, name: StreamName, position: Offset) -> ReadResult:
        """One chunk of records after ``position``."""
        stream = self._require(name)
        self.touch(stream)
        return await self.read_stream(stream, position)

    async def read_records(
        self, name: StreamName, position: Offset, *, count_max: int, bytes_max: int
    ) -> RecordsResult:
        """Single records after ``position``, each with its offset."""
        stream = self._require(name)
        self.touch(stream)
        return await self.read_stream_records(
            stream, RecordChunk(position, position, count_max, bytes_max)
        )

    async def wait_for_stream(self, name: StreamName, timeout_ms: int) -> bool:
        """Wait until a stream of that name exists; False when the time is up, or at a stop."""
        if self._registry.visible(name) is not None:
            return True
        if self.is_stopping:
            return False
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiters = self._expected.setdefault(name, set())
        waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await waiter
        except TimeoutError:
            return False
        finally:
            waiters.discard(waiter)
            if not waiters and self._expected.get(name) is waiters:
                del self._expected[name]

    @contextlib.contextmanager
    def follow(self, name: StreamName, transport: str) -> Iterator[Follower]:
        """A live reader; counted and bounded."""
        stream = self._require(name)
        if self._followers >= self.settings.limits.live_readers:
            raise TooManyReaders("too many live readers", retry_after_ms=2000)
        self._followers += 1
        stream.followers += 1
        gauge = metrics.followers.labels(transport=transport)
        gauge.inc()
        try:
            yield Follower(self, stream)
        finally:
            self._followers -= 1
            stream.followers -= 1
            gauge.dec()

    # Outcome: where durable operations take effect.

    def created(self, stream: Stream) -> None:
        """A stream exists."""
        stream.accessed_ms = self._clock.monotonic_ms()
        stream.inherit(inherited(self.settings.streams, stream.name))
        self._registry.add(stream)
        self._registry.settle(stream.name, stream)
        if stream.source is not None:
            self._tell_held(stream.source)
        self._tell_expecting(self._expected.pop(stream.name, set()), is_there=True)

    def appended(self, stream: Stream, batch: Batch | None) -> None:
        """A stream has grown or was closed."""
        stream.accessed_ms = self._clock.monotonic_ms()
        if stream.gone:
            stream.buffer.drop_through(stream.tail)
            return
        payload_bytes, records = (0, 0) if batch is None else (len(batch.data), batch.count)
        self._committer.changed(stream, payload_bytes=payload_bytes, records=records)
        if batch is None:
            self._committer.reschedule(stream)
        if stream.audience:
            stream.wake()

    def deleted(self, stream: Stream) -> None:
        """A stream was deleted or has expired."""
        self._registry.settle(stream.name, None)
        if stream.gone:
            return
        gone = self._registry.remove(stream)
        for victim in gone:
            self._committer.discard(victim)
            victim.wake()
            if victim.source is not None and not victim.source.gone:
                self._tell_held(victim.source)
        if not gone:
            self._committer.changed(stream, payload_bytes=0, records=0)
            stream.wake()

    # Inside.

    def _tell_held(self, source: Stream) -> None:
        """The source's table says what forks need of it: retention looks there."""
        source.state_changed = True
        self._committer.changed(source, payload_bytes=0, records=0)

    @staticmethod
    def _tell_expecting(waiters: set[asyncio.Future[bool]], *, is_there: bool) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(is_there)

    def _is_absent(self, name: StreamName) -> bool:
        stream = self._registry.soon(name)
        return stream is None or (not stream.is_leaving and self._writer.is_expired(stream))

    def _require(self, name: StreamName) -> Stream:
        stream = self._registry.visible(name)
        if stream is None:
            raise StreamNotFound("there is no such stream", hint="Create it with PUT.")
        if stream.soft_deleted:
            raise StreamGone("the stream was deleted")
        if self._writer.is_expired(stream):
            self._writer.expire(stream)
            if stream.forks + stream.forks_pending:
                raise StreamGone("the stream has expired")
            raise StreamNotFound("there is no such stream", hint="It has expired.")
        if stream.fault is not None:
            raise stream.fault.with_traceback(None)
        return stream

    def touch(self, stream: Stream) -> None:
        """An access: a sliding TTL begins anew."""
        if stream.meta.ttl_seconds is not None:
            stream.accessed_ms = self._clock.monotonic_ms()
            self._trimmer.access_count += 1

    async def read_stream(self, stream: Stream, position: Offset) -> ReadResult:
        """One chunk of this incarnation."""
        return await self._reader.read(stream, position, bytes_max=self.settings.read.chunk_bytes)

    def read_stream_now(self, stream: Stream, position: Offset) -> ReadResult | None:
        """What `read_stream` says, if that needs no file; None if it may need one."""
        return self._reader.read_now(stream, position, bytes_max=self.settings.read.chunk_bytes)

    async def read_stream_records(self, stream: Stream, chunk: RecordChunk) -> RecordsResult:
        """Single records of this incarnation."""
        return await self._reader.read_records(stream, chunk)

    # Housekeeping.

    async def _keep_house(self) -> None:
        """Once a second: trim what can be trimmed, end what has expired, refresh the gauges."""
        while not await self._is_resting():
            for stream in list(self._registry.mortal):
                if not stream.soft_deleted and self._writer.is_expired(stream):
                    self._writer.expire(stream)
            try:
                await self._trimmer.trim()
            except Exception as error:  # noqa: BLE001  (supervised: the next round tries again)
                metrics.storage_failures.labels(op="trim").inc()
                _log.error("trim failed; the WAL is kept", error=str(error))
            self._refresh_gauges()
            loop = asyncio.get_running_loop()
            show_status(await loop.run_in_executor(None, load_status, self._storage))

    async def _is_resting(self) -> bool:
        try:
            await asyncio.wait_for(self._rest.wait(), _HOUSEKEEPING_MS / 1000)
        except TimeoutError:
            return False
        return True

    def _refresh_gauges(self) -> None:
        metrics.streams.set(len(self._registry))
        metrics.wal_bytes.set(self._segments.total_bytes)
        metrics.commit_lag_records.set(self._committer.tail_records)
        metrics.commit_lag_bytes.set(self._committer.tail_bytes)
        metrics.commit_lag_seconds.set(self._committer.lag_seconds())
