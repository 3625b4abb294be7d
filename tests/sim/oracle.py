"""What the clients of a simulated server were promised, and whether it is kept.

Every attempt is noted before it is sent and every answer when it comes. An attempt without an
answer, or with one that leaves it open, may be there once and whole, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tests.support.load import LogBroken

if TYPE_CHECKING:
    from collections.abc import Callable

NEVER = 1 << 200
Seen = list[tuple[int, bytes]]
"""Records with their offsets, as a reader gets them."""


class Fate(Enum):
    """What is known of an attempt."""

    OPEN = "open"
    """No answer yet, or none that says which: it may be there now, later or never."""
    KEPT = "kept"
    """Acknowledged: never missing again."""
    REFUSED = "refused"
    """Answered with an error that says nothing was done: never there."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One append or close."""

    records: tuple[bytes, ...]
    begun: int
    closes: bool = False
    ended: int = NEVER
    offset: int | None = None
    fate: Fate = Fate.OPEN
    is_placed: bool = False
    may_stay: bool = False
    """It waited for the table too: an error says nothing about the log."""


@dataclass(slots=True, eq=False)
class Producer:
    """An idempotent client of one stream: what the server must remember of it."""

    epoch: int = 0
    seq: int = -1
    """The last number that was acknowledged."""
    open: Attempt | None = None
    """The attempt with the next number, until it is answered."""


@dataclass(slots=True, eq=False)
class Incarnation:
    """One life of a name."""

    name: str
    content_type: str
    source: Incarnation | None = None
    fork_offset: int = 0
    id: int | None = None
    """As the server calls it; None until it was seen."""
    base: int = 0
    seen: Seen = field(default_factory=list)
    """Everything a reader has seen; what a fork inherits is seen from the start."""
    tail: int = 0
    """The highest that was told."""
    pending: list[Attempt] = field(default_factory=list)
    """What was not seen yet."""
    closing: list[Attempt] = field(default_factory=list)
    producers: dict[str, Producer] = field(default_factory=dict)
    settings: list[dict[str, object]] = field(default_factory=lambda: [{}])
    """The stream's own settings: one of these."""
    trims: list[int] = field(default_factory=lambda: [0])
    """Up to where retention may have taken records: the first one is certain."""
    gone_to: int = 0
    """Up to here a reader has missed what was trimmed ..."""
    gone_at: int = 0
    """... and since then nobody may get it back."""
    is_leaving: bool = False
    """Its deletion was sent."""
    last_offset: int = 0
    last_begun: int = 0

    @property
    def is_closed(self) -> bool:
        """A close was acknowledged."""
        return any(attempt.fate is Fate.KEPT for attempt in self.closing)

    @property
    def may_be_closed(self) -> bool:
        """A close was sent."""
        return any(attempt.fate is not Fate.REFUSED for attempt in self.closing)

    def settle(self) -> None:
        """After a restart what is not there never was; only producers will send theirs again."""
        again = [producer.open for producer in self.producers.values()]
        for attempt in self.pending:
            if attempt.fate is Fate.OPEN and attempt not in again:
                attempt.fate = Fate.REFUSED


State = dict[str, tuple[Incarnation, bool]]
"""Streams by name; True for one that is deleted and kept for its forks."""


