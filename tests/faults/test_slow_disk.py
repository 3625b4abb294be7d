"""D5, the disk is slow: appends wait or are refused, memory stays bounded, no ack comes early."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.scale import times
from tests.support.load import LogBroken, wait_for
from tests.support.pressure import Pressure
from tests.support.server import ServerProcess
from tests.support.strace import strace_wrapper
from tests.support.wire import resident_mib

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.ledger import Tally

DELAY_S = 0.5
GROUP_BYTES = 1 << 20
ENV = {
    "BOTTOMLESS_WAL__GROUP_BYTES_MAX": str(GROUP_BYTES),
    "BOTTOMLESS_LIMITS__BODY_BYTES": str(GROUP_BYTES),
    "BOTTOMLESS_COMMIT__INTERVAL_MS": "200",
    # The library that writes checkpoints takes 60 MiB, once: that is not what is measured here.
    "BOTTOMLESS_COMMIT__CHECKPOINT_EVERY": "100000",
}
GROWTH_MIB_MAX = 100
"""Far more than two groups and their bodies need, far less than what is sent."""


def slow_syncs(folder: Path) -> tuple[str, ...]:
    """Every sync of the WAL begins late."""
    return strace_wrapper(folder / "calls", f"fdatasync:delay_enter={int(DELAY_S * 1e6)}")


def refuse_early_acks(load: Pressure) -> None:
    """LogBroken where an append was acknowledged before a sync that began after it could end."""
    for ack in load.acked:
        if ack.at - ack.sent < DELAY_S:
            took_ms = 1000 * (ack.at - ack.sent)
            raise LogBroken(f"acknowledged after {took_ms:.0f} ms, before any sync could end")


@pytest.mark.timeout(180)
@pytest.mark.fault("D5", "every sync of the WAL takes half a second longer")
def test_slow_disk_holds_back_and_acknowledges_nothing_early(tmp_path: Path, tally: Tally) -> None:
    wrapper = slow_syncs(tmp_path)
    with ServerProcess.start(tmp_path / "data", env=ENV, wrapper=wrapper) as server:
        load = Pressure(server, pushers=24, record_bytes=100_000)
        before_mib = peak_mib = resident_mib(server)
        load.start()
        goal = times(quick=24, long=1000)

        def has_enough() -> bool:
            nonlocal peak_mib
            peak_mib = max(peak_mib, resident_mib(server))
            return len(load.acked) >= goal

        wait_for(has_enough, f"{goal} acks", 120)
        server.kill9()
        load.stop()
        refuse_early_acks(load)
        # More was sent than may wait for the disk: the rest was told to come back.
        assert {refusal.code for refusal in load.refusals} == {"overloaded"}
        assert peak_mib - before_mib < GROWTH_MIB_MAX
        server.wrapper = ()
        server.restart()
        load.check()
        load.check_tables()
        tally.tried = len(load.acked)
        tally.checked = load.checked
        tally.note = f"{peak_mib:.0f} MiB at most"


@pytest.mark.control("D5", "the WAL is not synced at all")
def test_oracle_finds_acks_that_do_not_wait_for_a_slow_disk(tmp_path: Path) -> None:
    wrapper = slow_syncs(tmp_path)
    root = tmp_path / "data"
    with ServerProcess.start(root, env=ENV, wrapper=wrapper, careless="no-wal-sync") as server:
        load = Pressure(server, pushers=1)
        load.start()
        load.wait_acked(3)
        server.kill9()
        load.stop()
        with pytest.raises(LogBroken, match="before any sync could end"):
            refuse_early_acks(load)
