"""Who of a group works on what: a pure fold over the entries of the group's log.

Members write what they want, and nobody decides: the log has one order, and everybody who folds it
comes to the same state. The stream is cut into ranges; whoever asks gets the first one that is
free; a member that is silent for longer than its lease is struck off, and its range is free again.
What a member that was struck off still writes counts for nothing.

Time is that of the offsets, so the server's, and only as much of it counts between two entries as a
living group would let pass: while the server is away nobody can write, and nobody's lease ends.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bottomless.positions import Position

# Members write this many times in a lease, so that a late beat or two does not matter.
BEATS_PER_LEASE: Final = 4


class Begin(msgspec.Struct, frozen=True, tag_field="is", tag="begin"):
    """The first entry: where the group begins in the stream."""

    at: str


class Join(msgspec.Struct, frozen=True, tag_field="is", tag="join"):
    """A member begins. Its name is used once: who was struck off comes back under another."""

    member: str
    lease_ms: int


class Cut(msgspec.Struct, frozen=True, tag_field="is", tag="cut"):
    """Ranges behind those there are: (last offset, count of records) of each."""

    after: str
    ranges: tuple[tuple[str, int], ...]


class Ask(msgspec.Struct, frozen=True, tag_field="is", tag="ask"):
    """Wants a range, if it has none."""

    member: str


class Beat(msgspec.Struct, frozen=True, tag_field="is", tag="beat"):
    """Is alive, and has handled its range up to here."""

    member: str
    range: str = ""
    at: str = ""


class Done(msgspec.Struct, frozen=True, tag_field="is", tag="done"):
    """Has handled all of its range."""

    member: str
    range: str


class Leave(msgspec.Struct, frozen=True, tag_field="is", tag="leave"):
    """Ends; its range is free."""

    member: str


class Range(msgspec.Struct):
    """Records that one member handles at a time. Its name is ``after``."""

    after: str
    upto: str
    count: int
    at: str
    """What is not handled yet begins behind this position."""
    owner: str | None = None


class Member(msgspec.Struct):
    """A member that is alive, as far as the log knows."""

    lease_ms: int
    seen_clock_ms: int
    seen_ms: int


class GroupState(msgspec.Struct):
    """What the log says up to some entry."""

    cut: str | None = None
    """Up to here the stream is cut into ranges; None before the first entry."""
    ranges: list[Range] = []
    """Those that are not done, in the order of the stream."""
    members: dict[str, Member] = {}
    handled: int = 0
    """Records in the ranges that are done."""
    clock_ms: int = 0
    """Time that counts for leases."""
    last_ms: int = 0
    """When the last entry was written."""
    entries: int = 0
    """Entries since the last snapshot."""

    @property
    def done(self) -> str:
        """Everything up to here is handled."""
        return self.ranges[0].at if self.ranges else self.cut or ""

    @property
    def has_free(self) -> bool:
        """Whether somebody who asks gets a range."""
        return any(one.owner is None for one in self.ranges)

    def range_of(self, member: str) -> Range | None:
        """What this member works on."""
        return next((one for one in self.ranges if one.owner == member), None)


class Snapshot(msgspec.Struct, frozen=True, tag_field="is", tag="snapshot"):
    """The state after the entry at ``upto``, for those who come later."""

    upto: str
    state: GroupState


Entry = Begin | Join | Cut | Ask | Beat | Done | Leave | Snapshot


class GroupMadeAnew(Exception):
    """The log begins a second time: it was deleted, and another group has its name."""


def apply(state: GroupState, entry: Entry, time_ms: int) -> None:
    """Take the next entry of the log into the state."""
    if isinstance(entry, Snapshot):
        state.entries = 0
        return
    state.entries += 1
    _tick(state, time_ms)
    match entry:
        case Begin(at):
            # There is one in a log, and nothing before it counts.
            if state.cut is not None:
                raise GroupMadeAnew
            state.cut = at
        case Join(member, lease_ms):
            state.members[member] = Member(lease_ms, state.clock_ms, time_ms)
        case Cut(after, ranges):
            if after == state.cut:
                _cut(state, ranges)
        case Ask(member) | Beat(member) | Done(member) | Leave(member):
            if member in state.members:
                _hear(state, entry, time_ms)


def _tick(state: GroupState, time_ms: int) -> None:
    """Let time pass, and strike off whose lease has ended."""
    leases = [member.lease_ms for member in state.members.values()]
    if leases:
        most_ms = min(leases) // BEATS_PER_LEASE
        state.clock_ms += max(0, min(time_ms - state.last_ms, most_ms))
    state.last_ms = max(state.last_ms, time_ms)
    ended = [
        name
        for name, member in state.members.items()
        if state.clock_ms - member.seen_clock_ms > member.lease_ms
    ]
    for name in ended:
        _strike_off(state, name)


def _strike_off(state: GroupState, name: str) -> None:
    del state.members[name]
    held = state.range_of(name)
    if held is not None:
        held.owner = None


def _cut(state: GroupState, ranges: tuple[tuple[str, int], ...]) -> None:
    for upto, count in ranges:
        assert state.cut is not None
        state.ranges.append(Range(state.cut, upto, count, at=state.cut))
        state.cut = upto


def _hear(state: GroupState, entry: Ask | Beat | Done | Leave, time_ms: int) -> None:
    """A member speaks, so it is alive."""
    member = state.members[entry.member]
    member.seen_clock_ms, member.seen_ms = state.clock_ms, time_ms
    held = state.range_of(entry.member)
    match entry:
        case Ask(name):
            free = next((one for one in state.ranges if one.owner is None), None)
            # Whoever asks twice because an answer was lost has got its range with the first one.
            if held is None and free is not None:
                free.owner = name
        case Beat(_, after, at):
            if held is not None and held.after == after and _is_behind(at, held.at):
                held.at = at
        case Done(_, after):
            if held is not None and held.after == after:
                state.ranges.remove(held)
                state.handled += held.count
        case Leave(name):
            _strike_off(state, name)


def _is_behind(position: str, other: str) -> bool:
    one, two = Position.parse(position), Position.parse(other)
    return (one.offset, one.skip) > (two.offset, two.skip)
