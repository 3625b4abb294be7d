"""A replay's way to a stream: its pace, and a target that is not there, or not at once."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from engine.errors import InvalidRequest, StorageUnavailable
from engine.types import PayloadKind
from jobs.common.report import Step
from jobs.common.sinks import RatePacer, Request, StreamSink
from tests.support.clock import ManualClock
from tests.support.server import HOST, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGIN = datetime(2026, 11, 17, tzinfo=UTC)


def rows(count: int, at_s: float = 0.0) -> list[Any]:
    """Records that were flushed so long after the first."""
    at = BEGIN + timedelta(seconds=at_s)
    return [SimpleNamespace(flushed_at=at, data="1") for _ in range(count)]


def sent_at(pacer: RatePacer, clock: ManualClock, batches: list[list[Any]]) -> list[float]:
    """When each batch went, in seconds after the first."""
    begun = clock.monotonic_s()
    times = []
    for batch in batches:
        pacer.wait(batch)
        times.append(round(clock.monotonic_s() - begun, 3))
    return times


def test_pacer_keeps_a_rate():
    clock = ManualClock()
    pacer = RatePacer(clock, rate=100.0, pace=None)
    assert sent_at(pacer, clock, [rows(50), rows(200), rows(1), rows(49)]) == [0, 0.5, 2.5, 2.51]


def test_pacer_catches_up_after_a_slow_target():
    clock = ManualClock()
    pacer = RatePacer(clock, rate=10.0, pace=None)
    assert sent_at(pacer, clock, [rows(10)]) == [0]
    clock.advance(2500)
    assert sent_at(pacer, clock, [rows(10), rows(10), rows(10)]) == [0, 0, 0.5]


@pytest.mark.parametrize(("pace", "expected"), [(1.0, [0, 10, 30]), (10.0, [0, 1, 3])])
def test_pacer_keeps_the_pace_of_the_recording(pace: float, expected: list[float]):
    clock = ManualClock()
    pacer = RatePacer(clock, rate=None, pace=pace)
    assert sent_at(pacer, clock, [rows(7), rows(1, 10.0), rows(500, 30.0)]) == expected


def test_pacer_without_a_limit_never_waits():
    clock = ManualClock()
    pacer = RatePacer(clock, rate=None, pace=None)
    assert sent_at(pacer, clock, [rows(1000, second) for second in range(3)]) == [0, 0, 0]


class Target:
    """An HTTP server that gives the answers it is told, then 200."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.seen: list[str] = []
        target = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                self.rfile.read(int(self.headers["content-length"] or 0))
                target.seen.append(self.command)
                self.send_response(target.answers.pop(0) if target.answers else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            do_PUT = do_POST = _answer  # noqa: N815  (http.server calls them so)

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self._server.server_port}/v1/stream/copy"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    yield target
    target.close()


def send(url: str, clock: ManualClock, count: int = 1) -> StreamSink:
    request = Request(1, {})
    with StreamSink(url, "application/json", PayloadKind.JSON, request) as sink:
        pacer = RatePacer(clock, rate=None, pace=None)
        sink.write(iter(rows(count)), pacer, Step(), clock)
    return sink


def test_sink_waits_for_a_target_that_comes_back(target: Target):
    target.answers = [503, 500, 201, 429, 503, 200]
    sink = send(target.url, ManualClock())
    assert target.seen == ["PUT"] * 3 + ["POST"] * 3
    assert (sink.sent, sink.known) == (1, 0)


def test_sink_gives_up_on_a_target_that_is_not_there():
    clock = ManualClock()
    begun = clock.monotonic_s()
    with pytest.raises(StorageUnavailable, match=r"cannot be made.*refused") as caught:
        send(f"http://{HOST}:{free_port()}/v1/stream/copy", clock)
    assert "again" in (caught.value.hint or "")
    assert 10 < clock.monotonic_s() - begun < 60


def test_sink_does_not_insist_where_the_target_refuses(target: Target):
    clock = ManualClock()
    target.answers = [409]
    with pytest.raises(StorageUnavailable, match="cannot be made: 409"):
        send(target.url, clock)
    target.answers = [201, 413]
    with pytest.raises(StorageUnavailable, match="did not take a batch: 413"):
        send(target.url, clock)
    assert target.seen == ["PUT", "PUT", "POST"]


@pytest.mark.parametrize("url", ["orders", "/tmp/out", "ftp://host/x", "http://[::1/x"])
def test_sink_wants_the_url_of_a_stream(url: str):
    with pytest.raises(InvalidRequest, match="--output"):
        send(url, ManualClock())
