"""C1, kill -9 under load, again and again on one root: every promise holds after every restart."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from engine.format.frame import decode_frames
from tests.faults.scale import times
from tests.support.load import Client, LogBroken, StreamHistory, Writer, wait_for
from tests.support.server import ServerProcess
from tests.support.workload import (
    STREAMS,
    Load,
    check_table,
    seed_of_run,
    segments,
    settings_of_round,
    table_rows,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.ledger import Tally
    from tests.faults.whole import WholeCheck

ROUNDS = times(quick=8, long=200)


@pytest.mark.timeout(120 + 40 * ROUNDS)
@pytest.mark.fault("C1", "kill -9 at a random moment, sometimes again while it starts")
def test_server_killed_at_random_moments_keeps_every_promise(
    tmp_path: Path, tally: Tally, whole: WholeCheck
) -> None:
    rng = random.Random(seed_of_run())
    root = tmp_path / "data"
    with ServerProcess.start(root, env=settings_of_round(rng)) as server:
        load = Load(server, rng)
        first_segment = segments(root)[0]
        was_rolled = was_behind = False
        for number in range(ROUNDS):
            load.start(number)
            pauses_s = [rng.uniform(0, 0.2), rng.uniform(0.2, 0.6), 1.3]
            # Trims come once a second: in the middle there is one for certain.
            time.sleep(pauses_s[-1] if number == ROUNDS // 2 else rng.choice(pauses_s))
            server.kill9()
            load.join()
            was_rolled |= len(segments(root)) > 1
            tables = {name: table_rows(root, name) for name in STREAMS}
            server.env = settings_of_round(rng)
            if rng.random() < 0.2:
                # A crash of the start-up itself: whatever it had done is done again.
                server.spawn()
                time.sleep(rng.uniform(0, 2))
                server.kill9()
            server.restart()
            load.check()
            for name, rows in tables.items():
                check_table(load.histories[name], rows)
                was_behind |= 0 < len(rows) < len(load.histories[name].verified)
            tally.tried += 1
            tally.checked = load.checked
        was_trimmed = not first_segment.exists()
        assert server.terminate() == 0
    whole(root, load.histories)
    print(load.counts)
    # The run was worth something: load, doubts, commits before kills, and a WAL that moved on.
    assert load.counts["acked"] > 10 * ROUNDS
    assert load.counts["unsure"] > ROUNDS
    assert (was_rolled, was_behind, was_trimmed) == (True, True, True)


@pytest.mark.control("C1", "a group is acknowledged before it is written")
def test_oracle_finds_what_was_acknowledged_too_early(tmp_path: Path) -> None:
    rng = random.Random(seed_of_run())
    with ServerProcess.start(tmp_path / "data", careless="ack-first") as server:
        load = Load(server, rng)

        def kill_often() -> None:
            for number in range(10):
                load.start(number)
                time.sleep(0.3)
                server.kill9()
                load.join()
                server.restart()
                load.check()

        with pytest.raises(LogBroken):
            kill_often()


def test_oracle_finds_acknowledged_appends_that_were_cut_from_the_wal(tmp_path: Path) -> None:
    """The control of the test above, from end to end: a server that did lose something."""
    root = tmp_path / "data"
    env = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000"}
    with ServerProcess.start(root, env=env) as server:
        with Client(server.url) as client:
            client.create("s")
        writer = Writer(StreamHistory("s"), "w", seed_of_run(), producer=False).reborn(server.url)
        writer.start()
        wait_for(lambda: writer.acknowledged > 5, "five appends")
        server.kill9()
        writer.join(30)
        (segment,) = segments(root)
        frames = list(decode_frames(segment.read_bytes(), first_lsn=1, path=segment.name))
        # At most the last frame was not acknowledged, for there is one writer: cut two.
        segment.write_bytes(segment.read_bytes()[: frames[-3].end])
        server.restart()
        with Client(server.url) as client, pytest.raises(LogBroken, match="was acknowledged at"):
            writer.history.verify(client.records("s"))


def history_of(records: list[bytes], *, unsure: bytes) -> StreamHistory:
    """Five acknowledged appends of two records each and one without an answer."""
    history = StreamHistory("s")
    for index in range(0, len(records), 2):
        attempt = history.begin((records[index], records[index + 1]), None)
        history.acknowledge(attempt, f"{index:016d}_{1:016d}")
        if index == 4:
            history.verify(records[:6])
    history.begin((unsure,), None)
    return history


RECORDS = [f'{{"n":{number}}}'.encode() for number in range(10)]
UNSURE = b'{"n":"unsure"}'


@pytest.mark.parametrize("extra", [[], [UNSURE]])
def test_oracle_takes_a_log_that_holds_all_promises(extra: list[bytes]) -> None:
    history_of(RECORDS, unsure=UNSURE).verify([*RECORDS, *extra])


# Records 0 to 5 were checked before, 6 to 9 are new: both must be watched.
@pytest.mark.parametrize("place", range(10))
@pytest.mark.parametrize("damage", ["lost", "doubled", "swapped", "changed", "doubled at the end"])
def test_oracle_finds_one_damaged_record(place: int, damage: str) -> None:
    log = list(RECORDS)
    if damage == "lost":
        del log[place]
    elif damage == "doubled":
        log.insert(place, log[place])
    elif damage == "swapped":
        log[place], log[place - 1] = log[place - 1], log[place]
    elif damage == "changed":
        log[place] = log[place].replace(b":", b": ")
    else:
        log.append(log[place])
    with pytest.raises(LogBroken):
        history_of(RECORDS, unsure=UNSURE).verify(log)


@pytest.mark.parametrize(
    "log",
    [
        pytest.param([*RECORDS[:8], UNSURE, UNSURE, *RECORDS[8:]], id="unacknowledged twice"),
        pytest.param([*RECORDS[:6], *RECORDS[8:], *RECORDS[6:8]], id="appends swapped"),
        pytest.param([*RECORDS[:6], UNSURE, *RECORDS[6:]], id="later one overtakes"),
        pytest.param([*RECORDS, b'{"n":"foreign"}'], id="never sent"),
        pytest.param(RECORDS[:6], id="acknowledged end lost"),
    ],
)
def test_oracle_finds_damaged_appends(log: list[bytes]) -> None:
    with pytest.raises(LogBroken):
        history_of(RECORDS, unsure=UNSURE).verify(log)
