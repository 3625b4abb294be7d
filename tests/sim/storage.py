"""The engine's storage on a simulated disk: the same steps in the same order as LocalStorage.

Before each step the gate is asked: it may fail the step, before or after it took effect, end the
process there, or let others run first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from engine.storage import LOCK_PATH
from tests.sim.disk import Disk, File, Folder, Node, missing, walk

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

MEMORY = Path("/dev/shm")


class Dead(BaseException):
    """The process has ended here. Not an Exception: nothing in the engine may catch it."""


class Gate(Protocol):
    """Who decides what becomes of each step."""

    @property
    def is_dead(self) -> bool:
        """The process is gone: no step has an effect any more."""

    def step(self, kind: str, path: str) -> OSError | None:
        """Raise, or return the error that shall be told although the step took effect."""


class SimStorage:
    """A folder of a file system that exists in memory only."""

    def __init__(self, disk: Disk, gate: Gate, rng: random.Random) -> None:
        self.disk = disk
        self._gate = gate
        self._rng = rng
        self._descriptors: dict[int, tuple[str, File]] = {}
        self._temporary = 0
        self._sync_error: int | None = None
        self._failed_syncs = disk.failed_syncs
        self._exported: tuple[str, Path] | None = None
        self._real: list[Path] = []

    # Steps.

    def _act(self, kind: str, path: str, effect: Callable[[], object]) -> None:
        late = self._gate.step(kind, path)
        effect()
        if late is not None:
            raise late

    def _write(self, file: File, data: bytes, path: str) -> None:
        was_dead = self._gate.is_dead
        try:
            self._gate.step("write", path)
        except (OSError, Dead):
            if not was_dead:
                file.append(data[: self._rng.randint(0, len(data))])
            raise
        file.append(data)

    def _sync(self, file: File, path: str) -> None:
        try:
            self._gate.step("sync", path)
        except OSError:
            file.fail_sync(self._rng)
            raise
        file.sync()

    def _sync_folder(self, path: str) -> None:
        self._act("sync", path, lambda: self.disk.sync_folder(self.disk.folder(path)))

    def _unlink(self, path: str) -> None:
        folder, name = self.disk.parent(path)
        if name in folder.names:
            self._act("unlink", path, lambda: self.disk.change((folder, name, None)))

    def _create(self, path: str, data: bytes) -> File:
        self._act("create", path, lambda: self.disk.create(path))
        file = self.disk.file(path)
        self._write(file, data, path)
        return file

    def _temporary_path(self, path: str) -> str:
        self._temporary += 1
        above, _, name = path.rpartition("/")
        return f"{above}/.{name}.{self._temporary}.tmp"

    # The protocol.

    def lock(self) -> None:
        """One process at a time is a matter of the kernel."""
        if self.disk.find(LOCK_PATH) is None:
            self._act("create", LOCK_PATH, lambda: self.disk.create(LOCK_PATH))

    def unlock(self) -> None:
        """See lock."""

    def uri(self, path: str) -> str:
        """A real folder with a copy, for delta-rs; what it writes there is taken back."""
        target = Path(tempfile.mkdtemp(prefix="sim-", dir=MEMORY if MEMORY.is_dir() else None))
        self._exported = (path, target)
        self._real.append(target)
        for name, node in walk(self.disk.folder(path)):
            if isinstance(node, Folder):
                (target / name).mkdir()
            else:
                (target / name).write_bytes(node.data)
        return str(target)

    def take_back(self) -> None:
        """What another program has written through ``uri`` was not synced by it (F1)."""
        if self._exported is None:
            return
        (folder, source), self._exported = self._exported, None
        for path in sorted(source.rglob("*")):
            name = f"{folder}/{path.relative_to(source)}"
            known = self.disk.find(name)
            if path.is_dir() or (isinstance(known, File) and known.data == path.read_bytes()):
                continue
            self.disk.create(name).append(path.read_bytes())

    def leave(self) -> None:
        """Remove what was real."""
        for folder in self._real:
            shutil.rmtree(folder)

    def read(self, path: str) -> bytes:
        """The whole file."""
        self.take_back()
        file = self.disk.file(path)
        self._gate.step("read", path)
        return bytes(file.data)

    def open_input(self, path: str) -> pa.NativeFile:
        """Open for random reads."""
        return pa.BufferReader(self.read(path))

    def forget_cached(self, path: str) -> None:
        """Clean pages go."""
        self.disk.file(path).forget_cached()

    def put_file(self, path: str, data: pa.Buffer) -> None:
        """Create the file and its folder; one that could not be written whole is removed."""
        try:
            above = path.rpartition("/")[0]
            if self.disk.find(above) is None:
                self.make_folder(above)
            self._create(path, bytes(data))
        except OSError:
            with contextlib.suppress(OSError):
                self._unlink(path)
            raise

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        return self.disk.find(path) is not None

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        node = self.disk.find(path)
        return sorted(node.names) if isinstance(node, Folder) else []

    def sizes(self, path: str) -> list[tuple[str, int, int]]:
        """Files in a folder; none of them is ever old enough to be an orphan."""
        found = []
        for name in self.names(path):
            node = self.disk.find(f"{path}/{name}")
            if isinstance(node, File):
                found.append((name, len(node.data), 1 << 62))
        return found

    def make_folder(self, path: str) -> None:
        """Create the folder and its parents."""
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            above = "/".join(parts[:count])
            if self.disk.find(above) is None:
                self._act("create", above, lambda above=above: self.disk.make_folder(above))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write aside, then link."""
        temporary = self._temporary_path(path)
        folder, name = self.disk.parent(path)
        try:
            file = self._create(temporary, data)
            late = self._gate.step("link", path)
            if name in folder.names:
                return False
            self.disk.change((folder, name, file))
            if late is not None:
                raise late
        finally:
            with contextlib.suppress(OSError):
                self._unlink(temporary)
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Write aside, sync, rename, sync the folder."""
        temporary = self._temporary_path(path)
        try:
            self._sync(self._create(temporary, data), temporary)
            self.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self._unlink(temporary)
            raise
        self._sync_folder(path.rpartition("/")[0])

    def sync_path(self, path: str) -> None:
        """One file or folder."""
        self.take_back()
        node = self.disk.find(path)
        if node is None:
            raise missing(path)
        if isinstance(node, File):
            self._sync(node, path)
        else:
            self._sync_folder(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder; what a file replaces is gone in the same step."""
        (old, old_name), (new, new_name) = self.disk.parent(source), self.disk.parent(target)
        node = old.names.get(old_name)
        if node is None:
            raise missing(source)
        there: Node | None = new.names.get(new_name)
        if isinstance(there, Folder) and there.names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        self._act(
            "rename",
            target,
            lambda: self.disk.change((old, old_name, None), (new, new_name, node)),
        )

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        self.take_back()
        if self.disk.find(path) is not None:
            self._unlink(path)

    def remove_folder(self, path: str) -> None:
        """Remove a folder with all it holds; errors leave the rest."""
        node = self.disk.find(path)
        if isinstance(node, Folder):
            with contextlib.suppress(OSError):
                for name in [name for name, _ in walk(node)][::-1]:
                    self._unlink(f"{path}/{name}")
                self._unlink(path)

    def open_append(self, path: str) -> int:
        """Create a new file and sync the folder."""
        if self.disk.find(path) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._act("create", path, lambda: self.disk.create(path))
        try:
            self._sync_folder(path.rpartition("/")[0])
        except OSError:
            self._unlink(path)
            raise
        descriptor = len(self._descriptors) + 3
        self._descriptors[descriptor] = (path, self.disk.file(path))
        return descriptor

    def write(self, descriptor: int, parts: list[bytes]) -> None:
        """Write all parts at the end."""
        path, file = self._descriptors[descriptor]
        self._write(file, b"".join(parts), path)

    def sync(self, descriptor: int) -> None:
        """The data and the size."""
        path, file = self._descriptors[descriptor]
        self._sync(file, path)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut, and write on from there."""
        path, file = self._descriptors[descriptor]
        self._act("truncate", path, lambda: file.truncate(length))

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""
        self._act("close", self._descriptors[descriptor][0], lambda: None)

    def sync_all(self) -> None:
        """Everything; an error is remembered for ever."""
        try:
            if self._sync_error is None:
                self._gate.step("sync-all", "")
        except OSError as error:
            self._sync_error = error.errno
            self.disk.fail_sync_all(self._rng)
        if self._sync_error is None and self.disk.failed_syncs != self._failed_syncs:
            self._sync_error = errno.EIO
        if self._sync_error is not None:
            raise OSError(self._sync_error, os.strerror(self._sync_error))
        self.disk.sync_all()
