"""`bottomless append`: arguments, a file or a pipe become records, each stored exactly once."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bottomless.commands.inputs import Input, Source, default_input
from bottomless.commands.progress import load_progress
from bottomless.commands.registry import verb_app
from bottomless.commands.server import Server, StreamArgument, find_stream, server_verb
from bottomless.commands.streams import TYPES, TypeFlag, content_type_of
from bottomless.output import Format, FormatFlag, print_document, say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from bottomless.blocking import Producer
    from bottomless.delivery import Delivered
    from bottomless.formats import Value

app = verb_app()

# A server that restarts in the middle of a long load is waited for.
_PATIENCE_S: Final = 120.0
# Looking at the clock for every record would cost more than the record.
_TELL_EVERY: Final = 1000


@server_verb(
    app,
    "append",
    """bottomless append orders '{"id": 1, "item": "tea"}' '{"id": 2}'""",
    "cat orders.ndjson | bottomless append orders",
    "bottomless append people --file people.csv --input csv",
    "date | bottomless append notes --type text",
    "bottomless append photos/tea --file tea.png --type image/png",
    "bottomless read orders -o json | bottomless append orders-copy -i json",
)
def append(  # noqa: PLR0913  (flags)
    server: Server,
    stream: StreamArgument,
    records: Annotated[
        list[str] | None,
        typer.Argument(help="Records; else they come from --file or standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-F", exists=True, dir_okay=False, help="Read it.")
    ] = None,
    input_: Annotated[
        Input | None,
        typer.Option(
            "--input",
            "-i",
            help="What a record is: see above.",
            show_default="lines, for bytes raw",
        ),
    ] = None,
    type_: TypeFlag = None,
    create: Annotated[
        bool, typer.Option("--create/--no-create", help="Make the stream where there is none.")
    ] = True,
    producer: Annotated[
        str | None,
        typer.Option(
            help="Name of the producer: a later one of this name fences the earlier one off."
        ),
    ] = None,
    close: Annotated[
        bool, typer.Option("--close", help="Close the stream with the last record.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no result.")] = False,
    output: FormatFlag = Format.RAW,
) -> None:
    """Append records: arguments, a file, or standard input, by default each line a record.

    They go out in batches, and each is stored exactly once, in order, also over lost answers and a
    restart of the server. Prints the stream's tail when everything is durable.

    --input says what a record is. lines: each line. jsonl: each line is JSON, also for text
    (strings) and bytes (base64). json: each element of an array. csv: each row, as an object with
    the names of the first one. raw: all of it, in the stream's own format; bytes are stored
    unchanged, in pieces of 1 MiB. Put -- before a record that begins with a dash.
    """
    if records and file is not None:
        raise typer.BadParameter("give records or --file, not both")
    with contextlib.ExitStack() as stack:
        origin = _Origin.open(records, file, stack)
        content_type = _content_type(server, stream, type_, input_, create=create)
        input_ = input_ or default_input(content_type)
        source = Source(origin.stream, input_, content_type, lines=origin.lines)
        values = iter(source)
        # A first record that is wrong leaves no empty stream behind.
        first = list(itertools.islice(values, 1))
        client = stack.enter_context(server.connect(patience_s=_PATIENCE_S))
        load = _Load(origin)
        options: dict[str, Any] = {} if producer is None else {"id": producer}
        options |= {"create": create, "content_type": content_type, "on_delivered": load.note}
        load.run(client.producer(stream, **options), itertools.chain(first, values), closes=close)
    if source.blank:
        say(f"{source.blank} empty lines are no records")
    if not quiet:
        _print_result(load, stream, output)


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where the records come from."""

    stream: BinaryIO
    lines: list[bytes] | None = None
    """Of arguments: each is one record, whatever is in it."""
    size: int | None = None
    """Of a file."""

    @classmethod
    def open(
        cls, records: list[str] | None, file: Path | None, stack: contextlib.ExitStack
    ) -> _Origin:
        """Arguments, a file, or standard input."""
        if records:
            lines = [os.fsencode(record) for record in records]
            return cls(io.BytesIO(b"\n".join(lines)), lines)
        if file is not None:
            size = file.stat().st_size if file.is_file() else None
            return cls(stack.enter_context(file.open("rb")), size=size)
        if sys.stdin is None:
            raise typer.BadParameter("there are no records: no arguments, --file or standard input")
        if sys.stdin.isatty():
            say("type records, one a line; Ctrl-D ends")
        return cls(sys.stdin.buffer)


class _Load:
    """What has been taken and stored so far."""

    def __init__(self, origin: _Origin) -> None:
        self.stored = 0
        self.tail: str | None = None
        self.seconds = 0.0
        self._origin = origin

    def note(self, delivered: Delivered) -> None:
        """A batch has ended; on the event loop."""
        if delivered.error is None:
            self.stored += delivered.count
        if delivered.offset is not None:
            self.tail = delivered.offset.replace("_", "")

    def run(self, producer: Producer, values: Iterator[Value], *, closes: bool) -> None:
        """Store all of them. What goes wrong says how many are stored."""
        from bottomless.errors import BottomlessError

        begin_s = monotonic()
        try:
            self._append(producer, values)
            if closes:
                producer.close()
        except BottomlessError as error:
            _flush(producer)
            error.args = (f"{error}; {self.stored} records are stored",)
            raise
        except KeyboardInterrupt:
            # What was taken is worth an answer: it cannot be typed again.
            _flush(producer)
            say(f"\nbottomless: ended by Ctrl-C; {self.stored} records are stored")
            raise
        finally:
            self.seconds = monotonic() - begin_s
            producer.abort()

    def _append(self, producer: Producer, values: Iterator[Value]) -> None:
        with load_progress(self._origin.size, is_wanted=self._is_long()) as show:
            for count, value in enumerate(values, 1):
                producer.append(value)
                if count % _TELL_EVERY == 0:
                    show(self.stored, self._place())
            producer.flush()
            show(self.stored, self._place())

    def _is_long(self) -> bool:
        """What is typed, or given as an argument, needs no bar."""
        return self._origin.lines is None and not self._origin.stream.isatty()

    def _place(self) -> int:
        return 0 if self._origin.size is None else self._origin.stream.tell()


def _content_type(
    server: Server, stream: str, type_: str | None, input_: Input | None, *, create: bool
) -> str:
    """Of the stream that is there, or of the one that will be made."""
    from bottomless.errors import InvalidRequest, NotFound
    from bottomless.formats import format_of

    wanted = None if type_ is None else content_type_of(type_)
    try:
        with server.connect() as client:
            found = find_stream(client, stream).content_type
    except NotFound:
        if not create:
            raise
        return wanted or TYPES["binary" if input_ is Input.RAW else "json"]
    if wanted is not None and format_of(wanted) is not format_of(found):
        raise InvalidRequest(f"{stream} is there already, and is {found}")
    return found


def _flush(producer: Producer) -> None:
    """What was taken before it went wrong is stored, if it can be."""
    from bottomless.errors import BottomlessError

    if producer.error is None:
        with contextlib.suppress(BottomlessError):
            producer.flush()


def _print_result(load: _Load, stream: str, output: Format) -> None:
    document = {"stream": stream, "records": load.stored, "tail": load.tail}
    if output is Format.RAW and load.tail is None:
        return
    print_document({**document, "seconds": round(load.seconds, 3)}, output, raw="tail")
