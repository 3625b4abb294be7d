"""Check: fsck for streams. Reads every byte, prints what is wrong, exits 1 if anything is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from engine.clock import SystemClock
from engine.format.offset import format_stored
from engine.storage import LocalStorage
from engine.table.checkpoint import is_damaged
from engine.table.companion import index_versions, load_index
from engine.table.replay import entry_path, list_log, newer_entries, read_log_entry
from engine.table.vacuum import stray_files
from jobs.common.args import add_streams, make_parser, run_job
from jobs.common.session import WarmSession, open_session
from jobs.common.supervise import for_each_table, is_gone
from jobs.common.tables import open_root
from jobs.common.verify import RESULT_SCHEMA, FileFacts, verify_batches, verify_file, verify_log

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from jobs.common.report import Report
    from jobs.common.settings import StreamSettings
    from jobs.common.tables import StreamTable

EPILOG = """examples:
  spark-submit jobs/check.py --root data --stream orders
  bottomless check --root data

Checks that offsets rise by one within an epoch and begin at 1 in a new one, in every file and from
file to file; that counts, sizes and statistics of the log are those of the files; page checksums;
the index; and that no orphan outlived the vacuum horizon. With --dry-run only the logs."""

_HOUR_MS = 3_600_000
_ATTEMPTS = 3
# So much is read before Spark has begun: a root may have thousands of small streams.
_FEW_FILES = 64
_FEW_BYTES = 32 * 1024 * 1024
_FACTS_SCHEMA = (
    "path string, full_path string, size bigint, first string, last string, rows bigint,"
    " kind string"
)


def main(arguments: list[str] | None = None) -> int:
    """Run the job."""
    parser = make_parser("check", "Check that streams are whole.", epilog=EPILOG)
    add_streams(parser)
    return run_job("check", parser, check, arguments)


def check(options: argparse.Namespace, settings: StreamSettings, report: Report) -> None:
    """Check every stream that was asked for."""
    storage = open_root(settings.general.root)
    session = WarmSession(lambda: open_session("check"))

    def work(table: StreamTable) -> None:
        horizon_hours = settings.retain(table, {}).vacuum_hours
        check_table(table, session, report, horizon_hours=horizon_hours)

    for_each_table(storage, options.stream, report, work)


def check_table(
    table: StreamTable,
    session: Callable[[], SparkSession],
    report: Report,
    *,
    horizon_hours: int,
) -> None:
    """One stream, as of now. A compaction may replace files while they are read: then again."""
    table.refresh(from_log=True)
    entries = _check_entries(table)
    problems = verify_log(table)
    found: list[str] = []
    for _ in range(0 if report.is_dry else _ATTEMPTS):
        version = table.state.version
        found = _check_files(table, session, report)
        if not found:
            break
        table.refresh(from_log=True)
        problems = verify_log(table)
        if table.state.version == version:
            break
    problems += entries + found + _check_index(table) + _check_orphans(table, horizon_hours)
    if problems and is_gone(LocalStorage(table.storage.root), table.folder, table):
        report.say(f"{table.name}: was deleted meanwhile")
        return
    for problem in problems:
        report.fail(f"{table.name}: {problem}")
    report.add(
        table.name,
        version=table.state.version,
        files=len(table.state.files),
        bytes=table.bytes,
        rows=table.rows,
        problems=len(problems),
    )


def _check_entries(table: StreamTable) -> list[str]:
    """Also those that a checkpoint covers: whoever reads the stream from its start needs them."""
    storage, folder = table.storage, table.folder
    listing = list_log(storage, folder)
    problems = [
        f"the checkpoint of version {version} is damaged; remove it"
        for version in listing.checkpoints
        if is_damaged(storage, folder, version)
    ]
    for before, version in zip(listing.entries, listing.entries[1:], strict=False):
        if version != before + 1:
            problems.append(f"the log entries of versions {before + 1} to {version - 1} are gone")
    for version in listing.entries:
        # A running clean-up removes old ones.
        entry = read_log_entry(storage, folder, version)
        if entry is None and storage.exists(entry_path(folder, version)):
            problems.append(f"the log entry of version {version} is damaged")
    return problems


def _check_files(
    table: StreamTable, session: Callable[[], SparkSession], report: Report
) -> list[str]:
    folder = table.storage.uri(table.folder)
    facts = [
        FileFacts(
            file.path,
            f"{folder}/{file.path}",
            file.size,
            format_stored(file.first),
            format_stored(file.last),
            file.rows,
            table.kind.value,
        )
        for file in table.state.files.values()
    ]
    if len(facts) <= _FEW_FILES and table.bytes <= _FEW_BYTES:
        found = [(fact.path, verify_file(fact)[1]) for fact in facts]
        return [f"{path}: {problem}" for path, problem in found if problem is not None]
    spark = session()
    rows = [tuple(getattr(fact, name) for name in FileFacts.__slots__) for fact in facts]
    parts = min(len(facts), 4 * spark.sparkContext.defaultParallelism)
    with report.progress(f"{table.name}: reading {len(facts)} files", spark):
        bad = (
            spark.createDataFrame(rows, _FACTS_SCHEMA)
            .repartition(parts)
            .mapInArrow(verify_batches, RESULT_SCHEMA)
            .where("problem is not null")
            .orderBy("path")
            .collect()
        )
    return [f"{row.path}: {row.problem}" for row in bad]


def _check_index(table: StreamTable) -> list[str]:
    """Every index can be read, and the log, read on from the newest, leads to the same files."""
    storage, folder = table.storage, table.folder
    problems = []
    for version in index_versions(storage, folder):
        found = load_index(storage, folder, version_max=version)
        # A running `index` removes old ones.
        is_read = found is not None and found.version == version
        if not is_read and version in index_versions(storage, folder):
            problems.append(f"the index of version {version} cannot be read; remove it")
    state = load_index(storage, folder, version_max=table.state.version)
    if state is None:
        return problems
    for entry in newer_entries(storage, folder, state.version):
        if state.version < table.state.version:
            state.apply(entry, state.version + 1)
    # Where the log has been cleaned up after the index, it goes on from a checkpoint: there is
    # nothing left to compare, and the server does not use such an index either.
    is_comparable = state.version == table.state.version
    if is_comparable and (state.files, state.txns) != (table.state.files, table.state.txns):
        problems.append("the index does not say what the log says; remove the _index folder")
    return problems


def _check_orphans(table: StreamTable, horizon_hours: int) -> list[str]:
    now_ms = SystemClock().now_ms()
    # A day of grace: retain comes by once an hour at most.
    horizon_ms = (horizon_hours + 24) * _HOUR_MS
    return [
        f"{stray.path}: no version names it; `bottomless retain` removes it"
        for stray in stray_files(table.storage, table.folder, table.state)
        if stray.removed_ms is None and stray.is_expired(now_ms=now_ms, horizon_ms=horizon_ms)
    ]


if __name__ == "__main__":
    sys.exit(main())
