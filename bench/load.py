"""The load without Go: closed loops on raw connections, in one process. Prints one JSON line.

It takes the flags of bench/loadgen that it can serve: appends, with and without producers, a
history, and catch-up reads, all of the Durable Streams protocol.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import sys
import time
from pathlib import Path

import uvloop

QUANTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 100)
BEGIN = b'{"number":"'


class Loop(asyncio.Protocol):
    """Sends a request, waits for its answer, sends the next that `next_request` has."""

    def __init__(self, next_request) -> None:
        self.next_request = next_request
        self.done = asyncio.get_running_loop().create_future()
        self.missing = 0
        self.head = b""
        self.records = 0
        self.seam = b""

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.send(b"")

    def send(self, last_head: bytes) -> None:
        request = self.next_request(self, last_head)
        if request is None:
            self.transport.close()
            self.done.set_result(None)
            return
        self.sent_at = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self.missing:
            self.missing -= len(data)
            self.count(data)
        else:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            self.answer, body = self.head[:end].lower(), self.head[end + 4 :]
            self.missing = int(header(self.answer, b"content-length") or 0) - len(body)
            self.count(body)
            self.head = b""
        if self.missing <= 0:
            self.took = time.perf_counter() - self.sent_at
            self.send(self.answer)

    def count(self, body: bytes) -> None:
        """Records that begin in it, or on the seam between it and what came before."""
        seam = self.seam + body[: len(BEGIN) - 1]
        self.records += body.count(BEGIN) + seam.count(BEGIN)
        self.seam = (self.seam + body if len(body) < len(BEGIN) else body)[-len(BEGIN) + 1 :]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server hung up"))


def header(head: bytes, name: bytes) -> bytes:
    """Of a lower-case head; empty where it is missing."""
    begin = head.find(b"\r\n" + name + b": ")
    return b"" if begin < 0 else head[begin + len(name) + 4 :].split(b"\r\n", 1)[0]


class Appends:
    """Every connection appends until the time is over, or until its share is written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.latencies: list[float] = []
        self.errors = 0
        self.written = 0
        room = options.size - len(BEGIN) - 16 - len(b'","pad":""}')
        pad = bytes(random.Random(7).choices(b"0123456789abcdef", k=room))
        records = [BEGIN + b'%016d","pad":"%b"}' % (n, pad) for n in range(options.batch)]
        self.body = b"[" + b",".join(records) + b"]"
        self.seqs: dict[int, int] = {}
        self.begun = time.perf_counter() + options.warm

    def request_for(self, number: int):
        stream = f"{self.options.stream}-{number % self.options.streams}"
        head = f"POST {self.options.path}{stream} HTTP/1.1\r\nHost: b\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n"
        until = self.begun + self.options.seconds
        share = self.options.n // self.options.connections if self.options.do == "fill" else 0
        ready = head.encode() + b"\r\n" + self.body
        written = 0

        def next_request(loop: Loop, last: bytes) -> bytes | None:
            nonlocal written
            now = time.perf_counter()
            if last:
                is_stored = last[9:10] == b"2"
                written += is_stored * self.options.batch
                self.written += is_stored * self.options.batch
                self.errors += not is_stored
                if is_stored and self.begun <= now < until:
                    self.latencies.append(loop.took)
            if now >= until or (share and written >= share):
                return None
            if not self.options.producers:
                return ready
            seq = self.seqs[number] = self.seqs.get(number, -1) + 1
            stamp = f"Producer-Id: p{number}\r\nProducer-Epoch: 0\r\nProducer-Seq: {seq}\r\n\r\n"
            return head.encode() + stamp.encode() + self.body

        return next_request


