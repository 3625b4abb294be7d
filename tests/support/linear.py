"""A linearizability checker for logs: is there one order of all operations that explains every
answer, and in which each took effect between its call and its return?

The search is that of Wing & Gong with the memory of Lowe, as in Porcupine: take any operation that
nothing left over precedes in time, apply it to the log, go on; come back where an answer does not
fit, and never visit the same place twice. An operation without an answer may be taken at any time
after its call, or never. What the search leaves out it may leave out; tests/unit/test_linear.py
compares it with a search that leaves out nothing.

Records are unlike each other, offsets rise for ever (also over delete and create), and a client
only reads from positions that an answer has told before, or from the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tests.support.load import LogBroken

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

START = 0
NOW = None
_BEGIN = ""
"""What lies before the first record of a log; no record is empty."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said; what it did not say is None."""

    status: str
    """ok, or the refusal: missing, closed, exists, duplicate, gap, regressed, fenced."""
    tail: int | None = None
    records: tuple[str, ...] = ()
    is_closed: bool = False
    version: int | None = None


@dataclass(slots=True, eq=False)
class Operation:
    """One request of one client. Without an answer its outcome is unknown."""

    kind: str
    """append (and/or close), create, delete, head, read."""
    call: float
    end: float = math.inf
    answer: Answer | None = None
    client: str = ""
    records: tuple[str, ...] = ()
    closes: bool = False
    seq: str | None = None
    version: int | None = None
    producer: tuple[str, int] | None = None
    position: int | None = NOW
    """Where a read begins."""
    waits: bool = False
    """A long-poll: a read at any moment until it is answered."""

    @property
    def is_look(self) -> bool:
        """It cannot have changed anything."""
        if self.kind in ("head", "read"):
            return True
        return self.answer is not None and self.answer.status != "ok"


class _Node(NamedTuple):
    """The end of a log: an append behind its parent, or the create or the void where it begins."""

    parent: int
    records: tuple[str, ...]
    tail: int
    is_known: bool
    """Else ``tail`` is the lowest possible one: nobody has been told yet."""


class _State(NamedTuple):
    """A stream: its log, and what appends are judged by."""

    node: int
    exists: bool = False
    is_closed: bool = False
    seq: str | None = None
    version: int = 0
    producers: tuple[tuple[str, int], ...] = ()


