"""The jobs beside a live server under load: nobody notices them, and no record is lost.

A short run by default; BOTTOMLESS_LIVE_SECONDS=300 makes it the five minutes of the documentation.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING

import deltalake
import httpx
import pytest

from jobs import check, maintain
from tests.support.load import Client, StreamHistory, Writer, wait_for
from tests.support.server import ServerProcess
from tests.support.tables import pairs_of, streamed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

LIVE_SECONDS = float(os.environ.get("BOTTOMLESS_LIVE_SECONDS", "15"))
WRITERS = 16
# What one round leaves alone: files younger than settle_seconds, and the commits of the round.
FILES_MAX = 400

pytestmark = pytest.mark.timeout(LIVE_SECONDS * 3 + 300)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings that give the jobs something to do at once."""
    path = tmp_path / "bottomless.toml"
    path.write_text("[compact]\nsettle_seconds = 1\n[maintain]\nindex_commits = 50\n")
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    env = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "50"}
    with ServerProcess.start(tmp_path / "root", env=env) as server:
        yield server


class Tailer(threading.Thread):
    """A live reader: one connection of server-sent events, read to the end of the stream."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(name="tailer", daemon=True)
        self._url = f"{url}/v1/stream/{name}?offset=-1&live=sse"
        self.records: list[bytes] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Follow until the stream is closed."""
        try:
            self._follow()
        except BaseException as error:  # noqa: BLE001  (the test asks for it)
            self.error = error

    def _follow(self) -> None:
        url, offset = self._url, "-1"
        with httpx.Client(trust_env=False, timeout=60) as client:
            for _ in range(1000):
                with client.stream("GET", url.replace("=-1", f"={offset}")) as response:
                    assert response.status_code == 200
                    kind = ""
                    for line in response.iter_lines():
                        if line.startswith("event:"):
                            kind = line[6:].strip()
                        elif line.startswith("data:") and kind == "data":
                            self.records += Client.split(line[5:].strip().encode())
                        elif line.startswith("data:"):
                            control = json.loads(line[5:])
                            offset = control["streamNextOffset"]
                            if control.get("streamClosed"):
                                return
        raise AssertionError("the stream never ended")


def files_of(path: Path) -> int:
    return len(deltalake.DeltaTable(str(path)).file_uris())


def test_maintenance_beside_a_server_under_load(
    spark: SparkSession,
    server: ServerProcess,
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    history = StreamHistory("orders")
    with Client(server.url) as client:
        client.create("orders")
    path = server.root / "orders"
    writers = [Writer(history, f"w{i}", i, producer=i % 2 == 0) for i in range(WRITERS)]
    tailer = Tailer(server.url, "orders")
    tailer.start()
    for writer in writers:
        writer.client_url = server.url
        writer.start()
    root = ("--root", str(server.root), "--config", str(config), "--quiet")
    wait_for((path / "_delta_log" / f"{0:020d}.json").exists, "the first commit")

    deadline = time.monotonic() + LIVE_SECONDS
    jobs: list[str] = []
    counts = []
    while time.monotonic() < deadline:
        capsys.readouterr()
        assert maintain.main([*root, "--once"]) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        jobs += [entry["job"] for entry in report["streams"]]
        counts.append(files_of(path))
    for writer in writers:
        writer.is_ending = True
    for writer in writers:
        writer.join(60)
        assert not writer.is_alive()
        assert writer.refused is None, writer.refused
        assert writer.in_flight is None, "a request was not answered"
    with Client(server.url) as client:
        assert client.append("orders", b"", stream_closed="true").status == 204
        records = client.records("orders")
    tailer.join(60)
    assert server.terminate() == 0

    assert {"compact", "index"} <= set(jobs)
    assert max(counts) <= FILES_MAX, counts
    history.verify(records)
    assert tailer.error is None, tailer.error
    assert tailer.records == records
    table = deltalake.DeltaTable(str(path))
    snapshot = pairs_of(table.to_pyarrow_table(columns=["offset", "data"]))
    assert [data.encode() for _, data in snapshot] == records
    assert streamed(spark, path, tmp_path) == snapshot
    assert check.main([*root]) == 0
    with capsys.disabled():
        print(
            f"\n{len(records)} records, {table.version()} versions, {jobs.count('compact')}"
            f" rewrites, at most {max(counts)} files, now {files_of(path)}"
        )
