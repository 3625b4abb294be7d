"""A disk in memory that knows what was written and what would survive a power cut.

Harsher than ext4: a sync makes durable what it names and nothing else. Of the rest a power cut
keeps an arbitrary part: sectors of 512 bytes, sizes, and names, each of them in any order.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

SECTOR_BYTES = 512


class File:
    """Content as programs see it, and as the medium has it."""

    __slots__ = ("data", "dirty", "dirty_size", "dropped", "platter")

    def __init__(self) -> None:
        self.data = bytearray()
        self.platter = b""
        self.dirty: set[int] = set()
        """Sectors that the next sync will write."""
        self.dirty_size = False
        self.dropped = False
        """A sync has failed: memory holds what the medium does not, and calls it clean (F5)."""

    @property
    def is_durable(self) -> bool:
        """Nothing of it can be lost."""
        return not self.dirty and not self.dirty_size and not self.dropped

    def append(self, data: bytes) -> None:
        """Write at the end."""
        if data:
            begin = len(self.data)
            self.data += data
            self.dirty.update(range(begin // SECTOR_BYTES, _sectors(len(self.data))))
            self.dirty_size = True

    def truncate(self, length: int) -> None:
        """Cut the end off."""
        del self.data[length:]
        self.dirty = {sector for sector in self.dirty if sector < _sectors(length)}
        self.dirty_size = True

    def sync(self) -> None:
        """Write what is dirty; what an earlier sync has dropped is not."""
        if not self.dropped:
            self.platter = bytes(self.data)
        elif self.dirty or self.dirty_size:
            self.platter = self._mixed(self.dirty, len(self.data))
        self.dirty.clear()
        self.dirty_size = False

    def fail_sync(self, rng: random.Random) -> None:
        """Some sectors reach the medium, the others are marked clean all the same."""
        if self.dirty or self.dirty_size:
            kept = {sector for sector in sorted(self.dirty) if rng.random() < 0.3}
            length = len(self.data) if rng.random() < 0.5 else len(self.platter)
            self.platter = self._mixed(kept, length)
            self.dropped = True
            self.dirty.clear()
            self.dirty_size = False

    def forget_cached(self) -> None:
        """Clean pages are read anew, from the medium."""
        if self.dropped:
            clean = set(range(_sectors(len(self.data)))) - self.dirty
            fresh = bytearray(self.platter[: len(self.data)].ljust(len(self.data), b"\0"))
            for sector in range(_sectors(len(self.data))):
                if sector not in clean:
                    place = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
                    fresh[place] = self.data[place]
            self.data = fresh
            self.dropped = bytes(fresh) != self.platter and not self.dirty

    def cut(self, rng: random.Random) -> None:
        """The power is gone: what was not synced is there, lost or torn."""
        if self.dirty or self.dirty_size:
            fate = rng.choice(["new", "old", "prefix", "zeros", "sectors", "sectors"])
            old, new = len(self.platter), len(self.data)
            if fate == "new":
                self.platter = self._mixed(self.dirty, new)
            elif fate == "prefix":
                length = rng.randint(min(old, new), max(old, new))
                self.platter = self._mixed(self.dirty, length)
            elif fate == "zeros":
                self.platter = self._mixed(set(), new)
            elif fate == "sectors":
                kept = {sector for sector in sorted(self.dirty) if rng.random() < 0.5}
                self.platter = self._mixed(kept, rng.choice([old, new, new]))
        self.data = bytearray(self.platter)
        self.dirty.clear()
        self.dirty_size = self.dropped = False

    def _mixed(self, sectors: set[int], length: int) -> bytes:
        """The medium with these sectors of memory on it; what was never written is zeros."""
        mixed = bytearray(self.platter[:length].ljust(length, b"\0"))
        for sector in sectors:
            begin = sector * SECTOR_BYTES
            part = self.data[begin : begin + SECTOR_BYTES]
            mixed[begin : begin + len(part)] = part
        return bytes(mixed[:length])


@dataclass(slots=True, eq=False)
class Folder:
    """Names as programs see them, and as the medium has them."""

    names: dict[str, Node] = field(default_factory=dict)
    platter: dict[str, Node] = field(default_factory=dict)


Node = File | Folder
Slot = tuple[Folder, str, Node | None]
"""What a name in a folder shall mean from now on."""


class Disk:
    """A tree of names. Every change of names is one journal record until it is durable."""

    def __init__(self) -> None:
        self.root = Folder()
        self.journal: list[tuple[Slot, ...]] = []
        self.failed_syncs = 0
        """Every program that holds the disk open is told of each, whoever made the sync."""

    # What programs do.

    def find(self, path: str) -> Node | None:
        """What lies there."""
        node: Node | None = self.root
        for part in path.split("/") if path else ():
            if not isinstance(node, Folder):
                return None
            node = node.names.get(part)
        return node

    def file(self, path: str) -> File:
        """The file that lies there."""
        node = self.find(path)
        if isinstance(node, File):
            return node
        raise missing(path)

    def folder(self, path: str) -> Folder:
        """The folder that lies there."""
        node = self.find(path)
        if isinstance(node, Folder):
            return node
        raise missing(path)

    def parent(self, path: str) -> tuple[Folder, str]:
        """The folder of a name, and the name in it."""
        above, _, name = path.rpartition("/")
        return self.folder(above), name

    def change(self, *slots: Slot) -> None:
        """One change of names: on the medium it happens whole or not at all."""
        for folder, name, node in slots:
            if node is None:
                folder.names.pop(name, None)
            else:
                folder.names[name] = node
        self.journal.append(slots)

    def create(self, path: str) -> File:
        """A new empty file in place of whatever had the name."""
        folder, name = self.parent(path)
        file = File()
        self.change((folder, name, file))
        return file

    def make_folder(self, path: str) -> None:
        """One folder, if it is not there."""
        folder, name = self.parent(path)
        if name not in folder.names:
            self.change((folder, name, Folder()))

    def sync_folder(self, folder: Folder) -> None:
        """All changes of its names are durable, and whatever is part of the same changes."""
        kept = []
        for slots in self.journal:
            if any(changed is folder for changed, _, _ in slots):
                _write_names(slots)
            else:
                kept.append(slots)
        self.journal = kept

    def sync_all(self) -> None:
        """Everything."""
        for slots in self.journal:
            _write_names(slots)
        self.journal.clear()
        for file in self.files():
            file.sync()

    def fail_sync_all(self, rng: random.Random) -> None:
        """Some of it, and later syncs say that all is well."""
        self.failed_syncs += 1
        for file in self.files():
            if rng.random() < 0.5:
                file.sync()
            else:
                file.fail_sync(rng)

    def files(self) -> list[File]:
        """Every file that has a name."""
        return [node for _, node in walk(self.root) if isinstance(node, File)]

    # What befalls it.

    def evict(self, rng: random.Random) -> None:
        """Memory is short: clean pages go, and are read from the medium when they are wanted."""
        for file in self.files():
            if file.dropped and rng.random() < 0.5:
                file.forget_cached()

    def power_cut(self, rng: random.Random) -> None:
        """What was synced is there; of the rest an arbitrary part."""
        survivors = rng.choice(["none", "prefix", "some", "some", "all"])
        count = rng.randint(0, len(self.journal)) if survivors == "prefix" else len(self.journal)
        for slots in self.journal[:count]:
            if survivors in ("all", "prefix") or (survivors == "some" and rng.random() < 0.5):
                _write_names(slots)
        self.journal.clear()
        _adopt_platter(self.root)
        for file in self.files():
            file.cut(rng)


def _write_names(slots: tuple[Slot, ...]) -> None:
    for folder, name, node in slots:
        if node is None:
            folder.platter.pop(name, None)
        else:
            folder.platter[name] = node


def _adopt_platter(folder: Folder) -> None:
    folder.names = dict(folder.platter)
    for node in folder.names.values():
        if isinstance(node, Folder):
            _adopt_platter(node)


def walk(folder: Folder, path: str = "") -> list[tuple[str, Node]]:
    """Everything below, in the order of the names."""
    found: list[tuple[str, Node]] = []
    for name in sorted(folder.names):
        node = folder.names[name]
        found.append((path + name, node))
        if isinstance(node, Folder):
            found += walk(node, f"{path}{name}/")
    return found


def missing(path: str) -> FileNotFoundError:
    """What the kernel says."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _sectors(length: int) -> int:
    return -(-length // SECTOR_BYTES)
