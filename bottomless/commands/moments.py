"""Places in a stream as people type them: an offset, a time, an age, a word."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from bottomless.errors import InvalidRequest
from bottomless.positions import After, Newest, Since, before

if TYPE_CHECKING:
    from bottomless.positions import Start

_OFFSET: Final = re.compile(r"[0-9]{16}_?[0-9]{16}", re.ASCII)
_AGE: Final = re.compile(r"-?([0-9]{1,9})(s|m|h|d|w)", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_WANTED: Final = (
    "Say beginning, now, newest:10, an offset, a time like 2026-11-17T14:00:00Z, or 1h."
)


def is_offset(text: str) -> bool:
    """Both spellings are."""
    return _OFFSET.fullmatch(text) is not None


def seconds_of(text: str) -> int:
    """A duration: 90s, 15m, 12h, 30d, 4w."""
    match = _AGE.fullmatch(text)
    if match is None or text.startswith("-"):
        raise InvalidRequest(f"{text!r} is no duration", hint="Write 90s, 15m, 12h, 30d or 4w.")
    return int(match[1]) * _SECONDS[match[2]]


def start_of(text: str) -> Start:
    """Where `--from` begins: with the record of that offset, or the first one of that time."""
    if text in ("beginning", "start"):
        return "beginning"
    if text in ("now", "live", "end"):
        return "live"
    name, _, count = text.partition(":")
    if name == "newest" and count.isdecimal():
        return Newest(int(count))
    if is_offset(text):
        offset = text.replace("_", "")
        # Reads begin behind a place: the record itself is wanted, too.
        return After(before(offset)) if int(offset) else "beginning"
    return Since(moment_of(text))


def moment_of(text: str) -> datetime | str:
    """A time (UTC where it has no zone, as everywhere here), or an age, as `Since` takes it."""
    if _AGE.fullmatch(text):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"{text!r} is no place in a stream", hint=_WANTED) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def offset_of(text: str) -> str:
    """An offset; or a time or an age as the place right before its first record."""
    if is_offset(text):
        return text.replace("_", "")
    if text == "now":
        return _padded(time.time_ns() // 1_000_000)
    if match := _AGE.fullmatch(text):
        age_s = int(match[1]) * _SECONDS[match[2]]
        return _padded(time.time_ns() // 1_000_000 - age_s * 1000)
    moment = moment_of(text)
    assert isinstance(moment, datetime)
    return _padded(int(moment.timestamp() * 1000))


def _padded(epoch_ms: int) -> str:
    return f"{max(0, epoch_ms):016d}{0:016d}"
