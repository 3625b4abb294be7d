"""P2, the power goes away between two steps: of a record's way into the WAL, into its table and out
of the WAL again, of a checkpoint, of a start, of a rewrite and of the removal of what it replaced.

The process stops itself at the step (tests/faults/halting.py), then the power is cut.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from engine.clock import SystemClock
from engine.settings import CompactSettings
from engine.storage import LocalStorage
from engine.table.replay import load_state
from jobs import check
from jobs.common.plan import plan_compaction
from tests.faults.aiming import NTH_MAX, Aim
from tests.faults.halting import COMPACT_STEPS, RETAIN_STEPS, START_STEPS, WRITE_STEPS
from tests.faults.scale import IS_LONG, times
from tests.support.load import Client, wait_for
from tests.support.loopdisk import halt, loop_disk
from tests.support.workload import seed_of_run, segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.faults.ledger import Tally
    from tests.faults.whole import WholeCheck

ROUNDS = times(quick=1, long=3)
# What leaves commits behind whose names are on the disk and whose data is not.
ENTRY_PUT = "the entry is put, not synced"
# What a start does only after that.
AFTER_TORN = "a torn commit is put aside"
# A start writes the end of the WAL again where it holds a frame: a segment that was only begun is
# removed.
WAL_AGAIN = "the end of the WAL is written again"
WAL_SYNCED = "the WAL is synced, nobody was answered"
# Happens to short-lived streams only.
RARE = "a deleted table is moved, not removed"
STREAM = "orders"
COMPACT_FLAGS = ("--files-min", "2", "--settle-seconds", "0")
TRIMMED = "trimmed"
RECORDS_KEPT = 4
REMOVED = "a replaced file is removed, the next is not"
# The first sync of everything is that of the trim itself.
RETAIN_NTH = {"all is synced, no replaced file is removed": 2}


@pytest.fixture
def aim(tmp_path: Path) -> Iterator[Aim]:
    """A root on a disk of its own; the choices are those of the run's seed."""
    with loop_disk(tmp_path / "loop") as disk, Aim(disk, random.Random(seed_of_run())) as aim:
        yield aim


def steps_of_round(rng: random.Random) -> list[str]:
    """All of them, or one that the seed chooses."""
    steps = [*WRITE_STEPS, *START_STEPS]
    rng.shuffle(steps)
    return steps if IS_LONG else steps[:1]


@pytest.mark.timeout(240 + 200 * ROUNDS)
@pytest.mark.fault("P2", "the power is cut between two steps of write, commit, trim and start")
def test_server_cut_at_each_step_keeps_every_promise(
    aim: Aim, tally: Tally, whole: WholeCheck
) -> None:
    rng = aim.rng
    # Deterministic: an entry of 0 bytes.
    aim.cut_while_writing(ENTRY_PUT, 1, names=True)
    tally.tried += 1
    for step in [step for _ in range(ROUNDS) for step in steps_of_round(rng)]:
        if step in START_STEPS:
            before = WAL_SYNCED if step == WAL_AGAIN else ENTRY_PUT
            aim.cut_while_writing(before, rng.randint(1, NTH_MAX), names=step == AFTER_TORN)
            aim.cut_while_starting(step, names=rng.random() < 0.5)
            tally.tried += 2
        else:
            nth = 1 if step == RARE else rng.randint(1, NTH_MAX)
            aim.cut_while_writing(step, nth, names=rng.random() < 0.5)
            tally.tried += 1
    aim.start()
    torn = len(aim.torn_commits())
    tally.checked, tally.note = aim.load.checked, f"{torn} commits of 0 bytes written again"
    assert aim.server.terminate() == 0
    whole(aim.server.root, aim.load.histories)
    assert torn, "no commit was torn"


