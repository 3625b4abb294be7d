"""file://: plain files (a record is a line, a row or an object), and SeaStreamer's .ss.

The address is a file, or a folder whose files are the streams. Appends go to the end of what is
there; a reader that follows waits for more, as ``tail -f`` does.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from bottomless.backends.append_file import AppendFile
from bottomless.backends.base import Message, now_ms, refuse_start
from bottomless.backends.framing import framing_of, type_of_ending
from bottomless.backends.ss_files import SsSink, SsSource
from bottomless.errors import BottomlessError, DataDamaged, InvalidRequest, NotFound
from bottomless.positions import After, Newest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from bottomless.backends.base import Sink, Source
    from bottomless.backends.framing import Framing
    from bottomless.positions import Start

CHUNK_BYTES: Final = 1 << 20
POLL_S: Final = 0.05


class FileBackend:
    """A file, or a folder of files."""

    def __init__(self, url: str) -> None:
        self.url = url
        text = unquote(url.removeprefix("file://"))
        if not text.startswith(("/", "./", "../")) or not text.strip("/"):
            raise InvalidRequest(
                f"{url!r} names no file", hint="Say file:///folder/name or file://./name."
            )
        self._path = Path(text)

    def content_type(self, stream: str) -> str:
        """By the ending of the file's name."""
        return type_of_ending(self._place(stream)[0].suffix)

    def source(self, stream: str, content_type: str) -> Source:
        """Reads the file."""
        path, key = self._place(stream)
        if path.suffix == ".ss":
            return SsSource(path, key)
        return FileSource(path, content_type)

    async def sink(self, stream: str, content_type: str) -> Sink:
        """Appends to the file; makes it where there is none."""
        path, key = self._place(stream)
        if path.suffix == ".ss":
            return await SsSink.open(path, key)
        if self._path in path.parents and self._path.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
        return await FileSink.open(path, content_type)

    async def close(self) -> None:
        """Files are closed by those who read and write them."""

    def _place(self, stream: str) -> tuple[Path, str]:
        """The file, and in .ss the key."""
        path, key = _split(self._path)
        if key or (path.suffix == ".ss" and not path.is_dir()):
            return path, stream or key
        if not stream or path.is_file() or (path.suffix and not path.is_dir()):
            return path, ""
        if stream.startswith("/") or ".." in Path(stream).parts:
            raise InvalidRequest(f"{stream!r} leads out of {path}")
        return _split(path / stream)


def _split(path: Path) -> tuple[Path, str]:
    """What is behind a .ss file is the key."""
    for index, part in enumerate(path.parts, 1):
        file = Path(*path.parts[:index])
        if part.endswith(".ss") and not file.is_dir():
            return file, "/".join(path.parts[index:])
    return path, ""


class FileSource:
    """Reads a plain file; positions are bytes of it."""

    def __init__(self, path: Path, content_type: str) -> None:
        self._path = path
        self._content_type = content_type
        self._framing: Framing = framing_of(content_type)
        self._start: Start = "beginning"
        self._file: BinaryIO | None = None
        self._read_to = 0
        self._done_to = 0

    @property
    def altered(self) -> int:
        """See `Source`."""
        return self._framing.altered

    @property
    def position(self) -> str:
        """Behind the last record."""
        return str(self._done_to)

    async def begin(self, start: Start) -> None:
        """At a record of the file; a plain file keeps no times."""
        is_place = isinstance(start, Newest) or start in ("beginning", "live")
        if isinstance(start, After):
            is_place = start.position.isdecimal()
        if not is_place:
            allowed = "beginning, live, newest:N or a position, which is bytes of the file"
            raise refuse_start(start, f"{self._path}", allowed)
        await self.close()
        self._start = start
        self._framing = framing_of(self._content_type)
        self._read_to = self._done_to = 0

    async def read(self, wait_s: float, *, follow: bool) -> list[Message] | None:
        """The next stretch of the file."""
        deadline_s = asyncio.get_running_loop().time() + wait_s
        while True:
            data = await asyncio.to_thread(self._next_bytes, follow)
            if data:
                found = self._messages(self._framing.feed(data))
            elif follow:
                found = []
            else:
                return self._messages(self._framing.end()) or None
            if found or (not data and asyncio.get_running_loop().time() >= deadline_s):
                return found
            if not data:
                await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _messages(self, pieces: list[tuple[bytes, int]]) -> list[Message]:
        found, at_ms = [], now_ms()
        for data, size in pieces:
            begin, self._done_to = str(self._done_to), self._done_to + size
            found.append(Message(data, data, begin, str(self._done_to), at_ms=at_ms))
        return found

    def _next_bytes(self, follow: bool) -> bytes:
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError as error:
                if follow:
                    return b""
                raise NotFound(f"there is no file {self._path}") from error
            except OSError as error:
                raise BottomlessError(f"{self._path} cannot be read: {error.strerror}") from error
            self._read_to = self._done_to = self._first_byte(self._file)
        size = os.fstat(self._file.fileno()).st_size
        if size < self._read_to:
            raise DataDamaged(
                f"{self._path} was cut to {size} bytes, and {self._read_to} were read already"
            )
        self._file.seek(self._read_to)
        data = self._file.read(CHUNK_BYTES)
        self._read_to += len(data)
        return data

    def _first_byte(self, file: BinaryIO) -> int:
        size = os.fstat(file.fileno()).st_size
        match self._start:
            case After(position):
                place = int(position)
                file.seek(max(0, place - 1))
                before = file.read(1)
                if place > size:
                    raise InvalidRequest(f"{self._path} has {size} bytes: {place} is behind them")
                if self._framing.by_lines and 0 < place < size and before != b"\n":
                    raise InvalidRequest(f"byte {place} of {self._path} is inside a line")
                return place
            case Newest(count):
                return self._newest(file, count)
            case "live":
                return size
            case _:
                return 0

    def _newest(self, file: BinaryIO, count: int) -> int:
        """The place before the last records: found by reading all of them."""
        framing = framing_of(self._content_type)
        places: deque[int] = deque([0], maxlen=max(0, count) + 1)
        file.seek(0)
        while data := file.read(CHUNK_BYTES):
            for _, size in framing.feed(data):
                places.append(places[-1] + size)
        for _, size in framing.end():
            places.append(places[-1] + size)
        return places[0]


class FileSink:
    """Appends to a plain file."""

    def __init__(self, file: AppendFile, framing: Framing) -> None:
        self._file = file
        self._framing = framing

    @classmethod
    async def open(cls, path: Path, content_type: str) -> FileSink:
        """Open it, or make it; Conflict where another program writes it."""
        file = await asyncio.to_thread(AppendFile, path)
        framing = framing_of(content_type)
        if framing.by_lines and file.last_byte() not in (b"", b"\n"):
            await asyncio.to_thread(file.write, b"\n")
        return cls(file, framing)

    async def write(self, parts: Sequence[bytes]) -> str | None:
        """Hand them to the operating system."""
        data = b"".join([self._framing.frame(part) for part in parts])
        await asyncio.to_thread(self._file.write, data)
        return str(self._file.size)

    async def end(self) -> None:
        """A plain file has no mark for its end."""

    async def close(self) -> None:
        """Make it durable, and close it."""
        await asyncio.to_thread(self._file.close)
