"""PositionLog: the position of a resumable consumer, in a stream that one owner at a time writes.

Every owner has a version of its own (docs/records.md, ``version``). Raising it shuts out all owners
before, for good: the server judges versions in the order of its log. Two who raise it to the same
number at the same moment are told apart by their first write: it has number 0 of the producer
epoch of that version, and the server stores one of those.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from bottomless.bookkeeping import entries_since, make, position_stream
from bottomless.errors import (
    BottomlessError,
    Conflict,
    DataDamaged,
    Fenced,
    NotFound,
    Unavailable,
)
from bottomless.positions import epoch_ms
from bottomless.transport import records_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bottomless.backoff import Retry
    from bottomless.client import AsyncClient
    from bottomless.transport import Transport

_PRODUCER: Final = "owner"
_JSON: Final = "application/json"
# Each round is lost to somebody who came at the same moment; that many do not come by chance.
_ROUNDS: Final = 30


class _Entry(msgspec.Struct, frozen=True):
    position: str
    owner: str
    version: int


class _Answer(msgspec.Struct):
    version: int = 0
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """What a resumable consumer has stored last."""

    position: str
    owner: str
    version: int
    time: datetime
    """When, by the server's clock."""


class PositionLog:
    """One owner's access to the position of (stream, name)."""

    def __init__(
        self, client: AsyncClient, transport: Transport, stream: str, name: str, owner: str = ""
    ) -> None:
        self._client = client
        self._transport = transport
        self._retry = transport.retry
        self._name = name
        self.stream = position_stream(stream, name)
        self.owner = owner
        self._version = 0
        self._seq = 0
        self._unanswered: bytes | None = None
        """Sent, but whether it is stored is not known: nothing else may take its number."""

    async def last(self) -> Committed | None:
        """What was stored last, by whomever."""
        try:
            tail = (await self._client.info(self.stream)).tail
        except NotFound:
            return None
        found = await entries_since(self._transport, self.stream, epoch_ms(tail))
        if not found:
            return None
        try:
            entry = msgspec.json.decode(found[-1].data, type=_Entry)
        except msgspec.DecodeError as error:
            raise DataDamaged(
                f"{self.stream} holds no positions: {error}",
                hint="Delete that stream to begin anew.",
            ) from error
        time = datetime.fromtimestamp(epoch_ms(found[-1].offset) / 1000, UTC)
        return Committed(entry.position, entry.owner, entry.version, time)

    async def take_over(self, first: Callable[[], Awaitable[str]]) -> str:
        """Shut out whoever had it, and return the position to go on from; ``first`` tells the one
        of a name that is new.
        """
        await make(self._client, self.stream)
        for lost in range(_ROUNDS):
            self._version = (await self._post([], None)).version + 1
            self._seq, self._unanswered = 0, None
            try:
                await self._post([], self._version)
                # No owner before can write any more: this is the last of their positions.
                last = await self.last()
                position = await first() if last is None else last.position
                if await self._write(position) or await self._is_mine():
                    return position
            except Fenced:
                # Who lost together would lose together again.
                ceiling_s = min(self._retry.longest_s, self._retry.first_s * 2.0**lost)
                await asyncio.sleep(self._retry.rng.uniform(0, ceiling_s))
        raise Fenced(f"too many take over the position {self._name!r} at the same time")

    async def store(self, position: str, retry: Retry) -> None:
        """Commit; Fenced where somebody else has taken over."""
        self._retry = retry
        if self._unanswered is not None:
            await self._send(self._unanswered)
        await self._write(position)

    async def _write(self, position: str) -> bool:
        return await self._send(self._body([_Entry(position, self.owner, self._version)]))

    async def _is_mine(self) -> bool:
        """The first write was stored before: by its first try, or by another of this version?"""
        last = await self.last()
        return last is not None and (last.owner, last.version) == (self.owner, self._version)

    async def _send(self, body: bytes) -> bool:
        """Until it is answered; False where the server had that number already."""
        self._unanswered = body
        headers = {"producer-id": _PRODUCER, "producer-epoch": str(self._version)}
        headers["producer-seq"] = str(self._seq)
        try:
            answer = await self._call(body, {"version": str(self._version)}, headers)
        except Conflict as error:
            if error.code != "sequence_gap":
                raise
            raise Fenced(
                f"{self.stream} was deleted", hint="Begin anew with a new consumer."
            ) from error
        self._unanswered = None
        self._seq += 1
        return not answer.duplicate

    async def _post(self, entries: list[_Entry], version: int | None) -> _Answer:
        params = {} if version is None else {"version": str(version)}
        return await self._call(self._body(entries), params, {})

    async def _call(self, body: bytes, params: dict[str, str], headers: dict[str, str]) -> _Answer:
        headers = {"content-type": _JSON, **headers}
        backoff = self._retry.begin()
        while True:
            try:
                response = await self._transport.once(
                    "POST", records_path(self.stream), content=body, params=params, headers=headers
                )
            except Unavailable as error:
                await backoff.pause(error)
            except Fenced as error:
                raise _fenced(self._name, error) from error
            else:
                return msgspec.json.decode(response.content, type=_Answer)

    @staticmethod
    def _body(entries: list[_Entry]) -> bytes:
        return msgspec.json.encode({"records": entries})


def _fenced(name: str, error: BottomlessError) -> Fenced:
    return Fenced(
        f"another consumer has taken over the position {name!r}",
        code=error.code,
        hint="Two programs run under one name: stop one, or give it a name of its own.",
        status=error.status,
    )
