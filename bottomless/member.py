"""AsyncMember: one of a group that shares the records of a stream.

It asks the group's log for a range (bottomless.assignment), hands its records out, says when they
are handled, and tells in the background that it is alive. A record counts as handled when the next
one is asked for. Where a member dies, its range goes to another, from the last place it told.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import msgspec

from bottomless.assignment import BEATS_PER_LEASE, Ask, Beat, Cut, Done, Entry, Join, Leave
from bottomless.bookkeeping import StoredPage, fixed
from bottomless.errors import BottomlessError, Fenced, Gone, InvalidRequest
from bottomless.group import GroupLog, group_info
from bottomless.positions import START
from bottomless.transport import records_path
from bottomless.work import Work

if TYPE_CHECKING:
    from types import TracebackType

    from bottomless.client import AsyncClient
    from bottomless.consumer import Record
    from bottomless.group import GroupInfo
    from bottomless.positions import Start
    from bottomless.transport import Transport

_GRACE_S: Final = 1.0
_LEASE_S_MIN: Final = 0.2
_RECORDS_MAX: Final = 10_000
_POLL_S: Final = 20.0
_decode_page: Final = msgspec.json.Decoder(StoredPage).decode


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """How a member works."""

    start: Start = "beginning"
    """Where the group begins; only its first member is asked."""
    follow: bool = True
    """False: end when all that is there is handled, by whomever."""
    name: str | None = None
    """What people know it by; something of its own is added."""
    lease_s: float = 10.0
    """After so much silence its records go to another."""
    range_records: int = 250
    """How many records a member takes at a time."""

    def __post_init__(self) -> None:
        if self.lease_s < _LEASE_S_MIN or not 1 <= self.range_records <= _RECORDS_MAX:
            raise InvalidRequest(
                f"a lease has {_LEASE_S_MIN} s or more, a range 1 to {_RECORDS_MAX} records"
            )


class AsyncMember:
    """Iterate over it, or call `next`. Joins with the first call; leave it with `close`."""

    def __init__(
        self,
        client: AsyncClient,
        transport: Transport,
        stream: str,
        group: str,
        options: MemberOptions,
    ) -> None:
        self.stream = stream
        self.group = group
        self._client = client
        self._transport = transport
        self._start = options.start
        self._follow = options.follow
        self._lease_s = options.lease_s
        self._records = options.range_records
        # Never the name of one that was before: the log strikes names off for good.
        self._label = f"{options.name or socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._lives = 0
        self._log = GroupLog(client, transport, stream, group, lease_s=self._lease_s)
        self.name: str | None = None
        """Its name in the group's log; None while it is no member."""
        self._work: Work | None = None
        self._heard_s = -math.inf
        """When our last word that is in the log was sent."""
        self._trouble: BottomlessError | None = None
        """What the heartbeat ran into; told with the next call."""
        self._beats: asyncio.Task[None] | None = None
        self._is_over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        # What was in hand when it failed goes to another.
        if self._work is not None:
            self._work.forget()
        with contextlib.suppress(BottomlessError):
            await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        record = await self.next()
        if record is None:
            raise StopAsyncIteration
        return record

    @property
    def position(self) -> str | None:
        """Behind the last value that was handed out, while its range is in work."""
        return None if self._work is None else self._work.position

    async def next(self, timeout_s: float | None = None) -> Record | None:
        """The next value; those before it count as handled. None at the end, or where none came
        in ``timeout_s`` seconds. Fenced, once, where what was in hand has gone to another; the
        call after that goes on with other records.
        """
        record = self.take_one()
        if record is None and await self.fill(timeout_s):
            record = self.take_one()
        return record

    def take_one(self) -> Record | None:
        """The next value if it is here already, and surely still ours."""
        records = self._take(1)
        return records[0] if records else None

    def take(self) -> list[Record]:
        """All values that are here already; they count as handled with the call after this one."""
        return self._take(None)

    async def fill(self, timeout_s: float | None = None) -> bool:
        """Make `take` useful: say what is handled, wait for values; False at the end, or when the
        time is up.
        """
        if self._work is not None:
            self._work.settle()
        if timeout_s is None:
            return await self._fill(math.inf)
        deadline_s = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S):
                return await self._fill(deadline_s)
        except TimeoutError:
            return False

    async def commit(self) -> None:
        """Tell the group that everything handed out so far is handled."""
        self._raise_trouble()
        if self._work is not None:
            self._work.settle()
            await self._post(self._progress())
            self._raise_trouble()

    async def info(self) -> GroupInfo:
        """How far the group is."""
        return await group_info(self._client, self._transport, self.stream, self.group)

    async def close(self) -> None:
        """Say that what was handed out is handled, and leave: others go on at once."""
        if self._is_over:
            return
        self._is_over = True
        await self._stop_beats()
        if self.name is None:
            return
        # Where the server is away the lease ends by itself.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._lease_s + _GRACE_S):
                if self._work is not None:
                    self._work.settle()
                    await self._post(self._progress())
                if self.name is not None:
                    await self._log.post(Leave(self.name))
        self._raise_trouble()

    # What the group is told.

    def _progress(self) -> Entry:
        assert self.name is not None
        work = self._work
        if work is None:
            return Beat(self.name)
        if work.is_handled:
            return Done(self.name, work.range.after)
        return Beat(self.name, work.range.after, work.handled)

    async def _post(self, *entries: Entry) -> None:
        """Write, and see what has become of us."""
        sent_s = time.monotonic()
        name = self.name
        try:
            await self._log.post(*entries)
        except Fenced as error:
            self._lose(error)
            return
        if name is None or name != self.name:
            return
        if name in self._log.state.members:
            self._heard_s = sent_s
            return
        self._lose(
            Fenced(
                f"{name} was silent for longer than its lease of {self._lease_s} s: its records"
                f" went to other members of {self.group!r}"
            )
        )

    def _lose(self, error: Fenced) -> None:
        """We are no member any more: drop the range; tell the program if it has seen any of it."""
        if self._work is not None and self._work.was_seen:
            self._trouble = error
        self.name, self._work = None, None

    def _raise_trouble(self) -> None:
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    async def _join(self) -> None:
        # Another look from the start: what we had folded may be of a log that is gone.
        self._log = GroupLog(
            self._client, self._transport, self.stream, self.group, lease_s=self._lease_s
        )
        await self._log.open(self._first)
        self._lives += 1
        name, sent_s = f"{self._label}.{self._lives}", time.monotonic()
        await self._log.post(Join(name, int(self._lease_s * 1000)))
        self.name, self._heard_s = name, sent_s
        if self._beats is None:
            self._beats = asyncio.get_running_loop().create_task(self._beat(), name="heartbeat")

    async def _first(self) -> str:
        return await fixed(self._client, self.stream, self._start)

    async def _beat(self) -> None:
        """Tell that we are alive, and how far we are."""
        while True:
            await asyncio.sleep(self._lease_s / BEATS_PER_LEASE)
            if self.name is None:
                continue
            try:
                await self._post(self._progress())
            except BottomlessError as error:
                self._trouble = error
            except RuntimeError:
                # The client was closed before us; the lease ends by itself.
                return

    async def _stop_beats(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
            self._beats = None

    # What the program gets.

    def _take(self, count: int | None) -> list[Record]:
        work = self._work
        if work is None:
            return []
        work.settle()
        # Whoever was stopped for a while asks the log first whether this is still its own.
        if self._is_over or self._trouble is not None or not self._is_sure:
            return []
        return work.take(count)

    @property
    def _is_sure(self) -> bool:
        return time.monotonic() - self._heard_s < self._lease_s

    async def _fill(self, deadline_s: float) -> bool:
        while not self._is_over:
            self._raise_trouble()
            if self.name is None:
                await self._join()
                continue
            if not self._is_sure:
                await self._post(self._progress())
                continue
            self._adopt()
            work = self._work
            if work is None:
                if self._log.state.has_free:
                    await self._post(Ask(self.name))
                elif not await self._cut(deadline_s) or time.monotonic() >= deadline_s:
                    return False
            elif work.ready:
                return True
            elif work.is_handled:
                await self._post(self._progress(), Ask(self.name))
            else:
                await work.load()
        return False

    def _adopt(self) -> None:
        """Work on what the log says is ours."""
        assert self.name is not None
        held = self._log.state.range_of(self.name)
        if held is None:
            self._work = None
        elif self._work is None or self._work.range.after != held.after:
            self._work = Work(self._transport, self.stream, held)

    async def _cut(self, deadline_s: float) -> bool:
        """No range is free: cut new ones off the stream, or wait for some; False at the end."""
        assert self.name is not None
        state = self._log.state
        assert state.cut is not None
        wait_s = max(0.0, min(deadline_s - time.monotonic(), _POLL_S, self._lease_s / 2))
        count = min(_RECORDS_MAX, self._records * max(1, len(state.members)))
        after = state.cut
        offsets, is_closed = await self._offsets(after, count, wait_s if self._follow else 0.0)
        if offsets:
            ends = [offsets[n : n + self._records] for n in range(0, len(offsets), self._records)]
            ranges = tuple((part[-1], len(part)) for part in ends)
            await self._post(Cut(after, ranges), Ask(self.name))
            return True
        if self._follow and not is_closed:
            await self._refresh(0.0)
            return True
        # Nothing more will come. Stay until all is done: somebody may die with the rest.
        await self._refresh(wait_s if state.ranges else 0.0)
        state = self._log.state
        return self.name is None or bool(state.ranges) or state.cut != after

    async def _refresh(self, wait_s: float) -> None:
        try:
            await self._log.refresh(wait_s)
        except Fenced as error:
            self._lose(error)

    async def _offsets(self, after: str, count: int, wait_s: float) -> tuple[list[str], bool]:
        """Those of the next records, and whether none will ever follow."""
        params = {"offset": after, "limit": str(count), "timeout_sec": f"{wait_s:.3f}"}
        path = records_path(self.stream)
        try:
            response = await self._log.request("GET", path, params=params, wait_s=wait_s)
        except Gone:
            # Trimmed. Whoever gets the first range is told.
            params["offset"] = START
            response = await self._log.request("GET", path, params=params, wait_s=wait_s)
        page = _decode_page(response.content)
        is_closed = response.headers.get("stream-closed") == "true"
        return [entry.offset for entry in page.records if entry.offset > after], is_closed
