"""Load on a whole server, and the oracle that judges it after a fault: what a client was promised
is there, once, in order, unchanged, over HTTP and in the tables.

The oracle lives in the process of the test, outside the faulted place. Its journal (attempts before
they are sent, answers when they come) is kept beside the test's other files, never below the root.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from engine.format.names import table_folder
from engine.types import StreamName
from tests.support.lifecycle import LifeStream, LifeWriter, Watcher, observe
from tests.support.load import Attempt, Client, LogBroken, StreamHistory, Writer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import ServerProcess

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
    """Writers, a reader and short-lived streams on one server, over all its lives."""

    def __init__(self, server: ServerProcess, rng: random.Random) -> None:
        self.server = server
        self.rng = rng
        journal = server.log_path.with_suffix(".journal")
        self.histories = {name: StreamHistory(name, journal=journal) for name in STREAMS}
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

    @property
    def checked(self) -> int:
        """Acknowledged appends that were found, each at its offset."""
        return sum(len(history.positions) for history in self.histories.values())

    def start(self, number: int) -> None:
        """Begin to write, until the server is gone or ``end`` is called."""
        url, rng = self.server.url, self.rng
        self.writers = [writer.reborn(url) for writer in self.writers]
        self.life = LifeWriter(url, rng.getrandbits(32), str(number), LIVES_PER_ROUND)
        self.watcher = Watcher(url, rng.choice(STREAMS))
        for thread in (*self.writers, self.life, self.watcher):
            thread.start()

    def join(self, *, may_be_refused: bool = False) -> None:
        """Wait until every client has noticed that the server is gone."""
        for thread in (*self.writers, self.life, self.watcher):
            thread.join(30)
            assert not thread.is_alive(), f"{thread.name} does not end"
        refused = [thread.refused for thread in (*self.writers, self.life) if thread.refused]
        assert may_be_refused or not refused, refused
        self.counts["acked"] += sum(writer.acknowledged for writer in self.writers)
        self.life_streams += self.life.streams

    def check(self) -> None:
        """Every promise so far, over HTTP; what was in flight is sent again."""
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
