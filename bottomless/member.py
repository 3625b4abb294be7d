"""AsyncMember: one of a group that shares the records of a stream.

It asks the group's log for a range (bottomless.assignment), hands its records out, says when they
are handled, and tells in the background that it is alive. A record counts as handled when the next
one is asked for. Where a member dies, its range goes to another, from the last place it told.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec
from typing_extensions import override

from bottomless.bookkeeping import StoredPage
from bottomless.errors import Gone
from bottomless.group import group_info
from bottomless.membership import RECORDS_MAX, Membership
from bottomless.positions import START
from bottomless.reading import Keeping
from bottomless.transport import records_path

if TYPE_CHECKING:
    from bottomless.client import AsyncClient
    from bottomless.consumer import Record
    from bottomless.group import GroupInfo
    from bottomless.membership import MemberOptions
    from bottomless.transport import Transport

_POLL_S: Final = 20.0
_decode_page: Final = msgspec.json.Decoder(StoredPage).decode


class AsyncMember(Keeping["Record"]):
    """Iterate over it, or call `next`. Joins with the first call; leave it with `close`. Fenced,
    once, where what was in hand has gone to another; the call after that goes on with other
    records.
    """

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
        self._options = options
        self._seat = Membership(client, transport, stream, group, options)
        self._is_over = False

    @property
    def name(self) -> str | None:
        """Its name in the group's log; None while it is no member."""
        return self._seat.name

    @property
    @override
    def position(self) -> str | None:
        """Behind the last value that was handed out, while its range is in work."""
        return None if self._seat.work is None else self._seat.work.position

    @override
    def take_one(self) -> Record | None:
        """The next value if it is here already, and surely still ours."""
        records = self._take(1)
        return records[0] if records else None

    @override
    def take(self) -> list[Record]:
        """All values that are here already; they count as handled with the call after this one."""
        return self._take(None)

    @override
    async def commit(self) -> None:
        """Tell the group that everything handed out so far is handled."""
        self._settle()
        if self._seat.work is not None:
            await self._seat.tell()
        self._seat.raise_trouble()

    async def info(self) -> GroupInfo:
        """How far the group is."""
        return await group_info(self._client, self._transport, self.stream, self.group)

    @override
    async def close(self) -> None:
        """Say that what was handed out is handled, and leave: others go on at once."""
        if self._is_over:
            return
        self._is_over = True
        self._settle()
        await self._seat.leave()
        self._seat.raise_trouble()

    @override
    def _settle(self) -> None:
        if self._seat.work is not None:
            self._seat.work.settle()

    @override
    def _forget(self) -> None:
        # It goes to another.
        if self._seat.work is not None:
            self._seat.work.forget()

    def _take(self, count: int | None) -> list[Record]:
        work = self._seat.work
        if work is None:
            return []
        work.settle()
        # Whoever was stopped for a while asks the log first whether this is still its own.
        return work.take(count) if self._seat.is_sure and not self._is_over else []

    @override
    async def _fill(self, deadline_s: float) -> bool:
        seat = self._seat
        while not self._is_over:
            seat.raise_trouble()
            if seat.name is None:
                await seat.join()
                continue
            if not seat.is_sure:
                await seat.tell()
                continue
            seat.adopt()
            work = seat.work
            if work is None:
                if seat.state.has_free:
                    await seat.ask()
                elif not await self._cut(deadline_s) or time.monotonic() >= deadline_s:
                    return False
            elif work.ready:
                return True
            elif work.is_handled:
                await seat.ask()
            else:
                await work.load()
        return False

    async def _cut(self, deadline_s: float) -> bool:
        """No range is free: cut new ones off the stream, or wait for some; False at the end."""
        seat, follow, size = self._seat, self._options.follow, self._options.range_records
        after = seat.state.cut
        assert after is not None
        # Half a lease: it is worth a look then whether somebody has died.
        wait_s = min(deadline_s - time.monotonic(), _POLL_S, self._options.lease_s / 2)
        wait_s = max(0.0, wait_s)
        count = min(RECORDS_MAX, size * max(1, len(seat.state.members)))
        offsets, is_closed = await self._offsets(after, count, wait_s if follow else 0.0)
        if seat.name is None:
            # Struck off while we waited.
            return True
        if offsets:
            parts = [offsets[first : first + size] for first in range(0, len(offsets), size)]
            await seat.cut(after, tuple((part[-1], len(part)) for part in parts))
            return True
        if follow and not is_closed:
            await seat.listen(0.0)
            return True
        # Nothing more will come. Stay until all is done: somebody may die with the rest.
        await seat.listen(wait_s if seat.state.ranges else 0.0)
        return seat.name is None or bool(seat.state.ranges) or seat.state.cut != after

    async def _offsets(self, after: str, count: int, wait_s: float) -> tuple[list[str], bool]:
        """Those of the next records, and whether none will ever follow."""
        params = {"offset": after, "limit": str(count), "timeout_sec": f"{wait_s:.3f}"}
        path, request = records_path(self.stream), self._seat.log.request
        try:
            response = await request("GET", path, params=params, wait_s=wait_s)
        except Gone:
            # Trimmed. Whoever gets the first range is told.
            params["offset"] = START
            response = await request("GET", path, params=params, wait_s=wait_s)
        page = _decode_page(response.content)
        is_closed = response.headers.get("stream-closed") == "true"
        return [entry.offset for entry in page.records if entry.offset > after], is_closed
