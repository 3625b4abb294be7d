"""Writers that put a server under load, and the oracle that knows what the server promised them.

The oracle lives outside the server: every attempt is noted before it is sent, every acknowledgement
with the offset it came with. ``StreamHistory.verify`` compares that with what the server says now.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import math
import random
import re
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, urlsplit

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

JSON = "application/json"
TIMEOUT_S = 20.0
CHUNKS_MAX = 10_000
# What a client sees when its server dies in the middle of a request.
BROKEN = (OSError, http.client.HTTPException)

_split_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_ESCAPE = re.compile(rb"\\(?:u[dD][89a-fA-F][0-9a-fA-F]{2}|.)")


def _harmless(escape: re.Match[bytes]) -> bytes:
    return escape[0] if len(escape[0]) == 2 else b"\\u0041"


class LogBroken(AssertionError):
    """The server broke a promise; the message says which one."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One response, read whole."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def tail(self) -> str:
        """Stream-Next-Offset."""
        return self.headers["stream-next-offset"]

    @property
    def is_closed(self) -> bool:
        """Stream-Closed."""
        return self.headers["stream-closed"] == "true"


class Client:
    """One kept-alive connection. Names may hold slashes and any unicode."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def call(self, method: str, name: str, body: bytes = b"", query: str = "", **headers: str):
        """One request. Header names are written with underscores: ``stream_closed="true"``."""
        fields = {key.replace("_", "-"): value for key, value in headers.items()}
        path = f"/v1/stream/{quote(name, safe='/')}{query}"
        self._connection.request(method, path, body, fields)
        response = self._connection.getresponse()
        return Reply(response.status, response.headers, response.read())

    def create(self, name: str, body: bytes = b"", content_type: str = JSON, **headers: str):
        """PUT; fails unless the stream is new."""
        reply = self.call("PUT", name, body, content_type=content_type, **headers)
        assert reply.status == 201, (name, reply.status, reply.body)
        return reply

    def append(self, name: str, body: bytes, content_type: str = JSON, **headers: str):
        """POST; the caller looks at the status."""
        return self.call("POST", name, body, content_type=content_type, **headers)

    def produce(self, name: str, body: bytes, producer: tuple[str, int, int], **headers: str):
        """POST as an idempotent producer: (id, epoch, seq)."""
        stamp = producer_headers(producer)
        return self.append(name, body, **stamp, **headers)

    def read(self, name: str, offset: str = "-1") -> Reply:
        """Everything after ``offset``, bodies joined; the headers are those of the last chunk."""
        parts = []
        for _ in range(CHUNKS_MAX):
            reply = self.call("GET", name, query=f"?offset={offset}")
            assert reply.status == 200, (name, reply.status, reply.body)
            parts.append(reply.body)
            if reply.headers["stream-up-to-date"] == "true":
                return Reply(reply.status, reply.headers, b"".join(parts))
            if reply.tail <= offset and offset != "-1":
                raise LogBroken(f"{name}: reading from {offset} does not advance")
            offset = reply.tail
        raise LogBroken(f"{name}: not up to date after {CHUNKS_MAX} chunks")

    def records(self, name: str, offset: str = "-1") -> list[bytes]:
        """The records of a JSON stream after ``offset``, each with the very bytes it has."""
        found: list[bytes] = []
        for _ in range(CHUNKS_MAX):
            reply = self.call("GET", name, query=f"?offset={offset}")
            assert reply.status == 200, (name, reply.status, reply.body)
            found += self.split(reply.body)
            if reply.headers["stream-up-to-date"] == "true":
                return found
            offset = reply.tail
        raise LogBroken(f"{name}: not up to date after {CHUNKS_MAX} chunks")

    @staticmethod
    def split(body: bytes) -> list[bytes]:
        """The elements of a JSON array as the server writes it, each with the very bytes it has."""
        # msgspec refuses escaped lone surrogates, so it sees harmless escapes in their place.
        lengths = map(len, _split_array(_ESCAPE.sub(_harmless, body)))
        found, place = [], 1
        for length in lengths:
            found.append(body[place : place + length])
            place += length + 1
        assert body == b"[]" or place == len(body), "something lies between the records"
        return found


def producer_headers(producer: tuple[str, int, int]) -> dict[str, str]:
    """The three headers of an idempotent append."""
    id_, epoch, seq = producer
    return {"producer_id": id_, "producer_epoch": str(epoch), "producer_seq": str(seq)}


@dataclass(slots=True)
class Attempt:
    """One append: noted before it is sent; acknowledged if it has an offset."""

    records: tuple[bytes, ...]
    begun: float
    producer: tuple[str, int, int] | None = None
    ended: float = math.inf
    offset: str | None = None

    @property
    def body(self) -> bytes:
        """The request's body."""
        return b"[" + b",".join(self.records) + b"]"


