"""The committer: turns tails into Delta versions, by size or age, a few streams at a time, oldest
first.

Everything a commit holds is taken in one moment on the event loop: all records of the tail and the
state they led to. So a table never knows a producer's append without its records, nor the reverse.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from engine import metrics
from engine.errors import (
    BottomlessError,
    DataCorrupt,
    Fenced,
    StorageUnavailable,
    StreamNotFound,
    TableDamaged,
)
from engine.format.offset import epoch_of
from engine.table.checkpoint import write_checkpoint
from engine.table.commit import Applied, CommitRequest, commit
from engine.table.replay import load_state
from engine.table.schema import LOG_FOLDER
from engine.table.state import NO_VERSION, TableState
from engine.write.agenda import Agenda
from engine.write.state import commit_request, meta_of
from engine.write.trash import Trash

if TYPE_CHECKING:
    import random
    from collections.abc import Coroutine

    from engine.clock import Clock
    from engine.settings import EngineSettings
    from engine.storage import Storage
    from engine.streams.stream import Stream
    from engine.write.segments import Segments

_RETRY_MS: Final = 1000
_log: Final = structlog.get_logger("engine.committer")


class Committer:
    """Owns every Delta commit of this process."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        settings: EngineSettings,
        *,
        segments: Segments,
        rng: random.Random,
        owner: int,
    ) -> None:
        self._segments = segments
        self._storage = storage
        self._clock = clock
        self._settings = settings
        self._rng = rng
        self.owner = owner
        self._pool = ThreadPoolExecutor(settings.commit.threads, "commit")
        self._agenda = Agenda()
        """Streams with something to commit."""
        self._active: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._delayed: set[Stream] = set()
        """Those of them whose last commit failed."""
        self.trash = Trash(storage, on_freed=self._wake.set)
        self._task: asyncio.Task[None] | None = None
        self._draining = False
        self._is_over = False
        self._unsaved: dict[Stream, None] = {}
        self._awaited: dict[Stream, list[asyncio.Future[None]]] = {}
        """Who waits for the next commit of a stream to begin and end."""
        self.commit_count = 0
        """Commits of this process so far."""
        self.tail_bytes = 0
        """Payload bytes in all tails."""
        self.tail_records = 0

    def start(self) -> None:
        """Begin to commit."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="committer")

    def changed(self, stream: Stream, *, payload_bytes: int, records: int) -> None:
        """The stream holds something its table does not."""
        self.tail_bytes += payload_bytes
        self.tail_records += records
        if stream in self._delayed:
            return
        if stream.dirty_since_ms is None and not stream.is_committing:
            stream.dirty_since_ms = self._clock.monotonic_ms()
            if stream not in self._agenda:
                # Somebody may wait for its commit already.
                self._put(stream, stream.dirty_since_ms + self._interval_ms(stream))
        bytes_max = stream.in_force.commit.bytes or self._settings.commit.bytes
        if stream.buffer.payload_bytes >= bytes_max:
            self._hurry(stream)
        elif self._is_pressed:
            self._wake.set()

    def _interval_ms(self, stream: Stream) -> int:
        own = stream.in_force.commit.interval_ms
        return self._settings.commit.interval_ms if own is None else own

    def _put(self, stream: Stream, due_ms: int) -> None:
        if self._agenda.put(stream, due_ms):
            self._wake.set()

    def reschedule(self, stream: Stream) -> None:
        """Its settings may have changed: what waits for its interval waits for the new one."""
        due_ms, now_ms = self._agenda.due_ms(stream), self._clock.monotonic_ms()
        since_ms = stream.dirty_since_ms
        if due_ms is None or since_ms is None or due_ms <= now_ms or stream in self._delayed:
            return
        changed_ms = since_ms + self._interval_ms(stream)
        if changed_ms != due_ms:
            self._put(stream, changed_ms)

    def commit_now(self, stream: Stream) -> asyncio.Future[None]:
        """Ends with the first commit of the stream that begins from now on, or fails as it does."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if stream.gone:
            ended.set_exception(_deleted_meanwhile())
            return ended
        if stream.fault is not None or self._is_over:
            stopped = StorageUnavailable("the server has stopped")
            ended.set_exception((stream.fault or stopped).with_traceback(None))
            return ended
        self._awaited.setdefault(stream, []).append(ended)
        self._hurry(stream)
        return ended

    def is_unsure(self, stream: Stream) -> bool:
        """Its last commit has failed, or seems so: the table may hold more than is known."""
        return stream in self._delayed

    def _hurry(self, stream: Stream) -> None:
        """Where a commit is under way or waits to be tried again, its end sees to the next."""
        if stream.is_committing or stream in self._delayed:
            return
        due_ms, now_ms = self._agenda.due_ms(stream), self._clock.monotonic_ms()
        if due_ms is None or due_ms > now_ms:
            # Behind everybody who is overdue already.
            self._put(stream, now_ms)

    def _tell(self, waiting: list[asyncio.Future[None]], error: Exception | None = None) -> None:
        for ended in waiting:
            if ended.done():
                continue
            if error is None:
                ended.set_result(None)
            elif isinstance(error, BottomlessError):
                ended.set_exception(error.with_traceback(None))
            else:
                ended.set_exception(StorageUnavailable(f"the commit failed: {error}"))

    @property
    def _is_pressed(self) -> bool:
        """All tails together, or the log, come near their bound: nobody waits for an interval.

        The log too, for one stream with a long interval of its own keeps every later segment.
        """
        return (
            2 * self.tail_bytes > self._settings.limits.tail_bytes
            or 2 * self._segments.total_bytes > self._settings.wal.bytes_max
        )

    def discard(self, stream: Stream) -> None:
        """The stream is gone: forget its tail, remove its table."""
        self.tail_bytes -= stream.buffer.payload_bytes
        self.tail_records -= stream.buffer.records
        stream.buffer.drop_through(stream.tail)
        self._forget(stream)
        self._tell(self._awaited.pop(stream, []), _deleted_meanwhile())
        # Also where no commit is known: one that seemed to fail may have left a table.
        self.trash.add(stream)

    def lag_seconds(self) -> float:
        """Age of the oldest thing not yet committed."""
        now_ms = self._clock.monotonic_ms()
        since = [one.dirty_since_ms for one in self._agenda if one.dirty_since_ms is not None]
        ages_ms = [0, now_ms - min(since, default=now_ms)]
        for stream in self._delayed:
            # Attempts come and go; how long it waits is told by its oldest record.
            batches = stream.buffer.batches()[:1]
            ages_ms += [self._clock.now_ms() - epoch_of(batch.first) for batch in batches]
        return max(ages_ms) / 1000

    async def drain(self, streams: list[Stream]) -> list[Stream]:
        """Commit everything now; returns the streams whose commit failed."""
        self._draining = True
        self._delayed.clear()
        self.trash.begin_drain()
        for stream in streams:
            if stream.fault is None and not stream.is_committing:
                self._agenda.put(stream, self._clock.monotonic_ms())
        self._wake.set()
        if self._task is not None:
            await self._task
        await self.trash.drain()
        self._pool.shutdown()
        self._is_over = True
        for stream in list(self._awaited):
            stopping = StorageUnavailable("the server stops before the table was committed")
            self._tell(self._awaited.pop(stream), stopping)
        faulty = [stream for stream in streams if stream.fault is not None]
        return [stream for stream in {*self._unsaved, *faulty} if not stream.gone]

    async def _run(self) -> None:
        while True:
            delay_ms = self._start_due()
            if self._draining and not self._active and not len(self._agenda):
                return
            self._wake.clear()
            try:
                timeout = None if delay_ms is None else delay_ms / 1000
                await asyncio.wait_for(self._wake.wait(), timeout)
            except TimeoutError:
                pass

    def _start_due(self) -> int | None:
        """Start what is due as far as threads are free; returns ms until the next one is due."""
        now_ms = self._clock.monotonic_ms()
        is_urgent = self._draining or self._is_pressed
        blocked: list[tuple[Stream, int]] = []
        rest_ms: int | None = None
        while len(self._active) < self._settings.commit.threads:
            first = self._agenda.first()
            if first is None:
                break
            due_ms, stream = first
            if due_ms > now_ms and (not is_urgent or stream in self._delayed):
                rest_ms = due_ms - now_ms if rest_ms is None else rest_ms
                if not is_urgent:
                    break
                blocked.append((stream, due_ms))
                self._agenda.remove(stream)
                continue
            self._agenda.remove(stream)
            if stream.is_committing or not self._is_free(stream):
                # The end of what blocks it wakes us.
                blocked.append((stream, due_ms))
            else:
                self._start(stream)
        for stream, due_ms in blocked:
            self._agenda.put(stream, due_ms)
        return rest_ms

    def _is_free(self, stream: Stream) -> bool:
        """The predecessor of the same name must be out of the folder first."""
        if not self.trash.holds(stream.folder) or self.trash.has_given_up(stream.folder):
            return True
        if self.trash.is_stuck(stream.folder):
            stuck = StorageUnavailable("the table of the stream's predecessor cannot be removed")
            self._tell(self._awaited.pop(stream, []), stuck)
        return False

    def _start(self, stream: Stream) -> None:
        self._forget(stream)
        if self.trash.has_given_up(stream.folder):
            # The WAL keeps what wants to go there.
            self._unsaved[stream] = None
        elif stream.fault is None and not stream.gone:
            stream.dirty_since_ms = None
            stream.is_committing = True
            self._spawn(self._commit(stream))

    def _forget(self, stream: Stream) -> None:
        self._agenda.remove(stream)
        self._delayed.discard(stream)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._active.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._active.discard(task)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            _log.error("commit task failed", exc_info=task.exception())

    async def _commit(self, stream: Stream) -> None:
        begun_s = self._clock.monotonic_s()
        waiting = self._awaited.pop(stream, [])
        request = self._request(stream)
        producers, stream.producers_changed = stream.producers_changed, set()
        state_changed, stream.state_changed = stream.state_changed, False
        loop = asyncio.get_running_loop()
        try:
            state, applied = await loop.run_in_executor(
                self._pool, self._commit_blocking, stream, request
            )
        except Exception as error:  # noqa: BLE001  (supervised: it is retried)
            stream.producers_changed |= producers
            stream.state_changed |= state_changed
            if stream.gone:
                self._tell(waiting, _deleted_meanwhile())
            else:
                self._failed(stream, error, waiting)
        else:
            before = stream.version
            self._committed(stream, request, state, applied)
            self._tell(waiting)
            metrics.commit_seconds.observe(self._clock.monotonic_s() - begun_s)
            if not stream.gone:
                await self._checkpoint(stream, before)
        stream.is_committing = False
        if stream in self._awaited:
            self._hurry(stream)
        if stream.gone:
            self.trash.commit_ended(stream)
        elif stream.needs_commit and stream.table is not None:
            self.changed(stream, payload_bytes=0, records=0)

    def _request(self, stream: Stream) -> CommitRequest:
        now_ms = self._clock.now_ms()
        idle_ms = self._clock.monotonic_ms() - stream.accessed_ms
        return commit_request(
            stream,
            self._settings,
            owner=self.owner,
            now_ms=now_ms,
            accessed_ms=max(0, now_ms - idle_ms),
            token=f"{now_ms:013d}-{self._rng.getrandbits(64):016x}",
        )

    def _commit_blocking(
        self, stream: Stream, request: CommitRequest
    ) -> tuple[TableState, Applied]:
        state = stream.table
        if state is None:
            state = self._load(stream)
            # An earlier attempt may have succeeded although it seemed to fail (F3): what the
            # table holds already is not written again.
            held = state.committed
            missing = [batch for batch in request.batches if batch.last > held]
            request = replace(request, batches=missing)
        return state, commit(self._storage, stream.folder, state, request)

    def _load(self, stream: Stream) -> TableState:
        if not self._storage.exists(f"{stream.folder}/{LOG_FOLDER}"):
            if stream.version != NO_VERSION:
                raise TableDamaged(f"the table of {stream.name} is missing")
            return TableState()
        state = load_state(self._storage, stream.folder)
        if state.version < stream.version:
            raise TableDamaged(f"the table of {stream.name} lost versions it had")
        meta = meta_of(state, stream.folder)
        if state.version != NO_VERSION and (meta is None or meta.id != stream.id):
            raise TableDamaged(f"the folder of {stream.name} holds another table")
        return state

    def _committed(
        self, stream: Stream, request: CommitRequest, state: TableState, applied: Applied
    ) -> None:
        metrics.commits.inc()
        self.commit_count += 1
        if stream.table is not state:
            # Read anew after a failure: it may hold files that the index has never heard of.
            stream.index = None
        for version, entry in applied:
            state.apply(entry, version)
            if entry.removes:
                stream.index = None
            elif stream.index is not None:
                stream.index.append(entry.adds)
        stream.table = state
        stream.version = state.version
        stream.committed = request.tail
        if stream.gone:
            return
        before_bytes, before_records = stream.buffer.payload_bytes, stream.buffer.records
        stream.buffer.drop_through(request.tail)
        self.tail_bytes -= before_bytes - stream.buffer.payload_bytes
        self.tail_records -= before_records - stream.buffer.records

    def _failed(
        self, stream: Stream, error: Exception, waiting: list[asyncio.Future[None]]
    ) -> None:
        """Nothing is lost: the records stay in the WAL and in the tail."""
        metrics.commit_failures.inc()
        hint = error.hint if isinstance(error, BottomlessError) else None
        _log.error("commit failed", stream=stream.name, error=str(error), hint=hint, exc_info=error)
        # A table may be half way to the next version; what it says is read again.
        stream.table = None
        if isinstance(error, Fenced | DataCorrupt):
            stream.fault = error
            waiting += self._awaited.pop(stream, [])
        elif self._draining:
            self._unsaved[stream] = None
        else:
            stream.dirty_since_ms = self._clock.monotonic_ms()
            self._delayed.add(stream)
            self._put(stream, stream.dirty_since_ms + _RETRY_MS)
        self._tell(waiting, error)

    async def _checkpoint(self, stream: Stream, before: int) -> None:
        # A rewrite of a job may have taken the very version at which one is due.
        every = self._settings.commit.checkpoint_every
        if max(0, before) // every == stream.version // every:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._pool, write_checkpoint, self._storage, stream.folder)
        except Exception as error:  # noqa: BLE001  (it only saves time)
            _log.warning("checkpoint failed", stream=stream.name, error=str(error))
        else:
            metrics.checkpoints.inc()


def _deleted_meanwhile() -> StreamNotFound:
    return StreamNotFound("the stream was deleted meanwhile")
