"""kill -9 under load, again and again on one root: every promise holds after every restart."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from engine.format.frame import decode_frames
from engine.format.names import table_folder
from engine.types import StreamName
from tests.crash.lifecycle import LifeStream, LifeWriter, Watcher, observe
from tests.support.load import Attempt, Client, LogBroken, StreamHistory, Writer, wait_for
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 20
LIVES_PER_ROUND = 6
STREAMS = ("orders", "shop/bestellungen äöü", "events")
# (stream, writer, idempotent producer)
WRITERS = (
    ("orders", "plain-1", False),
    ("orders", "plain-2", False),
    ("orders", "producer-1", True),
    ("shop/bestellungen äöü", "producer-2", True),
    ("shop/bestellungen äöü", "plain-3", False),
    ("events", "producer-3", True),
)


class Load:
    """All writers of one test, and the checks between their lives."""

    def __init__(self, server: ServerProcess, rng: random.Random) -> None:
        self.server = server
        self.rng = rng
        self.histories = {name: StreamHistory(name) for name in STREAMS}
        self.writers = [
            Writer(self.histories[stream], name, rng.getrandbits(32), producer=producer)
            for stream, name, producer in WRITERS
        ]
        self.life_streams: list[LifeStream] = []
        self.stored: list[Attempt] = []
        self.counts = {"acked": 0, "unsure": 0, "stored unacked": 0, "retry 204": 0}
        with Client(server.url) as client:
            for name in STREAMS:
                self.histories[name].tail = client.create(name).tail

    def start(self, number: int) -> None:
        url, rng = self.server.url, self.rng
        self.writers = [writer.reborn(url) for writer in self.writers]
        self.life = LifeWriter(url, rng.getrandbits(32), str(number), LIVES_PER_ROUND)
        self.watcher = Watcher(url, rng.choice(STREAMS))
        for thread in (*self.writers, self.life, self.watcher):
            thread.start()

    def join(self) -> None:
        for thread in (*self.writers, self.life, self.watcher):
            thread.join(30)
            assert not thread.is_alive(), f"{thread.name} does not end"
        refused = [thread.refused for thread in (*self.writers, self.life) if thread.refused]
        assert not refused, refused
        self.counts["acked"] += sum(writer.acknowledged for writer in self.writers)
        self.life_streams += self.life.streams

    def check(self) -> None:
        self.stored = []
        with Client(self.server.url) as client:
            for history in self.histories.values():
                self._check_stream(client, history)
            for stream in self.life_streams:
                stream.verify(observe(client, stream))
            for writer in self.writers:
                self._check_producer(client, writer)
            # The retries are part of the log now.
            for history in self.histories.values():
                history.verify(client.records(history.name))

    def _check_stream(self, client: Client, history: StreamHistory) -> None:
        observed = client.records(history.name)
        seen = self.watcher.seen if self.watcher.stream == history.name else []
        if observed[: len(seen)] != seen:
            raise LogBroken(f"{history.name}: a reader has seen what is not there any more")
        unsure = history.unsure
        stored = history.verify(observed)
        self.counts["unsure"] += history.unsure - unsure
        self.counts["stored unacked"] += sum(attempt.offset is None for attempt in stored)
        self.stored += stored
        head = client.call("HEAD", history.name)
        assert head.tail >= history.tail, (history.name, head.tail, history.tail)
        for offset in self.rng.sample(sorted(history.positions), min(2, len(history.positions))):
            rest = client.records(history.name, offset)
            assert rest == observed[history.positions[offset] :], (history.name, offset)

    def _check_producer(self, client: Client, writer: Writer) -> None:
        """What was in flight is sent again: 204 if it is there already, 200 if it is not."""
        attempt = writer.in_flight
        if attempt is None or attempt.producer is None:
            return
        is_stored = any(attempt is other for other in self.stored)
        if not is_stored:
            attempt = writer.history.begin(attempt.records, attempt.producer)
        reply = client.produce(writer.history.name, attempt.body, attempt.producer)
        assert reply.status == (204 if is_stored else 200), (writer.name, is_stored, reply)
        if not is_stored:
            writer.history.acknowledge(attempt, reply.tail)
        writer.delivered()
        self.counts["retry 204"] += is_stored
        again = client.produce(writer.history.name, attempt.body, attempt.producer)
        assert again.status == 204, (writer.name, again)


def settings_of_round(rng: random.Random) -> dict[str, str]:
    """Small segments and short intervals, so that a second holds rolls, commits and trims."""
    return {
        "BOTTOMLESS_COMMIT__INTERVAL_MS": str(rng.choice([20, 50, 100, 1000])),
        "BOTTOMLESS_COMMIT__CHECKPOINT_EVERY": str(rng.choice([3, 10, 100])),
        "BOTTOMLESS_WAL__SEGMENT_BYTES": str(rng.choice([4096, 16_384, 65_536])),
        "BOTTOMLESS_READ__CHUNK_BYTES": str(rng.choice([16_384, 65_536, 1 << 20])),
        "BOTTOMLESS_READ__ROW_GROUP_BYTES": str(rng.choice([16_384, 1 << 20])),
    }


def table_rows(root: Path, name: str) -> list[tuple[str, bytes]]:
    """Offset and data of every row, as any reader of the Delta table finds them."""
    folder = root / table_folder(StreamName(name))
    if not any(folder.glob("_delta_log/*.json")):
        return []
    table = DeltaTable(folder).to_pyarrow_table(columns=["offset", "data"]).sort_by("offset")
    offsets, data = (table.column(name).to_pylist() for name in ("offset", "data"))
    return list(zip(offsets, (text.encode() for text in data), strict=True))


def check_table(history: StreamHistory, rows: list[tuple[str, bytes]]) -> None:
    """The table is a beginning of the log, and acknowledged offsets are where they belong."""
    offsets = [offset for offset, _ in rows]
    assert len(set(offsets)) == len(offsets), f"{history.name}: an offset is there twice"
    data = [record for _, record in rows]
    if data != history.verified[: len(data)]:
        raise LogBroken(f"{history.name}: table and log differ")
    for offset, position in history.positions.items():
        if position <= len(rows):
            assert offsets[position - 1] == offset.replace("_", ""), (history.name, offset)


def seed_of_run() -> int:
    """A new one each time; CRASH_SEED=n repeats the choices of a run (not the timing)."""
    seed = int(os.environ.get("CRASH_SEED") or random.SystemRandom().getrandbits(32))
    print(f"seed {seed}")
    return seed


def segments(root: Path) -> list[Path]:
    return sorted((root / "_wal").glob("*.wal"))


@pytest.mark.timeout(400)
def test_server_killed_at_random_moments_keeps_every_promise(tmp_path: Path) -> None:
    rng = random.Random(seed_of_run())
    root = tmp_path / "data"
    with ServerProcess.start(root, env=settings_of_round(rng)) as server:
        load = Load(server, rng)
        first_segment = segments(root)[0]
        was_rolled = was_behind = False
        for number in range(ROUNDS):
            load.start(number)
            time.sleep(rng.choice([rng.uniform(0, 0.2), rng.uniform(0.2, 0.6), 1.3]))
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
        was_trimmed = not first_segment.exists()
        assert server.terminate() == 0
    for name, history in load.histories.items():
        rows = table_rows(root, name)
        assert len(rows) == len(history.verified), name
        check_table(history, rows)
    print(load.counts)
    # The run was worth something: load, doubts, commits before kills, and a WAL that moved on.
    assert load.counts["acked"] > 10 * ROUNDS
    assert load.counts["unsure"] > ROUNDS
    assert (was_rolled, was_behind, was_trimmed) == (True, True, True)


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
