"""Paths as Spark wants them."""

from __future__ import annotations

import re
from typing import Final

_PATTERN: Final = re.compile(r"([][{}*?\\])")


def glob_escape(path: str) -> str:
    """A path for Spark's readers of files, which take it for a pattern; its writers do not."""
    return _PATTERN.sub(r"\\\1", path)
