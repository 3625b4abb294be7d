"""A server on a disk whose power is cut at a step, under load and judged by the oracle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.lifecycle import LifeWriter
from tests.support.load import wait_for
from tests.support.loopdisk import is_halted
from tests.support.server import CLONE, ServerProcess, child_environment
from tests.support.workload import LIVES_PER_ROUND, STREAMS, Load, check_table, table_rows

if TYPE_CHECKING:
    import random

    from tests.support.loopdisk import LoopDisk

STEP_TIMEOUT_S = 60.0
# A JVM starts in it.
JOB_TIMEOUT_S = 180.0
NTH_MAX = 4
# A second holds many commits, checkpoints and segments; a trim comes once a second.
ENV = {
    "BOTTOMLESS_COMMIT__INTERVAL_MS": "50",
    "BOTTOMLESS_COMMIT__CHECKPOINT_EVERY": "3",
    "BOTTOMLESS_WAL__SEGMENT_BYTES": "4096",
}


class Aim:
    """One root over all its lives. Its server's log and the oracle lie elsewhere."""

    load: Load

    def __init__(self, disk: LoopDisk, rng: random.Random) -> None:
        self.disk = disk
        self.rng = rng
        log_path = disk.folder / "server.log"
        self.server = ServerProcess(disk.mount_point / "data", env=ENV, log_path=log_path)
        self._armed = disk.folder / "armed"
        self._lives = 0
        self._jobs: list[JobProcess] = []

    def __enter__(self) -> Aim:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
        for job in self._jobs:
            job.close()

    def command(self, step: str, nth: int, careless: str = "-") -> tuple[str, ...]:
        """What stands in front of a program that is to stop in the nth call of the step."""
        armed = str(self._armed)
        return sys.executable, "-m", "tests.faults.halting", step, str(nth), armed, careless

    def cut_while_writing(
        self, step: str, nth: int, *, names: bool = False, careless: str = "-"
    ) -> None:
        """Start, check what was, then write until the step comes, and cut the power.

        ``names``: those of all files are on the disk, with the journal that another program synced.
        """
        self.start(*self.command(step, nth, careless))
        self.begin_load()
        self._armed.touch()
        wait_for(self._is_at_step, f"{nth} times: {step}", STEP_TIMEOUT_S)
        self.cut(names=names)
        self.load.join()

    def cut_while_starting(self, step: str, *, names: bool = False) -> None:
        """The same for a step of the start after a cut."""
        self.server.wrapper = self.command(step, 1)
        self._armed.touch()
        self.server.spawn()
        wait_for(lambda: is_halted(self.server.pid), step, STEP_TIMEOUT_S)
        self.cut(names=names)

    def start(self, *wrapper: str) -> None:
        """Start the server, behind the command if there is one; every promise so far."""
        self.server.wrapper = wrapper
        self.server.restart()
        if not hasattr(self, "load"):
            self.load = Load(self.server, self.rng)
        else:
            self.check()

    def check(self) -> None:
        """Every promise so far, over HTTP and in the tables."""
        self.load.check()
        for name in STREAMS:
            check_table(self.load.histories[name], table_rows(self.server.root, name))

    def begin_load(self) -> None:
        """Write from now on, until the server is gone."""
        self._lives += 1
        self.load.start(self._lives)

    def _is_at_step(self) -> bool:
        """Short-lived streams come and go until it is: some steps happen to them only."""
        is_there = is_halted(self.server.pid)
        if not is_there and not self.load.life.is_alive():
            self.load.life_streams += self.load.life.streams
            self._lives += 1
            seed, number = self.rng.getrandbits(32), str(self._lives)
            self.load.life = LifeWriter(self.server.url, seed, number, LIVES_PER_ROUND)
            self.load.life.start()
        return is_there

    def cut(self, job: JobProcess | None = None, *, names: bool = False) -> None:
        """The power goes away from the server, if there is one, and from a job beside it."""
        self._armed.unlink()
        if names:
            self.disk.sync_something()
        pids = [self.server.pid] if self.server.is_running else []
        pids += [] if job is None else job.pids()

        def end() -> None:
            if self.server.is_running:
                self.server.kill9()
            if job is not None:
                job.close()

        self.disk.cut(pids, end)

    def job(
        self, step: str, verb: str, *flags: str, nth: int = 1, careless: str = "-"
    ) -> JobProcess:
        """A job beside the server, once it has stopped at the step."""
        self._armed.touch()
        command = [*self.command(step, nth, careless), verb, "--root", str(self.server.root)]
        job = JobProcess([*command, *flags], self.disk.folder / f"{verb}.log")
        self._jobs.append(job)
        wait_for(job.is_at_step, f"{step} ({job.log_path})", JOB_TIMEOUT_S)
        return job

    def torn_commits(self) -> list[Path]:
        """Entries without a byte in them, put aside by a start."""
        found = self.server.root.glob("*/_aside/*.json")
        return [path for path in found if not path.stat().st_size]


class JobProcess:
    """A job and its JVM, in a process group of their own."""

    def __init__(self, command: list[str], log_path: Path) -> None:
        self.log_path = log_path
        # What Spark writes aside goes with the test.
        scratch = log_path.with_name("spark")
        spark = {"SPARK_LOCAL_DIRS": str(scratch), "SPARK_LOCAL_IP": "127.0.0.1"}
        env = child_environment({**spark, "PYSPARK_SUBMIT_ARGS": "pyspark-shell"})
        with log_path.open("ab") as log:
            self._child = subprocess.Popen(
                command, cwd=CLONE, env=env, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """The job itself."""
        return self._child.pid

    def pids(self) -> list[int]:
        """All of the group that still run."""
        processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [int(path.name) for path in processes if group_of(path) == self.pid]

    def is_at_step(self) -> bool:
        """Whether it has stopped itself; fails where it has come to its end."""
        assert self._child.poll() is None, self.log_path.read_text()
        return is_halted(self.pid)

    def close(self) -> None:
        """Kill the whole group."""
        if self._child.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait()


def group_of(process: Path) -> int:
    """The process group; 0 where the process is gone."""
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    except (FileNotFoundError, ProcessLookupError):
        return 0
