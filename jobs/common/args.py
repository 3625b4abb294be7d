"""Flags that every job has, and how a job is run: parse, work, report, exit code."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from engine.errors import BottomlessError
from jobs.common.report import Report
from jobs.common.settings import BadJobSettings, StreamSettings, load_settings
from jobs.common.tables import explain

EXIT_PROBLEMS: Final = 1
EXIT_USAGE: Final = 2
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Work = Callable[[argparse.Namespace, StreamSettings, Report], None]


def make_parser(verb: str, summary: str, *, epilog: str = "") -> argparse.ArgumentParser:
    """A parser with the flags that every job has."""
    parser = argparse.ArgumentParser(
        prog=f"bottomless {verb}",
        description=summary,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--root", type=Path, help="data folder of the server (default: data)")
    parser.add_argument(
        "--config",
        type=Path,
        help="settings file (default: conf/bottomless.toml); streams.toml beside it has settings"
        " per stream",
    )
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be done")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the report")
    return parser


def add_streams(parser: argparse.ArgumentParser) -> None:
    """The flag for jobs that can look at several streams."""
    parser.add_argument(
        "--stream", action="append", metavar="NAME", help="only this stream; may be repeated"
    )


def size(text: str) -> int:
    """Bytes: 1048576, 64KiB, 128M."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 1048576, 64KiB or 128M")
    return int(match[1]) << (10 * " kmgt".index(match[2].lower() or " "))


def duration_seconds(text: str) -> int:
    """Seconds: 90, 30s, 15m, 2h, 7d, 4w."""
    match = _DURATION.fullmatch(text.strip() + ("s" if text.strip().isdigit() else ""))
    if match is None or match[2] == "ms":
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; write 90, 15m, 2h or 7d")
    return int(match[1]) * _SECONDS[match[2]]


def run_job(
    verb: str, parser: argparse.ArgumentParser, work: Work, arguments: list[str] | None
) -> int:
    """Run a job; its exit code. The report is the last line of standard output."""
    options = parser.parse_args(arguments)
    report = Report(verb, is_dry=options.dry_run, is_quiet=options.quiet)
    try:
        settings = load_settings(options.config, options.root)
        work(options, settings, report)
    except BadJobSettings as error:
        sys.stderr.write(f"bottomless {verb}: {error}\n")
        return EXIT_USAGE
    except BottomlessError as error:
        report.fail(explain(error))
    except (PySparkException, Py4JError) as error:
        # The first line says what; the rest is the JVM's stack.
        report.fail(f"Spark failed: {str(error).strip().splitlines()[0]}")
    except KeyboardInterrupt:
        report.fail("interrupted; nothing is lost, the next run goes on")
    report.print()
    return EXIT_PROBLEMS if report.problems else 0
