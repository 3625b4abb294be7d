"""Requests that do not wait for answers: answered in order, each seeing what came before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.server import ServerProcess
from tests.support.wire import Wire, request

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 50


@pytest.mark.parametrize("at_once", [False, True], ids=["many-reads", "one-read"])
def test_pipelined_appends_and_reads_are_answered_in_order(tmp_path: Path, at_once: bool) -> None:
    with ServerProcess.start(tmp_path / "data") as server:
        kind = {"Content-Type": "text/plain"}
        for number in range(ROUNDS):
            path = f"/v1/stream/s{number}"
            httpx.put(server.url + path, headers=kind, trust_env=False).raise_for_status()
            post = request("POST", path, "Content-Type: text/plain", "Content-Length: 1", body=b"a")
            get = request("GET", f"{path}?offset=-1")
            parts = [post, get, post, post, get]
            with Wire(server.port) as wire:
                for part in [b"".join(parts)] if at_once else parts:
                    wire.send(part)
                replies = [wire.reply() for _ in parts]
            assert [reply.status for reply in replies] == [204, 200, 204, 204, 200]
            assert [reply.body for reply in replies] == [b"", b"a", b"", b"", b"aaa"]
        assert server.terminate() == 0
