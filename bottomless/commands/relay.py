"""`bottomless relay`: records from any address to any other, as they are."""

from __future__ import annotations

import asyncio
import logging
import re
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from bottomless.commands.registry import Examples, help_of, verb_app
from bottomless.output import say

if TYPE_CHECKING:
    from bottomless.backends.copying import Copying, Place
    from bottomless.positions import Start
    from bottomless.producer import AsyncProducer

app = verb_app()

# What other backends call a place: a byte of a file, a Redis id, offsets of Kafka's partitions.
_PLACE: Final = re.compile(r"[0-9]+(-[0-9]+|@[0-9]+(,[0-9]+@[0-9]+)*)?(:[0-9]+)?", re.ASCII)
_WAIT_S: Final = 10.0
_FLUSH_S: Final = 10.0
_TERMINATED: Final = 143


def relay(  # noqa: PLR0913  (flags)
    source: Annotated[str, typer.Option("--input", "-i", metavar="URI", help="Read it.")],
    target: Annotated[str, typer.Option("--output", "-o", metavar="URI", help="Append to it.")],
    start: Annotated[
        str,
        typer.Option(
            "--from", help="Where to begin: beginning, now, newest:10, a position, a time, 1h."
        ),
    ] = "beginning",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    type_: Annotated[
        str | None,
        typer.Option(
            "--type",
            "-t",
            help="What the records are: json, ndjson, csv, msgpack, text, binary, a content type.",
            show_default="what the streams and the file's ending say, else json",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="BOTTOMLESS_TOKEN",
            help="The server's token; of two servers, the input's.",
            show_default=False,
        ),
    ] = None,
    output_token: Annotated[
        str | None,
        typer.Option(
            envvar="BOTTOMLESS_OUTPUT_TOKEN",
            help="The output's, where both are servers.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            envvar="BOTTOMLESS_WAIT",
            min=0,
            metavar="SECONDS",
            help="How long to try to reach a server.",
        ),
    ] = _WAIT_S,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no counts.")] = False,
) -> None:
    """Copy records from one address to another, with the bytes they have.

    Addresses: http://HOST:PORT/STREAM, file:///PATH (.ndjson, .csv, .msgpack, .txt, .bin; in
    SeaStreamer's format file:///PATH.ss/KEY), stdio:///KEY (SeaStreamer's line format),
    redis://HOST/KEY, kafka://HOST:9092/TOPIC.

    A server's stream is made where it is missing, and what goes there is stored exactly once; other
    outputs are appended to. Running it twice copies twice.
    """
    from bottomless.commands.streams import content_type_of

    if _plain(source) == _plain(target):
        raise typer.BadParameter("--input and --output are the same")
    # Of a library: what goes wrong is said once, by us.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    wanted = None if type_ is None else content_type_of(type_)
    tokens = _tokens(source, target, token, output_token)
    work = _Relay(source, target, tokens, wait_s=wait, is_quiet=quiet)
    raise typer.Exit(asyncio.run(work.run(start, wanted, follow=follow)))


app.command(
    "relay",
    help=help_of(relay),
    epilog=Examples(
        "bottomless relay --input file://./orders.ndjson --output http://127.0.0.1:4437/orders",
        "bottomless relay -i http://127.0.0.1:4437/orders -o file://./copy.ndjson",
        "bottomless relay -i http://127.0.0.1:4437/orders -o file://./archive.ss/orders",
        "bottomless relay -i http://127.0.0.1:4437/orders -o stdio:///orders | head -1",
    ),
)(relay)


