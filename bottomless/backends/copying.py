"""Copying records from any backend to any other, with the bytes they have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from bottomless.backends.base import Message, Stamped
from bottomless.backends.client import BackendClient
from bottomless.backends.files import FileSource
from bottomless.backends.framing import JSON, check_json, framing_of
from bottomless.client import AsyncClient
from bottomless.consumer import AsyncConsumer
from bottomless.errors import BottomlessError, InvalidRequest, NotFound
from bottomless.formats import format_of
from bottomless.positions import epoch_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from bottomless.backends.consumer import SourceConsumer
    from bottomless.backoff import Retry
    from bottomless.consumer import Record
    from bottomless.delivery import Delivered
    from bottomless.positions import Start
    from bottomless.producer import AsyncProducer

_PATIENCE_S: Final = 120.0
_DIALECTS: Final = ("v1/stream/", "v1/records/")


class Place:
    """One address that names a stream: of a server, or of another backend."""

    def __init__(self, url: str, *, token: str | None, retry: Retry) -> None:
        self.url = url
        self.is_server = url.startswith(("http://", "https://"))
        self.stream = ""
        if self.is_server:
            server, self.stream = split_stream_url(url)
            self._probe = AsyncClient(server, token=token, retry=retry)
            # A server that was there once may restart in the middle of a long copy.
            patient = replace(retry, give_up_s=max(retry.give_up_s, _PATIENCE_S))
            self._server = AsyncClient(server, token=token, retry=patient)
        else:
            self._other = BackendClient(url, retry=retry)

    async def close(self) -> None:
        """Give the connections back."""
        if self.is_server:
            await self._probe.aclose()
            await self._server.aclose()
        else:
            await self._other.aclose()

    async def content_type(self) -> str | None:
        """Of a server's stream; None where it is not there yet."""
        try:
            return (await self._probe.info(self.stream)).content_type
        except NotFound:
            return None

    async def check(self) -> None:
        """NotFound where a server's stream is not there."""
        try:
            await self._probe.info(self.stream)
        except NotFound as error:
            raise NotFound(f"there is no stream {self.stream!r}", code=error.code) from error

    def size(self) -> int | None:
        """How many bytes there are to read, where that is known."""
        if not self.url.startswith("file://"):
            return None
        path = Path(unquote(self.url.removeprefix("file://")))
        return path.stat().st_size if path.is_file() else None

    def guess(self) -> str:
        """What another backend's name tells."""
        return self._other.content_type()

    def consumer(
        self, start: Start, content_type: str, *, follow: bool
    ) -> AsyncConsumer | SourceConsumer:
        """Reads records as they are stored."""
        if self.is_server:
            return self._server.consumer(self.stream, start, follow=follow, decode=False)
        return self._other.consumer(
            "", start, follow=follow, content_type=content_type, decode=False
        )

    async def producer(self, content_type: str, note: Callable[[int], None]) -> AsyncProducer:
        """Writes them: into a server exactly once."""

        def delivered(batch: Delivered) -> None:
            if batch.error is None:
                note(batch.count)

        client = self._server if self.is_server else self._other
        return await client.producer(self.stream, content_type=content_type, on_delivered=delivered)


def split_stream_url(url: str) -> tuple[str, str]:
    """The server's address and the stream's name; the paths of our dialects may be there."""
    parts = urlsplit(url)
    path = parts.path.lstrip("/")
    for dialect in _DIALECTS:
        path = path.removeprefix(dialect)
    if not path or parts.query or parts.fragment or not parts.netloc:
        raise InvalidRequest(
            f"{url!r} is no address of a stream", hint="Say http://127.0.0.1:4437/orders."
        )
    return f"{parts.scheme}://{parts.netloc}", unquote(path)


async def common_type(source: Place, target: Place, wanted: str | None) -> str:
    """The content type that both sides can have; InvalidRequest where there is none."""
    told: dict[str, str] = {} if wanted is None else {"--type": wanted}
    for place in (target, source):
        if place.is_server and (found := await place.content_type()) is not None:
            told[place.url] = found
    if not told:
        guesses = [place.guess() for place in (source, target) if not place.is_server]
        return next((guess for guess in guesses if guess != JSON), JSON)
    chosen = next(iter(told.values()))
    if wanted is None and not source.is_server and source.guess() != JSON:
        told[source.url] = source.guess()
    for name, content_type in told.items():
        if format_of(content_type) is not format_of(chosen):
            raise InvalidRequest(
                f"{name} is {content_type}, and {next(iter(told))} is {chosen}",
                hint="Records are copied as they are: both have to be of one type.",
            )
    return chosen


class Copying:
    """One copy under way, and what it has done so far."""

    def __init__(
        self,
        source: AsyncConsumer | SourceConsumer,
        producer: AsyncProducer,
        content_type: str,
        *,
        into_server: bool,
        show: Callable[[], None],
    ) -> None:
        self._source = source
        self._producer = producer
        self._show = show
        is_file = is_server = isinstance(source, AsyncConsumer)
        if not isinstance(source, AsyncConsumer):
            is_file = isinstance(source.source, FileSource)
        kinds = format_of(content_type).content_types
        # Files have looked at their lines already, and servers have JSON in JSON streams.
        self._checks = JSON in kinds and not is_server and not is_file
        # In a server lines of several records may share an append: only the last line of a file may
        # lack its end.
        keeps_ends = framing_of(content_type).keeps_ends
        self._ends_lines = keeps_ends and into_server and (is_server or not is_file)
        self.taken = 0
        self.bytes = 0

    async def run(self) -> None:
        """Until the source ends. What goes wrong leaves what was taken before it stored."""
        try:
            while await self._source.fill():
                for record in self._source.take():
                    await self._copy(record)
                self._show()
        except BottomlessError:
            if self._producer.error is None:
                await self._producer.flush()
            raise
        await self._producer.flush()

    @property
    def altered(self) -> int:
        """Records that are not what the source had, byte for byte."""
        return 0 if isinstance(self._source, AsyncConsumer) else self._source.source.altered

    async def _copy(self, record: Record) -> None:
        data = record.data
        if self._checks:
            data = check_json(data, f"the record at {record.offset}")
        if self._ends_lines and not data.endswith(b"\n"):
            data += b"\n"
        part = Stamped(data)
        if isinstance(record, Message):
            part.at_ms, part.key = record.at_ms, record.key
        else:
            part.at_ms, part.key = epoch_ms(record.offset), self._source.stream
        self.taken += 1
        self.bytes += len(data)
        await self._producer.append_encoded(part)
