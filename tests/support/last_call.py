"""Make any one of a server's calls that change its root the last one of its life.

A small library (last_call.c) in the server's process counts these calls over all threads. strace
can inject a kill too, but it counts for each thread and each system call on its own, so that a
write of a second thread can hardly be reached; here it is the witness that no call escapes.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.load import wait_for

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

SOURCE = Path(__file__).with_name("last_call.c")
_CONTROL = struct.Struct("QQQ")


@dataclass(frozen=True, slots=True)
class CountedCall:
    """One call: its number, what it was, and where below the root."""

    number: int
    name: str
    path: str

    @property
    def kind(self) -> str:
        """The call and the sort of file, without what differs from one to the next."""
        folder, _, name = self.path.rpartition("/")
        sort = "folder" if self.name in ("mkdir", "rmdir") else _sort_of(folder, name)
        return f"{self.name} {sort}"


def _sort_of(folder: str, name: str) -> str:
    if folder.startswith("/_trash/"):
        return "in trash"
    if name.endswith(".wal") or ".wal." in name:
        return "segment"
    if "snapshot" in name:
        return "snapshot"
    if "checkpoint" in name:
        return "checkpoint"
    if name.endswith((".json", ".json.tmp")) or ".json." in name:
        return "entry"
    return "data file" if name.endswith(".parquet") else "folder"


class LastCall:
    """The counter of one server at a time, and the number of its last call."""

    def __init__(self, folder: Path, root: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler: run `make fault-tools`")
        folder.mkdir(parents=True, exist_ok=True)
        library, control = folder / "last_call.so", folder / "control"
        self._log = folder / "calls.log"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True)
        control.write_bytes(bytes(_CONTROL.size))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _CONTROL.size)
        self.env = {
            "LD_PRELOAD": str(library),
            "LAST_CALL_ROOT": str(root),
            "LAST_CALL_CONTROL": str(control),
            "LAST_CALL_LOG": str(self._log),
        }
        """For the server's environment."""

    @property
    def count(self) -> int:
        """How many calls there were so far."""
        return int(_CONTROL.unpack(self._control)[0])

    def forget(self) -> None:
        """Begin to count anew, and let everything pass."""
        self._control[:] = bytes(_CONTROL.size)
        self._log.unlink(missing_ok=True)

    def arm(self, distance: int, *, half: bool = False) -> None:
        """The ``distance``-th call from now on is not made any more, or half of it if it writes."""
        # Field by field: the server may be counting.
        struct.pack_into("Q", self._control, 16, int(half))
        struct.pack_into("Q", self._control, 8, self.count + distance)

    def disarm(self) -> None:
        """Let everything pass again."""
        if self.last() is None:
            struct.pack_into("Q", self._control, 8, 0)

    def calls(self) -> list[CountedCall]:
        """All of them since ``forget``, in order."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        fields = [line.split(" ", 2) for line in lines]
        found = [CountedCall(int(number), name, path) for number, name, path in fields]
        return sorted(found, key=lambda call: call.number)

    def last(self) -> CountedCall | None:
        """The call that was not made any more; None while the server lives."""
        number = int(_CONTROL.unpack(self._control)[1])
        return next((call for call in self.calls() if call.number == number), None)


def wait_killed(server: ServerProcess, timeout_s: float = 30.0) -> None:
    """The server has killed itself: let go of it, so that it can be started again."""
    wait_for(lambda: not server.is_running, "the last call", timeout_s)
    # It is dead already; this collects it, and fails if anything but SIGKILL was its end.
    server.kill9()
