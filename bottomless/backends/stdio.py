"""stdio://: standard input and output, in SeaStreamer's line format, both ways."""

from __future__ import annotations

import asyncio
import os
import select
from typing import TYPE_CHECKING, Final

from bottomless.backends.base import Message, Stamped, now_ms, refuse_start
from bottomless.backends.framing import JSON, Lines
from bottomless.backends.lines import Line, format_line, parse_line
from bottomless.backends.ss import END_OF_STREAM, INTERNAL_KEY, check_key, is_key
from bottomless.errors import BottomlessError, DataDamaged, InvalidRequest
from bottomless.formats import format_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bottomless.backends.base import Sink, Source
    from bottomless.positions import Start

_CHUNK_BYTES: Final = 1 << 16
# A thread that waits for input looks up this often, so that the program can end.
_WAIT_S: Final = 0.2


class StdioBackend:
    """This program's own input and output."""

    def __init__(self, url: str) -> None:
        self.url = url
        path = url.removeprefix("stdio://")
        if not path.startswith("/") and path:
            raise InvalidRequest(f"{url!r} has a host", hint="Say stdio:/// or stdio:///KEY.")
        self._key = path.strip("/")

    def content_type(self, stream: str) -> str:
        """A line does not tell."""
        return JSON

    def source(self, stream: str, content_type: str) -> Source:
        """Reads standard input."""
        return StdinSource(self._checked(stream))

    async def sink(self, stream: str, content_type: str) -> Sink:
        """Writes standard output."""
        is_json = JSON in format_of(content_type).content_types
        return StdoutSink(self._checked(stream), is_json=is_json)

    async def close(self) -> None:
        """They stay open."""

    def _checked(self, stream: str) -> str:
        key = stream or self._key
        return check_key(key) if key else ""


class StdinSource:
    """Lines of one key, and those without a key, which are for all; or every line."""

    altered = 0

    def __init__(self, key: str) -> None:
        self._key = key
        self._lines = Lines()
        self._number = 0
        self._is_ended = False

    @property
    def position(self) -> str:
        """How many lines were read; there is no way back."""
        return str(self._number)

    async def begin(self, start: Start) -> None:
        """There is only what comes."""
        if start not in ("beginning", "live"):
            raise refuse_start(start, "standard input", "beginning")

    async def read(self, wait_s: float, *, follow: bool) -> list[Message] | None:
        """What has come. Ends with the input, or with SeaStreamer's mark for that."""
        if self._is_ended:
            return None
        data = await read_some(0, wait_s)
        if data is None:
            return []
        pieces = self._lines.feed(data) if data else self._lines.end()
        self._is_ended = not data
        found: list[Message] = []
        for line, _ in pieces:
            self._add(line, found)
            if self._is_ended and data:
                break
        return found if found or not self._is_ended else None

    async def close(self) -> None:
        """Standard input stays open."""

    def _add(self, text: bytes, found: list[Message]) -> None:
        begin, self._number = str(self._number), self._number + 1
        try:
            line = parse_line(text)
        except DataDamaged as error:
            raise DataDamaged(
                f"line {self._number} of standard input: {error.message}", hint=error.hint
            ) from error
        if line.key == INTERNAL_KEY:
            self._is_ended = self._is_ended or line.payload == END_OF_STREAM
        elif line.key in ("", self._key) or not self._key:
            found.append(
                Message(
                    line.payload,
                    line.payload,
                    begin,
                    str(self._number),
                    key=line.key,
                    shard=line.shard or 0,
                    sequence=line.sequence,
                    at_ms=now_ms() if line.at_ms is None else line.at_ms,
                )
            )


class StdoutSink:
    """Lines of one key; without one, of the key that the records had."""

    def __init__(self, key: str, *, is_json: bool) -> None:
        self._key = key
        self._is_json = is_json
        self._sequences: dict[str, int] = {}

    async def write(self, parts: Sequence[bytes]) -> str | None:
        """Hand them to the operating system."""
        lines = [self._line(part) for part in parts]
        await asyncio.to_thread(write_whole, 1, b"".join(lines))
        return None

    async def end(self) -> None:
        """SeaStreamer's mark that ends its consumers."""
        line = Line(END_OF_STREAM, now_ms(), INTERNAL_KEY, 0, 0)
        await asyncio.to_thread(write_whole, 1, format_line(line) + b"\n")

    async def close(self) -> None:
        """Standard output stays open."""

    def _line(self, part: bytes) -> bytes:
        at_ms, key = None, self._key
        if isinstance(part, Stamped):
            at_ms, key = part.at_ms, key or part.key
        if not is_key(key):
            key = ""
        payload = bytes(part)
        if b"\n" in payload:
            if not self._is_json:
                raise InvalidRequest("a record has a line end, which a line cannot hold")
            # Outside of strings, where JSON has no raw line ends, a blank means the same.
            payload = payload.replace(b"\n", b" ")
        sequence = self._sequences.get(key, 0) + 1
        self._sequences[key] = sequence
        at_ms = now_ms() if at_ms is None else at_ms
        return format_line(Line(payload, at_ms, key, sequence, 0)) + b"\n"


async def read_some(fd: int, wait_s: float) -> bytes | None:
    """What can be read now, "" at the end, None where nothing came in time."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + wait_s
    while True:
        data = await asyncio.to_thread(_read_ready, fd, min(_WAIT_S, max(0.0, wait_s)))
        if data is not None or loop.time() >= deadline_s:
            return data


def write_whole(fd: int, data: bytes) -> None:
    """All of it, however often the other end makes us wait."""
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except BrokenPipeError as error:
        raise BottomlessError("nobody reads the output any more") from error
    except OSError as error:
        raise BottomlessError(f"the output cannot be written: {error.strerror}") from error


def _read_ready(fd: int, wait_s: float) -> bytes | None:
    ready, _, _ = select.select([fd], [], [], wait_s)
    return os.read(fd, _CHUNK_BYTES) if ready else None
