"""What appends and reads cost, counted instead of timed: the same on fast and slow machines.

    python -m tests.support.costs      measures everything and prints it beside the limits

A server with counters inside (tests/support/counted.py) is asked the same three times: strace looks
on, then calls are counted, then memory. No table is committed meanwhile, so that only the work of
the requests themselves is seen; committing has a row of its own.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.counted import ADDRESS, Counter
from tests.support.server import ServerProcess
from tests.support.wire import Wire, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Measure = Callable[[str, float, Callable[[], object]], None]

RECORD: Final = b'{"id":"%08d","pad":"' + b"x" * 174 + b'"}'
RECORD_BYTES: Final = 200
ALONE: Final = 300
JSON: Final = "Content-Type: application/json"
TOGETHER: Final = 64
ROUNDS: Final = 8
PRODUCERS: Final = 16
BATCHES: Final = 50
READ_RECORDS: Final = 20_000
READ_MIB: Final = READ_RECORDS * RECORD_BYTES / (1 << 20)
READERS: Final = 32
EVENTS: Final = 20
COMMITS: Final = 10
SYNCS: Final = frozenset({"fsync", "fdatasync", "syncfs", "sync", "msync"})
# Nothing is committed by age or size while costs are counted.
QUIET: Final = {
    "BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000",
    "BOTTOMLESS_COMMIT__BYTES": str(1 << 30),
    "BOTTOMLESS_LIMITS__TAIL_BYTES": str(1 << 30),
}

COSTS: Final = {
    "syscalls": "system calls",
    "syncs": "fsync and its kin",
    "tasks": "asyncio tasks made",
    "calls": "functions called by Python code",
    "written_kib": "KiB written to files and sockets",
    "held_kib": "KiB of Python objects held after it",
    "peak_kib": "KiB of Python objects held at most, in all",
}
UNITS: Final = {
    "append, one at a time": "1,000 appends of 200 bytes",
    "append, 64 at a time": "1,000 appends of 200 bytes",
    "append, 16 producers": "1,000 appends of 200 bytes",
    "append of 100 records": "1,000 records of 200 bytes",
    "live, 32 readers by SSE": "1,000 events delivered",
    "read of the hot tail": "1 MiB",
    "read of the table, first": "1 MiB",
    "read of the table, again": "1 MiB",
    "commit": "a commit of one record",
}
# 1.3 to 2 times of what was measured; `python -m tests.support.costs` shows both. Lower one when
# the code gets better, raise one only with a reason in the commit. A dash is not looked at.
_LIMITS: Final = """
                          syscalls  syncs  tasks    calls  written_kib  held_kib  peak_kib
