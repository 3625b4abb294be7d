"""Consumers that keep their place, when processes die: theirs, and the server's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

import bottomless
from bottomless.errors import NotFound
from tests.support.consuming import FENCED, ConsumingProcess
from tests.support.server import ServerProcess
from tests.support.wire import serving
from tests.support.wire import wait_until as wait_until_soon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COUNT = 10_000


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    """Several processes start and work on a machine that may be busy."""
    wait_until_soon(is_true, what, timeout_s=40)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("kills")) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[bottomless.Client]:
    with bottomless.connect(server.url) as client:
        yield client


@pytest.fixture
def stream(client: bottomless.Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)
    client.create(name)
    return name


def produce(client: bottomless.Client, stream: str, values: range) -> None:
    with client.producer(stream, batch_records=1000) as producer:
        for value in values:
            producer.append(value)


def members(client: bottomless.Client, stream: str) -> int:
    try:
        return len(client.group_info(stream, "workers").members)
    except NotFound:
        return 0


def test_balanced_group_loses_nothing_when_a_member_is_killed(
    tmp_path: Path, server: ServerProcess, client: bottomless.Client, stream: str
) -> None:
    options = ("balanced", stream, "--pause-ms", "0.1", "--range-records", "100")
    with (
        ConsumingProcess(tmp_path / "one", server.url, *options) as one,
        ConsumingProcess(tmp_path / "two", server.url, *options) as two,
    ):
        wait_until(lambda: members(client, stream) == 2, "both have joined")
        produce(client, stream, range(COUNT))
        client.close(stream)
        wait_until(lambda: len(one.lines) + len(two.lines) >= COUNT / 2, "half of it is handled")
        one.kill9()
        shares = (len(one.lines), len(two.lines))
        assert min(shares) >= 0.25 * sum(shares), f"no fair share: {shares}"
        assert two.wait() == 0
    assert FENCED not in two.lines
    handled = Counter(one.handled + two.handled)
    assert sorted(handled) == list(range(COUNT)), "every record is handled"
    assert set(Counter(one.handled).values()) | set(Counter(two.handled).values()) == {1}
    twice = sorted(value for value, count in handled.items() if count > 1)
    assert set(twice) <= set(one.handled[-100:]), "only of the range it died with"
    info = client.group_info(stream, "workers")
    assert (info.handled, info.done, info.lag_s) == (COUNT, info.tail, 0.0)
    assert info.members == info.in_flight == ()


def test_balanced_zombie_cannot_commit_what_was_handed_over(
    tmp_path: Path, server: ServerProcess, client: bottomless.Client, stream: str
) -> None:
    def zombie_is_struck_off() -> bool:
        info = client.group_info(stream, "workers")
        return info.handled == 200 and len(info.members) == 1

    slow = ("balanced", stream, "--range-records", "50", "--pause-ms", "20")
    with ConsumingProcess(tmp_path / "slow", server.url, *slow) as zombie:
        wait_until(lambda: members(client, stream) == 1, "the slow one has joined")
        produce(client, stream, range(200))
        wait_until(lambda: len(zombie.lines) >= 10, "it has begun with its range")
        zombie.stop()
        with ConsumingProcess(tmp_path / "quick", server.url, "balanced", stream) as quick:
            wait_until(zombie_is_struck_off, "the other one has done all of it")
            before = client.group_info(stream, "workers")
            had = zombie.handled
            zombie.go_on()
            wait_until(lambda: FENCED in zombie.lines, "it is told")
            after = client.group_info(stream, "workers")
            assert (after.handled, after.done) == (before.handled, before.done)
            # What it had in hand is all it did, though the rest of its range lay in its memory.
            assert len(zombie.handled) <= len(had) + 1
            assert set(range(200)) - set(had) <= set(quick.handled), "nothing is lost"
            # It is a member again, under another name, and gets its share of what comes.
            wait_until(lambda: members(client, stream) == 2, "it has joined again")
            produce(client, stream, range(200, 1200))
            client.close(stream)
            assert (zombie.wait(), quick.wait()) == (0, 0)
        later = Counter(value for value in zombie.handled + quick.handled if value >= 200)
        assert later == Counter(range(200, 1200)), "among the living each record goes once"
        assert any(value >= 200 for value in zombie.handled)


def test_resumable_repeats_only_what_was_not_committed(
    tmp_path: Path, server: ServerProcess, client: bottomless.Client, stream: str
) -> None:
    produce(client, stream, range(2000))
    client.close(stream)
    options = ("resumable", stream, "--commit-records", "50", "--pause-ms", "0.3")
    handled: list[int] = []
    for life in range(4):
        with ConsumingProcess(tmp_path / f"{life}", server.url, *options) as consumer:
            if life < 3:
                wait_until(lambda now=consumer: len(now.lines) >= 400, "a good part of it")
                consumer.kill9()
            else:
                assert consumer.wait() == 0
            seen = consumer.handled
        assert seen == list(range(seen[0], seen[0] + len(seen))), "in order, none left out"
        if handled:
            assert handled[-1] + 1 - 50 <= seen[0] <= handled[-1] + 1
        handled = seen
    assert handled[-1] == 1999
    last = client.committed(stream, "worker")
    assert last is not None
    assert last.position == client.info(stream).tail.replace("_", "")


def test_resumable_zombie_is_fenced(
    tmp_path: Path, server: ServerProcess, client: bottomless.Client, stream: str
) -> None:
    produce(client, stream, range(2000))
    options = ("resumable", stream, "--commit-records", "50", "--pause-ms", "1")
    with ConsumingProcess(tmp_path / "old", server.url, *options) as old:
        wait_until(lambda: len(old.lines) >= 200, "it works")
        old.stop()
        last = client.committed(stream, "worker")
        assert last is not None
        with client.resumable(stream, "worker", follow=False) as new:
            first = new.next()
            assert first is not None
            had = old.handled
            assert had[-1] + 1 - 50 <= first.value <= had[-1] + 1
            assert [record.value for record in new][-1] == 1999
            taken = client.committed(stream, "worker")
            old.go_on()
            assert old.wait() == 0
            assert old.lines[-1] == FENCED
            assert len(old.handled) <= len(had) + 50, "until its next commit"
            assert client.committed(stream, "worker") == taken


def test_both_modes_go_on_after_a_kill_of_the_server(tmp_path: Path) -> None:
    count = 1200
    with (
        ServerProcess.start(tmp_path / "data") as server,
        bottomless.connect(server.url) as client,
    ):
        client.create("orders")
        group = ("balanced", "orders", "--pause-ms", "1")
        single = ("resumable", "orders", "--pause-ms", "1", "--commit-records", "20")
        with (
            ConsumingProcess(tmp_path / "one", server.url, *group) as one,
            ConsumingProcess(tmp_path / "two", server.url, *group) as two,
            ConsumingProcess(tmp_path / "alone", server.url, *single) as alone,
        ):
            wait_until(lambda: members(client, "orders") == 2, "both have joined")
            produce(client, "orders", range(count))
            client.close("orders")
            programs = (one, two, alone)
            wait_until(lambda: min(len(each.lines) for each in programs) >= 200, "all work")
            server.kill9()
            assert max(len(each.lines) for each in programs) < count
            server.restart()
            assert [each.wait() for each in programs] == [0, 0, 0]
            assert alone.handled == list(range(count)), "once each, as if nothing had been"
            # Nobody could write while the server was away, so nobody's lease has ended.
            assert FENCED not in one.lines + two.lines
            assert Counter(one.handled + two.handled) == Counter(range(count))
        with client.resumable("orders", "worker", follow=False) as again:
            assert list(again) == []
