"""Clients whose every operation is noted with its times, for the checker of histories.

A session is sequential: it has a thread and a connection, and sends when it has been answered. One
whose request breaks goes on under another name, and the operation stays without an answer.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.linear import NOW, START, Answer, Operation
from tests.support.load import BROKEN, JSON, Client, Reply, producer_headers

FLAVOURS = ("plain", "producer", "seq", "version", "lives")
LOOKS = ("head", "read", "read", "read", "now", "poll", "poll")
_REFUSALS = {
    "stream_closed": "closed",
    "sequence_gap": "gap",
    "sequence_regressed": "regressed",
    "version_too_old": "fenced",
    "stream_exists": "conflict",
    "stream_not_found": "missing",
}


@dataclass(slots=True)
class Stage:
    """One stream and what its clients know together; the history is the list of operations."""

    name: str
    flavour: str
    operations: list[Operation] = field(default_factory=list)
    tails: list[int] = field(default_factory=list)
    """Every position that an answer has told."""
    number: int = 0
    """The next producer or stream sequence, or the version, as far as anybody knows."""
    may_close: bool = False
    refused: list[str] = field(default_factory=list)
    """Answers that no history may hold, beside those that leave the outcome open."""

    @property
    def acknowledged(self) -> int:
        """Appends of records that were answered with success."""
        answered = (o.answer for o in self.operations if o.kind == "append" and o.records)
        return sum(answer is not None and answer.status == "ok" for answer in answered)

    @property
    def unknown(self) -> int:
        """Operations without an answer."""
        return sum(operation.answer is None for operation in self.operations)

    def begin(self, url: str) -> None:
        """Create the stream; the first operation of the history."""
        with SessionClient(url) as client:
            Session(self, url, "begin", 0).do(client, Operation("create", time.monotonic()))

    def finish(self, url: str) -> None:
        """What is there when all clients have ended."""
        with SessionClient(url) as client:
            last = Session(self, url, "end", 0)
            last.do(client, Operation("head", time.monotonic()))
            last.do(client, Operation("read", time.monotonic(), position=START))


class SessionClient(Client):
    """Speaks both dialects."""

    def append_record(self, name: str, body: bytes, version: int) -> Reply:
        """POST in the records dialect, with a version."""
        wrapped = b'{"records":%b}' % body
        self._connection.request("POST", f"/v1/records/{name}?version={version}", wrapped)
        response = self._connection.getresponse()
        return Reply(response.status, response.headers, response.read())


class Session(threading.Thread):
    """One client of one stage, until it is told to end."""

    def __init__(self, stage: Stage, url: str, name: str, seed: int) -> None:
        super().__init__(name=f"{stage.name} {name}", daemon=True)
        self.stage = stage
        self.is_ending = False
        self._url = url
        self._base = name
        self._lives = 0
        self._count = 0
        self._rng = random.Random(seed)
        self._retry: Operation | None = None

    def run(self) -> None:
        """Operation after operation; a new connection when one breaks."""
        while not self.is_ending:
            with SessionClient(self._url) as client:
                try:
                    while not self.is_ending:
                        self.do(client, self._next())
                        time.sleep(self._rng.choice([0, 0, 0.002, 0.02]))
                except BROKEN:
                    self._lives += 1
            time.sleep(0.1)

    def do(self, client: SessionClient, operation: Operation) -> None:
        """One operation, noted whatever becomes of it."""
        operation.client = f"{self._base}/{self._lives}"
        operation.call = time.monotonic()
        try:
            reply = self._send(client, operation)
        except ConnectionRefusedError:
            # It was never sent.
            raise
        except BROKEN:
            self._note_unknown(operation)
            raise
        operation.end = time.monotonic()
        answer = self._understand(operation, reply)
        if answer is None:
            operation.end = math.inf
            self._note_unknown(operation)
            return
        operation.answer = answer
        self.stage.operations.append(operation)
        if answer.tail is not None:
            self.stage.tails.append(answer.tail)
        self._learn(operation, answer)

    def _note_unknown(self, operation: Operation) -> None:
        if operation.kind in ("head", "read"):
            # It has changed nothing and told nothing.
            return
        self.stage.operations.append(operation)
        if operation.producer is not None:
            self._retry = operation

    # What to do.

    def _next(self) -> Operation:
        rng, stage = self._rng, self.stage
        if self._retry is not None:
            again, self._retry = self._retry, None
            return Operation("append", 0, records=again.records, producer=again.producer)
        chance = rng.random()
        if stage.flavour == "lives" and chance < 0.12:
            return Operation(rng.choice(["create", "create", "delete"]), 0)
        if stage.may_close and chance > 0.97:
            with_records = stage.flavour == "plain" and rng.random() < 0.5
            records = self._records(1) if with_records else ()
            return Operation("append", 0, records=records, closes=True)
        if chance < 0.5:
            return self._append()
        look = rng.choice(LOOKS)
        if look == "head":
            return Operation("head", 0)
        if look == "now":
            return Operation("read", 0, position=NOW)
        known = [START] if rng.random() < 0.1 else stage.tails[-5:]
        return Operation("read", 0, position=rng.choice(known), waits=look == "poll")

    def _append(self) -> Operation:
        rng, stage = self._rng, self.stage
        operation = Operation("append", 0, records=self._records(rng.choice([1, 1, 1, 2, 3])))
        # Where everybody guesses right most of the time, some come second.
        if stage.flavour == "producer":
            operation.producer = ("shared", stage.number + (rng.random() < 0.05))
        elif stage.flavour == "seq":
            operation.seq = f"{stage.number + rng.choice([0, 1, 1, 2]):08d}"
        elif stage.flavour == "version":
            operation.version = max(0, stage.number + rng.choice([-1, 0, 0, 0, 0, 0, 1]))
        return operation

    def _records(self, count: int) -> tuple[str, ...]:
        self._count += 1
        return tuple(f'"{self._base}.{self._count}.{index}"' for index in range(count))

    # What it says.

    def _send(self, client: SessionClient, operation: Operation) -> Reply:
        name, kind = self.stage.name, operation.kind
        if kind == "create":
            return client.call("PUT", name, content_type=JSON)
        if kind == "delete":
            return client.call("DELETE", name)
        if kind == "head":
            return client.call("HEAD", name)
        if kind == "read":
            return client.call("GET", name, query=_query(operation))
        body = f"[{','.join(operation.records)}]".encode()
        if operation.version is not None:
            return client.append_record(name, body, operation.version)
        headers = {"stream_closed": "true"} if operation.closes else {}
        if operation.seq is not None:
            headers["stream_seq"] = operation.seq
        if operation.producer is not None:
            id_, number = operation.producer
            headers |= producer_headers((id_, 0, number))
        return client.append(name, body if operation.records else b"", **headers)

    def _understand(self, operation: Operation, reply: Reply) -> Answer | None:
        """None where the outcome is open."""
        status, tail = reply.status, reply.tail
        if status >= 500:
            return None
        answer = Answer(
            self._status(operation, reply),
            None if tail is None else int(tail.replace("_", "")),
            is_closed=reply.is_closed,
        )
        return self._with_body(operation, reply, answer)

    def _status(self, operation: Operation, reply: Reply) -> str:
        if reply.status == 404:
            return "missing"
        if reply.status >= 400:
            code = json.loads(reply.body)["code"]
            if code not in _REFUSALS:
                self.stage.refused.append(f"{operation}: {reply.status} {reply.body!r}")
            return _REFUSALS.get(code, code)
        if operation.kind == "create" and reply.status == 200:
            return "exists"
        if operation.producer is not None and reply.status == 204:
            return "duplicate"
        return "ok"

    def _with_body(self, operation: Operation, reply: Reply, answer: Answer) -> Answer:
        changes: dict[str, Any] = {}
        if operation.kind == "read" and reply.status == 200:
            assert reply.headers["stream-up-to-date"] == "true", "the chunks are too small"
            found = Client.split(reply.body) if reply.body != b"[]" else []
            changes["records"] = tuple(record.decode() for record in found)
        elif operation.version is not None and answer.status == "ok":
            changes["tail"] = int(json.loads(reply.body)["offsets"][-1])
        elif operation.version is not None and answer.status == "fenced":
            changes["version"] = json.loads(reply.body)["current_version"]
        return replace(answer, **changes)

    def _learn(self, operation: Operation, answer: Answer) -> None:
        """Guesses for the next append; races between clients only make them worse."""
        stage = self.stage
        if operation.producer is not None and answer.status in ("ok", "duplicate"):
            stage.number = max(stage.number, operation.producer[1] + 1)
        elif operation.seq is not None and answer.status == "ok":
            stage.number = max(stage.number, int(operation.seq))
        elif operation.version is not None:
            stage.number = max(stage.number, answer.version or operation.version)


def _query(operation: Operation) -> str:
    if operation.position is NOW:
        return "?offset=now"
    if operation.position == START:
        return "?offset=-1"
    return f"?offset={operation.position:032d}{'&live=long-poll' if operation.waits else ''}"
