"""Resumable consumers: where they go on, when they commit, and who may."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

import bottomless
from bottomless import After, Newest, Since
from bottomless.committed import PositionLog
from bottomless.errors import Conflict, Fenced, InvalidRequest
from bottomless.transport import Transport
from tests.support.careless_proxy import CarelessProxy
from tests.support.wire import serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("resumable")) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[bottomless.Client]:
    with bottomless.connect(server.url) as client:
        yield client


@pytest.fixture
def stream(client: bottomless.Client, request: pytest.FixtureRequest) -> str:
    """Ten records."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name)
    client.create(name)
    client.append(name, *range(10))
    return name


def rest_of(client: bottomless.Client, stream: str, name: str = "billing") -> list[object]:
    """What the next consumer of that name gets; it leaves the position as it is."""
    with client.resumable(
        stream, name, follow=False, commit_records=None, commit_s=None
    ) as consumer:
        return [record.value for record in consumer]


def take(consumer: bottomless.Resumable, count: int) -> list[object]:
    found = [consumer.next(timeout_s=10) for _ in range(count)]
    return [record.value for record in found if record is not None]


def test_resumable_goes_on_where_the_last_one_was_closed(
    client: bottomless.Client, stream: str
) -> None:
    with client.resumable(stream, "billing") as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]
    with client.resumable(stream, "billing") as consumer:
        assert take(consumer, 3) == [4, 5, 6]
    assert rest_of(client, stream) == [7, 8, 9]
    assert rest_of(client, stream, "shipping") == list(range(10)), "another name, another place"


def test_resumable_does_not_commit_what_was_in_hand_when_it_failed(
    client: bottomless.Client, stream: str
) -> None:
    consumer = client.resumable(stream, "billing")
    assert take(consumer, 4) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="no luck"), consumer:
        raise RuntimeError("no luck")
    assert rest_of(client, stream) == list(range(3, 10))


def test_resumable_commits_after_so_many(client: bottomless.Client, stream: str) -> None:
    consumer = client.resumable(stream, "billing", commit_records=3, commit_s=None)
    places = []
    for _ in range(8):
        assert consumer.next() is not None
        places.append(consumer.committed)
    records = [record.position for record in client.read(stream)]
    # The one in hand never counts, so the third is committed when the fourth is asked for.
    assert places == ["-"] * 3 + [records[2]] * 3 + [records[5]] * 2
    last = client.committed(stream, "billing")
    assert last is not None
    assert last.position == records[5]


def test_resumable_commits_after_a_while_also_when_nothing_comes(
    client: bottomless.Client, stream: str
) -> None:
    consumer = client.resumable(stream, "billing", commit_records=None, commit_s=0.2)
    assert take(consumer, 10) == list(range(10))
    assert consumer.next(timeout_s=1.0) is None
    assert rest_of(client, stream) == []


def test_resumable_leaves_commits_to_the_program(client: bottomless.Client, stream: str) -> None:
    with client.resumable(stream, "billing", commit_records=None, commit_s=None) as consumer:
        assert take(consumer, 6) == list(range(6))
        assert consumer.committed == "-"
        consumer.commit()
        assert consumer.committed == consumer.position
        assert take(consumer, 2) == [6, 7]
    assert rest_of(client, stream) == list(range(6, 10))


def test_resumable_hands_out_many_at_a_time(client: bottomless.Client, stream: str) -> None:
    consumer = client.resumable(stream, "billing", commit_records=1, commit_s=None)
    first = consumer.next()
    assert first is not None
    assert [record.value for record in consumer.take()] == list(range(1, 10))
    assert client.committed(stream, "billing").position == "-", "they are in hand"
    assert consumer.next(timeout_s=0) is None
    assert rest_of(client, stream) == [], "whoever comes back is done with them"


@pytest.mark.parametrize(
    ("start", "first"),
    [("live", 10), (Newest(3), 7), (Newest(0), 10), (Since("1h"), 0), ("beginning", 0)],
    ids=str,
)
def test_resumable_begins_in_one_place_only(
    client: bottomless.Client, stream: str, start: object, first: int
) -> None:
    """Killed before its first commit, it begins where it would have begun then."""
    consumer = client.resumable(stream, "billing", start)
    assert consumer.next(timeout_s=0) is None or first < 10
    client.append(stream, 10)
    with client.resumable(stream, "billing", "live", follow=False) as again:
        assert [record.value for record in again] == list(range(first, 11))


