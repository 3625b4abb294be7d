"""A memory limit of the kernel around a server (cgroup v1 or v2); needs root."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    from types import TracebackType

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")
MIB = 1 << 20


class MemoryLimit:
    """What is started with ``wrapper`` is killed by the kernel when all of it needs more."""

    def __init__(self, mib: int) -> None:
        self._is_v1 = (V1 / "memory.limit_in_bytes").exists()
        self.path = (V1 if self._is_v1 else V2) / f"bottomless-faults-{os.getpid()}"
        self._mib = mib

    def __enter__(self) -> Self:
        if not self._is_v1 and "memory" not in _words(V2 / "cgroup.subtree_control"):
            pytest.skip("there is no memory cgroup on this machine")
        try:
            self.path.mkdir()
            self.set(self._mib)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.path.rmdir()
            pytest.skip(f"a memory cgroup cannot be made: {error}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        deadline = time.monotonic() + 10
        while True:
            try:
                self.path.rmdir()
            except OSError:
                # A process that has just been killed leaves in a moment.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def set(self, mib: int) -> None:
        """Another limit, also while a server runs."""
        name = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
        (self.path / name).write_text(str(mib * MIB))
        if not self._is_v1:
            (self.path / "memory.swap.max").write_text("0")

    def tighten(self, mib: int) -> None:
        """Lower the limit step by step, until there is nothing left that could be spared."""
        name = "memory.usage_in_bytes" if self._is_v1 else "memory.current"
        used = int((self.path / name).read_text()) // MIB
        with contextlib.suppress(OSError):
            for limit in range(used, 0, -mib):
                self.set(limit)

    @property
    def wrapper(self) -> tuple[str, ...]:
        """For ServerProcess: enters the group, then becomes the server."""
        return ("sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$0" "$@"')

    @property
    def kills(self) -> int:
        """How many processes of the group the kernel has killed for their memory."""
        text = (self.path / ("memory.oom_control" if self._is_v1 else "memory.events")).read_text()
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else 0


def _words(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text().split()
    return []