class _Relay:
    """One run."""

    def __init__(
        self,
        source: str,
        target: str,
        tokens: tuple[str | None, str | None],
        *,
        wait_s: float,
        is_quiet: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._tokens = tokens
        self._wait_s = wait_s
        self._is_quiet = is_quiet
        self._stored = 0
        self._has_begun = False
        self._begun_s = monotonic()

    async def run(self, start: str, wanted: str | None, *, follow: bool) -> int:
        """Copy; returns the exit code."""
        from bottomless.backends.copying import Place
        from bottomless.backends.stopping import stop_signals
        from bottomless.backoff import Retry
        from bottomless.errors import BottomlessError

        retry = Retry(give_up_s=self._wait_s)
        source = Place(self._source, token=self._tokens[0], retry=retry)
        target = Place(self._target, token=self._tokens[1], retry=retry)
        try:
            async with stop_signals() as stopped:
                is_done = await self._copy(source, target, start, wanted, stopped, follow=follow)
        except BottomlessError as error:
            if isinstance(error.__cause__, BrokenPipeError):
                # Whoever reads our output has seen enough: every verb ends the same way then.
                raise error.__cause__ from error
            if self._has_begun:
                error.args = (f"{error}; {self._stored} records are stored",)
            raise
        finally:
            await source.close()
            await target.close()
        # A copy that was to come to an end, and was told to stop before, is not done.
        return stopped.code if is_done or follow else stopped.code or _TERMINATED

    async def _copy(
        self,
        source: Place,
        target: Place,
        start: str,
        wanted: str | None,
        stopped: asyncio.Event,
        *,
        follow: bool,
    ) -> bool:
        from bottomless.backends.copying import Copying, common_type
        from bottomless.backends.stopping import run_until
        from bottomless.commands.progress import load_progress

        content_type = await common_type(source, target, wanted)
        begin = _start(start, is_server=source.is_server)
        if source.is_server and not follow:
            # A stream that is not there would look like an empty one.
            await source.check()
        size = source.size()
        consumer = source.consumer(begin, content_type, follow=follow)
        # The first record is looked at before a stream is made for it.
        if not await run_until(stopped, consumer.fill(0.0 if follow else None)):
            return False
        async with consumer, await target.producer(content_type, self._note) as producer:
            self._has_begun = True
            with load_progress(size, is_wanted=not self._is_quiet) as show:
                copying = Copying(
                    consumer,
                    producer,
                    content_type,
                    into_server=target.is_server,
                    show=lambda: show(self._stored, copying.bytes),
                )
                is_done = await run_until(stopped, copying.run())
                if not is_done:
                    await self._flush(producer, copying.taken)
        self._tell(copying, content_type)
        return is_done

    async def _flush(self, producer: AsyncProducer, taken: int) -> None:
        """We were told to stop: what was taken is stored, if that can be done soon."""
        from bottomless.errors import Unavailable

        try:
            async with asyncio.timeout(_FLUSH_S):
                await producer.flush()
        except TimeoutError as error:
            raise Unavailable(f"{taken - self._stored} records could not be stored") from error

    def _note(self, count: int) -> None:
        self._stored += count

    def _tell(self, copying: Copying, content_type: str) -> None:
        if self._is_quiet:
            return
        seconds = monotonic() - self._begun_s
        say(f"{self._stored:,} records, {copying.bytes:,} bytes in {seconds:.1f} s, {content_type}")
        if copying.altered:
            say(
                f"{copying.altered:,} lines were blank, without an end, or had white space around"
                " the value: records do not keep that (--type ndjson keeps every byte of JSON)"
            )


def _start(text: str, *, is_server: bool) -> Start:
    from bottomless.commands.moments import start_of
    from bottomless.positions import After

    if not is_server and _PLACE.fullmatch(text):
        return After(text)
    return start_of(text)


def _plain(url: str) -> str:
    return url.rstrip("/").replace("/v1/stream/", "/").replace("/v1/records/", "/")


def _tokens(
    source: str, target: str, token: str | None, output_token: str | None
) -> tuple[str | None, str | None]:
    """A token is shown to the server it is for, and to no other."""
    servers = [urlsplit(url) for url in (source, target) if url.startswith("http")]
    are_two = len(servers) == 2 and servers[0].netloc != servers[1].netloc
    return token, output_token or (None if are_two else token)