def test_resumable_begins_behind_a_record(client: bottomless.Client, stream: str) -> None:
    place = client.read(stream)[4].position
    with client.resumable(stream, "billing", After(place), follow=False) as consumer:
        assert [record.value for record in consumer] == list(range(5, 10))


def test_resumable_rewinds_for_whoever_comes_next_too(
    client: bottomless.Client, stream: str
) -> None:
    consumer = client.resumable(stream, "billing")
    assert take(consumer, 9) == list(range(9))
    consumer.rewind(Newest(4))
    with client.resumable(stream, "billing", follow=False) as again:
        assert [record.value for record in again] == [6, 7, 8, 9]
        again.seek(client.read(stream)[0].time)
    assert rest_of(client, stream) == list(range(10))


def test_resumable_old_owner_can_move_nothing(client: bottomless.Client, stream: str) -> None:
    old = client.resumable(stream, "billing", commit_records=None, commit_s=None)
    assert take(old, 2) == [0, 1]
    old.commit()
    assert take(old, 5) == [2, 3, 4, 5, 6]
    new = client.resumable(stream, "billing", commit_records=None, commit_s=None)
    assert take(new, 2) == [2, 3]
    new.commit()
    before = client.committed(stream, "billing")
    with pytest.raises(Fenced, match="another consumer has taken over the position 'billing'"):
        old.commit()
    with pytest.raises(Fenced):
        old.rewind()
    with pytest.raises(Fenced):
        old.commit()
    old.close()
    assert client.committed(stream, "billing") == before
    assert take(new, 1) == [4]
    new.commit()
    assert rest_of(client, stream) == list(range(5, 10))


async def test_resumable_of_many_at_once_one_owns_the_position(server: ServerProcess) -> None:
    async with bottomless.connect_async(server.url) as client:
        await client.create("crowd")
        await client.append("crowd", *range(10))
        crowd = [
            client.resumable("crowd", "many", commit_records=None, commit_s=None) for _ in range(16)
        ]
        await asyncio.gather(*(one.next() for one in crowd))
        ended = await asyncio.gather(*(one.commit() for one in crowd), return_exceptions=True)
        assert [type(end) for end in ended if end is not None] == [Fenced] * 15
        last = await client.committed("crowd", "many")
        stored = [one.value["version"] for one in await client.read("_positions/many/crowd")]
        assert last is not None
        assert stored == sorted(stored)
        assert stored[-2:] == [last.version] * 2
        # Who lost does not come back at the same moment: each tries two or three times, not ten.
        assert last.version < 16 * 5


class InStep(Transport):
    """Both wait for each other before they raise the version, so they raise it to the same."""

    barrier = asyncio.Barrier(2)

    async def once(self, method: str, path: str, **options: Any) -> httpx.Response:
        if options.get("params") == {"version": "1"} and b"[]" in options["content"]:
            await self.barrier.wait()
        return await super().once(method, path, **options)


async def test_resumable_tells_two_of_one_version_apart(server: ServerProcess) -> None:
    async def first() -> str:
        return "-"

    async with (
        bottomless.connect_async(server.url) as client,
        InStep(server.url) as one,
        InStep(server.url) as two,
    ):
        logs = [
            PositionLog(client, transport, "tie", "billing", owner)
            for transport, owner in ((one, "one"), (two, "two"))
        ]
        await asyncio.gather(*(log.take_over(first) for log in logs))
        ended = await asyncio.gather(
            *(log.store("0" * 31 + "7", one.retry) for log in logs), return_exceptions=True
        )
        assert sorted(type(end).__name__ for end in ended) == ["Fenced", "NoneType"]
        stored = [record.value for record in await client.read("_positions/billing/tie")]
        assert [(entry["version"], entry["position"]) for entry in stored] == [
            (1, "-"),
            (2, "-"),
            (2, "0" * 31 + "7"),
        ]
        assert stored[0]["owner"] != stored[1]["owner"]


