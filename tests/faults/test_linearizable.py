"""L1, one order for all clients: what many of them did to a stream while its server was killed, and
its clock set, is what one log could have answered.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults.scale import IS_LONG, times
from tests.support.linear import check_linearizable
from tests.support.load import LogBroken
from tests.support.server import ServerProcess
from tests.support.sessions import FLAVOURS, Session, Stage
from tests.support.wallclock import HOUR_S, WallClock
from tests.support.workload import seed_of_run, settings_of_round

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.ledger import Tally

RUNS = times(quick=1, long=6)
KILLS = times(quick=2, long=3)
# The clients of each stream, and of the last one.
CLIENTS = times(quick=5, long=7)
CROWD = times(quick=8, long=20)
TRIES = 6
"""A careless server must be found out in so many plays."""
JUMPS_S = (-HOUR_S, HOUR_S, 0, -1, 1, 2 * HOUR_S)

only_long = pytest.mark.skipif(not IS_LONG, reason="only in the long run")


class Play:
    """Clients on a few streams of one server, and the histories they make."""

    def __init__(self, server: ServerProcess, rng: random.Random, run: int = 0) -> None:
        self.server = server
        self.stages = [Stage(f"{flavour}-{run}", flavour) for flavour in (*FLAVOURS, "crowd")]
        self.sessions: list[Session] = []
        for stage in self.stages:
            stage.begin(server.url)
            clients = CROWD if stage.flavour == "crowd" else CLIENTS
            self.sessions += [
                Session(stage, server.url, str(number), rng.getrandbits(32))
                for number in range(clients)
            ]

    def __enter__(self) -> Play:
        for session in self.sessions:
            session.start()
        return self

    def __exit__(self, *_: object) -> None:
        for session in self.sessions:
            session.is_ending = True
        for session in self.sessions:
            session.join(30)
            assert not session.is_alive(), f"{session.name} does not end"

    def may_close(self) -> None:
        """From now on somebody may."""
        for stage in self.stages:
            stage.may_close = True

    def check(self) -> None:
        """Each stream's history by itself: a stream promises nothing about another."""
        for stage in self.stages:
            stage.finish(self.server.url)
            assert not stage.refused, stage.refused[:3]
            check_linearizable(stage.name, stage.operations)


def settings(rng: random.Random) -> dict[str, str]:
    """Reads in one chunk, so that each is one operation; long-polls that end soon."""
    return settings_of_round(rng) | {
        "BOTTOMLESS_READ__CHUNK_BYTES": "4194304",
        "BOTTOMLESS_HTTP__LONG_POLL_TIMEOUT_MS": "200",
    }


def kill_and_restart(server: ServerProcess, env: dict[str, str]) -> None:
    server.kill9()
    server.env = env
    server.restart()


class Count:
    """What was worth something, over all plays."""

    def __init__(self, tally: Tally) -> None:
        self.operations = self.unknown = self._largest = 0
        self._tally = tally

    def add(self, play: Play) -> None:
        """A play was checked."""
        sizes = [len(stage.operations) for stage in play.stages]
        self._largest = max(self._largest, *sizes)
        self.operations += sum(sizes)
        self.unknown += sum(stage.unknown for stage in play.stages)
        self._tally.tried += len(play.stages)
        self._tally.checked += sum(stage.acknowledged for stage in play.stages)
        self._tally.note = (
            f"{self.operations} operations, {self.unknown} of them without an answer; the largest"
            f" history has {self._largest}"
        )


@pytest.mark.timeout(120 + 90 * RUNS)
@pytest.mark.fault("L1", "one order for all clients, whose server is killed (C1)")
def test_histories_of_killed_servers_have_an_order(tmp_path: Path, tally: Tally) -> None:
    rng = random.Random(seed_of_run())
    count = Count(tally)
    with ServerProcess.start(tmp_path / "data", env=settings(rng)) as server:
        for run in range(RUNS):
            # What lies between asking and having is sometimes long enough to be seen.
            server.careless = rng.choice(["", "slow-disk"])
            with Play(server, rng, run) as play:
                for kill in range(KILLS):
                    time.sleep(rng.uniform(0.5, 1.5))
                    if kill == KILLS - 1:
                        play.may_close()
                        time.sleep(0.5)
                    kill_and_restart(server, settings(rng))
                time.sleep(rng.uniform(0.5, 1))
            play.check()
            count.add(play)
    assert count.unknown > 6 * RUNS
    assert count.operations > 600 * RUNS


@pytest.mark.timeout(120 + 90 * RUNS)
@pytest.mark.fault("L1", "the same, while its wall clock jumps (T1)")
def test_histories_of_servers_with_a_wrong_clock_have_an_order(
    tmp_path: Path, tally: Tally
) -> None:
    rng = random.Random(seed_of_run())
    count, clock = Count(tally), WallClock(tmp_path)
    with ServerProcess.start(tmp_path / "data", env=settings(rng) | clock.env) as server:
        for run in range(RUNS):
            with Play(server, rng, run) as play:
                jump(clock, rng)
                kill_and_restart(server, settings(rng) | clock.env)
                play.may_close()
                jump(clock, rng)
            play.check()
            count.add(play)
    assert count.operations > 400 * RUNS


def jump(clock: WallClock, rng: random.Random) -> None:
    """The wall clock is set a few times in a second, at last back."""
    for shift_s in (*rng.sample(JUMPS_S, 4), -HOUR_S):
        clock.set(shift_s)
        time.sleep(0.25)


def play_again(server: ServerProcess, clock: WallClock | None, kill: str) -> None:
    """Play after play until the checker has found something."""
    rng = random.Random(seed_of_run())
    for run in range(TRIES):
        with Play(server, rng, run) as play:
            if clock is None:
                time.sleep(1)
            else:
                jump(clock, rng)
            play.may_close()
            time.sleep(0.5)
            if kill == "under load":
                kill_and_restart(server, server.env)
                time.sleep(0.3)
        if kill == "in peace":
            # Everybody has been answered, and nothing came after that.
            kill_and_restart(server, server.env)
        play.check()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("careless", "kill"),
    [
        pytest.param(
            "ack-first",
            "in peace",
            marks=pytest.mark.control("L1", "a group is acknowledged before it is written"),
        ),
        pytest.param(
            "stale-tail",
            "never",
            marks=pytest.mark.control("L1", "HEAD answers what was true a moment ago"),
        ),
        pytest.param(
            "early-read",
            "under load",
            marks=[
                pytest.mark.control("L1", "readers see what is not written yet (I3)"),
                only_long,
            ],
        ),
        pytest.param(
            "hasty-refusal,slow-disk",
            "under load",
            marks=[
                pytest.mark.control("L1", "a refusal does not wait for what it rests on"),
                only_long,
            ],
        ),
        pytest.param(
            "wall-clock",
            "under load",
            marks=[
                pytest.mark.control("L1", "epochs follow the wall clock, also back"),
                only_long,
            ],
        ),
    ],
)
def test_checker_finds_what_a_careless_server_answers(
    tmp_path: Path, careless: str, kill: str
) -> None:
    clock = WallClock(tmp_path) if careless == "wall-clock" else None
    env = settings(random.Random(0)) | (clock.env if clock is not None else {})
    with (
        ServerProcess.start(tmp_path / "data", env=env, careless=careless) as server,
        pytest.raises(LogBroken, match=r"not linearizable|lies? behind") as found,
    ):
        play_again(server, clock, kill)
    print(found.value)
