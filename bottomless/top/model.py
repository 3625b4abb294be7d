"""From samples to rates: a pure fold, with no clock, no terminal and no server in it.

A sample holds counters that only grow while a server lives. What came in is the difference between
two samples, and time is the monotonic clock of whoever looks: wall clocks may step. Nothing is
invented: a counter that begins anew (another life of the server, another stream of the same name)
tells nothing about what came before, and a stream that was not looked at before has no rate yet.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bottomless.client import ListedStream

MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
_MINUTE_STEP_S: Final = 0.9
_HOUR_STEP_S: Final = 30.0
# Streams that are not in the sample now and may come back: others were appended to more recently.
_REMEMBERED_MAX: Final = 2000


class Totals(NamedTuple):
    """What the server says about all its streams together."""

    records: int = 0
    """Appended since it started."""
    bytes: int = 0
    streams: int = 0
    uncommitted_records: int = 0
    uncommitted_bytes: int = 0
    lag_s: float = 0.0
    readers: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a server."""

    at_s: float
    """By a monotonic clock."""
    streams: Sequence[ListedStream]
    totals: Totals
    started: str = ""
    """Which life of the server its counters belong to."""
    now: str | None = None
    """The server's own clock."""
    is_cut: bool = False
    """There are more streams than were listed."""
    scope: str = ""
    """What was asked for: the streams of two scopes cannot be compared."""


class Rates(NamedTuple):
    """What came in. None where that is not known yet."""

    records_s: float | None = None
    """Per second, over the last interval."""
    bytes_s: float | None = None
    records_minute: float = 0.0
    """In the last minute; since the first look where that is shorter ago."""
    bytes_minute: float = 0.0
    records_hour: float = 0.0
    bytes_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A stream, and what came in."""

    stream: ListedStream
    rates: Rates
    age_s: float | None
    """How long ago the last append was."""


@dataclass(frozen=True, slots=True)
class Board:
    """Everything there is to show after a sample."""

    rows: tuple[Row, ...]
    total: Rates
    totals: Totals
    is_cut: bool
    watched_s: float
    """How long the server has been looked at."""
    now: str | None
    scope: str
    """What was asked for."""


class Mark(NamedTuple):
    """How much had come in by then."""

    at_s: float
    records: float
    bytes: float


class Window:
    """What came in during the last minute, or hour; in a bounded number of marks."""

    def __init__(self, length_s: float, step_s: float, begin: Mark) -> None:
        self._length_s = length_s
        self._step_s = step_s
        self._marks = deque([begin])

    def add(self, now: Mark) -> tuple[float, float]:
        """Records and bytes within the window that ends now."""
        marks = self._marks
        begin_s = now.at_s - self._length_s
        while len(marks) > 1 and marks[1].at_s <= begin_s:
            marks.popleft()
        first = marks[0]
        if first.at_s < begin_s:
            first = _between(first, marks[1] if len(marks) > 1 else now, begin_s)
        if now.at_s - marks[-1].at_s >= self._step_s:
            marks.append(now)
        return now.records - first.records, now.bytes - first.bytes


def _between(before: Mark, after: Mark, at_s: float) -> Mark:
    """What had come in by then, if it came evenly."""
    share = (at_s - before.at_s) / (after.at_s - before.at_s)
    return Mark(
        at_s,
        before.records + share * (after.records - before.records),
        before.bytes + share * (after.bytes - before.bytes),
    )


class Meter:
    """One pair of counters, followed over time."""

    def __init__(self, started: str, counters: tuple[int, int], at_s: float) -> None:
        self._started = started
        self._counters = counters
        self._last = Mark(at_s, 0.0, 0.0)
        self._minute = Window(MINUTE_S, _MINUTE_STEP_S, self._last)
        self._hour = Window(HOUR_S, _HOUR_STEP_S, self._last)
        self.rates = Rates()

    def read(self, started: str, counters: tuple[int, int], at_s: float) -> Rates:
        """The counters stand there now."""
        last = self._last
        elapsed_s = at_s - last.at_s
        records, size = (now - before for now, before in zip(counters, self._counters, strict=True))
        is_anew = started != self._started or records < 0 or size < 0
        if is_anew:
            # They count from another beginning: what came in between is not known.
            records = size = 0
        self._started, self._counters = started, counters
        self._last = Mark(at_s, last.records + records, last.bytes + size)
        minute, hour = self._minute.add(self._last), self._hour.add(self._last)
        self.rates = Rates(
            records_s=None if is_anew else records / elapsed_s,
            bytes_s=None if is_anew else size / elapsed_s,
            records_minute=minute[0],
            bytes_minute=minute[1],
            records_hour=hour[0],
            bytes_hour=hour[1],
        )
        return self.rates


class Model:
    """Everything that was seen so far."""

    def __init__(self) -> None:
        self._meters: OrderedDict[str, Meter] = OrderedDict()
        self._total: Meter | None = None
        self._first_s = 0.0
        self._last: Sample | None = None

    def take(self, sample: Sample) -> Board:
        """Add a sample; it must be younger than the one before it."""
        last = self._last
        if last is None:
            self._first_s = sample.at_s
        elif sample.at_s <= last.at_s:
            raise ValueError("samples come in the order of their time")
        total = self._read_total(sample)
        rows = tuple(
            Row(stream, self._read(stream, sample), _age_s(stream.last_append, sample.now))
            for stream in sample.streams
        )
        while len(self._meters) > len(rows) + _REMEMBERED_MAX:
            self._meters.popitem(last=False)
        self._last = sample
        watched_s = sample.at_s - self._first_s
        return Board(
            rows=rows,
            total=total,
            totals=sample.totals,
            is_cut=sample.is_cut,
            watched_s=watched_s,
            now=sample.now,
            scope=sample.scope,
        )

    def _read_total(self, sample: Sample) -> Rates:
        counters = (sample.totals.records, sample.totals.bytes)
        if self._total is None:
            self._total = Meter(sample.started, counters, sample.at_s)
            return self._total.rates
        return self._total.read(sample.started, counters, sample.at_s)

    def _read(self, stream: ListedStream, sample: Sample) -> Rates:
        counters = _counters(stream)
        # Deleted and created again, it is another stream; servers that tell no id cannot say so.
        key = stream.id or stream.name
        meter = self._meters.get(key)
        if meter is None:
            if not self._is_newborn(stream, sample):
                meter = self._meters[key] = Meter(sample.started, counters, sample.at_s)
                return meter.rates
            assert self._last is not None
            meter = self._meters[key] = Meter(sample.started, (0, 0), self._last.at_s)
        self._meters.move_to_end(key)
        return meter.read(sample.started, counters, sample.at_s)

    def _is_newborn(self, stream: ListedStream, sample: Sample) -> bool:
        """Created since the last look, so all it counts came in since then."""
        last = self._last
        return (
            last is not None
            and stream.id is not None
            and not last.is_cut
            and last.scope == sample.scope
            and last.started == sample.started
        )


def _counters(stream: ListedStream) -> tuple[int, int]:
    """Of servers that do not count, the records that are there."""
    if stream.appended_records is None or stream.appended_bytes is None:
        return stream.records, 0
    return stream.appended_records, stream.appended_bytes


def _age_s(then: str | None, now: str | None) -> float | None:
    """Both by the server's clock, which may have been set back meanwhile."""
    if then is None or now is None:
        return None
    elapsed = datetime.fromisoformat(now) - datetime.fromisoformat(then)
    return max(0.0, elapsed.total_seconds())
