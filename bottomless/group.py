"""GroupLog: the log of a group, folded into its state as it grows; and what people see of it.

The log stays short to read: every so many entries somebody writes the state itself, and whoever
comes later begins with the last of those. What lies before may be trimmed.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from bottomless.assignment import (
    BEATS_PER_LEASE,
    Begin,
    Entry,
    GroupMadeAnew,
    GroupState,
    Snapshot,
    apply,
)
from bottomless.bookkeeping import (
    PAGE,
    entries_since,
    group_stream,
    json_array,
    make,
    read_page,
)
from bottomless.errors import DataDamaged, Fenced, Gone, NotFound, Unavailable
from bottomless.positions import START, before, epoch_ms
from bottomless.transport import records_path, stream_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    import httpx

    from bottomless.bookkeeping import StoredEntry
    from bottomless.client import AsyncClient
    from bottomless.transport import Transport

SNAPSHOT_EVERY: Final = 200
# Where the last snapshot is looked for, back from the log's end; at last in all of it.
_LOOK_BACK_MS: Final = (1_000, 60_000, 3_600_000, 200_000_000, 1 << 60)
_JSON: Final = "application/json"
_decode_entry: Final = msgspec.json.Decoder(Entry).decode
# The server stores the first entry once, however many begin the group at the same moment.
_FIRST: Final = {"producer-id": "begin", "producer-epoch": "0", "producer-seq": "0"}


@dataclass(frozen=True, slots=True)
class RangeInfo:
    """A range that somebody works on."""

    after: str
    upto: str
    records: int
    at: str
    """Handled up to here."""


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member that is alive, or was a lease ago."""

    name: str
    seen: datetime
    """When it wrote last, by the server's clock."""
    range: RangeInfo | None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """How far a group is."""

    stream: str
    group: str
    members: tuple[MemberInfo, ...]
    free_ranges: int
    """Ranges that wait for a member."""
    done: str
    """Everything up to this position is handled."""
    cut: str
    """Up to here the stream is given out, or about to be."""
    handled: int
    """Records in the ranges that are done."""
    tail: str
    """The stream's end."""

    @property
    def in_flight(self) -> tuple[RangeInfo, ...]:
        """The ranges that somebody works on."""
        return tuple(member.range for member in self.members if member.range is not None)

    @property
    def lag_s(self) -> float | None:
        """Time between what is handled and the stream's end; None where nothing is handled yet."""
        if self.done >= self.tail:
            return 0.0
        return None if self.done == START else (epoch_ms(self.tail) - epoch_ms(self.done)) / 1000


