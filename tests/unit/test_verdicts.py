"""What an answer says is durable, a refusal's reason too: whoever was told finds it so from then,
also after a crash. Found by the checker of histories.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from engine import errors
from engine.types import ProducerStamp
from tests.support.model import until
from tests.unit.test_races import Gate

if TYPE_CHECKING:
    from tests.support.model import Lives

# What is on its way, what is asked meanwhile, and the refusal that rests on the former.
CASES = {
    "closed": ({"body": b"1", "close": True}, {"body": b"2"}, errors.StreamClosed),
    "stream sequence": (
        {"body": b"1", "stream_seq": "2"},
        {"body": b"2", "stream_seq": "1"},
        errors.SequenceRegressed,
    ),
    "version": ({"body": b"1", "fence": 2}, {"body": b"2", "fence": 1}, errors.VersionTooOld),
    "gap": (
        {"body": b"1", "producer": ProducerStamp("p", 0, 0)},
        {"body": b"2", "producer": ProducerStamp("p", 0, 2)},
        errors.SequenceGap,
    ),
    "epoch": (
        {"body": b"1", "producer": ProducerStamp("p", 1, 0)},
        {"body": b"2", "producer": ProducerStamp("p", 0, 0)},
        errors.StaleEpoch,
    ),
}


async def stay_open(*tasks: asyncio.Task) -> None:
    """None of these may be answered yet."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


@pytest.mark.parametrize("case", CASES)
async def test_refusal_waits_until_its_reason_is_durable(lives: Lives, case: str) -> None:
    first, second, error = CASES[case]
    await lives.create("s")
    gate = Gate(lives.storage, "sync")
    cause = asyncio.create_task(lives.append("s", **first))
    await until(gate.entered.is_set)
    refused = asyncio.create_task(lives.append("s", **second))
    await stay_open(refused)
    gate.open()
    await cause
    with pytest.raises(error):
        await refused


@pytest.mark.parametrize("case", CASES)
async def test_refusal_is_not_told_if_its_reason_fails(lives: Lives, case: str) -> None:
    first, second, _ = CASES[case]
    await lives.create("s")
    gate = Gate(lives.storage, "write")
    cause = asyncio.create_task(lives.append("s", **first))
    await until(gate.entered.is_set)
    refused = asyncio.create_task(lives.append("s", **second))
    await stay_open(refused)
    lives.storage.fail("write")
    gate.open()
    for task in (cause, refused):
        with pytest.raises(errors.StorageUnavailable):
            await task
    assert await lives.content("s") == b"[]"


async def test_absence_is_told_when_the_delete_is_durable(lives: Lives) -> None:
    await lives.create("s")
    gate = Gate(lives.storage, "sync")
    cause = asyncio.create_task(lives.log.delete("s"))
    await until(gate.entered.is_set)
    calls = (lives.append("s", b"1"), lives.log.delete("s"), lives.fork("f", "s"))
    refused = [asyncio.create_task(call) for call in calls]
    await stay_open(*refused)
    assert lives.log.head("s").name == "s"
    gate.open()
    await cause
    for task in refused:
        with pytest.raises(errors.StreamNotFound):
            await task


async def test_conflict_of_a_create_is_told_when_the_other_one_is_durable(lives: Lives) -> None:
    gate = Gate(lives.storage, "sync")
    cause = asyncio.create_task(lives.create("s"))
    await until(gate.entered.is_set)
    refused = asyncio.create_task(lives.create("s", "text/plain"))
    await stay_open(refused)
    gate.open()
    await cause
    with pytest.raises(errors.StreamExists):
        await refused


async def test_refusal_of_a_closed_stream_tells_where_it_ends(lives: Lives) -> None:
    """Not where it ended before the records that were on their way with the close."""
    await lives.create("s")
    await lives.create("other")
    gate = Gate(lives.storage, "sync")
    under_way = asyncio.create_task(lives.append("other", b"0"))
    await until(gate.entered.is_set)
    closing = asyncio.create_task(lives.append("s", b"1", close=True))
    refused = asyncio.create_task(lives.append("s", b"2"))
    await stay_open(closing, refused)
    gate.open()
    await under_way
    tail = (await closing).tail
    with pytest.raises(errors.StreamClosed) as refusal:
        await refused
    assert refusal.value.tail == tail


async def test_create_tells_the_tail_of_its_own_records(lives: Lives) -> None:
    """Not that of an append which shares its group."""
    await lives.create("other")
    gate = Gate(lives.storage, "sync")
    under_way = asyncio.create_task(lives.append("other", b"0"))
    await until(gate.entered.is_set)
    creating = asyncio.create_task(lives.create("s", body=b"[1,2]"))
    await stay_open(creating)
    appending = asyncio.create_task(lives.append("s", b"3", content_type="application/json"))
    await stay_open(creating, appending)
    gate.open()
    await under_way
    created, appended = await creating, await appending
    assert created.tail == appended.tail - 1


async def test_duplicate_of_a_stream_closed_meanwhile_is_refused_as_closed(lives: Lives) -> None:
    stamp = ProducerStamp("p", 0, 0)
    await lives.create("s")
    await lives.append("s", b"1", producer=stamp)
    await lives.create("other")
    gate = Gate(lives.storage, "sync")
    under_way = asyncio.create_task(lives.append("other", b"0"))
    await until(gate.entered.is_set)
    next_group = asyncio.create_task(lives.append("other", b"1"))
    await stay_open(next_group)
    again = asyncio.create_task(lives.append("s", b"1", producer=stamp))
    await stay_open(again)
    closing = asyncio.create_task(lives.close("s"))
    await stay_open(again, closing)
    gate.open()
    await under_way
    await next_group
    await closing
    with pytest.raises(errors.StreamClosed):
        await again
