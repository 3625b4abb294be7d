"""How long to wait before the next try: doubling, capped, jittered, and not for ever."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bottomless.errors import Unavailable

if TYPE_CHECKING:
    from bottomless.errors import BottomlessError


@dataclass(frozen=True, slots=True)
class Retry:
    """How patient to be."""

    first_s: float = 0.05
    longest_s: float = 5.0
    give_up_s: float = 120.0
    """Counted from the first failure; 0 never tries again."""
    rng: random.Random = field(default_factory=random.Random)

    def begin(self) -> Backoff:
        """For one thing that is to be done."""
        return Backoff(self)


class Backoff:
    """The tries of one thing."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._count = 0
        self._since_s: float | None = None

    def reset(self) -> None:
        """It worked: the next failure is a first one."""
        self._count, self._since_s = 0, None

    async def pause(self, error: BottomlessError) -> None:
        """Wait before the next try; raises the error where it is not to be tried again."""
        if not isinstance(error, Unavailable):
            raise error
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        left_s = self._since_s + self._retry.give_up_s - now_s
        if left_s <= 0:
            raise error
        # Full jitter: clients that lost the same server do not come back at the same moment.
        ceiling_s = min(self._retry.longest_s, self._retry.first_s * 2.0**self._count)
        wait_s = max(self._retry.rng.uniform(0, ceiling_s), error.retry_after_s or 0.0)
        self._count += 1
        await asyncio.sleep(min(wait_s, left_s))
