"""The load generator: the Go one where Go is, the Python one (load.py) where it is not.

Both take the same flags and print the same figures. The Python one costs more CPU per request than
the fast servers do, so that its figures are its own; every result says which one made it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from subjects import CLONE, HERE

if TYPE_CHECKING:
    from pathlib import Path

    from subjects import Running

PYTHON_NOTE = (
    "Go is not installed, so the load comes from Python: the figures are limited by the client, and"
    " live and random reads (W5, W6, W7), Redis and NATS are left out. See https://go.dev/dl"
)


@dataclass(frozen=True)
class Loader:
    """A program that puts one workload on a server and prints what it measured."""

    name: str
    command: tuple[str, ...]

    def run(self, server: Running, *arguments: str, patience_s: float = 120) -> dict[str, Any]:
        """The figures of one run; a failure is a figure too, so that the others still run."""
        address = ["-address", f"127.0.0.1:{server.port}", "-pid", str(server.pid)]
        speak = ["-protocol", server.subject.protocol]
        try:
            done = subprocess.run(
                [*self.command, *address, *speak, *arguments],
                capture_output=True,
                text=True,
                check=False,
                timeout=patience_s,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"not done after {patience_s:.0f} s"}
        if done.returncode:
            return {"failed": done.stderr.strip()[-300:]}
        figures: dict[str, Any] = json.loads(done.stdout)
        return figures


def find_loader() -> Loader:
    """Build the Go one if that is possible; it is kept inside the virtual environment."""
    source, program = HERE / "loadgen", CLONE / ".venv" / "bench" / "loadgen"
    go = shutil.which("go")
    if go is None:
        return Loader("python", (sys.executable, str(HERE / "load.py")))
    newest = max(path.stat().st_mtime for path in source.iterdir())
    if not program.exists() or program.stat().st_mtime < newest:
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([go, "build", "-o", program, "."], cwd=source, check=True)
    return Loader("go", (str(program),))


def sync_floor(folder: Path, seconds: float, size: int = 200) -> dict[str, float]:
    """What one writer cannot be faster than: a write of the record and an fdatasync, in a loop."""
    path, latencies = folder / "floor", []
    record = b"x" * size
    with path.open("wb", buffering=0) as file:
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds:
            sent = time.perf_counter()
            file.write(record)
            os.fdatasync(file.fileno())
            latencies.append(time.perf_counter() - sent)
    path.unlink()
    latencies.sort()
    p50, p99 = (latencies[len(latencies) * share // 100] * 1000 for share in (50, 99))
    rate = len(latencies) / sum(latencies)
    return {"p50_ms": round(p50, 3), "p99_ms": round(p99, 3), "records_per_s": round(rate, 1)}