class Oracle:
    """All streams of a schedule, through all lives of the server."""

    def __init__(self) -> None:
        self.possible: list[State] = [{}]
        """What exists: one of these. Answers make it fewer, attempts more."""
        self.events = 0
        self.checked = 0
        self.highest: dict[str, int] = {}
        """No later incarnation of the name may begin at or below this."""

    @property
    def state(self) -> State:
        """What exists as far as it was answered."""
        return self.possible[0]

    def tick(self) -> int:
        """The number of this event."""
        self.events += 1
        return self.events

    # Appends.

    def begin(
        self, stream: Incarnation, records: tuple[bytes, ...], *, closes: bool = False
    ) -> Attempt:
        """Note an append that is about to be sent."""
        attempt = Attempt(records, self.tick(), closes)
        stream.pending.append(attempt)
        if closes:
            stream.closing.append(attempt)
        return attempt

    def acknowledge(self, stream: Incarnation, attempt: Attempt, offset: int | None) -> None:
        """From now on it may never be missing; None where the answer does not say where it is."""
        self.require(attempt.fate is Fate.OPEN, stream, "an attempt was answered twice")
        attempt.ended, attempt.fate = self.tick(), Fate.KEPT
        if attempt.records:
            attempt.offset = offset
        if offset is not None:
            stream.tail = max(stream.tail, offset)
        self.checked += 1

    def require(self, fact: bool, stream: Incarnation | str, what: str) -> None:
        """LogBroken unless it is so."""
        if not fact:
            name = stream if isinstance(stream, str) else stream.name
            raise LogBroken(f"{name}: {what}")

    # Reads.

    def verify(
        self, stream: Incarnation, start: int, observed: Seen, *, since: int, floor: int
    ) -> None:
        """Everything after ``start``, read from event ``since`` on, when ``floor`` were seen."""
        offsets = [offset for offset, _ in observed]
        self.require(offsets == sorted(set(offsets)), stream, "offsets do not rise")
        found = self._trimmed_to(stream, start, observed)
        is_late = since > stream.gone_at
        below = [item for item in observed if item[0] <= stream.gone_to]
        self.require(not (is_late and below), stream, f"a trim was undone: {below[:1]}")
        if found > stream.gone_to:
            stream.gone_to, stream.gone_at = found, self.tick()
        first = max(start, found)
        known = [item for item in stream.seen[:floor] if item[0] > first]
        seen = [item for item in stream.seen if item[0] > first]
        for old, new in zip(seen, observed, strict=False):
            self.require(old == new, stream, f"{old} was seen, now there is {new}")
        self.require(len(observed) >= len(known), stream, f"{known[len(observed) :]} is gone")
        fresh = observed[len(seen) :]
        self._place(stream, fresh)
        for attempt in stream.pending:
            # A repeat is not told its place, so it may lie in what was trimmed.
            is_below = first > 0 if attempt.offset is None else attempt.offset <= first
            is_due = attempt.fate is Fate.KEPT and attempt.records and attempt.ended < since
            if is_due and not is_below:
                name = attempt.records[0]
                self.require(attempt.is_placed, stream, f"{name!r} was acknowledged and lost")
        stream.pending = [one for one in stream.pending if not one.is_placed]
        stream.seen += fresh
        self.checked += len(observed)

    def _trimmed_to(self, stream: Incarnation, start: int, observed: Seen) -> int:
        """Up to where a read from the start may begin later than what was seen."""
        if max(stream.trims) <= start:
            return 0
        first = observed[0][0] if observed else NEVER
        found = max([0, *[trim for trim in stream.trims if trim < first]])
        lost = [item for item in stream.seen if max(start, found) < item[0] < first]
        self.require(not lost, stream, f"{lost[:1]} is gone, and was not trimmed")
        return found

    def _place(self, stream: Incarnation, fresh: Seen) -> None:
        missing = {one.records[0]: one for one in stream.pending if one.records}
        place = 0
        while place < len(fresh):
            attempt = missing.pop(fresh[place][1], None)
            if attempt is None:
                what = f"record {fresh[place]} was never sent, is out of place, or there twice"
                raise LogBroken(f"{stream.name}: {what}")
            end = place + len(attempt.records)
            records = tuple(record for _, record in fresh[place:end])
            self.require(records == attempt.records, stream, f"{records[0]!r} is not whole")
            last = fresh[end - 1][0]
            self.require(last - fresh[place][0] == end - place - 1, stream, "an append has gaps")
            self._check_place(stream, attempt, last)
            place = end

    def _check_place(self, stream: Incarnation, attempt: Attempt, last: int) -> None:
        name = attempt.records[0]
        self.require(
            attempt.fate is not Fate.REFUSED, stream, f"{name!r} was refused, and is there"
        )
        self.require(last > stream.last_offset, stream, "an offset comes twice")
        if attempt.offset is not None:
            self.require(attempt.offset == last, stream, f"{name!r} was told {attempt.offset}")
        self.require(attempt.ended > stream.last_begun, stream, f"{name!r} was overtaken")
        attempt.is_placed, attempt.offset = True, last
        stream.last_offset = last
        stream.last_begun = max(stream.last_begun, attempt.begun)

    def check_tail(self, stream: Incarnation, tail: int, *, is_closed: bool) -> None:
        """What HEAD says."""
        self.require(tail >= stream.tail, stream, f"the tail went back from {stream.tail}")
        self.require(tail >= stream.last_offset, stream, "the tail lies before its records")
        stream.tail = tail
        self.require(is_closed or not stream.is_closed, stream, "a closed stream is open")
        self.require(not is_closed or stream.may_be_closed, stream, "nobody closed the stream")

    def settle_close(self, stream: Incarnation, *, is_closed: bool) -> None:
        """After a restart it is known: closed with the records of that append, or not at all."""
        for attempt in stream.closing:
            is_only = len(stream.closing) == 1 and max(stream.trims) == 0
            if attempt.records and attempt.fate is not Fate.REFUSED and is_only:
                self.require(attempt.is_placed == is_closed, stream, "half of a closing append")
            if attempt.fate is Fate.OPEN and not attempt.is_placed:
                attempt.fate = Fate.REFUSED
        if is_closed and not stream.is_closed:
            stream.closing.append(Attempt((), 0, closes=True, fate=Fate.KEPT))

    # Names.

    def choose(self, fits: Callable[[State], bool], what: str) -> None:
        """Keep what agrees with what was seen."""
        found = [state for state in self.possible if fits(state)]
        if not found:
            names = [{name: soft for name, (_, soft) in one.items()} for one in self.possible]
            raise LogBroken(f"{what}, but it must be one of {names}")
        self.possible = found[:1]

    def note_gone(self) -> None:
        """Offsets of streams that have gone are never used again."""
        for state in self.possible:
            for name, (stream, _) in state.items():
                top = max(stream.tail, stream.last_offset)
                self.highest[name] = max(self.highest.get(name, 0), top)


def with_stream(state: State, stream: Incarnation) -> State:
    """After a create."""
    return {**state, stream.name: (stream, False)}


def without_stream(state: State, name: str) -> State:
    """After a delete: a stream with forks is kept for them, and goes with the last one."""
    state = dict(state)
    stream: Incarnation | None = state[name][0]
    if _has_forks(state, state[name][0]):
        state[name] = (state[name][0], True)
        return state
    while stream is not None:
        del state[stream.name]
        source = stream.source
        kept = source is not None and state.get(source.name)
        is_next = kept and kept[0] is source and kept[1] and not _has_forks(state, source)
        stream = source if is_next else None
    return state


def _has_forks(state: State, stream: Incarnation) -> bool:
    return any(other.source is stream for other, _ in state.values())
