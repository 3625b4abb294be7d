"""Named pipes: a path that other programs read or write as a file, while this one runs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import select
import stat
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bottomless.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

# Linux lets anybody have so much in a pipe; fewer, larger reads and writes.
_PIPE_BYTES: Final = 1 << 20
# A thread that waits looks up this often, so that the program can end.
_WAIT_S: Final = 0.2
_POLL_S: Final = 0.02


class Fifo:
    """The path. Only this user can open it; it goes when it is left."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._node = (0, 0, True)

    def __enter__(self) -> Fifo:
        try:
            os.mkfifo(self._path, 0o600)
        except FileExistsError as error:
            raise InvalidRequest(
                f"{self._path} is there already", hint="Remove it if no program uses it any more."
            ) from error
        except OSError as error:
            raise InvalidRequest(f"{self._path} cannot be made: {error.strerror}") from error
        self._node = self._here()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Take the path away, unless somebody has put something else there. May be called twice."""
        with contextlib.suppress(OSError):
            if self._here() == self._node:
                self._path.unlink()

    def renew(self) -> None:
        """A new pipe at the same path, for the next who opens it."""
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        os.mkfifo(fresh, 0o600)
        fresh.rename(self._path)
        self._node = self._here()

    def open(self, flags: int) -> int:
        """Without waiting for the other end."""
        number = os.open(self._path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return number

    def check(self) -> None:
        """InvalidRequest where somebody has taken it away: nobody can write any more."""
        try:
            is_ours = self._here() == self._node
        except OSError:
            is_ours = False
        if not is_ours:
            raise InvalidRequest(f"{self._path} was removed by somebody else")

    def _here(self) -> tuple[int, int, bool]:
        found = self._path.lstat()
        # The number of a file that has gone is soon that of another one.
        return found.st_dev, found.st_ino, stat.S_ISFIFO(found.st_mode)


class FifoReader:
    """Reads what others write, one after the other or at the same time."""

    def __init__(self, fifo: Fifo) -> None:
        self._fifo = fifo
        self._number = fifo.open(os.O_RDONLY)

    def close(self) -> None:
        """Writers get an error from now on."""
        os.close(self._number)

    async def read(self, wait_s: float = _WAIT_S) -> bytes | None:
        """What was written; "" where no writer is there; None where nothing came in time."""
        data, is_ready = await _in_thread(self._read, wait_s)
        if data == b"" and is_ready:
            # A pipe that was left by its last writer stays ready for ever; a new end of it waits
            # for the next one. The old end goes after that: no writer ever finds nobody here.
            with contextlib.suppress(OSError):
                number = self._fifo.open(os.O_RDONLY)
                os.close(self._number)
                self._number = number
        return data

    def _read(self, wait_s: float) -> tuple[bytes | None, bool]:
        ready, _, _ = select.select([self._number], [], [], wait_s)
        found: list[bytes] = []
        size = 0
        while size < _PIPE_BYTES:
            try:
                data = os.read(self._number, _PIPE_BYTES - size)
            except BlockingIOError:
                return (b"".join(found) if found else None), bool(ready)
            if not data:
                # Where something was found, the next read tells this again.
                break
            found.append(data)
            size += len(data)
        return b"".join(found), bool(ready)


class FifoWriter:
    """Writes for one reader."""

    def __init__(self, number: int) -> None:
        self._number = number

    @classmethod
    async def wait(cls, fifo: Fifo) -> FifoWriter:
        """Return when somebody reads."""
        while True:
            try:
                return cls(fifo.open(os.O_WRONLY))
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise InvalidRequest(f"the pipe is gone: {error.strerror}") from error
                # Nobody has it open.
                await asyncio.sleep(_POLL_S)

    def close(self) -> None:
        """The reader comes to the end."""
        os.close(self._number)

    @property
    def is_alone(self) -> bool:
        """The reader has gone."""
        poll = select.poll()
        poll.register(self._number, 0)
        return bool(poll.poll(0))

    async def write(self, data: bytes) -> bool:
        """All of it, as fast as it is read; False where the reader has gone."""
        left = memoryview(data)
        while left:
            count = await _in_thread(self._write, left)
            if count is None:
                return False
            left = left[count:]
        return True

    def _write(self, data: memoryview) -> int | None:
        _, ready, _ = select.select([], [self._number], [], _WAIT_S)
        if not ready:
            return 0
        try:
            return os.write(self._number, data)
        except BrokenPipeError:
            return None
        except BlockingIOError:
            # There is room, but not for a piece that may not be cut.
            return 0


async def _in_thread(work: Callable[..., T], *given: Any) -> T:
    """A thread cannot be stopped, and what it reads must not be closed under it: it is waited for,
    also by a task that is cancelled.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *given))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
