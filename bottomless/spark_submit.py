"""Starts a job: `python jobs/<verb>.py` with what `make install` has set up.

Not by spark-submit: that is a JVM with the job as its child, which hands no signal on, joins
standard error to standard output, and starts also where the job then needs no Spark. PySpark starts
the same JVM as a child of the job, with the same defaults file and jars, when there is need of it.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn

# These only read footers and write log entries: no machine needs Java for that.
_WITHOUT_JAVA: Final = frozenset({"index", "retain"})


class NoSpark(RuntimeError):
    """Spark or Java is missing; the message says what to do."""


def run_job(verb: str, arguments: list[str]) -> NoReturn:
    """Replace this process by the job: its signals, output and exit code are the job's own."""
    if importlib.util.find_spec("pyspark") is None:
        raise NoSpark(
            "PySpark is not installed: run `make install`, or pip install the extra spark"
        )
    script = _script(verb)
    environment = dict(os.environ)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    # Without it Spark asks the resolver which address this host has, and warns or waits.
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if verb not in _WITHOUT_JAVA and not {"-h", "--help"} & set(arguments):
        environment["JAVA_HOME"] = _java_home(script.parent.parent)
    os.execve(sys.executable, [sys.executable, str(script), *arguments], environment)


def _script(verb: str) -> Path:
    found = importlib.util.find_spec("jobs")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / f"{verb}.py"


def _java_home(clone: Path) -> str:
    finder = clone / "scripts" / "find_java.sh"
    if not finder.is_file():
        return os.environ.get("JAVA_HOME", "")
    found = subprocess.run([finder], capture_output=True, text=True, check=False)  # noqa: S603  (a script of ours)
    if found.returncode != 0:
        raise NoSpark(found.stderr.strip())
    return found.stdout.strip()
