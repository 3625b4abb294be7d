"""The load: closed loops on raw connections, in a process of its own. Prints one JSON line."""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import uvloop

RECORD = b'{"id":"%016d","pad":"' + b"x" * 160 + b'"}'
STATUS = b"HTTP/1.1 2"


class Loop(asyncio.Protocol):
    """Sends a request, waits for its answer, sends the next."""

    def __init__(self, request: bytes, stop_at: float, latencies: list[float]) -> None:
        self.request = request
        self.stop_at = stop_at
        self.latencies = latencies
        self.done = asyncio.get_running_loop().create_future()
        self.bytes = 0
        self.missing = 0
        self.head = b""

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.sent_at = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)
        if self.missing:
            self.missing -= len(data)
        else:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            assert self.head.startswith(STATUS), self.head[:200]
            self.missing = self.length(self.head[:end].lower()) - (len(self.head) - end - 4)
            self.head = b""
        if self.missing <= 0:
            self.answered()

    def length(self, head: bytes) -> int:
        name = b"content-length: "
        begin = head.find(name)
        return 0 if begin < 0 else int(head[begin + len(name) :].split(b"\r\n", 1)[0])

    def answered(self) -> None:
        now = time.perf_counter()
        self.latencies.append(now - self.sent_at)
        if now < self.stop_at:
            self.send()
        else:
            self.transport.close()
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server hung up"))


def make_request(options: argparse.Namespace) -> bytes:
    if options.batch == 0:
        return f"GET {options.path}?offset=-1 HTTP/1.1\r\nHost: b\r\n\r\n".encode()
    body = b"[" + b",".join(RECORD % number for number in range(options.batch)) + b"]"
    head = f"POST {options.path} HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def main(options: argparse.Namespace) -> None:
    loop, latencies = asyncio.get_running_loop(), []
    begun = time.perf_counter()
    loops = []
    for _ in range(options.connections):
        _, protocol = await loop.create_connection(
            lambda: Loop(make_request(options), begun + options.seconds, latencies),
            "127.0.0.1",
            options.port,
        )
        loops.append(protocol)
    await asyncio.gather(*[protocol.done for protocol in loops])
    elapsed = time.perf_counter() - begun
    latencies.sort()
    result = {
        "requests_per_s": round(len(latencies) / elapsed),
        "records_per_s": round(len(latencies) * options.batch / elapsed),
        "mb_per_s": round(sum(protocol.bytes for protocol in loops) / elapsed / 1e6, 1),
        "latency_ms_p50": round(latencies[len(latencies) // 2] * 1000, 3),
        "latency_ms_p99": round(latencies[len(latencies) * 99 // 100] * 1000, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", default="/v1/stream/bench")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1, help="records per append; 0 reads")
    parser.add_argument("--seconds", type=float, default=3.0)
    uvloop.run(main(parser.parse_args()))
