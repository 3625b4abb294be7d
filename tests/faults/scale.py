"""How often is enough: a few minutes for everything in `make test`, as long as it takes in
`make test-faults`."""

from __future__ import annotations

import os

IS_LONG = os.environ.get("BOTTOMLESS_FAULTS") == "long"


def times(*, quick: int, long: int) -> int:
    """How often a fault is injected in this run."""
    return long if IS_LONG else quick
