"""A local folder that fails where a test wants it to, and forgets what was never synced.

Every operation of LocalStorage passes through ``FaultyStorage.call``, whichever operations there
are: the wrapper knows only those whose durability it has to follow.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.storage import LocalStorage

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

WAL_FOLDER = "_wal"
ALLOWED_WHEN_DEAD = frozenset({"uri", "close", "unlock"})


@dataclass(slots=True)
class Fault:
    """Calls of ``operation`` that fail: the ``nth`` that matches, and ``times - 1`` after it."""

    operation: str
    nth: int = 1
    times: int = 1
    after: bool = False
    code: int = errno.EIO
    path: str = ""
    seen: int = 0

    def strikes(self, operation: str, arguments: tuple[Any, ...]) -> bool:
        """Count the call; True if it shall fail."""
        if operation != self.operation or self.path not in str(arguments[:1]):
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times

    def error(self) -> OSError:
        """What the caller gets."""
        return OSError(self.code, os.strerror(self.code))


class FaultyStorage:
    """A LocalStorage with faults, call counts, hooks, death and power cuts."""

    def __init__(self, root: Path) -> None:
        self.inner = LocalStorage(root)
        self.root = root
        self.calls: Counter[str] = Counter()
        self.hooks: dict[str, Callable[[], object]] = {}
        """Called before an operation of that name, outside every lock: a hook may block."""
        self._faults: list[Fault] = []
        self._lock = threading.RLock()
        self._is_dead = False
        self._paths: dict[int, str] = {}
        self._durable: dict[str, int] = {}
        """Files known to be durable, with the length that is."""
        self._note_everything()

    def fail(self, operation: str, **how: Any) -> Fault:
        """Arrange for a failure; see Fault."""
        fault = Fault(operation, **how)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """No more failures."""
        self._faults.clear()

    def die(self) -> None:
        """As if the process were gone: whatever is still running can change nothing any more."""
        with self._lock:
            self._is_dead = True

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.inner, name)
        if not callable(operation):
            return operation

        def call(*arguments: Any, **options: Any) -> Any:
            return self.call(name, operation, arguments, options)

        return call

    def call(
        self,
        name: str,
        operation: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        """Do the operation, or fail before or after it."""
        if hook := self.hooks.get(name):
            hook()
        with self._lock:
            self.calls[name] += 1
            if self._is_dead and name not in ALLOWED_WHEN_DEAD:
                raise OSError(errno.EIO, "the process is dead")
            faults = [fault for fault in self._faults if fault.strikes(name, arguments)]
            for fault in faults:
                if not fault.after:
                    raise fault.error()
            result = operation(*arguments, **options)
            self._follow(name, arguments, result)
            for fault in faults:
                raise fault.error()
            return result

    def _follow(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        if name == "open_append":
            self._paths[result] = arguments[0]
            self._durable[arguments[0]] = 0
        elif name == "sync":
            path = self._paths[arguments[0]]
            self._durable[path] = (self.root / path).stat().st_size
        elif name == "replace":
            self._durable[arguments[0]] = len(arguments[1])
        elif name == "sync_path":
            if (self.root / arguments[0]).is_file():
                self._durable[arguments[0]] = (self.root / arguments[0]).stat().st_size
        elif name in ("rename", "remove", "remove_folder"):
            # The next file of that name is another one.
            for path in [path for path in self._durable if is_below(path, arguments[0])]:
                del self._durable[path]
        elif name == "sync_all":
            self._note_everything()

    def _note_everything(self) -> None:
        for path in files_below(self.root):
            self._durable[path] = (self.root / path).stat().st_size

    def copy_to(self, target: Path) -> None:
        """What another process finds after this one was killed: everything that was written."""
        with self._lock:
            shutil.copytree(self.root, target)

    def power_cut_to(self, target: Path, rng: random.Random) -> None:
        """What a machine finds after a power cut: what was not synced is there, lost or torn."""
        self.copy_to(target)
        for path in sorted(files_below(target)):
            durable = self._durable.get(path, -1)
            if path == "_lock" or (target / path).stat().st_size == durable:
                continue
            tear(target / path, keep=durable, rng=rng)


def is_below(path: str, folder: str) -> bool:
    """The path is that of the folder, or of something in it."""
    return path == folder or path.startswith(f"{folder}/")


def tear(path: Path, *, keep: int, rng: random.Random) -> None:
    """Leave of a file what a power cut may leave: at least the ``keep`` bytes that were synced."""
    data = path.read_bytes()
    rest = len(data) - max(0, keep)
    fate = rng.choice(["whole", "gone", "cut", "zeros"])
    if fate == "whole":
        return
    if fate == "gone" and keep < 0:
        path.unlink()
        return
    kept = max(0, keep) + (rng.randrange(rest + 1) if fate == "cut" else 0)
    zeros = rest if fate == "zeros" else 0
    path.write_bytes(data[:kept] + bytes(zeros))


def files_below(root: Path) -> list[str]:
    """Paths of all files, relative to the root."""
    found = []
    for folder, _, names in os.walk(root):
        found += [str((Path(folder) / name).relative_to(root)) for name in names]
    return found
