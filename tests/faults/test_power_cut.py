"""P1, the power goes away under load, again and again on one root: every promise holds after every
restart.

Data folder and WAL lie on a disk of their own (tests/support/loopdisk.py), the oracle and its
journal do not.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults.scale import times
from tests.support.load import LogBroken, wait_for
from tests.support.loopdisk import LoopDisk, loop_disk
from tests.support.server import ServerProcess
from tests.support.workload import (
    STREAMS,
    Load,
    check_table,
    seed_of_run,
    segments,
    settings_of_round,
    table_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.ledger import Tally
    from tests.faults.whole import WholeCheck

ROUNDS = times(quick=4, long=100)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """Where the server has its data and its WAL."""
    with loop_disk(tmp_path / "loop") as disk:
        yield disk


def start_on(disk: LoopDisk, *, careless: str = "", env: dict[str, str]) -> ServerProcess:
    """A server whose root is on the disk, and whose log is not."""
    return ServerProcess.start(
        disk.mount_point / "data",
        env=env,
        careless=careless,
        log_path=disk.folder / "server.log",
    )


@pytest.mark.timeout(240 + 15 * ROUNDS)
@pytest.mark.fault("P1", "the power is cut at a random moment, sometimes again while it starts")
def test_server_whose_power_is_cut_keeps_every_promise(
    disk: LoopDisk, tally: Tally, whole: WholeCheck
) -> None:
    rng = random.Random(seed_of_run())
    longest_s, aside = 0.0, 0
    with start_on(disk, env=settings_of_round(rng)) as server:
        load = Load(server, rng)
        for number in range(ROUNDS):
            load.start(number)
            time.sleep(rng.choice([rng.uniform(0, 0.2), rng.uniform(0.2, 0.6), 1.3]))
            disk.cut([server.pid], server.kill9)
            load.join()
            server.env = settings_of_round(rng)
            tally.tried += 1
            if rng.random() < 0.2:
                # Again while it starts: whatever it had done is done again, or still there.
                server.spawn()
                time.sleep(rng.uniform(0.5, 2))
                disk.cut([server.pid], server.kill9)
                tally.tried += 1
            begun_s = time.monotonic()
            server.restart()
            longest_s = max(longest_s, time.monotonic() - begun_s)
            load.check()
            for name in STREAMS:
                check_table(load.histories[name], table_rows(server.root, name))
            tally.checked = load.checked
        aside = len(list(server.root.glob("*/_aside/*.json")))
        assert server.terminate() == 0
    whole(server.root, load.histories)
    tally.note = f"longest start {longest_s:.1f} s; {aside} torn commits written again"
    print(load.counts, tally.note)
    # The run was worth something: load, and requests that were under way when it went dark.
    assert load.counts["acked"] > 10 * ROUNDS
    assert load.counts["unsure"] > ROUNDS


@pytest.mark.control("P1", "the WAL is not synced before the acknowledgement")
def test_oracle_finds_what_rested_on_the_page_cache(disk: LoopDisk) -> None:
    # No commit and no trim comes in between, whose sync of everything would save the WAL.
    env = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000"}
    with start_on(disk, careless="no-wal-sync", env=env) as server:
        load = Load(server, random.Random(seed_of_run()))
        # The streams are there, whatever happens to the appends.
        disk.sync()
        load.start(0)
        wait_for(lambda: sum(writer.acknowledged for writer in load.writers) > 50, "load")
        disk.cut([server.pid], server.kill9)
        load.join()
        server.restart()
        with pytest.raises(LogBroken, match=r"was acknowledged at|has seen what is not there"):
            load.check()


@pytest.mark.control("P1", "the WAL is trimmed before the tables are synced")
def test_oracle_finds_a_wal_that_was_trimmed_too_early(disk: LoopDisk) -> None:
    env = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "50", "BOTTOMLESS_WAL__SEGMENT_BYTES": "4096"}
    with start_on(disk, careless="no-table-sync", env=env) as server:
        load = Load(server, random.Random(seed_of_run()))
        first_segment = segments(server.root)[0]
        load.start(0)
        wait_for(lambda: not first_segment.exists(), "a trim")
        disk.cut([server.pid], server.kill9)
        load.join()
        server.restart()
        # The server itself sees that the tables are shorter than what it had written down.
        with pytest.raises(AssertionError, match="table_damaged"):
            load.check()
