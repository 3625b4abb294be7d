"""K2, compact, retain and index beside a live server under load, killed at random moments; the
server is killed too, before or after them."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from engine.storage import LocalStorage
from engine.table.change import commit_change, rewrite_of
from jobs import compact, index, retain
from jobs.common.tables import find_table
from tests.faults.scale import IS_LONG, times
from tests.support.job_process import JobProcess
from tests.support.load import Client, LogBroken, StreamHistory
from tests.support.server import ServerProcess
from tests.support.workload import (
    STREAMS,
    Load,
    check_table,
    seed_of_run,
    table_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.faults.ledger import Tally
    from tests.faults.whole import WholeCheck

# Each round kills three jobs and the server; a JVM of its own for each takes the time.
ROUNDS = times(quick=1, long=15)
# Replaced files of this stream go at once, under the eyes of whoever reads them. That takes its
# past from readStream, so that is asked about the others.
VACUUMED = "events"
# Small rounds: several commits of one run.
COMPACT = ("--settle-seconds", "0", "--files-min", "2", "--target-file-bytes", "256KiB")
COMPACT += ("--round-bytes", "1MiB")
RETAIN = ("--stream", VACUUMED, "--vacuum-hours", "0")


def settings(rng: random.Random) -> dict[str, str]:
    """A few commits a second: enough for a race with each rewrite, few enough for Spark."""
    return {
        "BOTTOMLESS_COMMIT__INTERVAL_MS": str(rng.choice([100, 200, 400])),
        "BOTTOMLESS_COMMIT__CHECKPOINT_EVERY": str(rng.choice([10, 100])),
        "BOTTOMLESS_WAL__SEGMENT_BYTES": str(rng.choice([16_384, 65_536])),
    }


class Round:
    """One stretch of load with all jobs beside it, each of them killed."""

    def __init__(self, load: Load, rng: random.Random) -> None:
        self._load = load
        self._server = load.server
        self._rng = rng
        self.kills: dict[str, int] = {"compact": 0, "index": 0, "retain": 0}

    def run(self, number: int) -> None:
        """Kill the jobs and the server, in any order, then check."""
        root, rng = self._server.root, self._rng
        self._load.start(number)
        # One stream after the other: the first rewrite of a JVM takes its time.
        stream = STREAMS[number % len(STREAMS)]
        job = JobProcess("compact", root, "--stream", stream, *COMPACT)
        try:
            self._kill_small_jobs()
            job.wait_begun()
            is_first = number == 0 or rng.random() < 0.5
            time.sleep(rng.uniform(0, 1.5))  # The moment of a kill, not a wait for a fact.
            if is_first:
                self.kills["compact"] += job.kill9()
            self._server.kill9()
            self._load.join()
            tables = {name: table_rows(root, name) for name in STREAMS}
            self._server.env = settings(rng)
            self._server.restart()
            self._load.check()
            for name, rows in tables.items():
                check_table(self._load.histories[name], rows)
        finally:
            self.kills["compact"] += job.kill9()

    def _kill_small_jobs(self) -> None:
        for verb, flags in (("index", ()), ("retain", RETAIN)):
            job = JobProcess(verb, self._server.root, *flags)
            job.wait_opened()
            time.sleep(self._rng.uniform(0, 0.3))  # The moment of a kill.
            self.kills[verb] += job.kill9()


@pytest.mark.timeout(600 + 120 * ROUNDS)
@pytest.mark.fault("K2", "compact, retain and index beside the load, killed at random moments")
def test_jobs_killed_beside_a_live_server_lose_nothing(
    spark: SparkSession, tmp_path: Path, tally: Tally, whole: WholeCheck
) -> None:
    del spark
    rng = random.Random(seed_of_run())
    root = tmp_path / "data"
    with ServerProcess.start(root, env=settings(rng)) as server:
        load = Load(server, rng)
        # The retain job names a stream, whose first commit makes its table.
        append_to_tables(server, load)
        round_ = Round(load, rng)
        for number in range(ROUNDS):
            round_.run(number)
            tally.tried = sum(round_.kills.values())
            tally.checked = load.checked
        # What is left behind keeps nobody from working to the end.
        arguments = ["--root", str(root), "--quiet"]
        assert compact.main([*arguments, *COMPACT]) == 0
        assert index.main(arguments) == 0
        assert retain.main([*arguments, *RETAIN]) == 0
        load.check()
        tally.checked = load.checked
        rewritten = [name for name in STREAMS if has_rewrites(root, name)]
        assert server.terminate() == 0
    for name, history in load.histories.items():
        check_table(history, table_rows(root, name))
    whole(root, {name: load.histories[name] for name in STREAMS if name != VACUUMED})
    tally.note = ", ".join(f"{verb} {count}" for verb, count in round_.kills.items())
    print(round_.kills, load.counts, rewritten)
    # The run was worth something: jobs were killed at work, and every table was rewritten.
    assert sum(round_.kills.values()) > ROUNDS
    assert not IS_LONG or round_.kills["compact"] > ROUNDS / 3
    assert set(rewritten) == set(STREAMS)


def append_to_tables(server: ServerProcess, load: Load) -> None:
    """One record for every stream, in its table."""
    with Client(server.url) as client:
        for name, history in load.histories.items():
            attempt = history.begin((f'{{"first":"{name}"}}'.encode(),), None)
            reply = client.append(name, attempt.body, stream_ack="table")
            assert reply.status == 204, reply.body
            history.acknowledge(attempt, reply.tail)


def has_rewrites(root: Path, name: str) -> bool:
    """Whether a job has ever joined files of the stream."""
    state = find_table(LocalStorage(root), name).state
    return state.write_amplification > 1


class HeldStorage(LocalStorage):
    """Others come between the look at a name and its taking, once."""

    between: Callable[[], None] | None = None

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """The server's own way: the name is taken in one step, or not at all."""
        self._hold(path)
        return super().put_if_absent(path, data)

    def _hold(self, path: str) -> bool:
        is_there = self.exists(path)
        between, self.between = self.between, None
        if not is_there and between is not None:
            between()
        return is_there