class GroupLog:
    """One reader's and writer's view of a group."""

    def __init__(
        self,
        client: AsyncClient,
        transport: Transport,
        stream: str,
        group: str,
        *,
        lease_s: float,
    ) -> None:
        self.stream = group_stream(stream, group)
        self.state = GroupState()
        self._client = client
        self._transport = transport
        # Back soon after an outage: the others must not take us for dead.
        longest_s = min(transport.retry.longest_s, lease_s / BEATS_PER_LEASE / 2)
        self._retry = replace(transport.retry, longest_s=longest_s, give_up_s=math.inf)
        self._at = START
        """Folded up to here."""
        self._folding = asyncio.Lock()

    async def open(self, start: Callable[[], Awaitable[str]]) -> None:
        """Fold what there is; where that is nothing, begin at ``start``."""
        await make(self._client, self.stream)
        await self._load()
        if self.state.cut is None:
            await self._append([Begin(await start())], _FIRST)
            await self.refresh()
        if self.state.cut is None:
            raise DataDamaged(
                f"the beginning of {self.stream} is missing",
                hint="Delete that stream to begin the group anew.",
            )

    async def load(self) -> None:
        """Fold what there is; NotFound where there is no such group."""
        await self._client.info(self.stream)
        await self._load()

    async def post(self, *entries: Entry) -> None:
        """Append them in one step, and fold up to them. Sent again where no answer came, so an
        entry may be there twice: the fold takes the second for what it is.
        """
        offset = await self._append(entries)
        await self.refresh()
        if self._at < offset:
            raise self._deleted()
        if self.state.entries >= SNAPSHOT_EVERY:
            await self._append([Snapshot(self._at, self.state)])

    async def refresh(self, wait_s: float = 0.0) -> None:
        """Fold what is new; wait for it that long where there is nothing."""
        async with self._folding:
            while True:
                try:
                    found, is_end = await self._read(self._at, wait_s)
                except Gone:
                    # We were away for so long that what we have not seen is trimmed.
                    await self._load()
                    return
                self._take([(one.offset, self._decode(bytes(one.data))) for one in found])
                if is_end:
                    return
                wait_s = 0.0

    async def request(
        self,
        method: str,
        path: str,
        *,
        content: bytes = b"",
        headers: dict[str, str] | None = None,
        params: dict[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> httpx.Response:
        """Until there is an answer."""
        backoff = self._retry.begin()
        while True:
            try:
                return await self._transport.once(
                    method, path, content=content, headers=headers, params=params, wait_s=wait_s
                )
            except Unavailable as error:
                await backoff.pause(error)

    async def _append(self, entries: Iterable[Entry], headers: dict[str, str] | None = None) -> str:
        """The offset of the last of them."""
        try:
            response = await self.request(
                "POST",
                stream_path(self.stream),
                content=json_array(list(entries)),
                headers={"content-type": _JSON, **(headers or {})},
            )
        except (NotFound, Gone) as error:
            raise self._deleted() from error
        tail = str(response.headers.get("stream-next-offset", "")).replace("_", "")
        if not tail:
            raise DataDamaged(f"{response.url} does not say where the append is")
        return tail

    async def _read(self, after: str, wait_s: float) -> tuple[list[StoredEntry], bool]:
        params = {"offset": after, "limit": str(PAGE), "timeout_sec": f"{wait_s:.3f}"}
        response = await self.request(
            "GET", records_path(self.stream), params=params, wait_s=wait_s
        )
        return read_page(response.content)

    async def _load(self) -> None:
        """Begin anew: with the last snapshot, or with the first entry."""
        tail_ms = epoch_ms((await self._client.info(self.stream)).tail)
        entries: list[tuple[str, Entry]] = []
        for back_ms in _LOOK_BACK_MS:
            found = await entries_since(self._transport, self.stream, tail_ms - back_ms)
            entries = [(one.offset, self._decode(bytes(one.data))) for one in found]
            if self._begin_with(entries):
                return
        self.state, self._at = GroupState(), START
        self._take(entries)

    def _begin_with(self, entries: list[tuple[str, Entry]]) -> bool:
        """Fold from the last snapshot or the first entry on; False where neither is there."""
        for offset, entry in reversed(entries):
            # Only a snapshot whose next entry is among those we have.
            if isinstance(entry, Snapshot) and entry.upto >= entries[0][0]:
                self.state, self._at = entry.state, entry.upto
                self._take(entries)
                return True
            if isinstance(entry, Begin):
                self.state, self._at = GroupState(), before(offset)
                self._take(entries)
                return True
        return False

    def _take(self, entries: list[tuple[str, Entry]]) -> None:
        for offset, entry in entries:
            if offset > self._at:
                self._fold(offset, entry)

    def _fold(self, offset: str, entry: Entry) -> None:
        # Before the beginning there may be a word of a member of the log that was deleted.
        if self.state.cut is not None or isinstance(entry, Begin):
            try:
                apply(self.state, entry, epoch_ms(offset))
            except GroupMadeAnew as error:
                raise self._deleted() from error
        self._at = offset

    def _decode(self, data: bytes) -> Entry:
        try:
            entry: Entry = _decode_entry(data)
        except msgspec.DecodeError as error:
            raise DataDamaged(
                f"{self.stream} holds an entry that is none: {error}",
                hint="Is every member of the group of this version? Delete it to begin anew.",
            ) from error
        return entry

    def _deleted(self) -> Fenced:
        return Fenced(f"the group's log {self.stream} was deleted")


async def group_info(
    client: AsyncClient, transport: Transport, stream: str, group: str
) -> GroupInfo:
    """How far a group is; NotFound where there is none of that name."""
    log = GroupLog(client, transport, stream, group, lease_s=1.0)
    await log.load()
    try:
        tail = (await client.info(stream)).tail.replace("_", "")
    except NotFound:
        tail = START
    return describe(log.state, stream, group, tail=tail)


def describe(state: GroupState, stream: str, group: str, *, tail: str) -> GroupInfo:
    """The state in words of its own."""
    members = []
    for name, member in state.members.items():
        held = state.range_of(name)
        info = None if held is None else RangeInfo(held.after, held.upto, held.count, held.at)
        members.append(MemberInfo(name, datetime.fromtimestamp(member.seen_ms / 1000, UTC), info))
    return GroupInfo(
        stream,
        group,
        tuple(members),
        sum(one.owner is None for one in state.ranges),
        done=state.done or START,
        cut=state.cut or START,
        handled=state.handled,
        tail=tail,
    )
