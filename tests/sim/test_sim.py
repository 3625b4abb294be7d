"""The deterministic core: thousands of lives of the real engine on a disk that betrays it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.careless import PRECAUTIONS, taken_away
from tests.sim.run import ScheduleFailed, run_seed, run_seeds

# Half of them here and half in a process beside, as far as they fit into the time.
SCHEDULES = 1500
SECONDS = 25.0
SCHEDULES_MIN = 50
SECONDS_MAX = 100.0
ROOT = Path(__file__).resolve().parents[2]


def test_sim_keeps_every_promise() -> None:
    command = [sys.executable, "-m", "tests.sim", "--first", str(SCHEDULES)]
    command += ["--seconds", str(SECONDS), "--most", str(SCHEDULES)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
        tried = run_seeds(range(SCHEDULES), seconds=SECONDS)
        output = other.communicate()[0]
    print(f"here: {tried}\nbeside: {output}")
    assert other.returncode == 0, output
    assert output.endswith("nothing was lost\n")
    assert tried.schedules >= SCHEDULES_MIN, "too slow to prove anything"
    assert tried.cuts > tried.schedules / 4
    assert tried.failures > tried.schedules / 10


@pytest.mark.parametrize("seed", [1, 2, 3, 5, 8, 13])
def test_sim_does_the_same_again(seed: int) -> None:
    first, second = (run_seed(seed, keeps_lines=True) for _ in range(2))
    assert first.trace.lines == second.trace.lines
    assert first.trace.fingerprint == second.trace.fingerprint


def test_sim_does_the_same_in_another_process() -> None:
    command = [sys.executable, "-m", "tests.sim", "--seed", "21"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    last = done.stdout.splitlines()[-1]
    assert last == f"seed 21: fine, trace {run_seed(21).trace.fingerprint}"


@pytest.mark.parametrize("name", PRECAUTIONS)
def test_sim_notices_a_precaution_taken_away(name: str) -> None:
    precaution = PRECAUTIONS[name]
    seeds = range(precaution.seeds_max)
    with taken_away(name), pytest.raises(ScheduleFailed) as caught:
        run_seeds(seeds, seconds=SECONDS_MAX, temper=precaution.temper)
    # It is found because of that, and not because the seed always fails.
    run_seed(caught.value.schedule.seed, temper=precaution.temper)
