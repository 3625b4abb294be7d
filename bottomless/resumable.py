"""AsyncResumable: a consumer that goes on where the last one of its name stopped.

Its position is in a stream (bottomless.committed). It never runs ahead of the program: a record
counts as handled when the next one is asked for, so a crash repeats what was handled since the last
commit, at most, and skips nothing.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from typing_extensions import override

from bottomless.bookkeeping import fixed
from bottomless.committed import PositionLog
from bottomless.consumer import AsyncConsumer
from bottomless.errors import Fenced, InvalidRequest
from bottomless.positions import After, Since
from bottomless.reading import Keeping

if TYPE_CHECKING:
    from datetime import datetime

    from bottomless.backoff import Retry
    from bottomless.client import AsyncClient
    from bottomless.consumer import Record
    from bottomless.positions import Start
    from bottomless.transport import Transport


@dataclass(frozen=True, slots=True)
class ResumableOptions:
    """How a resumable consumer works. It commits with whichever comes first, and when it is closed;
    with neither, only `commit` does.
    """

    start: Start = "beginning"
    """Where the first one of the name begins."""
    follow: bool = True
    page: int = 2000
    commit_records: int | None = 1000
    """Commit when so many values are handled."""
    commit_s: float | None = 1.0
    """Commit what is handled so long after the last commit."""

    def __post_init__(self) -> None:
        records, seconds = self.commit_records, self.commit_s
        if (records is not None and records < 1) or (seconds is not None and seconds < 0):
            raise InvalidRequest("a commit comes after 1 value or more, or 0 seconds or more")

    @property
    def is_manual(self) -> bool:
        """Only the program commits."""
        return self.commit_records is None and self.commit_s is None


class AsyncResumable(Keeping["Record"]):
    """Iterate over it, or call `next`. The first call takes over from whoever had the name, who is
    Fenced from then on.
    """

    def __init__(
        self,
        client: AsyncClient,
        transport: Transport,
        stream: str,
        name: str,
        options: ResumableOptions,
    ) -> None:
        self.stream = stream
        self.name = name
        self._client = client
        self._retry = transport.retry
        # A reader has nothing better to do than to wait for its server.
        self._patience = replace(transport.retry, give_up_s=math.inf)
        self._start = options.start
        self._reader = AsyncConsumer(transport, stream, follow=options.follow, page=options.page)
        self._log = PositionLog(client, transport, stream, name, _owner())
        self._commit_records = options.commit_records or math.inf
        self._commit_s = math.inf if options.commit_s is None else options.commit_s
        self._is_manual = options.is_manual
        self._handed: str | None = None
        """Behind what was handed out last."""
        self._handled: str | None = None
        """Behind what the program is done with."""
        self._in_hand = 0
        self._pending = 0
        """Values that are handled, and not committed yet."""
        self._committed: str | None = None
        self._committed_s = 0.0
        self._has_begun = False
        self._is_over = False
        self._fenced: Fenced | None = None
        self._committing = asyncio.Lock()

    @property
    @override
    def position(self) -> str | None:
        """Behind the last value that was handed out; None before the first."""
        return self._handed

    @property
    def committed(self) -> str | None:
        """Where the next one of this name would begin; None before the first call."""
        return self._committed

    @override
    def take_one(self) -> Record | None:
        """The next value if it is here already, and no commit is due."""
        self._settle()
        if self._is_over or self._is_due():
            return None
        record = self._reader.take_one()
        if record is not None:
            self._handed = record.position
            self._in_hand = 1
        return record

    @override
    def take(self) -> list[Record]:
        """All values that are here already; they count as handled with the call after this one."""
        self._settle()
        records = [] if self._is_over else self._reader.take()
        if records:
            self._handed = records[-1].position
            self._in_hand = len(records)
        return records

    @override
    async def commit(self) -> None:
        """Store that everything handed out so far is handled."""
        self._settle()
        await self._store(self._retry)

    async def seek(self, time: datetime | str) -> None:
        """Go on with what was stored at that time or later; the position is stored at once."""
        await self.rewind(Since(time))

    async def rewind(self, start: Start = "beginning") -> None:
        """Go on from there; the position is stored at once."""
        await self._begin()
        position = await fixed(self._client, self.stream, start)
        await self._reader.rewind(After(position))
        self._handed = self._handled = position
        self._in_hand, self._pending = 0, 1
        await self._store(self._retry)

    @override
    async def close(self) -> None:
        """Commit what was handed out, unless commits are made by hand, and stop."""
        if self._is_over:
            return
        self._settle()
        self._is_over = True
        await self._reader.close()
        if not self._is_manual and self._fenced is None:
            await self._store(self._retry)

    @override
    async def _fill(self, deadline_s: float) -> bool:
        if self._is_over:
            return False
        await self._begin()
        while True:
            if self._is_due():
                await self._store(self._patience)
            now_s = _now_s()
            due_s = self._committed_s + self._commit_s if self._pending else math.inf
            until_s = max(now_s, min(deadline_s, due_s))
            if await self._reader.fill(None if until_s == math.inf else until_s - now_s):
                return True
            if _now_s() < until_s:
                # The end: nothing more will come that could make a commit due.
                if not self._is_manual:
                    await self._store(self._patience)
                return False
            if _now_s() >= deadline_s:
                return False

    async def _begin(self) -> None:
        """Take the position over and go to it; once."""
        if self._fenced is not None:
            raise self._fenced
        if self._has_begun:
            return
        position = await self._log.take_over(self._first)
        await self._reader.rewind(After(position))
        self._handed = self._handled = self._committed = position
        self._committed_s = _now_s()
        self._has_begun = True

    async def _first(self) -> str:
        return await fixed(self._client, self.stream, self._start)

    @override
    def _settle(self) -> None:
        """What was handed out is handled: the program has come back for more."""
        self._pending += self._in_hand
        self._in_hand = 0
        self._handled = self._handed

    @override
    def _forget(self) -> None:
        self._in_hand = 0
        self._handed = self._handled

    def _is_due(self) -> bool:
        if not self._pending:
            return False
        is_late = _now_s() >= self._committed_s + self._commit_s
        return is_late or self._pending >= self._commit_records

    async def _store(self, retry: Retry) -> None:
        if self._fenced is not None:
            raise self._fenced
        async with self._committing:
            position, count = self._handled, self._pending
            if not count or position is None:
                return
            try:
                await self._log.store(position, retry)
            except Fenced as error:
                self._fenced = error
                raise
            self._committed, self._committed_s = position, _now_s()
            self._pending -= count


def _owner() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def _now_s() -> float:
    return time.monotonic()
