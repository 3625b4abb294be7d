"""Measures the client library's producers: how many records of 200 bytes a second they get stored.

    make bench-producer                     three rounds of three seconds each
    make bench-producer ARGS="--rounds 1 --only blocking"

The baseline of each round is a loop that sends one ready-made request of the same records, again
and again, over as many connections: what server and wire take where no client encodes and batches.
One JSON line per measurement, then the best of each, and its ratio to the baseline's best. All of
it is stored, with fsync, and counted at the end; the server has the same cores. Traffic stays on
this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import socket
import subprocess
import sys
import tempfile
import time

import msgspec
from run import EXECUTABLE, create_stream, free_port

import bottomless

IN_FLIGHT = 4
BATCH = 5000
PAD = "x" * 168
RECORD_BYTES = 200
SECONDS_MAX = 10.0


def record(number: int) -> dict[str, str]:
    """200 bytes of JSON."""
    return {"id": f"{number:016d}", "p": PAD}


class Watch:
    """Measures between a producer that is ready and its last answer."""

    def __init__(self) -> None:
        self.begun, self.cpu = time.perf_counter(), cpu_seconds()

    def found(self, stored: int) -> dict[str, float]:
        elapsed, cpu = time.perf_counter() - self.begun, cpu_seconds() - self.cpu
        return {
            "records_per_s": round(stored / elapsed),
            "client_cpu_us_per_record": round(cpu / stored * 1e6, 2),
            "stored": stored,
        }


def run_blocking(url: str, seconds: float) -> dict[str, float]:
    with bottomless.connect(url) as client:
        producer = client.producer("bench")
        watch = Watch()
        for begin in itertools.count(0, 1000):
            for number in range(begin, begin + 1000):
                producer.append(record(number))
            if time.perf_counter() > watch.begun + seconds:
                break
        producer.detach()
        assert producer.failed == 0
        return watch.found(producer.delivered)


async def run_async(url: str, seconds: float) -> dict[str, float]:
    async with bottomless.connect_async(url) as client:
        producer = await client.producer("bench")
        watch = Watch()
        for begin in itertools.count(0, 1000):
            for number in range(begin, begin + 1000):
                await producer.append(record(number))
            if time.perf_counter() > watch.begun + seconds:
                break
        await producer.detach()
        assert producer.failed == 0
        return watch.found(producer.delivered)


def run_raw(port: int, seconds: float) -> dict[str, float]:
    body = msgspec.json.encode([record(number) for number in range(BATCH)])
    head = f"POST /v1/stream/bench HTTP/1.1\r\nHost: b\r\nContent-Length: {len(body)}\r\n"
    request = f"{head}Content-Type: application/json\r\n\r\n".encode() + body
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(IN_FLIGHT)]
    stored, watch = 0, Watch()
    while time.perf_counter() < watch.begun + seconds:
        for connection in connections:
            connection.sendall(request)
        answers = [connection.recv(65536) for connection in connections]
        taken = sum(answer.startswith(b"HTTP/1.1 2") for answer in answers)
        stored += taken * BATCH
        if taken < IN_FLIGHT:
            # The server is full: it writes the table more slowly than the log.
            assert all(answer[9:12] in (b"204", b"503") for answer in answers), answers
            time.sleep(0.05)
    for connection in connections:
        connection.close()
    return watch.found(stored)


def measure_here(subject: str, port: int, seconds: float) -> dict[str, float]:
    url = f"http://127.0.0.1:{port}"
    if subject == "blocking":
        return run_blocking(url, seconds)
    if subject == "async":
        return asyncio.run(run_async(url, seconds))
    return run_raw(port, seconds)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(subject: str, seconds: float) -> dict[str, float]:
    """One subject in a process of its own, against a fresh server."""
    with tempfile.TemporaryDirectory(prefix="bottomless-bench-") as root:
        port = free_port()
        command = [EXECUTABLE, "serve", "--root", root, "--port", str(port)]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            create_stream(port, server)
            here = ["--here", subject, "--port", str(port), "--seconds", str(seconds)]
            done = subprocess.run(
                [sys.executable, __file__, *here],
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            )
            found = json.loads(done.stdout)
            with bottomless.connect(f"http://127.0.0.1:{port}") as client:
                (row,) = client.streams("bench")
                assert row.records == found["stored"], (row.records, found)
            return found
        finally:
            server.terminate()
            server.wait(30)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", choices=["blocking", "async"], action="append")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    seconds = min(options.seconds, SECONDS_MAX)
    if options.here:
        print(json.dumps(measure_here(options.here, options.port, seconds)))
        return 0
    assert len(msgspec.json.encode(record(0))) == RECORD_BYTES
    subjects = ["raw", *(options.only or ["blocking", "async"])]
    best: dict[str, float] = dict.fromkeys(subjects, 0)
    for _ in range(options.rounds):
        for subject in subjects:
            found = measure(subject, seconds)
            best[subject] = max(best[subject], found["records_per_s"])
            print(json.dumps({"subject": subject, **found}), flush=True)
    ratios = {subject: round(best[subject] / best["raw"], 2) for subject in subjects[1:]}
    print(json.dumps({"best_records_per_s": best, "ratio_to_raw": ratios}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
