"""Retention takes away what a consumer, or a group, has not got to: it is told, and goes on."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

import bottomless
from bottomless import group
from bottomless.errors import Gone
from tests.support.server import CLONE, EXECUTABLE, ServerProcess
from tests.support.wire import serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("trimmed")) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[bottomless.Client]:
    with bottomless.connect(server.url) as client:
        yield client


def trim(server: ServerProcess, client: bottomless.Client, stream: str, before: str) -> None:
    """Take away the files that lie before; at least the first one does."""
    client.settings(stream, retain={"before": before})
    first = client.read(stream, limit=1)[0].offset
    command = [EXECUTABLE, "retain", "--root", server.root, "--stream", stream, "--quiet"]

    def is_trimmed() -> bool:
        # The setting reaches the table with the stream's next commit.
        subprocess.run(command, capture_output=True, check=True, cwd=CLONE, timeout=60)
        return client.read(stream, limit=1)[0].offset > first

    wait_until(is_trimmed, f"{stream} is trimmed")


def work(member: bottomless.Member, count: int) -> list[object]:
    found = [member.next(timeout_s=5) for _ in range(count)]
    return [record.value for record in found if record is not None]


def test_modes_tell_what_retention_took(server: ServerProcess, client: bottomless.Client) -> None:
    client.create("short")
    client.settings("short", ack="table")
    options = {"range_records": 20, "lease_s": 60}
    one = client.balanced("short", "team", **options)
    two = client.balanced("short", "team", **options)
    assert [member.next(timeout_s=0) for member in (one, two, one)] == [None] * 3
    for first in range(0, 100, 20):
        client.append("short", *range(first, first + 20))
    with client.resumable("short", "billing") as consumer:
        assert [consumer.next().value for _ in range(3)] == [0, 1, 2]
    # The first member has one range, and has cut a second one off; the rest is not cut yet.
    assert one.next().value == 0
    trim(server, client, "short", before=client.read("short")[80].offset)
    assert client.read("short")[0].value == 80

    again = client.resumable("short", "billing")
    with pytest.raises(Gone):
        again.next()
    again.rewind()
    assert [again.next().value for _ in range(20)] == list(range(80, 100))

    seen, told = [], 0
    while len(seen) < 20:
        try:
            record = two.next(timeout_s=5)
        except Gone:
            told += 1
        else:
            assert record is not None
            seen.append(record.value)
    assert seen == list(range(80, 100))
    assert told >= 1


def test_group_goes_on_when_the_beginning_of_its_log_is_trimmed(
    server: ServerProcess, client: bottomless.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "SNAPSHOT_EVERY", 20)
    log = "_groups/team/long"
    client.create("long")
    client.append("long", *range(60))
    early = client.balanced("long", "team", range_records=1, lease_s=60)
    assert early.next().value == 0
    with client.balanced("long", "team", range_records=1, lease_s=60) as busy:
        assert work(busy, 20) == list(range(1, 21))
        # The end of a file.
        client.settings(log, ack="table")
        assert work(busy, 2) == [21, 22]
        client.settings(log, ack=None)
        assert work(busy, 20) == list(range(23, 43))
    found = client.read(log)
    snapshots = [record for record in found if record.value["is"] == "snapshot"]
    trim(server, client, log, before=snapshots[-1].value["upto"])
    left = client.read(log)
    assert left[0].offset > found[0].offset
    assert len(left) < len(found)

    assert client.group_info("long", "team").handled == 42
    late = client.balanced("long", "team", range_records=1, lease_s=60)
    assert late.next(timeout_s=5).value == 43
    # The early one has not seen what is trimmed; it was alive all the time.
    assert early.next(timeout_s=5).value == 44
