"""Maintain: looks at every stream, decides by the numbers what it needs, and does it.

One warm Spark session, started when the first stream needs it; one stream at a time, at a low
priority, so that the server beside it keeps the machine.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from engine.clock import SystemClock
from engine.errors import BottomlessError
from engine.job_status import JobStatus, load_status, save_status
from engine.table.companion import index_versions
from jobs.common.args import add_streams, make_parser, run_job
from jobs.common.plan import plan_compaction
from jobs.common.session import open_session
from jobs.common.tables import StreamBusy, explain, find_folders, open_root, open_table
from jobs.common.work import Worker, plan_trim

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from engine.storage import LocalStorage
    from jobs.common.report import Report
    from jobs.common.settings import StreamSettings
    from jobs.common.tables import StreamTable

EPILOG = """examples:
  bottomless maintain --root data            # for ever, beside the server
  bottomless maintain --root data --once     # one round, for cron

compact: a stream has enough small neighbours. index: so many commits came since the last index.
retain: something is past its time, or its last visit is an hour ago. Each decision is reported; the
server shows the last success and what is left to do of each job in /metrics."""
_NICE = 10
_VERBS = ("compact", "index", "retain")


def main(arguments: list[str] | None = None) -> int:
    """Run the job."""
    parser = make_parser(
        "maintain", "Keep all streams compact, indexed and retained.", epilog=EPILOG
    )
    add_streams(parser)
    parser.add_argument("--once", action="store_true", help="one round, then exit")
    parser.add_argument("--interval", type=int, metavar="SECONDS", help="time between rounds (60)")
    return run_job("maintain", parser, maintain, arguments)


def maintain(options: argparse.Namespace, settings: StreamSettings, report: Report) -> None:
    """Rounds until SIGTERM, or one."""
    os.nice(_NICE)
    stopping = threading.Event()
    if not options.once:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
    rounds = Rounds(settings, report, lambda: open_session("maintain"))
    interval_s = options.interval or settings.general.maintain.interval_seconds
    while True:
        rounds.run(options.stream)
        if options.once or stopping.wait(interval_s):
            return
        # A report of one round is bounded; one of a year would not be.
        report.streams.clear()
        report.problems.clear()


class Rounds:
    """What is remembered from one round to the next."""

    def __init__(
        self, settings: StreamSettings, report: Report, session: Callable[[], SparkSession]
    ) -> None:
        self._settings = settings
        self._report = report
        self._clock = SystemClock()
        self._storage: LocalStorage = open_root(settings.general.root)
        self._session = cache(session)
        self._is_visit_due = False
        row_group_bytes = settings.general.read.row_group_bytes
        self.worker = Worker(report, self._clock, row_group_bytes=row_group_bytes)

    def run(self, names: list[str] | None) -> None:
        """Look at every stream once."""
        begun_s = self._clock.monotonic_s()
        status = load_status(self._storage)
        every_ms = self._settings.general.maintain.retain_interval_seconds * 1000
        visited_ms = status.jobs.get("retain", JobStatus()).succeeded_ms
        self._is_visit_due = self._clock.now_ms() - visited_ms >= every_ms
        for verb in _VERBS:
            old = status.jobs.get(verb, JobStatus())
            status.jobs[verb] = JobStatus(old.succeeded_ms, old.failures)
        for folder in find_folders(self._storage, names):
            try:
                table = open_table(self._storage, folder)
                if table is not None:
                    self._look_at(table, status.jobs)
            except BottomlessError as error:
                # One damaged stream does not keep the others from their maintenance.
                self._report.fail(f"{folder}: {explain(error)}")
        status.round_ms = self._clock.now_ms()
        status.round_seconds = round(self._clock.monotonic_s() - begun_s, 3)
        if not self._report.is_dry:
            save_status(self._storage, status)

    def _look_at(self, table: StreamTable, status: dict[str, JobStatus]) -> None:
        compact = self._settings.compact(table.name, {})
        retain = self._settings.retain(table.name, {})
        now_ms = self._clock.now_ms()
        doomed = plan_trim(table, retain, now_ms=now_ms)
        if doomed or self._is_visit_due:
            reason = f"{len(doomed)} files are past their time" if doomed else "its turn"
            self._do("retain", table, status, reason, lambda: self.worker.retain(table, retain))
            table.refresh()
        bins = plan_compaction(table.state.files.values(), compact, now_ms=now_ms)
        if bins:
            files = sum(len(bin_.files) for bin_ in bins)
            self._do(
                "compact",
                table,
                status,
                f"{files} small files can be {len(bins)}",
                lambda: self.worker.compact(table, compact, self._session),
            )
            table.refresh()
            rest = plan_compaction(table.state.files.values(), compact, now_ms=now_ms)
            status["compact"].lag_streams += bool(rest)
            status["compact"].lag += sum(len(bin_.files) for bin_ in rest)
        behind = self._commits_behind(table)
        # A rewrite makes the index worth more and cheaper: few footers, many files gone.
        if behind >= self._settings.general.maintain.index_commits:
            reason = f"{behind} commits are not indexed"
            self._do("index", table, status, reason, lambda: self.worker.index(table))
            behind = self._commits_behind(table)
        status["index"].lag_streams += behind > 0
        status["index"].lag += behind

    def _do(
        self,
        verb: str,
        table: StreamTable,
        status: dict[str, JobStatus],
        reason: str,
        work: Callable[[], dict[str, Any]],
    ) -> None:
        self._report.say(f"{table.name}: {verb}, because {reason}")
        try:
            entry = work()
        except StreamBusy as error:
            self._report.say(f"{table.name}: {error.message}; next time")
        except BottomlessError as error:
            status[verb].failures += 1
            self._report.fail(f"{table.name}: {verb}: {explain(error)}")
        else:
            entry["job"], entry["reason"] = verb, reason
            status[verb].succeeded_ms = self._clock.now_ms()

    def _commits_behind(self, table: StreamTable) -> int:
        indexed = max(index_versions(table.storage, table.folder), default=-1)
        return table.state.version - indexed


if __name__ == "__main__":
    sys.exit(main())
