"""The short way takes plain appends only; everything else is the parser's and the route's."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from api.asgi import render_lines
from api.auth.gate import OpenGate
from api.routes.append import render_append, render_stored
from api.routes.quick import QuickAppend
from api.settings import HttpSettings
from engine.errors import StorageUnavailable
from engine.settings import LimitSettings
from engine.types import Ack, AppendRequest, AppendResult, Offset, ProducerStamp

BODY = b'{"a":1}'
HOST = b"Host: h"
JSON = b"Content-Type: application/json"
LENGTH = b"Content-Length: %d" % len(BODY)
PRODUCER = (b"Producer-Id: p", b"Producer-Epoch: 0", b"Producer-Seq: 7")


class Submitted:
    """A log that takes every append and remembers it."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, AppendRequest]] = []
        self.done: Any = None

    def append_soon(self, name: str, request: AppendRequest, done: Any) -> bool:
        self.requests.append((name, request))
        self.done = done
        return True


def post(*headers: bytes, path: bytes = b"/v1/stream/s", body: bytes = BODY) -> bytes:
    return b"\r\n".join([b"POST " + path + b" HTTP/1.1", *headers, b"", b""]) + body


def take(data: bytes, log: Submitted | None = None) -> tuple[bool, Submitted]:
    log = log or Submitted()
    quick = QuickAppend(log, HttpSettings(), LimitSettings(), OpenGate())  # type: ignore[arg-type]
    return quick(data, lambda *_: None), log


@pytest.mark.parametrize(
    "headers",
    [
        (HOST, JSON, LENGTH),
        (b"host:h", b"content-type:application/json", b"content-length:7"),
        (HOST, JSON, LENGTH, b"Connection: keep-alive", b"Accept: */*", b"User-Agent: x"),
        (HOST, JSON, LENGTH, *PRODUCER),
        (HOST, JSON, LENGTH, b"Stream-Seq: 12"),
    ],
)
def test_quick_append_takes_plain_ones(headers: tuple[bytes, ...]) -> None:
    is_taken, log = take(post(*headers))
    assert is_taken
    [(name, request)] = log.requests
    assert (name, request.body, request.content_type) == ("s", BODY, "application/json")
    assert (request.producer is not None) == (PRODUCER[0] in headers)
    assert request.stream_seq == ("12" if b"Stream-Seq: 12" in headers else None)


@pytest.mark.parametrize(
    "data",
    [
        post(JSON, LENGTH),
        post(HOST, HOST, JSON, LENGTH),
        post(HOST, JSON, JSON, LENGTH),
        post(HOST, JSON, LENGTH, LENGTH),
        post(HOST, JSON),
        post(HOST, JSON, b"Content-Length: +7"),
        post(HOST, JSON, b"Content-Length: 7, 7"),
        post(HOST, JSON, b"Content-Length: 0", body=b""),
        post(HOST, JSON, b"Content-Length: 6"),
        post(HOST, JSON, b"Content-Length: 8"),
        post(HOST, JSON, LENGTH, b"Transfer-Encoding: chunked"),
        post(HOST, JSON, LENGTH, b"Expect: 100-continue"),
        post(HOST, JSON, LENGTH, b"Connection: close"),
        post(HOST, JSON, LENGTH, b"Upgrade: h2c"),
        post(HOST, JSON, LENGTH, b"Content-Encoding: gzip"),
        post(HOST, JSON, LENGTH, b"Stream-Closed: true"),
        post(HOST, JSON, LENGTH, b" folded"),
        post(HOST, JSON, LENGTH, b"No-Colon"),
        post(HOST, JSON, LENGTH, b"Accept : x"),
        post(HOST, JSON, LENGTH, b"Accept: a\x00b"),
        post(HOST, JSON, LENGTH, b"Accept: a\rb"),
        post(HOST, JSON, LENGTH, b"Accept: \xff"),
        post(HOST, JSON, LENGTH, PRODUCER[0]),
        post(HOST, b"Content-Type: what", LENGTH),
        post(HOST, JSON, LENGTH, path=b"/v1/stream/s?x=1"),
        post(HOST, JSON, LENGTH, path=b"/v1/stream/s#x"),
        post(HOST, JSON, LENGTH, path=b"/v1/stream/a//b"),
        post(HOST, JSON, LENGTH, path=b"/v1/stream/%ff"),
        post(HOST, JSON, LENGTH, path=b"/v1/stream/s s"),
        post(HOST, JSON, LENGTH).replace(b"HTTP/1.1", b"HTTP/1.0"),
        post(HOST, JSON, LENGTH).replace(b"\r\n", b"\n"),
        post(HOST, JSON, LENGTH) * 2,
        post(HOST, JSON, LENGTH)[:-1],
        post(HOST, JSON, LENGTH)[:-20],
        post(HOST, JSON, LENGTH, b"Accept: " + b"x" * 5000),
        b"GET" + post(HOST, JSON, LENGTH)[4:],
    ],
)
def test_quick_append_leaves_the_rest_to_the_route(data: bytes) -> None:
    is_taken, log = take(data)
    assert not is_taken
    assert log.requests == []


