"""Stretches of a stream, read as stored records: bounds first, then pages, for readers that share
the work.

A span is everything behind one offset up to and including another; an offset that lies between two
records is as good as any. What is in a span does not change, whoever reads it and however often.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from bottomless.blocking import Client
from bottomless.errors import InvalidRequest
from bottomless.pages import records_of
from bottomless.portal import Portal
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
from bottomless.transport import Transport, records_path, stream_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    import httpx

    from bottomless.backoff import Retry
    from bottomless.pages import Stored

FIRST: Final = "0" * 32
"""Before every record."""
_PARTS: Final = 8
# Less time than this is not worth a connection of its own, unless somebody asks for it.
_PART_MS: Final = 10_000
_UTF8: Final = ("", "utf-8", "utf8", "us-ascii")


@dataclass(frozen=True, slots=True)
class Span:
    """Behind ``begin``, up to and including ``end``; both are offsets of 32 digits."""

    begin: str
    end: str

    @property
    def is_empty(self) -> bool:
        """Nothing can be in it."""
        return self.begin >= self.end


class Ranges:
    """One stream's spans, over connections of its own; blocks. Not for several threads."""

    def __init__(
        self, url: str, stream: str, *, token: str | None, page: int, retry: Retry
    ) -> None:
        self._url = url
        self._stream = stream
        self._token = token
        self._page = page
        self._path = records_path(stream)
        self._transport = Transport(url, token=token, retry=retry)
        self._portal = Portal()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._portal.call(self._transport.close())
        self._portal.close()

    def content_type(self) -> str:
        """NotFound where there is no such stream."""
        return str(self._head().headers["content-type"])

    def tail(self) -> str:
        """Behind everything that is there now."""
        return str(self._head().headers["stream-next-offset"]).replace("_", "")

    def begin(self, start: str) -> str:
        """The offset behind which a start (docs/client.md) begins."""
        match parse_start(start):
            case After(position):
                return _offset_of(position)
            case Since(time):
                return self._before_first({"since": since_text(time)})
            case Newest(count):
                return self._newest(count)
            case "live":
                return self.tail()
            case _:
                return FIRST

    def end(self, until: str | None) -> str:
        """The last offset of what was stored before a time, or up to a position; else the tail."""
        match None if until is None else parse_start(until):
            case None:
                return self.tail()
            case After(position):
                return min(_offset_of(position), self.tail())
            case Since(time):
                return self._before_first({"since": since_text(time)})
            case _:
                raise InvalidRequest(f"{until!r} is no end: it is a time or a position")

    def split(self, span: Span, count: int | None = None) -> list[Span]:
        """Up to ``count`` spans that are the span together, of equal time; as many as make sense
        where nobody says how many.
        """
        first = None if span.is_empty else self._first(_behind(span.begin))
        if first is None or first.offset > span.end:
            return []
        begin_ms = epoch_ms(first.offset)
        length_ms = epoch_ms(span.end) - begin_ms + 1
        if count is None:
            count = min(_PARTS, 1 + length_ms // _PART_MS)
        # No record has counter 0, so a moment with zeros lies between two records.
        times = (begin_ms + length_ms * index // count for index in range(1, count))
        inner = sorted({f"{time:016d}{0:016d}" for time in times})
        bounds = [span.begin, *(one for one in inner if first.offset < one < span.end), span.end]
        return [Span(*pair) for pair in itertools.pairwise(bounds)]

    def first(self, span: Span, count: int) -> Span:
        """The part of it with its first ``count`` records. Reads them."""
        for records in self.pages(span):
            if count <= len(records):
                return Span(span.begin, records[count - 1].offset)
            count -= len(records)
        return span

    def wait(self, offset: str, timeout_s: float) -> None:
        """Return when there is something behind an offset, or the time is up."""
        self._get({**_behind(offset), "limit": "1"}, wait_s=timeout_s)

    def pages(self, span: Span) -> Iterator[list[Stored]]:
        """All records of it, in order."""
        place = span.begin
        while place < span.end:
            records = self._records({**_behind(place), "limit": str(self._page)})
            if not records:
                # A stream that is gone looks like an empty one there, and raises here.
                self._head()
                return
            place = records[-1].offset
            if place > span.end:
                records = [record for record in records if record.offset <= span.end]
            if records:
                yield records

    def _newest(self, count: int) -> str:
        retry = self._transport.retry
        with Client(self._url, token=self._token, retry=retry) as client:
            record = client.consumer(self._stream, Newest(count), follow=False, page=1).next()
        return self.tail() if record is None else before(record.offset)

    def _before_first(self, place: dict[str, str]) -> str:
        first = self._first(place)
        return self.tail() if first is None else before(first.offset)

    def _first(self, place: dict[str, str]) -> Stored | None:
        return next(iter(self._records({**place, "limit": "1"})), None)

    def _records(self, params: dict[str, str]) -> list[Stored]:
        return records_of(self._get(params))

    def _get(self, params: dict[str, str], *, wait_s: float = 0.0) -> httpx.Response:
        params = {**params, "timeout_sec": f"{wait_s:.3f}"}
        return self._portal.call(self._transport.call("GET", self._path, params=params))

    def _head(self) -> httpx.Response:
        return self._portal.call(self._transport.call("HEAD", stream_path(self._stream)))


def is_json(content_type: str) -> bool:
    """The record is a JSON value."""
    return _media_type(content_type) == "application/json"


def is_text(content_type: str) -> bool:
    """The record is text in the table too: JSON, and ``text/*`` in UTF-8 (docs/format.md)."""
    if is_json(content_type):
        return True
    parameters = content_type.lower().replace(" ", "").replace('"', "")
    charset = parameters.partition("charset=")[2].partition(";")[0]
    return _media_type(content_type).startswith("text/") and charset in _UTF8


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _offset_of(position: str) -> str:
    offset = Position.parse(position).offset
    return FIRST if offset == START else offset


def _behind(offset: str) -> dict[str, str]:
    # From the very beginning is no offset: retention may have trimmed that.
    return {"offset": START if offset == FIRST else offset}
