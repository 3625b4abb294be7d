"""Settings of one stream, its version fence, acks of the table: through whatever happens."""

from __future__ import annotations

import asyncio
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from engine import errors
from engine.settings import load_declarations
from engine.storage import LocalStorage
from engine.table.replay import load_state
from engine.types import Ack, Offset, ProducerStamp, StreamName
from engine.write.state import settings_of
from jobs.common.settings import load_settings
from jobs.common.tables import find_table
from tests.support.model import INTERVAL_MS, SMALL, Lives, until

if TYPE_CHECKING:
    from pathlib import Path

NAME = StreamName("s")
WAYS = ["running", "restart", "rebuild", "crash", "power cut"]


async def survive(lives: Lives, way: str) -> None:
    """What a stream has to come through."""
    if way == "restart":
        await lives.restart()
    elif way == "rebuild":
        await lives.restart(without_wal=True)
    elif way == "crash":
        await lives.crash()
    elif way == "power cut":
        await lives.crash(random.Random(7))


async def change(lives: Lives, **patch: Any) -> None:
    await lives.log.change_settings(NAME, patch)


# Settings.


@pytest.mark.parametrize("way", WAYS)
async def test_settings_survive(lives: Lives, way: str):
    await lives.create("s")
    await lives.append("s", b"1")
    await change(lives, ack="table", commit={"interval_ms": 20}, retain={"records": 5})
    await change(lives, ack=None, commit={"bytes": 4096}, retain={"records": None, "bytes": 9})
    await survive(lives, way)
    settings, _ = lives.log.stream_settings(NAME)
    assert settings.model_dump(exclude_none=True) == {
        "commit": {"interval_ms": 20, "bytes": 4096},
        "compact": {},
        "retain": {"bytes": 9},
    }


async def test_settings_reach_the_table_for_the_jobs(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"1")
    await lives.commit("s")
    await change(lives, retain={"age_seconds": 60})
    await until(lambda: lives.clock.advance(INTERVAL_MS) or _stored_age(lives) == 60)


async def test_settings_of_the_jobs_come_from_flag_stream_file_and_defaults(lives: Lives):
    config = lives.folder / "bottomless.toml"
    config.write_text("[retain]\nrecords = 1\nbytes = 1\nage_seconds = 1\nvacuum_hours = 1\n")
    (lives.folder / "streams.toml").write_text(
        "['*'.retain]\nbytes = 2\nage_seconds = 2\nvacuum_hours = 2\n"
    )
    await lives.create("s")
    await change(lives, retain={"age_seconds": 3, "vacuum_hours": 3})
    await lives.append("s", b"1")
    await lives.commit("s")

    table = find_table(LocalStorage(lives.root), "s")
    found = load_settings(config, lives.root).retain(table, {"vacuum_hours": 4})

    values = (found.records, found.bytes, found.age_seconds, found.vacuum_hours)
    assert values == (1, 2, 3, 4)


def _stored_age(lives: Lives) -> int | None:
    return settings_of(load_state(LocalStorage(lives.root), "s")).retain.age_seconds


@pytest.mark.parametrize(
    "patch",
    [
        {"ack": "soon"},
        {"nothing": 1},
        {"commit": {"interval_ms": 1}},
        {"commit": {"interval_ms": "x"}},
        {"commit": {"pages": 1}},
        {"commit": 5},
        {"ack": {}},
        {"retain": {"vacuum_hours": 169}},
        {"retain": []},
    ],
)
async def test_settings_that_are_wrong_are_refused_and_change_nothing(
    lives: Lives, patch: dict[str, Any]
):
    await lives.create("s")
    await change(lives, commit={"interval_ms": 20})
    with pytest.raises(errors.BadSetting):
        await change(lives, **patch)
    assert lives.log.stream_settings(NAME)[0].commit.interval_ms == 20


