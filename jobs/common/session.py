"""The Spark session of a job. Master, memory and jars come from spark-submit and its defaults file;
the code sets only what its results depend on.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from pyspark.sql import SparkSession

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


def open_session(job: str) -> SparkSession:
    """The session that spark-submit prepared, or a local one."""
    # The Python workers import the engine, so they must be the Python that runs this; spark-submit
    # has said so already where it was told another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.appName(f"bottomless {job}").getOrCreate()
    prepare(session)
    return session


def prepare(session: SparkSession) -> None:
    """Make an existing session fit for the jobs, e.g. one of a notebook."""
    session.sparkContext.setLogLevel("ERROR")
    for name, value in _CONF.items():
        session.conf.set(name, value)
