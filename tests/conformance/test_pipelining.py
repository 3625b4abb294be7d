"""Clients that do not wait for answers: kept in order, bounded, and never refused for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.support.wire import TEXT, Wire, request, resident_mib, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.support.server import ServerProcess

ROUNDS = 50
KIND = "Content-Type: text/plain"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(
        tmp_path_factory.mktemp("pipelining"),
        http__header_timeout_ms=500,
        http__body_timeout_ms=500,
        http__long_poll_timeout_ms=3000,
    ) as process:
        yield process


def create(client: httpx.Client, name: str) -> str:
    path = f"/v1/stream/{name}"
    client.put(path, headers=TEXT).raise_for_status()
    return path


@pytest.mark.parametrize("at_once", [False, True], ids=["many-reads", "one-read"])
def test_pipelined_requests_are_answered_in_order(
    server: ServerProcess, client: httpx.Client, at_once: bool
) -> None:
    for number in range(ROUNDS):
        path = create(client, f"order-{at_once}-{number}")
        post = request("POST", path, KIND, "Content-Length: 1", body=b"a")
        get = request("GET", f"{path}?offset=-1")
        parts = [post, get, post, post, get]
        with Wire(server.port) as wire:
            for part in [b"".join(parts)] if at_once else parts:
                wire.send(part)
            replies = [wire.reply() for _ in parts]
        assert [reply.status for reply in replies] == [204, 200, 204, 204, 200]
        assert [reply.body for reply in replies] == [b"", b"a", b"", b"", b"aaa"]


def test_pipelined_appends_by_the_thousand_are_all_taken(
    server: ServerProcess, client: httpx.Client
) -> None:
    """Reads that end inside of a head must not add up to one large head."""
    path, count = create(client, "thousands"), 3000
    post = request("POST", path, KIND, "Content-Length: 1", body=b"x")
    with Wire(server.port) as wire:
        sender = threading.Thread(target=wire.send, args=(post * count,))
        sender.start()
        statuses = {wire.reply().status for _ in range(count)}
        sender.join()
    assert statuses == {204}
    assert client.get(f"{path}?offset=-1").content == b"x" * count


def test_pipelining_client_is_bounded_in_memory(
    server: ServerProcess, client: httpx.Client
) -> None:
    path, count = create(client, "greedy"), 4000
    post = request("POST", path, KIND, "Content-Length: 20000", body=b"x" * 20000)
    before = resident_mib(server)
    most = before
    with Wire(server.port) as wire:
        sender = threading.Thread(target=wire.send, args=(post * count,))
        sender.start()
        for number in range(count):
            assert wire.reply().status == 204
            if number % 200 == 0:
                most = max(most, resident_mib(server))
        sender.join()
    # 80 MB of requests. What is durable may wait in memory for its commit, 16 MB or so.
    assert most - before < 120


def test_time_out_of_a_half_sent_request_is_not_the_answer_to_another(
    server: ServerProcess, client: httpx.Client
) -> None:
    path = create(client, "waiting")
    with Wire(server.port) as wire:
        wire.send(request("GET", f"{path}?offset=now&live=long-poll"))
        wire.send(b"POST /v1/stream/waiting HTTP/1.1\r\nHo")
        assert wire.reply().status == 204
        assert wire.reply().status == 408
