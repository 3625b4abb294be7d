"""The Spark session of a job. Master, memory and jars come from spark-submit or the defaults file
that `make install` has put into PySpark; the code sets only what its results depend on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Callable

# What the jobs' results and running times depend on, whoever started the session.
_CONF: Final = {
    # Times in tables are instants.
    "spark.sql.session.timeZone": "UTC",
    # Delta and every other reader take microseconds; the default is the obsolete INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Thousands of small files: one task opens many of them, and the driver looks at them itself
    # (a listing job of one task per file took ten times as long).
    "spark.sql.files.openCostInBytes": "131072",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # Folders of ours begin with an underscore; no _SUCCESS file belongs between them.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
# A JVM that is told to end removes its scratch folders first.
_JVM_END_S: Final = 5.0


class WarmSession:
    """A session that is opened at the first need, kept, and opened anew once it has died."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._session: SparkSession | None = None
        self._is_ours = False

    def __call__(self) -> SparkSession:
        """The session; takes seconds where there is none."""
        if self._session is not None and not _is_alive(self._session):
            self.close()
        if self._session is None:
            # One that a notebook has opened is not ours to end.
            self._is_ours = SparkContext._active_spark_context is None
            before = _children()
            try:
                self._session = self._start()
            except BaseException:
                # PySpark forgets a JVM whose start was interrupted.
                for child in _children() - before if self._is_ours else ():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                raise
        return self._session

    def close(self) -> None:
        """End the session and its JVM; the next need opens another one."""
        session, self._session = self._session, None
        if session is not None and self._is_ours:
            _end(session)


def is_child_of_spark() -> bool:
    """Whether spark-submit has started this process: then its JVM is our parent."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def open_session(job: str) -> SparkSession:
    """The session that spark-submit prepared, or a local one."""
    # The Python workers import the engine, so they must be the Python that runs this; spark-submit
    # has said so already where it was told another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging.getLogger().addFilter(_is_not_of_py4j)
    session = SparkSession.builder.appName(f"bottomless {job}").getOrCreate()
    prepare(session)
    return session


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """What Py4J logs, with its stack and through the root logger, it also raises; and a job tells
    an error in one line.
    """
    return "py4j" not in Path(record.pathname).parts


def prepare(session: SparkSession) -> None:
    """Make an existing session fit for the jobs, e.g. one of a notebook."""
    session.sparkContext.setLogLevel("ERROR")
    for name, value in _CONF.items():
        session.conf.set(name, value)


def _is_alive(session: SparkSession) -> bool:
    process = _process()
    if process is not None and process.poll() is not None:
        return False
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except Exception:  # noqa: BLE001  (supervised: a dead JVM answers in many ways)
        return False


def _end(session: SparkSession) -> None:
    """Nothing is asked of the JVM that a dead, a hung or an interrupted one could not do."""
    process = _process()
    if process is None:
        # It is the JVM of spark-submit, which ends with us.
        with contextlib.suppress(Exception):
            session.stop()
        return
    assert process.stdin is not None
    # It waits for the end of its input, cleans up and exits.
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_JVM_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # What PySpark remembers of it, without a call into it: else the next session were this one.
    context = session.sparkContext
    context._jsc = None
    context.stop()
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _process() -> subprocess.Popen[bytes] | None:
    """The JVM, where PySpark has started it."""
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    return process


def _children() -> set[int]:
    """Processes that this one has started."""
    lists = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    return {int(child) for children in lists for child in children}
