"""Flags that every job has, and how a job is run: parse, work, report, exit code."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from engine.settings import trim_point
from jobs.common.report import Report
from jobs.common.settings import BadJobSettings, StreamSettings, load_settings
from jobs.common.supervise import describe

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


def offset_or_time(text: str) -> str:
    """An offset or a moment, as a stored offset."""
    try:
        return trim_point(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def positive_int(text: str) -> int:
    """A whole number from 1 up."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return number


def positive_float(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def run_job(
    verb: str, parser: argparse.ArgumentParser, work: Work, arguments: list[str] | None
) -> int:
    """Run a job; its exit code. The report is the last line of standard output in any case."""
    options = parser.parse_args(arguments)
    report = Report(verb, is_dry=options.dry_run, is_quiet=options.quiet)
    try:
        settings = load_settings(options.config, options.root)
        work(options, settings, report)
    except BadJobSettings as error:
        sys.stderr.write(f"bottomless {verb}: {error}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        report.fail("interrupted; nothing is lost, the next run goes on")
    except Exception as error:  # noqa: BLE001  (supervised: whoever runs the job reads its report)
        report.fail(describe(error))
    report.print()
    return EXIT_PROBLEMS if report.problems and not report.is_stopped else 0
