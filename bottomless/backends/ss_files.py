"""SeaStreamer's .ss files as streams: many keys in one file, read and written in order."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import TYPE_CHECKING, Final

from bottomless.backends import ss
from bottomless.backends.append_file import AppendFile
from bottomless.backends.base import Message, Stamped, now_ms, refuse_start, since_ms
from bottomless.errors import BottomlessError, Conflict, InvalidRequest, NotFound
from bottomless.positions import After, Newest, Since

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import BinaryIO

    from bottomless.positions import Start

WILDCARD: Final = "SEA_STREAMER_WILDCARD"
_CHUNK_BYTES: Final = 1 << 20
_POLL_S: Final = 0.05


class SsSource:
    """Reads one key of a file, or all; positions are bytes of the file."""

    altered = 0

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = "" if key in ("", WILDCARD) else ss.check_key(key)
        self._file: BinaryIO | None = None
        self._decoder = ss.Decoder(str(path))
        self._start: Start = "beginning"
        self._read_to = 0
        self._position = 0
        self._is_ended = False
        self._from_ms = 0

    @property
    def position(self) -> str:
        """Behind the last message that was read."""
        return str(self._position)

    async def begin(self, start: Start) -> None:
        """Anywhere: messages have their times."""
        is_place = isinstance(start, Newest | Since) or start in ("beginning", "live")
        if isinstance(start, After):
            is_place = start.position.isdecimal()
        if not is_place:
            allowed = "beginning, live, newest:N, a time, or a position, which is bytes of the file"
            raise refuse_start(start, f"{self._path}", allowed)
        await self.close()
        self._start = start
        self._from_ms = since_ms(start.time) if isinstance(start, Since) else 0
        self._is_ended = False

    async def read(self, wait_s: float, *, follow: bool) -> list[Message] | None:
        """The next stretch of the file. The mark at its end ends it, also for who follows."""
        deadline_s = asyncio.get_running_loop().time() + wait_s
        while not self._is_ended:
            data, found = await asyncio.to_thread(self._next_messages, follow)
            if found:
                return found
            if data:
                continue
            if not follow:
                self._decoder.end()
                return None
            if asyncio.get_running_loop().time() >= deadline_s:
                return []
            await asyncio.sleep(_POLL_S)
        return None

    async def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next_messages(self, follow: bool) -> tuple[bytes, list[Message]]:
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError as error:
                if follow:
                    return b"", []
                raise NotFound(f"there is no file {self._path}") from error
            except OSError as error:
                raise BottomlessError(f"{self._path} cannot be read: {error.strerror}") from error
            first = self._open(self._file)
            if first:
                return b"", first
        data = self._file.read(_CHUNK_BYTES)
        return data, self._chosen(self._decoder.feed(data))

    def _chosen(self, messages: list[ss.SsMessage]) -> list[Message]:
        found: list[Message] = []
        for message in messages:
            self._position = message.end
            if message.is_end:
                self._is_ended = True
                break
            is_ours = self._key in ("", message.key) and message.key != ss.INTERNAL_KEY
            if is_ours and message.at_ms >= self._from_ms:
                found.append(_record(message))
        return found

    def _open(self, file: BinaryIO) -> list[Message]:
        """Go to the start; returns what was read on the way and is wanted."""
        self._decoder = decoder = ss.Decoder(str(self._path))
        self._position = 0
        match self._start:
            case After(position) if int(position) > ss.HEADER_BYTES:
                decoder.feed(file.read(ss.HEADER_BYTES))
                if int(position) > os.fstat(file.fileno()).st_size:
                    raise InvalidRequest(f"byte {position} is behind the end of {self._path}")
                self._position = int(position)
                self._decoder = ss.Decoder(
                    str(self._path), position=self._position, interval=decoder.interval
                )
                file.seek(self._position)
            case "live":
                self._read_through(file, 0)
            case Newest(count):
                return self._read_through(file, count)
        return []

    def _read_through(self, file: BinaryIO, count: int) -> list[Message]:
        """To the end of what is there now; returns the last ones."""
        last: deque[Message] = deque(maxlen=max(0, count))
        while data := file.read(_CHUNK_BYTES):
            last.extend(self._chosen(self._decoder.feed(data)))
        return list(last)


def _record(message: ss.SsMessage) -> Message:
    return Message(
        message.payload,
        message.payload,
        str(message.begin),
        str(message.end),
        key=message.key,
        shard=message.shard,
        sequence=message.sequence,
        at_ms=message.at_ms,
    )


class SsSink:
    """Appends to a file, in shard 0; numbers go on from what is there."""

    def __init__(self, path: Path, key: str, file: AppendFile, encoder: ss.Encoder) -> None:
        self._path = path
        self._key = key
        self._file = file
        self._encoder = encoder

    @classmethod
    async def open(cls, path: Path, key: str) -> SsSink:
        """Open it, or make it. A message that was cut off goes, and so does a mark of the end: the
        file goes on.
        """
        if key:
            ss.check_key(key)
        file, encoder = await asyncio.to_thread(_open, path)
        return cls(path, key, file, encoder)

    async def write(self, parts: Sequence[bytes]) -> str | None:
        """Hand them to the operating system."""
        data = b"".join([self._encoded(part) for part in parts])
        await asyncio.to_thread(self._file.write, data)
        return str(self._encoder.position)

    async def end(self) -> None:
        """The mark that ends readers."""
        await asyncio.to_thread(self._file.write, self._encoder.end(now_ms()))

    async def close(self) -> None:
        """Make it durable, and close it."""
        await asyncio.to_thread(self._file.close)

    def _encoded(self, part: bytes) -> bytes:
        at_ms, key = None, self._key
        if isinstance(part, Stamped):
            at_ms, key = part.at_ms, key or part.key
        if not self._key and not ss.is_key(key):
            raise InvalidRequest(
                f"{self._path}: {key!r} is no stream key of SeaStreamer"
                if key
                else f"{self._path} needs a stream key",
                hint=f"Say file://{self._path}/KEY.",
            )
        return self._encoder.add(key, part, at_ms=now_ms() if at_ms is None else at_ms)


def _open(path: Path) -> tuple[AppendFile, ss.Encoder]:
    """The file without its torn end, and an encoder that goes on from there."""
    file = AppendFile(path)
    try:
        return file, _resume(path, file)
    except BaseException:
        file.close()
        raise


def _resume(path: Path, file: AppendFile) -> ss.Encoder:
    decoder, place = ss.Decoder(str(path)), 0
    mark: ss.SsMessage | None = None
    while data := file.read(place, _CHUNK_BYTES):
        place += len(data)
        for message in decoder.feed(data):
            if mark is not None:
                raise Conflict(f"{path} goes on behind the mark of its end, at byte {mark.end}")
            mark = message if message.is_end else None
    decoder.end()
    if decoder.end_position < ss.HEADER_BYTES:
        file.cut(0)
        file.write(ss.header(path.name, now_ms()))
        return ss.Encoder()
    end = decoder.end_position
    if mark is not None:
        end = mark.begin
        del decoder.streams[ss.INTERNAL_KEY, mark.shard]
    file.cut(end)
    encoder = ss.Encoder(end, decoder.interval, decoder.streams)
    file.write(encoder.open())
    return encoder
