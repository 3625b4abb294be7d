"""One life of a simulated process: where it ends, which of its steps fail, how its threads mix."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim.loop import Fiber
from tests.sim.storage import Dead

if TYPE_CHECKING:
    import random

    from tests.sim.loop import SimClock
    from tests.sim.trace import Trace

SPACE = ("write", "create", "link")
ALL_KINDS = ("sync", "sync-all", "write", "create", "link", "rename", "unlink", "read", "close")


@dataclass(frozen=True, slots=True)
class Temper:
    """What kind of trouble a schedule is about."""

    faults: float
    """Share of the lives in which steps fail."""
    kinds: tuple[str, ...]
    cuts: float = 0.6
    """Share of the deaths that are power cuts."""
    nth_max: int = 25
    table_acks: float = 0.1
    """Share of the appends that wait for the table."""


TEMPERS = {
    "mixed": Temper(0.6, ALL_KINDS),
    "power": Temper(0.0, ALL_KINDS, cuts=1.0),
    "syncs": Temper(0.8, ("sync",), cuts=0.8, nth_max=20),
    "table-syncs": Temper(0.6, ("sync-all",), cuts=0.5, nth_max=4, table_acks=0.4),
    "space": Temper(0.9, SPACE),
}


@dataclass(slots=True)
class StepFault:
    """Steps of these kinds fail: the ``nth`` that matches, and ``times - 1`` after it."""

    kinds: frozenset[str]
    nth: int
    times: int
    code: int
    path: str = ""
    is_late: bool = False
    """The step takes effect, and fails all the same."""
    count: int = 0

    def strikes(self, kind: str, path: str) -> bool:
        """Count the step; True if it shall fail."""
        if kind not in self.kinds or not path.startswith(self.path):
            return False
        self.count += 1
        return self.nth <= self.count < self.nth + self.times


def draw_faults(rng: random.Random, temper: Temper) -> list[StepFault]:
    """None in some lives, a full disk for a while, or one or two steps that fail."""
    if rng.random() >= temper.faults:
        return []
    path = rng.choice(["", "", "_wal"])
    if temper.kinds == SPACE or (temper.kinds == ALL_KINDS and rng.random() < 0.25):
        times = rng.randint(1, 60)
        return [StepFault(frozenset(SPACE), rng.randint(1, 60), times, errno.ENOSPC, path)]
    faults = []
    for _ in range(rng.choice([1, 1, 2])):
        kind = rng.choice(temper.kinds)
        is_late = kind in ("link", "rename", "unlink") and rng.random() < 0.5
        nth = rng.randint(1, temper.nth_max)
        path = "" if kind == "sync-all" else rng.choice(["", "_wal"])
        faults.append(StepFault(frozenset({kind}), nth, 1, errno.EIO, path, is_late))
    return faults


class Life:
    """The gate of one life: every step of its storage passes here."""

    def __init__(self, rng: random.Random, clock: SimClock, trace: Trace) -> None:
        self._rng = rng
        self._clock = clock
        self._trace = trace
        self.is_dead = False
        self.is_calm = False
        """No faults now: somebody looks."""
        self.faults: list[StepFault] = []
        self.struck = 0
        """Steps that have failed."""
        self.steps = 0
        self.dies_at: int | None = None
        """The step that is never made."""

    def step(self, kind: str, path: str) -> OSError | None:
        """One step of the storage, on whichever thread."""
        if Fiber.current is not None and self._rng.random() < 0.7:
            Fiber.current.pause()
        if self.is_dead:
            raise Dead
        self.steps += 1
        self._clock.advance(self._rng.random() * 0.002)
        self._trace.note(kind, path)
        if self.steps == self.dies_at:
            self.die()
            raise Dead
        struck = [fault for fault in self.faults if fault.strikes(kind, path)]
        if not struck or self.is_calm:
            return None
        self.struck += 1
        self._trace.note("fails", f"{struck[0].code} {'late' if struck[0].is_late else ''}")
        error = OSError(struck[0].code, os.strerror(struck[0].code))
        if struck[0].is_late:
            return error
        raise error

    def die(self) -> None:
        """From here on nothing has any effect."""
        self.is_dead = True
        self._trace.note("dies", "")
