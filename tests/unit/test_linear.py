"""The checker of histories: what it must refuse beside what it must take, and the same verdict as a
search that leaves out nothing, on thousands of small histories.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.support.linear import START, Answer, Linearizer, Operation, check_linearizable
from tests.support.load import LogBroken

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED = 20_261_119
HISTORIES = 6_000


def create(call: float, end: float, tail: int) -> Operation:
    return Operation("create", call, end, Answer("ok", tail))


def append(call: float, end: float, record: str, tail: int, **more) -> Operation:
    return Operation("append", call, end, Answer("ok", tail), records=(record,), **more)


def lost(call: float, record: str, **more) -> Operation:
    """An append without an answer."""
    return Operation("append", call, records=(record,), **more)


def close(call: float, end: float, tail: int) -> Operation:
    answer = Answer("ok", tail, is_closed=True)
    return Operation("append", call, end, answer, closes=True)


def refused(call: float, end: float, status: str, record: str = "x", **more) -> Operation:
    tail = more.pop("tail", None)
    answer = Answer(status, tail, is_closed=status == "closed", version=more.pop("current", None))
    return Operation("append", call, end, answer, records=(record,), **more)


def head(call: float, end: float, tail: int, *, is_closed: bool = False) -> Operation:
    return Operation("head", call, end, Answer("ok", tail, is_closed=is_closed))


def read(call: float, end: float, records: str, tail: int, **more) -> Operation:
    answer = Answer("ok", tail, tuple(records), more.pop("is_closed", False))
    return Operation("read", call, end, answer, position=more.pop("position", START))


def missing(call: float, end: float, kind: str = "head") -> Operation:
    return Operation(kind, call, end, Answer("missing"))


def delete(call: float, end: float) -> Operation:
    return Operation("delete", call, end, Answer("ok"))


# Every history begins with create(0, 1, 10). Each pair: one that has an order, one that has none.
CASES = {
    "stale tail": (
        [append(2, 5, "a", 11), head(4, 6, 10)],
        [append(2, 3, "a", 11), head(4, 6, 10)],
    ),
    "stale read": (
        [append(2, 5, "a", 11), read(4, 6, "", 10)],
        [append(2, 3, "a", 11), read(4, 6, "", 10)],
    ),
    "acknowledged, then not visible behind its position": (
        [append(2, 3, "a", 11), append(4, 7, "b", 12), read(6, 8, "", 11, position=11)],
        [append(2, 3, "a", 11), append(4, 5, "b", 12), read(6, 8, "", 11, position=11)],
    ),
    "seen once, then gone": (
        [lost(2, "a"), read(3, 4, "", 10), read(5, 6, "a", 11)],
        [lost(2, "a"), read(3, 4, "a", 11), read(5, 6, "", 10)],
    ),
    "seen by one client, not by the next": (
        [append(2, 9, "a", 11), read(3, 6, "a", 11), read(5, 7, "", 10)],
        [append(2, 9, "a", 11), read(3, 4, "a", 11), read(5, 7, "", 10)],
    ),
    "tail told, then the log without it": (
        [lost(2, "a"), head(3, 6, 11), read(5, 7, "", 10)],
        [lost(2, "a"), head(3, 4, 11), read(5, 7, "", 10)],
    ),
    "unacknowledged, absent, then before what came later": (
        [lost(2, "a"), append(3, 6, "b", 12), read(5, 7, "", 10), read(8, 9, "ab", 12)],
        [lost(2, "a"), append(3, 4, "b", 11), read(5, 7, "b", 11), read(8, 9, "ab", 12)],
    ),
    "unacknowledged, before it was sent": (
        [read(2, 5, "a", 11), lost(4, "a")],
        [read(2, 3, "a", 11), lost(4, "a")],
    ),
    "append after an acknowledged close": (
        [close(2, 5, 11), append(4, 6, "a", 11)],
        [close(2, 3, 10), append(4, 6, "a", 11)],
    ),
    "refused as closed before it is": (
        [close(2, 5, 10), refused(3, 4, "closed", tail=10)],
        [append(2, 5, "a", 11), refused(3, 4, "closed", tail=10)],
    ),
    "refused as closed, then open": (
        [close(2, 9, 10), refused(3, 6, "closed", tail=10), head(5, 7, 10)],
        [close(2, 9, 10), refused(3, 4, "closed", tail=10), head(5, 7, 10)],
    ),
    "closed at another tail": (
        [append(2, 3, "a", 11), close(4, 5, 11), refused(6, 7, "closed", tail=11)],
        [append(2, 3, "a", 11), close(4, 5, 11), refused(6, 7, "closed", tail=10)],
    ),
    "closed, then open": (
        [close(2, 5, 10), read(4, 7, "", 10)],
        [close(2, 3, 10), read(4, 7, "", 10)],
    ),
    "lost ack": (
        [append(2, 3, "a", 11), append(4, 5, "b", 12), read(6, 7, "ab", 12)],
        [append(2, 3, "a", 11), append(4, 5, "b", 12), read(6, 7, "b", 12)],
    ),
    "duplicate": (
        [append(2, 3, "a", 11), read(4, 5, "a", 11)],
        [append(2, 3, "a", 11), read(4, 5, "aa", 12)],
    ),
    "never sent": (
        [append(2, 3, "a", 11), read(4, 5, "a", 11)],
        [append(2, 3, "a", 11), read(4, 5, "az", 12)],
    ),
    "order of records against time": (
        [append(2, 5, "b", 12), append(4, 6, "a", 11), read(7, 8, "ab", 12)],
        [append(2, 3, "b", 12), append(4, 6, "a", 11), read(7, 8, "ab", 12)],
    ),
    "order of offsets against records": (
        [append(2, 5, "a", 11), append(4, 6, "b", 12), read(7, 8, "ab", 12)],
        [append(2, 5, "a", 12), append(4, 6, "b", 11), read(7, 8, "ab", 12)],
    ),
    "no room between two offsets": (
        [append(2, 3, "a", 11), lost(2, "b"), append(4, 5, "c", 13), read(6, 7, "abc", 13)],
        [append(2, 3, "a", 11), lost(2, "b"), append(4, 5, "c", 12), read(6, 7, "abc", 12)],
    ),
    "tail goes back": (
        [lost(2, "a"), head(3, 6, 12), head(5, 7, 10)],
        [lost(2, "a"), head(3, 4, 12), head(5, 7, 10)],
    ),
    "tail changes though nothing is appended": (
        [lost(2, "a"), head(3, 4, 12), head(5, 7, 12)],
        [lost(2, "a"), head(3, 4, 12), head(5, 7, 13)],
    ),
    "Stream-Seq goes back": (
        [append(2, 5, "a", 12, seq="2"), append(4, 6, "b", 11, seq="1")],
        [append(2, 3, "a", 11, seq="2"), append(4, 6, "b", 12, seq="1")],
    ),
    "Stream-Seq is refused though it rises": (
        [append(2, 5, "a", 11, seq="2"), refused(3, 4, "regressed", seq="2")],
        [append(2, 3, "a", 11, seq="2"), refused(4, 5, "regressed", seq="3")],
    ),
    "Stream-Seq is refused because of what never was": (
        [lost(2, "a", seq="2"), refused(3, 4, "regressed", seq="1"), read(5, 6, "a", 11)],
        [lost(2, "a", seq="2"), refused(3, 4, "regressed", seq="1"), read(5, 6, "", 10)],
    ),
    "an old version behind a new one": (
        [append(2, 5, "a", 12, version=2), append(4, 6, "b", 11, version=1)],
        [append(2, 3, "a", 11, version=2), append(4, 6, "b", 12, version=1)],
    ),
    "another version is told": (
        [append(2, 3, "a", 11, version=2), refused(4, 5, "fenced", version=1, current=2)],
        [append(2, 3, "a", 11, version=2), refused(4, 5, "fenced", version=1, current=3)],
    ),
    "a producer's retry is stored again": (
        [lost(2, "a", producer=("p", 0)), append(3, 4, "a", 11, producer=("p", 0))],
        [
            append(2, 3, "a", 11, producer=("p", 0)),
            append(4, 5, "a", 12, producer=("p", 0)),
        ],
    ),
    "a producer's retry is called a duplicate and is not there": (
        [
            lost(2, "a", producer=("p", 0)),
            refused(3, 4, "duplicate", "a", tail=11, producer=("p", 0)),
            read(5, 6, "a", 11),
        ],
        [
            lost(2, "a", producer=("p", 0)),
            refused(3, 4, "duplicate", "a", tail=10, producer=("p", 0)),
            read(5, 6, "", 10),
        ],
    ),
    "a producer leaves out a number": (
        [append(2, 3, "a", 11, producer=("p", 0)), refused(4, 5, "gap", producer=("p", 2))],
        [append(2, 3, "a", 11, producer=("p", 0)), append(4, 5, "b", 12, producer=("p", 2))],
    ),
    "deleted, then there": (
        [delete(2, 5), head(4, 6, 10)],
        [delete(2, 3), head(4, 6, 10)],
    ),
    "missing, then there": (
        [delete(2, 9), missing(3, 6), head(5, 7, 10)],
        [delete(2, 9), missing(3, 4), head(5, 7, 10)],
    ),
    "old records in a new stream": (
        [append(2, 3, "a", 11), delete(4, 5), create(6, 7, 20), read(8, 9, "", 20)],
        [append(2, 3, "a", 11), delete(4, 5), create(6, 7, 20), read(8, 9, "a", 20)],
    ),
    "offsets go back with a new stream": (
        [append(2, 3, "a", 11), delete(4, 5), create(6, 7, 12)],
        [append(2, 3, "a", 11), delete(4, 5), create(6, 7, 11)],
    ),
    "created twice": (
        [delete(2, 3), create(4, 7, 20), Operation("create", 5, 6, Answer("exists", 20))],
        [delete(2, 3), create(4, 7, 20), create(5, 6, 20)],
    ),
    "a delete without an answer comes back": (
        [Operation("delete", 2), head(3, 4, 10), missing(5, 6)],
        [Operation("delete", 2), missing(3, 4), head(5, 6, 10)],
    ),
    "an append to a stream that is gone": (
        [delete(2, 5), append(4, 6, "a", 11)],
        [delete(2, 3), append(4, 6, "a", 11)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_checker_takes_a_history_that_has_an_order(case: str) -> None:
    check_linearizable("s", [create(0, 1, 10), *CASES[case][0]])


@pytest.mark.parametrize("case", CASES)
def test_checker_refuses_a_history_that_has_none(case: str) -> None:
    with pytest.raises(LogBroken):
        check_linearizable("s", [create(0, 1, 10), *CASES[case][1]])


@pytest.mark.parametrize("case", CASES)
def test_plain_search_says_the_same(case: str) -> None:
    begin = create(0, 1, 10)
    assert [has_order([begin, *history]) for history in CASES[case]] == [True, False]


def test_checker_does_not_take_positions_that_nobody_was_told() -> None:
    with pytest.raises(ValueError, match="nobody has told"):
        check_linearizable("s", [create(0, 1, 10), read(2, 3, "", 10, position=7)])


def test_checker_is_quick_with_many_unknown_outcomes() -> None:
    """Forty appends without an answer, twenty of which took effect, and one stale tail."""
    history = [create(0, 1, 100), *(lost(2 + i / 100, f"l{i}") for i in range(40))]
    log, tail = [], 100
    for i in range(60):
        log += [f"l{i}"] if i < 20 else []
        log.append(f"a{i}")
        tail = 100 + len(log)
        history.append(append(10 + i, 10.5 + i, f"a{i}", tail))
        answer = Answer("ok", tail, tuple(log))
        history.append(Operation("read", 10.6 + i, 10.7 + i, answer, position=START))
    check_linearizable("s", history)
    with pytest.raises(LogBroken):
        check_linearizable("s", [*history, head(99, 100, tail - 1)])


@pytest.mark.parametrize("part", range(6))
def test_checker_and_plain_search_agree(part: int) -> None:
    rng = random.Random(SEED + part)
    verdicts = {True: 0, False: 0}
    for _ in range(HISTORIES // 6):
        history = make_history(rng)
        assert is_linearizable(history), history
        assert has_order(history), history
        damaged = damage(rng, history)
        if damaged is None:
            continue
        verdict = has_order(damaged)
        assert is_linearizable(damaged) == verdict, damaged
        verdicts[verdict] += 1
    # The comparison was worth something.
    assert min(verdicts.values()) > HISTORIES // 60, verdicts


def is_linearizable(history: list[Operation]) -> bool:
    try:
        return Linearizer(history).run()
    except LogBroken:
        return False


# A log whose offsets are all decided, and a search that leaves out nothing.


@dataclass(frozen=True)
class Plain:
    """A stream, or none."""

    log: tuple[tuple[int, str], ...] = ()
    tail: int = 0
    exists: bool = False
    is_closed: bool = False
    seq: str = ""
    version: int = 0
    producers: tuple[tuple[str, int], ...] = ()


def does(state: Plain, operation: Operation, tail: int) -> tuple[Plain, Answer]:
    """What happens, and what is said; a stream that grows or begins then ends at ``tail``."""
    if operation.kind == "create":
        if state.exists:
            return state, Answer("conflict") if state.is_closed else Answer("exists", state.tail)
        begun = Plain(place(operation, tail), tail, exists=True, is_closed=operation.closes)
        return begun, Answer("ok", tail, is_closed=operation.closes)
    if not state.exists:
        return state, Answer("missing")
    if operation.kind == "delete":
        return Plain(tail=state.tail), Answer("ok")
    if operation.kind == "append":
        return appends(state, operation, tail)
    shown = Answer("ok", state.tail, is_closed=state.is_closed)
    if operation.kind == "read" and operation.position is not None:
        records = [record for offset, record in state.log if offset > operation.position]
        shown = replace(shown, records=tuple(records))
    return state, shown


def appends(state: Plain, operation: Operation, tail: int) -> tuple[Plain, Answer]:
    if state.is_closed:
        return state, Answer("closed" if operation.records else "ok", state.tail, is_closed=True)
    if operation.version is not None and operation.version < state.version:
        return state, Answer("fenced", version=state.version)
    if operation.producer is not None:
        id_, number = operation.producer
        last = dict(state.producers).get(id_, -1)
        if number <= last:
            return state, Answer("duplicate", state.tail)
        if number > last + 1:
            return state, Answer("gap")
    if operation.seq is not None and operation.seq <= state.seq:
        return state, Answer("regressed")
    tail = tail if operation.records else state.tail
    grown = replace(
        state,
        log=(*state.log, *place(operation, tail)),
        tail=tail,
        is_closed=operation.closes,
        seq=operation.seq or state.seq,
        version=max(state.version, operation.version or 0),
        producers=state.producers if operation.producer is None else (operation.producer,),
    )
    return grown, Answer("ok", tail, is_closed=operation.closes)


def place(operation: Operation, tail: int) -> tuple[tuple[int, str], ...]:
    count = len(operation.records)
    return tuple((tail - count + 1 + i, record) for i, record in enumerate(operation.records))


def has_order(history: list[Operation]) -> bool:
    told = [operation.answer.tail or 0 for operation in history if operation.answer is not None]
    return search(tuple(history), Plain(), max(told, default=0))


def search(left: tuple[Operation, ...], state: Plain, highest: int) -> bool:
    if all(operation.answer is None for operation in left):
        return True
    for index, operation in enumerate(left):
        rest = left[:index] + left[index + 1 :]
        if any(other.end < operation.call for other in rest):
            continue
        for tail in tails(state, operation, highest):
            after, answer = does(state, operation, tail)
            if operation.answer in (None, answer) and search(rest, after, highest):
                return True
    return False


def tails(state: Plain, operation: Operation, highest: int) -> Iterator[int]:
    """Where the stream may end after it."""
    lowest = state.tail + len(operation.records) + (operation.kind == "create")
    if operation.answer is None:
        yield from range(lowest, max(lowest, highest) + 1)
    elif (operation.answer.tail or 0) >= lowest:
        yield operation.answer.tail or 0
    elif operation.is_look or operation.kind == "delete" or not operation.records:
        yield lowest


# Small histories that some log has really produced, and small damage to them.


def make_history(rng: random.Random) -> list[Operation]:
    """A few clients on one stream; each operation happens at some moment of its time."""
    has_deletes = rng.random() < 0.5
    planned: list[tuple[float, Operation]] = []
    names = iter("abcdefghijklmnop")
    for client in range(rng.randint(1, 4)):
        now = rng.uniform(0, 2)
        for _ in range(rng.randint(1, 3)):
            if len(planned) == 6:
                break
            operation = make_operation(rng, now, names, has_deletes=has_deletes)
            operation.client = str(client)
            moment = now + rng.uniform(0, 2)
            operation.end = moment + rng.uniform(0, 2)
            planned.append((moment, operation))
            now = operation.end + rng.uniform(0.001, 1)
    return play(rng, planned)


def make_operation(
    rng: random.Random, now: float, names: Iterator[str], *, has_deletes: bool
) -> Operation:
    kinds = ["append", "append", "read", "head", "close"] + ["delete", "create"] * has_deletes
    kind = rng.choice(kinds)
    if kind == "read":
        return Operation(kind, now, position=rng.choice([START, None, -1, -1]))
    if kind == "close":
        return Operation("append", now, closes=True)
    if kind not in ("append", "create"):
        return Operation(kind, now)
    count = rng.choice([1, 1, 2]) if kind == "append" else rng.choice([0, 1])
    operation = Operation(kind, now, records=tuple(next(names) for _ in range(count)))
    if kind == "append":
        operation.closes = rng.random() < 0.1
        operation.seq = rng.choice([None, None, None, "1", "2", "3"])
        operation.version = rng.choice([None, None, None, 1, 2])
        if not has_deletes and rng.random() < 0.3:
            operation.producer = ("p", rng.choice([0, 0, 1, 2]))
    return operation


def play(rng: random.Random, planned: list[tuple[float, Operation]]) -> list[Operation]:
    """Let a log answer, each operation at its moment; some answers get lost."""
    state, _ = does(Plain(), Operation("create", 0), 1)
    history = [create(-2, -1, 1)]
    told: list[tuple[float, int]] = [(-1, 1)]
    for _, operation in sorted(planned, key=lambda pair: pair[0]):
        is_lost = operation.kind not in ("head", "read") and rng.random() < 0.3
        if operation.position == -1:
            known = [tail for when, tail in told if when < operation.call]
            operation.position = rng.choice(known)
        answer: Answer | None = None
        if not is_lost or rng.random() < 0.6:
            lowest = state.tail + len(operation.records) + (operation.kind == "create")
            state, answer = does(state, operation, lowest + rng.choice([0, 0, 0, 1]))
        if is_lost:
            operation.end, operation.answer = math.inf, None
        else:
            operation.answer = answer
            if answer is not None and answer.tail is not None:
                told.append((operation.end, answer.tail))
        history.append(operation)
    return history


def damage(rng: random.Random, history: list[Operation]) -> list[Operation] | None:
    """Change a little; None where that is no history any more."""
    damaged = [replace(operation) for operation in history]
    for _ in range(rng.choice([1, 1, 2])):
        change(rng, rng.choice(damaged), damaged)
    for one, two in pairwise(sorted(damaged, key=lambda o: (o.client, o.call))):
        if one.client == two.client and one.end >= two.call and one.answer is not None:
            return None
    try:
        Linearizer(damaged)
    except ValueError:
        return None
    except LogBroken:
        return damaged
    return damaged


def change(rng: random.Random, operation: Operation, history: list[Operation]) -> None:
    answer = operation.answer
    if answer is None:
        return
    kind = rng.choice(["tail", "tail", "records", "closed", "time", "time", "answer", "swap"])
    if kind == "tail" and answer.tail is not None:
        tails = [o.answer.tail for o in history if o.answer is not None and o.answer.tail]
        operation.answer = replace(answer, tail=rng.choice([*tails, answer.tail + 1]))
    elif kind == "records" and answer.records:
        operation.answer = replace(answer, records=answer.records[rng.choice([1, 0]) :][:-1])
    elif kind == "closed" and answer.tail is not None:
        operation.answer = replace(answer, is_closed=not answer.is_closed)
    elif kind == "time":
        middle = rng.uniform(operation.call, operation.end)
        shift = rng.uniform(-3, 3)
        operation.call, operation.end = sorted([middle + shift, operation.end + shift])
    elif kind == "answer" and not operation.is_look:
        operation.answer, operation.end = None, math.inf
    elif kind == "swap":
        other = rng.choice([o for o in history if o.kind == operation.kind])
        operation.answer, other.answer = other.answer, operation.answer
        operation.end, other.end = sorted([operation.end, other.end])
        for one in (operation, other):
            one.end = math.inf if one.answer is None else max(one.call, one.end)
            if one.answer is not None and one.end == math.inf:
                one.end = one.call + 1
