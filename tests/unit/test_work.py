"""The range a member works on: when the heartbeat may say that it is handled."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, cast

import pytest

from bottomless.assignment import Range
from bottomless.backoff import Retry
from bottomless.consumer import Record
from bottomless.work import Work

if TYPE_CHECKING:
    from bottomless.transport import Transport


class NoTransport:
    retry = Retry()


class Watched(deque[Any]):
    """The heartbeat looks at the worst moments: right before and after a value leaves."""

    work: Work

    def popleft(self) -> Any:
        assert not self.work.is_handled
        value = super().popleft()
        assert not self.work.is_handled, "it is in hand, not handled"
        return value


@pytest.fixture
def work() -> Work:
    """Three records, all loaded."""
    made = Work(cast("Transport", NoTransport()), "orders", Range("-", "3", 3, at="-"))
    made._is_loaded = True
    made.ready = Watched(Record(n, b"", str(n), str(n)) for n in (1, 2, 3))
    made.ready.work = made
    return made


@pytest.mark.parametrize("count", [1, 2, 3, None])
def test_work_is_handled_only_when_the_program_comes_back(work: Work, count: int | None) -> None:
    taken = 0
    while taken < 3:
        work.settle()
        assert not work.is_handled
        taken += len(work.take(count))
        assert work.position == str(taken)
        assert not work.is_handled
    work.settle()
    assert work.is_handled
    assert (work.handled, work.position) == ("3", "3")
    assert work.take(count) == []


def test_work_that_failed_is_never_handled(work: Work) -> None:
    work.take(2)
    work.settle()
    work.take(1)
    work.forget()
    work.settle()
    assert not work.is_handled
    assert work.handled == "2"
