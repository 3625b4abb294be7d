"""maintain as a process: what ends it, what outlives it (nothing), and what it survives."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from engine.job_status import load_status
from engine.storage import LocalStorage
from engine.table.replay import load_state, replay_log
from jobs import check
from jobs.common.report import Report
from jobs.common.settings import load_settings
from jobs.maintain import Rounds
from tests.support.load import wait_for
from tests.support.tables import small_commits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

CLONE = Path(__file__).resolve().parents[2]
SCRIPTS = Path(sys.executable).parent
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


class MaintainProcess:
    """A maintain in a process group of its own, with the environment of a plain shell."""

    def __init__(self, root: Path, command: list[str]) -> None:
        self.log_path = root.with_name("maintain.log")
        self.report_path = root.with_name("maintain.json")
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME")}
        with self.log_path.open("wb") as log, self.report_path.open("wb") as report:
            self.child = subprocess.Popen(
                [*command, "--root", str(root), "--interval", "1"],
                cwd=CLONE,
                env=kept,
                stdout=report,
                stderr=log,
                start_new_session=True,
            )

    def members(self) -> list[psutil.Process]:
        """Whoever is alive in the group: nobody there leaves it."""
        return [
            process
            for process in psutil.process_iter(["status"])
            if process.info["status"] != psutil.STATUS_ZOMBIE and _group_of(process) == self.group
        ]

    @property
    def group(self) -> int:
        return self.child.pid

    def jvm(self) -> psutil.Process | None:
        found = [process for process in self.members() if process.name() == "java"]
        return found[0] if found else None

    def end(self) -> dict[str, Any]:
        """SIGTERM: it ends soon, with success, a report and nobody left."""
        self.child.terminate()
        assert self.child.wait(STOP_TIMEOUT_S) == 0, self.log_path.read_text()
        assert self.members() == []
        lines = self.report_path.read_text().splitlines()
        assert len(lines) == 1, lines
        return json.loads(lines[0])

    def kill(self) -> None:
        if self.members():
            os.killpg(self.group, signal.SIGKILL)
        self.child.wait(STOP_TIMEOUT_S)


def _group_of(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def is_compacted(root: Path) -> bool:
    """Whether a round has ended that compacted something."""
    jobs = load_status(LocalStorage(root)).jobs
    return "compact" in jobs and jobs["compact"].succeeded_ms > 0


@pytest.fixture
def start(
    delta_jars: list[Path], tmp_path: Path
) -> Iterator[Callable[[list[str]], MaintainProcess]]:
    del delta_jars
    started: list[MaintainProcess] = []

    def begin(command: list[str]) -> MaintainProcess:
        started.append(MaintainProcess(tmp_path / "root", command))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


def test_maintain_survives_its_jvm_and_is_interrupted_while_spark_works(
    start: Callable[[list[str]], MaintainProcess],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "root"
    first = small_commits(root, "first", commits=12, rows=3)
    second = small_commits(tmp_path / "aside", "second", commits=600, rows=300)
    process = start([str(SCRIPTS / "bottomless"), "maintain"])
    wait_for(lambda: is_compacted(root), f"compaction ({process.log_path})", START_TIMEOUT_S)
    assert len(load_state(first.storage, first.folder).files) == 1
    jvm = process.jvm()
    assert jvm is not None
    assert jvm.nice() >= 10

    jvm.kill()
    second.path.rename(root / second.folder)
    staging = root / second.folder / "_staging"
    wait_for(staging.exists, f"a new session ({process.log_path})", START_TIMEOUT_S)
    report = process.end()

    assert (report["job"], report["stopped"], report["problems"]) == ("maintain", True, [])
    assert "Traceback" not in process.log_path.read_text()
    state = replay_log(LocalStorage(root), second.folder)
    assert sum(file.rows for file in state.files.values()) == 180_000
    assert check.main(["--root", str(root), "--dry-run", "--quiet"]) == 0
    capsys.readouterr()


def test_maintain_ends_with_the_jvm_of_spark_submit(
    start: Callable[[list[str]], MaintainProcess], tmp_path: Path
) -> None:
    small_commits(tmp_path / "root", "orders", commits=3, rows=3)
    process = start([str(SCRIPTS / "spark-submit"), "jobs/maintain.py"])
    storage = LocalStorage(tmp_path / "root")
    wait_for(lambda: load_status(storage).round_ms > 0, "a round", START_TIMEOUT_S)

    process.child.terminate()

    process.child.wait(STOP_TIMEOUT_S)
    wait_for(lambda: process.members() == [], "the end of all", STOP_TIMEOUT_S)


@pytest.mark.parametrize("moment", ["before Spark reads", "before the commit"])
def test_maintain_takes_a_stream_deleted_while_it_is_compacted_for_gone(
    spark: SparkSession, tmp_path: Path, moment: str
) -> None:
    doomed = small_commits(tmp_path, "aaa", commits=12, rows=3)
    small_commits(tmp_path, "bbb", commits=12, rows=3)
    report = Report("maintain", is_quiet=True)

    def delete() -> None:
        if doomed.path.exists():  # As the server does it.
            (tmp_path / "_trash").mkdir()
            doomed.path.rename(tmp_path / "_trash" / "aaa")
            shutil.rmtree(tmp_path / "_trash")

    def session() -> SparkSession:
        if moment == "before Spark reads":
            delete()
        return spark

    rounds = Rounds(load_settings(None, tmp_path), report, session)
    rounds.worker.before_commit = delete if moment == "before the commit" else None

    rounds.run(None)

    assert report.problems == []
    assert not (tmp_path / "aaa" / "_delta_log").exists()
    done = [entry["stream"] for entry in report.streams if entry["job"] == "compact"]
    assert "bbb" in done
    assert load_status(LocalStorage(tmp_path)).jobs["compact"].failures == 0