async def test_settings_of_a_commit_interval_are_in_force_at_once(lives: Lives):
    for name, interval_ms in (("s", 1000), ("slow", 3_600_000), ("plain", None)):
        await lives.create(name)
        patch = {"commit": {"interval_ms": interval_ms}}
        await lives.log.change_settings(StreamName(name), patch)
        await lives.append(name, b"1")
    lives.clock.advance(INTERVAL_MS)
    await until(lambda: _committed_records(lives, "plain") == 1)
    assert (_committed_records(lives, "s"), _committed_records(lives, "slow")) == (0, 0)
    lives.clock.advance(1000)
    await until(lambda: _committed_records(lives, "s") == 1)
    assert _committed_records(lives, "slow") == 0
    assert lives.log._committer.lag_seconds() > 1
    await lives.log.change_settings(StreamName("slow"), {"commit": {"interval_ms": None}})
    await lives.commit("slow")
    assert _committed_records(lives, "slow") == 1


def _committed_records(lives: Lives, name: str) -> int:
    if not lives.storage.exists(f"{name}/_delta_log"):
        return 0
    return load_state(LocalStorage(lives.root), name).records


async def test_settings_of_commit_bytes_are_in_force(lives: Lives):
    await lives.create("s")
    await change(lives, commit={"bytes": 4096, "interval_ms": 3_600_000})
    await lives.append("s", b'"%b"' % (b"x" * 5000))
    await until(lambda: _committed_records(lives, "s") == 1)


@pytest.mark.parametrize("way", WAYS)
async def test_settings_are_inherited_from_declarations(root: Path, way: str):
    (root / "streams.toml").write_text(
        '["*"]\nack = "table"\nretain.records = 7\n["s*".commit]\ninterval_ms = 50\n'
        '[other]\nack = "wal"\n'
    )
    declared = load_declarations(root / "streams.toml")
    lives = Lives(root, SMALL.model_copy(update={"streams": declared}))
    await lives.start()
    try:
        await lives.create("s")
        await lives.log.change_settings(NAME, {"retain": {"records": 3}})
        await survive(lives, way)
        own, in_force = lives.log.stream_settings(NAME)
        assert own.model_dump(exclude_defaults=True) == {"retain": {"records": 3}}
        assert in_force.ack == "table"
        assert (in_force.commit.interval_ms, in_force.retain.records) == (50, 3)
        assert (await lives.append("s", b"1")).ack is Ack.TABLE
    finally:
        await lives.bury()


@pytest.mark.parametrize(
    "text",
    ["[s]\nack = 5", "[s]\ncolour = 'red'", "['s*']\ncontent_type = 'text/plain'", "[s", "s = 5"],
)
def test_declarations_that_are_wrong_say_where(root: Path, text: str):
    (root / "streams.toml").write_text(text)
    with pytest.raises(ValueError, match=r"streams\.toml"):
        load_declarations(root / "streams.toml")


# Fencing by version.


@pytest.mark.parametrize("way", WAYS)
async def test_fence_survives(lives: Lives, way: str):
    await lives.create("s")
    await lives.append("s", b"1", fence=3)
    await survive(lives, way)
    with pytest.raises(errors.VersionTooOld) as caught:
        await lives.append("s", b"2", fence=2)
    assert (caught.value.current, caught.value.provided) == (3, 2)
    await lives.append("s", b"3", fence=3)
    await lives.append("s", b"4")
    assert await lives.records("s") == [b"1", b"3", b"4"]
    assert lives.log.head(NAME).fence == 3


async def test_fence_is_raised_without_records(lives: Lives):
    await lives.create("s")
    await lives.append("s", b"", fence=5)
    await lives.crash()
    with pytest.raises(errors.VersionTooOld):
        await lives.append("s", b"1", fence=4)
    assert await lives.records("s") == []


async def test_fence_on_its_way_already_counts(lives: Lives):
    """Whoever is answered after the higher version was, was judged by it."""
    await lives.create("s")
    outcomes = await asyncio.gather(
        *(lives.append("s", b"%d" % fence, fence=fence) for fence in (1, 2, 1, 2)),
        return_exceptions=True,
    )
    assert isinstance(outcomes[2], errors.VersionTooOld)
    assert await lives.records("s") == [b"1", b"2", b"2"]


async def test_fence_that_was_not_made_durable_does_not_count(lives: Lives):
    await lives.create("s")
    lives.storage.fail("sync")
    with pytest.raises(errors.Unavailable):
        await lives.append("s", b"1", fence=9)
    assert lives.log.head(NAME).fence == 0


# Acks of the table.


