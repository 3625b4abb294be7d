"""A clock that only moves when a test moves it."""

from __future__ import annotations

BEGIN_MS = 1_760_000_000_000


class ManualClock:
    """Wall clock and monotonic clock under the test's control."""

    def __init__(self, now_ms: int = BEGIN_MS) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 5_000_000

    def now_ms(self) -> int:
        """Wall clock."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Monotonic clock."""
        return self._monotonic_ms

    def monotonic_s(self) -> float:
        """Monotonic clock in seconds."""
        return self._monotonic_ms / 1000

    def sleep_s(self, seconds: float) -> None:
        """Waiting costs a test no time."""
        self.advance(int(seconds * 1000))

    def advance(self, milliseconds: int) -> None:
        """Time passes on both clocks."""
        assert milliseconds >= 0
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds

    def jump_wall(self, milliseconds: int) -> None:
        """Somebody sets the wall clock, in either direction."""
        self._now_ms += milliseconds