append, one at a time        18000   1000     50   250000         1100       600         -
append, 64 at a time          4000     60     50   130000         1100       600         -
append, 16 producers          6000    200     50   180000         1100       680         -
append of 100 records          200     10      5     2900          300       300      3200
live, 32 readers by SSE       5000     40     40   160000          600       200         -
read of the hot tail            12      0      4      420         1100        16       100
read of the table, first       120      0      6     1000         1100        90       500
read of the table, again        12      0      4      400         1100        16       100
commit                         120      2     10     1700            6         -         -
"""


def _limits() -> dict[str, dict[str, float]]:
    head, *lines = _LIMITS.strip().splitlines()
    found = {}
    for line in lines:
        row, *cells = re.split(r" {2,}", line)
        found[row] = {
            cost: float(cell) for cost, cell in zip(head.split(), cells, strict=True) if cell != "-"
        }
    return found


LIMITS: Final = _limits()


def body_of(first: int, count: int = 1) -> bytes:
    return b"[" + b",".join(RECORD % number for number in range(first, first + count)) + b"]"


def post(stream: str, body: bytes, *headers: str) -> bytes:
    lengths = f"Content-Length: {len(body)}"
    return request("POST", f"/v1/stream/{stream}", JSON, lengths, *headers, body=body)


class Load:
    """The requests of every row, on connections that are open before the count begins."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._open = ExitStack()
        self.wires: list[Wire] = []

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def connect(self, count: int, stream: str) -> list[Wire]:
        """So many connections, each of which has been answered once; the stream is there."""
        self.wires = [self._open.enter_context(Wire(self.server.port)) for _ in range(count)]
        for wire in self.wires:
            wire.send(request("PUT", f"/v1/stream/{stream}", JSON, "Content-Length: 0"))
            assert wire.reply().status in (200, 201)
        return self.wires

    def exchange(self, parts: list[bytes], status: int) -> None:
        """One request on each connection, all sent before the first answer is read."""
        for wire, part in zip(self.wires, parts, strict=True):
            wire.send(part)
        for wire in self.wires:
            reply = wire.reply()
            assert reply.status == status, reply

    def append(self, stream: str, rounds: int, *, batch: int = 1) -> None:
        for number in range(rounds):
            each = [post(stream, body_of(number * batch, batch)) for _ in self.wires]
            self.exchange(each, 204)

    def append_as_producers(self, stream: str, rounds: int) -> None:
        for seq in range(rounds):
            each = [
                post(
                    stream,
                    body_of(seq),
                    *(f"Producer-Id: p{number}", "Producer-Epoch: 0", f"Producer-Seq: {seq}"),
                )
                for number in range(len(self.wires))
            ]
            self.exchange(each, 200)

    def commit(self, stream: str, times: int) -> None:
        for number in range(times):
            self.exchange([post(stream, body_of(number), "Stream-Ack: table")], 204)

    def read(self, stream: str) -> int:
        """The whole stream, chunk by chunk; returns the bytes."""
        offset, total = "-1", 0
        (wire,) = self.wires
        while True:
            wire.send(request("GET", f"/v1/stream/{stream}?offset={offset}"))
            reply = wire.reply(method="GET")
            assert reply.status == 200, reply
            total += len(reply.body)
            offset = reply.headers["stream-next-offset"]
            if reply.headers.get("stream-up-to-date") == "true":
                return total

    def follow(self, stream: str) -> None:
        """All but the last connection become live readers; they have got their first event."""
        for wire in self.wires[:-1]:
            wire.send(request("GET", f"/v1/stream/{stream}?offset=now&live=sse"))
            wire.read_until(b"upToDate")

    def deliver(self, stream: str, events: int) -> None:
        *readers, writer = self.wires
        for number in range(events):
            writer.send(post(stream, body_of(number)))
            assert writer.reply().status == 204
            for reader in readers:
                reader.read_until(b'"id":"%08d"' % number)
                reader.read_until(b"upToDate")


