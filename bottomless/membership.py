"""Membership: what a member and its group tell each other: joining, the heartbeat, who has what."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bottomless.assignment import BEATS_PER_LEASE, Ask, Beat, Cut, Done, Entry, Join, Leave
from bottomless.bookkeeping import fixed
from bottomless.errors import BottomlessError, Fenced, InvalidRequest
from bottomless.group import GroupLog
from bottomless.work import Work

if TYPE_CHECKING:
    from bottomless.assignment import GroupState
    from bottomless.client import AsyncClient
    from bottomless.positions import Start
    from bottomless.transport import Transport

RECORDS_MAX: Final = 10_000
_LEASE_S_MIN: Final = 0.2
_GRACE_S: Final = 1.0


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
        if self.lease_s < _LEASE_S_MIN or not 1 <= self.range_records <= RECORDS_MAX:
            raise InvalidRequest(
                f"a lease has {_LEASE_S_MIN} s or more, a range 1 to {RECORDS_MAX} records"
            )


class Membership:
    """One member's seat in its group; a new one, of another name, after each time it was lost."""

    def __init__(
        self,
        client: AsyncClient,
        transport: Transport,
        stream: str,
        group: str,
        options: MemberOptions,
    ) -> None:
        self._client = client
        self._transport = transport
        self._stream = stream
        self._group = group
        self._start = options.start
        self._lease_s = options.lease_s
        # Never the name of one that was before: the log strikes names off for good.
        self._label = f"{options.name or socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._lives = 0
        self._heard_s = -math.inf
        """When our last word that is in the log was sent."""
        self._trouble: BottomlessError | None = None
        """What the program has to be told."""
        self._beats: asyncio.Task[None] | None = None
        self.name: str | None = None
        """Its name in the group's log; None while it is no member."""
        self.work: Work | None = None
        """The range that is ours."""
        self.log = self._new_log()

    @property
    def state(self) -> GroupState:
        """What the group's log says, as far as we have read it."""
        return self.log.state

    @property
    def is_sure(self) -> bool:
        """What was ours is ours still: our lease has not ended, whoever else has written."""
        return self._trouble is None and time.monotonic() - self._heard_s < self._lease_s

    def raise_trouble(self) -> None:
        """Tell the program, once."""
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    async def join(self) -> None:
        """Become a member, and stay one with a heartbeat."""
        # Another look from the start: what we had folded may be of a log that is gone.
        self.log = self._new_log()
        await self.log.open(self._first)
        self._lives += 1
        name, sent_s = f"{self._label}.{self._lives}", time.monotonic()
        await self.log.post(Join(name, int(self._lease_s * 1000)))
        self.name, self._heard_s = name, sent_s
        if self._beats is None:
            self._beats = asyncio.get_running_loop().create_task(self._beat(), name="heartbeat")

    async def ask(self) -> None:
        """Want a range; the one we had is handled."""
        assert self.name is not None
        done = [] if self.work is None else [self._progress()]
        await self._post(*done, Ask(self.name))

    async def cut(self, after: str, ranges: tuple[tuple[str, int], ...]) -> None:
        """Add ranges behind the last one, and want one of them."""
        assert self.name is not None
        await self._post(Cut(after, ranges), Ask(self.name))

    async def tell(self) -> None:
        """Say that we are alive, and how far we are."""
        await self._post(self._progress())

    async def listen(self, wait_s: float) -> None:
        """Read what the others say."""
        try:
            await self.log.refresh(wait_s)
        except Fenced as error:
            self._lose(error)

    async def leave(self) -> None:
        """Say how far we are, and go; where the server is away the lease ends by itself."""
        await self.stop_beats()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._lease_s + _GRACE_S):
                if self.work is not None:
                    await self.tell()
                if self.name is not None:
                    await self.log.post(Leave(self.name))

    async def stop_beats(self) -> None:
        """Fall silent."""
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
            self._beats = None

    def adopt(self) -> None:
        """Work on what the log says is ours."""
        assert self.name is not None
        held = self.state.range_of(self.name)
        if held is None:
            self.work = None
        elif self.work is None or self.work.range.after != held.after:
            self.work = Work(self._transport, self._stream, held)

    def _progress(self) -> Entry:
        assert self.name is not None
        work = self.work
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
            await self.log.post(*entries)
        except Fenced as error:
            self._lose(error)
            return
        if name is None or name != self.name:
            return
        if name in self.state.members:
            self._heard_s = sent_s
            return
        self._lose(
            Fenced(
                f"{name} was silent for longer than its lease of {self._lease_s} s: its records"
                f" went to other members of {self._group!r}"
            )
        )

    def _lose(self, error: Fenced) -> None:
        """We are no member any more: drop the range; tell the program if it has seen any of it."""
        if self.work is not None and self.work.was_seen:
            self._trouble = error
        self.name, self.work = None, None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / BEATS_PER_LEASE)
            if self.name is None:
                continue
            try:
                await self.tell()
            except BottomlessError as error:
                self._trouble = error
            except RuntimeError:
                # The client was closed before us; the lease ends by itself.
                return

    async def _first(self) -> str:
        return await fixed(self._client, self._stream, self._start)

    def _new_log(self) -> GroupLog:
        return GroupLog(
            self._client, self._transport, self._stream, self._group, lease_s=self._lease_s
        )
