"""What one stream costs as it grows: an append, a commit, a read at its tail, and memory.

    make bench-growth                          1,000 to 1,000,000 records, about a minute
    make bench-growth ARGS=--ten-million       and 10,000,000: some minutes, 5 GB of disk

One server, one stream, filled up to each mark. A second stream gets a commit per record, to see
what the number of versions does. Results go to bench/results/growth.json.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loader import Loader, find_loader
from subjects import BY_NAME, CLONE, Running

MARKS = (1_000, 10_000, 100_000, 1_000_000)
TEN_MILLION = 10_000_000
RECORD_BYTES = 200
BESIDE_TAIL = 100
TAIL_READS = 200
COMMITS = 50
VERSIONS = (100, 500, 1000, 2000)
SETTLE_TIMEOUT_S = 120.0
JSON = {"Content-Type": "application/json"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ten-million", action="store_true", help="go on to 10,000,000 records")
    parser.add_argument("--seconds", type=float, default=3.0, help="of appends at each mark")
    parser.add_argument("--folder", type=Path, default=CLONE / ".venv" / "bench" / "data")
    parser.add_argument("--results", type=Path, default=CLONE / "bench/results/growth.json")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    loader = find_loader()
    marks = [*MARKS, *([TEN_MILLION] if options.ten_million else [])]
    with (
        tempfile.TemporaryDirectory(prefix="growth-", dir=options.folder) as root,
        Running(BY_NAME["bottomless"], Path(root)) as server,
    ):
        found = grow(server, loader, marks, options.seconds)
        versions = many_versions(server)
    whole = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "client": loader.name,
        "record_bytes": RECORD_BYTES,
        "marks": found,
        "versions": versions,
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(whole, indent=1) + "\n")
    return 0


def grow(server: Running, loader: Loader, marks: list[int], seconds: float) -> list[dict[str, Any]]:
    """The figures at each mark."""
    warm = ("-do", "append", "-stream", "warm", "-connections", "16")
    loader.run(server, *warm, "-seconds", "2s", "-warm", "0s")
    found: list[dict[str, Any]] = []
    # Everything that was appended counts, also while it was measured.
    written = 0
    for mark in marks:
        # What was appended to measure a mark may have gone beyond the next one.
        if mark > written:
            batch = min(1000, max(1, (mark - written) // 4))
            fill = ("-do", "fill", "-stream", "history", "-connections", "4", "-seconds", "600s")
            fill += ("-batch", str(batch), "-n", str(mark - written))
            filled = loader.run(server, *fill, patience_s=700)
            assert "failed" not in filled, filled
            written += filled["records"]
        settle(server)
        written += 1
        at = {"records": written, **measure(server, loader, seconds)}
        written += at.pop("appended")
        found.append(at)
        print(json.dumps(found[-1]), flush=True)
    return found


def measure(server: Running, loader: Loader, seconds: float) -> dict[str, Any]:
    """Appends of one record by 16 connections, reads of the last hundred, commits of one."""
    load = ("-do", "append", "-stream", "history", "-connections", "16", "-warm", "0s")
    appended = loader.run(server, *load, "-seconds", f"{seconds}s")
    assert not appended.get("errors", 1), appended
    settle(server)
    reads = tail_reads(server)
    settle(server)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    commits = [timed_commit(connection, "history-0") for _ in range(COMMITS)]
    connection.close()
    log = server.root / "data" / "history-0" / "_delta_log"
    beside = BESIDE_TAIL + 1 + COMMITS + 2
    return {
        "versions": max(int(path.stem) for path in log.glob("0*.json")) + 1,
        "append_p50_ms": appended["p50_ms"],
        "append_p99_ms": appended["p99_ms"],
        "append_cpu_us": appended.get("server_cpu_us_per_record", 0),
        "appended": round(appended["records_per_s"] * seconds) + beside,
        "other_cpu": appended.get("other_cpu"),
        "commit_ms": round(statistics.median(commits) * 1000, 3),
        "tail_read_p50_ms": round(statistics.median(reads) * 1000, 3),
        "rss_mb": resident_mb(server.pid),
    }


def timed_commit(connection: http.client.HTTPConnection, stream: str) -> float:
    """A version of one record, up to its acknowledgement by the table."""
    begun = time.perf_counter()
    append(connection, stream, 1, ack="table")
    return time.perf_counter() - begun


def tail_reads(server: Running) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    offset = append(connection, "history-0", 1)
    append(connection, "history-0", BESIDE_TAIL)
    took = []
    for _ in range(TAIL_READS):
        begun = time.perf_counter()
        connection.request("GET", f"/v1/stream/history-0?offset={offset}")
        body = connection.getresponse().read()
        took.append(time.perf_counter() - begun)
        assert body.count(b"pad") == BESIDE_TAIL, len(body)
    connection.close()
    return took


def many_versions(server: Running) -> list[dict[str, Any]]:
    """A stream whose every record is a version: what the last 50 commits of each mark cost."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("PUT", "/v1/stream/versions", headers=JSON)
    connection.getresponse().read()
    found, version = [], 0
    for mark in VERSIONS:
        took = []
        while version < mark:
            took.append(timed_commit(connection, "versions"))
            version += 1
        p50 = statistics.median(took[-COMMITS:]) * 1000
        found.append({"version": mark, "commit_ms": round(p50, 3)})
        print(json.dumps(found[-1]), flush=True)
    connection.close()
    return found


def append(
    connection: http.client.HTTPConnection, stream: str, records: int, ack: str = "wal"
) -> str:
    record = b'{"pad":"' + b"x" * (RECORD_BYTES - 10) + b'"}'
    body = b"[" + b",".join([record] * records) + b"]"
    connection.request("POST", f"/v1/stream/{stream}", body, {**JSON, "Stream-Ack": ack})
    response = connection.getresponse()
    response.read()
    assert response.status == 204, response.status
    offset = response.headers["stream-next-offset"]
    assert offset is not None
    return offset


def settle(server: Running, stream: str = "history-0") -> None:
    """Return when the stream's table has everything: it has what is acknowledged by the table."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SETTLE_TIMEOUT_S)
    append(connection, stream, 1, ack="table")
    connection.close()


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1)


if __name__ == "__main__":
    sys.exit(main())
