"""Many schedules: as many as fit, what they have tried, and the first seed that fails."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim.schedule import Schedule, simulated_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LINES_MAX = 200


@dataclass(slots=True)
class Tried:
    """What schedules have gone through."""

    schedules: int = 0
    starts: int = 0
    deaths: int = 0
    cuts: int = 0
    steps: int = 0
    failures: int = 0
    """Steps of the storage that were made to fail."""
    checked: int = 0
    """Answers, and records that were read and compared."""

    def add(self, schedule: Schedule) -> None:
        """One more."""
        self.schedules += 1
        self.starts += schedule.starts
        self.deaths += schedule.deaths
        self.cuts += schedule.cuts
        self.steps += schedule.trace.count
        self.failures += schedule.failures
        self.checked += schedule.oracle.checked

    def __str__(self) -> str:
        return (
            f"{self.schedules} schedules, {self.starts} starts, {self.deaths} deaths"
            f" ({self.cuts} power cuts), {self.failures} failing steps, {self.steps} steps,"
            f" {self.checked} answers and records checked"
        )


class ScheduleFailed(AssertionError):
    """A seed that breaks a promise, and how to see it again."""

    def __init__(self, schedule: Schedule, error: BaseException) -> None:
        super().__init__(f"seed {schedule.seed}: {error!r}\nreplay: make sim SEED={schedule.seed}")
        self.schedule = schedule


def run_seed(seed: int, *, temper: str | None = None, keeps_lines: bool = False) -> Schedule:
    """One schedule; ScheduleFailed says what went wrong in it."""
    schedule = Schedule(seed, temper=temper, keeps_lines=keeps_lines)
    with simulated_threads():
        try:
            schedule.run()
        except Exception as error:
            raise ScheduleFailed(schedule, error) from error
    return schedule


def run_seeds(
    seeds: Iterable[int],
    *,
    seconds: float,
    temper: str | None = None,
    progress: Callable[[Tried], None] | None = None,
) -> Tried:
    """Schedules one after the other, until the time is up."""
    tried, deadline = Tried(), time.monotonic() + seconds
    for seed in seeds:
        if time.monotonic() >= deadline:
            break
        tried.add(run_seed(seed, temper=temper))
        if progress is not None:
            progress(tried)
    return tried


def explain(failed: ScheduleFailed) -> str:
    """The error of a failed schedule, with the end of its trace: the seed is run once more."""
    seed, cause = failed.schedule.seed, failed.__cause__
    lines: list[str] = []
    try:
        run_seed(seed, temper=failed.schedule.asked_temper, keeps_lines=True)
    except ScheduleFailed as again:
        lines = again.schedule.trace.lines[-LINES_MAX:]
    assert cause is not None
    return "\n".join([*lines, *traceback.format_exception(cause), str(failed)])
