"""redis://: Redis streams, with redis-py (``pip install bottomless[redis]``).

A record is an entry with one field, ``msg``, as SeaStreamer has it. Of other entries the only field
is the record, or all fields as a JSON object. Positions are Redis' own ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from bottomless.backends.base import Message, refuse_start, since_ms
from bottomless.backends.framing import JSON
from bottomless.errors import (
    BottomlessError,
    Conflict,
    DataDamaged,
    InvalidRequest,
    NotAllowed,
    NotFound,
    Unavailable,
)
from bottomless.positions import After, Newest, Since

try:
    import redis.asyncio as redis
    from redis import exceptions
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError as missing:
    raise InvalidRequest(
        "redis:// needs redis-py", hint="pip install 'bottomless[redis]'"
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from bottomless.backends.base import Sink, Source
    from bottomless.positions import Start

FIELD: Final = b"msg"

Answer = Any
"""What redis-py gives back: its types leave open nearly everything."""

_PAGE: Final = 1000
_NOTHING: Final = "0-0"
_SUB_MAX: Final = (1 << 64) - 1
_CONNECT_S: Final = 10.0
# One XREAD waits at most so long; the answer's own time-out is above it.
_BLOCK_S: Final = 5.0


class RedisBackend:
    """``redis://[user:password@]host[:port][/database]/key``, or the key with the call."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port or 6379
        except ValueError as error:
            raise InvalidRequest(f"this is no address of Redis: {error}") from error
        if parts.query or parts.fragment:
            raise InvalidRequest(
                f"{parts.scheme}://{parts.hostname} has a ? or #", hint="Write %3F and %23 in keys."
            )
        names = unquote(parts.path.lstrip("/"))
        first, slash, rest = names.partition("/")
        database, self._key = (int(first), rest) if slash and first.isdecimal() else (0, names)
        self.url = url
        self._redis: Any = redis.Redis(
            host=parts.hostname or "127.0.0.1",
            port=port,
            db=database,
            username=None if parts.username is None else unquote(parts.username) or None,
            password=None if parts.password is None else unquote(parts.password),
            ssl=parts.scheme == "rediss",
            socket_connect_timeout=_CONNECT_S,
            socket_timeout=_BLOCK_S + _CONNECT_S,
            # The producer and the consumer try again themselves.
            retry=Retry(NoBackoff(), 0),
        )

    def content_type(self, stream: str) -> str:
        """Redis does not tell."""
        return JSON

    def source(self, stream: str, content_type: str) -> Source:
        """Reads the key."""
        return RedisSource(self._redis, self._named(stream))

    async def sink(self, stream: str, content_type: str) -> Sink:
        """Appends to the key."""
        return RedisSink(self._redis, self._named(stream))

    async def close(self) -> None:
        """Give the connections back."""
        await self._redis.aclose()

    def _named(self, stream: str) -> str:
        if not (stream or self._key):
            raise InvalidRequest("a key is missing", hint="Say redis://HOST/KEY.")
        return stream or self._key


class RedisSource:
    """Reads with XREAD, from an id on."""

    altered = 0

    def __init__(self, client: Answer, key: str) -> None:
        self._redis = client
        self._key = key
        self._id = _NOTHING

    @property
    def position(self) -> str:
        """The id of the last entry that was read."""
        return self._id

    async def begin(self, start: Start) -> None:
        """Anywhere: ids are times."""
        match start:
            case "beginning":
                self._id = _NOTHING
            case "live":
                self._id = await self._before_newest(0)
            case Newest(count):
                self._id = await self._before_newest(count)
            case Since(time):
                self._id = f"{max(1, since_ms(time)) - 1}-{_SUB_MAX}"
            case After(position) if position.replace("-", "", 1).isdecimal():
                self._id = position
            case _:
                raise refuse_start(
                    start, "a Redis stream", "beginning, live, newest:N, a time or an id like 17-0"
                )

    async def read(self, wait_s: float, *, follow: bool) -> list[Message] | None:
        """The next entries."""
        block_ms = max(1, int(min(wait_s, _BLOCK_S) * 1000)) if follow and wait_s else None
        answer = await _asked(
            self._redis.xread({self._key: self._id}, count=_PAGE, block=block_ms), self._key
        )
        # RESP3 answers with a map of keys, RESP2 with a list of pairs; redis-py has both shapes.
        rows = answer.values() if isinstance(answer, dict) else [pair[1] for pair in answer or ()]
        found = [_message(self._key, *entry) for row in rows for entry in _entries(row)]
        if found:
            self._id = found[-1].position
            return found
        if follow:
            return []
        if self._id == _NOTHING and not await _asked(self._redis.exists(self._key), self._key):
            raise NotFound(f"there is no key {self._key!r} in Redis")
        return None

    async def close(self) -> None:
        """The connections are the backend's."""

    async def _before_newest(self, count: int) -> str:
        """The id behind which the last ``count`` entries are."""
        rows = await _asked(
            self._redis.xrevrange(self._key, "+", "-", count=max(0, count) + 1), self._key
        )
        ids = [entry[0].decode() for entry in rows]
        return ids[count] if len(ids) > count else _NOTHING


class RedisSink:
    """Adds with XADD, many at a time."""

    def __init__(self, client: Answer, key: str) -> None:
        self._redis = client
        self._key = key

    async def write(self, parts: Sequence[bytes]) -> str | None:
        """All of them in one transaction: they are stored together or not at all."""
        pipeline = self._redis.pipeline(transaction=True)
        for part in parts:
            pipeline.xadd(self._key, {FIELD: bytes(part)})
        ids = await _asked(pipeline.execute(), self._key)
        return str(ids[-1].decode())

    async def end(self) -> None:
        """Redis has no mark for the end of a stream."""

    async def close(self) -> None:
        """The connections are the backend's."""


def _entries(row: Answer) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """redis-py wraps the entries of RESP3 once more."""
    entries: list[Any] = list(row)
    if entries and isinstance(entries[0], list):
        entries = entries[0]
    return [(entry[0], entry[1]) for entry in entries]


def _message(key: str, raw_id: bytes, fields: dict[bytes, bytes]) -> Message:
    name = raw_id.decode()
    at_ms = int(name.partition("-")[0])
    if FIELD in fields:
        data = fields[FIELD]
    elif len(fields) == 1:
        (data,) = fields.values()
    else:
        try:
            texts = {field.decode(): value.decode() for field, value in fields.items()}
        except UnicodeDecodeError as error:
            raise DataDamaged(f"entry {name} of {key!r} has fields that are no text") from error
        data = msgspec.json.encode(texts)
    return Message(data, data, name, name, key=key, at_ms=at_ms)


async def _asked(work: Awaitable[Any], key: str) -> Answer:
    """The answer, or what its refusal means."""
    try:
        return await work
    except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
        raise NotAllowed(f"Redis: {error}") from error
    except (TimeoutError, exceptions.ConnectionError, exceptions.TimeoutError) as error:
        raise Unavailable(f"no answer from Redis: {error}") from error
    except exceptions.ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise Conflict(f"{key!r} is not a stream in Redis: {error}") from error
        raise BottomlessError(f"Redis: {error}") from error
    except exceptions.RedisError as error:
        raise BottomlessError(f"Redis: {error}") from error
