"""Compact: small flush files become a few sorted ones, beside the live server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from engine.clock import SystemClock
from jobs.common.args import add_streams, make_parser, positive_int, run_job, size
from jobs.common.session import WarmSession, open_session
from jobs.common.supervise import for_each_table
from jobs.common.tables import open_root
from jobs.common.work import Worker

if TYPE_CHECKING:
    import argparse

    from jobs.common.report import Report
    from jobs.common.settings import StreamSettings
    from jobs.common.tables import StreamTable

EPILOG = """examples:
  spark-submit jobs/compact.py --root data --stream orders
  bottomless compact --root data --dry-run
  bottomless compact --root data --target-file-bytes 256MiB --files-min 4

Readers, tailers and readStream jobs notice nothing: the same rows, in fewer files. A second run
does nothing. Replaced files stay on the disk until `retain` vacuums them."""


def main(arguments: list[str] | None = None) -> int:
    """Run the job."""
    parser = make_parser(
        "compact", "Join small files of streams into large, sorted ones.", epilog=EPILOG
    )
    add_streams(parser)
    parser.add_argument("--target-file-bytes", type=size, help="size of a good file (128MiB)")
    parser.add_argument(
        "--files-min", type=positive_int, help="fewer neighbours stay as they are (8)"
    )
    parser.add_argument("--rows-max", type=positive_int, help="most rows of one file (20000000)")
    parser.add_argument("--settle-seconds", type=int, help="leave files younger than this (10)")
    parser.add_argument("--round-bytes", type=size, help="most bytes of one commit (2GiB)")
    return run_job("compact", parser, compact, arguments)


def compact(options: argparse.Namespace, settings: StreamSettings, report: Report) -> None:
    """Compact every stream that was asked for."""
    storage = open_root(settings.general.root)
    worker = Worker(report, SystemClock(), row_group_bytes=settings.general.read.row_group_bytes)
    session = WarmSession(lambda: open_session("compact"))
    keys = ("target_file_bytes", "files_min", "rows_max", "settle_seconds", "round_bytes")
    flags = {key: getattr(options, key) for key in keys}

    def work(table: StreamTable) -> None:
        worker.compact(table, settings.compact(table, flags), session)

    for_each_table(storage, options.stream, report, work)


if __name__ == "__main__":
    sys.exit(main())