def test_resumable_commits_over_lost_answers(server: ServerProcess) -> None:
    with (
        CarelessProxy(server, share=0.2) as proxy,
        bottomless.connect(proxy.url) as far,
        bottomless.connect(server.url) as near,
    ):
        near.create("lossy")
        near.append("lossy", *range(300))
        seen: list[object] = []
        for _ in range(3):
            with far.resumable("lossy", "billing", commit_records=5) as consumer:
                seen += take(consumer, 100)
        assert seen == list(range(300))
        assert proxy.dropped > 0


@pytest.mark.parametrize("content_type", ["text/csv", "application/msgpack"])
def test_resumable_goes_on_in_the_middle_of_a_record(
    client: bottomless.Client, content_type: str
) -> None:
    name = f"packed/{content_type}"
    client.create(name, content_type)
    with client.producer(name, batch_records=10) as producer:
        for number in range(30):
            producer.append([str(number)])
    seen: list[object] = []
    for count in (7, 8, 15):
        with client.resumable(name, "billing") as consumer:
            seen += take(consumer, count)
    assert seen == [[str(number)] for number in range(30)]


def test_resumable_says_that_its_position_was_deleted(
    client: bottomless.Client, stream: str
) -> None:
    consumer = client.resumable(stream, "billing")
    assert take(consumer, 5) == list(range(5))
    client.delete(f"_positions/billing/{stream}")
    with pytest.raises(Fenced, match="was deleted"):
        consumer.commit()
    assert rest_of(client, stream) == list(range(10)), "anew"


def test_resumable_goes_on_in_a_stream_that_was_made_anew(
    client: bottomless.Client, stream: str
) -> None:
    with client.resumable(stream, "billing") as consumer:
        assert take(consumer, 5) == list(range(5))
    client.delete(stream)
    client.create(stream)
    client.append(stream, "new")
    # Offsets rise over a delete, so what is new lies behind every position.
    assert rest_of(client, stream) == ["new"]


def test_resumable_waits_for_a_stream_that_is_not_there_yet(client: bottomless.Client) -> None:
    consumer = client.resumable("much-later", "billing", "live")
    assert consumer.next(timeout_s=0.1) is None
    client.create("much-later")
    client.append("much-later", "here")
    assert take(consumer, 1) == ["here"]


def test_resumable_keeps_what_it_stores_small(client: bottomless.Client, stream: str) -> None:
    assert rest_of(client, stream)
    own = client.settings(f"_positions/billing/{stream}")["own"]
    assert own["retain"] == {"records": 10_000}


@pytest.mark.parametrize("name", ["", "a/b", "_x", "a b", "ä", "x" * 101, ".."])
def test_resumable_refuses_names_that_could_meet(client: bottomless.Client, name: str) -> None:
    with pytest.raises(InvalidRequest, match="no name of a consumer"):
        client.resumable("orders", name)


@pytest.mark.parametrize("options", [{"commit_records": 0}, {"commit_s": -1.0}])
def test_resumable_refuses_options_that_make_no_sense(
    client: bottomless.Client, options: dict[str, int]
) -> None:
    with pytest.raises(InvalidRequest):
        client.resumable("orders", "billing", **options)


def test_resumable_refuses_a_stream_that_is_somebody_elses(
    client: bottomless.Client, stream: str
) -> None:
    client.create(f"_positions/taken/{stream}", "text/plain")
    with pytest.raises(Conflict):
        client.resumable(stream, "taken").next()


async def test_async_resumable_has_the_same_shape(server: ServerProcess) -> None:
    async with bottomless.connect_async(server.url) as client:
        await client.create("async")
        await client.append("async", *range(100))
        seen = []
        for _ in range(4):
            async with client.resumable("async", "billing") as consumer:
                async for record in consumer:
                    seen.append(record.value)
                    if len(seen) % 25 == 0:
                        break
        assert seen == list(range(100))
        last = await client.committed("async", "billing")
        assert last is not None
        assert last.position == (await client.info("async")).tail.replace("_", "")
        assert await client.committed("async", "nobody") is None


def test_resumable_fences_off_one_that_waits(client: bottomless.Client, stream: str) -> None:
    old = client.resumable(stream, "billing", commit_records=1)
    assert take(old, 10) == list(range(10))
    assert old.next(timeout_s=0.1) is None
    assert rest_of(client, stream) == []
    client.append(stream, 10)
    assert take(old, 1) == [10]
    with pytest.raises(Fenced):
        old.next(timeout_s=1)
    wait_until(lambda: rest_of(client, stream) == [10], "the new owner's place counts")
