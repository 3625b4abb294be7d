"""Appends whose outcome is told by a plain call: what an acknowledgement means is the same for
them, and none of them may stop the others.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import random
import weakref
from typing import TYPE_CHECKING

import pytest

from engine import errors
from engine.types import Ack, AppendRequest, AppendResult, ProducerStamp, StreamName
from engine.write.operations import AppendOperation
from tests.support.model import JSON, Lives, until
from tests.unit.test_races import Gate

if TYPE_CHECKING:
    from engine.errors import BottomlessError


class Told:
    """Appends by call, and what was told of them, in the order in which it was."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self.outcomes: list[tuple[bytes, AppendResult | BottomlessError]] = []

    def append(
        self,
        body: bytes,
        name: str = "s",
        *,
        producer: ProducerStamp | None = None,
        ack: Ack | None = None,
    ) -> bool:
        request = AppendRequest(JSON, body, producer=producer, ack=ack)
        return self._lives.log.append_soon(
            StreamName(name), request, lambda outcome: self.outcomes.append((body, outcome))
        )

    @property
    def bodies(self) -> list[bytes]:
        return [body for body, _ in self.outcomes]

    def kinds(self) -> set[type]:
        return {type(outcome) for _, outcome in self.outcomes}

    async def count(self, count: int) -> None:
        await until(lambda: len(self.outcomes) >= count, f"{count} outcomes")


@pytest.fixture
async def told(lives: Lives) -> Told:
    await lives.create("s")
    return Told(lives)


