"""The wall clock of a server, moved by the test while it runs (wallclock.c)."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")
HOUR_S = 3600
DECADE_S = 10 * 365 * 24 * HOUR_S


class WallClock:
    """Moves the wall clock of whatever is started with ``env``; the monotonic one runs on."""

    def __init__(self, folder: Path) -> None:
        library, self._path = folder / "wallclock.so", folder / "wallclock.shift"
        _compile(library)
        self._path.write_bytes(bytes(8))
        self.env = {"LD_PRELOAD": str(library), "WALLCLOCK_SHIFT": str(self._path)}
        self.shift_s = 0.0

    def set(self, shift_s: float) -> None:
        """From now on the clock is this far ahead of the true time; negative: behind."""
        self.shift_s = shift_s
        with self._path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as page:
            page[:8] = struct.pack("=q", int(shift_s * 1e9))

    def now_ms(self) -> int:
        """What the server takes for the time."""
        return int((time.time() + self.shift_s) * 1000)


def _compile(library: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: run `make fault-tools`")
    command = [compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    done = subprocess.run([*command, str(SOURCE), "-ldl"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
