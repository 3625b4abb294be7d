"""The official TypeScript client, from npm and unchanged, against a real server over a bad line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import bottomless
from tests.support.careless_proxy import CarelessProxy
from tests.support.server import ServerProcess
from tests.support.wire import serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "interop"
CLIENT = Path(__file__).parent / "node_modules" / "@durable-streams" / "client" / "package.json"
VERSION = "0.2.7"
RECORDS = 10_000
NODE_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def node() -> str:
    found = subprocess.run(
        [ROOT / "scripts" / "find_node.sh", sys.prefix], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
    if not CLIENT.exists() or json.loads(CLIENT.read_text())["version"] != VERSION:
        pytest.skip(f"@durable-streams/client {VERSION} is not here: run `make install`")
    return found.stdout.strip()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("official")) as process:
        yield process


def test_official_producer_stores_everything_once_through_a_careless_proxy(
    node: str, server: ServerProcess
) -> None:
    with bottomless.connect(server.url) as client, CarelessProxy(server, share=0.1) as proxy:
        client.create("official")
        result = run(node, "produce.mjs", f"{proxy.url}/v1/stream/official", str(RECORDS))
        assert result["errors"] == []
        assert proxy.dropped > 5
        assert proxy.delayed > 5
        # An answer that was lost is a batch that was sent again.
        assert result["resent"] >= proxy.dropped
        assert values_of(client, "official") == [{"n": number} for number in range(RECORDS)]
        assert client.info("official").tail >= result["offset"]


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_official_reader_goes_on_over_a_kill_of_the_server(
    node: str, tmp_path: Path, live: str
) -> None:
    with ServerProcess.start(tmp_path / "data") as server, bottomless.connect(server.url) as client:
        client.create("live")
        reader = Reader(node, f"{server.url}/v1/stream/live", live)
        with reader:
            with client.producer("live", batch_records=20) as producer:
                for begin in (0, 1000):
                    for number in range(begin, begin + 1000):
                        producer.append(number)
                    producer.flush()
                    # The reader is in the middle of a live read whenever the server dies.
                    end = begin + 1000
                    wait_until(lambda end=end: len(reader.seen) >= end, "values", timeout_s=30)
                    if begin == 0:
                        server.kill9()
                        server.restart()
            client.close("live")
            reader.wait()
        assert reader.seen == list(range(2000)), reader.errors()
        assert server.terminate() == 0


class Reader:
    """follow.mjs, and what it has printed so far."""

    def __init__(self, node: str, url: str, live: str) -> None:
        self.seen: list[Any] = []
        self._process = subprocess.Popen(
            [node, PROGRAMS / "follow.mjs", url, live],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        self._said: list[str] = []
        self._threads = [threading.Thread(target=self._listen), threading.Thread(target=self._note)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()

    def wait(self) -> None:
        """It ends with the stream."""
        assert self._process.wait(NODE_TIMEOUT_S) == 0, self.errors()
        self._threads[0].join(NODE_TIMEOUT_S)

    def errors(self) -> str:
        return f"{len(self.seen)} seen\n" + "".join(self._said)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.seen += json.loads(line).get("items", [])

    def _note(self) -> None:
        assert self._process.stderr is not None
        self._said.extend(self._process.stderr)


def run(node: str, program: str, *arguments: str) -> dict[str, Any]:
    """Run one of the programs to its end; what it printed last."""
    done = subprocess.run(
        [node, PROGRAMS / program, *arguments],
        capture_output=True,
        text=True,
        timeout=NODE_TIMEOUT_S,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def environment() -> dict[str, str]:
    """No proxy of the machine, and none of its options for Node, stands in the way."""
    return {name: value for name, value in os.environ.items() if not name.startswith("NODE_")}


def values_of(client: bottomless.Client, stream: str) -> list[object]:
    return [record.value for record in client.read(stream)]
