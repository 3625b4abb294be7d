"""Server-sent events as the protocol wants them: one data event and one control event per chunk."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

import orjson

from api.chunk import join_pieces
from engine import PayloadKind, format_wire

if TYPE_CHECKING:
    from engine import Offset, ReadResult

_BASE64_LINE: Final = 60_000
"""Long lines are fine for the format but not for every client's line buffer. Divisible by 4."""


def render_data(result: ReadResult) -> bytes:
    """One data event. Every line of the payload gets its own prefix, so none can forge an event."""
    payload = join_pieces(result)
    if result.kind is PayloadKind.BYTES:
        encoded = base64.b64encode(payload)
        lines = [
            encoded[begin : begin + _BASE64_LINE] for begin in range(0, len(encoded), _BASE64_LINE)
        ]
    else:
        if b"\r" in payload:
            payload = payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = payload.split(b"\n")
    return b"event: data\n" + b"".join([b"data:%b\n" % line for line in lines]) + b"\n"


def render_control(
    position: Offset, *, cursor: str | None, up_to_date: bool, closed: bool
) -> bytes:
    """One control event: where to go on, and whether there is anything to go on to."""
    body: dict[str, object] = {"streamNextOffset": format_wire(position)}
    if cursor is not None and not closed:
        body["streamCursor"] = cursor
    if up_to_date:
        body["upToDate"] = True
    if closed:
        body["streamClosed"] = True
    return b"event: control\ndata:%b\n\n" % orjson.dumps(body)
