"""A small file system in memory that can be filled and given space again; needs root."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

MIB = 1 << 20
BALLAST = "ballast"


class Tmpfs:
    """Mounted at ``path`` while the context is entered."""

    def __init__(self, path: Path, *, mib: int = 16) -> None:
        self.path = path
        self._mib = mib

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            pytest.skip("mounting a small tmpfs needs root")
        self.path.mkdir(parents=True, exist_ok=True)
        options = ["-t", "tmpfs", "-o", f"size={self._mib}m", "tmpfs", str(self.path)]
        done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"a tmpfs cannot be mounted: {done.stderr.strip()}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Lazily: a process that still holds a file must not keep the test from ending.
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    @property
    def free_bytes(self) -> int:
        """What can still be written."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_bsize

    def resize(self, mib: int) -> None:
        """Give it another size, with everything in it."""
        options = ["-o", f"remount,size={mib}m", str(self.path)]
        subprocess.run(["mount", *options], check=True)

    def leave(self, free_bytes: int) -> None:
        """Fill it with a file of no use until only this much is free."""
        # Unbuffered: what found no room must not be tried again when the file is closed. Somebody
        # else may take the last page first, even the one that the file itself would need.
        with suppress(OSError), (self.path / BALLAST).open("ab", buffering=0) as file:
            while (rest := self.free_bytes - free_bytes) > 0:
                file.write(bytes(min(rest, MIB)))

    def give_back(self) -> None:
        """Remove that file."""
        (self.path / BALLAST).unlink(missing_ok=True)
