"""What happened in a schedule, as one number to compare and as lines to read."""

from __future__ import annotations

import zlib


class Trace:
    """The number stands for the whole sequence; lines are kept where somebody wants to read."""

    def __init__(self, *, keeps_lines: bool = False) -> None:
        self._keeps_lines = keeps_lines
        self._digest = 0
        self.count = 0
        self.lines: list[str] = []

    def note(self, what: str, about: str) -> None:
        """One thing that happened."""
        line = f"{what} {about}"
        self._digest = zlib.crc32(line.encode(), self._digest)
        self.count += 1
        if self._keeps_lines:
            self.lines.append(line)

    @property
    def fingerprint(self) -> str:
        """Equal for equal sequences."""
        return f"{self.count}-{self._digest:08x}"
