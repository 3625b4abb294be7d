"""Replay of forks: what HTTP reads of them, from the tables of all their ancestors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from engine.storage import LocalStorage
from engine.table.replay import load_state
from jobs import replay, retain
from tests.support.load import Client, wait_for
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


class Family:
    """A live server with streams that fork from one another, and replays of them."""

    def __init__(
        self, server: ServerProcess, client: Client, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.server = server
        self.client = client
        self.storage = LocalStorage(server.root)
        self._capsys = capsys
        self._written = 0

    def append(self, name: str, count: int) -> str:
        """Records in one append; the offset after it, once it is in the table."""
        first, self._written = self._written, self._written + count
        body = b",".join(b'{"n":%d}' % n for n in range(first, first + count))
        tail = self.client.append(name, b"[" + body + b"]").tail.replace("_", "")
        wait_for(lambda: self._is_committed(name, tail), f"the commit of {name}")
        return tail

    def _is_committed(self, name: str, tail: str) -> bool:
        log = self.server.root / name / "_delta_log" / f"{0:020d}.json"
        return log.exists() and load_state(self.storage, name).committed >= int(tail)

    def fork(self, name: str, source: str, offset: str | None = None, sub: int = 0) -> None:
        headers = {"stream_forked_from": f"/v1/stream/{source}"}
        if offset is not None:
            headers |= {"stream_fork_offset": offset, "stream_fork_sub_offset": str(sub)}
        self.client.create(name, **headers)

    def run(self, module: Any, *arguments: str, code: int = 0) -> dict[str, Any]:
        self._capsys.readouterr()
        found = module.main(["--root", str(self.server.root), "--quiet", *arguments])
        printed = self._capsys.readouterr()
        assert found == code, printed
        report: dict[str, Any] = json.loads(printed.out.splitlines()[-1])
        return report

    def replay(self, name: str, *arguments: str, code: int = 0) -> tuple[list[bytes], Any]:
        """The records in the order of the files, and the report."""
        output = self.server.root.parent / "out"
        flags = ["--stream", name, "--output", str(output), "--overwrite"]
        report = self.run(replay, *flags, *arguments, code=code)
        lines = [
            line.partition(b'"data":')[2].removesuffix(b"}")
            for part in sorted(output.glob("part-*"))
            for line in part.read_bytes().splitlines()
        ]
        return lines, report


@pytest.fixture
def family(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Family]:
    del spark
    env = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "50"}
    with (
        ServerProcess.start(tmp_path / "root", env=env) as server,
        Client(server.url) as client,
    ):
        yield Family(server, client, capsys)


def test_replay_of_a_fork_is_what_http_reads(family: Family) -> None:
    family.client.create("root")
    family.append("root", 5)
    middle = family.append("root", 5)
    family.append("root", 5)
    # In the middle of an append: two of its five records are the fork's own copies.
    family.fork("fork", "root", middle, sub=2)
    family.append("root", 5)
    family.append("fork", 5)
    family.fork("child", "fork")
    family.append("fork", 5)
    family.append("child", 5)
    # Branches off from what the fork has inherited itself.
    family.fork("early", "fork", str(int(middle) - 3).zfill(32))
    family.append("early", 5)

    for name, count in (("fork", 22), ("child", 22), ("early", 12), ("root", 20)):
        records, _ = family.replay(name)
        assert records == family.client.records(name), name
        assert len(records) == count, name


def test_replay_of_a_fork_takes_any_range_of_it(family: Family) -> None:
    """Across the tables, also when the source was deleted: its table stays for its forks."""
    family.client.create("root")
    family.append("root", 5)
    middle = family.append("root", 5)
    family.append("root", 5)
    family.fork("fork", "root", middle)
    tail = family.append("fork", 5)
    family.fork("child", "fork")
    family.append("child", 5)
    records = family.client.records("child")
    family.client.call("DELETE", "root")

    tables = {name: len(load_state(family.storage, name).files) for name in ("root", "fork")}
    before = str(int(middle) - 3).zfill(32)
    for after, through, first, end, needed in (
        (before, tail, 7, 15, tables["root"] + tables["fork"] + 1),
        (middle, tail, 10, 15, tables["fork"] + 1),
        (tail, tail, 15, 15, 1),
        ("0" * 32, before, 0, 7, tables["root"] + tables["fork"] + 1),
    ):
        found, report = family.replay("child", "--after", after, "--through", through)
        assert found == records[first:end]
        assert report["files"] == needed
    url = f"{family.server.url}/v1/stream/copy"
    to_stream = ["--stream", "child", "--to", "stream", "--output", url, "--through", tail]
    for _ in range(2):
        family.run(replay, *to_stream)
        assert family.client.records("copy") == records[:15]


def test_replay_of_a_fork_begins_where_retention_has_left_something(family: Family) -> None:
    family.client.create("root")
    gone = family.append("root", 5)
    family.append("root", 5)
    family.run(retain, "--stream", "root", "--records", "5")
    family.fork("fork", "root")
    last = family.append("fork", 5)

    records, _ = family.replay("fork")
    assert records == family.client.records("fork")
    assert len(records) == 10

    # From an offset that is gone HTTP answers 410.
    _, report = family.replay("fork", "--after", str(int(gone) - 1).zfill(32), code=1)
    assert f"--after {gone}" in report["problems"][0]
    url = f"{family.server.url}/v1/stream/copy"
    to_stream = ["--stream", "fork", "--to", "stream", "--output", url, "--through", last]
    report = family.run(replay, *to_stream, code=1)
    assert f"--after {gone}" in report["problems"][0]
    family.run(replay, *to_stream, "--after", gone)
    assert family.client.records("copy") == records


def test_replay_of_a_fork_never_skips_what_was_trimmed_in_the_middle(family: Family) -> None:
    family.client.create("root")
    family.append("root", 5)
    family.fork("fork", "root")
    gone = family.append("fork", 5)
    family.append("fork", 5)
    family.run(retain, "--stream", "fork", "--records", "5")

    _, report = family.replay("fork", code=1)

    assert f"--after {gone}" in report["problems"][0]
    records, _ = family.replay("fork", "--after", gone)
    assert records == family.client.records("fork", gone)
    assert len(records) == 5


def test_replay_of_a_fork_without_the_table_of_its_source_is_refused(family: Family) -> None:
    family.client.create("root")
    branch = family.append("root", 5)
    family.fork("fork", "root")
    family.append("fork", 5)
    expected = family.client.records("fork")
    (family.server.root / "root").rename(family.server.root.parent / "aside")

    _, report = family.replay("fork", code=1)

    assert "forked from root" in report["problems"][0]
    records, _ = family.replay("fork", "--after", branch)
    assert records == expected[5:]