class Rows:
    """Every row, once for each way of counting; each time on streams of their own."""

    def __init__(self, load: Load, counted: str) -> None:
        self.load = load
        self.counted = counted

    def run(self, measure: Measure) -> None:
        load = self.load
        alone = self._open(1, "alone")
        load.append(alone, 10)
        measure("append, one at a time", ALONE / 1000, lambda: load.append(alone, ALONE))
        together = self._open(TOGETHER, "together")
        load.append(together, 2)
        thousands = ROUNDS * TOGETHER / 1000
        measure("append, 64 at a time", thousands, lambda: load.append(together, ROUNDS))
        stream = self._open(PRODUCERS, "producers")
        thousands = ROUNDS * PRODUCERS / 1000
        measure("append, 16 producers", thousands, lambda: load.append_as_producers(stream, ROUNDS))
        batches = self._open(1, "batches")
        load.append(batches, 1, batch=100)
        thousands = BATCHES / 10
        measure(
            "append of 100 records", thousands, lambda: load.append(batches, BATCHES, batch=100)
        )
        live = self._open(READERS + 1, "live")
        load.follow(live)
        load.deliver(live, 1)
        thousands = EVENTS * READERS / 1000
        measure("live, 32 readers by SSE", thousands, lambda: load.deliver(live, EVENTS))
        history = self._open(1, "history")
        load.append(history, READ_RECORDS // 1000, batch=1000)
        measure("read of the hot tail", READ_MIB, lambda: load.read(history))
        commits = self._open(1, "commits")
        load.commit(commits, 1)
        measure("commit", COMMITS, lambda: load.commit(commits, COMMITS))

    def run_on_tables(self, measure: Measure) -> None:
        """After a clean stop and a start, when everything lies in the tables."""
        history = self._open(1, "history")
        measure("read of the table, first", READ_MIB, lambda: self.load.read(history))
        measure("read of the table, again", READ_MIB, lambda: self.load.read(history))

    def _open(self, connections: int, stream: str) -> str:
        name = f"{stream}-{self.counted}"
        self.load.connect(connections, name)
        return name


def measure_costs(folder: Path) -> dict[str, dict[str, float]]:
    """Every row with every cost that can be counted here."""
    address = folder / "counted.socket"
    env = {**QUIET, ADDRESS: str(address)}
    server = ServerProcess(
        folder / "root", env=env, wrapper=(sys.executable, "-m", "tests.support.counted")
    )
    found: dict[str, dict[str, float]] = {row: {} for row in UNITS}
    for on_tables in (False, True):
        address.unlink(missing_ok=True)
        server.spawn()
        with server:
            server.wait_ready()
            for counted in ("syscalls", "calls", "memory"):
                with Load(server) as load:
                    rows = Rows(load, counted)
                    run = rows.run_on_tables if on_tables else rows.run
                    if counted == "syscalls":
                        count_system_calls(server, folder / "calls.log", run, found)
                    else:
                        count_inside(server, address, counted, run, found)
            assert server.terminate() == 0
    return found


def count_system_calls(
    server: ServerProcess, log: Path, run: Callable[[Measure], None], found: dict[str, Any]
) -> None:
    """`syscalls` and `syncs` of every row; nothing where strace is missing or may not trace."""
    rows: list[tuple[str, float]] = []

    def measure(row: str, units: float, act: Callable[[], object]) -> None:
        rows.append((row, units))
        with Wire(server.port) as wire:
            for mark in ("begin", "end"):
                wire.send(request("GET", f"/healthz?{mark}={len(rows)}"))
                assert wire.reply(method="GET").status == 200
                if mark == "begin":
                    act()

    with traced(server.pid, log) as is_traced:
        run(measure)
    if not is_traced:
        return
    text = log.read_text(errors="replace")
    for number, (row, units) in enumerate(rows, 1):
        begin = text.index(f"GET /healthz?begin={number} ")
        end = text.index(f"GET /healthz?end={number} ")
        names = re.findall(r"^\d+ +(\w+)\(", text[begin:end], re.MULTILINE)
        syncs = sum(name in SYNCS for name in names)
        found[row] |= {"syscalls": len(names) / units, "syncs": syncs / units}


@contextmanager
def traced(pid: int, log: Path) -> Iterator[bool]:
    """strace looks on inside. It comes when the server has started, which it would make slow."""
    strace = shutil.which("strace")
    if strace is None:
        yield False
        return
    command = [strace, "-f", "-s", "40", "-e", "signal=none", "-o", str(log), "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        is_traced = "attached" in tracer.stderr.readline()
        try:
            yield is_traced
        finally:
            # It lets go of the server and writes what it still has.
            tracer.send_signal(signal.SIGINT)
            tracer.stderr.read()


def count_inside(
    server: ServerProcess,
    address: Path,
    counted: str,
    run: Callable[[Measure], None],
    found: dict[str, Any],
) -> None:
    """What the counters in the server know, and what the kernel does of its writes."""
    counter = Counter(address)

    def measure(row: str, units: float, act: Callable[[], object]) -> None:
        written = written_bytes(server.pid)
        with counter.count(counted) as counts:
            act()
        if counted == "calls":
            kib = (written_bytes(server.pid) - written) / 1024
            found[row] |= {"tasks": counts["tasks"] / units, "calls": counts["calls"] / units}
            found[row]["written_kib"] = kib / units
        else:
            found[row]["held_kib"] = counts["held_bytes"] / 1024 / units
            found[row]["peak_kib"] = counts["peak_bytes"] / 1024

    run(measure)
    counter.close()


def written_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def table() -> str:
    """The limits, as docs/performance.md has them."""
    lines = [f"| | per | {' | '.join(COSTS.values())} |", f"|---|---|{'--:|' * len(COSTS)}"]
    for row, unit in UNITS.items():
        cells = [f"{LIMITS[row][cost]:,.0f}" if cost in LIMITS[row] else "" for cost in COSTS]
        lines.append(f"| {row} | {unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        measured = measure_costs(Path(temporary))
    for row in UNITS:
        shown = [
            f"{cost} {measured[row][cost]:.2f} of {limit:g}"
            for cost, limit in LIMITS[row].items()
            if cost in measured[row]
        ]
        print(f"{row}: {', '.join(shown)}")
