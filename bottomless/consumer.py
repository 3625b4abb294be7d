"""AsyncConsumer: reads a stream from a place on, waits at its end, goes on after any disconnect.

Records come with their offsets (docs/records.md), so the place to go on from is exact: nothing is
lost and nothing comes twice, whatever happens to the line or to the server.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from bottomless.errors import Gone, InvalidRequest, NotFound, Unavailable
from bottomless.formats import format_of
from bottomless.pages import records_of
from bottomless.positions import (
    START,
    After,
    Newest,
    Position,
    Since,
    before,
    epoch_ms,
    parse_start,
    since_text,
)
from bottomless.reading import Buffered
from bottomless.transport import records_path, stream_path

if TYPE_CHECKING:
    import httpx

    from bottomless.backoff import Backoff, Retry
    from bottomless.formats import Format, Value
    from bottomless.pages import Stored
    from bottomless.positions import Start
    from bottomless.transport import Transport

_JSON: Final = "application/json"
_PAGE: Final = 2000
_POLL_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Record:
    """One value, and where it is."""

    value: Value
    data: bytes
    """The stored record's own bytes. In formats that pack several values, all of them."""
    offset: str
    position: str
    """To go on behind this value: ``After(record.position)``."""

    @property
    def time(self) -> datetime:
        """When it was stored, by the server's clock."""
        return datetime.fromtimestamp(epoch_ms(self.offset) / 1000, UTC)


class AsyncConsumer(Buffered[Record]):
    """Iterate over it, or call `next`. Ends with a closed stream, or, unless it follows, at the
    end of what is there.
    """

    def __init__(
        self,
        transport: Transport,
        stream: str,
        start: Start = "beginning",
        *,
        follow: bool = True,
        page: int = _PAGE,
        decode: bool = True,
    ) -> None:
        super().__init__()
        self.stream = stream
        self.follow = follow
        self._transport = transport
        self._page = page
        self._decodes = decode
        self._path = records_path(stream)
        self._start: Start = start
        self._place: Position | None = None
        """Where the next request begins; None before the first answer."""
        self._since: str | None = None
        self._format: Format | None = None
        self._is_closed = False
        self.has_ended = False
        """Nothing more comes; `fill` was not only out of time."""
        # A reader has nothing better to do than to wait for its server.
        self._retry: Retry = replace(transport.retry, give_up_s=math.inf)

    @override
    async def close(self) -> None:
        self._ready.clear()
        self._is_closed = True

    @override
    async def fill(self, timeout_s: float | None = None) -> bool:
        backoff = self._retry.begin()
        now_s = asyncio.get_running_loop().time
        deadline = math.inf if timeout_s is None else now_s() + timeout_s
        while not self._ready:
            wait_s = min(_POLL_S, max(0.0, deadline - now_s())) if self.follow else 0.0
            if self._is_closed or not await self._read(wait_s, backoff):
                self.has_ended = True
                return False
            if not self._ready and now_s() >= deadline:
                return False
        return True

    @override
    async def rewind(self, start: Start = "beginning") -> None:
        self._ready.clear()
        self._start, self._place, self._since, self._behind = start, None, None, None
        self._is_closed = self.has_ended = False

    async def _read(self, wait_s: float, backoff: Backoff) -> bool:
        """One request; False where the stream has ended, or this consumer does not follow it."""
        try:
            if self._place is None and self._since is None:
                await self._begin()
            response = await self._get({**self._from(), "limit": str(self._page)}, wait_s)
            entries = records_of(response)
            if entries and self._format is None:
                self._format = await self._find_format()
        except Unavailable as error:
            await backoff.pause(error)
            return True
        backoff.reset()
        if entries:
            skip = self._place.skip if self._place is not None else 0
            self._add(entries, skip)
            self._place = Position(entries[-1].offset)
            return True
        return self.follow and response.headers.get("stream-closed") != "true"

    async def _begin(self) -> None:
        """Turn the start into a place."""
        start = parse_start(self._start) if isinstance(self._start, str) else self._start
        match start:
            case After(position):
                self._place = Position.parse(position)
                if self._place.skip and not self._decodes:
                    raise InvalidRequest(f"{position} is inside a record, which is read as a whole")
                self._behind = position
            case Since(time):
                self._since = since_text(time)
            case Newest(count):
                self._place = await self._newest(count)
            case "live":
                self._place = Position(await self._tail())
            case _:
                self._place = Position()

    async def _tail(self) -> str:
        try:
            response = await self._transport.once("HEAD", stream_path(self.stream))
        except (NotFound, Gone):
            # Everything that will be there is new.
            return START
        return str(response.headers["stream-next-offset"]).replace("_", "")

    async def _newest(self, count: int) -> Position:
        """Look back further and further, until there are enough."""
        tail = await self._tail()
        if count <= 0 or tail == START:
            return Position(tail)
        window_ms = 1000
        while (begin_ms := epoch_ms(tail) - window_ms) > 0:
            since = datetime.fromtimestamp(begin_ms / 1000, UTC).isoformat()
            last = await self._offsets({"since": since}, count + 1)
            if len(last) > count:
                return Position(last[0])
            window_ms *= 8
        last = await self._offsets({"offset": START}, count + 1)
        return Position(last[0]) if len(last) > count else Position()

    async def _offsets(self, first: dict[str, str], count: int) -> deque[str]:
        """The last offsets from a place to the end."""
        found: deque[str] = deque(maxlen=count)
        params = first
        while True:
            entries = records_of(await self._get({**params, "limit": "10000"}, 0.0))
            if not entries:
                return found
            found.extend(entry.offset for entry in entries)
            params = {"offset": entries[-1].offset}

    def _from(self) -> dict[str, str]:
        if self._place is not None:
            return {"offset": self._place.offset}
        assert self._since is not None
        return {"since": self._since}

    async def _get(self, params: dict[str, str], wait_s: float) -> httpx.Response:
        params = {**params, "timeout_sec": f"{wait_s:.3f}"}
        return await self._transport.once("GET", self._path, params=params, wait_s=wait_s)

    async def _find_format(self) -> Format:
        try:
            response = await self._transport.once("HEAD", stream_path(self.stream))
        except (NotFound, Gone):
            # Deleted meanwhile; what was read can be shown all the same.
            return format_of("application/json")
        return format_of(response.headers["content-type"])

    def _add(self, entries: list[Stored], skip: int) -> None:
        assert self._format is not None
        for entry in entries:
            data = _data_of(entry, self._format)
            values = list(self._format.decode(data)) if self._decodes else [data]
            for index in range(skip, len(values)):
                is_last = index == len(values) - 1
                behind = entry.offset if is_last else f"{before(entry.offset)}:{index + 1}"
                self._ready.append(Record(values[index], data, entry.offset, behind))
            skip = 0


def _data_of(entry: Stored, format_: Format) -> bytes:
    if entry.encoding == "base64":
        return entry.bytes()
    return entry.json() if _JSON in format_.content_types else entry.text().encode()