async def turns() -> None:
    """Whatever is ready to run has run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_call_comes_when_the_append_is_durable_and_can_be_read(
    lives: Lives, told: Told
) -> None:
    gate = Gate(lives.storage, "sync")
    assert told.append(b"1")
    await until(gate.entered.is_set)
    assert told.append(b"2")
    await turns()
    assert told.outcomes == []
    assert await lives.records("s") == []
    gate.open()
    await told.count(2)
    assert told.bodies == [b"1", b"2"]
    assert await lives.records("s") == [b"1", b"2"]


@pytest.mark.parametrize("seed", range(5))
async def test_call_tells_of_what_outlives_a_power_cut_at_that_moment(
    lives: Lives, seed: int
) -> None:
    await lives.create("s")
    acknowledged: list[bytes] = []

    def append(body: bytes) -> None:
        def cut(_: object) -> None:
            # From here on nothing reaches the disk.
            lives.storage.die()
            acknowledged.append(body)

        assert lives.log.append_soon(StreamName("s"), AppendRequest(JSON, body), cut)

    for body in (b"1", b"2", b"3"):
        append(body)
    await until(lambda: len(acknowledged) == 3)
    await lives.crash(random.Random(seed))
    assert await lives.records("s") == acknowledged == [b"1", b"2", b"3"]


async def test_calls_come_once_and_in_order(lives: Lives, told: Told) -> None:
    await lives.create("t")
    bodies = [b"%d" % number for number in range(100)]
    for number, body in enumerate(bodies):
        assert told.append(body, "st"[number % 2])
        if number % 7 == 0:
            await asyncio.sleep(0)
    await told.count(100)
    await turns()
    assert told.bodies == bodies
    assert await lives.records("s") == bodies[::2]
    assert await lives.records("t") == bodies[1::2]
    tails = [outcome.tail for _, outcome in told.outcomes]
    assert tails[::2] == sorted(set(tails[::2]))
    assert tails[-1] == lives.log.head(StreamName("t")).tail


async def test_call_does_not_wait_for_the_next_group(lives: Lives, told: Told) -> None:
    """The next group is with the disk when the answers go out; they tell of their own."""
    first = Gate(lives.storage, "sync")
    assert told.append(b"1")
    await until(first.entered.is_set)
    assert told.append(b"2")
    second = Gate(lives.storage, "write")
    first.open()
    await told.count(1)
    await until(second.entered.is_set)
    await turns()
    [(body, result)] = told.outcomes
    assert body == b"1"
    assert result.tail == lives.log.head(StreamName("s")).tail
    second.open()
    await told.count(2)
    assert await lives.records("s") == [b"1", b"2"]


@pytest.mark.parametrize("operation", ["sync", "write"])
async def test_calls_tell_that_the_disk_failed(lives: Lives, told: Told, operation: str) -> None:
    gate = Gate(lives.storage, operation)
    lives.storage.fail(operation, code=errno.ENOSPC)
    assert told.append(b"1", producer=ProducerStamp("p", 0, 0))
    await until(gate.entered.is_set)
    # Judged against what is about to fail.
    assert told.append(b"2", producer=ProducerStamp("p", 0, 1))
    gate.open()
    await told.count(2)
    await turns()
    assert told.bodies == [b"1", b"2"]
    assert told.kinds() == {errors.StorageUnavailable}
    told.outcomes.clear()
    assert told.append(b"1", producer=ProducerStamp("p", 0, 0))
    await told.count(1)
    # A disk that was full goes on; one that failed to sync has lost the right to acknowledge.
    is_well = operation == "write"
    assert told.kinds() == {AppendResult if is_well else errors.StorageUnavailable}
    assert await lives.records("s") == ([b"1"] if is_well else [])


async def test_call_that_fails_keeps_nobody_from_his(lives: Lives, told: Told) -> None:
    def fail(_: object) -> None:
        raise ValueError("the connection is broken")

    request = AppendRequest(JSON, b"0")
    for _ in range(2):
        assert told.append(b"1")
        waits = asyncio.create_task(lives.append("s", b"2"))
        await asyncio.sleep(0)
        assert lives.log.append_soon(StreamName("s"), request, fail)
        assert told.append(b"3")
        assert (await asyncio.wait_for(waits, 5)).count == 1
        await told.count(2)
        assert told.bodies == [b"1", b"3"]
        told.outcomes.clear()
        # And the same where the news is bad.
        lives.storage.fail("write", code=errno.ENOSPC)
        assert lives.log.append_soon(StreamName("s"), request, fail)
        assert told.append(b"4")
        await told.count(1)
        assert told.kinds() == {errors.StorageUnavailable}
        told.outcomes.clear()
    assert await lives.records("s") == [b"1", b"2", b"0", b"3"] * 2
    await lives.stop()
    await lives.start()
    assert await lives.records("s") == [b"1", b"2", b"0", b"3"] * 2


@pytest.mark.parametrize("method", ["encode", "apply"])
async def test_error_of_our_own_is_told_to_all_and_ends_the_right_to_acknowledge(
    lives: Lives, told: Told, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(operation: AppendOperation, *_: object) -> None:
        raise ArithmeticError(operation.payload_bytes)

    gate = Gate(lives.storage, "sync")
    assert told.append(b"1")
    await until(gate.entered.is_set)
    monkeypatch.setattr(AppendOperation, method, fail)
    assert told.append(b"2")
    assert told.append(b"3")
    gate.open()
    await told.count(3)
    monkeypatch.undo()
    assert not lives.log.is_ready
    assert told.append(b"4")
    await told.count(4)
    refused = told.outcomes if method == "apply" else told.outcomes[1:]
    assert {type(outcome) for _, outcome in refused} == {errors.StorageUnavailable}
    assert told.bodies == [b"1", b"2", b"3", b"4"]
    await lives.stop()
    await lives.start()
    assert lives.log.is_ready
    assert (await lives.records("s"))[0] == b"1"


async def test_cancelled_append_keeps_nobody_from_his(lives: Lives, told: Told) -> None:
    gate = Gate(lives.storage, "sync")
    assert told.append(b"1")
    gone = asyncio.create_task(lives.append("s", b"2"))
    await until(gate.entered.is_set)
    assert told.append(b"3")
    gone.cancel()
    await turns()
    gate.open()
    await told.count(2)
    assert told.bodies == [b"1", b"3"]
    assert await lives.records("s") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("is_full", [False, True])
async def test_call_may_append_more(lives: Lives, told: Told, is_full: bool) -> None:
    """As a connection does with the request that waits behind the one it answers."""
    await lives.create("t")
    answers: list[tuple[int, object]] = []

    def append(chain: int, seq: int) -> None:
        def answer(outcome: object) -> None:
            answers.append((chain, seq))
            if seq < 19:
                # After a failure the same again: nothing of it may be remembered.
                append(chain, seq + isinstance(outcome, AppendResult))

        stamp = ProducerStamp(f"p{chain}", 0, seq)
        request = AppendRequest(JSON, b"%d" % (100 * chain + seq), producer=stamp)
        assert lives.log.append_soon(StreamName("st"[chain % 2]), request, answer)

    if is_full:
        lives.storage.fail("write", code=errno.ENOSPC, nth=3, times=4)
    for chain in range(8):
        append(chain, 0)
    await until(lambda: len({pair for pair in answers if pair[1] == 19}) == 8)
    assert (len(answers) > 160) == is_full
    for remainder, name in enumerate("st"):
        found = [int(record) for record in await lives.records(name)]
        for chain in range(remainder, 8, 2):
            own = [number % 100 for number in found if number // 100 == chain]
            assert own == list(range(20))


async def test_stop_tells_of_what_is_under_way_and_takes_no_more(lives: Lives, told: Told) -> None:
    more: list[BottomlessError] = []

    def append_more(outcome: object) -> None:
        assert isinstance(outcome, AppendResult)
        try:
            told.append(b"4")
        except errors.StorageUnavailable as error:
            more.append(error)

    gate = Gate(lives.storage, "sync")
    assert told.append(b"1")
    await until(gate.entered.is_set)
    assert lives.log.append_soon(StreamName("s"), AppendRequest(JSON, b"2"), append_more)
    assert told.append(b"3")
    stopping = asyncio.create_task(lives.stop())
    refused: list[BottomlessError] = []

    def is_refused() -> bool:
        """The stop waits for the housekeeper first, and appends are taken so long."""
        try:
            told.append(b"5")
        except errors.StorageUnavailable as error:
            refused.append(error)
        return bool(refused)

    await until(is_refused)
    gate.open()
    await stopping
    assert told.bodies[:2] == [b"1", b"3"]
    assert set(told.bodies[2:]) <= {b"5"}
    assert told.kinds() == {AppendResult}
    assert len(more) == 1
    await lives.start()
    assert await lives.records("s") == [b"1", b"2", *told.bodies[1:]]


@pytest.mark.parametrize("is_full", [False, True])
async def test_call_that_was_made_is_forgotten(lives: Lives, told: Told, is_full: bool) -> None:
    """Without the help of the garbage collector, which the server lets run seldom: bodies of 64 KiB
    and connections that are closed would wait for it by the thousand.
    """

    class Answer:
        def __call__(self, outcome: object) -> None:
            told.outcomes.append((b"", outcome))

    if is_full:
        lives.storage.fail("write", code=errno.ENOSPC)
    gc.disable()
    try:
        answers = [Answer() for _ in range(10)]
        alive = [weakref.ref(answer) for answer in answers]
        while answers:
            request = AppendRequest(JSON, b"1")
            assert lives.log.append_soon(StreamName("s"), request, answers.pop())
        await told.count(10)
        await turns()
        assert told.kinds() == {errors.StorageUnavailable if is_full else AppendResult}
        assert [one for one in alive if one() is not None] == []
    finally:
        gc.enable()


async def test_call_is_not_made_for_what_was_not_taken(lives: Lives, told: Told) -> None:
    stamp = ProducerStamp("p", 0, 0)
    assert told.append(b"1", producer=stamp)
    assert not told.append(b"1", producer=stamp)
    assert not told.append(b"2", ack=Ack.TABLE)
    with pytest.raises(errors.SequenceGap):
        told.append(b"2", producer=ProducerStamp("p", 0, 2))
    with pytest.raises(errors.BadJson):
        told.append(b"[")
    with pytest.raises(errors.StreamNotFound):
        told.append(b"1", "none")
    await told.count(1)
    await turns()
    assert told.bodies == [b"1"]
    assert await lives.records("s") == [b"1"]
