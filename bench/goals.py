"""What is aimed at, as ratios within one run, and whether the latest results reach it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

Medians = dict[str, dict[str, dict[str, Any]]]
"""Workload, server, figure."""


@dataclass(frozen=True)
class Goal:
    """`ours / theirs` or `ours - theirs` or `ours` alone, against a bound."""

    workload: str
    figure: str
    how: str
    """ratio, difference or value."""
    relation: str
    bound: float
    peer: str = ""

    def measured(self, medians: Medians) -> float | None:
        """None where one of both was not measured."""
        of = medians.get(self.workload, {})
        ours = of.get("bottomless", {}).get(self.figure)
        theirs = of.get(self.peer, {}).get(self.figure) if self.peer else 1
        if ours is None or theirs is None or (self.how == "ratio" and not theirs):
            return None
        return float({"ratio": ours / theirs, "difference": ours - theirs, "value": ours}[self.how])

    def is_met(self, value: float) -> bool:
        """By the figure as it is shown: two digits after the point."""
        value = round(value, 2)
        return value >= self.bound if self.relation == "≥" else value <= self.bound

    @property
    def text(self) -> str:
        """For a table."""
        unit = {"ratio": " x", "difference": " ms above", "value": ""}[self.how]
        return f"{self.relation} {self.bound:g}{unit} {TITLE_OF.get(self.peer, '')}".strip()


TITLE_OF: Final = {
    "rust": "Rust",
    "redis": "Redis",
    "prisma": "Prisma",
    "prisma-tuned": "Prisma, tuned",
    "floor": "fdatasync",
}

GOALS: Final = [
    Goal("W1-1", "records_per_s", "ratio", "≥", 0.7, "rust"),
    Goal("W1-64", "records_per_s", "ratio", "≥", 0.7, "rust"),
    Goal("W1s", "p50_ms", "difference", "≤", 1.0, "floor"),
    Goal("W2", "records_per_s", "ratio", "≥", 1.0, "rust"),
    Goal("W3", "records_per_s", "ratio", "≥", 0.7, "rust"),
    Goal("W4-1", "mb_per_s", "ratio", "≥", 0.5, "rust"),
    Goal("W4-4", "mb_per_s", "ratio", "≥", 0.5, "rust"),
    Goal("W4-1", "mb_per_s", "ratio", "≥", 2.0, "redis"),
    Goal("W4-4", "mb_per_s", "ratio", "≥", 2.0, "redis"),
    Goal("W4-cold", "mb_per_s", "value", "≥", 250),
    Goal("W5-sse", "p99_ms", "ratio", "≤", 1.5, "rust"),
    Goal("W6", "creates_per_s", "ratio", "≥", 0.7, "rust"),
    Goal("W6", "appends_per_s", "ratio", "≥", 0.7, "rust"),
    Goal("W6", "rss_mb", "value", "≤", 150),
    Goal("W7", "p50_ms", "ratio", "≤", 0.5, "prisma"),
    Goal("W7", "p99_ms", "ratio", "≤", 0.5, "prisma"),
]

BEHIND: Final = ("prisma", "prisma-tuned", "node", "nats")
"""Servers that ours is to be ahead of in everything."""

MAIN_FIGURE: Final = {
    "W1-1": "records_per_s",
    "W1-64": "records_per_s",
    "W1s": "p50_ms",
    "W2": "records_per_s",
    "W3": "records_per_s",
    "W4-1": "mb_per_s",
    "W4-4": "mb_per_s",
    "W4-cold": "mb_per_s",
    "W5-sse": "p99_ms",
    "W5-poll": "p99_ms",
    "W6": "appends_per_s",
    "W7": "p50_ms",
}


def behind_in(medians: Medians) -> list[str]:
    """Where a server that should be behind is not: `workload: server (their figure, ours)`."""
    found = []
    for workload, figure in MAIN_FIGURE.items():
        of = medians.get(workload, {})
        ours = of.get("bottomless", {}).get(figure)
        for peer in BEHIND:
            theirs = of.get(peer, {}).get(figure)
            if ours is None or theirs is None:
                continue
            is_ahead = ours <= theirs if figure.endswith("_ms") else ours >= theirs
            if not is_ahead:
                found.append(f"{workload}: {peer} ({theirs:g}, ours {ours:g})")
    return found
