"""Costs stay under the limits of tests/support/costs.py: a regression fails on any machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.costs import LIMITS, UNITS, measure_costs, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
BY_STRACE = {"syscalls", "syncs"}


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    return measure_costs(tmp_path_factory.mktemp("costs"))


def over(measured: dict[str, float], limits: dict[str, float]) -> list[str]:
    return [
        f"{cost}: {measured[cost]:.2f}, more than {limit:g}"
        for cost, limit in limits.items()
        if measured[cost] > limit
    ]


@pytest.mark.parametrize("row", UNITS)
def test_costs_inside_the_server(costs: dict[str, dict[str, float]], row: str) -> None:
    limits = {cost: limit for cost, limit in LIMITS[row].items() if cost not in BY_STRACE}
    assert not over(costs[row], limits), f"per {UNITS[row]}"


@pytest.mark.parametrize("row", UNITS)
def test_costs_of_system_calls(costs: dict[str, dict[str, float]], row: str) -> None:
    if "syscalls" not in costs[row]:
        pytest.skip("strace is missing or may not trace here: run `make fault-tools`")
    limits = {cost: limit for cost, limit in LIMITS[row].items() if cost in BY_STRACE}
    assert not over(costs[row], limits), f"per {UNITS[row]}"


@pytest.mark.parametrize("row", [row for row in UNITS if row.startswith("append")])
def test_costs_are_really_counted(costs: dict[str, dict[str, float]], row: str) -> None:
    """No append is free: a counter that stands still would let everything pass."""
    measured = costs[row]
    assert measured["written_kib"] > 195
    assert measured["calls"] > 100
    assert measured["held_kib"] > 100
    assert measured.get("syncs", 1) > 0


def test_costs_in_the_docs_are_these() -> None:
    assert table() in PAGE.read_text()
