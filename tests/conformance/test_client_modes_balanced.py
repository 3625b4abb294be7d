"""Groups that share the records of a stream: who gets what, and what happens when one goes."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import bottomless
from bottomless import group
from bottomless.errors import Fenced, Gone, InvalidRequest, NotFound
from bottomless.group import GroupLog
from tests.support.careless_proxy import CarelessProxy
from tests.support.wire import serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bottomless.assignment import GroupState
    from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("balanced")) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[bottomless.Client]:
    with bottomless.connect(server.url) as client:
        yield client


@pytest.fixture
def stream(client: bottomless.Client, request: pytest.FixtureRequest) -> str:
    """A hundred records."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name)
    client.create(name)
    client.append(name, *range(100))
    return name


def take(member: bottomless.Member, count: int) -> list[object]:
    found = [member.next(timeout_s=10) for _ in range(count)]
    return [record.value for record in found if record is not None]


def handled(client: bottomless.Client, stream: str) -> int:
    try:
        return client.group_info(stream, "team").handled
    except NotFound:
        return 0


class Worker(threading.Thread):
    """A member on a thread, until the end."""

    def __init__(self, url: str, stream: str, **options: object) -> None:
        super().__init__(daemon=True)
        self.seen: list[object] = []
        self._url, self._stream, self._options = url, stream, options
        self.start()

    def run(self) -> None:
        with (
            bottomless.connect(self._url) as client,
            client.balanced(self._stream, "team", **self._options) as member,
        ):
            self.seen.extend(record.value for record in member)


def test_balanced_members_share_every_record_once(
    client: bottomless.Client, server: ServerProcess, stream: str
) -> None:
    workers = [Worker(server.url, stream, range_records=10) for _ in range(2)]
    wait_until(lambda: handled(client, stream) == 100, "all is handled")
    late = Worker(server.url, stream, range_records=10)
    with client.producer(stream, batch_records=7) as producer:
        for number in range(100, 1000):
            producer.append(number)
    client.close(stream)
    for worker in (*workers, late):
        worker.join(20)
    assert Counter(value for one in (*workers, late) for value in one.seen) == Counter(range(1000))
    for worker in (*workers, late):
        assert worker.seen == sorted(worker.seen), "in the order of the stream"


def test_balanced_group_without_followers_ends_when_all_is_handled(
    client: bottomless.Client, stream: str
) -> None:
    one = client.balanced(stream, "team", follow=False, range_records=60)
    two = client.balanced(stream, "team", follow=False, range_records=60)
    assert take(one, 1) == [0]
    assert take(two, 40) == list(range(60, 100))
    assert two.next(timeout_s=0.3) is None
    # It stays while another works: that one might die.
    assert client.group_info(stream, "team").done < client.info(stream).tail.replace("_", "")
    assert [record.value for record in one] == list(range(1, 60))
    assert two.next() is None
    assert client.group_info(stream, "team").done == client.info(stream).tail.replace("_", "")


def test_balanced_member_that_leaves_hands_over_at_once(
    client: bottomless.Client, stream: str
) -> None:
    with client.balanced(stream, "team", range_records=50, lease_s=60) as one:
        assert take(one, 20) == list(range(20))
    with client.balanced(stream, "team", range_records=50, lease_s=60, follow=False) as two:
        assert [record.value for record in two] == list(range(20, 100))


def test_balanced_member_that_fails_hands_over_what_was_in_hand(
    client: bottomless.Client, stream: str
) -> None:
    one = client.balanced(stream, "team", lease_s=60)
    assert take(one, 20) == list(range(20))
    with pytest.raises(RuntimeError), one:
        raise RuntimeError("no luck")
    with client.balanced(stream, "team", follow=False) as two:
        assert take(two, 3) == [19, 20, 21]


def test_balanced_members_commit_by_hand(client: bottomless.Client, stream: str) -> None:
    one = client.balanced(stream, "team", lease_s=60)
    assert take(one, 20) == list(range(20))
    one.commit()
    info = one.info()
    assert info.done == one.position == info.in_flight[0].at
    assert take(one, 80) == list(range(20, 100))
    one.commit()
    info = client.group_info(stream, "team")
    assert (info.handled, info.lag_s, info.in_flight) == (100, 0.0, ())
    assert [member.name for member in info.members] == [one.name]


