"""Appends on the short way, whatever heads came before: what is remembered of one head must never
be told of another. The judges are a memory that is empty, and the parser with the route's rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.auth.gate import OpenGate
from api.auth.grants import Grant, parse_permission
from api.errors import Unauthorized
from api.protocol import headers_by_name, parse_stream_path
from api.routes.append import parse_append
from api.routes.quick import QuickAppend
from api.settings import HttpSettings
from engine.settings import LimitSettings
from engine.types import AppendRequest

if TYPE_CHECKING:
    from api.auth.gate import Gate

LIMITS = LimitSettings()
BODY = b'{"a":1}'
PLAIN = [b"Host: h", b"Content-Type: application/json", b"Content-Length: 7"]
PRODUCER = [b"Producer-Id: p", b"Producer-Epoch: 0", b"Producer-Seq: 7"]
MORE = [
    *[b"Authorization: Bearer a", b"Authorization: Bearer b", b"authorization: Bearer none"],
    *[b"Auth: a", b"Accept: */*", b"Connection: keep-alive", b"User-Agent: Producer-Seq: 7"],
    *[b"Stream-Seq: 1", b"stream-seq: 2", b"Origin: http://o"],
]
ODD = [
    *[b"Host: i", b"HOST: h", b"Content-Type: text/plain", b"content-type:application/json"],
    *[b"Content-Type:", b"CONTENT-TYPE: application/json", b"Content-Type: no"],
    *[b"content-length:7", b"CONTENT-LENGTH: 7", b"Content-Length: 07", b"Content-Length:  7"],
    *[b"Content-Length: 7 ", b"Content-Length: 8", b"Content-Length: 0", b"Content-Length: +7"],
    *[b"Content-Length: 7, 7", b"Content-Length: " + b"0" * 15 + b"7", b"Content-Length:"],
    *[b"Producer-Id: q", b"Producer-Id: Producer-Seq: 7", b"producer-id:p", b"Producer-Id:"],
    *[b"Producer-Epoch: 1", b"Producer-Epoch: 00", b"producer-epoch: 0", b"Producer-Epoch: -1"],
    *[b"Producer-Seq: 8", b"producer-seq:70", b"PRODUCER-SEQ: 9", b"Producer-Seq: 07"],
    *[b"Producer-Seq: 9007199254740991", b"Producer-Seq: 9007199254740992", b"Producer-Seq:"],
    *[b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Connection: close"],
    *[b"Content-Encoding: gzip", b"Stream-Closed: true", b"Stream-Ack: table", b"X-A: 1"],
    *[b"Accept : x", b" folded", b"No-Colon", b""],
]
PATHS = [b"/v1/stream/s", b"/v1/stream/t", b"/v1/stream/%73", b"/v1/stream/s?ack=table"]
# What a head without its numbers could be taken apart and put together with.
MARKS = [b"\0", b"\n", b"\r", b"", b" ", b":", b", ", b"\r\n"]
_NUMBERED = re.compile(rb"\r\n([A-Za-z]+-(?:Length|Seq)): ?[0-9]+")


class NamedGate:
    """Each token may append to some streams; it counts nothing."""

    is_on = True

    def __init__(self) -> None:
        self.grants = {
            b"a": Grant("a", [parse_permission("append:s")]),
            b"b": Grant("b", [parse_permission("append:*")]),
        }

    def quick_grant(self, headers: dict[bytes, bytes], action: str, name: str) -> Grant:
        found = [headers[key] for key in (b"authorization", b"auth") if key in headers]
        grant = self.grants.get(found[0].removeprefix(b"Bearer ")) if len(found) == 1 else None
        if grant is None or action not in grant.actions_on(name):
            raise Unauthorized("not this one")
        return grant

    def holds(self, grant: Grant) -> bool:
        return not grant.is_ended

    def spend(self, grant: Grant) -> None:
        assert not grant.is_ended


@dataclass
class Taken:
    """A log that takes every append."""

    appends: list[tuple[str, AppendRequest]] = field(default_factory=list)

    def append_soon(self, name: str, request: AppendRequest, done: Any) -> bool:
        del done
        self.appends.append((name, request))
        return True


class Short:
    """The short way with a memory of its own."""

    def __init__(self, gate: Gate) -> None:
        self._log = Taken()
        self._quick = QuickAppend(self._log, HttpSettings(), LIMITS, gate)  # type: ignore[arg-type]

    def take(self, data: bytes) -> tuple[str, AppendRequest] | None:
        self._log.appends.clear()
        is_taken = self._quick(data, lambda *_: None)
        assert is_taken == bool(self._log.appends)
        return self._log.appends[0] if is_taken else None


class Parsed:
    """What the parser finds in the same bytes, and the route makes of it."""

    def __init__(self, data: bytes) -> None:
        self.url = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_whole = False
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        assert parser.get_method() == b"POST"
        assert parser.should_keep_alive()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        assert not self.is_whole, "a second request"
        self.is_whole = True

    def append(self) -> tuple[str, AppendRequest]:
        assert self.is_whole
        asked = parse_append(headers_by_name(self.headers), LIMITS)
        request = AppendRequest(
            asked.content_type,
            self.body,
            asked.close,
            asked.producer,
            asked.stream_seq,
            asked.fence,
            asked.ack,
        )
        return parse_stream_path(self.url, bytes_max=LIMITS.name_bytes), request


def render(path: bytes, lines: list[bytes]) -> bytes:
    return b"\r\n".join([b"POST " + path + b" HTTP/1.1", *lines, b"", b""]) + BODY


@st.composite
def plain_appends(draw: st.DrawFn) -> list[bytes]:
    lines = PLAIN + draw(st.sampled_from([[], PRODUCER]))
    lines += draw(st.lists(st.sampled_from(MORE), max_size=1))
    return draw(st.permutations(lines))


@st.composite
def relatives(draw: st.DrawFn, lines: list[bytes]) -> bytes:
    """The same append changed a little: in its lines, or in its bytes."""
    lines = list(lines)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(lines) - 1))
        odd = draw(st.sampled_from(ODD + MORE))
        kind = draw(st.sampled_from(["same header", "replace", "insert", "drop", "twice"]))
        if kind == "same header":
            same = odd.partition(b":")[0].strip().lower()
            lines = [odd if line.lower().startswith(same + b":") else line for line in lines]
        elif kind == "replace":
            lines[at] = odd
        elif kind == "insert":
            lines.insert(at, odd)
        elif kind == "twice":
            lines.append(lines[at])
        elif len(lines) > 1:
            del lines[at]
    data = render(draw(st.sampled_from(PATHS)), lines)
    if draw(st.booleans()):
        before, after = draw(st.sampled_from(MARKS)), draw(st.sampled_from(MARKS))
        count = draw(st.integers(1, 2))
        data = _NUMBERED.sub(lambda found: before + found[1] + after, data, count=count)
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from(MARKS)) + data[at + draw(st.integers(0, 1)) :]
    return data


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    lines = draw(plain_appends())
    relatives_of = st.lists(relatives(lines), min_size=1, max_size=6)
    return [render(PATHS[0], lines), *draw(relatives_of)]


@pytest.mark.parametrize("gate", [OpenGate(), NamedGate()], ids=["open", "guarded"])
@given(conversation=conversations())
def test_quick_append_takes_what_it_would_take_first(gate: Gate, conversation: list[bytes]) -> None:
    short = Short(gate)
    for data in conversation:
        taken = short.take(data)
        assert taken == Short(gate).take(data)
        if taken is not None:
            assert taken == Parsed(data).append()


@given(conversation=conversations(), ended=st.sampled_from([b"a", b"b"]))
def test_quick_append_takes_nothing_for_a_token_that_has_ended(
    conversation: list[bytes], ended: bytes
) -> None:
    gate = NamedGate()
    short = Short(gate)
    for data in conversation:
        short.take(data)
    gate.grants.pop(ended).is_ended = True
    for data in conversation:
        taken = short.take(data)
        assert taken == Short(gate).take(data)
        assert taken is None or not re.search(rb"\r\nAuth[a-z]*: (Bearer )?" + ended, data)
