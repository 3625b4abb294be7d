"""A file at whose end records are added: by one program at a time, whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from typing import TYPE_CHECKING

from bottomless.errors import BottomlessError, Conflict, InvalidRequest

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path


class AppendFile:
    """Made where there is none. Its calls block: they are for threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: FileIO = path.open("a+b", buffering=0)
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error
        # Pipes have no places; devices say that they have, and do not.
        self._is_plain = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        self._is_torn = False
        self.size = self._file.seek(0, os.SEEK_END) if self._is_plain else 0
        # Pipes, devices and some network file systems have no locks.
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._file.close()
                raise Conflict(f"another program writes {path} now") from error

    def read(self, place: int, count: int) -> bytes:
        """Some of what is there."""
        self._file.seek(place)
        return self._file.read(count)

    def last_byte(self) -> bytes:
        """Empty where there is none."""
        return self.read(self.size - 1, 1) if self.size else b""

    def cut(self, size: int) -> None:
        """Forget what is behind that place."""
        self._file.truncate(size)
        self.size = size

    def write(self, data: bytes) -> None:
        """Hand it to the operating system. After an error the file is as it was before, and nothing
        more is taken: whoever writes it has to look at it anew.
        """
        if self._is_torn or self._file.closed:
            raise Conflict(f"{self._path} was given up after an error", hint="Open it again.")
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._is_torn = True
            if self._is_plain:
                self._file.truncate(self.size)
            raise BottomlessError(f"{self._path} cannot be written: {error.strerror}") from error
        self.size += len(data)

    def close(self) -> None:
        """Make it durable, and close it. May be called twice."""
        if not self._file.closed:
            with self._file:
                if self._is_plain:
                    os.fsync(self._file.fileno())
