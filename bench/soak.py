"""Half an hour of mixed load: memory, descriptors, files and latencies must stay flat.

    make soak                  30 minutes
    make soak MINUTES=2        a try

Appends of every kind, producers and consumers of the client library, catch-up reads, live readers
by SSE and long-poll, streams that come and go; retention, and compaction by `maintain` where Java
is. The load is moderate, so that what grows is a leak and no queue. Samples, counts and verdicts go
to bench/results/soak.json; exit code 1 where something is not flat or a client saw something wrong.

The first quarter does not count. Of the rest, the median of the last third may be above that of the
first third by the bounds below, and no more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from soak_load import Load
from subjects import BY_NAME, CLONE, EXECUTABLE, Running

# What: (name, share of the begin, and on top of it).
BOUNDS = {
    "rss_mb": ("RSS, MB", 0.1, 16.0),
    "descriptors": ("file descriptors", 0.1, 16.0),
    "files": ("files, but for the tables' logs", 0.25, 100.0),
    "commit_ms": ("commit, ms", 0.5, 3.0),
    "append_p99_ms": ("append p99, ms", 0.5, 10.0),
}
KEEPER_STOP_S = 30.0


def main() -> int:
    options = parse()
    print(f"{options.minutes:g} minutes of mixed load; Ctrl-C ends it", file=sys.stderr)
    options.folder.mkdir(parents=True, exist_ok=True)
    seconds = options.minutes * 60
    settings = {
        # Old records go, so that what is there stays about the same.
        "BOTTOMLESS_RETAIN__AGE_SECONDS": str(max(20, int(seconds / 8))),
        "BOTTOMLESS_RETAIN__VACUUM_HOURS": "0",
        "BOTTOMLESS_MAINTAIN__INTERVAL_SECONDS": str(max(5, min(30, int(seconds / 12)))),
        "BOTTOMLESS_MAINTAIN__RETAIN_INTERVAL_SECONDS": str(max(10, min(60, int(seconds / 8)))),
        "BOTTOMLESS_COMPACT__SETTLE_SECONDS": "5",
        # The library that writes checkpoints takes 60 MiB at its first one: let that be soon.
        "BOTTOMLESS_COMMIT__CHECKPOINT_EVERY": "20",
        "BOTTOMLESS_HTTP__LONG_POLL_TIMEOUT_MS": "5000",
        "BOTTOMLESS_HTTP__SSE_LIFETIME_MS": "20000",
    }
    subject = dataclasses.replace(BY_NAME["bottomless"], environment=settings)
    with (
        tempfile.TemporaryDirectory(prefix="soak-", dir=options.folder) as root,
        Running(subject, Path(root)) as server,
        keeping(server, settings) as (beside, keeper),
    ):
        every_s = options.every or max(1.0, min(5.0, seconds / 120))
        soak = Soak(server, keeper, options.pace, every_s)
        asyncio.run(soak.run(seconds))
    checks = [check(soak.samples, key) for key in BOUNDS]
    problems = soak.load.problems
    whole = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "minutes": round(soak.samples[-1]["at_s"] / 60, 1) if soak.samples else 0,
        "pace": options.pace,
        "beside": beside,
        "other_cpu": statistics.median(one["other_cpu"] for one in soak.samples),
        "done": dict(soak.load.done),
        "checks": checks,
        "problems": problems,
        "passed": all(one["ok"] for one in checks) and not problems,
        "samples": soak.samples,
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(whole, indent=1) + "\n")
    for one in checks:
        verdict = "ok" if one["ok"] else "NOT FLAT"
        print(f"{one['what']:32} {one['begin']:10.4g} -> {one['end']:10.4g}  {verdict}")
    print("\n".join(problems) or "every client saw what it should", file=sys.stderr)
    print(f"{json.dumps(whole['done'])}; {options.results}", file=sys.stderr)
    return 0 if whole["passed"] else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--pace", type=float, default=1.0, help="share of the usual load (1)")
    parser.add_argument("--every", type=float, help="seconds between samples")
    parser.add_argument("--folder", type=Path, default=CLONE / ".venv" / "bench" / "data")
    parser.add_argument("--results", type=Path, default=CLONE / "bench/results/soak.json")
    return parser.parse_args()


@contextlib.contextmanager
def keeping(server: Running, settings: dict[str, str]) -> Any:
    """`maintain` beside the server where Java is, else `retain` once in a while; says which."""
    java = subprocess.run([CLONE / "scripts/find_java.sh"], capture_output=True, check=False)
    has_java = java.returncode == 0 and (CLONE / ".venv/delta-jars/.stamp").exists()
    data = str(server.root / "data")
    program = [str(EXECUTABLE), "maintain", "--root", data]
    if not has_java:
        every = settings["BOTTOMLESS_MAINTAIN__RETAIN_INTERVAL_SECONDS"]
        retain = f'while sleep {every}; do "{EXECUTABLE}" retain --root "{data}"; done'
        program = ["/bin/bash", "-c", retain]
    with (server.root / "maintain.log").open("ab") as log:
        keeper = subprocess.Popen(
            program,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
            start_new_session=True,
        )
    try:
        beside = (
            "compaction and retention" if has_java else "retention, and without Java no compaction,"
        )
        yield f"{beside} beside it", keeper.pid
        assert keeper.poll() is None, (server.root / "maintain.log").read_text()[-2000:]
    finally:
        # A session of its own: Spark's JVM and the shell's child get the signal too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(keeper.pid, signal.SIGTERM)
        try:
            keeper.wait(KEEPER_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(keeper.pid, signal.SIGKILL)
            keeper.wait()


class Soak:
    """The load, and beside it a look at the server every few seconds."""

    def __init__(self, server: Running, keeper: int, pace: float, every_s: float) -> None:
        self.server = server
        self.every_s = every_s
        self.load = Load(f"http://127.0.0.1:{server.port}", pace)
        self.samples: list[dict[str, Any]] = []
        self._commits = (0.0, 0.0)
        self._appends = 0
        self._others = Others(server.pid, keeper)

    async def run(self, seconds: float) -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        loading = asyncio.create_task(self.load.run(stopped))
        begun = time.monotonic()
        async with httpx.AsyncClient(trust_env=False) as client:
            while time.monotonic() - begun < seconds and not stopped.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), self.every_s)
                self.samples.append(await self._sample(client, time.monotonic() - begun))
                if loading.done():
                    break
        stopped.set()
        await loading

    async def _sample(self, client: httpx.AsyncClient, at_s: float) -> dict[str, Any]:
        latencies = sorted(self.load.latencies)
        appends, last_appends = self.load.done["appends"], self._appends
        self._appends = appends
        response = await client.get(f"http://127.0.0.1:{self.server.port}/metrics")
        told = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if line[:1] != "#")
        last_sum, last_count = self._commits
        self._commits = (
            float(told["bottomless_commit_seconds_sum"]),
            float(told["bottomless_commit_seconds_count"]),
        )
        commits = self._commits[1] - last_count
        sample = {
            "at_s": round(at_s, 1),
            **await asyncio.to_thread(look_at, self.server.pid, self.server.root / "data"),
            "commit_ms": None,
            "append_p50_ms": None,
            "append_p99_ms": None,
            "appends_per_s": round((appends - last_appends) / self.every_s, 1),
            "other_cpu": self._others.share(),
            "wal_bytes": float(told["bottomless_wal_bytes"]),
        }
        if commits:
            sample["commit_ms"] = round((self._commits[0] - last_sum) / commits * 1000, 3)
        if latencies:
            sample["append_p50_ms"] = round(latencies[len(latencies) // 2] * 1000, 3)
            sample["append_p99_ms"] = round(latencies[len(latencies) * 99 // 100] * 1000, 3)
        return sample


class Others:
    """The share of all cores that is used by nobody of ours: a server cannot be flat beside it."""

    def __init__(self, server: int, keeper: int) -> None:
        self.ours = {server, keeper, os.getpid()}
        self._last = self._look()

    def share(self) -> float:
        """Since the last time."""
        (now, busy, own), (then, was_busy, was_own) = self._look(), self._last
        self._last = (now, busy, own)
        ticks = (now - then) * os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
        return round(max(0.0, busy - was_busy - (own - was_own)) / ticks, 3)

    def _look(self) -> tuple[float, float, float]:
        """Now, and the ticks that everybody and we have used. Spark is of the keeper's group."""
        fields = [int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        own = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                stat = path.read_text().rpartition(")")[2].split()
                if int(path.parent.name) in self.ours or int(stat[2]) in self.ours:
                    own += int(stat[11]) + int(stat[12])
        return time.monotonic(), sum(fields) - fields[3] - fields[4], own


def look_at(pid: int, root: Path) -> dict[str, Any]:
    """What the process and its folder hold now."""
    files = log_entries = 0
    for folder, _, names in os.walk(root):
        if folder.endswith("_delta_log"):
            log_entries += len(names)
        else:
            files += len(names)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {
        "rss_mb": round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "files": files,
        # Kept for a month by the tables' own rules, so that they grow meanwhile.
        "log_entries": log_entries,
    }


def check(samples: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """Whether it is at the end about where it was."""
    what, share, above = BOUNDS[key]
    values = [one[key] for one in samples[len(samples) // 4 :] if one[key] is not None]
    third = len(values) // 3
    if not third:
        return {"what": what, "begin": 0, "end": 0, "drift": 0, "bound": 0, "ok": False}
    begin, end = statistics.median(values[:third]), statistics.median(values[-third:])
    bound = round(begin * share + above, 2)
    drift = round(end - begin, 3)
    return {
        "what": what,
        "begin": begin,
        "end": end,
        "drift": drift,
        "bound": bound,
        "ok": drift <= bound,
    }


if __name__ == "__main__":
    sys.exit(main())
