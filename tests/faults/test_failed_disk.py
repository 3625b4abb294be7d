"""D2 and D4, a disk that really fails: a sync that cannot be done, and a file system that ext4 has
made read-only. Nothing is faked: the disk is a file on a tmpfs that has no room left.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.faults.scale import IS_LONG, times
from tests.support.load import Client, wait_for
from tests.support.loopdisk import LoopDisk, loop_disk
from tests.support.pressure import Pressure
from tests.support.server import ServerProcess
from tests.support.tmpfs import Tmpfs
from tests.support.workload import segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.ledger import Tally
    from tests.faults.whole import WholeCheck

ROUNDS = times(quick=1, long=5)
DISK_MIB = 64
ENV = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "500", "BOTTOMLESS_WAL__SEGMENT_BYTES": "65536"}
# A sync that was under way is told EIO, whatever comes after it EROFS.
READ_ONLY = r"write-ahead log.*: (Read-only file system|Input/output error)"
SYNC_FAILED = "failed to sync the write-ahead log"


@contextlib.contextmanager
def failing_disk(folder: Path) -> Iterator[tuple[Tmpfs, LoopDisk]]:
    """Two disks, of which the second lies on the first: fill that, and this one fails."""
    with (
        Tmpfs(folder / "small", mib=DISK_MIB + 8) as small,
        loop_disk(folder / "loop", mib=DISK_MIB, below=small.path) as disk,
    ):
        disk.back_metadata()
        yield small, disk


@pytest.mark.timeout(300 + 60 * ROUNDS)
@pytest.mark.fault("D2", "the sync of the WAL fails for real, and says that all is well next time")
def test_failed_sync_ends_the_right_to_acknowledge(
    tmp_path: Path, tally: Tally, whole: WholeCheck
) -> None:
    with failing_disk(tmp_path) as (small, disk):
        root = disk.mount_point / "data"
        with ServerProcess.start(root, env=ENV, log_path=tmp_path / "server.log") as server:
            load = Pressure(server, record_bytes=400)
            for number in range(ROUNDS):
                fail_sync(server, load, small)
                server.kill9()
                if number % 2 or not disk.is_writable:
                    disk.remount()
                # Else memory still holds what the disk may not: a start must not believe it.
                server.restart()
                load.check()
                load.start()
                load.wait_acked(20)
                disk.cut([server.pid], server.kill9)
                load.stop()
                server.restart()
                load.check()
                load.check_tables()
                tally.tried += 1
            tally.checked = load.checked
            assert server.terminate() == 0
        whole(root, load.histories)


def fail_sync(server: ServerProcess, load: Pressure, small: Tmpfs) -> None:
    """Fill what is below the disk under load, then give the room back: no ack in between or after
    it, and reads go on.
    """
    load.start()
    load.wait_acked(20)
    before = len(load.refusals)
    small.leave(0)
    wait_for(lambda: SYNC_FAILED in str(load.refusals[before:]), "a failed sync", 60)
    failed_at = load.refusals[before].at
    load.wait_refused(10)
    small.give_back()
    # The disk is well again, and the next sync would say so (F5).
    load.wait_refused(20)
    load.stop()
    late = [ack for ack in load.acked if ack.sent > failed_at]
    assert not late, f"{len(late)} appends were acknowledged after the failed sync"
    assert {refusal.code for refusal in load.refusals[before:]} == {"storage_unavailable"}
    assert is_ready(server) is False
    assert failures(server, "wal") > 0
    load.check()


@pytest.mark.control("D2", "a failed sync counts as one that did not fail")
def test_oracle_finds_acks_after_a_failed_sync(tmp_path: Path) -> None:
    # One segment and no commit: nothing but this sync would notice.
    env = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000"}
    log_path = tmp_path / "server.log"
    with failing_disk(tmp_path) as (small, disk):
        root = disk.mount_point / "data"
        careless = "trust-failed-sync"
        with ServerProcess.start(root, env=env, careless=careless, log_path=log_path) as server:
            load = Pressure(server, record_bytes=400)
            load.start()
            load.wait_acked(20)
            small.leave(0)
            load.wait_acked(200)
            server.kill9()
            load.stop()
            small.give_back()
            # What memory held would hide it.
            disk.remount()
            server.restart()
            with pytest.raises(AssertionError, match="was acknowledged at"):
                load.check()


@pytest.mark.skipif(not IS_LONG, reason="the next test does the same: only in the long run")
@pytest.mark.timeout(300 + 60 * ROUNDS)
@pytest.mark.fault("D2", "the sync of the tables fails for real; the WAL lies on a healthy disk")
def test_failed_sync_of_the_tables_keeps_the_wal(
    tmp_path: Path, tally: Tally, whole: WholeCheck
) -> None:
    with failing_disk(tmp_path) as (small, disk):
        root = with_wal_elsewhere(disk, tmp_path / "wal")
        with ServerProcess.start(root, env=ENV, log_path=tmp_path / "server.log") as server:
            load = Pressure(server, record_bytes=400)
            for _ in range(ROUNDS):
                fail_table_sync(server, load, small)
                server.kill9()
                load.stop()
                if not disk.is_writable:
                    disk.remount()
                server.restart()
                load.check()
                load.start()
                # Trims again, and so says that the tables are on the disk.
                first = segments(root)[0]
                wait_for(lambda first=first: not first.exists(), "a trim", 60)
                disk.cut([server.pid], server.kill9)
                load.stop()
                server.restart()
                load.check()
                load.check_tables()
                tally.tried += 1
            tally.checked = load.checked
            assert server.terminate() == 0
        whole(root, load.histories)


def with_wal_elsewhere(disk: LoopDisk, wal: Path) -> Path:
    """A root on the disk whose WAL is not."""
    root = disk.mount_point / "data"
    root.mkdir()
    wal.mkdir()
    (root / "_wal").symlink_to(wal)
    disk.sync()
    return root


def fail_table_sync(server: ServerProcess, load: Pressure, small: Tmpfs) -> None:
    """Fill what is below the tables under load: the WAL grows and keeps every segment."""
    load.start()
    load.wait_acked(20)
    small.leave(0)
    wait_for(lambda: not is_ready(server), "a failed sync of the tables", 60)
    kept = segments(server.root)
    assert failures(server, "sync") > 0
    small.give_back()
    # The disk is well again, and the next sync would say so (F5).
    load.wait_acked(200)
    deadline = time.monotonic() + 3
    wait_for(lambda: time.monotonic() > deadline, "three times the interval of a trim")
    assert segments(server.root)[: len(kept)] == kept, "the WAL was trimmed after a failed sync"


@pytest.mark.fault("D2", "an entry of a table that memory holds and the disk does not")
def test_entry_that_could_not_be_synced_is_not_believed(tmp_path: Path, tally: Tally) -> None:
    log_path = tmp_path / "server.log"
    with failing_disk(tmp_path) as (small, disk):
        root = with_wal_elsewhere(disk, tmp_path / "wal")
        with ServerProcess.start(root, env=ENV, log_path=log_path) as server:
            with Client(server.url) as client:
                client.create("s")
                tail = client.append("s", b"[1,2]", stream_ack="table").tail
                small.leave(0)
                # A commit without records: an entry that names no file whose damage would be seen.
                refused = client.call("POST", "s", stream_closed="true", stream_ack="table")
            assert refused.status == 503, refused
            server.kill9()
            small.give_back()
            server.restart()
            with Client(server.url) as client:
                client.create("other")
                # Another sync of everything, which succeeds: the WAL may go.
                assert client.append("other", b"3", stream_ack="table").status == 204
            disk.cut([server.pid], server.kill9)
            server.restart()
            tally.tried, tally.checked = 1, 2
            with Client(server.url) as client:
                assert client.records("s") == [b"1", b"2"]
                head = client.call("HEAD", "s")
                assert (head.tail, head.is_closed) == (tail, True)
                assert client.records("other") == [b"3"]


@pytest.mark.timeout(300 + 60 * ROUNDS)
@pytest.mark.fault("D4", "ext4 makes the file system read-only under load")
def test_read_only_disk_refuses_appends_and_serves_reads(tmp_path: Path, tally: Tally) -> None:
    with loop_disk(tmp_path / "loop") as disk:
        root = disk.mount_point / "data"
        with ServerProcess.start(root, env=ENV, log_path=tmp_path / "server.log") as server:
            load = Pressure(server, record_bytes=400)
            for _ in range(ROUNDS):
                load.start()
                load.wait_acked(20)
                before = len(load.refusals)
                disk.abort([server.pid])
                load.wait_refused(20)
                load.stop()
                refusals = load.refusals[before:]
                assert {refusal.code for refusal in refusals} == {"storage_unavailable"}
                for refusal in refusals:
                    assert re.search(READ_ONLY, refusal.detail), refusal
                late = [ack for ack in load.acked if ack.sent > refusals[0].at]
                assert not late, f"{len(late)} appends were acknowledged on a read-only disk"
                load.check()
                # Such a file system is writable again only after it was unmounted.
                server.kill9()
                disk.remount()
                server.restart()
                load.check()
                load.start()
                load.wait_acked(20)
                load.stop()
                load.check()
                load.check_tables()
                tally.tried += 1
            tally.checked = load.checked
            assert server.terminate() == 0


@pytest.mark.control("D4", "a failed write or sync counts as one that did not fail")
def test_oracle_finds_acks_of_a_read_only_disk(tmp_path: Path) -> None:
    with loop_disk(tmp_path / "loop") as disk:
        root = disk.mount_point / "data"
        careless, log_path = "trust-failed-write,trust-failed-sync", tmp_path / "server.log"
        with ServerProcess.start(root, env=ENV, careless=careless, log_path=log_path) as server:
            load = Pressure(server, record_bytes=400)
            load.start()
            load.wait_acked(20)
            disk.abort([server.pid])
            load.wait_acked(20)
            server.kill9()
            load.stop()
            disk.remount()
            server.restart()
            with pytest.raises(AssertionError, match="was acknowledged at"):
                load.check()


def is_ready(server: ServerProcess) -> bool:
    """What /readyz says."""
    reply = httpx.get(f"{server.url}/readyz", trust_env=False, timeout=10)
    assert reply.status_code in (200, 503), reply
    return reply.status_code == 200


def failures(server: ServerProcess, operation: str) -> float:
    """How often a write or sync has failed, as the server counts it."""
    text = httpx.get(f"{server.url}/metrics", trust_env=False, timeout=10).text
    name = f'bottomless_storage_failures_total{{op="{operation}"}} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if name in line)
