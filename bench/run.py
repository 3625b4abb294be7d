"""Measures the server and the peers that are installed, in one go, and keeps the results.

    make bench                                 everything, three rounds: about 40 minutes
    make bench ARGS="--only W1 --peers rust"   some workloads, some peers
    make bench-quick                           two minutes; the slow peers are left out
    make bench-peers                           installs the peers, each where that is possible
    make bench-report                          tables and plots of the latest results

Groups of workloads: W1 W1s W2 W3 history (W4, W7) W5 W6; bench/workloads.py says what they do. All
servers acknowledge after an fsync. Each starts on an empty folder for each group and round; they
take turns within a round. One JSON line per measurement goes to standard output; the whole, with
medians, to bench/results/latest.json (--results names another file). Growth of one stream and
storage have commands of their own: `make bench-growth`, `make bench-storage`. Traffic stays on this
machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goals import GOALS, behind_in
from loader import PYTHON_NOTE, Loader, find_loader, sync_floor
from subjects import BASELINE, CLONE, EXECUTABLE, SUBJECTS, Running, create_stream, free_port
from workloads import FULL, QUICK, RESTART, SETTLE, Scale, Step, groups

if TYPE_CHECKING:
    from subjects import Subject

__all__ = ["EXECUTABLE", "create_stream", "free_port"]

RESULTS = Path(__file__).resolve().parent / "results"
SLOW_SHARE = 5
PYTHON_SPEAKS = {"append", "producers", "history", "settle", "restart"}
GROUPS = tuple(groups(FULL, is_quick=False))


def main() -> int:
    options = parse()
    scale = QUICK if options.quick else FULL
    rounds = options.rounds or scale.rounds
    loader = find_loader()
    if loader.name == "python":
        print(PYTHON_NOTE, file=sys.stderr)
    chosen, left_out = choose(options, loader)
    for title, reason in left_out.items():
        print(f"{title} is left out: {reason}", file=sys.stderr)
    run = Run(loader, scale, options.folder)
    begun = time.monotonic()
    try:
        for name, steps in groups(scale, is_quick=options.quick).items():
            if options.only and not options.quick and name not in options.only:
                continue
            for number in range(rounds):
                also = [BASELINE] if name == "W1" else []
                run.one_round(number, name, steps, [*chosen, *also])
    except KeyboardInterrupt:
        print("Interrupted: what was measured so far is kept.", file=sys.stderr)
    if not run.measurements:
        return 1
    whole = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "took_s": round(time.monotonic() - begun),
        "machine": about_machine(run.folder),
        "client": loader.name,
        "scale": {**asdict(scale), "rounds": rounds},
        "servers": {s.name: {"title": s.title, "version": s.told_version()} for s in chosen},
        "left_out": left_out,
        "medians": medians_of(run.measurements),
        "measurements": run.measurements,
    }
    target = options.results or RESULTS / ("quick.json" if options.quick else "latest.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    if options.merge and target.exists():
        whole = merged(json.loads(target.read_text()), whole)
    target.write_text(json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    print_summary(whole, target)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [subject.name for subject in SUBJECTS if subject.name != "bottomless"]
    parser.add_argument("--quick", action="store_true", help="short runs, two minutes in all")
    parser.add_argument("--rounds", type=int, help="rounds (3; quick: 1)")
    parser.add_argument("--only", choices=GROUPS, action="append", help="a group of workloads")
    parser.add_argument(
        "--peers", nargs="*", choices=names, help="these beside ours (all that are installed)"
    )
    parser.add_argument("--folder", type=Path, default=CLONE / ".venv" / "bench" / "data")
    parser.add_argument("--results", type=Path, help="file of the results")
    parser.add_argument(
        "--merge", action="store_true", help="keep what the file has of other workloads"
    )
    return parser.parse_args()


def choose(options: argparse.Namespace, loader: Loader) -> tuple[list[Subject], dict[str, str]]:
    """Ours and the peers that can run, and why each of the others cannot."""
    chosen, left_out = [], {}
    for subject in SUBJECTS:
        is_wanted = options.peers is None or subject.name in options.peers
        if subject.name == "bottomless":
            chosen.append(subject)
        elif not is_wanted:
            continue
        elif subject.missing:
            left_out[subject.title] = f"{subject.missing} is missing; {subject.get}"
        elif loader.name == "python" and subject.protocol != "streams":
            left_out[subject.title] = "needs the load generator in Go"
        elif options.quick and options.peers is None and subject.is_slow:
            left_out[subject.title] = "too slow for a quick run; `make bench` has it"
        else:
            chosen.append(subject)
    return chosen, left_out


class Run:
    """Measures, and keeps what it measured."""

    def __init__(self, loader: Loader, scale: Scale, folder: Path) -> None:
        self.loader = loader
        self.scale = scale
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.measurements: list[dict[str, Any]] = []

    def one_round(self, number: int, group: str, steps: list[Step], chosen: list[Subject]) -> None:
        """Every server once, each round beginning with another one; the floor between them."""
        if any(step.workload == "W1s" for step in steps):
            self._keep("W1s", "floor", number, sync_floor(self.folder, self.scale.seconds))
        turn = number % len(chosen)
        for subject in (*chosen[turn:], *chosen[:turn]):
            with tempfile.TemporaryDirectory(prefix=f"{subject.name}-", dir=self.folder) as root:
                self._one_server(number, group, steps, Running(subject, Path(root)))

    def _one_server(self, number: int, group: str, steps: list[Step], server: Running) -> None:
        subject = server.subject
        wanted = [s for s in steps if s in (SETTLE, RESTART) or s.needs in subject.speaks]
        if self.loader.name == "python":
            wanted = [s for s in wanted if s.needs in PYTHON_SPEAKS]
        if all(step in (SETTLE, RESTART) for step in wanted):
            return
        try:
            server.start(with_history=group == "history")
            for step in wanted:
                self._one_step(number, step, server)
        except AssertionError as error:
            print(f"{subject.title}: {error}", file=sys.stderr)
            self._keep(group, subject.name, number, {"failed": str(error)[-300:]})
        finally:
            server.stop()

    def _one_step(self, number: int, step: Step, server: Running) -> None:
        if step is SETTLE:
            time.sleep(self.scale.settle_s)
            return
        if step is RESTART:
            server.stop()
            server.start(with_history=True)
            return
        records = self.scale.history // (SLOW_SHARE if server.subject.is_slow else 1)
        places = {"{offsets}": str(server.root / "offsets"), "{history}": str(records)}
        arguments = [places.get(part, part) for part in step.arguments]
        found = self.loader.run(server, *arguments, patience_s=step.patience_s)
        if server.subject.protocol == "redis":
            # A stream of Redis is created by its first record.
            found = {key: value for key, value in found.items() if not key.startswith("creates")}
        self._keep(step.workload, server.subject.name, number, found)

    def _keep(self, workload: str, subject: str, number: int, found: dict[str, Any]) -> None:
        line = {"workload": workload, "subject": subject, "round": number, **found}
        self.measurements.append(line)
        shown = {key: value for key, value in line.items() if not key.endswith("curve")}
        print(json.dumps(shown, ensure_ascii=False), flush=True)


def medians_of(measurements: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Of every figure over the rounds; of curves, point by point."""
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for line in measurements:
        runs.setdefault(line["workload"], {}).setdefault(line["subject"], []).append(line)
    return {
        workload: {subject: median_run(lines) for subject, lines in of.items()}
        for workload, of in runs.items()
    }


