"""AsyncClient: a server's streams: make, look at, append, read, close, delete, produce, consume.

`bottomless.connect` gives the same without ``await``.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import msgspec

from bottomless.committed import PositionLog
from bottomless.consumer import AsyncConsumer
from bottomless.delivery import Delivery, ProducerOptions
from bottomless.errors import DataDamaged, InvalidRequest, NotFound
from bottomless.formats import format_of
from bottomless.group import group_info
from bottomless.member import AsyncMember
from bottomless.membership import MemberOptions
from bottomless.producer import AsyncProducer
from bottomless.resumable import AsyncResumable, ResumableOptions
from bottomless.transport import Transport, stream_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    import httpx

    from bottomless.backoff import Retry
    from bottomless.batches import Batch
    from bottomless.committed import Committed
    from bottomless.consumer import Record
    from bottomless.formats import Value
    from bottomless.group import GroupInfo
    from bottomless.positions import Start

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What the server says about a stream."""

    name: str
    content_type: str
    tail: str
    is_closed: bool


class ListedStream(msgspec.Struct, frozen=True):
    """One row of `streams`."""

    name: str
    content_type: str
    tail: str
    closed: bool
    records: int
    bytes: int
    files: int
    last_append: str | None = None
    ttl_seconds: int | None = None
    expires_at: str | None = None
    fault: str | None = None
    id: str | None = None
    """Another one when the name is deleted and created again."""
    appended_records: int | None = None
    """Since the server started; None where it does not tell, like what follows."""
    appended_bytes: int | None = None
    uncommitted_records: int | None = None
    uncommitted_bytes: int | None = None
    commit_lag_ms: int | None = None
    readers: int | None = None
    writers: int | None = None


class _ListPage(msgspec.Struct):
    streams: list[ListedStream]
    next: str | None = None


