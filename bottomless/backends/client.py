"""BackendClient: the shape of AsyncClient over any backend, and which backend an address names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, Self

from bottomless.backends.consumer import SourceConsumer
from bottomless.backends.delivery import SinkDelivery
from bottomless.backoff import Retry
from bottomless.client import AsyncClient
from bottomless.delivery import ProducerOptions
from bottomless.errors import InvalidRequest
from bottomless.formats import format_of
from bottomless.producer import AsyncProducer

if TYPE_CHECKING:
    from types import TracebackType

    from bottomless.backends.base import Backend
    from bottomless.consumer import Record
    from bottomless.formats import Value
    from bottomless.positions import Start

# Imported when an address asks for it: two of them want a library that is an extra.
_HOMES: Final = {
    "file": ("bottomless.backends.files", "FileBackend"),
    "stdio": ("bottomless.backends.stdio", "StdioBackend"),
    "redis": ("bottomless.backends.redis_streams", "RedisBackend"),
    "rediss": ("bottomless.backends.redis_streams", "RedisBackend"),
    "kafka": ("bottomless.backends.kafka_topics", "KafkaBackend"),
}
SCHEMES: Final = ("http", "https", *_HOMES)


class BackendClient:
    """Streams that are not on a server of ours; use it with ``async with``."""

    def __init__(self, url: str, *, retry: Retry | None = None) -> None:
        scheme = url.partition("://")[0]
        if scheme not in _HOMES:
            raise InvalidRequest(
                f"{url!r} is no address", hint=f"They begin with {':// '.join(SCHEMES)}://."
            )
        module, name = _HOMES[scheme]
        self._backend: Backend = getattr(importlib.import_module(module), name)(url)
        self._retry = retry or Retry()
        self._scheme = scheme
        self._reading: set[SourceConsumer] = set()
        self.url = url

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
        """Give back what its consumers hold, and the connections."""
        for consumer in list(self._reading):
            await consumer.close()
        await self._backend.close()

    def content_type(self, stream: str = "") -> str:
        """What the stream's records are, as far as its name tells; JSON otherwise."""
        return self._backend.content_type(stream)

    async def producer(
        self, stream: str = "", *, content_type: str | None = None, **options: Any
    ) -> AsyncProducer:
        """A producer; the options are those of ProducerOptions. A lost answer may double a batch:
        only a server stores exactly once.
        """
        options.pop("create", None)
        mode = options.pop("mode", "at-least-once")
        if mode == "exactly-once":
            raise InvalidRequest(
                f"{self._scheme}:// does not store exactly once", hint="http:// does."
            )
        made = ProducerOptions(mode=mode, **options)
        content_type = content_type or self._backend.content_type(stream)
        sink = await self._backend.sink(stream, content_type)
        return AsyncProducer(
            stream,
            format_of(content_type),
            made,
            lambda done: SinkDelivery(sink, made, self._retry, done),
        )

    def consumer(
        self,
        stream: str = "",
        start: Start = "beginning",
        *,
        follow: bool = True,
        content_type: str | None = None,
        decode: bool = True,
        **_: object,
    ) -> SourceConsumer:
        """A reader from a place on. Without ``decode`` a value is a stored record's own bytes."""
        content_type = content_type or self._backend.content_type(stream)
        source = self._backend.source(stream, content_type)
        format_ = format_of(content_type) if decode else None
        consumer = SourceConsumer(
            source, format_, start, follow=follow, retry=self._retry, open_=self._reading
        )
        consumer.stream = stream
        return consumer

    async def append(self, stream: str, *values: Value, ack: str | None = None) -> str | None:
        """Store values, and return when they are stored."""
        if not values:
            raise InvalidRequest("there is nothing to append")
        if ack is not None:
            raise self._refusal(f"append with ack={ack!r}")
        async with await self.producer(stream) as producer:
            for value in values:
                await producer.append(value)
        return None

    async def read(
        self, stream: str = "", start: Start = "beginning", *, limit: int | None = None
    ) -> list[Record]:
        """What is there now, from a place on, and at most ``limit`` values of it."""
        found: list[Record] = []
        async with self.consumer(stream, start, follow=False) as consumer:
            while (limit is None or len(found) < limit) and await consumer.fill():
                found += consumer.take()
        return found[:limit]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (whatever has that name)
        if name.startswith("_") or not hasattr(AsyncClient, name):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        raise self._refusal(name)

    def _refusal(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"{self._scheme}:// has no {what}; only servers (http://) do")
