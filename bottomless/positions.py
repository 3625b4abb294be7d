"""Where a consumer begins, and where it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from typing_extensions import override

from bottomless.errors import InvalidRequest

_OFFSET: Final = re.compile(r"[0-9]{16}_?[0-9]{16}")
_AGO: Final = re.compile(r"-?[0-9]+[smhdw]")
START: Final = "-"


@dataclass(frozen=True, slots=True)
class Newest:
    """The last ``count`` records, and what comes after them."""

    count: int


@dataclass(frozen=True, slots=True)
class After:
    """What comes after a position, as records and consumers tell it."""

    position: str


@dataclass(frozen=True, slots=True)
class Since:
    """What was stored at a time or later: a datetime, a date, RFC 3339, or an age (``1h``)."""

    time: datetime | date | str


Start = str | Newest | After | Since
"""``beginning``, ``live`` (only what comes from now on), or one of the classes here."""


@dataclass(frozen=True, slots=True)
class Position:
    """Between two values: behind ``offset``, and behind so many values of the record after it."""

    offset: str = START
    skip: int = 0

    @override
    def __str__(self) -> str:
        return f"{self.offset}:{self.skip}" if self.skip else self.offset

    @classmethod
    def parse(cls, text: str) -> Position:
        """Back from text."""
        offset, _, skip = text.partition(":")
        if text in ("", "-1", START):
            return cls()
        if not _OFFSET.fullmatch(offset) or not (skip or "0").isdecimal():
            raise InvalidRequest(f"{text!r} is no position", hint="They look like 0001…0001.")
        return cls(offset.replace("_", ""), int(skip or 0))


def parse_start(text: str) -> Start:
    """As people type it: beginning, live, newest:10, a position, a time, or an age like 1h."""
    if text in ("beginning", "live"):
        return text
    if text == "now":
        return "live"
    name, _, rest = text.partition(":")
    if name == "newest" and rest.isdecimal():
        return Newest(int(rest))
    if _OFFSET.fullmatch(name):
        return After(text)
    if _AGO.fullmatch(text) or re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return Since(text)
    raise InvalidRequest(
        f"{text!r} is no place to start",
        hint="Say beginning, live, newest:10, a position, a time like 2026-11-17T14:00:00Z, or 1h.",
    )


def since_text(time: datetime | date | str) -> str:
    """As the server reads it."""
    if isinstance(time, datetime):
        # A datetime without a zone is local time, as everywhere in Python.
        return time.astimezone(UTC).isoformat()
    if isinstance(time, date):
        return time.isoformat()
    return f"-{time}" if _AGO.fullmatch(time) and not time.startswith("-") else time


def before(offset: str) -> str:
    """The place right before a record."""
    return f"{int(offset) - 1:032d}"


def epoch_ms(offset: str) -> int:
    """The time in an offset: when the record was stored."""
    return int(offset[:16])
