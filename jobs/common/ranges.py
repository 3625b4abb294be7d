"""Ranges of a stream as people write them: times, durations, offsets."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from engine.errors import BadOffset
from engine.format.offset import START, epoch_of, format_stored, make_offset, parse_offset
from engine.types import Offset
from jobs.common.args import duration_seconds

_ENDLESS: Final = Offset(10**32 - 1)
_AGO: Final = re.compile(r"-\s*(\d+\s*(?:s|m|h|d|w))")


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records after one position and up to another."""

    after: Offset = START
    through: Offset = _ENDLESS

    @property
    def is_bounded(self) -> bool:
        """Its end was said."""
        return self.through != _ENDLESS

    @property
    def days(self) -> tuple[str, str]:
        """First and last day (UTC) that can hold its records, as the partition column has them."""
        first, last = (datetime.fromtimestamp(ms / 1000, UTC) for ms in self._epochs())
        return first.date().isoformat(), last.date().isoformat()

    def _epochs(self) -> tuple[int, int]:
        end_of_time_ms = 253_402_300_799_000
        return tuple(min(epoch_of(at), end_of_time_ms) for at in (self.after, self.through))  # type: ignore[return-value]  # two halves of a pair

    def render(self) -> dict[str, str]:
        """For the report."""
        return {"after": format_stored(self.after), "through": format_stored(self.through)}


def time_ms(text: str, *, now_ms: int) -> int:
    """Milliseconds of RFC 3339, a date, `now`, or `-2h`."""
    if text == "now":
        return now_ms
    if match := _AGO.fullmatch(text):
        return now_ms - duration_seconds(match[1].replace(" ", "")) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; write 2026-11-17T14:00:00Z, 2026-11-17, -2h or now"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def make_range(
    *,
    since: str | None,
    until: str | None,
    after: str | None,
    through: str | None,
    now_ms: int,
) -> OffsetRange:
    """From the flags of a job; a time includes its first millisecond and excludes its last."""
    if (since and after) or (until and through):
        raise argparse.ArgumentTypeError("give a time or an offset for each end, not both")
    begin, end = START, _ENDLESS
    try:
        if after:
            begin = parse_offset(after)
        elif since:
            begin = make_offset(time_ms(since, now_ms=now_ms), 0)
        if through:
            end = parse_offset(through)
        elif until:
            end = make_offset(time_ms(until, now_ms=now_ms), 0)
    except BadOffset as error:
        raise argparse.ArgumentTypeError(f"{error.message}: 32 digits are wanted") from error
    if end < begin:
        raise argparse.ArgumentTypeError("the range ends before it begins")
    return OffsetRange(begin, end)