@dataclass(slots=True)
class StreamHistory:
    """What writers did to one stream, and what of it is known to be in the log."""

    name: str
    verified: list[bytes] = field(default_factory=list)
    """The log as it was at the last check: it may only grow from here."""
    positions: dict[str, int] = field(default_factory=dict)
    """Acknowledged offset -> how many records lie up to it."""
    tail: str = ""
    unsure: int = 0
    """Attempts without an answer, over all checks."""
    journal: Path | None = None
    """Attempts and answers are written here too, for whoever wants to see what happened."""
    _pending: list[Attempt] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, records: tuple[bytes, ...], producer: tuple[str, int, int] | None) -> Attempt:
        """Note an append that is about to be sent. Every record must be unlike all others."""
        attempt = Attempt(records, time.monotonic(), producer)
        with self._lock:
            self._pending.append(attempt)
            self._note("attempt", attempt)
        return attempt

    def acknowledge(self, attempt: Attempt, offset: str) -> None:
        """The server took it: from now on it may never be missing."""
        attempt.ended = time.monotonic()
        attempt.offset = offset
        with self._lock:
            self._note("ack", attempt)

    def _note(self, what: str, attempt: Attempt) -> None:
        if self.journal is None:
            return
        digest = hashlib.sha256(attempt.body).hexdigest()[:16]
        line = [what, self.name, attempt.producer, digest, len(attempt.records), attempt.offset]
        with self.journal.open("a") as journal:
            journal.write(json.dumps(line) + "\n")

    def verify(self, observed: list[bytes]) -> list[Attempt]:
        """Check the whole log; returns the attempts that it now holds and did not hold before.

        Lost, doubled, changed, torn or reordered records raise LogBroken.
        """
        self._check_prefix(observed)
        placed = self._place(observed)
        self._check_offsets(placed)
        self._check_order(placed)
        position = len(self.verified)
        for attempt in placed:
            position += len(attempt.records)
            if attempt.offset is not None:
                self.positions[attempt.offset] = position
                self.tail = max(self.tail, attempt.offset)
        self.unsure += sum(attempt.offset is None for attempt in self._pending)
        self.verified = list(observed)
        self._pending = []
        return placed

    def _check_prefix(self, observed: list[bytes]) -> None:
        if observed[: len(self.verified)] == self.verified:
            return
        pairs = zip(self.verified, observed, strict=False)
        place = next((i for i, (old, new) in enumerate(pairs) if old != new), len(observed))
        now = observed[place : place + 1]
        raise LogBroken(f"{self.name}: record {place} was {self.verified[place]!r}, is now {now}")

    def _place(self, observed: list[bytes]) -> list[Attempt]:
        """Which attempt each new record belongs to: whole ones only, each once."""
        missing = {attempt.records[0]: attempt for attempt in self._pending}
        assert len(missing) == len(self._pending), "two appends begin with the same record"
        placed, place = [], len(self.verified)
        while place < len(observed):
            attempt = missing.pop(observed[place], None)
            if attempt is None:
                what = f"record {place} is {observed[place]!r}"
                raise LogBroken(f"{self.name}: {what}: never sent, out of place, or there twice")
            end = place + len(attempt.records)
            if tuple(observed[place:end]) != attempt.records:
                raise LogBroken(f"{self.name}: the append at record {place} is not whole")
            placed.append(attempt)
            place = end
        for attempt in missing.values():
            if attempt.offset is not None:
                raise LogBroken(
                    f"{self.name}: {attempt.records[0]!r} was acknowledged at {attempt.offset}"
                    " and is missing"
                )
        return placed

    def _check_offsets(self, placed: list[Attempt]) -> None:
        last = self.tail
        for attempt in placed:
            if attempt.offset is None:
                continue
            if attempt.offset <= last:
                raise LogBroken(f"{self.name}: offset {attempt.offset} comes after {last}")
            last = attempt.offset

    def _check_order(self, placed: list[Attempt]) -> None:
        """What was answered before another append was sent lies before it in the log."""
        begun = 0.0
        for attempt in placed:
            if attempt.ended < begun:
                raise LogBroken(f"{self.name}: {attempt.records[0]!r} was overtaken by a later one")
            begun = max(begun, attempt.begun)


class Writer(threading.Thread):
    """One sequential client of one stream; ends when its server is gone."""

    def __init__(self, history: StreamHistory, name: str, seed: int, *, producer: bool) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self.client_url = ""
        self.acknowledged = 0
        self.in_flight: Attempt | None = None
        self.refused: Reply | None = None
        self.is_ending = False
        """Set from outside: the append in flight is the last one."""
        self._rng = random.Random(seed)
        self._is_producer = producer
        self._seq = 0
        self._count = 0

    def reborn(self, url: str) -> Writer:
        """The same client, going on after its thread has ended."""
        again = Writer(self.history, self.name, 0, producer=self._is_producer)
        again._rng, again._seq, again._count = self._rng, self._seq, self._count
        again.client_url = url
        return again

    def run(self) -> None:
        """Append until told to end, the connection breaks or a request is refused."""
        with contextlib.suppress(*BROKEN), Client(self.client_url) as client:
            while self.refused is None and not self.is_ending:
                stamp = (self.name, 0, self._seq) if self._is_producer else None
                self.in_flight = self.history.begin(self._records(), stamp)
                self.send(client, self.in_flight)

    def send(self, client: Client, attempt: Attempt) -> Reply:
        """One request and what its answer means."""
        stamp = {} if attempt.producer is None else producer_headers(attempt.producer)
        reply = client.append(self.history.name, attempt.body, **stamp)
        if reply.status == (204 if attempt.producer is None else 200):
            self.history.acknowledge(attempt, reply.tail)
            self.delivered()
        else:
            self.refused = reply
        return reply

    def delivered(self) -> None:
        """The attempt in flight is in the log."""
        self.acknowledged += 1
        self._seq += 1
        self.in_flight = None

    def _records(self) -> tuple[bytes, ...]:
        self._count += 1
        records = []
        for index in range(self._rng.choice([1, 1, 1, 2, 3, 20])):
            pad = "x" * self._rng.choice([0, 1, 50, 50, 400])
            text = (
                f'{{"id":"{self.name}/{self._count}/{index}", "v":1.0,'
                f' "big":{self._rng.getrandbits(100)},"v":-0,"pad":"\\ud83d\\ude00é{pad}"}}'
            )
            records.append(text.encode())
        return tuple(records)


def wait_for(fact: Callable[[], bool], what: str = "it", timeout_s: float = 15.0) -> None:
    """Poll until it is true; fail when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < deadline, f"{what} did not come true in {timeout_s} s"
        time.sleep(0.02)