@pytest.mark.skipif(not IS_LONG, reason="it starts Spark for each cut: only in the long run")
@pytest.mark.timeout(120 + 480 * ROUNDS)
@pytest.mark.fault("P2", "the power is cut between two steps of a rewrite")
def test_compaction_cut_at_each_step_loses_nothing(
    aim: Aim, tally: Tally, whole: WholeCheck
) -> None:
    for step in [*COMPACT_STEPS] * ROUNDS:
        aim.start()
        aim.begin_load()
        wait_for(lambda: is_worth_a_rewrite(aim), "small files", 60)
        if aim.rng.random() < 0.5:
            # A live server syncs now and then what the job has forgotten to.
            halt([aim.server.pid])
        for writer in aim.load.writers:
            writer.is_ending = True
        job = aim.job(step, "compact", "--stream", STREAM, *COMPACT_FLAGS)
        aim.cut(job, names=aim.rng.random() < 0.5)
        aim.load.join()
        tally.tried += 1
    aim.start()
    tally.checked = aim.load.checked
    assert aim.server.terminate() == 0
    whole(aim.server.root, aim.load.histories)


def is_worth_a_rewrite(aim: Aim) -> bool:
    """Whether a compaction would find something to join."""
    state = load_state(LocalStorage(aim.server.root), STREAM)
    settings = CompactSettings(files_min=2, settle_seconds=0)
    return bool(plan_compaction(state.files.values(), settings, now_ms=SystemClock().now_ms()))


@pytest.mark.timeout(240 + 120 * ROUNDS)
@pytest.mark.fault("P2", "the power is cut between two steps of a trim and a vacuum")
def test_retention_cut_at_each_step_loses_nothing_that_was_to_stay(
    aim: Aim, tally: Tally, spark: SparkSession
) -> None:
    del spark  # The one of the run serves the check.
    steps = list(RETAIN_STEPS)
    sent: list[bytes] = []
    for number in range(ROUNDS * len(steps) if IS_LONG else 1):
        step = steps[number % len(steps)] if IS_LONG else aim.rng.choice(steps)
        down = aim.rng.random() < 0.5
        retain_and_cut(aim, step, sent, names=aim.rng.random() < 0.5, down=down)
        aim.server.restart()
        kept = kept_records(aim)
        # As many as were asked for, or more where the trim is not on the disk.
        assert len(kept) >= RECORDS_KEPT
        assert kept == sent[-len(kept) :]
        tally.tried += 1
        tally.checked += len(kept)
    assert aim.server.terminate() == 0
    assert check.main(["--root", str(aim.server.root), "--quiet"]) == 0


def retain_and_cut(
    aim: Aim, step: str, sent: list[bytes], *, names: bool, down: bool, careless: str = "-"
) -> None:
    """Some appends, each a file of its own; then `retain` wants all but the last few to go.

    ``down``: the server has ended, and its WAL holds nothing any more that would make up for it.
    """
    if not aim.server.is_running:
        aim.server.restart()
    with Client(aim.server.url) as client:
        if not sent:
            client.create(TRIMMED)
        for _ in range(2 * RECORDS_KEPT):
            sent.append(b'{"n":%d}' % len(sent))
            assert client.append(TRIMMED, sent[-1], stream_ack="table").status == 204
    nth = RETAIN_NTH.get(step, 1)
    flags = ("--stream", TRIMMED, "--records", str(RECORDS_KEPT), "--vacuum-hours", "0")
    if down:
        assert aim.server.terminate() == 0
    else:
        # A live server syncs now and then what the job has forgotten to.
        halt([aim.server.pid])
    job = aim.job(step, "retain", *flags, nth=nth, careless=careless)
    aim.cut(job, names=names)


def kept_records(aim: Aim) -> list[bytes]:
    """What can still be read of the trimmed stream."""
    with Client(aim.server.url) as client:
        return client.records(TRIMMED)


@pytest.mark.control("P2", "replaced files are removed before what replaces them is synced")
def test_oracle_finds_a_vacuum_without_a_sync(aim: Aim) -> None:
    # The removal is on the disk, the entry that speaks of it is empty.
    retain_and_cut(aim, REMOVED, [], names=True, down=True, careless="no-table-sync")
    aim.server.restart()
    with pytest.raises(AssertionError, match="table_damaged"):
        kept_records(aim)


@pytest.mark.control("P2", "the WAL is trimmed before the tables are synced, and the cut is aimed")
def test_oracle_finds_a_trim_without_a_sync(aim: Aim) -> None:
    aim.cut_while_writing("the WAL is trimmed", 1, careless="no-table-sync")
    assert segments(aim.server.root)
    # The server itself sees that the tables are shorter than what it had written down.
    with pytest.raises(AssertionError, match="table_damaged"):
        aim.start()
