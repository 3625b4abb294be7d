"""One Spark session per run, with the Delta jars that `make jars` fetched.

Without Java or without the jars every test that asks for it is skipped with the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
JARS = Path(sys.prefix) / "delta-jars"


@pytest.fixture(scope="session")
def delta_jars() -> list[Path]:
    """The jar files to hand to Spark; skips where Spark cannot run."""
    found = subprocess.run(
        [ROOT / "scripts" / "find_java.sh"], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
    # PySpark starts $JAVA_HOME/bin/java, and the one on the PATH may be too old.
    os.environ["JAVA_HOME"] = found.stdout.strip()
    if not (JARS / ".stamp").exists():
        pytest.skip("the Delta jars are not here: run `make jars`")
    return sorted(JARS.glob("*.jar"))


@pytest.fixture(scope="session")
def spark(
    delta_jars: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A local session as a job would get it from spark-submit with conf/spark-defaults.conf."""
    from pyspark.sql import SparkSession

    # The driver's JVM is told on the command line what it cannot be told later.
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 2g pyspark-shell"
    # Without it Spark asks the resolver which address this host has, and warns or waits.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Spark's Python workers are those of the tests.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("bottomless-tests")
    for name, value in read_spark_defaults().items():
        builder = builder.config(name, value)
    scratch = tmp_path_factory.mktemp("spark")
    session = (
        builder.config("spark.jars", ",".join(map(str, delta_jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def read_spark_defaults() -> dict[str, str]:
    """The checked-in defaults, so that the tests run what the documentation tells users to run."""
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text().splitlines()
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {name: value.strip() for name, value in pairs}