def test_balanced_member_tells_how_far_it_is_while_it_works(
    client: bottomless.Client, stream: str
) -> None:
    one = client.balanced(stream, "team", lease_s=1)
    assert take(one, 20) == list(range(20))
    place = client.read(stream)[18].position
    wait_until(lambda: one.info().done == place, "the heartbeat tells what is handled")
    info = one.info()
    assert info.free_ranges == 0
    assert info.in_flight[0].records == 100
    assert info.lag_s == 0.0 or info.done < info.tail


def test_balanced_members_hand_out_many_at_a_time(client: bottomless.Client, stream: str) -> None:
    one = client.balanced(stream, "team", range_records=40, follow=False)
    found = []
    while (first := one.next()) is not None:
        found.append([first.value, *(record.value for record in one.take())])
    assert found == [list(range(40)), list(range(40, 80)), list(range(80, 100))]


def test_balanced_member_takes_over_from_one_that_is_silent(
    client: bottomless.Client, stream: str
) -> None:
    one = client.balanced(stream, "team", lease_s=0.4, range_records=50)
    assert take(one, 10) == list(range(10))
    # From here on it is dead, though it does not know.
    one._portal.call(one._member._seat.stop_beats())
    two = client.balanced(stream, "team", lease_s=0.4, range_records=50)
    assert take(two, 50) == list(range(50, 100))
    rest = take(two, 50)
    assert rest in [list(range(first, 50)) for first in range(10)]
    before = two.info()
    assert before.handled == 50
    with pytest.raises(Fenced, match="went to other members"):
        one.commit()
    after = two.info()
    assert [(member.name, member.range is not None) for member in after.members] == [
        (two.name, True)
    ]
    assert after.handled == before.handled, "two has it, and has not said yet that it is done"
    assert one.next(timeout_s=0.5) is None, "it is a member again, and there is nothing left"
    assert two.next(timeout_s=0) is None
    client.append(stream, 100)
    assert [*take(one, 1)] == [100]


def test_balanced_group_goes_on_over_lost_answers(server: ServerProcess) -> None:
    with CarelessProxy(server, share=0.1) as proxy, bottomless.connect(server.url) as near:
        near.create("lossy")
        near.append("lossy", *range(200))
        near.close("lossy")
        workers = [Worker(proxy.url, "lossy", range_records=25) for _ in range(2)]
        for worker in workers:
            worker.join(30)
        assert Counter(value for one in workers for value in one.seen) == Counter(range(200))
        assert near.group_info("lossy", "team").handled == 200
        assert proxy.dropped > 0


def test_balanced_group_begins_in_one_place_only(client: bottomless.Client, stream: str) -> None:
    one = client.balanced(stream, "team", "newest:10")
    two = client.balanced(stream, "team", "live")
    assert take(one, 1) == [90]
    assert two.next(timeout_s=0) is None
    assert take(one, 9) == list(range(91, 100))


def test_balanced_group_shares_packed_records(client: bottomless.Client) -> None:
    client.create("rows", "text/csv")
    with client.producer("rows", batch_records=10) as producer:
        for number in range(100):
            producer.append([str(number)])
    seen: list[object] = []
    for count in (5, 20, 75):
        with client.balanced("rows", "team", range_records=2) as member:
            seen += take(member, count)
    assert seen == [[str(number)] for number in range(100)]


def test_balanced_group_has_a_log_that_is_short_to_read(
    client: bottomless.Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "SNAPSHOT_EVERY", 20)
    with client.balanced(stream, "team", range_records=1) as one:
        assert len(take(one, 40)) == 40
    kinds = Counter(record.value["is"] for record in client.read(f"_groups/team/{stream}"))
    assert sum(kinds.values()) > 80
    assert kinds["snapshot"] >= 3
    with bottomless.connect(client.url) as other:
        states = other._portal.call(_both_ways(other, stream))
    assert states[0] == states[1]
    assert states[0].handled == 40
    own = client.settings(f"_groups/team/{stream}")["own"]
    assert own["retain"] == {"records": 10_000}