class LogModel:
    """What a log does with an operation: the specification, one operation at a time."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._nodes: list[_Node] = []
        self._known: dict[_Node, int] = {}
        self._before: dict[str, str] = {}
        self._behind: dict[str, str] = {}
        _check_positions(operations)
        for operation in operations:
            self._learn(operation)
        self._quiet = self._find_quiet(operations)
        self.start = _State(self._node(_Node(-1, (), START, is_known=False)))

    def apply(self, state: _State, operation: Operation) -> _State | None:
        """The state after it; None where the answer cannot be that, or nothing can happen."""
        answer, verdict = operation.answer, self._judge(state, operation)
        if answer is None:
            return self._change(state, operation) if verdict == "ok" else None
        if answer.status != verdict:
            return None
        if verdict == "fenced" and answer.version != state.version:
            return None
        act = self._look if operation.is_look else self._change
        after = act(state, operation)
        if after is None or answer.tail is None or answer.is_closed == after.is_closed:
            return after
        return None

    def tail(self, state: _State) -> int:
        """No later answer may tell a lower one."""
        return self._nodes[state.node].tail

    def show(self, state: _State) -> str:
        """For people."""
        node = self._nodes[state.node]
        records, place = [], state.node
        while place >= 0 and len(records) < 3:
            records += self._nodes[place].records[::-1]
            place = self._nodes[place].parent
        kind = "no stream" if not state.exists else "closed" if state.is_closed else "open"
        return f"{kind}, ends with {records[2::-1]} at {node.tail}{'' if node.is_known else '+'}"

    def _learn(self, operation: Operation) -> None:
        """Which record lies directly behind which is a fact: one read is enough to know it."""
        answer = operation.answer
        if operation.kind != "read" or answer is None or not answer.records:
            return
        begin = [_BEGIN] if operation.position == START else []
        for before, behind in pairwise([*begin, *answer.records]):
            if self._before.setdefault(behind, before) != before:
                raise LogBroken(f"{behind!r} lies behind {before!r} and {self._before[behind]!r}")
            if before and self._behind.setdefault(before, behind) != behind:
                raise LogBroken(f"{self._behind[before]!r} and {behind!r} lie behind {before!r}")
        if len(set(answer.records)) < len(answer.records):
            raise LogBroken(f"a read from {operation.position} shows a record twice")

    def _find_quiet(self, operations: Sequence[Operation]) -> set[str]:
        """Records of appends without an answer that no read shows, and that do nothing else."""
        kinds = {operation.kind for operation in operations}
        made = {operation.producer for operation in operations} - {None}
        if made and "delete" in kinds:
            raise ValueError("a producer could append a record again in the next stream")
        seen = {
            record
            for operation in operations
            if operation.answer is not None and operation.kind == "read"
            for record in operation.answer.records
        }
        return {
            operation.records[0]
            for operation in operations
            if operation.kind == "append" and operation.answer is None and operation.records
            if (operation.closes, operation.seq, operation.version) == (False, None, None)
            if operation.producer is None and operation.records[0] not in seen
        }

    def _judge(self, state: _State, operation: Operation) -> str:
        """The checks in the order of the protocol."""
        if operation.kind == "create":
            if not state.exists:
                return "ok"
            return "conflict" if state.is_closed else "exists"
        if not state.exists:
            return "missing"
        if operation.kind != "append":
            return "ok"
        if state.is_closed:
            return "closed" if operation.records else "ok"
        if operation.version is not None and operation.version < state.version:
            return "fenced"
        if operation.producer is not None:
            id_, number = operation.producer
            expected = dict(state.producers).get(id_, -1) + 1
            if number != expected:
                return "duplicate" if number < expected else "gap"
        if operation.seq is not None and state.seq is not None and operation.seq <= state.seq:
            return "regressed"
        return "ok"

    def _look(self, state: _State, operation: Operation) -> _State | None:
        answer = operation.answer
        assert answer is not None
        told = self._tell(state, answer.tail)
        is_read = operation.kind == "read" and answer.status == "ok"
        if told is None or (is_read and not self._shows(told.node, operation.position, answer)):
            return None
        return told

    def _tell(self, state: _State, tail: int | None) -> _State | None:
        """Somebody is told the tail: from now on it is that one."""
        node = self._nodes[state.node]
        if tail is None or (node.is_known and node.tail == tail):
            return state
        if node.is_known or tail < node.tail:
            return None
        return state._replace(node=self._node(node._replace(tail=tail, is_known=True)))

    def _shows(self, place: int, position: int | None, answer: Answer) -> bool:
        """Whether the log holds exactly these records behind the position."""
        records, end = answer.records, len(answer.records)
        while position is not NOW and place >= 0 and self._nodes[place].tail > position:
            node = self._nodes[place]
            shown = min(len(node.records), node.tail - position)
            begin = end - shown
            if begin < 0 or records[begin:end] != node.records[len(node.records) - shown :]:
                return False
            end, place = begin, node.parent
        return end == 0

    def _change(self, state: _State, operation: Operation) -> _State | None:
        tail = None if operation.answer is None else operation.answer.tail
        if operation.kind == "delete":
            return self._delete(state)
        if operation.kind == "create":
            return self._create(state, operation, tail)
        if state.is_closed or not operation.records:
            told = self._tell(state, tail)
            return None if told is None else told._replace(is_closed=True)
        node = self._grow(state.node, operation.records, tail)
        if node is None:
            return None
        producers = dict(state.producers)
        if operation.producer is not None:
            producers[operation.producer[0]] = operation.producer[1]
        return state._replace(
            node=node,
            is_closed=operation.closes,
            seq=state.seq if operation.seq is None else operation.seq,
            version=max(state.version, operation.version or 0),
            producers=tuple(sorted(producers.items())),
        )

    def _grow(self, place: int, records: tuple[str, ...], tail: int | None) -> int | None:
        node = self._nodes[place]
        lowest = node.tail + len(records)
        last = node.records[-1] if node.records else _BEGIN
        if self._before.get(records[0], last) != last or (tail is not None and tail < lowest):
            return None
        if self._behind.get(last, records[0]) != records[0] or self._is_idle(node):
            return None
        return self._node(_Node(place, records, tail or lowest, is_known=tail is not None))

    def _create(self, state: _State, operation: Operation, tail: int | None) -> _State | None:
        lowest = self._nodes[state.node].tail + 1 + len(operation.records)
        if tail is not None and tail < lowest:
            return None
        node = _Node(-1, operation.records, tail or lowest, is_known=tail is not None)
        return _State(self._node(node), exists=True, is_closed=operation.closes)

    def _delete(self, state: _State) -> _State | None:
        node = self._nodes[state.node]
        if self._is_idle(node):
            return None
        return _State(self._node(_Node(-1, (), node.tail, is_known=False)))

    def _is_idle(self, node: _Node) -> bool:
        """Such an append explains nothing but a tail. Where that is not told before the log goes
        on, it may as well never have happened.
        """
        return bool(node.records) and not node.is_known and node.records[0] in self._quiet

    def _node(self, node: _Node) -> int:
        place = self._known.setdefault(node, len(self._nodes))
        if place == len(self._nodes):
            self._nodes.append(node)
        return place


@dataclass(slots=True)
class _Frame:
    """A place of the search: what has been taken, and what may be taken next."""

    state: _State
    taken: int
    """One bit per operation."""
    first: int
    """All answered operations before this one are taken."""
    lowest: int
    """The same, among those that tell a tail, by tail."""
    choices: Iterator[tuple[int, _State]] = field(default_factory=lambda: iter(()))


class Linearizer:
    """The search through one stream's history."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.model = LogModel(operations)
        answered = [operation for operation in operations if operation.answer is not None]
        unknown = [operation for operation in operations if operation.answer is None]
        self._count = len(answered)
        self._operations = [
            *sorted(answered, key=lambda operation: operation.call),
            *sorted(unknown, key=lambda operation: operation.call),
        ]
        tails = [
            (operation.answer.tail, index)
            for index, operation in enumerate(self._operations)
            if operation.answer is not None and operation.answer.tail is not None
        ]
        self._tails = sorted(tails)
        self._visited: set[tuple[int, _State]] = set()
        self._furthest: tuple[int, _Frame | None] = (-1, None)

    def run(self) -> bool:
        """Whether there is an order."""
        stack = [self._frame(self.model.start, 0, 0, 0)]
        while stack:
            frame = stack[-1]
            if frame.first == self._count:
                return True
            step = next(frame.choices, None)
            if step is None:
                stack.pop()
                continue
            index, state = step
            taken = frame.taken | 1 << index
            if (taken, state) not in self._visited:
                self._visited.add((taken, state))
                stack.append(self._frame(state, taken, frame.first, frame.lowest))
        return False

    def explain(self) -> str:
        """How far the longest order comes, and what does not fit behind it."""
        _, frame = self._furthest
        assert frame is not None
        lines = [f"{frame.first} and more operations fit, then: {self.model.show(frame.state)}"]
        lines += [f"does not fit: {_brief(self._operations[i])}" for i in self._window(frame)]
        if frame.lowest < len(self._tails):
            lowest = self._operations[self._tails[frame.lowest][1]]
            lines.append(f"is still to fit: {_brief(lowest)}")
        return "\n".join(lines)

    def _frame(self, state: _State, taken: int, first: int, lowest: int) -> _Frame:
        while first < self._count and taken >> first & 1:
            first += 1
        while lowest < len(self._tails) and taken >> self._tails[lowest][1] & 1:
            lowest += 1
        frame = _Frame(state, taken, first, lowest)
        frame.choices = self._choices(frame)
        depth = (taken & (1 << self._count) - 1).bit_count()
        if depth > self._furthest[0]:
            self._furthest = (depth, frame)
        return frame

    def _window(self, frame: _Frame) -> list[int]:
        """Answered operations that nothing left over precedes."""
        found, horizon = [], math.inf
        for index in range(frame.first, self._count):
            if frame.taken >> index & 1:
                continue
            operation = self._operations[index]
            if operation.call > horizon:
                break
            found.append(index)
            horizon = min(horizon, operation.end)
        return found

    def _choices(self, frame: _Frame) -> Iterator[tuple[int, _State]]:
        # Tails rise: one that is still to be told is no lower than this.
        highest = self._tails[frame.lowest][0] if frame.lowest < len(self._tails) else math.inf
        window, changes = self._window(frame), []
        for index in window:
            operation = self._operations[index]
            state = self.model.apply(frame.state, operation)
            if state is None or self.model.tail(state) > highest:
                continue
            if operation.is_look and state == frame.state:
                # It changes nothing and fits here: where else it would fit does not matter.
                yield index, state
                return
            changes.append((index, state))
        yield from changes
        horizon = min(self._operations[index].end for index in window)
        for index in range(self._count, len(self._operations)):
            operation = self._operations[index]
            if operation.call > horizon:
                return
            if frame.taken >> index & 1 or operation.is_look:
                continue
            state = self.model.apply(frame.state, operation)
            if state is not None and self.model.tail(state) <= highest:
                yield index, state


