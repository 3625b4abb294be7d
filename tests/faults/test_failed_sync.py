"""D1, a sync fails once and the disk is healthy again: nothing is acknowledged on its strength.

After a failed sync the kernel may have dropped the pages and says next time that all is well.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.faults.scale import times
from tests.support.load import Client, LogBroken, wait_for
from tests.support.pressure import Pressure, reason_of
from tests.support.server import ServerProcess
from tests.support.strace import strace_wrapper
from tests.support.workload import seed_of_run, segments

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.ledger import Tally

ENV = {
    "BOTTOMLESS_WAL__SEGMENT_BYTES": str(32 << 10),
    "BOTTOMLESS_COMMIT__INTERVAL_MS": "100",
}
# The failing call comes late, so that every earlier ack has long arrived when it fails.
LATE = "error=EIO:delay_enter=500000"
ROUNDS = times(quick=1, long=8)


def wait_failed(log: Path, timeout_s: float = 60) -> int:
    """Until the injected error has happened; where in the log of calls."""

    def place() -> int:
        return log.read_text().find("(INJECTED") if log.exists() else -1

    wait_for(lambda: place() >= 0, "an injected error", timeout_s)
    return place()


def refuse_acks_since(load: Pressure, moment: float) -> None:
    """LogBroken where an append was acknowledged after this moment."""
    late = [ack for ack in load.acked if ack.at > moment]
    if late:
        raise LogBroken(f"{len(late)} appends were acknowledged after a failed sync")


def is_ready(server: ServerProcess) -> bool:
    """What a load balancer would see."""
    with httpx.Client(trust_env=False, verify=False) as client:
        return client.get(f"{server.url}/readyz").status_code == 200


@pytest.mark.timeout(60 + 60 * ROUNDS)
@pytest.mark.fault("D1", "one fdatasync of the WAL fails, then the disk is healthy")
def test_failed_wal_sync_ends_the_right_to_acknowledge(tmp_path: Path, tally: Tally) -> None:
    rng = random.Random(seed_of_run())
    log = tmp_path / "calls-0"
    # The first two are those of the streams' creation.
    wrapper = strace_wrapper(log, f"fdatasync:{LATE}:when={rng.randint(3, 60)}")
    with ServerProcess.start(tmp_path / "data", env=ENV, wrapper=wrapper) as server:
        load = Pressure(server, pushers=6)
        for number in range(ROUNDS):
            fail_once(load, log)
            # However it ends, nothing of what it could not vouch for makes the next one err.
            if rng.random() < 0.5:
                server.kill9()
            else:
                assert server.terminate() == 0
            log = tmp_path / f"calls-{number + 1}"
            failing = strace_wrapper(log, f"fdatasync:{LATE}:when={rng.randint(30, 90)}")
            server.wrapper = failing if number + 1 < ROUNDS else ()
            server.restart()
            load.check()
            tally.tried += 1
        # Every refused append is repeated first: stored now, or known to be there already.
        load.start()
        load.wait_acked(20)
        load.stop()
        load.check()
        load.check_tables()
        tally.checked = load.checked


def fail_once(load: Pressure, log: Path) -> None:
    """Load until the sync fails, then more of it: only refusals; reads go on."""
    before = len(load.refusals)
    load.start()
    wait_failed(log)
    load.wait_full()
    first = load.refusals[before]
    assert first.code == "storage_unavailable", first
    refuse_acks_since(load, first.at)
    assert not is_ready(load.server)
    load.stop()
    load.check()


@pytest.mark.timeout(180)
@pytest.mark.fault("D1", "one syncfs of the tables fails, then the disk is healthy")
def test_failed_table_sync_ends_every_trim(tmp_path: Path, tally: Tally) -> None:
    log = tmp_path / "calls"
    # Every thread's first one succeeds: the start-up's must.
    wrapper = strace_wrapper(log, "syncfs:error=EIO:when=2", trace="unlink,unlinkat")
    root = tmp_path / "data"
    with ServerProcess.start(root, env=ENV, wrapper=wrapper) as server:
        load = Pressure(server)
        load.start()
        place = wait_failed(log)
        wait_for(lambda: not is_ready(server), "a server that is not ready")
        kept = set(segments(root))
        load.wait_acked(100)
        with Client(server.url) as client:
            client.create("table")
            for _ in range(3):
                refused = client.append("table", b"1", stream_ack="table")
                code, _ = reason_of(refused)
                assert code == "storage_unavailable"
        # The WAL goes on, and keeps everything from here on.
        wait_for(lambda: len(segments(root)) > len(kept) + 1, "more segments")
        server.kill9()
        load.stop()
        assert kept <= set(segments(root))
        removed = [line for line in log.read_text()[place:].splitlines() if "unlink" in line]
        assert not [line for line in removed if ".wal" in line], removed
        server.wrapper = ()
        server.restart()
        tally.tried += 1
        load.check()
        load.check_tables()
        tally.checked = load.checked
        # Refused as acks of the table, but in the log.
        with Client(server.url) as client:
            assert client.records("table") == [b"1"] * 3


@pytest.mark.timeout(180)
@pytest.mark.control("D1", "a sync that failed counts as one that did not")
def test_oracle_finds_acks_after_a_failed_sync(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    wrapper = strace_wrapper(log, f"fdatasync:{LATE}:when=10")
    root = tmp_path / "data"
    careless = "trust-failed-sync"
    with ServerProcess.start(root, env=ENV, wrapper=wrapper, careless=careless) as server:
        load = Pressure(server)
        load.start()
        wait_failed(log)
        known = len(load.acked)
        moment = load.acked[-1].at
        load.wait_acked(20)
        server.kill9()
        load.stop()
        assert len(load.acked) > known
        with pytest.raises(LogBroken, match="were acknowledged after a failed sync"):
            refuse_acks_since(load, moment)
