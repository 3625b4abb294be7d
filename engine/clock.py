"""Time as an argument: the only module that reads the wall clock or the monotonic clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the engine gets its time from."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970; may jump in either direction."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never go backwards; meaningless across processes."""

    def monotonic_s(self) -> float:
        """The same clock in seconds, as fine as it gets: for measuring, not for deciding."""

    def sleep_s(self, seconds: float) -> None:
        """Wait on this thread. For jobs: the server never does."""


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        """Wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Monotonic clock in milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Monotonic clock in seconds."""
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        """Wait on this thread."""
        time.sleep(seconds)
