"""R1, a start on a write-ahead log that no commit has shrunk for long: in bounded memory and time.

A real server makes the root and is killed; then its log is grown (tests/support/backlog.py).
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.format.offset import format_stored
from tests.faults.scale import times
from tests.support.backlog import MIB, PRODUCER, Filler
from tests.support.load import Client, LogBroken, wait_for
from tests.support.server import HOST, ServerProcess
from tests.support.workload import seed_of_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.ledger import Tally

BACKLOG_BYTES = times(quick=192, long=1024) * MIB
SEGMENT_BYTES = times(quick=16, long=64) * MIB
RECOVERY_MAX_S = 30.0
# Over the peak of a start with little to recover: a segment, and what is held and committed at one
# time. The backlog alone is more than this.
EXTRA_BYTES_MAX = times(quick=180, long=350) * MIB
NEVER = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000"}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root whose server was killed; a gigabyte of it is not kept for three more runs."""
    root = tmp_path / "data"
    with ServerProcess.start(root, env=NEVER) as server:
        with Client(server.url) as client:
            client.create("s", b"[1,2]")
        server.kill9()
    yield root
    shutil.rmtree(root)


def peak_bytes(server: ServerProcess) -> int:
    """The most memory the process has ever used."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])


def start(server: ServerProcess, timeout_s: float) -> float:
    """Seconds until it says that it is ready; before that it may refuse, but never say yes."""
    begun = time.monotonic()
    server.spawn()
    while time.monotonic() - begun < timeout_s:
        assert server.is_running, server.log_tail()
        connection = http.client.HTTPConnection(HOST, server.port, timeout=timeout_s)
        try:
            connection.request("GET", "/readyz")
            status = connection.getresponse().status
        except OSError:
            status = 0
        finally:
            connection.close()
        if status == 200:
            return time.monotonic() - begun
        assert status in (0, 503), status
        time.sleep(0.02)
    raise AssertionError(f"not ready after {timeout_s} s: {server.log_tail()}")


def check(server: ServerProcess, filler: Filler) -> int:
    """Every record of every stream, and the producers; returns how many appends were found."""
    found = 0
    with Client(server.url) as client:
        for name, stream in filler.streams.items():
            digest, offset, count = hashlib.sha256(), "-1", 0
            while True:
                reply = client.call("GET", name, query=f"?offset={offset}")
                assert reply.status == 200, (name, reply.status, reply.body)
                records = client.split(reply.body)
                count += len(records)
                for record in records:
                    digest.update(record + b"\n")
                offset = reply.tail
                if reply.headers["stream-up-to-date"] == "true":
                    break
            if (count, digest.digest()) != (stream.count, stream.digest.digest()):
                raise LogBroken(f"{name}: {count} records of {stream.count}, or other ones")
            assert offset.replace("_", "") == format_stored(stream.tail), name
            again = client.produce(name, b"[0]", (PRODUCER, 0, stream.seq))
            gap = client.produce(name, b"[0]", (PRODUCER, 0, stream.seq + 2))
            assert (again.status, gap.status) == (204, 409), (name, again, gap)
            found += stream.seq + 1
    return found


def versions(root: Path) -> int:
    return sum(1 for _ in root.glob("*/_delta_log/*.json"))


def small_peak(folder: Path, root: Path) -> int:
    """The peak of a start with a small backlog: the yardstick."""
    copy = folder / "small"
    shutil.copytree(root, copy)
    Filler(copy, 1, segment_bytes=SEGMENT_BYTES).fill(MIB)
    with ServerProcess(copy, env=NEVER) as server:
        start(server, RECOVERY_MAX_S)
        return peak_bytes(server)


def allowed_seconds() -> float:
    """A machine with more to do than processors gives us a share of them."""
    return RECOVERY_MAX_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("snapshot", times(quick=["newer"], long=["older", "newer"]))
@pytest.mark.fault("R1", "start on a backlog of the write-ahead log, killed while it recovers")
def test_backlog_is_recovered_in_bounded_memory_and_time(
    tmp_path: Path, root: Path, tally: Tally, snapshot: str
) -> None:
    yardstick = small_peak(tmp_path, root)
    filler = fill(root, snapshot)
    with ServerProcess(root, env=NEVER) as server:
        for _ in range(times(quick=1, long=3)):
            # It has committed something, and is killed in the middle of the rest.
            before = versions(root)
            server.spawn()
            wait_for(lambda before=before: versions(root) > before + 1, "two commits", 60)
            server.kill9()
            tally.tried += 1
        seconds = start(server, 4 * allowed_seconds())
        peak = peak_bytes(server)
        tally.tried += 1
        tally.checked = check(server, filler)
        assert server.terminate() == 0
    tally.note = (
        f"{filler.bytes / MIB:.0f} MiB: ready after {seconds:.1f} s,"
        f" peak {peak / MIB:.0f} MiB ({yardstick / MIB:.0f} MiB with 1 MiB)"
    )
    print(tally.note)
    assert peak - yardstick < EXTRA_BYTES_MAX
    assert seconds < allowed_seconds()


@pytest.mark.control("R1", "everything is kept in memory")
def test_bound_is_missed_where_the_backlog_is_kept_in_memory(tmp_path: Path, root: Path) -> None:
    yardstick = small_peak(tmp_path, root)
    fill(root, "older")
    with ServerProcess(root, env=NEVER, careless="unbounded-backlog") as server:
        start(server, 4 * allowed_seconds())
        assert peak_bytes(server) - yardstick > EXTRA_BYTES_MAX


def fill(root: Path, snapshot: str) -> Filler:
    """A backlog that the snapshot knows nothing of, or all."""
    filler = Filler(root, seed_of_run(), segment_bytes=SEGMENT_BYTES)
    filler.fill(BACKLOG_BYTES)
    if snapshot == "newer":
        filler.tell_snapshot()
    return filler
