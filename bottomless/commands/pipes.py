"""`bottomless flux` and `tap`: a path that is a stream, for programs that know files only."""

from __future__ import annotations

import asyncio
import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bottomless.commands.registry import verb_app
from bottomless.commands.server import Server, complete_stream, server_verb
from bottomless.commands.streams import TYPES, TypeFlag, content_type_of
from bottomless.output import say

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from bottomless.backends.fifo import Fifo, FifoReader, FifoWriter
    from bottomless.backends.framing import Framing
    from bottomless.client import AsyncClient
    from bottomless.errors import BottomlessError
    from bottomless.positions import Start
    from bottomless.producer import AsyncProducer

app = verb_app()

_FLUSH_S: Final = 10.0
# How soon it is noticed that a reader has gone, while nothing comes.
_LOOK_UP_S: Final = 0.5
_WRITE_BYTES: Final = 1 << 20
# Of a writer that sends nothing but nonsense the first lines are told.
_TOLD_MAX: Final = 10

PathArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A path that is free; it is made, and removed.")
]
StreamFlag = Annotated[
    str,
    typer.Option(
        "--stream", "-S", metavar="STREAM", help="The stream.", autocompletion=complete_stream
    ),
]


@server_verb(
    app,
    "flux",
    "bottomless flux ./orders.in --stream orders",
    "bottomless flux ./people.in --stream people --type csv",
)
def flux(
    server: Server,
    file: PathArgument,
    stream: StreamFlag,
    type_: TypeFlag = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no counts.")] = False,
) -> None:
    """Make a named pipe: what any program writes there is appended to a stream.

    Each line is a record (in a stream of CSV each row, of MessagePack each object; bytes are taken
    as they come). Writers may come one after another. A line that is no JSON is left out, and said.
    Ends, and removes the pipe, with Ctrl-C or SIGTERM, when everything that was written is stored.
    """
    wanted = None if type_ is None else content_type_of(type_)
    raise typer.Exit(asyncio.run(_flux(server, file, stream, wanted, is_quiet=quiet)))


