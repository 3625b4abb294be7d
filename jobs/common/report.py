"""What a job tells: progress while it works, one line of JSON at the end.

Progress is a bar on a terminal and plain lines elsewhere, both on standard error; the report is the
last line of standard output, for the scheduler that runs the job.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import orjson
from py4j.protocol import Py4JError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from typing_extensions import override

from engine.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_POLL_S: Final = 0.2
_LINE_EVERY_S: Final = 5.0
_PROBLEMS_MAX: Final = 1000


class _Console(Console):
    """Where nobody reads any more, the job still does its work."""

    @override
    def on_broken_pipe(self) -> None:
        self.quiet = True


class Report:
    """Collects what was done; one entry per stream."""

    def __init__(self, job: str, *, is_dry: bool = False, is_quiet: bool = False) -> None:
        self.job = job
        self.is_dry = is_dry
        self.problems: list[str] = []
        self.streams: list[dict[str, Any]] = []
        self.totals: dict[str, Any] = {}
        self.is_stopped = False
        """A signal has ended a job that would run for ever: that is no problem."""
        self._is_quiet = is_quiet
        self._told: frozenset[str] = frozenset()
        self._console = _Console(stderr=True)
        self._clock = SystemClock()
        self._begun_s = self._clock.monotonic_s()

    @property
    def seconds(self) -> float:
        """Since the job began."""
        return round(self._clock.monotonic_s() - self._begun_s, 3)

    def say(self, line: str) -> None:
        """A line for people who watch."""
        if not self._is_quiet:
            self._print(line)

    def fail(self, problem: str) -> None:
        """Something is wrong: the exit code will tell. People hear of it also with --quiet."""
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(problem)
        if problem not in self._told:
            self._print(problem)

    def begin_round(self) -> None:
        """Forget the round before: a report of one is bounded, one of a year would not be.

        A problem that stays is told once, not every minute.
        """
        self._told = frozenset(self.problems)
        self.streams.clear()
        self.problems.clear()

    def add(self, stream: str, **facts: Any) -> dict[str, Any]:
        """What was done to a stream; numbers are summed up in the last line."""
        entry = {"stream": stream, **facts}
        self.streams.append(entry)
        return entry

    def render(self) -> dict[str, Any]:
        """The report as a document."""
        sums: dict[str, int] = {}
        for entry in self.streams:
            for key, value in entry.items():
                if isinstance(value, int) and not isinstance(value, bool) and key != "version":
                    sums[key] = sums.get(key, 0) + value
        only = self.streams[0] if len(self.streams) == 1 else {}
        return {
            "job": self.job,
            "ok": not self.problems,
            "dry_run": self.is_dry,
            **({"stopped": True} if self.is_stopped else {}),
            "seconds": self.seconds,
            **sums,
            **self.totals,
            **({"version": only["version"]} if "version" in only else {}),
            "streams": self.streams,
            "problems": self.problems,
        }

    def print(self) -> None:
        """One line of JSON on standard output; nothing where that is closed."""
        try:
            sys.stdout.write(orjson.dumps(self.render()).decode() + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            # Python would try again at its end, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _print(self, line: str) -> None:
        # A log on a full disk does not end the work it speaks of.
        with contextlib.suppress(OSError):
            self._console.print(
                f"{self.job}: {line}", highlight=False, markup=False, soft_wrap=True
            )

    @contextlib.contextmanager
    def progress(self, title: str, spark: SparkSession | None = None) -> Iterator[Step]:
        """Show that something is going on: steps that are told, or the tasks of Spark."""
        step = Step()
        if self._is_quiet:
            yield step
            return
        ended = threading.Event()
        show = self._show_bar if self._console.is_terminal else self._show_lines
        watcher = threading.Thread(target=show, args=(title, step, spark, ended), daemon=True)
        watcher.start()
        try:
            yield step
        finally:
            ended.set()
            watcher.join()

    def _show_bar(
        self, title: str, step: Step, spark: SparkSession | None, ended: threading.Event
    ) -> None:
        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
        ]
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task(f"{self.job}: {title}", total=None)
            while not ended.wait(_POLL_S):
                done, total = step.state(spark)
                bar.update(task, completed=done, total=total or None)

    def _show_lines(
        self, title: str, step: Step, spark: SparkSession | None, ended: threading.Event
    ) -> None:
        while not ended.wait(_LINE_EVERY_S):
            done, total = step.state(spark)
            self.say(f"{title}: {done} of {total or '?'} after {self.seconds:.0f} s")


class Step:
    """How far a piece of work is."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0

    def state(self, spark: SparkSession | None) -> tuple[int, int]:
        """Done and total; tasks of the running stages where Spark does the work."""
        if spark is None or self.total:
            return self.done, self.total
        done = total = 0
        # The work itself tells of a JVM that has died; this only watches.
        with contextlib.suppress(Py4JError, AttributeError):
            tracker = spark.sparkContext.statusTracker()
            for stage_id in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage_id)
                if info is not None:
                    done, total = done + info.numCompletedTasks, total + info.numTasks
        return done, total