async def test_table_ack_means_durable_in_the_table(lives: Lives):
    """The write-ahead log is lost, and so is everything of the tables that was not synced."""
    await lives.create("s")
    result = await lives.append("s", b"[1,2]", ack=Ack.TABLE)
    assert (result.ack, result.count) == (Ack.TABLE, 2)
    await lives.die(random.Random(3))
    shutil.rmtree(lives.root / "_wal")
    await lives.start()
    assert await lives.records("s") == [b"1", b"2"]


async def test_table_ack_by_setting_and_back_by_request(lives: Lives):
    await lives.create("s")
    await change(lives, ack="table")
    assert (await lives.append("s", b"1")).ack is Ack.TABLE
    assert (await lives.append("s", b"2", ack=Ack.WAL)).ack is Ack.WAL
    assert _committed_records(lives, "s") == 1


async def test_table_ack_fails_with_the_commit_and_a_producer_may_repeat_it(lives: Lives):
    stamp = ProducerStamp("p", 0, 0)
    await lives.create("s")
    await lives.append("s", b"0", ack=Ack.TABLE)
    lives.storage.fail("put_if_absent", times=100)
    with pytest.raises(errors.Unavailable):
        await lives.append("s", b"1", ack=Ack.TABLE, producer=stamp)
    assert await lives.records("s") == [b"0", b"1"], "it is durable in the log all the same"
    lives.storage.heal()
    again = asyncio.ensure_future(lives.append("s", b"1", ack=Ack.TABLE, producer=stamp))
    await until(lambda: lives.clock.advance(INTERVAL_MS) or again.done())
    assert (await again).duplicate
    assert _committed_records(lives, "s") == 2


async def test_table_ack_fails_where_the_sync_does(lives: Lives):
    await lives.create("s")
    lives.storage.fail("sync_all")
    with pytest.raises(errors.Unavailable):
        await lives.append("s", b"1", ack=Ack.TABLE)
    assert not lives.log.is_ready
    with pytest.raises(errors.Unavailable):
        await lives.append("s", b"2", ack=Ack.TABLE)


# Single records, lists, streams that are waited for.


async def test_records_come_one_by_one_with_their_offsets(lives: Lives):
    await lives.create("s")
    expected = []
    for number in range(12):
        records = [b"%d" % (10 * number + index) for index in range(number % 4 + 1)]
        result = await lives.append("s", b"[%b]" % b",".join(records))
        first = result.tail - result.count + 1
        expected += [(first + index, record) for index, record in enumerate(records)]
        if number % 5 == 4:
            await lives.commit("s")
    for count in (1, 3, 7, 100):
        found: list[tuple[Offset, bytes]] = []
        position = Offset(0)
        while True:
            page = await lives.log.read_records(NAME, position, count_max=count, bytes_max=1000)
            if not page.records:
                break
            assert len(page.records) <= count
            found += page.records
            position = page.records[-1][0]
        assert found == expected


async def test_streams_are_listed_in_pages_with_their_sizes(lives: Lives):
    for name in ("b", "a/2", "a/1", "c", "a/3"):
        await lives.create(name)
    await lives.append("a/2", b"[1,2,3]")
    await lives.commit("a/2")
    await lives.append("a/2", b"[4]")
    await lives.restart()
    first = await lives.log.list_streams(prefix="a/", count_max=2)
    second = await lives.log.list_streams(prefix="a/", after=first[-1].info.name, count_max=2)
    assert [one.info.name for one in first + second] == ["a/1", "a/2", "a/3"]
    assert [one.records for one in first + second] == [0, 4, 0]
    assert first[1].bytes > 0
    assert first[1].last_append_ms is not None
    assert first[0].last_append_ms is None
    assert [one.info.name for one in await lives.log.list_streams()] == [
        "a/1",
        "a/2",
        "a/3",
        "b",
        "c",
    ]


async def test_stream_can_be_waited_for(lives: Lives):
    waiting = asyncio.ensure_future(lives.log.wait_for_stream(NAME, 10_000))
    await asyncio.sleep(0)
    await lives.create("s")
    assert await waiting
    assert await lives.log.wait_for_stream(NAME, 0)
    assert not await lives.log.wait_for_stream(StreamName("never"), 10)
