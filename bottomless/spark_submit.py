"""Starts a job as `spark-submit jobs/<verb>.py` with what `make install` has set up."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn

# These only read footers and write log entries: a JVM would be started for nothing.
_WITHOUT_SPARK: Final = frozenset({"index", "retain"})


class NoSpark(RuntimeError):
    """Spark or Java is missing; the message says what to do."""


def run_job(verb: str, arguments: list[str]) -> NoReturn:
    """Replace this process by the job: its signals, output and exit code are the job's own."""
    script = _script(verb)
    environment = dict(os.environ)
    if verb in _WITHOUT_SPARK or {"-h", "--help"} & set(arguments):
        _require_pyspark()
        os.execve(sys.executable, [sys.executable, str(script), *arguments], environment)
    submit = _spark_submit()
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    # Without it Spark asks the resolver which address this host has, and warns or waits.
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    environment["JAVA_HOME"] = _java_home(script.parent.parent)
    os.execve(submit, [submit, str(script), *arguments], environment)


def _script(verb: str) -> Path:
    found = importlib.util.find_spec("jobs")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / f"{verb}.py"


def _require_pyspark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise NoSpark(
            "PySpark is not installed: run `make install`, or pip install the extra spark"
        )


def _spark_submit() -> str:
    _require_pyspark()
    beside = Path(sys.executable).parent / "spark-submit"
    found = str(beside) if beside.is_file() else shutil.which("spark-submit")
    if found is None:
        raise NoSpark("there is no spark-submit: run `make install`")
    return found


def _java_home(clone: Path) -> str:
    finder = clone / "scripts" / "find_java.sh"
    if not finder.is_file():
        return os.environ.get("JAVA_HOME", "")
    found = subprocess.run([finder], capture_output=True, text=True, check=False)  # noqa: S603  (a script of ours)
    if found.returncode != 0:
        raise NoSpark(found.stderr.strip())
    return found.stdout.strip()
