"""D4 and M1, limits of the kernel: no descriptors left, files that may not grow, no memory left."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.scale import times
from tests.support.cgroup import MemoryLimit
from tests.support.load import LogBroken, wait_for
from tests.support.loopdisk import pause
from tests.support.pressure import Pressure
from tests.support.server import HOST, ServerProcess
from tests.support.wire import Wire, is_held, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.ledger import Tally

KIB, MIB = 1024, 1 << 20
ENV = {
    "BOTTOMLESS_WAL__SEGMENT_BYTES": str(64 * KIB),
    "BOTTOMLESS_COMMIT__INTERVAL_MS": "100",
}
DESCRIPTORS = 96
ROUNDS = times(quick=1, long=8)
LONG_POLL = b"GET /v1/stream/pressure/0?offset=now&live=long-poll HTTP/1.1\r\nHost: faults\r\n\r\n"


def limit_process(server: ServerProcess, limit: str) -> None:
    """Set a soft limit of the running server, e.g. nofile=96."""
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is not here")
    subprocess.run(["prlimit", f"--pid={server.pid}", f"--{limit}:"], check=True)


@pytest.mark.timeout(120 + 30 * ROUNDS)
@pytest.mark.fault("D4", "no descriptor is left (RLIMIT_NOFILE), no file may grow (RLIMIT_FSIZE)")
def test_limits_of_files_refuse_and_appends_go_on(tmp_path: Path, tally: Tally) -> None:
    with ServerProcess.start(tmp_path / "data", env=ENV) as server:
        load = Pressure(server)
        for number in range(ROUNDS):
            load.start()
            load.wait_acked(20)
            limit_process(server, f"nofile={DESCRIPTORS}")
            with crowd(server, 2 * DESCRIPTORS):
                wait_for(lambda: open_descriptors(server) >= DESCRIPTORS - 2, "a full table")
                # Segments roll and tables are committed meanwhile, or not: nobody crashes.
                wait_answers(load, 40)
            load.wait_acked(40)
            # The output of the server is a file, too, and must not be the longest.
            limit_process(server, f"fsize={32 * KIB}")
            load.wait_refused(20)
            load.stop()
            load.check()
            load.check_tables()
            limit_process(server, "fsize=unlimited")
            load.start()
            load.wait_acked(40)
            load.stop()
            load.check()
            tally.tried += 2
            assert faults_of(load) <= {"storage_unavailable", "overloaded"}, number
        server.kill9()
        server.restart()
        load.check()
        load.check_tables()
        tally.checked = load.checked


def wait_answers(load: Pressure, more: int) -> None:
    """Until so many more appends are answered, in whatever way."""
    goal = len(load.acked) + len(load.refusals) + more
    wait_for(lambda: len(load.acked) + len(load.refusals) >= goal, f"{more} answers", 60)


def faults_of(load: Pressure) -> set[str]:
    """The reasons of all refusals."""
    return {refusal.code for refusal in load.refusals}


@pytest.mark.control("D4", "a half-written frame is not cut back")
def test_oracle_finds_a_half_frame_at_the_limit_of_a_file(tmp_path: Path) -> None:
    env = {**ENV, "BOTTOMLESS_WAL__SEGMENT_BYTES": str(16 * MIB)}
    with ServerProcess.start(tmp_path / "data", env=env, careless="no-cut-back") as server:
        load = Pressure(server)
        load.start()
        # The output of the server is a file, too, and must not be the longest.
        wait_for(lambda: segment_bytes(server) > 128 * KIB, "a long segment", 60)
        pause([server.pid])
        # The next frame is longer than what has room.
        limit_process(server, f"fsize={segment_bytes(server) + 50}")
        os.kill(server.pid, signal.SIGCONT)
        load.wait_refused(4)
        limit_process(server, "fsize=unlimited")
        load.wait_acked(20)
        server.kill9()
        load.stop()

        def start_and_look() -> None:
            server.restart()
            load.check()

        with pytest.raises(AssertionError, match=r"is damaged at byte|was acknowledged at"):
            start_and_look()


def segment_bytes(server: ServerProcess) -> int:
    """Of the only segment."""
    return sum(path.stat().st_size for path in (server.root / "_wal").glob("*.wal"))


@contextlib.contextmanager
def crowd(server: ServerProcess, size: int) -> Iterator[None]:
    """So many clients that wait for news, as far as the server takes them."""
    with contextlib.ExitStack() as stack:
        for _ in range(size):
            client = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            client.settimeout(20)
            client.connect((HOST, server.port))
            with contextlib.suppress(OSError):
                client.sendall(LONG_POLL)
        yield


def open_descriptors(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


BOUNDS = {
    "BOTTOMLESS_WAL__GROUP_BYTES_MAX": str(8 * MIB),
    "BOTTOMLESS_WAL__SEGMENT_BYTES": str(8 * MIB),
    "BOTTOMLESS_LIMITS__BODY_BYTES": str(4 * MIB),
    "BOTTOMLESS_LIMITS__TAIL_BYTES": str(32 * MIB),
    "BOTTOMLESS_READ__CACHE_BYTES": str(16 * MIB),
    "BOTTOMLESS_COMMIT__BYTES": str(4 * MIB),
}
# Without these bounds everything stays in memory until there is none left.
NO_BOUNDS = {
    "BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000",
    "BOTTOMLESS_COMMIT__BYTES": str(1024 * MIB),
    "BOTTOMLESS_LIMITS__TAIL_BYTES": str(1024 * MIB),
}
LIMIT_MIB = 512


@pytest.mark.timeout(400)
@pytest.mark.fault("M1", f"more load than {LIMIT_MIB} MiB could hold; then killed for its memory")
def test_server_refuses_before_its_memory_ends(tmp_path: Path, tally: Tally) -> None:
    root = tmp_path / "data"
    with (
        MemoryLimit(LIMIT_MIB) as limit,
        ServerProcess.start(root, env=BOUNDS, wrapper=limit.wrapper) as server,
    ):
        tally.tried = send_half_bodies(server)
        load = Pressure(server, streams=4, pushers=16, record_bytes=900 * KIB)
        load.start()
        with slow_readers(server, load, 32):
            load.wait_refused(times(quick=5, long=100))
            load.wait_acked(times(quick=20, long=400), 240)
        load.stop()
        refuse_kills(limit, server)
        tally.note = f"{peak_mib(server)} MiB at most"
        load.check()
        # Now there is hardly any left, and the kernel takes its pick.
        limit.tighten(8)
        load.start()
        wait_for(lambda: not server.is_running, "a server without memory", 120)
        load.stop()
        assert limit.kills > 0
        server.close()
        limit.set(2 * LIMIT_MIB)
        server.restart()
        load.check()
        load.check_tables()
        tally.tried += len(load.refusals) + 1
        tally.checked = load.checked


def send_half_bodies(server: ServerProcess) -> int:
    """More bodies on their way than could be held; returns how many were refused."""
    body_mib, bound_mib, count = 4, 32, 40
    before_mib = peak_mib(server)
    half = request("POST", "/v1/stream/pressure/0", f"Content-Length: {body_mib * MIB}")
    half += bytes(body_mib * MIB - KIB)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Wire(server.port)) for _ in range(count)]
        for client in clients:
            client.send(half)
        # Small appends still find their way.
        small = Pressure(server, streams=1, pushers=1, name="small")
        small.start()
        small.wait_acked(10)
        small.stop()
        small.check()
        refused = [client for client in clients if not is_held(server, client)]
        assert len(refused) >= count - bound_mib // body_mib - 1
        assert peak_mib(server) - before_mib < 3 * bound_mib
    return len(refused)


def refuse_kills(limit: MemoryLimit, server: ServerProcess) -> None:
    """LogBroken where the kernel had to end what the server should have refused."""
    if limit.kills or not server.is_running:
        raise LogBroken("the server took more than its memory holds")


@pytest.mark.timeout(180)
@pytest.mark.control("M1", "records that wait for their commit have no bound")
def test_oracle_finds_a_server_that_takes_more_than_it_can_hold(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with (
        MemoryLimit(LIMIT_MIB // 2) as limit,
        ServerProcess.start(root, env=NO_BOUNDS, wrapper=limit.wrapper) as server,
    ):
        load = Pressure(server, streams=4, pushers=8, record_bytes=900 * KIB)
        load.start()
        wait_for(lambda: not server.is_running or len(load.acked) > 1000, "an end", 120)
        load.stop()
        with pytest.raises(LogBroken, match="more than its memory holds"):
            refuse_kills(limit, server)


@contextlib.contextmanager
def slow_readers(server: ServerProcess, load: Pressure, count: int) -> Iterator[None]:
    """Readers that ask for everything and take next to nothing of it."""
    names = list(load.histories)
    with contextlib.ExitStack() as stack:
        for number in range(count):
            reader = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect((HOST, server.port))
            name = names[number % len(names)]
            how = "&live=sse" if number % 2 else ""
            request = f"GET /v1/stream/{name}?offset=-1{how} HTTP/1.1\r\nHost: faults\r\n\r\n"
            reader.sendall(request.encode())
        yield


def peak_mib(server: ServerProcess) -> int:
    """The most memory the process has ever held."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert found
    return int(found[1]) // 1024