class AsyncClient:
    """Connections to one server; use it with ``async with``."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        retry: Retry | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._transport = Transport(url, token=token, timeout_s=timeout_s, retry=retry, http=http)
        self.url = self._transport.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give the connections back."""
        await self._transport.close()

    async def create(
        self,
        stream: str,
        content_type: str = JSON,
        *,
        ttl_s: int | None = None,
        fork_of: str | None = None,
        fork_at: str | None = None,
    ) -> bool:
        """Make a stream; False where it is there already, just like that. Conflict where it is
        another.
        """
        headers = {"content-type": content_type}
        if ttl_s is not None:
            headers["stream-ttl"] = str(ttl_s)
        if fork_of is not None:
            headers["stream-forked-from"] = stream_path(fork_of)
        if fork_at is not None:
            headers["stream-fork-offset"] = fork_at
        response = await self._transport.call("PUT", stream_path(stream), headers=headers)
        return response.status_code == 201

    async def info(self, stream: str) -> StreamInfo:
        """Type, tail and whether it is closed; NotFound where it is not there."""
        headers = (await self._transport.call("HEAD", stream_path(stream))).headers
        return StreamInfo(
            stream,
            headers["content-type"],
            headers["stream-next-offset"],
            headers.get("stream-closed") == "true",
        )

    async def streams(self, prefix: str = "", *, page: int = 1000) -> AsyncIterator[ListedStream]:
        """All streams, or those whose names begin so, in the order of their names; asked for so
        many at a time.
        """
        params = {"prefix": prefix, "limit": str(page)}
        while True:
            response = await self._transport.call("GET", "/v1/streams", params=params)
            try:
                found = msgspec.json.decode(response.content, type=_ListPage)
            except msgspec.DecodeError as error:
                raise DataDamaged(f"the list of streams cannot be read: {error}") from error
            for stream in found.streams:
                yield stream
            if found.next is None:
                return
            params["after"] = found.next

    async def append(self, stream: str, *values: Value, ack: str | None = None) -> str | None:
        """Store values, in one step and once; returns the stream's tail after them. Answered when
        they are durable: in the log, or with ``ack="table"`` in the Delta table.
        """
        if not values:
            raise InvalidRequest("there is nothing to append")
        content_type = (await self.info(stream)).content_type
        format_ = format_of(content_type)
        if len(values) > 1 and not format_.joins:
            raise InvalidRequest(f"{content_type} takes one value an append")
        # A producer for this one append: it may be sent again and is stored once.
        headers = {"content-type": content_type, "producer-id": f"py-{uuid.uuid4().hex}"}
        headers |= {"producer-epoch": "0", "producer-seq": "0"}
        if ack is not None:
            headers["stream-ack"] = ack
        body = format_.join([format_.encode(value) for value in values])
        response = await self._transport.call(
            "POST", stream_path(stream), content=body, headers=headers
        )
        tail: str | None = response.headers.get("stream-next-offset")
        return tail

    async def read(
        self, stream: str, start: Start = "beginning", *, limit: int | None = None
    ) -> list[Record]:
        """What is there now, from a place on, and at most ``limit`` values of it."""
        await self.info(stream)
        found: list[Record] = []
        async with self.consumer(stream, start, follow=False) as consumer:
            while (limit is None or len(found) < limit) and await consumer.fill():
                found += consumer.take()
        return found[:limit]

    async def close(self, stream: str) -> None:
        """Close it: its readers come to an end, and nothing is added any more."""
        await self._transport.call("POST", stream_path(stream), headers={"stream-closed": "true"})

    async def delete(self, stream: str) -> None:
        """Delete it with everything in it; NotFound where it is not there."""
        await self._transport.call("DELETE", stream_path(stream))

    async def settings(self, stream: str, **changes: Any) -> dict[str, Any]:
        """A stream's own settings, after these changes (docs/streams.md)."""
        path = f"{stream_path(stream)}/_settings"
        if changes:
            body = msgspec.json.encode(changes)
            await self._transport.call("PATCH", path, content=body, headers={"content-type": JSON})
        response = await self._transport.call("GET", path)
        found: dict[str, Any] = msgspec.json.decode(response.content)
        return found

    async def producer(
        self, stream: str, *, create: bool = True, content_type: str | None = None, **options: Any
    ) -> AsyncProducer:
        """A producer; the options are those of ProducerOptions. Makes the stream where there is
        none.
        """
        if create:
            await self._ensure(stream, content_type)
        found = (await self.info(stream)).content_type
        made, format_ = ProducerOptions(**options), format_of(found)

        def deliver(done: Callable[[Batch], None]) -> Delivery:
            path = stream_path(stream)
            return Delivery(self._transport, path, found, made, format_=format_, done=done)

        return AsyncProducer(stream, format_, made, deliver)

    def consumer(
        self,
        stream: str,
        start: Start = "beginning",
        *,
        follow: bool = True,
        page: int = 2000,
        decode: bool = True,
    ) -> AsyncConsumer:
        """A reader from a place on. Without ``decode`` a value is a stored record's own bytes."""
        return AsyncConsumer(
            self._transport, stream, start, follow=follow, page=page, decode=decode
        )

    def resumable(
        self, stream: str, name: str, start: Start = "beginning", **options: Any
    ) -> AsyncResumable:
        """A reader that goes on where the last one of its name stopped; the options are those of
        ResumableOptions.
        """
        made = ResumableOptions(start, **options)
        return AsyncResumable(self, self._transport, stream, name, made)

    async def committed(self, stream: str, name: str) -> Committed | None:
        """Where the next resumable consumer of that name would begin; None where none was."""
        return await PositionLog(self, self._transport, stream, name).last()

    def balanced(
        self, stream: str, group: str, start: Start = "beginning", **options: Any
    ) -> AsyncMember:
        """A member of a group that shares the records; the options are those of MemberOptions."""
        made = MemberOptions(start, **options)
        return AsyncMember(self, self._transport, stream, group, made)

    async def group_info(self, stream: str, group: str) -> GroupInfo:
        """How far a group is, and who works on what; NotFound where there is none of that name."""
        return await group_info(self, self._transport, stream, group)

    async def _ensure(self, stream: str, content_type: str | None) -> None:
        try:
            found = (await self.info(stream)).content_type
        except NotFound:
            await self.create(stream, content_type or JSON)
            return
        if content_type is not None and format_of(found) is not format_of(content_type):
            raise InvalidRequest(f"{stream} is there already, and is {found}")
