"""Parts that are written at once: only where they are next, and where the client takes them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from api.asgi import Part
from api.cycle import Cycle

PART = Part(b"news")
BODY = {"type": "http.response.body", "body": b"old", "more_body": True}


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.written += b"".join(parts)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


def cycle_of(transport: Transport, flow: FlowControl, version: str = "1.1") -> Cycle:
    return Cycle(
        scope={"method": "GET", "http_version": version},  # type: ignore[arg-type, typeddict-item]
        transport=transport,  # type: ignore[arg-type]
        flow=flow,
        logger=logging.getLogger("test"),
        access_logger=logging.getLogger("test"),
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )


@pytest.mark.parametrize(
    ("version", "expected"), [("1.1", b"3\r\nold\r\n4\r\nnews\r\n"), ("1.0", b"oldnews")]
)
async def test_cycle_writes_a_part_where_it_is_next(version: str, expected: bytes):
    transport = Transport()
    cycle = cycle_of(transport, FlowControl(transport), version)  # type: ignore[arg-type]
    assert not cycle.write_now(PART)
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    # The head is held back until the first part of the body.
    assert not cycle.write_now(PART)
    assert transport.written == b""
    await cycle.send(BODY)
    assert cycle.write_now(PART)
    assert transport.written.partition(b"\r\n\r\n")[2] == expected
    await cycle.send({**BODY, "more_body": False})
    size = len(transport.written)
    assert not cycle.write_now(PART)
    assert len(transport.written) == size


@pytest.mark.parametrize("how", ["behind", "closed"])
async def test_cycle_writes_no_part_to_who_does_not_take_it(how: str):
    transport: Any = Transport()
    flow = FlowControl(transport)
    cycle = cycle_of(transport, flow)
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    await cycle.send(BODY)
    size = len(transport.written)
    if how == "behind":
        flow.pause_writing()
    else:
        transport.close()
    # What waits for a client is bounded by the mark at which writing is paused.
    assert not cycle.write_now(PART)
    assert len(transport.written) == size
    flow.resume_writing()
    assert cycle.write_now(PART) == (how == "behind")
