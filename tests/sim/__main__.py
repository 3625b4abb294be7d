"""Schedules from the command line: `make sim SECONDS=60`, or one again: `make sim SEED=4711`."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time

from tests.sim.life import TEMPERS
from tests.sim.run import ScheduleFailed, Tried, explain, run_seed, run_seeds

PROGRESS_S = 5.0


def main() -> int:
    """Run until the time is up or a seed fails; 1 where one did."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, help="only this one, with everything it does")
    parser.add_argument("--first", type=int, help="the first seed; by default a random one")
    parser.add_argument("--most", type=int, help="at most so many seeds")
    parser.add_argument("--temper", choices=sorted(TEMPERS), help="what trouble (drawn)")
    options = parser.parse_args()
    try:
        if options.seed is not None:
            schedule = run_seed(options.seed, temper=options.temper, keeps_lines=True)
            print(*schedule.trace.lines, sep="\n")
            print(f"seed {schedule.seed}: fine, trace {schedule.trace.fingerprint}")
            return 0
        first = random.SystemRandom().randrange(1 << 40) if options.first is None else options.first
        print(f"seeds from {first} on, {options.seconds:g} s")
        seeds = itertools.islice(itertools.count(first), options.most)
        tried = run_seeds(seeds, seconds=options.seconds, temper=options.temper, progress=_show())
    except ScheduleFailed as failed:
        print(explain(failed), file=sys.stderr)
        return 1
    print(f"{tried}\nnothing was lost")
    return 0


def _show():
    begun = shown = time.monotonic()

    def show(tried: Tried) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= PROGRESS_S:
            shown = now
            print(f"{now - begun:5.0f} s: {tried}", flush=True)

    return show


if __name__ == "__main__":
    # Strings in sets must have the same order in the next process, or a seed would not replay.
    if os.environ.get("PYTHONHASHSEED") != "0":
        arguments = [sys.executable, "-m", "tests.sim", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
