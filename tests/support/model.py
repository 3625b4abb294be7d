"""The engine from outside: its lives (start, stop, kill, power cut), and what it must answer.

``Lives`` runs a real Log in a folder. ``Model`` is the protocol in memory, without disks, groups or
commits: the state machine compares the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from engine import errors
from engine.format.names import table_folder
from engine.log import Log
from engine.settings import CommitSettings, EngineSettings, ReadSettings, WalSettings
from engine.types import (
    AppendRequest,
    AppendResult,
    CreateRequest,
    CreateResult,
    ForkRequest,
    Offset,
    PayloadKind,
    ProducerStamp,
    StreamName,
    payload_kind,
)
from tests.support.clock import ManualClock
from tests.support.storage import FaultyStorage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Tests make many errors on purpose: a rich traceback of each would cost more than the tests.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ]
)

JSON = "application/json"
TEXT = "text/plain"
BYTES = "application/octet-stream"
INTERVAL_MS = 10
COUNTER_BASE = 10**16
SMALL = EngineSettings(
    wal=WalSettings(segment_bytes=4096),
    commit=CommitSettings(interval_ms=INTERVAL_MS),
    read=ReadSettings(chunk_bytes=1024, row_group_bytes=1024),
)


async def until(claim: Callable[[], bool], what: str = "the claim", timeout_s: float = 5.0) -> None:
    """Poll until it is true; never a sleep for luck."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, f"{what} did not come true in {timeout_s} s"
        await asyncio.sleep(0.002)


class Lives:
    """One engine after another on the same data. The clock stands still unless a test moves it,
    so nothing is committed before ``commit`` or ``stop``."""

    def __init__(self, folder: Path, settings: EngineSettings = SMALL) -> None:
        self.folder = folder
        self.settings = settings
        self.clock = ManualClock()
        self.count = 0
        self.root = folder / "life-0"
        self.storage = FaultyStorage(self.root)
        self.log = Log(settings, self.storage, clock=self.clock)

    async def start(self) -> Log:
        """Begin a life on what the last one left."""
        self.storage = FaultyStorage(self.root)
        rng = random.Random(self.count)
        self.log = Log(self.settings, self.storage, clock=self.clock, rng=rng)
        await self.log.start()
        return self.log

    async def stop(self) -> None:
        """A clean stop."""
        await asyncio.wait_for(self.log.stop(), 10)
        self.count += 1

    async def bury(self) -> None:
        """End threads and tasks; what they still want to write is refused."""
        self.storage.die()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.log.stop(), 10)

    async def die(self, power_cut: random.Random | None = None) -> None:
        """A kill -9, or a power cut with its luck. The next life goes on with a copy of the folder,
        so that nothing of this one can reach it."""
        self.storage.die()
        self.count += 1
        target = self.folder / f"life-{self.count}"
        if power_cut is None:
            self.storage.copy_to(target)
        else:
            self.storage.power_cut_to(target, power_cut)
        await self.bury()
        shutil.rmtree(self.root, ignore_errors=True)
        self.root = target

    async def crash(self, power_cut: random.Random | None = None) -> Log:
        """Die and start again."""
        await self.die(power_cut)
        return await self.start()

    async def restart(self, *, without_wal: bool = False) -> Log:
        """Stop cleanly and start again, on the tables alone if asked to."""
        await self.stop()
        if without_wal:
            shutil.rmtree(self.root / "_wal")
        return await self.start()

    # Requests, with defaults that suit tests.

    async def create(self, name: str, content_type: str | None = JSON, **more: Any) -> CreateResult:
        """Create or confirm a stream."""
        request = CreateRequest(content_type=content_type, **more)
        return await self.log.create(StreamName(name), request)

    async def fork(
        self, name: str, source: str, offset: int | None = None, sub: int = 0, **more: Any
    ) -> CreateResult:
        """Fork a stream."""
        where = None if offset is None else Offset(offset)
        fork = ForkRequest(StreamName(source), where, sub)
        return await self.create(name, None, fork=fork, **more)

    async def append(self, name: str, body: bytes, **more: Any) -> AppendResult:
        """Append with the stream's own content type."""
        if "content_type" not in more:
            more["content_type"] = self.log.head(StreamName(name)).content_type
        return await self.log.append(StreamName(name), AppendRequest(body=body, **more))

    async def close(self, name: str, **more: Any) -> AppendResult:
        """Close without records."""
        return await self.log.append(StreamName(name), AppendRequest(None, b"", close=True, **more))

    async def content(self, name: str, position: int = 0) -> bytes:
        """Everything after a position: a JSON array, or the bytes one after another."""
        pieces, _ = await self.chunks(name, position)
        is_json = payload_kind(self.log.head(StreamName(name)).content_type) is PayloadKind.JSON
        return b"[" + b",".join(pieces) + b"]" if is_json else b"".join(pieces)

    async def records(self, name: str, position: int = 0) -> list[bytes]:
        """The records of a JSON stream, each with its own bytes."""
        raw = msgspec.json.decode(await self.content(name, position), type=list[msgspec.Raw])
        return [bytes(record) for record in raw]

    async def chunks(self, name: str, position: int = 0) -> tuple[list[bytes], list[Offset]]:
        """The chunks a client gets, and the position after each."""
        bodies, ends = [], []
        at = Offset(position)
        while True:
            result = await self.log.read(StreamName(name), at)
            separator = b"," if result.kind is PayloadKind.JSON else b""
            if result.pieces:
                bodies.append(separator.join(bytes(piece) for piece in result.pieces))
                ends.append(result.end)
            assert result.up_to_date or result.end > at, "a read must make progress"
            at = result.end
            if result.up_to_date:
                return bodies, ends

    async def commit(self, name: str, *, version: int | None = None) -> None:
        """Let the interval pass, and wait until the table holds the whole stream (or a version)."""
        tail = self.log.head(StreamName(name)).tail

        def is_done() -> bool:
            # A record that came while a commit was under way waits for an interval of its own.
            self.clock.advance(INTERVAL_MS)
            if version is None:
                return committed(self.root, name) >= tail
            return (entries_folder(self.root, name) / f"{version:020d}.json").exists()

        await until(is_done, f"the commit of {name}")


