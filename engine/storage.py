"""Storage as an argument: every file operation of the WAL and of the tables passes through here.

LocalStorage is a folder. A simulated one can tear, lose and reorder what was not synced.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import threading
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from engine.errors import RootLocked

LOCK_PATH: Final = "_lock"


class Storage(Protocol):
    """Paths are relative to the root and use ``/``."""

    def lock(self) -> None:
        """Claim the root for this process; RootLocked if another one has it."""

    def unlock(self) -> None:
        """Let others claim the root."""

    def uri(self, path: str) -> str:
        """The address other programs open ``path`` with."""

    def read(self, path: str) -> bytes:
        """The whole file."""

    def open_input(self, path: str) -> pa.NativeFile:
        """Open for random reads."""

    def forget_cached(self, path: str) -> None:
        """Let the next read of the file come from the medium, not from memory."""

    def put_file(self, path: str, data: pa.Buffer) -> None:
        """Create a file nobody else knows the name of yet; durable only after sync_all."""

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty where there is no such folder."""

    def sizes(self, path: str) -> list[tuple[str, int, int]]:
        """Files in a folder: name, bytes, time of the last change (ms)."""

    def make_folder(self, path: str) -> None:
        """Create the folder and its parents."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create the file with all of ``data`` in one step; False if it exists already."""

    def replace(self, path: str, data: bytes) -> None:
        """Put ``data`` in place of the file, durably and in one step."""

    def sync_path(self, path: str) -> None:
        """Make a file or folder durable that another program has written."""

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder."""

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder with all it holds, if it is there."""

    def open_append(self, path: str) -> int:
        """Create a new file for sequential writing and return its descriptor."""

    def write(self, descriptor: int, parts: list[bytes]) -> None:
        """Write all parts at the end."""

    def sync(self, descriptor: int) -> None:
        """Make what was written durable; raises OSError if that is not certain."""

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut the file, after a write that failed half way."""

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""

    def sync_all(self) -> None:
        """Make everything written below the root durable."""


class LocalStorage:
    """A folder of a POSIX file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._prefix = str(root) + "/"
        self._libc = ctypes.CDLL(None, use_errno=True)
        # One descriptor for life: an error that happens between two syncs is reported to it, even
        # if another process has seen that error first.
        self._root_descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
        self._lock_descriptor: int | None = None
        self._sync_lock = threading.Lock()
        self._sync_error: int | None = None
        self._pinned: tuple[str, int] | None = None

    def __del__(self) -> None:
        self.unlock()
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._root_descriptor)
            if self._pinned is not None:
                os.close(self._pinned[1])

    def pin(self, folder: str) -> LocalStorage:
        """The same root, but ``folder`` stays the one that is there now, even where it is moved and
        another one takes its name; FileNotFoundError where there is none.

        A job that works on a stream while it is deleted and created anew would otherwise write into
        the table of its successor. Only `uri` still is the name that other programs open.
        """
        pinned = LocalStorage(self.root)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        pinned._pinned = (folder, os.open(self._prefix + folder, flags))
        return pinned

    def _at(self, path: str) -> str:
        if self._pinned is not None:
            folder, descriptor = self._pinned
            if path == folder or path.startswith(f"{folder}/"):
                return f"/proc/self/fd/{descriptor}{path[len(folder) :]}"
        return self._prefix + path

    def lock(self) -> None:
        """An flock on a file in the root: it ends with the process, however that ends."""
        path = Path(self._prefix + LOCK_PATH)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise RootLocked(
                f"another server uses the data folder {self.root}",
                hint="Stop it first, or give this one another --root.",
            ) from error
        self._lock_descriptor = descriptor
        # What an earlier life failed to sync, its successor finds by reading. The error is kept by
        # the kernel for whoever asks first: taken for one of this life it would end it at once.
        self._libc.syncfs(self._root_descriptor)

    def unlock(self) -> None:
        """Closing the descriptor ends the lock."""
        descriptor = getattr(self, "_lock_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)
            self._lock_descriptor = None

    def uri(self, path: str) -> str:
        """A plain path: what Spark, Polars and delta-rs all accept."""
        return self._prefix + path

    def read(self, path: str) -> bytes:
        """The whole file."""
        return Path(self._at(path)).read_bytes()

    def open_input(self, path: str) -> pa.NativeFile:
        """Open for random reads."""
        return pa.OSFile(self._at(path))

    def forget_cached(self, path: str) -> None:
        """Drop clean pages: after a failed sync memory may hold what the disk does not (F5)."""
        with Path(self._at(path)).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def put_file(self, path: str, data: pa.Buffer) -> None:
        """Create the file and its folder; a file that could not be written whole is removed."""
        target = Path(self._at(path))
        try:
            try:
                target.write_bytes(data)
            except FileNotFoundError:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        except OSError:
            with contextlib.suppress(OSError):
                target.unlink(missing_ok=True)
            raise

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        return Path(self._at(path)).exists()

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        try:
            return sorted(entry.name for entry in os.scandir(self._at(path)))
        except FileNotFoundError:
            return []

    def sizes(self, path: str) -> list[tuple[str, int, int]]:
        """Files in a folder; one that goes meanwhile is left out."""
        found = []
        for name in self.names(path):
            with contextlib.suppress(FileNotFoundError):
                status = Path(self._at(f"{path}/{name}")).stat()
                found.append((name, status.st_size, status.st_mtime_ns // 1_000_000))
        return found

    def make_folder(self, path: str) -> None:
        """Create the folder and its parents."""
        Path(self._at(path)).mkdir(parents=True, exist_ok=True)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write aside, then link: a name that exists is never replaced, a half file never seen."""
        target = Path(self._at(path))
        temporary = target.with_name(f".{target.name}.{os.getpid()}.{id(data):x}.tmp")
        try:
            temporary.write_bytes(data)
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            # The link decided; a leftover is only litter.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Write aside, sync, rename, sync the folder."""
        target = Path(self._at(path))
        # A name of its own: others may replace the same file at the same time.
        writer = f"{os.getpid()}.{threading.get_ident():x}"
        temporary = target.with_name(f".{target.name}.{writer}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(target)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync(target.parent)

    def sync_path(self, path: str) -> None:
        """Its own fsync: an error of it takes nothing from what sync_all will report (F5)."""
        _sync(Path(self._at(path)))

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder; the parent of the target must exist."""
        Path(self._at(source)).rename(self._at(target))

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        Path(self._at(path)).unlink(missing_ok=True)

    def remove_folder(self, path: str) -> None:
        """Remove a folder with all it holds, if it is there."""
        shutil.rmtree(self._at(path), ignore_errors=True)

    def open_append(self, path: str) -> int:
        """Create a new file; the folder is synced so that the name survives a power cut."""
        target = Path(self._at(path))
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            _sync(target.parent)
        except OSError:
            os.close(descriptor)
            target.unlink(missing_ok=True)
            raise
        return descriptor

    def write(self, descriptor: int, parts: list[bytes]) -> None:
        """One writev; the rest in further writes where the kernel took less."""
        written = os.writev(descriptor, parts)
        total = sum(map(len, parts))
        if written < total:
            rest = memoryview(b"".join(parts))[written:]
            while rest:
                rest = rest[os.write(descriptor, rest) :]

    def sync(self, descriptor: int) -> None:
        """Fdatasync: the data and the size, not the times."""
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut, and write on from there."""
        os.ftruncate(descriptor, length)
        os.lseek(descriptor, length, os.SEEK_SET)

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""
        os.close(descriptor)

    def sync_all(self) -> None:
        """One syncfs serves every commit since the last one.

        The kernel tells an error once per descriptor, so it is remembered here, for ever (F5): of
        two callers at the same time neither may be told that all is well.
        """
        with self._sync_lock:
            if self._sync_error is None and self._libc.syncfs(self._root_descriptor) != 0:
                self._sync_error = ctypes.get_errno()
            if self._sync_error is not None:
                raise OSError(self._sync_error, os.strerror(self._sync_error))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
