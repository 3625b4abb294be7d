"""What compact, index and retain do to one stream; also what maintain does to all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from engine.errors import ChangeLost
from engine.format.offset import START, epoch_of, format_stored, parse_offset
from engine.table.change import commit_change, trim_of
from engine.table.checkpoint import checkpoint_hint, write_checkpoint
from engine.table.companion import GroupBounds, indexed_version, load_groups, write_index
from engine.table.vacuum import stray_files
from jobs.common.plan import plan_compaction, rounds_of
from jobs.common.rewrite import Rewriter
from jobs.common.tables import lock_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from engine.clock import Clock
    from engine.settings import CompactSettings, RetainSettings
    from engine.table.actions import DataFile
    from jobs.common.report import Report
    from jobs.common.tables import StreamTable

_FOOTER_THREADS: Final = 4
_HOUR_MS: Final = 3_600_000


class Worker:
    """Work on one table at a time, with a report."""

    def __init__(self, report: Report, clock: Clock, *, row_group_bytes: int) -> None:
        self._report = report
        self._clock = clock
        self._row_group_bytes = row_group_bytes
        self.before_commit: Callable[[], None] | None = None
        """Called between the last look at the inputs and the commit: tests provoke races here."""

    # Compact.

    def compact(
        self, table: StreamTable, settings: CompactSettings, spark: Callable[[], SparkSession]
    ) -> dict[str, Any]:
        """Join small files; a session is only asked for where there is something to join."""
        report = self._report
        bins = plan_compaction(table.state.files.values(), settings, now_ms=self._clock.now_ms())
        facts = dict.fromkeys(("files_in", "files_out", "bytes_in", "bytes_out", "rows"), 0)
        facts["version"] = table.state.version
        if report.is_dry:
            facts |= {
                "files_in": sum(len(bin_.files) for bin_ in bins),
                "files_out": len(bins),
                "bytes_in": sum(bin_.bytes for bin_ in bins),
                "rows": sum(bin_.rows for bin_ in bins),
            }
            report.say(f"{table.name}: would make {len(bins)} of {facts['files_in']} files")
            return report.add(table.name, **facts)
        with lock_table(table.storage, table.folder):
            table.refresh()
            bins = plan_compaction(
                table.state.files.values(), settings, now_ms=self._clock.now_ms()
            )
            rewriter: Rewriter | None = None
            for number, bins_of_round in enumerate(rounds := rounds_of(bins, settings)):
                session = spark()
                if rewriter is None:
                    rewriter = Rewriter(
                        session, table, self._clock, row_group_bytes=self._row_group_bytes
                    )
                    facts["litter"] = rewriter.clean()
                title = f"{table.name}: round {number + 1} of {len(rounds)}"
                with report.progress(title, session):
                    try:
                        done = rewriter.rewrite(bins_of_round, self.before_commit)
                    except ChangeLost as error:
                        # The next run plans anew; the files are litter that it removes.
                        report.say(f"{table.name}: {error.message}; dropped")
                        facts["lost"] = facts.get("lost", 0) + 1
                        break
                for key in ("files_in", "files_out", "bytes_in", "bytes_out", "rows"):
                    facts[key] += getattr(done, key)
                facts["version"] = done.version
        entry = report.add(table.name, **facts)
        entry["write_amplification"] = round(table.state.write_amplification, 3)
        entry["files"] = len(table.state.files)
        return entry

    # Index.

    def index(self, table: StreamTable) -> dict[str, Any]:
        """Make the index of the newest version; footers that are known are not read again."""
        report, storage = self._report, table.storage
        indexed = indexed_version(storage, table.folder)
        facts = {
            "version": table.state.version,
            "commits_behind": table.state.version - indexed,
            "files": len(table.state.files),
            "footers_read": 0,
            "bytes_out": 0,
        }
        if report.is_dry or indexed == table.state.version:
            return report.add(table.name, **facts)
        with lock_table(storage, table.folder):
            known = load_groups(storage, table.folder)
            missing = [path for path in table.state.files if path not in known]
            with report.progress(f"{table.name}: reading footers") as step:
                step.total = len(missing)
                with ThreadPoolExecutor(_FOOTER_THREADS, "footers") as pool:
                    paths = [storage.uri(f"{table.folder}/{path}") for path in missing]
                    for path, groups in zip(missing, pool.map(read_groups, paths), strict=True):
                        known[path] = groups
                        step.done += 1
            # An index never speaks of a version that a power cut can take.
            storage.sync_all()
            facts["bytes_out"] = write_index(storage, table.folder, table.state, known)
            facts["footers_read"] = len(missing)
        return report.add(table.name, **facts)

    # Retain.

    def retain(self, table: StreamTable, settings: RetainSettings) -> dict[str, Any]:
        """Trim what is past its time, then remove from the disk what nobody needs."""
        report = self._report
        doomed = plan_trim(table, settings, now_ms=self._clock.now_ms())
        facts: dict[str, Any] = {
            "version": table.state.version,
            "files_trimmed": len(doomed),
            "rows_trimmed": sum(file.rows for file in doomed),
            "bytes_trimmed": sum(file.size for file in doomed),
        }
        if report.is_dry:
            facts |= self._vacuum(table, settings, is_dry=True)
            return report.add(table.name, **facts)
        with lock_table(table.storage, table.folder):
            if doomed:
                try:
                    facts["version"] = self._trim(table, doomed)
                except ChangeLost as error:
                    report.say(f"{table.name}: {error.message}; dropped")
                    facts |= {"files_trimmed": 0, "rows_trimmed": 0, "bytes_trimmed": 0, "lost": 1}
            facts["earliest"] = format_stored(table.state.trimmed)
            if checkpoint_hint(table.storage, table.folder) < table.state.version:
                write_checkpoint(table.storage, table.folder)
                facts["checkpoint"] = True
            facts |= self._vacuum(table, settings, is_dry=False)
        return report.add(table.name, **facts)

    def _trim(self, table: StreamTable, doomed: list[DataFile]) -> int:
        if self.before_commit is not None:
            self.before_commit()
        change = trim_of(table.state, doomed)
        version = commit_change(
            table.storage, table.folder, table.state, change, now_ms=self._clock.now_ms()
        )
        table.storage.sync_all()
        return version

    def _vacuum(
        self, table: StreamTable, settings: RetainSettings, *, is_dry: bool
    ) -> dict[str, int]:
        storage = table.storage
        # From the log itself: a file goes for ever, and no shortcut decides that.
        table.refresh(from_log=True)
        now_ms, horizon_ms = self._clock.now_ms(), settings.vacuum_hours * _HOUR_MS
        expired = [
            stray
            for stray in stray_files(storage, table.folder, table.state)
            if stray.is_expired(now_ms=now_ms, horizon_ms=horizon_ms)
        ]
        if expired and not is_dry:
            # What replaced the files must be on the disk before they go (F1).
            storage.sync_all()
            for stray in expired:
                storage.remove(f"{table.folder}/{stray.path}")
        return {
            "files_vacuumed": len(expired),
            "bytes_vacuumed": sum(stray.size for stray in expired),
        }


def plan_trim(table: StreamTable, settings: RetainSettings, *, now_ms: int) -> list[DataFile]:
    """The oldest files that are wholly past a bound. Forks keep what they read."""
    files = sorted(table.state.files.values(), key=lambda file: file.first)
    size, rows = table.bytes, table.rows
    oldest_ms = now_ms - settings.age_seconds * 1000
    before = parse_offset(settings.before) if settings.before else START
    doomed = []
    for file in files:
        is_old = settings.age_seconds > 0 and epoch_of(file.last) < oldest_ms
        is_over = settings.bytes > 0 and size > settings.bytes
        # Whole files go, so as many records stay as were asked for, or a few more.
        is_many = settings.records > 0 and rows - file.rows >= settings.records
        is_given_up = file.last < before
        if file.first <= table.state.held or not (is_old or is_over or is_many or is_given_up):
            break
        doomed.append(file)
        size, rows = size - file.size, rows - file.rows
    return doomed


def read_groups(path: str) -> list[GroupBounds]:
    """What each row group of a file holds, from its footer."""
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    bounds = []
    for group in groups:
        statistics = group.column(0).statistics
        first, last = parse_offset(statistics.min), parse_offset(statistics.max)
        bounds.append(GroupBounds(group.num_rows, first, last))
    return bounds