def read_all(options: argparse.Namespace):
    """Goes from offset to offset until the server says that this is all."""
    path = f"{options.path}{options.stream}-0"

    def next_request(_loop: Loop, last: bytes) -> bytes | None:
        assert not last or last[9:12] == b"200", last[:200]
        if header(last, b"stream-up-to-date") == b"true":
            return None
        offset = header(last, b"stream-next-offset").decode() or "-1"
        return f"GET {path}?offset={offset} HTTP/1.1\r\nHost: b\r\n\r\n".encode()

    return next_request


async def connect(options: argparse.Namespace, requests) -> list[Loop]:
    host, port = options.address.split(":")
    loops = []
    for next_request in requests:
        _, loop = await asyncio.get_running_loop().create_connection(
            lambda each=next_request: Loop(each), host, int(port)
        )
        loops.append(loop)
    await asyncio.gather(*[loop.done for loop in loops])
    return loops


async def main(options: argparse.Namespace) -> dict[str, object]:
    cpu = own_cpu()
    if options.do == "read":
        begun = time.perf_counter()
        loops = await connect(options, [read_all(options) for _ in range(options.connections)])
        elapsed = time.perf_counter() - begun
        records = sum(loop.records for loop in loops)
        found: dict[str, object] = {
            "records": records,
            "records_per_s": round(records / elapsed),
            "mb_per_s": round(records * options.size / elapsed / 1e6, 1),
        }
    else:
        found, elapsed = await append(options)
    found |= {"seconds": round(elapsed, 3), "client_cpu_s": round(own_cpu() - cpu, 3)}
    if options.pid:
        found["rss_mb"] = resident_mb(options.pid)
    return found


def resident_mb(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


async def append(options: argparse.Namespace) -> tuple[dict[str, object], float]:
    await connect(options, [create(options)])
    if options.do == "fill":
        options.warm = 0
    load = Appends(options)
    begun = time.perf_counter()
    await connect(options, [load.request_for(n) for n in range(options.connections)])
    elapsed = time.perf_counter() - begun - options.warm
    count = len(load.latencies)
    load.latencies.sort()
    found: dict[str, object] = {"errors": load.errors, "records": load.written}
    if count:
        curve = [
            [q, round(load.latencies[int(q / 100 * (count - 1))] * 1000, 3)] for q in QUANTILES
        ]
        named = dict(curve)
        found |= {"p50_ms": named[50], "p99_ms": named[99], "max_ms": named[100], "curve": curve}
    found["requests_per_s"] = round(count / elapsed)
    found["records_per_s"] = round(count * options.batch / elapsed)
    found["mb_per_s"] = round(count * options.batch * options.size / elapsed / 1e6, 1)
    return found, elapsed


def create(options: argparse.Namespace):
    left = list(range(options.streams))

    def next_request(_loop: Loop, last: bytes) -> bytes | None:
        assert not last or last[9:10] == b"2", last[:200]
        if not left:
            return None
        path = f"{options.path}{options.stream}-{left.pop()}"
        kind = "Content-Type: application/json\r\nContent-Length: 0"
        return f"PUT {path} HTTP/1.1\r\nHost: b\r\n{kind}\r\n\r\n".encode()

    return next_request


def own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def seconds_of(text: str) -> float:
    """As Go writes durations: 700ms, 3s."""
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text.rstrip("s"))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("-do", choices=["append", "fill", "read"], default="append")
    parser.add_argument("-protocol", choices=["streams"], default="streams")
    parser.add_argument("-address", default="127.0.0.1:4437")
    parser.add_argument("-path", default="/v1/stream/")
    parser.add_argument("-stream", default="bench")
    parser.add_argument("-offsets", help="taken, and not written: random reads want Go")
    for name, default in (("connections", 64), ("streams", 1), ("batch", 1), ("size", 200)):
        parser.add_argument(f"-{name}", type=int, default=default)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("-pid", type=int, default=0)
    parser.add_argument("-seconds", type=seconds_of, default=3.0)
    parser.add_argument("-warm", type=seconds_of, default=0.7)
    parser.add_argument("-producers", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(uvloop.run(main(parse()))) + "\n")