def median_run(lines: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"rounds": len(lines)}
    names = {key for line in lines for key in line} - {"workload", "subject", "round"}
    for name in names:
        values = [line[name] for line in lines if name in line]
        if isinstance(values[0], int | float):
            found[name] = statistics.median(values)
        elif name.endswith("curve"):
            found[name] = [
                [points[0][0], statistics.median(point[1] for point in points)]
                for points in zip(*values, strict=True)
            ]
        else:
            found[name] = values[-1]
    return found


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The new run's workloads, and the old one's of which the new run has none."""
    fresh = {line["workload"] for line in new["measurements"]}
    kept = [line for line in old["measurements"] if line["workload"] not in fresh]
    measurements = kept + new["measurements"]
    both = {"servers": {**old["servers"], **new["servers"]}, "measurements": measurements}
    return {**old, **new, **both, "medians": medians_of(measurements)}


def about_machine(folder: Path) -> dict[str, Any]:
    cpu = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    at = str(folder.resolve())
    below = [(len(where), kind) for where, kind in mounts if at.startswith(where.rstrip("/") + "/")]
    return {
        "cores": os.cpu_count(),
        "cpu": cpu[0] if cpu else platform.machine(),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "filesystem": max(below)[1] if below else "",
        "free_gb": round(shutil.disk_usage(folder).free / 2**30),
    }


def print_summary(whole: dict[str, Any], target: Path) -> None:
    """Goals first; what keeps a goal from being judged is not shown as met."""
    medians = whole["medians"]
    for goal in GOALS:
        value = goal.measured(medians)
        if value is not None:
            verdict = "met" if goal.is_met(value) else "NOT met"
            figure = f"{goal.workload} {goal.figure}"
            print(f"{figure:22} {value:10.2f}  {goal.text:22} {verdict}", file=sys.stderr)
    for line in behind_in(medians):
        print(f"behind in {line}", file=sys.stderr)
    noise = [line["other_cpu"] for line in whole["measurements"] if "other_cpu" in line]
    if noise and statistics.median(noise) > 0.1:
        share = f"{statistics.median(noise):.0%}"
        print(f"Others used {share} of the cores meanwhile: trust ratios only.", file=sys.stderr)
    print(f"{whole['took_s']} s; {target}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
