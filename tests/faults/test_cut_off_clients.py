"""N4, clients that are cut off after they have sent an append, or half of it: a retry by the same
producer leaves one copy, and half a body is never stored."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import struct
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.faults.scale import times
from tests.support.load import (
    Attempt,
    Client,
    LogBroken,
    StreamHistory,
    producer_headers,
    wait_for,
)
from tests.support.server import HOST, ServerProcess
from tests.support.wire import TIMEOUT_S, request
from tests.support.workload import check_table, seed_of_run, table_rows

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.ledger import Tally
    from tests.faults.whole import WholeCheck

SECONDS = times(quick=3, long=30)
STREAMS = ("orders", "events")
CLIENTS = 6
ENV = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "100"}
# Where a request is cut: after all of it, in the middle of the body, or where the JSON is whole
# but the request is not: before blanks that its length counts, or before the last empty chunk.
WHOLE = "whole"
CUTS = (WHOLE, WHOLE, WHOLE, "middle", "blanks", "chunk", "head")


class CutOffClient(threading.Thread):
    """One producer that is cut off again and again, and sends it again on a new connection."""

    def __init__(self, server: ServerProcess, history: StreamHistory, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.counts: Counter[str] = Counter()
        self.error: BaseException | None = None
        self.is_ending = False
        self.known: list[Attempt] = []
        """What a retry said to be in the log, by its first sending or by the retry."""
        self._server = server
        self._history = history
        self._rng = random.Random(seed)

    def run(self) -> None:
        """Until told to end, or something is wrong."""
        try:
            for number in itertools.count():
                if self.is_ending:
                    return
                self._append(number)
        except BaseException as error:  # noqa: BLE001  (the test asks for it)
            self.error = error

    def _append(self, number: int) -> None:
        # Few large ones: the oracle keeps all that was sent, and must fit into the memory.
        (size,) = self._rng.choices([10, 500, 20_000, 1_000_000], weights=[30, 30, 10, 1])
        records = tuple(
            f'{{"id":"{self.name}/{number}/{index}","pad":"{"x" * size}"}}'.encode()
            for index in range(2)
        )
        attempt = self._history.begin(records, (self.name, 0, number))
        cut = self._rng.choice(CUTS)
        for _ in range(self._rng.choice([1, 1, 3])):
            self._send(attempt, cut)
        assert attempt.producer is not None
        with Client(self._server.url) as client:
            reply = client.produce(self._history.name, attempt.body, attempt.producer)
        assert reply.status in (200, 204), (cut, reply.status, reply.body)
        if reply.status == 200:
            self._history.acknowledge(attempt, reply.tail)
        elif cut != WHOLE:
            raise LogBroken(f"half an append was taken: cut in the {cut}")
        self.known.append(attempt)
        self.counts[f"{'whole' if cut == WHOLE else 'cut'} {reply.status}"] += 1

    def _send(self, attempt: Attempt, cut: str) -> None:
        """Send this much, and be gone at once."""
        with contextlib.closing(
            socket.create_connection((HOST, self._server.port), TIMEOUT_S)
        ) as to:
            if self._rng.random() < 0.5:
                # Closing discards what is not sent yet and resets the connection.
                to.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                to.sendall(self._request(attempt, cut))
                if self._rng.random() < 0.3:
                    to.shutdown(socket.SHUT_WR)

    def _request(self, attempt: Attempt, cut: str) -> bytes:
        assert attempt.producer is not None
        stamp = producer_headers(attempt.producer)
        headers = [f"{key.replace('_', '-')}: {value}" for key, value in stamp.items()]
        headers.append("Content-Type: application/json")
        body, path = attempt.body, f"/v1/stream/{self._history.name}"
        if cut == "chunk":
            headers.append("Transfer-Encoding: chunked")
            return request("POST", path, *headers, body=b"%x\r\n%s\r\n" % (len(body), body))
        blanks = 100 if cut == "blanks" else 0
        headers.append(f"Content-Length: {len(body) + blanks}")
        sent = {"middle": body[: self._rng.randrange(1, len(body))], "head": b""}.get(cut, body)
        return request("POST", path, *headers, body=sent)


def run_clients(
    server: ServerProcess, seconds: float
) -> tuple[dict[str, StreamHistory], list[CutOffClient]]:
    """Load for that long at least; returns what was promised and who was promised it."""
    rng = random.Random(seed_of_run())
    histories = {name: StreamHistory(name) for name in STREAMS}
    with Client(server.url) as client:
        for name in STREAMS:
            histories[name].tail = client.create(name).tail
    clients = [
        CutOffClient(server, histories[STREAMS[i % len(STREAMS)]], f"c{i}", rng.getrandbits(32))
        for i in range(CLIENTS)
    ]
    for one in clients:
        one.start()
    time.sleep(seconds)  # How long the load lasts, not a wait for a fact.
    # On a slow machine it lasts longer.
    wait_for(lambda: all(len(one.known) >= 10 or one.error for one in clients), "load", 60)
    for one in clients:
        one.is_ending = True
    for one in clients:
        one.join(60)
        assert not one.is_alive(), f"{one.name} does not end"
    return histories, clients


def check_log(server: ServerProcess, histories: dict[str, StreamHistory]) -> list[Attempt]:
    """Everything that was promised is there once; returns what the log holds."""
    placed: list[Attempt] = []
    with Client(server.url) as client:
        for name, history in histories.items():
            placed += history.verify(client.records(name))
    return placed


@pytest.mark.timeout(180 + 5 * SECONDS)
@pytest.mark.fault("N4", "the client is cut off after it has sent an append, or a part of it")
def test_append_of_a_cut_off_client_is_there_once_after_its_retry(
    tmp_path: Path, tally: Tally, whole: WholeCheck
) -> None:
    root = tmp_path / "data"
    with ServerProcess.start(root, env=ENV) as server:
        histories, clients = run_clients(server, SECONDS)
        errors = [one.error for one in clients if one.error is not None]
        if errors:
            raise errors[0]
        placed = check_log(server, histories)
        known = [attempt for one in clients for attempt in one.known]
        # Nothing is there that no retry was told of, and the other way round.
        assert {id(attempt) for attempt in placed} == {id(attempt) for attempt in known}
        server.kill9()
        rows = {name: table_rows(root, name) for name in STREAMS}
        server.restart()
        assert check_log(server, histories) == []
        for name, history in histories.items():
            check_table(history, rows[name])
        assert server.terminate() == 0
    whole(root, histories)
    counts = sum((one.counts for one in clients), Counter())
    print(dict(counts))
    tally.tried, tally.checked = counts.total(), len(known)
    tally.note = f"{counts['whole 204']} were stored before the retry"
    # The run was worth something: both outcomes of a whole request, and half ones.
    assert counts["whole 204"] > 5
    assert counts["cut 200"] > 5


@pytest.mark.control("N4", "a producer's retry is an append like any other")
def test_oracle_finds_what_a_retry_stored_twice(tmp_path: Path) -> None:
    with ServerProcess.start(tmp_path / "data", env=ENV, careless="no-dedupe") as server:
        histories, clients = run_clients(server, 1)
        assert [one.error for one in clients] == [None] * CLIENTS
        with pytest.raises(LogBroken, match="there twice"):
            check_log(server, histories)
