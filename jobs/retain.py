"""Retain: trim what is past its time, checkpoint, clean the log, vacuum, empty the trash."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from engine.clock import SystemClock
from engine.write.trash import TRASH_FOLDER
from jobs.common.args import (
    add_streams,
    duration_seconds,
    make_parser,
    offset_or_time,
    run_job,
    size,
)
from jobs.common.supervise import for_each_table
from jobs.common.tables import open_root
from jobs.common.work import Worker

if TYPE_CHECKING:
    import argparse

    from engine.storage import LocalStorage
    from jobs.common.report import Report
    from jobs.common.settings import StreamSettings
    from jobs.common.tables import StreamTable

EPILOG = """examples:
  spark-submit jobs/retain.py --root data --stream orders --age 30d
  bottomless retain --root data --dry-run

Whole files go, oldest first. A read before what is left is answered with 410 and the offset to go
on from. Trimmed and replaced files leave the disk after --vacuum-hours. Records that a fork still
reads are kept."""


def main(arguments: list[str] | None = None) -> int:
    """Run the job."""
    parser = make_parser("retain", "Apply retention to streams and free disk space.", epilog=EPILOG)
    add_streams(parser)
    parser.add_argument("--age", type=duration_seconds, help="trim records older than this: 30d")
    parser.add_argument("--bytes", type=size, help="trim while the table is larger: 10GiB")
    parser.add_argument("--records", type=int, help="trim while more records would stay")
    parser.add_argument(
        "--before", type=offset_or_time, help="trim records before an offset or time"
    )
    parser.add_argument("--vacuum-hours", type=int, help="keep replaced files this long (168)")
    return run_job("retain", parser, retain, arguments)


def retain(options: argparse.Namespace, settings: StreamSettings, report: Report) -> None:
    """Apply retention to every stream that was asked for."""
    storage = open_root(settings.general.root)
    worker = Worker(report, SystemClock(), row_group_bytes=settings.general.read.row_group_bytes)
    flags = {
        "age_seconds": options.age,
        "bytes": options.bytes,
        "records": options.records,
        "before": options.before,
        "vacuum_hours": options.vacuum_hours,
    }

    def work(table: StreamTable) -> None:
        worker.retain(table, settings.retain(table, flags))

    for_each_table(storage, options.stream, report, work)
    if not options.stream:
        report.totals["trash_removed"] = empty_trash(storage, is_dry=options.dry_run)


def empty_trash(storage: LocalStorage, *, is_dry: bool) -> int:
    """Tables of deleted and expired streams that the server had no time to remove."""
    names = storage.names(TRASH_FOLDER)
    if not is_dry:
        for name in names:
            storage.remove_folder(f"{TRASH_FOLDER}/{name}")
    return len(names)


if __name__ == "__main__":
    sys.exit(main())
