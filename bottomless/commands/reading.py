"""Verbs that read: read, tail, get, seek-time."""

from __future__ import annotations

import contextlib
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bottomless.commands.moments import moment_of, offset_of, start_of
from bottomless.commands.registry import verb_app
from bottomless.commands.server import Server, StreamArgument, find_stream, server_verb
from bottomless.output import Format, FormatFlag, print_document
from bottomless.positions import After, Newest, Since

if TYPE_CHECKING:
    from collections.abc import Generator

    from bottomless.blocking import Client
    from bottomless.commands.printing import Printer
    from bottomless.consumer import Record
    from bottomless.positions import Start

app = verb_app()

_PAGE: Final = 2000
_STALL_S: Final = 5.0

Limit = Annotated[int | None, typer.Option("--limit", "-n", min=0, help="At most so many records.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Wait for what comes, until Ctrl-C or its close.")
]
WithOffsets = Annotated[
    bool, typer.Option("--offsets", help="json, jsonl: offset and time around every value.")
]


@server_verb(
    app,
    "read",
    "bottomless read orders",
    "bottomless read orders --since 1h -o table",
    "bottomless read orders --from newest:2 -o jsonl --offsets",
    "bottomless read orders --from 2026-11-17T14:00:00Z --until now -n 100",
    "bottomless read orders | head -1",
    "bottomless read orders -o jsonl | bottomless append orders-copy",
)
def read(  # noqa: PLR0913  (flags)
    server: Server,
    stream: StreamArgument,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="beginning, now (then it follows), newest:N, an offset (that record is the"
            " first), a time, or an age like 1h.",
            show_default="beginning",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="What was stored then or later: an age like 1h, or a time.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="What comes behind this offset: to go on where you were.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="End before this offset, time or age; now is a time, too.")
    ] = None,
    limit: Limit = None,
    follow: Follow = False,
    offsets: WithOffsets = False,
    output: FormatFlag = Format.RAW,
) -> None:
    """Read records. Raw is their own bytes: a line each where they are JSON or text.

    Standard output has the records and nothing else, so it can be piped on; jsonl can be appended
    to another stream as it is.
    """
    start = _start(from_, since, after)
    end = None if until is None else offset_of(until)
    is_live = start == "live" and until is None
    with server.connect() as client:
        reader = _Reader(client, stream, output, with_offsets=offsets)
        reader.print(start, limit=limit, end=end, follow=follow or is_live)


@server_verb(
    app,
    "tail",
    "bottomless tail orders",
    "bottomless tail orders -n 3 -o table",
    "bottomless tail orders -f",
)
def tail(
    server: Server,
    stream: StreamArgument,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="So many of the last.")] = 10,
    follow: Follow = False,
    offsets: WithOffsets = False,
    output: FormatFlag = Format.RAW,
) -> None:
    """Show the last records; with -f, also what comes."""
    with server.connect() as client:
        reader = _Reader(client, stream, output, with_offsets=offsets)
        reader.print_last(limit, follow=follow)


@server_verb(app, "get", "bottomless get orders $(bottomless seek-time orders 1h)")
def get(
    server: Server,
    stream: StreamArgument,
    offset: Annotated[str, typer.Argument(help="Of the record.", show_default=False)],
    offsets: WithOffsets = False,
    output: FormatFlag = Format.RAW,
) -> None:
    """Show the record of an offset."""
    from bottomless.commands.moments import is_offset
    from bottomless.errors import InvalidRequest, NotFound

    if not is_offset(offset):
        raise InvalidRequest(f"{offset!r} is no offset", hint="They have 32 digits.")
    with server.connect() as client:
        reader = _Reader(client, stream, output, with_offsets=offsets)
        wanted = offset.replace("_", "")
        # One that packs several values has them all at one offset.
        end = f"{int(wanted) + 1:032d}"
        if not reader.print(start_of(offset), limit=None, end=end, follow=False):
            raise NotFound(f"{stream} has no record at {offset}")


@server_verb(
    app,
    "seek-time",
    "bottomless seek-time orders 1h",
    "bottomless read orders --from $(bottomless seek-time orders 30d)",
)
def seek_time(
    server: Server,
    stream: StreamArgument,
    time: Annotated[
        str, typer.Argument(help="2026-11-17T14:00:00Z, 2026-11-17, or 1h ago.", show_default=False)
    ],
    output: FormatFlag = Format.RAW,
) -> None:
    """Print the offset of the first record that was stored then or later: get takes it, and
    --from begins with it.
    """
    from bottomless.commands.printing import time_of
    from bottomless.errors import NotFound

    moment = moment_of(time)
    with server.connect() as client:
        find_stream(client, stream)
        with client.consumer(stream, Since(moment), follow=False, page=1) as consumer:
            record = consumer.next()
    if record is None:
        raise NotFound(f"{stream} has no record of that time or later")
    document = {"offset": record.offset, "time": time_of(record)}
    print_document(document, output, raw="offset")


class _Reader:
    """One stream, shown in one way."""

    def __init__(self, client: Client, stream: str, output: Format, *, with_offsets: bool) -> None:
        from bottomless.commands.printing import printer_of

        self._client = client
        self._stream = stream
        # One that is not there is told at once: a consumer would wait for it.
        found = find_stream(client, stream)
        self._tail = found.tail
        self._printer: Printer = printer_of(output, found.content_type, with_offsets=with_offsets)

    def print(self, start: Start, *, limit: int | None, end: str | None, follow: bool) -> int:
        """Show them, and tell how many they were."""
        shown = 0
        self._printer.begin()
        try:
            with contextlib.closing(self._pages(start, limit=limit, follow=follow)) as pages:
                for page in pages:
                    records = page if limit is None else page[: limit - shown]
                    kept = [record for record in records if end is None or record.offset < end]
                    if kept:
                        self._printer.show(kept)
                    shown += len(kept)
                    if shown == limit or len(kept) < len(records):
                        break
        finally:
            self._printer.end()
        return shown

    def print_last(self, count: int, *, follow: bool) -> None:
        """Show the last ones, and what comes."""
        last: deque[Record] = deque(maxlen=count)
        self._printer.begin()
        try:
            # So many stored records have as many values, or more: CSV packs them.
            for page in self._pages(Newest(count), limit=None, follow=False):
                last.extend(page)
            if last:
                self._printer.show(last)
            if follow:
                behind = last[-1].position if last else self._tail
                for page in self._pages(After(behind), limit=None, follow=True):
                    self._printer.show(page)
        finally:
            self._printer.end()

    def _pages(self, start: Start, *, limit: int | None, follow: bool) -> Generator[list[Record]]:
        if limit == 0:
            return
        page = _PAGE if limit is None else min(limit, _PAGE)
        with self._client.consumer(self._stream, start, follow=follow, page=page) as consumer:
            while True:
                begin_s = monotonic()
                # A consumer waits for a server that has gone for as long as it takes.
                record = consumer.next(None if follow else _STALL_S)
                if record is not None:
                    yield [record, *consumer.take()]
                elif follow or monotonic() - begin_s < _STALL_S:
                    return
                else:
                    find_stream(self._client, self._stream)


def _start(from_: str | None, since: str | None, after: str | None) -> Start:
    if sum(given is not None for given in (from_, since, after)) > 1:
        raise typer.BadParameter("give one of --from, --since and --after")
    if since is not None:
        return Since(moment_of(since))
    return After(after) if after is not None else start_of(from_ or "beginning")
