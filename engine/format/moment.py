"""Moments as people write them: RFC 3339, a date, `now`, or so long ago: `-2h`, `-30d`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from engine.errors import BadOffset
from engine.format.offset import COUNTER_BASE, make_offset

if TYPE_CHECKING:
    from engine.types import Offset

_AGO: Final = re.compile(r"-[ ]?([0-9]{1,12})[ ]?([smhdw])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_EPOCH_MS_MAX: Final = COUNTER_BASE - 1


def parse_moment(text: str, *, now_ms: int) -> int:
    """Milliseconds since 1970; a time without a zone is UTC. BadOffset where it is no time."""
    if text == "now":
        return now_ms
    if match := _AGO.fullmatch(text):
        return max(0, now_ms - int(match[1]) * _SECONDS[match[2]] * 1000)
    try:
        # In a query string a plus sign has become a space.
        moment = datetime.fromisoformat(text.replace(" ", "+") if text.count(":") > 2 else text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        epoch_ms = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    except (ValueError, OverflowError) as error:
        raise BadOffset(
            "not a time", hint="Write 2026-11-17T14:00:00Z, 2026-11-17, now, or -2h."
        ) from error
    return min(max(0, epoch_ms), _EPOCH_MS_MAX)


def position_at(epoch_ms: int) -> Offset:
    """The position before the first record that was flushed at that time or later."""
    return make_offset(epoch_ms, 0)
