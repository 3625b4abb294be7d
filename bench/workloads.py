"""What is measured: each workload as a run of the load generator, and which runs share a server.

Servers take turns within a round, group by group, so that they see the same noise of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Scale:
    """How long and how much."""

    seconds: float
    warm_s: float
    history: int
    """Records of the stream that is read; a server that needs longer than fill_s gets fewer."""
    fill_s: float
    settle_s: float
    reads: int
    streams: int
    rounds: int


FULL: Final = Scale(
    seconds=3,
    warm_s=0.7,
    history=1_000_000,
    fill_s=20,
    settle_s=3,
    reads=1000,
    streams=5000,
    rounds=3,
)
QUICK: Final = Scale(
    seconds=0.8,
    warm_s=0.3,
    history=100_000,
    fill_s=3,
    settle_s=1,
    reads=200,
    streams=500,
    rounds=1,
)


@dataclass(frozen=True)
class Step:
    """One run of the load generator, a pause, or a restart of the server."""

    workload: str
    """Under this name its figures are kept; empty where they are of no interest."""
    arguments: tuple[str, ...] = ()
    needs: str = "append"
    """One of Subject.speaks."""
    patience_s: float = 120


SETTLE: Final = Step("", needs="settle")
RESTART: Final = Step("", needs="restart")

TITLES: Final = {
    "W1-1": "64 connections, a record each, one stream",
    "W1-64": "64 connections, a record each, 64 streams",
    "W1s": "one connection, a record at a time",
    "W2": "16 connections, 100 records an append",
    "W3": "16 idempotent producers, one stream",
    "W4-1": "the whole history, one reader, warm",
    "W4-4": "the whole history, four readers, warm",
    "W4-cold": "the whole history, one reader, first read after a restart",
    "W5-sse": "100 live readers by SSE, 200 records/s: delivery",
    "W5-poll": "100 live readers by long-poll, 200 records/s: delivery",
    "W6": "streams created, one record each",
    "W7": "reads at random offsets of the history, time to the first byte",
}


def groups(scale: Scale, *, is_quick: bool) -> dict[str, list[Step]]:
    """Steps that share one fresh server."""
    timed = ("-seconds", f"{scale.seconds}s", "-warm", f"{scale.warm_s}s")

    def append(workload: str, *arguments: str, needs: str = "append") -> Step:
        own = ("-do", "append", "-stream", workload, *arguments, *timed)
        return Step(workload, own, needs, scale.seconds + 60)

    fine = [append("W1-1"), append("W1-64", "-streams", "64")]
    alone = [append("W1s", "-connections", "1")]
    batches = [append("W2", "-connections", "16", "-batch", "100")]
    producers = [append("W3", "-connections", "16", "-producers", needs="producers")]
    live_s = max(scale.seconds, 5 if not is_quick else 1)
    live = [_follow("sse", live_s), _follow("long-poll", live_s)]
    many = ("-do", "many", "-connections", "16", "-n", str(scale.streams), "-seconds", "30s")
    streams = [Step("W6", many, "many")]
    if is_quick:
        return {
            "appends": [*fine, *alone, *batches, *producers, live[0]],
            "streams": streams,
            "history": _history(scale),
        }
    return {
        "W1": fine,
        "W1s": alone,
        "W2": batches,
        "W3": producers,
        "history": _history(scale),
        "W5": live,
        "W6": streams,
    }


def _follow(how: str, seconds: float) -> Step:
    name = {"sse": "W5-sse", "long-poll": "W5-poll"}[how]
    arguments = ("-do", "follow", "-live", how, "-connections", "100", "-stream", name)
    return Step(name, (*arguments, "-seconds", f"{seconds}s"), how, seconds + 60)


def _history(scale: Scale) -> list[Step]:
    """{offsets} and {history} are filled in: the second is smaller for slow servers."""
    fill = ("-do", "fill", "-batch", "1000", "-connections", "4", "-n", "{history}")
    fill += ("-seconds", f"{scale.fill_s}s", "-offsets", "{offsets}", "-stream", "history")
    read = ("-do", "read", "-stream", "history", "-connections")
    random = ("-do", "random", "-stream", "history", "-offsets", "{offsets}", "-seconds", "10s")
    return [
        Step("fill", fill, "history"),
        SETTLE,
        Step("W4-1", (*read, "1"), "history"),
        Step("W4-4", (*read, "4"), "history"),
        RESTART,
        Step("W4-cold", (*read, "1"), "history"),
        Step("W7", (*random, "-n", str(scale.reads)), "random"),
    ]
