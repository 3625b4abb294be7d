"""Replay into another stream of a live server: the same records, once, in any number of runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from engine.storage import LocalStorage
from engine.table.replay import load_state
from jobs import replay
from tests.support.load import Client, wait_for
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

ODD = [
    b'{"big":123456789012345678901234567890, "v":1.0,"v":-0}',
    '{"text":"äöü \\ud83d\\ude00 \U0001f600"}'.encode(),
    b"null",
    b'"a string, with a comma"',
    b"[1,[2,3]]",
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    env = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "50"}
    with ServerProcess.start(tmp_path / "root", env=env) as server:
        yield server


class Replays:
    """Runs of the job against one server."""

    def __init__(self, server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
        self._server = server
        self._capsys = capsys

    def run(self, stream: str, target: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        url = f"{self._server.url}/v1/stream/{target}"
        root = ["--root", str(self._server.root), "--quiet", "--stream", stream]
        self._capsys.readouterr()
        found = replay.main([*root, "--to", "stream", "--output", url, *arguments])
        printed = self._capsys.readouterr()
        assert found == code, printed
        report: dict[str, Any] = json.loads(printed.out.splitlines()[-1])
        return report

    def wait_committed(self, stream: str) -> str:
        """The last offset, as soon as it is in the table."""
        with Client(self._server.url) as client:
            tail = client.call("HEAD", stream).tail.replace("_", "")
        storage = self._server.root / stream / "_delta_log"
        wait_for((storage / f"{0:020d}.json").exists, "the first commit")
        table = LocalStorage(self._server.root)
        wait_for(lambda: load_state(table, stream).committed >= int(tail), "the last commit")
        return tail


@pytest.fixture
def replays(
    spark: SparkSession, server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> Replays:
    del spark
    return Replays(server, capsys)


def fill(client: Client, name: str, *, appends: int) -> list[bytes]:
    client.create(name)
    records = list(ODD)
    client.append(name, b"[" + b",".join(ODD) + b"]")
    for number in range(appends):
        part = [b'{"id":%d,"n":%d}' % (number, index) for index in range(50)]
        assert client.append(name, b"[" + b",".join(part) + b"]").status == 204
        records += part
    return records


def test_replay_to_a_stream_twice_is_one_copy(replays: Replays, server: ServerProcess) -> None:
    with Client(server.url) as client:
        records = fill(client, "orders", appends=60)
        tail = replays.wait_committed("orders")

        first = replays.run("orders", "again", "--through", tail)
        second = replays.run("orders", "again", "--through", tail)

        assert client.records("again") == records
    assert (first["rows"], first["rows_known"]) == (len(records), 0)
    assert (second["rows"], second["rows_known"]) == (0, len(records))


def test_replay_to_a_stream_goes_on_after_the_server_was_killed(
    replays: Replays, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's server dies under the replay and comes back: the job waits, no record twice."""
    with Client(server.url) as client:
        records = fill(client, "orders", appends=60)
    tail = replays.wait_committed("orders")
    batches = 0

    def crash(self: Any, rows: list[Any]) -> None:
        del self, rows
        nonlocal batches
        batches += 1
        if batches == 3:
            server.kill9()
            server.restart()

    monkeypatch.setattr(replay.RatePacer, "wait", crash)
    report = replays.run("orders", "again", "--through", tail)

    assert batches > 3
    assert report["rows"] + report["rows_known"] == len(records)
    with Client(server.url) as client:
        assert client.records("again") == records


def test_replay_to_a_stream_keeps_text_and_bytes(replays: Replays, server: ServerProcess) -> None:
    texts = ["eins", "zwei\nzeilen", "drei äöü \U0001f600", " "]
    blobs = [bytes(range(256)), b"\x00", b"\xff" * 1000]
    with Client(server.url) as client:
        for name, kind, records in (
            ("texts", "text/plain", [text.encode() for text in texts]),
            ("blobs", "application/octet-stream", blobs),
        ):
            client.create(name, content_type=kind)
            for record in records:
                assert client.append(name, record, content_type=kind).status == 204
            tail = replays.wait_committed(name)
            replays.run(name, f"{name}-again", "--through", tail)
            assert client.read(f"{name}-again").body == b"".join(records)


def test_replay_to_a_stream_wants_an_end(replays: Replays, server: ServerProcess) -> None:
    with Client(server.url) as client:
        fill(client, "orders", appends=1)
    replays.wait_committed("orders")

    report = replays.run("orders", "again", "--until", "now", code=1)

    assert "--until" in report["problems"][0]


def test_replay_to_a_stream_of_another_kind_is_refused(
    replays: Replays, server: ServerProcess
) -> None:
    with Client(server.url) as client:
        fill(client, "orders", appends=1)
        client.create("texts", content_type="text/plain")
        tail = replays.wait_committed("orders")

        report = replays.run("orders", "texts", "--through", tail, code=1)

        assert "409" in report["problems"][0]
        assert client.read("texts").body == b""
