"""The short way takes plain appends only; everything else is the parser's and the route's."""

from __future__ import annotations

from typing import Any

import pytest

from api.auth.gate import OpenGate
from api.routes.quick import QuickAppend
from api.settings import HttpSettings
from engine.errors import StorageUnavailable
from engine.settings import LimitSettings
from engine.types import AppendRequest, AppendResult, Offset

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
    offset = (b"stream-next-offset", b"0000000000000001_0000000000000005")
    assert replies == [(204, [offset, (b"stream-ack", b"wal")], b"")] * 2


def test_quick_append_tells_that_the_disk_failed() -> None:
    log, replies = Submitted(), []
    quick = QuickAppend(log, HttpSettings(), LimitSettings(), OpenGate())  # type: ignore[arg-type]
    assert quick(post(HOST, JSON, LENGTH), lambda *reply: replies.append(reply))
    log.done(StorageUnavailable("the disk"))
    [(status, _, body)] = replies
    assert status == 503
    assert b"storage_unavailable" in body