async def _both_ways(client: bottomless.Client, stream: str) -> tuple[GroupState, GroupState]:
    """The state from the last snapshot on, and from the first entry on."""
    inner = client._client
    quick = GroupLog(inner, inner._transport, stream, "team", lease_s=1)
    await quick.load()
    whole = GroupLog(inner, inner._transport, stream, "team", lease_s=1)
    await whole.refresh()
    return quick.state, whole.state


def test_balanced_member_is_told_that_the_group_was_deleted(
    client: bottomless.Client, stream: str
) -> None:
    one = client.balanced(stream, "team")
    assert take(one, 5) == list(range(5))
    client.delete(f"_groups/team/{stream}")
    with pytest.raises(Fenced, match="was deleted"):
        one.commit()
    assert take(one, 100) == list(range(100)), "anew"


def test_balanced_member_is_told_that_the_group_was_made_anew(
    client: bottomless.Client, stream: str
) -> None:
    one = client.balanced(stream, "team")
    assert take(one, 5) == list(range(5))
    client.delete(f"_groups/team/{stream}")
    two = client.balanced(stream, "team")
    assert take(two, 5) == list(range(5))
    with pytest.raises(Fenced, match="was deleted"):
        one.commit()
    two.commit()
    info = two.info()
    assert [member.name for member in info.members] == [two.name]
    assert info.done == two.position


def test_balanced_member_is_told_that_records_are_gone(client: bottomless.Client) -> None:
    client.create("gone")
    one = client.balanced("gone", "team", range_records=50)
    two = client.balanced("gone", "team", range_records=50)
    # Once more: the first one has to learn of the second.
    assert [member.next(timeout_s=0) for member in (one, two, one)] == [None] * 3
    client.append("gone", *range(100))
    assert take(one, 1) == [0]
    assert one.info().free_ranges == 1
    client.delete("gone")
    client.create("gone")
    client.append("gone", "new")
    with pytest.raises(Gone, match="no longer there"):
        two.next()
    assert take(two, 1) == ["new"], "it is told once"
    assert take(one, 49) == list(range(1, 50)), "these it had read before"


def test_balanced_group_is_not_there_before_somebody_joins(
    client: bottomless.Client, stream: str
) -> None:
    with pytest.raises(NotFound):
        client.group_info(stream, "nobody")


@pytest.mark.parametrize("options", [{"lease_s": 0.1}, {"range_records": 0}])
def test_balanced_refuses_options_that_make_no_sense(
    client: bottomless.Client, options: dict[str, float]
) -> None:
    with pytest.raises(InvalidRequest):
        client.balanced("orders", "team", **options)
    with pytest.raises(InvalidRequest):
        client.balanced("orders", "a/b")


async def test_async_balanced_has_the_same_shape(server: ServerProcess) -> None:
    async with bottomless.connect_async(server.url) as client:
        await client.create("async")
        await client.append("async", *range(100))
        async with (
            client.balanced("async", "team", follow=False, range_records=10) as one,
            client.balanced("async", "team", follow=False, range_records=10) as two,
        ):
            seen = []
            for member in (one, two) * 3:
                record = await member.next()
                assert record is not None
                seen += [record.value, *(each.value for each in member.take())]
            assert {len(seen), len(set(seen))} == {60}
            await one.commit()
            await two.commit()
            info = await client.group_info("async", "team")
            assert info.handled == 60
            seen += [record.value async for record in two]
        assert sorted(seen) == list(range(100))


async def test_balanced_member_that_is_struck_off_while_it_waits_joins_again(
    server: ServerProcess,
) -> None:
    async with (
        bottomless.connect_async(server.url) as client,
        client.balanced("struck-off", "team") as member,
    ):
        await client.create("struck-off")
        assert await member.next(timeout_s=0) is None
        before = member.name
        waiting = asyncio.create_task(member.next(timeout_s=10))
        await asyncio.sleep(0.1)
        # What its heartbeat does when it reads that another has its place.
        member._seat._lose(Fenced("silent for too long"))
        await client.append("struck-off", "here")
        record = await waiting
        assert record is not None
        assert record.value == "here"
        assert member.name not in (before, None)