class CheckThenRename(HeldStorage):
    """Looks for the name, then takes it from whoever has it by now, as Spark would (F2)."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if self._hold(path):
            return False
        target = self.root / path
        temporary = target.with_suffix(".tmp")
        temporary.write_bytes(data)
        temporary.rename(target)
        return True


def commit_beside_a_server(root: Path, job: HeldStorage) -> None:
    """A job's rewrite and a server's commit want the same version; the oracle looks at both."""
    history = StreamHistory("orders")
    with ServerProcess.start(root) as server, Client(server.url) as client:
        client.create("orders")

        def append(number: int) -> None:
            attempt = history.begin((b'{"n":%d}' % number,), None)
            reply = client.append("orders", attempt.body, stream_ack="table")
            assert reply.status == 204, reply.body
            history.acknowledge(attempt, reply.tail)

        for number in range(3):
            append(number)
        table = find_table(LocalStorage(root), "orders")
        # The same rows in another file, as a rewrite leaves them.
        old = next(iter(table.state.files.values()))
        new = replace(old, path=old.path.replace(".parquet", "-again.parquet"))
        shutil.copyfile(table.path / old.path, table.path / new.path)
        job.between = lambda: append(3)
        change = rewrite_of(table.state, [old], [new])
        commit_change(job, table.folder, table.state, change, now_ms=int(time.time() * 1000))
        append(4)
        history.verify(client.records("orders"))
        rows = table_rows(root, "orders")
        check_table(history, rows)
        assert len(rows) == 5


def test_rewrite_whose_version_the_server_takes_loses_nothing(tmp_path: Path) -> None:
    commit_beside_a_server(tmp_path / "data", HeldStorage(tmp_path / "data"))


@pytest.mark.control("K2", "a log entry is looked for, then renamed over whatever is there (F2)")
def test_oracle_finds_a_commit_that_a_job_has_renamed_over(tmp_path: Path) -> None:
    with pytest.raises(LogBroken, match="table and log differ"):
        commit_beside_a_server(tmp_path / "data", CheckThenRename(tmp_path / "data"))
