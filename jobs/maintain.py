"""Maintain: looks at every stream, decides by the numbers what it needs, and does it.

One warm Spark session, started when the first stream needs it; one stream at a time, at a low
priority, so that the server beside it keeps the machine.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from engine.clock import SystemClock
from engine.job_status import JobStatus, load_status, save_status
from engine.table.companion import indexed_version
from jobs.common.args import add_streams, make_parser, positive_int, run_job
from jobs.common.plan import plan_compaction
from jobs.common.session import WarmSession, open_session
from jobs.common.settings import BadJobSettings
from jobs.common.stop import Stop, Stopped
from jobs.common.supervise import SPARK_ERRORS, describe, for_each_table, is_gone
from jobs.common.tables import StreamBusy, open_root
from jobs.common.work import Worker, plan_trim

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from engine.clock import Clock
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
    parser.add_argument(
        "--interval", type=positive_int, metavar="SECONDS", help="time between rounds (60)"
    )
    return run_job("maintain", parser, maintain, arguments)


def maintain(options: argparse.Namespace, settings: StreamSettings, report: Report) -> None:
    """Rounds until SIGTERM, or one."""
    # Before Spark starts: its JVM is as polite as its parent.
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, _NICE))
    interval_s = options.interval or settings.general.maintain.interval_seconds
    with Stop() as stop:

        def start() -> SparkSession:
            session = open_session("maintain")
            stop.arm()
            return session

        rounds = Rounds(settings, report, start)
        try:
            rounds.run(options.stream)
            while not options.once:
                stop.wait(interval_s)
                report.begin_round()
                rounds.run(options.stream)
        except (Stopped, KeyboardInterrupt):
            report.is_stopped = True
        finally:
            rounds.close()


class Rounds:
    """What is remembered from one round to the next."""

    def __init__(
        self,
        settings: StreamSettings,
        report: Report,
        session: Callable[[], SparkSession],
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._report = report
        self._clock = clock or SystemClock()
        self._storage: LocalStorage = open_root(settings.general.root)
        self._session = WarmSession(session)
        self._visited_ms = 0
        self._is_visit_due = False
        row_group_bytes = settings.general.read.row_group_bytes
        self.worker = Worker(report, self._clock, row_group_bytes=row_group_bytes)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def run(self, names: list[str] | None) -> None:
        """Look at every stream once; what fails is reported and tried again the next time."""
        try:
            self._run(names)
        except BadJobSettings:
            raise
        except Exception as error:  # noqa: BLE001  (supervised: the next round may go better)
            self._report.fail(f"the round was cut short: {describe(error)}")

    def _run(self, names: list[str] | None) -> None:
        begun_s = self._clock.monotonic_s()
        status = load_status(self._storage)
        every_ms = self._settings.general.maintain.retain_interval_seconds * 1000
        visited_ms = max(status.visited_ms, self._visited_ms)
        self._is_visit_due = self._clock.now_ms() - visited_ms >= every_ms
        for verb in _VERBS:
            old = status.jobs.get(verb, JobStatus())
            status.jobs[verb] = JobStatus(old.succeeded_ms, old.failures)
        for_each_table(
            self._storage, names, self._report, lambda table: self._look_at(table, status.jobs)
        )
        status.round_ms = self._clock.now_ms()
        status.round_seconds = round(self._clock.monotonic_s() - begun_s, 3)
        if self._is_visit_due:
            self._visited_ms = status.round_ms
            if not names:
                # Only then every stream had its turn, and a restart need not visit them again.
                status.visited_ms = status.round_ms
        if not self._report.is_dry:
            try:
                save_status(self._storage, status)
            except OSError as error:
                self._report.fail(f"the status cannot be written: {describe(error)}")

    def _look_at(self, table: StreamTable, status: dict[str, JobStatus]) -> None:
        compact = self._settings.compact(table, {})
        retain = self._settings.retain(table, {})
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
        except Exception as error:  # (supervised: one line, and the next verb)
            if isinstance(error, SPARK_ERRORS):
                # Whether it can still be trusted nobody knows; a new one costs seconds.
                self._session.close()
            if is_gone(self._storage, table.folder, table):
                raise
            status[verb].failures += 1
            self._report.fail(f"{table.name}: {verb}: {describe(error)}")
        else:
            entry["job"], entry["reason"] = verb, reason
            status[verb].succeeded_ms = self._clock.now_ms()

    def _commits_behind(self, table: StreamTable) -> int:
        return table.state.version - indexed_version(table.storage, table.folder)


if __name__ == "__main__":
    sys.exit(main())