@server_verb(
    app,
    "tap",
    "bottomless tap ./orders.out --stream orders",
    "bottomless tap ./latest.out --stream orders --from newest:10 --no-follow",
)
def tap(
    server: Server,
    file: PathArgument,
    stream: StreamFlag,
    start: Annotated[
        str,
        typer.Option(
            "--from", help="Where readers begin: beginning, now, newest:10, an offset, a time, 1h."
        ),
    ] = "beginning",
    follow: Annotated[
        bool,
        typer.Option("--follow/--no-follow", help="Go on live, or end where the stream ends now."),
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no counts.")] = False,
) -> None:
    """Make a named pipe: whoever reads it gets the records of a stream, and then what comes, live.

    Every reader begins anew, at --from, also of several at a time. Ends, and removes the pipe, with
    Ctrl-C or SIGTERM.
    """
    from bottomless.commands.moments import start_of

    work = _tap(server, file, stream, start_of(start), follow=follow, is_quiet=quiet)
    raise typer.Exit(asyncio.run(work))


async def _flux(
    server: Server, path: Path, stream: str, wanted: str | None, *, is_quiet: bool
) -> int:
    from bottomless.backends.fifo import Fifo, FifoReader
    from bottomless.backends.stopping import stop_signals

    content_type = await _ensure(server, stream, wanted)
    async with stop_signals() as stopped, _client(server) as client:
        producer = await client.producer(stream, create=False)
        inflow = _Inflow(producer, content_type)
        with Fifo(path) as fifo:
            reader = FifoReader(fifo)
            say(f"{path}: what is written there goes to {stream}; Ctrl-C ends")
            try:
                await _finish(stopped, inflow.run(fifo, reader, stopped))
            finally:
                reader.close()
                await producer.abort()
                inflow.tell(stream, is_quiet=is_quiet)
    return stopped.code or (1 if inflow.refused else 0)


class _Inflow:
    """From a pipe into a producer."""

    def __init__(self, producer: AsyncProducer, content_type: str) -> None:
        from bottomless.backends.framing import framing_of

        self._producer = producer
        self._content_type = content_type
        self._framing: Framing = framing_of(content_type, self._refuse)
        self.taken = 0
        self.refused = 0

    async def run(self, fifo: Fifo, reader: FifoReader, stopped: asyncio.Event) -> None:
        """Until it is told to stop; then what is in the pipe was written, and is ours to store."""
        while not stopped.is_set():
            fifo.check()
            self._producer.check()
            await self._take(await reader.read())
        fifo.remove()
        while data := await reader.read(0.0):
            await self._take(data)
        await self._take(b"")
        await self._producer.flush()

    def tell(self, stream: str, *, is_quiet: bool) -> None:
        """What has come of it."""
        stored = self._producer.delivered
        if not is_quiet:
            say(f"{stored:,} records stored in {stream}")
        if lost := self.taken - stored:
            say(f"bottomless: {lost:,} records are not stored")
        if self.refused:
            say(f"bottomless: {self.refused:,} lines were left out")

    async def _take(self, data: bytes | None) -> None:
        from bottomless.backends.framing import framing_of
        from bottomless.errors import DataDamaged

        if data is None:
            return
        framing = self._framing
        try:
            pieces = framing.feed(data) if data else framing.end()
        except DataDamaged as error:
            # Where one object ends nobody knows any more; the next writer begins anew.
            self._refuse(error)
            self._framing = framing_of(self._content_type, self._refuse)
            return
        for record, _ in pieces:
            # Behind a writer that left out its last line end, another one may come.
            whole = record if record.endswith(b"\n") or not framing.keeps_ends else record + b"\n"
            await self._producer.append_encoded(whole)
            self.taken += 1

    def _refuse(self, error: BottomlessError) -> None:
        self.refused += 1
        if self.refused <= _TOLD_MAX:
            say(f"bottomless: {error.message}; left out")


async def _tap(
    server: Server, path: Path, stream: str, start: Start, *, follow: bool, is_quiet: bool
) -> int:
    from bottomless.backends.fifo import Fifo
    from bottomless.backends.stopping import run_until, stop_signals

    content_type = await _ensure(server, stream, None, create=False)
    async with stop_signals() as stopped, _client(server) as client:
        outflow = _Outflow(client, stream, start, content_type, follow=follow)
        with Fifo(path) as fifo:
            say(f"{path}: whoever reads it gets {stream}; Ctrl-C ends")
            await run_until(stopped, outflow.run(fifo))
    if not is_quiet:
        say(f"{outflow.given:,} records given to {outflow.readers:,} readers")
    return stopped.code


class _Outflow:
    """From a stream into a pipe, a new one for each reader."""

    def __init__(
        self, client: AsyncClient, stream: str, start: Start, content_type: str, *, follow: bool
    ) -> None:
        self._client = client
        self._stream = stream
        self._start: Start = start
        self._content_type = content_type
        self._follow = follow
        self.given = 0
        self.readers = 0

    async def run(self, fifo: Fifo) -> None:
        """For ever."""
        from bottomless.backends.fifo import FifoWriter
        from bottomless.errors import BottomlessError

        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    writer = await FifoWriter.wait(fifo)
                    # From now on the path is another pipe: nothing of this one's is in it.
                    fifo.renew()
                    self.readers += 1
                    group.create_task(self._serve(writer))
        except* BottomlessError as errors:
            raise errors.exceptions[0] from None

    async def _serve(self, writer: FifoWriter) -> None:
        """Until the reader goes, or the stream ends."""
        from bottomless.backends.framing import framing_of

        framing = framing_of(self._content_type)
        consumer = self._client.consumer(
            self._stream, self._start, follow=self._follow, decode=False
        )
        with contextlib.closing(writer):
            while not writer.is_alone:
                if not await consumer.fill(_LOOK_UP_S):
                    if consumer.has_ended:
                        return
                    continue
                records = consumer.take()
                if not await writer.write(b"".join(framing.frame(r.data) for r in records)):
                    return
                self.given += len(records)


def _client(server: Server) -> AsyncClient:
    """One that waits for its server for ever: pipes are there for long."""
    from bottomless.backoff import Retry
    from bottomless.client import AsyncClient

    return AsyncClient(server.url, token=server.token, retry=Retry(give_up_s=math.inf))


async def _ensure(server: Server, stream: str, wanted: str | None, *, create: bool = True) -> str:
    """The stream's content type; made where there is none."""
    from bottomless.backoff import Retry
    from bottomless.client import AsyncClient
    from bottomless.errors import InvalidRequest, NotFound
    from bottomless.formats import format_of

    retry = Retry(give_up_s=server.wait_s)
    async with AsyncClient(server.url, token=server.token, retry=retry) as client:
        try:
            found = (await client.info(stream)).content_type
        except NotFound as error:
            if not create:
                raise NotFound(f"there is no stream {stream!r}", code=error.code) from error
            found = wanted or TYPES["json"]
            await client.create(stream, found)
    if wanted is not None and format_of(found) is not format_of(wanted):
        raise InvalidRequest(f"{stream} is there already, and is {found}")
    return found


async def _finish(stopped: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do it. Once it is told to stop it has a while to come to its end."""
    from bottomless.errors import Unavailable

    task = asyncio.ensure_future(work)
    waiter = asyncio.ensure_future(stopped.wait())
    await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    try:
        await asyncio.wait_for(task, _FLUSH_S)
    except TimeoutError as error:
        raise Unavailable("the server could not be reached in time") from error
