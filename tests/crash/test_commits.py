"""Commits as files on disk: few, none for nothing, checkpointed, and never of the wrong stream."""

from __future__ import annotations

import json
import random
import time
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.support.load import Client, StreamHistory, Writer, wait_for
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

INTERVAL_MS = 100
OPEN_SECONDS_MAX = 2.0
LIVES = 40


def settings(**commit: int) -> dict[str, str]:
    return {f"BOTTOMLESS_COMMIT__{name.upper()}": str(value) for name, value in commit.items()}


def entries(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("[0-9]*.json"))


def checkpoints(table: Path) -> list[int]:
    names = sorted((table / "_delta_log").glob("[0-9]*.checkpoint.parquet"))
    return [int(path.name.partition(".")[0]) for path in names]


def table_data(table: Path) -> list[bytes]:
    """The rows in offset order; every offset once."""
    rows = DeltaTable(table).to_pyarrow_table(columns=["offset", "data"]).sort_by("offset")
    offsets = rows.column("offset").to_pylist()
    assert len(set(offsets)) == len(offsets)
    return [text.encode() for text in rows.column("data").to_pylist()]


def has_rows(table: Path, count: int) -> bool:
    """Whether that many rows are committed, by the log alone."""
    total = 0
    for entry in entries(table):
        for line in entry.read_text().splitlines():
            add = json.loads(line).get("add")
            total += json.loads(add["stats"])["numRecords"] if add else 0
    return total >= count


def test_commits_of_many_small_appends_are_few(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with ServerProcess.start(root, env=settings(interval_ms=2000)) as server:
        with Client(server.url) as client:
            client.create("s")
            begun = time.monotonic()
            for number in range(100):
                assert client.append("s", str(number).encode()).status == 204
            intervals = 1 + int((time.monotonic() - begun) / 2.0)
        wait_for(lambda: has_rows(root / "s", 100), "the commit of all records")
        assert len(list((root / "s").glob("*/*.parquet"))) <= intervals + 1
        assert len(entries(root / "s")) <= intervals + 1
        assert table_data(root / "s") == [str(number).encode() for number in range(100)]


def test_commits_stop_when_nothing_is_appended(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with ServerProcess.start(root, env=settings(interval_ms=INTERVAL_MS)) as server:
        with Client(server.url) as client:
            client.create("idle", b"[1,2]")
            client.create("empty")
            client.create("ttl", b"1", stream_ttl="3600")
            client.create("busy")
            wait_for(lambda: all(entries(root / name) for name in ("idle", "ttl")), "commits")
            # A clock of the server itself: the busy stream commits, the others could have, too.
            before = {name: len(entries(root / name)) for name in ("idle", "empty", "ttl")}
            for number in range(8):
                count = len(entries(root / "busy"))
                client.append("busy", str(number).encode())
                assert client.call("GET", "ttl").status == 200
                wait_for(lambda count=count: len(entries(root / "busy")) > count, "a commit")
        assert {name: len(entries(root / name)) for name in before} == before
        server.kill9()
        server.restart()
        with Client(server.url) as client:
            for number in range(3):
                count = len(entries(root / "busy"))
                client.append("busy", str(number).encode())
                wait_for(lambda count=count: len(entries(root / "busy")) > count, "a commit")
        # A restart is no reason to commit, either.
        assert {name: len(entries(root / name)) for name in before} == before


def test_commits_of_a_new_stream_never_show_rows_of_the_deleted_one(tmp_path: Path) -> None:
    root = tmp_path / "data"
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    committed = 0
    with ServerProcess.start(root, env=settings(interval_ms=10)) as server:
        for life in range(LIVES):
            record = f'"life {life}"'.encode()
            with Client(server.url) as client:
                client.create("s", record)
                if rng.random() < 0.5:
                    # Its table is there in the end, and not for a moment with a row of another.
                    wait_for(lambda record=record: shows_only(root / "s", record), "its table")
                    committed += 1
                else:
                    time.sleep(rng.uniform(0, 0.03))
            if life in (LIVES // 3, 2 * LIVES // 3):
                server.kill9()
                server.restart()
            with Client(server.url) as client:
                assert client.records("s") == [record]
                assert client.call("DELETE", "s").status == 204
                assert client.call("HEAD", "s").status == 404
        with Client(server.url) as client:
            client.create("s", b'"last"')
        assert server.terminate() == 0
    assert committed > 5
    assert table_data(root / "s") == [b'"last"']
    assert not list((root / "_trash").glob("*"))
    assert len(list((root / "s").glob("*/*.parquet"))) == 1


def shows_only(table: Path, record: bytes) -> bool:
    """Whether the table holds the record; rows of two lives in one table are an error.

    The table of the life before may still be there, as a whole, or vanish while it is read.
    """
    try:
        rows = table_data(table)
    except (OSError, DeltaError):
        return False
    assert len(rows) <= 1, rows
    return rows == [record]


def test_commits_are_checkpointed_and_open_fast(tmp_path: Path) -> None:
    root = tmp_path / "data"
    table = root / "s"
    count = 45
    env = settings(interval_ms=10, checkpoint_every=10)
    with ServerProcess.start(root, env=env) as server:
        with Client(server.url) as client:
            client.create("s")
            for number in range(count):
                version = len(entries(table))
                client.produce("s", str(number).encode(), ("p", 0, number))
                wait_for(lambda version=version: len(entries(table)) > version, "a commit")
        wait_for(lambda: 40 in checkpoints(table), "the fourth checkpoint")
        assert checkpoints(table) == [10, 20, 30, 40]
        pointer = table / "_delta_log" / "_last_checkpoint"
        wait_for(lambda: json.loads(pointer.read_text())["version"] == 40, "the pointer")
        expected = [str(number).encode() for number in range(count)]
        begun = time.monotonic()
        assert table_data(table) == expected
        assert time.monotonic() - begun < OPEN_SECONDS_MAX
        server.kill9()
        server.restart()
        with Client(server.url) as client:
            assert client.records("s") == expected
            assert client.produce("s", b"44", ("p", 0, 44)).status == 204
        assert server.terminate() == 0
    assert table_data(table) == expected


@pytest.mark.parametrize("round_", range(4))
def test_commits_survive_a_kill_around_checkpoints(tmp_path: Path, round_: int) -> None:
    """A checkpoint every second version, a commit each 10 ms: no kill is far from one."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    root = tmp_path / "data"
    history = StreamHistory("s")
    writer = Writer(history, "w", seed, producer=True)
    env = settings(interval_ms=10, checkpoint_every=2)
    with ServerProcess.start(root, env=env) as server:
        with Client(server.url) as client:
            client.create("s")
        writer = writer.reborn(server.url)
        writer.start()
        after = rng.randrange(1, 6) * 2
        wait_for(lambda: after in checkpoints(root / "s"), "a checkpoint")
        time.sleep(rng.uniform(0, 0.03))
        server.kill9()
        writer.join(30)
        assert writer.refused is None
        # A reader of the table must never stumble, whatever the kill left there.
        rows = table_data(root / "s")
        server.restart()
        with Client(server.url) as client:
            history.verify(client.records("s"))
        assert rows == history.verified[: len(rows)]
        assert server.terminate() == 0
    assert table_data(root / "s") == history.verified
