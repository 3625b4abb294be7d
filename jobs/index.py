"""Index: the offsets and times of every file and row group, for the server to open streams fast."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from engine.clock import SystemClock
from jobs.common.args import add_streams, make_parser, run_job
from jobs.common.supervise import for_each_table
from jobs.common.tables import open_root
from jobs.common.work import Worker

if TYPE_CHECKING:
    import argparse

    from jobs.common.report import Report
    from jobs.common.settings import StreamSettings

EPILOG = """examples:
  spark-submit jobs/index.py --root data --stream orders
  bottomless index --root data

The index is one Parquet file in the _index folder of the stream's table, readable by everything
that reads Parquet. It is a shortcut: without it the server reads the table's log."""


def main(arguments: list[str] | None = None) -> int:
    """Run the job."""
    parser = make_parser("index", "Write the offset index of streams.", epilog=EPILOG)
    add_streams(parser)
    return run_job("index", parser, index, arguments)


def index(options: argparse.Namespace, settings: StreamSettings, report: Report) -> None:
    """Index every stream that was asked for."""
    storage = open_root(settings.general.root)
    worker = Worker(report, SystemClock(), row_group_bytes=settings.general.read.row_group_bytes)
    for_each_table(storage, options.stream, report, worker.index)


if __name__ == "__main__":
    sys.exit(main())
