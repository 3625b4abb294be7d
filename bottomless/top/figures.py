"""Numbers in few characters."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("", "k", "M", "G", "T", "P", "E")
NOTHING: Final = "-"


def count(value: float | None) -> str:
    """``7``, ``0.5``, ``9,999``, ``12.3k``: at most six characters."""
    if value is None:
        return NOTHING
    if 0 < value < 9.95 and value != int(value):
        return f"{value:.1f}" if value >= 0.05 else "0.0"
    if value < 9_999.5:
        return f"{round(value):,}"
    return _scaled(value)


def size(value: float | None) -> str:
    """Bytes in thousands: ``0 B``, ``999 B``, ``1.5 kB``, ``12.3 MB``."""
    if value is None:
        return NOTHING
    if value < 999.5:
        return f"{round(value)} B"
    text = _scaled(value)
    return f"{text[:-1]} {text[-1]}B"


def age(seconds: float | None) -> str:
    """``now``, ``7s``, ``3m``, ``5h``, ``12d``."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return "now"
    for length, unit, limit in ((1, "s", 100), (60, "m", 6000), (3600, "h", 172_800)):
        if seconds < limit:
            return f"{int(seconds / length)}{unit}"
    return f"{int(seconds / 86_400)}d"


def lag(milliseconds: float | None) -> str:
    """``0``, ``250ms``, ``1.5s``, ``3m``."""
    if milliseconds is None:
        return NOTHING
    if milliseconds <= 0:
        return "0"
    if milliseconds < 999.5:
        return f"{milliseconds:.0f}ms"
    if milliseconds < 9_950:
        return f"{milliseconds / 1000:.1f}s"
    return age(milliseconds / 1000)


def _scaled(value: float) -> str:
    unit = 0
    # Half of the last digit that is shown: 999.95 k is 1.00 M.
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value /= 1000
        unit += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}{_UNITS[unit]}"
