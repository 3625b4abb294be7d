"""Offsets: 16 digits of epoch (ms) and 16 digits of counter.

Inside the engine an offset is one integer, ``epoch * 10**16 + counter``: printed with 32 digits it
*is* the stored form, so integer order, string order and time order are the same order.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from engine.errors import BadOffset
from engine.types import Offset

COUNTER_BASE: Final = 10**16
DAY_MS: Final = 86_400_000
OFFSET_DIGITS: Final = 32
START: Final = Offset(0)
"""The position before every record."""

_UNDERSCORED: Final = re.compile(r"[0-9]{16}_[0-9]{16}", re.ASCII)
_PLAIN: Final = re.compile(r"[0-9]{32}", re.ASCII)


def make_offset(epoch_ms: int, counter: int) -> Offset:
    """Join the two halves."""
    assert 0 <= counter < COUNTER_BASE
    return Offset(epoch_ms * COUNTER_BASE + counter)


def epoch_of(offset: Offset) -> int:
    """The flush time in milliseconds: the first half."""
    return offset // COUNTER_BASE


def counter_of(offset: Offset) -> int:
    """The place within the epoch: the second half."""
    return offset % COUNTER_BASE


def flush_date(offset: Offset) -> str:
    """The day of the flush (UTC), as the partition column writes it."""
    return str(np.datetime64(epoch_of(offset) // DAY_MS, "D"))


def format_stored(offset: Offset) -> str:
    """The 32-character form kept in tables."""
    return f"{offset:032d}"


def format_wire(offset: Offset) -> str:
    """The form of the Durable Streams dialect: ``epoch_counter``."""
    # In every answer to an append: half the time of two f-strings.
    digits = str(offset).zfill(OFFSET_DIGITS)
    return digits[:16] + "_" + digits[16:]


def parse_offset(text: str) -> Offset:
    """Read either spelling; anything else is a BadOffset."""
    if _UNDERSCORED.fullmatch(text):
        return Offset(int(text[:16]) * COUNTER_BASE + int(text[17:]))
    if _PLAIN.fullmatch(text):
        return Offset(int(text))
    raise BadOffset(
        "not an offset",
        hint="Use an offset this server returned (16 digits, '_', 16 digits), -1 or now.",
    )


def stored_column(epochs: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """The 32-character forms of many offsets as one ``S32`` array, without a loop per record."""
    count = len(epochs)
    digits = np.empty((count, OFFSET_DIGITS), dtype=np.uint8)
    for half, values in ((0, epochs), (16, counters)):
        rest = values.astype(np.int64)
        for column in range(half + 15, half - 1, -1):
            rest, digit = np.divmod(rest, 10)
            digits[:, column] = digit
    digits += ord("0")
    return digits.reshape(-1).view("S32")
