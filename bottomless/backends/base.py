"""What a backend is: it opens sources and sinks of streams; everything else is built on these.

`BackendClient` makes of it what `AsyncClient` is for a server, so a program that moves data between
servers, files, pipes, Redis and Kafka is the same program with other addresses.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol

from typing_extensions import override

from bottomless.consumer import Record
from bottomless.errors import InvalidRequest
from bottomless.positions import After, Newest, Since, parse_start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bottomless.positions import Start

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, slots=True)
class Message(Record):
    """A record of another backend, with what that one knows of it."""

    key: str = ""
    """The stream it is of, where one file or pipe carries several."""
    shard: int = 0
    sequence: int | None = None
    at_ms: int = 0

    @property
    @override
    def time(self) -> datetime:
        """When it was stored; where that is not kept, when it was read."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


class Stamped(bytes):
    """A record's bytes on their way to another backend, with the time and key they had."""

    at_ms: int | None = None
    key: str = ""


class Source(Protocol):
    """Reads one stream. The values of its messages are not decoded yet: they are the data."""

    @property
    def altered(self) -> int:
        """Records whose bytes are not those of the medium: white space around JSON, blank lines."""

    @property
    def position(self) -> str:
        """Where the next `read` goes on."""

    async def begin(self, start: Start) -> None:
        """Go to that place; InvalidRequest where this backend has no such places."""

    async def read(self, wait_s: float, *, follow: bool) -> list[Message] | None:
        """What comes next. An empty list where nothing came in ``wait_s``; None at the end."""

    async def close(self) -> None:
        """Give back what it holds."""


class Sink(Protocol):
    """Writes one stream."""

    async def write(self, parts: Sequence[bytes]) -> str | None:
        """Store these records; returns the position behind them, where there is one. Unavailable
        means that it may be tried again.
        """

    async def end(self) -> None:
        """Tell readers that nothing more comes, where the medium has a mark for that."""

    async def close(self) -> None:
        """Make durable what was written, give back what it holds. May be called twice."""


class Backend(Protocol):
    """One address. ``stream`` is "" where the address names the stream itself."""

    url: str

    def content_type(self, stream: str) -> str:
        """What its records are, as far as its name tells."""

    def source(self, stream: str, content_type: str) -> Source:
        """To read it. Nothing is opened before it begins."""

    async def sink(self, stream: str, content_type: str) -> Sink:
        """To write it."""

    async def close(self) -> None:
        """Give back what it holds."""


def now_ms() -> int:
    """The wall clock, for what comes without a time."""
    return time.time_ns() // 1_000_000


def start_of(start: Start) -> Start:
    """A start that was given as text, taken apart."""
    if not isinstance(start, str):
        return start
    try:
        return parse_start(start)
    except InvalidRequest:
        if start[:1].isdecimal():
            # Positions of other backends: bytes of a file, Redis ids, Kafka's 0@17.
            return After(start)
        raise


def refuse_start(start: Start, medium: str, allowed: str) -> InvalidRequest:
    """The error for a start that a backend does not have."""
    match start:
        case Since():
            what = "a time"
        case Newest(count):
            what = f"the newest {count}"
        case After(position):
            what = f"position {position!r}"
        case _:
            what = repr(start)
    return InvalidRequest(f"{medium} cannot begin at {what}", hint=f"Begin at {allowed}.")


def since_ms(when: datetime | date | str) -> int:
    """A time or an age as ms since 1970."""
    if isinstance(when, str):
        age = when.removeprefix("-")
        if age[:-1].isdecimal() and age[-1:] in _UNITS:
            return now_ms() - int(
                timedelta(**{_UNITS[age[-1]]: int(age[:-1])}) / timedelta(milliseconds=1)
            )
        try:
            when = datetime.fromisoformat(when)
        except ValueError as error:
            raise InvalidRequest(
                f"{when!r} is no time", hint="Say 2026-11-17T14:00:00Z or 1h."
            ) from error
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
    elif not isinstance(when, datetime):
        when = datetime(when.year, when.month, when.day, tzinfo=UTC)
    return int(when.timestamp() * 1000)
