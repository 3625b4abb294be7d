"""Measures the server against a baseline in the same run, alternating, and prints the ratios.

    make bench                      all workloads, three rounds of three seconds
    make bench ARGS="--rounds 1 --only append"

One JSON line per measurement, then one line per workload with medians and the ratio to the baseline
(bench/baseline.py: the same HTTP without storing anything). Traffic stays on this machine.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXECUTABLE = Path(sys.executable).parent / "bottomless"
WORKLOADS = {
    "append": ["--connections", "64", "--batch", "1"],
    "append-alone": ["--connections", "1", "--batch", "1"],
    "append-batch": ["--connections", "16", "--batch", "100"],
    "read": ["--connections", "4", "--batch", "0"],
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", choices=WORKLOADS, action="append")
    options = parser.parse_args()
    for workload in options.only or WORKLOADS:
        found = {"bottomless": [], "baseline": []}
        for _ in range(options.rounds):
            for subject, results in found.items():
                results.append(measure(subject, workload, options.seconds))
                line = {"workload": workload, "subject": subject, **results[-1]}
                print(json.dumps(line), flush=True)
        print(json.dumps(summary(workload, found)), flush=True)
    return 0


def measure(subject: str, workload: str, seconds: float) -> dict[str, float]:
    """One workload against one fresh server."""
    with tempfile.TemporaryDirectory(prefix="bottomless-bench-") as root:
        port = free_port()
        serve = [EXECUTABLE, "serve", "--root", root, "--port", str(port)]
        baseline = [sys.executable, HERE / "baseline.py", str(port)]
        command = serve if subject == "bottomless" else baseline
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            create_stream(port, server)
            if workload == "read" and subject == "bottomless":
                load(port, ["--connections", "4", "--batch", "1000", "--seconds", "1"])
            return load(port, [*WORKLOADS[workload], "--seconds", str(seconds)])
        finally:
            server.terminate()
            server.wait(30)


def load(port: int, arguments: list[str]) -> dict[str, float]:
    command = [sys.executable, HERE / "load.py", "--port", str(port), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)


def create_stream(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers, then make the stream."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/stream/bench",
        method="PUT",
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 30
    while True:
        try:
            opener.open(request, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)


def summary(workload: str, found: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    """Medians, and the ratio of requests per second to the baseline's."""
    medians = {
        subject: {key: statistics.median(one[key] for one in results) for key in results[0]}
        for subject, results in found.items()
    }
    ours, theirs = (medians[subject]["requests_per_s"] for subject in ("bottomless", "baseline"))
    return {"workload": workload, "ratio": round(ours / theirs, 2), "medians": medians}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
