"""Streams that come and go under load, a reader that watches, and what must be left of both."""

from __future__ import annotations

import contextlib
import random
import threading
from dataclasses import dataclass, field

from tests.support.load import BROKEN, Client, LogBroken, Reply


@dataclass(frozen=True, slots=True)
class Content:
    """A stream as a reader sees it; None stands for no stream."""

    records: tuple[bytes, ...] = ()
    is_closed: bool = False


State = Content | None


@dataclass(slots=True)
class LifeStream:
    """A stream with one writer: it is as the last answer said, or one request further."""

    name: str
    possible: list[State] = field(default_factory=lambda: [None])
    tail: str = ""

    @property
    def now(self) -> State:
        """The state after the last answer."""
        return self.possible[0]

    def verify(self, observed: State) -> None:
        """Check, and take what is there as the truth from now on."""
        if observed not in self.possible:
            raise LogBroken(f"{self.name} is {observed}, but must be one of {self.possible}")
        self.possible = [observed]


class LifeWriter(threading.Thread):
    """Creates, appends, closes, deletes and creates again; a few streams per life."""

    def __init__(self, url: str, seed: int, prefix: str, count: int) -> None:
        super().__init__(name=prefix, daemon=True)
        self.streams: list[LifeStream] = []
        self.refused: Reply | None = None
        self._url = url
        self._rng = random.Random(seed)
        self._prefix = prefix
        self._count = count

    def run(self) -> None:
        """Until the connection breaks or all streams had their life."""
        with contextlib.suppress(*BROKEN), Client(self._url) as client:
            for index in range(self._count):
                stream = LifeStream(f"life/{self._prefix}/{index}")
                self.streams.append(stream)
                self._live(client, stream)

    def _live(self, client: Client, stream: LifeStream) -> None:
        steps = ["create", "append", *self._rng.choices(["append", "close", "delete"], k=4)]
        for number, step in enumerate(steps):
            now = stream.now
            if now is None:
                step = "create"
            elif now.is_closed:
                step = "delete"
            record = f'{{"life":"{stream.name}","n":{number}}}'.encode()
            self._do(client, stream, step, record)

    def _do(self, client: Client, stream: LifeStream, step: str, record: bytes) -> None:
        old = stream.now or Content()
        grown = (*old.records, record)
        closes = step == "close" and self._rng.random() < 0.5
        if step == "create":
            stream.possible.append(Content((record,)))
            reply = client.call("PUT", stream.name, record, content_type="application/json")
        elif step == "delete":
            stream.possible.append(None)
            reply = client.call("DELETE", stream.name)
        elif step == "close" and not closes:
            stream.possible.append(Content(old.records, is_closed=True))
            reply = client.call("POST", stream.name, stream_closed="true")
        else:
            stream.possible.append(Content(grown, is_closed=closes))
            last = {"stream_closed": "true"} if closes else {}
            reply = client.append(stream.name, record, **last)
        if reply.status not in (201, 204):
            self.refused = reply
            raise LogBroken(f"{step} of {stream.name}: {reply.status} {reply.body!r}")
        if reply.tail is not None:
            rises = reply.tail > stream.tail or (step == "close" and reply.tail == stream.tail)
            if not rises:
                raise LogBroken(f"{step} of {stream.name} went back to {reply.tail}")
            stream.tail = reply.tail
        stream.possible = stream.possible[-1:]


class Watcher(threading.Thread):
    """Reads one stream while it grows: what it has seen once may never change (I3)."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(name=f"watch {name}", daemon=True)
        self.stream = name
        self.seen: list[bytes] = []
        self._url = url

    def run(self) -> None:
        """Until the connection breaks; half an answer does not count."""
        with contextlib.suppress(*BROKEN), Client(self._url) as client:
            offset = "-1"
            while True:
                reply = client.call("GET", self.stream, query=f"?offset={offset}&live=long-poll")
                if reply.status == 200:
                    self.seen += client.split(reply.body)
                offset = reply.tail


def observe(client: Client, stream: LifeStream) -> State:
    """What the server says about a stream now; checks that its answers agree with each other."""
    head = client.call("HEAD", stream.name)
    if head.status == 404:
        for method in ("GET", "DELETE"):
            status = client.call(method, stream.name).status
            assert status == 404, (method, stream.name, status)
        return None
    assert head.status == 200, (stream.name, head.status)
    if head.tail < stream.tail:
        raise LogBroken(f"the tail of {stream.name} went back from {stream.tail} to {head.tail}")
    if head.is_closed:
        refusal = client.append(stream.name, b"0")
        assert (refusal.status, refusal.is_closed) == (409, True), stream.name
        assert refusal.tail == head.tail, stream.name
    return Content(tuple(client.records(stream.name)), head.is_closed)
