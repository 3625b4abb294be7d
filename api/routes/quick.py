"""The short way for small appends: from the bytes of a connection straight to the log.

An HTTP parser's callbacks, a scope, a cycle and a task cost as much CPU as the append itself. So a
whole, plain POST that arrives in one read is recognised here, by one expression that is stricter
than the parser, and its answer is sent by the callback of the group commit. Whatever is not plain
goes the long way, through parser and route; this one never refuses anything.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from api.errors import render_error
from api.protocol import parse_stream_path
from api.routes.append import parse_append, render_append
from engine import AppendRequest, BottomlessError

if TYPE_CHECKING:
    from collections.abc import Callable

    from api.asgi import Headers
    from api.auth.gate import Gate
    from api.auth.grants import Grant
    from api.settings import HttpSettings
    from engine import AppendResult, Log, ProducerStamp, StreamName
    from engine.settings import LimitSettings

    Reply = Callable[[int, Headers, bytes], None]

QUICK_START: Final = b"POST /v1/stream/"
_BODY_BYTES_MAX: Final = 64 * 1024
_HEAD_BYTES_MAX: Final = 2048
_PLANS_MAX: Final = 1024
_HEAD: Final = re.compile(
    rb"POST (/v1/stream/[!$&'()*+,\-./0-9:;=@A-Z_a-z~%]+) HTTP/1\.1\r\n"
    rb"((?:[A-Za-z-]+:[\x20-\x7e]*\r\n)+)\r\n"
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


class Plan:
    """What the head of an append asks for; the same head asks for the same."""

    __slots__ = ("body_bytes", "content_type", "grant", "name", "producer", "stream_seq")

    def __init__(
        self, name: StreamName, body_bytes: int, request: AppendRequest, grant: Grant | None
    ) -> None:
        self.name = name
        self.grant = grant
        """Whose append it is, where that matters; it must still hold each time."""
        self.body_bytes = body_bytes
        self.content_type: str | None = request.content_type
        self.producer: ProducerStamp | None = request.producer
        self.stream_seq: str | None = request.stream_seq


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
            return False
        request = AppendRequest(
            content_type=plan.content_type,
            body=data[end:],
            producer=plan.producer,
            stream_seq=plan.stream_seq,
        )
        try:
            is_taken = self._log.append_soon(
                plan.name, request, lambda outcome: _answer(request, outcome, reply)
            )
        except BottomlessError:
            return False
        if is_taken and grant is not None:
            self._gate.spend(grant)
        return is_taken

    def _plan(self, head: bytes) -> Plan | None:
        match = _HEAD.fullmatch(head)
        headers = None if match is None else self._headers(match[2])
        if match is None or headers is None:
            return None
        try:
            name = parse_stream_path(match[1], bytes_max=self._limits.name_bytes)
            grant = self._gate.quick_grant(headers, "append", name)
            request = parse_append(headers, self._limits)
        except BottomlessError:
            return None
        plan = Plan(name, int(headers[b"content-length"]), request, grant)
        if request.producer is None and request.stream_seq is None:
            # Heads with numbers that rise never come again.
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            self._plans[head] = plan
        return plan

    def _headers(self, block: bytes) -> dict[bytes, bytes] | None:
        """By lower-case name; None where they are not plain."""
        lines = block[:-2].split(b"\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip(b" ")
        length = headers.get(b"content-length", b"")
        is_plain = (
            len(headers) == len(lines) <= self._header_count
            and headers.keys() <= self._plain
            and b"host" in headers
            and headers.get(b"connection", b"keep-alive") == b"keep-alive"
            and 0 < len(length) <= len(str(_BODY_BYTES_MAX))
            and length.isdigit()
            and 0 < int(length) <= self._body_bytes_max
        )
        return headers if is_plain else None


def _answer(request: AppendRequest, outcome: AppendResult | BottomlessError, reply: Reply) -> None:
    if isinstance(outcome, BottomlessError):
        reply(*render_error(outcome))
    else:
        status, headers = render_append(request, outcome)
        reply(status, headers, b"")
