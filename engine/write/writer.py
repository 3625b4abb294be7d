"""The write side behind the Log: judges each request against what is durable and what is on its
way.

Judging and submitting happen in one turn of the event loop, so two requests for one stream or
producer can never be judged against the same state. No answer, a refusal neither, tells of what is
not durable yet.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from engine.errors import (
    BadProducer,
    BadSetting,
    BottomlessError,
    Conflict,
    Fenced,
    Gone,
    InvalidRequest,
    NotFound,
    Overloaded,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamNotFound,
    TooManyProducers,
    TooManyStreams,
)
from engine.format.frame import AppendMeta, StreamMeta
from engine.format.names import table_folder
from engine.format.offset import format_stored, make_offset
from engine.settings import merge_overrides
from engine.streams.producers import ProducerState, is_duplicate
from engine.streams.stream import Stream
from engine.types import (
    Ack,
    AppendRequest,
    AppendResult,
    CreateRequest,
    CreateResult,
    Offset,
    StreamName,
)
from engine.write.group import settle
from engine.write.ingest import NO_RECORDS, Records, parse_body
from engine.write.judge import (
    append_meta,
    check_closing_again,
    check_fence,
    check_media_type,
    check_not_empty,
    check_stream_seq,
    difference,
    wants_table,
)
from engine.write.operations import (
    AppendOperation,
    CreateOperation,
    DeleteOperation,
    Done,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from engine.clock import Clock
    from engine.settings import EngineSettings, StreamOverrides
    from engine.streams.registry import Registry
    from engine.write.acks import TableAcks
    from engine.write.group import GroupCommit

DEFAULT_CONTENT_TYPE = "application/octet-stream"
# What these say may rest on what is still on its way. Who was told so must find it so, also after a
# crash: they are raised when everything they may rest on is durable, and not if that fails.
_VERDICTS: Final = (Conflict, Fenced, Gone, NotFound, BadProducer)


class Writer:
    """Create, append, close, delete."""

    def __init__(
        self,
        settings: EngineSettings,
        clock: Clock,
        rng: random.Random,
        *,
        registry: Registry,
        group: GroupCommit,
        acks: TableAcks,
    ) -> None:
        self._acks = acks
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._registry = registry
        self._group = group
        self._committer = acks.committer

    # Create.

    async def create(
        self, name: StreamName, request: CreateRequest, *, source: Stream | None, prefix: Records
    ) -> CreateResult:
        """Create a stream, or confirm one that is the same.

        ``source`` and ``prefix`` are a fork's origin and the records that a sub-offset copies from
        it.
        """
        existing = self._live_soon(name)
        if existing is not None:
            return await self._confirm(existing, request)
        stream = self._new_stream(name, request, source)
        records = NO_RECORDS
        if request.body:
            records = parse_body(request.body, stream.kind, self._settings.limits)
        self._check_room(len(records.data) + len(prefix.data))
        self._registry.announce(name, stream)
        done = self._group.future()
        create = CreateOperation(stream, partial(settle, done))
        self._group.submit(create)
        if prefix.count:
            create.tail_from(self._submit_append(stream, prefix, closes=False))
        if records.count or request.closed:
            create.tail_from(self._submit_append(stream, records, closes=request.closed))
        if source is not None:
            _hold(source, done)
        # Shielded: a caller that goes away does not end the create, nor its hold on the source.
        await asyncio.shield(done)
        return CreateResult(True, stream.meta.content_type, create.tail, request.closed)

    def _submit_append(self, stream: Stream, records: Records, *, closes: bool) -> AppendOperation:
        # Whoever waits waits for the create, which is in the same group.
        operation = AppendOperation(stream, records, lambda _: None, closes=closes)
        self._group.submit(operation)
        return operation

    def _new_stream(
        self, name: StreamName, request: CreateRequest, source: Stream | None
    ) -> Stream:
        if len(self._registry) >= self._settings.limits.streams:
            raise TooManyStreams("the server holds as many streams as it may")
        if table_folder(name) in self._registry.foreign_folders:
            raise StreamExists(
                "the folder this stream would use holds something else",
                hint="Choose another name, or move the folder out of the data root and restart.",
            )
        meta = self._meta(name, request, source)
        return Stream(meta, source=source, accessed_ms=self._clock.monotonic_ms())

    def _meta(self, name: StreamName, request: CreateRequest, source: Stream | None) -> StreamMeta:
        content_type = request.content_type or DEFAULT_CONTENT_TYPE
        ttl_seconds, expires_at = request.ttl_seconds, request.expires_at
        expires_at_ms = request.expires_at_ms
        fork = request.fork
        fork_offset: Offset | None = None
        if source is not None and fork is not None:
            content_type = source.meta.content_type
            fork_offset = source.tail if fork.offset is None else fork.offset
            if ttl_seconds is None and expires_at is None:
                ttl_seconds, expires_at = source.meta.ttl_seconds, source.meta.expires_at
                expires_at_ms = source.meta.expires_at_ms
        return StreamMeta(
            id=self._rng.getrandbits(63),
            name=name,
            content_type=content_type,
            created_at_ms=self._clock.now_ms(),
            ttl_seconds=ttl_seconds,
            expires_at=expires_at,
            expires_at_ms=expires_at_ms,
            fork_source_id=None if source is None else source.id,
            fork_source_name=None if source is None else source.name,
            fork_offset=None if fork_offset is None else format_stored(fork_offset),
            fork_sub_offset=0 if fork is None else fork.sub_offset,
        )

    async def _confirm(self, stream: Stream, request: CreateRequest) -> CreateResult:
        """A repeated create: fine if it asks for what is there, a conflict otherwise."""
        is_leaving = stream.is_leaving
        other = difference(stream, request, default_content_type=DEFAULT_CONTENT_TYPE)
        await self._group.barrier()
        if is_leaving:
            raise StreamExists("a deleted stream of this name is kept for its forks")
        if other is None and request.closed != stream.closed:
            other = "closed state"
        if other is not None:
            raise StreamExists(
                f"the stream exists with another {other}",
                hint="Use another name, or delete the stream first.",
            )
        return CreateResult(False, stream.meta.content_type, stream.tail, stream.closed)

    # Append and close.

    async def append(self, name: StreamName, request: AppendRequest) -> AppendResult:
        """Append and/or close; returns when that is durable."""
        stream = await self.require(name)
        done = self._group.future()
        try:
            operation = self._judge(stream, request, partial(settle, done))
        except _VERDICTS as refusal:
            await self._group.barrier()
            if isinstance(refusal, StreamClosed):
                # Its last records may have had no offsets when it was judged.
                refusal.tail = stream.tail
            raise
        if operation is None:
            result = await self._duplicate(stream, request)
        else:
            self._group.submit(operation)
            await done
            result = _result(operation)
        if not wants_table(stream, request):
            return result
        await self._acks.wait(stream)
        return msgspec.structs.replace(result, ack=Ack.TABLE)

    def append_soon(
        self,
        name: StreamName,
        request: AppendRequest,
        done: Callable[[AppendResult | BottomlessError], None],
    ) -> bool:
        """The same for callers that cannot wait: ``done`` is told the outcome, once.

        False, with nothing submitted and ``done`` never told, for a duplicate and for an append
        that is only answered when the table has it.
        """
        stream = self.require_soon(name)
        if wants_table(stream, request):
            return False

        def tell(error: BottomlessError | None) -> None:
            assert operation is not None
            done(_result(operation) if error is None else error)

        operation = self._judge(stream, request, tell)
        if operation is None:
            return False
        self._group.submit(operation)
        return True

    def _judge(self, stream: Stream, request: AppendRequest, done: Done) -> AppendOperation | None:
        """The checks in the order the protocol wants; None for a duplicate."""
        check_not_empty(request)
        stamp = request.producer
        if stream.closed_soon:
            check_closing_again(stream, request)
            return None
        if request.body and request.content_type != stream.meta.content_type:
            check_media_type(stream, request.content_type or "")
        check_fence(stream, request.fence)
        if stamp is not None:
            known = stream.producer_soon(stamp.id)
            if is_duplicate(known, stamp):
                return None
            if known is None:
                self._check_producer_room(stream)
        check_stream_seq(stream, request.stream_seq)
        records = NO_RECORDS
        if request.body:
            records = parse_body(request.body, stream.kind, self._settings.limits)
            if not records.count:
                raise InvalidRequest("an empty JSON array appends nothing")
        self._check_room(len(records.data))
        return AppendOperation(
            stream,
            records,
            done,
            closes=request.close,
            producer=stamp,
            meta=append_meta(stream, request),
        )

    async def _duplicate(self, stream: Stream, request: AppendRequest) -> AppendResult:
        """The first copy may still be on its way: only what is durable may be confirmed."""
        await self._group.barrier()
        if stream.closed:
            # It may have been closed meanwhile, by another.
            check_closing_again(stream, request)
        state = ProducerState(0, 0)
        if request.producer is not None:
            state = stream.producers.get(request.producer.id, state)
        return AppendResult(
            tail=stream.tail,
            closed=stream.closed,
            duplicate=True,
            producer_epoch=state.epoch,
            producer_seq=state.seq,
        )

    # Settings.

    async def change_settings(self, name: StreamName, patch: dict[str, Any]) -> StreamOverrides:
        """Merge into the stream's own settings, durably; None takes one back."""
        stream = await self.require(name)
        settings = merge_overrides(stream.settings_soon, patch)
        self._check_trim_point(stream, settings.retain.before)
        if settings != stream.settings_soon:
            self._check_room(0)
            meta = AppendMeta(settings=settings.model_dump_json(exclude_defaults=True))
            done = self._group.future()
            told = partial(settle, done)
            self._group.submit(AppendOperation(stream, NO_RECORDS, told, closes=False, meta=meta))
            await done
        else:
            await self._group.barrier()
        return settings

    def _check_trim_point(self, stream: Stream, before: str | None) -> None:
        """Nobody means to give up what is not there yet, and a mistyped year would do just that."""
        if not before or before == stream.settings_soon.retain.before:
            return
        now = make_offset(self._clock.now_ms(), 0)
        if before > format_stored(max(now, Offset(stream.assigned + 1))):
            raise BadSetting(
                "retain.before is still to come",
                hint="Records that are yet to be appended cannot be given up.",
            )

    # Delete.

    async def delete(self, name: StreamName) -> None:
        """Delete a stream; readers are told at once."""
        try:
            stream = self._present_soon(name)
        except _VERDICTS:
            await self._group.barrier()
            raise
        self._group.check_open()
        await self._submit_delete(stream)

    def expire(self, stream: Stream) -> None:
        """Delete a stream whose time has run out."""
        if self._registry.soon(stream.name) is stream and not stream.is_leaving:
            self._submit_delete(stream).add_done_callback(lambda done: done.exception())

    def _submit_delete(self, stream: Stream) -> asyncio.Future[None]:
        done = self._group.future()
        stream.delete_pending = True
        if stream.forks + stream.forks_pending == 0:
            self._registry.announce(stream.name, None)
        self._group.submit(DeleteOperation(stream, partial(settle, done)))
        return done

    # What both need.

    async def require(self, name: StreamName) -> Stream:
        """The stream the next append will meet, without a turn of the event loop if there is one.

        That there is none is told when it is durable, like every verdict.
        """
        try:
            return self.require_soon(name)
        except _VERDICTS:
            await self._group.barrier()
            raise

    def require_soon(self, name: StreamName) -> Stream:
        """The stream the next append will meet."""
        stream = self._present_soon(name)
        if stream.fault is not None:
            raise stream.fault.with_traceback(None)
        return stream

    def _present_soon(self, name: StreamName) -> Stream:
        """The same, whatever state its table is in."""
        stream = self._live_soon(name)
        if stream is None:
            raise StreamNotFound("there is no such stream", hint="Create it with PUT.")
        if stream.is_leaving:
            raise StreamGone("the stream was deleted")
        return stream

    def _live_soon(self, name: StreamName) -> Stream | None:
        stream = self._registry.soon(name)
        if stream is None or stream.is_leaving or not self.is_expired(stream):
            return stream
        self.expire(stream)
        # Nothing, or the stream itself where forks keep it.
        return self._registry.soon(name)

    def is_expired(self, stream: Stream) -> bool:
        """Its time has run out."""
        if not stream.is_mortal:
            return False
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        return stream.is_expired(now_ms=now_ms, monotonic_ms=monotonic_ms)

    def _check_producer_room(self, stream: Stream) -> None:
        if stream.producer_count_soon() >= self._settings.limits.producers_per_stream:
            raise TooManyProducers(
                "the stream remembers as many producer ids as it may",
                hint="Reuse producer ids: one per writer, not one per append.",
                retry_after_ms=60_000,
            )

    def _check_room(self, payload_bytes: int) -> None:
        self._group.check_room(payload_bytes)
        if self._committer.tail_bytes + payload_bytes > self._settings.limits.tail_bytes:
            raise Overloaded(
                "too many records wait for their Delta commit",
                hint="Try again shortly; look at bottomless_commit_lag_seconds if this lasts.",
                retry_after_ms=500,
            )


def _hold(source: Stream, done: asyncio.Future[None]) -> None:
    """Until a fork is durable or has failed, its source counts it."""
    source.forks_pending += 1

    def release(_: asyncio.Future[None]) -> None:
        source.forks_pending -= 1

    done.add_done_callback(release)


def _result(operation: AppendOperation) -> AppendResult:
    """What a durable append did."""
    stream, batch, meta = operation.stream, operation.batch, operation.meta
    return AppendResult(
        tail=stream.tail if batch is None else batch.last,
        closed=stream.closed if batch is None else operation.closes,
        count=0 if batch is None else batch.count,
        producer_epoch=0 if meta is None else meta.producer_epoch,
        producer_seq=0 if meta is None else meta.producer_seq,
    )