def test_quick_append_answers_when_it_is_durable() -> None:
    log, replies = Submitted(), []
    quick = QuickAppend(log, HttpSettings(), LimitSettings(), OpenGate())  # type: ignore[arg-type]
    for _ in range(2):
        assert quick(post(HOST, JSON, LENGTH), lambda *reply: replies.append(reply))
        assert len(replies) < len(log.requests)
        log.done(AppendResult(tail=Offset(10**16 + 5), closed=False))
    lines = b"stream-next-offset: 0000000000000001_0000000000000005\r\nstream-ack: wal\r\n"
    assert replies == [(204, lines, b"")] * 2


def test_quick_append_reads_the_numbers_of_each_head() -> None:
    log = Submitted()
    quick = QuickAppend(log, HttpSettings(), LimitSettings(), OpenGate())  # type: ignore[arg-type]
    for seq in (0, 1, 9, 10, 2**53 - 1):
        body = b"[%s]" % (b"1," * seq if seq < 11 else b"")
        for path in (b"a", b"b/c", b"%C3%A4"):
            headers = (b"Producer-Seq: %d" % seq, HOST, PRODUCER[0], b"Producer-Epoch: 3", JSON)
            length = b"Content-Length: %d" % len(body)
            data = post(*headers, length, path=b"/v1/stream/" + path, body=body)
            assert quick(data, lambda *_: None)
            assert not quick(data[:-1], lambda *_: None)
            assert not quick(data + b"1", lambda *_: None)
            name, request = log.requests[-1]
            assert name == {b"%C3%A4": "ä"}.get(path, path.decode())
            assert request.body == body
            assert request.producer == ProducerStamp("p", 3, seq)
    assert len(log.requests) == 15


@pytest.mark.parametrize(
    "number", [b"01", b"00", b"-1", b"+1", b"1 ", b"9007199254740992", b"1" * 17, b"", b"1_0"]
)
def test_quick_append_leaves_odd_numbers_to_the_route(number: bytes) -> None:
    log = Submitted()
    quick = QuickAppend(log, HttpSettings(), LimitSettings(), OpenGate())  # type: ignore[arg-type]
    assert quick(post(HOST, JSON, LENGTH, *PRODUCER), lambda *_: None)
    head = (HOST, JSON, LENGTH, *PRODUCER[:2], b"Producer-Seq: " + number)
    assert not quick(post(*head), lambda *_: None)
    assert not quick(post(HOST, JSON, LENGTH, *PRODUCER, PRODUCER[2]), lambda *_: None)
    assert not quick(post(HOST, JSON, LENGTH, *PRODUCER, LENGTH), lambda *_: None)


def test_quick_append_keeps_shapes_that_differ_apart() -> None:
    log = Submitted()
    quick = QuickAppend(log, HttpSettings(), LimitSettings(), OpenGate())  # type: ignore[arg-type]
    for producer in (b"p", b"q", b"Producer-Seq: 7"):
        for epoch in (0, 1):
            stamp = (b"Producer-Id: " + producer, b"Producer-Epoch: %d" % epoch, b"Producer-Seq: 7")
            for headers in ((HOST, JSON, LENGTH, *stamp), (*stamp, HOST, LENGTH, JSON)):
                assert quick(post(*headers), lambda *_: None)
                stamped = log.requests[-1][1].producer
                assert stamped == ProducerStamp(producer.decode(), epoch, 7)


@pytest.mark.parametrize("producer", [None, ProducerStamp("p", 2, 3)])
@pytest.mark.parametrize("ack", list(Ack))
@pytest.mark.parametrize("flags", [{}, {"closed": True}, {"duplicate": True}])
def test_quick_append_answers_as_the_route(
    producer: ProducerStamp | None, ack: Ack, flags: dict[str, bool]
) -> None:
    request = AppendRequest("application/json", BODY, producer=producer)
    result = AppendResult(
        Offset(10**16 + 5), **{"closed": False, **flags}, ack=ack, producer_epoch=2, producer_seq=3
    )
    status, headers = render_append(request, result)
    assert render_stored(request, result) == (status, render_lines(headers))


def test_quick_append_tells_that_the_disk_failed() -> None:
    log, replies = Submitted(), []
    quick = QuickAppend(log, HttpSettings(), LimitSettings(), OpenGate())  # type: ignore[arg-type]
    assert quick(post(HOST, JSON, LENGTH), lambda *reply: replies.append(reply))
    log.done(StorageUnavailable("the disk"))
    [(status, _, body)] = replies
    assert status == 503
    assert b"storage_unavailable" in body


def test_quick_append_remembers_a_bounded_number_of_heads() -> None:
    log = Submitted()
    quick = QuickAppend(log, HttpSettings(), LimitSettings(), OpenGate())  # type: ignore[arg-type]
    long = b"User-Agent: " + b"x" * 1500
    tracemalloc.start()
    try:
        for number in range(10_000):
            head = (HOST, JSON, LENGTH, long, b"Accept: %d" % number)
            assert quick(post(*head, path=b"/v1/stream/%d" % number), lambda *_: None)
            log.requests.clear()
        remembered, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # All of them would be 30 MB and more.
    assert remembered < 10_000_000
