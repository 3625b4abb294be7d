"""The short way for small appends: from the bytes of a connection straight to the log.

An HTTP parser's callbacks, a scope, a cycle and a task cost as much CPU as the append itself. So a
whole, plain POST that arrives in one read is recognised here, by one expression that is stricter
than the parser, and its answer is sent by the callback of the group commit. Whatever is not plain
goes the long way, through parser and route; this one never refuses anything.

The heads of one client differ in the path and two numbers. What the rest of them, their shape, asks
for is worked out once.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from api.asgi import render_lines
from api.auth.grants import Grant
from api.errors import render_error
from api.protocol import NUMBER_MAX, parse_stream_path
from api.routes.append import parse_append, render_stored
from engine import AppendRequest, BottomlessError, ProducerStamp, StreamName

if TYPE_CHECKING:
    from collections.abc import Callable

    from api.auth.gate import Gate
    from api.settings import HttpSettings
    from engine import AppendResult, Log
    from engine.settings import LimitSettings

    Reply = Callable[[int, bytes, bytes], None]
    """Takes the status, the headers as lines, and the body."""

QUICK_START: Final = b"POST /v1/stream/"
_BODY_BYTES_MAX: Final = 64 * 1024
_HEAD_BYTES_MAX: Final = 2048
_CACHED_MAX: Final = 1024
_LENGTH: Final = b"content-length"
_SEQ: Final = b"producer-seq"
_NUMBERED: Final = frozenset({_LENGTH, _SEQ})
_VERSION: Final = b" HTTP/1.1\r\n"
_LINE: Final = re.compile(rb"POST (/v1/stream/[!$&'()*+,\-./0-9:;=@A-Z_a-z~%]+)")
_HEADERS: Final = re.compile(rb"((?:[A-Za-z-]+:[\x20-\x7e]*\r\n)+)\r\n")
# The numbers that change from one append of a client to the next.
_NUMBERS: Final = re.compile(
    rb"\r\n([Cc]ontent-[Ll]ength|[Pp]roducer-[Ss]eq): ?([0-9]{1,16})(?=\r\n)"
)
# Headers whose meaning is known here. With any other one, or one of these twice, it is not plain.
_PLAIN: Final = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"auth",
        b"authorization",
        b"connection",
        b"content-length",
        b"content-type",
        b"host",
        b"origin",
        b"producer-epoch",
        b"producer-id",
        b"producer-seq",
        b"stream-seq",
        b"user-agent",
    }
)

_K = TypeVar("_K")
_V = TypeVar("_V")


class Shape(msgspec.Struct, frozen=True):
    """What the headers of an append ask for, apart from their numbers."""

    request: AppendRequest
    grant: Grant | None
    """Whose append it is, where that matters; it must still hold each time."""
    length_at: int
    """Which of the numbers is the length of the body."""
    seq_at: int
    """Which one is the producer's."""


class Plan(msgspec.Struct, frozen=True):
    """What the head of an append asks for; the same head asks for the same."""

    name: StreamName
    body_bytes: int
    content_type: str | None
    producer: ProducerStamp | None
    stream_seq: str | None
    grant: Grant | None


