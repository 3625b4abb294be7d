"""Tiers are folders: every test carries the marker of the folder it lives in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

pytest_plugins = ["tests.support.spark"]

TESTS = Path(__file__).parent
TIERS = frozenset({"unit", "property", "spark", "conformance", "crash", "faults"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if TESTS in item.path.parents:
            tier = item.path.relative_to(TESTS).parts[0]
            if tier in TIERS:
                item.add_marker(tier)