def entries_folder(root: Path, name: str) -> Path:
    """The log of a stream's table."""
    return root / table_folder(StreamName(name)) / "_delta_log"


def entries(root: Path, name: str) -> list[list[dict[str, Any]]]:
    """The actions of each version of a stream's table."""
    paths = sorted(entries_folder(root, name).glob("*.json"))
    return [[json.loads(line) for line in path.read_bytes().splitlines()] for path in paths]


def committed(root: Path, name: str) -> int:
    """The last offset that a stream's table says it holds, -1 without a table."""
    numbers: dict[str, int] = {}
    for actions in entries(root, name):
        for action in actions:
            if "txn" in action:
                numbers[action["txn"]["appId"]] = action["txn"]["version"]
    if not numbers:
        return -1
    return numbers["bottomless:epoch"] * COUNTER_BASE + numbers["bottomless:counter"]


@dataclass(slots=True)
class ModelStream:
    """One incarnation. A fork holds a copy of what it inherited: it must look like that."""

    request: CreateRequest
    content_type: str
    base: int
    source: ModelStream | None = None
    appends: list[tuple[list[bytes], int]] = field(default_factory=list)
    closed: bool = False
    closed_by: ProducerStamp | None = None
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    stream_seq: str | None = None
    forks: int = 0
    soft_deleted: bool = False

    @property
    def kind(self) -> PayloadKind:
        """How its records are joined."""
        return payload_kind(self.content_type)

    @property
    def tail(self) -> int:
        """The position after the last record."""
        return self.appends[-1][1] if self.appends else self.base

    @property
    def boundaries(self) -> list[int]:
        """Every position between two appends."""
        return sorted({0, self.base, *[last for _, last in self.appends]})

    def content(self, position: int) -> bytes:
        """What a reader gets after a position."""
        found = [record for records, last in self.appends if last > position for record in records]
        return b"[" + b",".join(found) + b"]" if self.kind is PayloadKind.JSON else b"".join(found)

    def append_after(self, position: int) -> list[bytes]:
        """The records of the append that begins at a boundary."""
        return next((records for records, last in self.appends if last > position), [])


