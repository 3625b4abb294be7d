"""The fold of a group's log: who works on what, whatever order things come in."""

from __future__ import annotations

import copy
import random

import msgspec
import pytest

from bottomless.assignment import (
    Ask,
    Beat,
    Begin,
    Cut,
    Done,
    Entry,
    GroupMadeAnew,
    GroupState,
    Join,
    Leave,
    Snapshot,
    apply,
)

LEASE_MS = 1000
BEAT_MS = 250


def offset(number: int) -> str:
    return f"{number:032d}"


class Log:
    """A log and its state, with a clock of the test's own."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.state = GroupState()
        self.write(Begin("-"))

    def write(self, *entries: Entry, after_ms: int = 0) -> GroupState:
        self.now_ms += after_ms
        for entry in entries:
            apply(self.state, entry, self.now_ms)
        return self.state

    def owners(self) -> dict[str, str | None]:
        return {one.upto.lstrip("0"): one.owner for one in self.state.ranges}

    def beat(self, *members: str, times: int) -> None:
        for _ in range(times):
            self.write(*(Beat(member) for member in members), after_ms=BEAT_MS)


@pytest.fixture
def log() -> Log:
    """Two members; three ranges that end at 10, 20 and 30."""
    made = Log()
    made.write(Join("a", LEASE_MS), Join("b", LEASE_MS))
    made.write(Cut("-", tuple((offset(end), 10) for end in (10, 20, 30))))
    return made


def test_assignment_gives_the_first_free_range_to_whoever_asks(log: Log) -> None:
    log.write(Ask("b"), Ask("a"))
    assert log.owners() == {"10": "b", "20": "a", "30": None}


def test_assignment_takes_a_repeated_question_for_the_same(log: Log) -> None:
    log.write(Ask("a"), Ask("a"))
    assert log.owners() == {"10": "a", "20": None, "30": None}
    log.write(*[Done("a", "-"), Ask("a")] * 2)
    assert log.owners() == {"20": "a", "30": None}
    assert log.state.handled == 10


def test_assignment_takes_only_the_first_of_two_cuts(log: Log) -> None:
    log.write(Cut("-", ((offset(99), 99),)), Cut(offset(20), ((offset(99), 99),)))
    assert list(log.owners()) == ["10", "20", "30"]
    log.write(Cut(offset(30), ((offset(40), 10),)), Cut(offset(30), ((offset(35), 5),)))
    assert list(log.owners()) == ["10", "20", "30", "40"]
    assert log.state.cut == offset(40)


def test_assignment_hands_over_what_a_silent_member_had(log: Log) -> None:
    log.write(Ask("a"), Ask("b"), Beat("a", "-", offset(4)))
    log.beat("b", times=4)
    assert log.owners() == {"10": "a", "20": "b", "30": None}, "the lease has not ended yet"
    log.beat("b", times=1)
    assert log.owners() == {"10": None, "20": "b", "30": None}
    log.write(Done("b", offset(10)), Ask("b"))
    assert log.owners() == {"10": "b", "30": None}
    assert log.state.ranges[0].at == offset(4), "from the last place the dead one told"


def test_assignment_ignores_whoever_was_struck_off(log: Log) -> None:
    log.write(Ask("a"))
    log.beat("b", times=5)
    before = copy.deepcopy(log.owners())
    log.write(Done("a", "-"), Beat("a", "-", offset(9)), Ask("a"), Leave("a"))
    assert log.owners() == before == {"10": None, "20": None, "30": None}
    assert log.state.ranges[0].at == "-"
    log.write(Ask("b"), Done("a", "-"))
    assert log.owners()["10"] == "b"


def test_assignment_strikes_off_at_the_very_word_that_comes_too_late(log: Log) -> None:
    log.write(Ask("a"))
    log.beat("b", times=4)
    # Nobody has noticed yet; its own late word is what makes time pass.
    log.write(Done("a", "-"), after_ms=BEAT_MS)
    assert log.owners()["10"] is None
    assert log.state.handled == 0


def test_assignment_ends_no_lease_while_nobody_can_write(log: Log) -> None:
    log.write(Ask("a"), Ask("b"))
    log.write(Beat("b"), after_ms=3_600_000)
    log.write(Done("a", "-"), after_ms=BEAT_MS)
    assert log.owners() == {"20": "b", "30": None}
    assert log.state.handled == 10


def test_assignment_lets_no_clock_run_backwards(log: Log) -> None:
    log.write(Ask("a"))
    log.write(Beat("b"), after_ms=-500_000)
    log.write(Beat("b"), after_ms=500_000)
    assert log.owners()["10"] == "a"


def test_assignment_frees_what_a_leaving_member_had(log: Log) -> None:
    log.write(Ask("a"), Beat("a", "-", offset(7)), Leave("a"))
    assert log.owners()["10"] is None
    log.write(Ask("b"))
    assert (log.owners()["10"], log.state.ranges[0].at) == ("b", offset(7))


def test_assignment_moves_a_place_forward_only(log: Log) -> None:
    log.write(Ask("a"), Beat("a", "-", f"{offset(4)}:2"), Beat("a", "-", offset(4)))
    assert log.state.ranges[0].at == f"{offset(4)}:2"
    log.write(Beat("a", "-", offset(5)), Beat("b", "-", offset(8)), Beat("a", offset(10), "9"))
    assert log.state.done == offset(5)


def test_assignment_notices_that_the_log_was_made_anew(log: Log) -> None:
    with pytest.raises(GroupMadeAnew):
        log.write(Begin("-"))


@pytest.mark.parametrize("seed", range(60))
def test_assignment_does_every_range_once_whatever_happens(seed: int) -> None:
    """Members come, fall silent, come back too late, send twice; another folds from snapshots."""
    rng = random.Random(seed)
    log, late, names = Log(), [], [f"m{n}" for n in range(4)]
    other = msgspec.json.decode(msgspec.json.encode(log.state), type=GroupState)
    log.write(*(Join(name, LEASE_MS) for name in names))
    other = copy.deepcopy(log.state)
    done: list[str] = []
    cut_ends = ["-"]
    for step in range(400):
        before = {one.after: one.owner for one in log.state.ranges}
        entry = _some_entry(rng, log.state, names, step)
        late.append(entry)
        if rng.random() < 0.2:
            entry = rng.choice(late[-10:])
        log.write(entry, after_ms=rng.choice((0, 5, 50, 2 * BEAT_MS)))
        apply(other, entry, log.now_ms)
        if rng.random() < 0.1:
            other = msgspec.json.decode(msgspec.json.encode(other), type=GroupState)
        assert other == log.state
        now = {one.after: one.owner for one in log.state.ranges}
        gone = [after for after in before if after not in now]
        for after in gone:
            assert isinstance(entry, Done)
            assert (entry.member, entry.range) == (before[after], after)
        done += gone
        owners = [owner for owner in now.values() if owner is not None]
        assert len(owners) == len(set(owners)), "one range a member"
        assert set(owners) <= set(log.state.members), "only of those who live"
        cut_ends += [one.upto for one in log.state.ranges if one.upto > cut_ends[-1]]
    assert len(done) == len(set(done)) > 5
    assert sorted([*done, *(one.after for one in log.state.ranges)]) == cut_ends[:-1]
    assert log.state.handled == 10 * len(done)


def _some_entry(rng: random.Random, state: GroupState, names: list[str], step: int) -> Entry:
    # Mostly one that lives; the dead speak up as well.
    name = rng.choice([*state.members] * 3 + names[-8:])
    held = state.range_of(name)
    kind = rng.random()
    if name not in state.members and kind < 0.5:
        names.append(f"m{len(names)}")
        return Join(names[-1], LEASE_MS)
    if kind < 0.15:
        assert state.cut is not None
        end = 10 if state.cut == "-" else int(state.cut) + 10
        return Cut(state.cut, ((offset(end), 10), (offset(end + 10), 10)))
    if kind < 0.2:
        return Snapshot(offset(step), state)
    if kind < 0.23:
        return Leave(name)
    if held is not None and kind < 0.7:
        return Done(name, held.after)
    if state.ranges and kind < 0.75:
        return Done(name, rng.choice(state.ranges).after)
    return Ask(name) if kind < 0.9 else Beat(name)
