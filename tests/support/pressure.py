"""Producers that go on through refusals: what was refused is sent again, unchanged, until it is in
the log. For faults that a server lives through; the oracle is the history of each stream.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.load import (
    BROKEN,
    Client,
    LogBroken,
    Reply,
    StreamHistory,
    producer_headers,
    wait_for,
)
from tests.support.workload import check_table, table_rows

if TYPE_CHECKING:
    from tests.support.load import Attempt
    from tests.support.server import ServerProcess

PAUSE_S = 0.02
REFUSALS = frozenset({429, 503, 507})


@dataclass(frozen=True, slots=True)
class Refusal:
    """An append that was not acknowledged, and when its answer came."""

    at: float
    status: int
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Acked:
    """An append that was acknowledged: sent (the last time) and answered at these moments."""

    sent: float
    at: float
    records: tuple[bytes, ...]


class Pusher(threading.Thread):
    """One producer on one stream; ends when told to, or when its server is gone."""

    def __init__(self, history: StreamHistory, name: str, *, record_bytes: int) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self.url = ""
        self.ack = "wal"
        self.is_ending = False
        self.in_flight: Attempt | None = None
        self.refusals: list[Refusal] = []
        self.acked: list[Acked] = []
        self.confirmed: list[Attempt] = []
        """Repeated, and answered that they are there already."""
        self.broken: LogBroken | None = None
        self._record_bytes = record_bytes
        self._rng = random.Random(name)
        self._seq = 0

    def reborn(self, url: str) -> Pusher:
        """The same producer, going on after its thread has ended."""
        again = Pusher(self.history, self.name, record_bytes=self._record_bytes)
        again._rng, again._seq = self._rng, self._seq
        again.url, again.ack, again.in_flight = url, self.ack, self.in_flight
        again.refusals, again.acked = self.refusals, self.acked
        again.confirmed = self.confirmed
        return again

    def run(self) -> None:
        """Append; a pause after each refusal, then the same again."""
        with contextlib.suppress(*BROKEN), Client(self.url) as client:
            while not self.is_ending and self.broken is None:
                if self.in_flight is None:
                    stamp = (self.name, 0, self._seq)
                    self.in_flight = self.history.begin(self._records(), stamp)
                try:
                    self._send(client, self.in_flight)
                except LogBroken as error:
                    self.broken = error

    def _send(self, client: Client, attempt: Attempt) -> None:
        assert attempt.producer is not None
        headers = {**producer_headers(attempt.producer), "stream_ack": self.ack}
        sent = time.monotonic()
        reply = client.append(self.history.name, attempt.body, **headers)
        now = time.monotonic()
        if reply.status == 200:
            self.history.acknowledge(attempt, reply.tail)
            self.acked.append(Acked(sent, now, attempt.records))
            self.delivered()
        elif reply.status == 204:
            self.confirmed.append(attempt)
            self.acked.append(Acked(sent, now, attempt.records))
            self.delivered()
        else:
            code, detail = reason_of(reply)
            self.refusals.append(Refusal(now, reply.status, code, detail))
            time.sleep(PAUSE_S)

    def delivered(self) -> None:
        """The attempt in flight is in the log."""
        self._seq += 1
        self.in_flight = None

    def _records(self) -> tuple[bytes, ...]:
        records = []
        for index in range(self._rng.choice([1, 1, 2, 4])):
            size = self._rng.randint(self._record_bytes // 2, self._record_bytes)
            pad = self._rng.randbytes(size // 2).hex()
            records.append(f'{{"id":"{self.name}/{self._seq}/{index}","pad":"{pad}"}}'.encode())
        return tuple(records)


class Pressure:
    """Several producers on several streams of one server, over all its lives."""

    def __init__(
        self,
        server: ServerProcess,
        *,
        streams: int = 2,
        pushers: int = 4,
        record_bytes: int = 8_000,
        name: str = "pressure",
    ) -> None:
        self.server = server
        journal = server.log_path.with_suffix(".journal")
        names = [f"{name}/{number}" for number in range(streams)]
        self.histories = {name: StreamHistory(name, journal=journal) for name in names}
        self.pushers = [
            Pusher(self.histories[names[number % streams]], f"p{number}", record_bytes=record_bytes)
            for number in range(pushers)
        ]
        with Client(server.url) as client:
            for name, history in self.histories.items():
                history.tail = client.create(name).tail

    @property
    def acked(self) -> list[Acked]:
        """Every acknowledgement, in the order of the answers."""
        return sorted((one for pusher in self.pushers for one in pusher.acked), key=_moment)

    @property
    def refusals(self) -> list[Refusal]:
        """Every refusal, in the order of the answers."""
        return sorted((one for pusher in self.pushers for one in pusher.refusals), key=_moment)

    @property
    def checked(self) -> int:
        """Acknowledged appends that were found, each at its offset."""
        return sum(len(history.positions) for history in self.histories.values())

    def start(self, *, ack: str = "wal") -> None:
        """Begin, or go on, to append."""
        self.pushers = [pusher.reborn(self.server.url) for pusher in self.pushers]
        for pusher in self.pushers:
            pusher.ack = ack
            pusher.start()

    def stop(self) -> None:
        """Let the appends under way end, and no more begin; also after the server's end."""
        for pusher in self.pushers:
            pusher.is_ending = True
        for pusher in self.pushers:
            pusher.join(60)
            assert not pusher.is_alive(), f"{pusher.name} does not end"
            if pusher.broken is not None:
                raise pusher.broken

    def wait_acked(self, more: int, timeout_s: float = 30) -> None:
        """Until so many more appends are acknowledged."""
        goal = len(self.acked) + more
        wait_for(lambda: len(self.acked) >= goal, f"{more} more acks", timeout_s)

    def wait_refused(self, more: int, timeout_s: float = 60) -> list[Refusal]:
        """Until so many more appends are refused; returns those."""
        before = len(self.refusals)
        wait_for(lambda: len(self.refusals) >= before + more, f"{more} more refusals", timeout_s)
        return self.refusals[before:]

    def wait_full(self, pushers: int | None = None, timeout_s: float = 60) -> None:
        """Until every producer in turn is refused several times, with no ack in between."""

        def is_full() -> bool:
            last_ack = self.acked[-1].at if self.acked else 0.0
            recent = [
                sum(refusal.at > last_ack for refusal in pusher.refusals) for pusher in self.pushers
            ]
            return sum(count >= 3 for count in recent) >= (pushers or len(recent))

        wait_for(is_full, "nothing but refusals", timeout_s)

    def check(self) -> None:
        """Everything acknowledged is there, once, whole, in order. The producers must be idle."""
        with Client(self.server.url) as client:
            observed = {name: client.records(name) for name in self.histories}
        stored: list[Attempt] = []
        for name, history in self.histories.items():
            stored += history.verify(observed[name])
        there = {attempt.records[0] for attempt in stored}
        for pusher in self.pushers:
            self._check_pusher(pusher, there)

    @staticmethod
    def _check_pusher(pusher: Pusher, there: set[bytes]) -> None:
        for attempt in pusher.confirmed:
            if attempt.records[0] not in there:
                raise LogBroken(f"{attempt.records[0][:60]!r} was confirmed and is missing")
        pusher.confirmed.clear()
        attempt = pusher.in_flight
        if attempt is None:
            return
        # It is sent again: the verified part of the history does not expect it any more.
        if attempt.records[0] in there:
            pusher.delivered()
        else:
            pusher.in_flight = pusher.history.begin(attempt.records, attempt.producer)

    def check_tables(self) -> None:
        """Each table is a beginning of the log; nothing in it is half or twice there."""
        for name, history in self.histories.items():
            check_table(history, table_rows(self.server.root, name))


def reason_of(reply: Reply) -> tuple[str, str]:
    """Code and detail of a refusal; LogBroken where it is none, or says not enough."""
    if reply.status not in REFUSALS:
        raise LogBroken(f"an append was answered {reply.status} {reply.body[:200]!r}")
    if reply.headers["content-type"] != "application/problem+json":
        raise LogBroken(f"a refusal without a reason: {reply.status} {reply.body[:200]!r}")
    if not reply.headers["retry-after"]:
        raise LogBroken(f"a refusal that does not say when to come back: {reply.body[:200]!r}")
    problem = json.loads(reply.body)
    return problem["code"], problem["detail"]


def _moment(one: Acked | Refusal) -> float:
    return one.at
