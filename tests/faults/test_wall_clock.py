"""T1, the wall clock jumps and steps under a running server: order, offsets, TTLs and time-outs do
not follow it.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.faults.scale import IS_LONG, times
from tests.support.load import Client, LogBroken, wait_for
from tests.support.pressure import Pressure
from tests.support.server import ServerProcess
from tests.support.wallclock import DECADE_S, HOUR_S, WallClock
from tests.support.workload import seed_of_run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.ledger import Tally

ENV = {
    "BOTTOMLESS_WAL__SEGMENT_BYTES": str(64 << 10),
    "BOTTOMLESS_COMMIT__INTERVAL_MS": "100",
    "BOTTOMLESS_HTTP__LONG_POLL_TIMEOUT_MS": "700",
    # With a checkpoint old log entries are cleaned up by the wall clock, as everywhere in Delta.
    # Here they must stay: the last look reads the table as a stream from version 0.
    "BOTTOMLESS_COMMIT__CHECKPOINT_EVERY": "100000",
}
JUMPS_S = (-HOUR_S, HOUR_S, DECADE_S, 0, -DECADE_S)
TTL_S = 2
ROUNDS = times(quick=1, long=6)


@pytest.mark.timeout(120 + 60 * ROUNDS)
@pytest.mark.fault(
    "T1", "the wall clock jumps by -1 h, +1 h, ±10 years, and steps; TTLs, time-outs"
)
def test_wall_clock_that_jumps_changes_nothing(
    tmp_path: Path, tally: Tally, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(seed_of_run())
    clock = WallClock(tmp_path)
    with ServerProcess.start(tmp_path / "data", env={**ENV, **clock.env}) as server:
        load = Pressure(server)
        life = Phoenix()
        for number in range(ROUNDS):
            load.start()
            mortals = Mortals(server, number)
            for jump_s in rng.sample(JUMPS_S, len(JUMPS_S)):
                clock.set(jump_s)
                load.wait_acked(10)
                with Client(server.url) as client:
                    life.rise(client)
                    check_long_poll(client)
                mortals.look()
                tally.tried += 1
            for _ in range(times(quick=3, long=10)):
                clock.set(clock.shift_s + rng.choice([-1, 1]))
                load.wait_acked(10)
                tally.tried += 1
            mortals.wait_end(clock)
            load.stop()
            load.check()
            # Back, over a restart: what is new still comes after what is old.
            clock.set(-HOUR_S)
            server.kill9()
            server.restart()
            load.check()
            with Client(server.url) as client:
                life.rise(client)
                for name in load.histories:
                    check_moments(client, load, name)
        load.start()
        load.wait_acked(10)
        load.stop()
        load.check()
        tally.checked = load.checked
        # Commits went on: a clean stop leaves everything in the tables.
        assert server.terminate() == 0
        load.check_tables()
        if IS_LONG:
            request.getfixturevalue("whole")(server.root, load.histories)


@pytest.mark.timeout(120)
@pytest.mark.control("T1", "offsets follow the wall clock, also backwards")
def test_oracle_finds_offsets_that_follow_the_wall_clock(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    env = {**ENV, **clock.env}
    with (
        ServerProcess.start(tmp_path / "data", env=env, careless="wall-clock") as server,
        Client(server.url) as client,
    ):
        life = Phoenix()
        life.rise(client)
        clock.set(-HOUR_S)
        with pytest.raises(LogBroken, match="goes back to"):
            life.rise(client)


class Phoenix:
    """A stream that is deleted and created again: its offsets rise over all of its lives."""

    def __init__(self) -> None:
        self.tail = ""

    def rise(self, client: Client) -> None:
        """One more life, with one record."""
        client.call("DELETE", "phoenix")
        for reply in (client.create("phoenix"), client.append("phoenix", b"1")):
            assert reply.status in (201, 204), reply
            if reply.tail <= self.tail:
                raise LogBroken(f"a stream that was created again goes back to {reply.tail}")
            self.tail = reply.tail
        assert client.records("phoenix") == [b"1"]


class Mortals:
    """Two streams whose time runs out by the monotonic clock: one soon, one not in this test."""

    def __init__(self, server: ServerProcess, number: int) -> None:
        self._url = server.url
        self._short, self._long = f"short/{number}", f"long/{number}"
        self._begun = time.monotonic()
        with Client(self._url) as client:
            client.create(self._long, stream_ttl="86400")
            client.create(self._short, stream_ttl=str(TTL_S))

    def look(self) -> bool:
        """Whether the short one is there; HEAD is no access."""
        with Client(self._url) as client:
            assert client.call("HEAD", self._long).status == 200, "a TTL ran ahead"
            # Asked before the answer is awaited: it cannot be older than that.
            asked = time.monotonic()
            is_there = client.call("HEAD", self._short).status == 200
        assert is_there or time.monotonic() - self._begun >= TTL_S, "a TTL ran ahead"
        assert not is_there or asked - self._begun < TTL_S + 10, "a TTL stands still"
        return is_there

    def wait_end(self, clock: WallClock) -> None:
        """An hour back, and the short one ends all the same."""
        clock.set(clock.shift_s - HOUR_S)
        wait_for(lambda: not self.look(), "the end of a TTL", TTL_S + 20)


def check_long_poll(client: Client) -> None:
    """It waits as long as it should, whatever the wall clock says."""
    begun = time.monotonic()
    reply = client.call("GET", "phoenix", query="?offset=now&live=long-poll")
    assert reply.status == 204, reply
    assert 0.6 < time.monotonic() - begun < 20


def check_moments(client: Client, load: Pressure, name: str) -> None:
    """A read that begins at a moment gives what was flushed then or later: an end of the log."""
    history = load.histories[name]
    acked = sorted(history.positions)
    for offset in random.Random(name).sample(acked, min(5, len(acked))):
        moment = int(offset[:16])
        text = datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="milliseconds")
        reply = client.call("GET", name, query=f"?since={quote(text)}")
        assert reply.status == 200, reply
        found = client.split(reply.body)
        # Everything acknowledged before that moment lies before it, the rest does not.
        before = [history.positions[one] for one in acked if int(one[:16]) < moment]
        begin = len(history.verified) - len(client.records(name, before_of(acked, moment)))
        assert begin == max(before, default=0), (name, offset)
        if found != history.verified[begin : begin + len(found)] or not found:
            raise LogBroken(f"{name}: a read since {text} begins in the wrong place")


def before_of(acked: list[str], moment: int) -> str:
    """The last acknowledged offset before a moment."""
    return max((one for one in acked if int(one[:16]) < moment), default="-1")