def check_linearizable(name: str, operations: Sequence[Operation]) -> None:
    """LogBroken if no order of one stream's operations explains all answers."""
    try:
        search = Linearizer(operations)
    except LogBroken as error:
        raise LogBroken(f"{name}: {error}") from None
    if not search.run():
        raise LogBroken(f"{name} is not linearizable: {search.explain()}")


def _check_positions(operations: Sequence[Operation]) -> None:
    """A read from a position that no answer has told is not in the specification."""
    told: dict[int | None, float] = {START: -math.inf, NOW: -math.inf}
    for operation in operations:
        if operation.answer is not None and operation.answer.tail is not None:
            tail = operation.answer.tail
            told[tail] = min(told.get(tail, math.inf), operation.end)
    for operation in operations:
        if operation.kind == "read" and told.get(operation.position, math.inf) >= operation.call:
            raise ValueError(f"nobody has told the position of {operation}")


def _brief(operation: Operation) -> str:
    """One line for people."""
    wanted = [*operation.records] or ("close" if operation.closes else "")
    asked = f"{operation.kind} {wanted}"
    if operation.kind == "read":
        asked = f"read from {'now' if operation.position is NOW else operation.position}"
    answer = operation.answer
    assert answer is not None
    said = f"{answer.status} tail={answer.tail} records={answer.records[-3:]}"
    when = f"{operation.call:.4f} to {operation.end:.4f}"
    return f"{operation.client} {asked}: {said} closed={answer.is_closed}, {when}"
