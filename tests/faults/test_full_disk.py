"""D3, the disk is full: refusals with a reason, reads go on, and with new space appends go on
without a restart. The WAL and the tables may lie on disks of their own, or share one.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from tests.faults.scale import IS_LONG, times
from tests.support.pressure import Pressure
from tests.support.server import ServerProcess
from tests.support.tmpfs import Tmpfs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.ledger import Tally

KIB = 1024
ENV = {
    "BOTTOMLESS_WAL__SEGMENT_BYTES": str(256 * KIB),
    "BOTTOMLESS_WAL__BYTES_MAX": str(4096 * KIB),
    "BOTTOMLESS_WAL__GROUP_BYTES_MAX": str(1024 * KIB),
    "BOTTOMLESS_LIMITS__BODY_BYTES": str(1024 * KIB),
    "BOTTOMLESS_COMMIT__INTERVAL_MS": "100",
}
FULL = "No space left on device"
PLACES = ["two disks", "two disks, symlink", "one disk"] if IS_LONG else ["two disks"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.fault("D3", "the disk of the WAL, of the tables, then both are full; table acks too")
def test_full_disks_refuse_and_go_on_when_space_is_back(
    tmp_path: Path, tally: Tally, request: pytest.FixtureRequest, place: str
) -> None:
    with small_disks(tmp_path, place) as (root, wal_disk, table_disk):
        with ServerProcess.start(root, env=ENV) as server:
            load = Pressure(server)
            load.start()
            load.wait_acked(20)
            for _ in range(times(quick=1, long=4)):
                live_through(load, [wal_disk], ack="wal")
                live_through(load, [table_disk], ack="table")
                live_through(load, [wal_disk, table_disk], ack="wal")
                tally.tried += 3
            kill_while_full(server, load, [wal_disk, table_disk])
            tally.tried += 1
            tally.checked = load.checked
            assert server.terminate() == 0
        if IS_LONG:
            request.getfixturevalue("whole")(root, load.histories)


@pytest.mark.control("D3", "a half-written frame is not cut back")
def test_oracle_finds_a_half_frame_that_was_left_in_the_log(tmp_path: Path) -> None:
    root = tmp_path / "data"
    careless = "no-cut-back"
    env = {**ENV, "BOTTOMLESS_WAL__SEGMENT_BYTES": str(4096 * KIB)} | {
        "BOTTOMLESS_WAL__BYTES_MAX": str(16_384 * KIB)
    }
    with (
        Tmpfs(root / "_wal", mib=8) as disk,
        ServerProcess.start(root, env=env, careless=careless) as server,
    ):
        load = Pressure(server)
        load.start()
        load.wait_acked(20)
        disk.leave(64 * KIB)
        load.wait_full()
        disk.give_back()
        load.wait_acked(20)
        server.kill9()
        load.stop()

        def start_and_look() -> None:
            server.restart()
            load.check()

        with pytest.raises(AssertionError, match=r"is damaged at byte|was acknowledged at"):
            start_and_look()


def live_through(load: Pressure, disks: list[Tmpfs], *, ack: str) -> None:
    """Fill the disks under load, look at what is there, give the space back, go on."""
    for disk in disks:
        disk.leave(256 * KIB)
    load.wait_full()
    load.stop()
    # Every acknowledged record can be read, and nothing half is visible.
    load.check()
    load.check_tables()
    load.start(ack=ack)
    for refusal in load.wait_refused(4):
        assert refusal.code in ("storage_unavailable", "overloaded"), refusal
        # The caller is told what is wrong, not where.
        assert str(load.server.root) not in refusal.detail, refusal
    for disk in disks:
        disk.give_back()
    load.wait_acked(40, 60)
    load.stop()
    load.start()


def kill_while_full(server: ServerProcess, load: Pressure, disks: list[Tmpfs]) -> None:
    """Killed on full disks, a server starts, or says why it does not; nothing is lost by trying."""
    for disk in disks:
        disk.leave(64 * KIB)
    load.wait_full()
    for disk in disks:
        disk.leave(0)
    server.kill9()
    load.stop()
    for _ in range(times(quick=1, long=5)):
        if is_up(server):
            load.check()
            server.kill9()
    for disk in disks:
        disk.give_back()
    server.restart()
    load.check()
    load.check_tables()


def is_up(server: ServerProcess) -> bool:
    """Whether a start succeeds; where it does not, its last words name the cause and the cure."""
    server.spawn()
    try:
        server.wait_ready()
    except AssertionError:
        assert not server.is_running, server.log_tail()
        last = server.log_tail().splitlines()[-1]
        assert all(part in last for part in ("cannot start", FULL)), last
        assert json.loads(last)["hint"], last
        return False
    return True


@contextlib.contextmanager
def small_disks(folder: Path, place: str) -> Iterator[tuple[Path, Tmpfs, Tmpfs]]:
    """A root on a small disk, and the disk of its WAL: another one, or the same."""
    root = folder / "data"
    with contextlib.ExitStack() as stack:
        tables = wal = stack.enter_context(Tmpfs(root, mib=64))
        if place == "two disks":
            wal = stack.enter_context(Tmpfs(root / "_wal"))
        elif place == "two disks, symlink":
            wal = stack.enter_context(Tmpfs(folder / "wal"))
            (root / "_wal").symlink_to(wal.path)
        yield root, wal, tables