class QuickAppend:
    """Recognises plain appends and submits them."""

    def __init__(self, log: Log, http: HttpSettings, limits: LimitSettings, gate: Gate) -> None:
        self._log = log
        self._gate = gate
        # Who may read the answer then depends on the origin: that is the route's affair.
        self._plain = _PLAIN if "*" in http.cors_origins else _PLAIN - {b"origin"}
        self._limits = limits
        self._head_bytes_max = min(_HEAD_BYTES_MAX, http.header_bytes)
        self._body_bytes_max = min(_BODY_BYTES_MAX, limits.body_bytes)
        self._header_count = http.header_count
        self._plans: dict[bytes, Plan] = {}
        self._shapes: dict[tuple[bytes, ...], Shape] = {}
        self._names: dict[bytes, StreamName] = {}

    def __call__(self, data: bytes, reply: Reply) -> bool:
        """Submit the append; ``reply`` is called when it is durable. False: not taken."""
        end = data.find(b"\r\n\r\n", 0, self._head_bytes_max) + 4
        head = data[:end]
        plan = self._plans.get(head) or self._plan(head)
        if plan is None or len(data) - end != plan.body_bytes:
            return False
        grant = plan.grant
        if grant is not None and not self._gate.holds(grant):
            # It may hold again (the rate), or another one may: look anew next time.
            self._plans.pop(head, None)
            self._shapes.pop(self._split(head)[0], None)
            return False
        request = AppendRequest(
            plan.content_type, data[end:], False, plan.producer, plan.stream_seq
        )
        try:
            is_taken = self._log.append_soon(plan.name, request, partial(_answer, request, reply))
        except BottomlessError:
            return False
        if is_taken and grant is not None:
            self._gate.spend(grant)
        return is_taken

    def _plan(self, head: bytes) -> Plan | None:
        line, version, _ = head.partition(_VERSION)
        name = self._names.get(line) or self._name(line)
        if not version or name is None:
            return None
        key, numbers = self._split(head)
        shape = self._shapes.get(key) or self._shape(key, head, name)
        if shape is None:
            return None
        request, producer = shape.request, shape.request.producer
        body_bytes = int(numbers[shape.length_at])
        if not 0 < body_bytes <= self._body_bytes_max:
            return None
        if producer is not None:
            digits = numbers[shape.seq_at]
            seq = int(digits)
            if seq > NUMBER_MAX or len(digits) != len(str(seq)):
                return None
            producer = ProducerStamp(producer.id, producer.epoch, seq)
        plan = Plan(
            name, body_bytes, request.content_type, producer, request.stream_seq, shape.grant
        )
        if producer is None and request.stream_seq is None:
            # Heads with numbers that rise never come again.
            _keep(self._plans, head, plan)
        return plan

    def _split(self, head: bytes) -> tuple[tuple[bytes, ...], list[bytes]]:
        """The head without its numbers, and without its path where all may write everywhere.

        Parts, never joined: whatever stood between them a head that is not plain could hold.
        """
        line, _, headers = head.partition(_VERSION)
        parts = _NUMBERS.split(b"\r\n" + headers)
        numbers = parts[2::3]
        del parts[2::3]
        if self._gate.is_on:
            parts.append(line)
        return tuple(parts), numbers

    def _name(self, line: bytes) -> StreamName | None:
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        try:
            name = parse_stream_path(match[1], bytes_max=self._limits.name_bytes)
        except BottomlessError:
            return None
        _keep(self._names, line, name)
        return name

    def _shape(self, key: tuple[bytes, ...], head: bytes, name: StreamName) -> Shape | None:
        match = _HEADERS.fullmatch(head, head.index(_VERSION) + len(_VERSION))
        headers = None if match is None else self._headers(match[1])
        if headers is None:
            return None
        numbered = [found[1].lower() for found in _NUMBERS.finditer(head)]
        if headers.keys() & _NUMBERED != set(numbered):
            return None
        try:
            grant = self._gate.quick_grant(headers, "append", name)
            request = parse_append(headers, self._limits)
        except BottomlessError:
            return None
        seq_at = -1 if request.producer is None else numbered.index(_SEQ)
        shape = Shape(request, grant, numbered.index(_LENGTH), seq_at)
        if request.stream_seq is None:
            _keep(self._shapes, key, shape)
        return shape

    def _headers(self, block: bytes) -> dict[bytes, bytes] | None:
        """By lower-case name; None where they are not plain."""
        lines = block[:-2].split(b"\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip(b" ")
        is_plain = (
            len(headers) == len(lines) <= self._header_count
            and headers.keys() <= self._plain
            and b"host" in headers
            and _LENGTH in headers
            and headers.get(b"connection", b"keep-alive") == b"keep-alive"
        )
        return headers if is_plain else None


def _keep(cache: dict[_K, _V], key: _K, value: _V) -> None:
    if len(cache) >= _CACHED_MAX:
        cache.clear()
    cache[key] = value


def _answer(request: AppendRequest, reply: Reply, outcome: AppendResult | BottomlessError) -> None:
    if isinstance(outcome, BottomlessError):
        status, headers, body = render_error(outcome)
        reply(status, render_lines(headers), body)
    else:
        status, lines = render_stored(request, outcome)
        reply(status, lines, b"")