class Model:
    """All streams. ``judge_*`` say what the engine must answer and change nothing."""

    def __init__(self) -> None:
        self.streams: dict[str, ModelStream] = {}

    def missing(self, name: str) -> type[Exception] | None:
        """The error of a request for a stream that cannot be used."""
        stream = self.streams.get(name)
        if stream is None:
            return errors.StreamNotFound
        return errors.StreamGone if stream.soft_deleted else None

    def judge_create(self, name: str, request: CreateRequest) -> type[Exception] | bool:
        """True: created. False: confirmed."""
        stream = self.streams.get(name)
        if stream is None:
            return True if request.fork is None else self._judge_fork(request.fork)
        was = stream.request
        same_fork = request.fork == was.fork if request.fork else was.fork is None
        wanted = request.content_type or stream.content_type
        is_same = same_fork and wanted == stream.content_type and request.closed == stream.closed
        return errors.StreamExists if stream.soft_deleted or not is_same else False

    def _judge_fork(self, fork: ForkRequest) -> type[Exception] | bool:
        if error := self.missing(fork.source):
            return errors.StreamExists if error is errors.StreamGone else error
        source = self.streams[fork.source]
        assert fork.offset is not None
        if fork.offset > source.tail:
            return errors.BadFork
        return True if self.prefix(source, fork) is not None else errors.BadFork

    def prefix(self, source: ModelStream, fork: ForkRequest) -> list[bytes] | None:
        """The records a sub-offset copies, None where it does not fit."""
        assert fork.offset is not None
        records = source.append_after(fork.offset)
        if source.kind is PayloadKind.JSON:
            return records[: fork.sub_offset] if fork.sub_offset <= len(records) else None
        data = b"".join(records)
        if fork.sub_offset > len(data):
            return None
        cut = data[: fork.sub_offset]
        if source.kind is PayloadKind.TEXT and cut.decode("utf-8", "ignore").encode() != cut:
            return None
        return [cut] if cut else []

    def create(self, name: str, request: CreateRequest, records: list[bytes], tail: int) -> None:
        """The engine has created it and reported ``tail``."""
        fork = request.fork
        stream = ModelStream(request, request.content_type or BYTES, tail, closed=request.closed)
        if fork is not None:
            assert fork.offset is not None
            source = self.streams[fork.source]
            source.forks += 1
            stream.source, stream.content_type = source, source.content_type
            stream.base = fork.offset
            stream.appends = [item for item in source.appends if item[1] <= fork.offset]
            records = (self.prefix(source, fork) or []) + records
        if records:
            stream.appends.append((records, tail))
        self.streams[name] = stream

    def judge_append(self, name: str, request: AppendRequest) -> type[Exception] | bool:
        """True: accepted. False: a duplicate."""
        if error := self.missing(name):
            return error
        stream, stamp = self.streams[name], request.producer
        if stream.closed:
            repeats = stamp == stream.closed_by if stamp else not request.body
            return False if repeats else errors.StreamClosed
        if request.body and request.content_type != stream.content_type:
            return errors.ContentTypeMismatch
        if stamp is not None and (verdict := _judge_producer(stream, stamp)) is not True:
            return verdict
        if request.stream_seq is not None and request.stream_seq <= (stream.stream_seq or ""):
            return errors.SequenceRegressed
        return True

    def append(self, name: str, request: AppendRequest, records: list[bytes], tail: int) -> None:
        """The engine has accepted it and reported ``tail``."""
        stream, stamp = self.streams[name], request.producer
        if records:
            stream.appends.append((records, tail))
        if stamp is not None:
            stream.producers[stamp.id] = (stamp.epoch, stamp.seq)
        if request.stream_seq is not None:
            stream.stream_seq = request.stream_seq
        if request.close:
            stream.closed, stream.closed_by = True, stamp

    def delete(self, name: str) -> None:
        """The engine has deleted it."""
        stream: ModelStream | None = self.streams[name]
        assert stream is not None
        if stream.forks:
            stream.soft_deleted = True
            return
        while stream is not None:
            self.streams = {key: one for key, one in self.streams.items() if one is not stream}
            stream = stream.source
            if stream is not None:
                stream.forks -= 1
                if not stream.soft_deleted or stream.forks:
                    return


def _judge_producer(stream: ModelStream, stamp: ProducerStamp) -> type[Exception] | bool:
    if stamp.id not in stream.producers:
        return True if stamp.seq == 0 else errors.SequenceGap
    epoch, seq = stream.producers[stamp.id]
    if stamp.epoch < epoch:
        return errors.StaleEpoch
    if stamp.epoch > epoch:
        return True if stamp.seq == 0 else errors.BadProducer
    if stamp.seq <= seq:
        return False
    return True if stamp.seq == seq + 1 else errors.SequenceGap
