"""Measures the Spark side, and what it does for readers; before and after in the same run.

    make bench-jobs                                   everything, about fifteen minutes
    make bench-jobs ARGS="--only hour --scale 0.1"    one part, a tenth of its size

compact   10,000 flush files of 100 rows: the job, and a whole read over HTTP before and after
hour      one hour of 10,000,000 records over 30 days: what Spark reads, how soon HTTP answers
open      a stream of 100,000 commits: how long its first read after a start takes

One JSON line per part. Tables lie in a temporary folder; traffic stays on this machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine.storage import LocalStorage
from engine.table.replay import load_state, replay_log
from tests.support.history import moment, offset_of
from tests.support.load import Client
from tests.support.server import EXECUTABLE, ServerProcess
from tests.support.tables import MONDAY_MS, TableBuilder, events, small_commits

ASKS = 20


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size (1)")
    options = parser.parse_args()
    for part in options.only or PARTS:
        with tempfile.TemporaryDirectory(prefix="bottomless-bench-") as folder:
            facts = PARTS[part](Path(folder) / "root", options.scale)
        print(json.dumps({"part": part, "scale": options.scale, **facts}), flush=True)
    return 0


def compact(root: Path, scale: float) -> dict[str, Any]:
    """Reads before and after are of the same server version, each by a fresh process."""
    table = small_commits(root, "orders", commits=int(10_000 * scale), rows=100)
    table.checkpoint()
    before_s, before = whole_read(root)
    first, second = run_job("compact", root), run_job("compact", root)
    after_s, after = whole_read(root)
    assert before == after, "compaction changed what readers see"
    return {
        "files": [first["files_in"], first["files_out"]],
        "job_s": first["wall_s"],
        "second_job_s": second["wall_s"],
        "second_files_in": second["files_in"],
        "read_before_s": before_s,
        "read_after_s": after_s,
        "ratio": round(before_s / after_s, 1),
    }


def hour(root: Path, scale: float) -> dict[str, Any]:
    """The middle of the history; every ask over HTTP is of another hour, so nothing is cached."""
    records = int(10_000_000 * scale) // 30 * 30
    make_history_aside(root, records)
    begin, end = (f"{offset_of(moment(17, hour))}" for hour in (14, 15))
    report = run_job(
        *("replay", root, "--stream", "orders", "--after", begin, "--through", end),
        *("--output", str(root.parent / "out")),
    )
    lines = sum(len(p.read_text().splitlines()) for p in (root.parent / "out").glob("part-*"))
    with ServerProcess.start(root) as server:
        asks = [
            first_byte_ms(server, f"?offset={offset_of(moment(number % 30, number % 24))}")
            for number in range(ASKS)
        ]
        server.terminate()
    return {
        "records": records,
        "table_bytes": report["bytes"],
        "job_s": report["wall_s"],
        "rows": lines,
        "bytes_scanned": report["bytes_scanned"],
        "share_scanned": round(report["bytes_scanned"] / report["bytes"], 5),
        "http_first_ever_ms": asks[0],
        "http_first_byte_ms_p50": round(statistics.median(asks[1:]), 1),
        "http_first_byte_ms_max": max(asks[1:]),
    }


def open_long(root: Path, scale: float) -> dict[str, Any]:
    """Without the index, with it, and with it after compaction; each asks for the last records."""
    commits = int(100_000 * scale)
    table = long_log(root, commits)
    near_tail = f"?offset={offset_of(MONDAY_MS + (commits - 10) * 1000)}"
    folder, storage = table.folder, LocalStorage(root)
    with ServerProcess.start(root) as server:
        without_ms = first_byte_ms(server, near_tail)
        server.terminate()
    log_s = timed(lambda: replay_log(storage, folder))
    index = run_job("index", root)
    facts = {"commits": commits, "replay_log_s": log_s, "first_ms": without_ms}
    facts |= {"index_job_s": index["wall_s"], "index_bytes": index["bytes_out"]}
    facts["load_indexed_s"] = timed(lambda: load_state(storage, folder))
    with ServerProcess.start(root) as server:
        facts["first_indexed_ms"] = first_byte_ms(server, near_tail)
        server.terminate()
    facts["compact_job_s"] = run_job("compact", root)["wall_s"]
    run_job("index", root)
    facts["load_compacted_s"] = timed(lambda: load_state(storage, folder))
    with ServerProcess.start(root) as server:
        facts["first_compacted_ms"] = first_byte_ms(server, near_tail)
        server.terminate()
    return facts


def long_log(root: Path, commits: int) -> TableBuilder:
    """One row a commit, a checkpoint now and then, as a server leaves it."""
    table = TableBuilder(root, "orders")
    for number, record in enumerate(events(0, commits)):
        table.commit(MONDAY_MS + number * 1000, [record])
        if number % 10_000 == 9_999:
            table.checkpoint()
    return table


def make_history_aside(root: Path, records: int) -> None:
    """In a process of its own: Spark's memory must not weigh on what is measured."""
    path = root.parent / "make_history.py"
    path.write_text(
        "from pathlib import Path\n"
        "from jobs.common.session import open_session\n"
        "from tests.support.history import make_history\n"
        f"make_history(open_session('bench'), Path({str(root)!r}), 'orders', records={records})\n"
    )
    submit = Path(sys.executable).parent / "spark-submit"
    done = subprocess.run([submit, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def whole_read(root: Path) -> tuple[float, list[bytes]]:
    """Everything over HTTP, after a fresh start; seconds, and the bodies."""
    with ServerProcess.start(root) as server, Client(server.url) as client:
        begun = time.perf_counter()
        body = client.read("orders").body.replace(b"][", b",")
        seconds = time.perf_counter() - begun
        server.terminate()
    shutil.rmtree(root / "_wal")
    return round(seconds, 2), body.split(b"\n")


def first_byte_ms(server: ServerProcess, query: str) -> float:
    """From connecting to having the first chunk."""
    begun = time.perf_counter()
    with Client(server.url) as client:
        reply = client.call("GET", "orders", query=query)
    assert reply.status == 200
    assert len(reply.body) > 2
    return round((time.perf_counter() - begun) * 1000, 1)


def run_job(verb: str, root: Path, *arguments: str) -> dict[str, Any]:
    """A job as people start it; its report, with the seconds of the whole command."""
    begun = time.perf_counter()
    done = subprocess.run(
        [EXECUTABLE, verb, "--root", root, "--quiet", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    return report | {"wall_s": round(time.perf_counter() - begun, 1)}


def timed(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return round(time.perf_counter() - begun, 3)


PARTS = {"compact": compact, "hour": hour, "open": open_long}

if __name__ == "__main__":
    sys.exit(main())
