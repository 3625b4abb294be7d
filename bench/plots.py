"""The plots of docs/performance.md: each function writes an SVG and returns its Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib import pyplot
from subjects import SUBJECTS

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

pyplot.switch_backend("svg")
# The same bytes for the same figures: no date, no random ids.
pyplot.rcParams.update({"svg.hashsalt": "bottomless", "svg.fonttype": "none", "font.size": 9})

OURS = "#c2410c"
OTHERS = ["#65a30d", "#0e7490", "#7c3aed", "#94a3b8", "#475569", "#a16207", "#be185d"]
PEERS = [subject.name for subject in SUBJECTS if subject.name != "bottomless"]
COLOURS = {"bottomless": OURS, **dict(zip(PEERS, OTHERS, strict=False))}
THROUGHPUT = {
    "W1-1": "records_per_s",
    "W1-64": "records_per_s",
    "W2": "records_per_s",
    "W3": "records_per_s",
    "W4-1": "mb_per_s",
    "W4-4": "mb_per_s",
}
LATENCY = {"W1-1": "append", "W1s": "append", "W2": "append", "W5-sse": "delivery"}
NINES = [50, 90, 99, 99.9]


def throughput(whole: dict[str, Any], path: Path) -> str:
    """Bars, one panel a workload, on a logarithmic scale: servers differ by orders of magnitude."""
    medians = whole["medians"]
    shown = [name for name in THROUGHPUT if name in medians]
    if not shown:
        return ""
    names = [name for name in COLOURS if any(name in medians[w] for w in shown)]
    figure, panels = pyplot.subplots(2, 3, figsize=(10, 2 + 0.42 * len(names)), squeeze=False)
    for panel, workload in zip(panels.flat, shown, strict=False):
        values = [medians[workload].get(n, {}).get(THROUGHPUT[workload], 0) for n in names]
        bars = panel.barh(range(len(names)), values, color=colours(names))
        panel.bar_label(bars, [f"{v:,.0f}" if v else "-" for v in values], fontsize=7, padding=2)
        panel.set_xscale("log")
        panel.set_xlim(min([v for v in values if v], default=1) / 5, max([*values, 2]) * 4)
        panel.minorticks_off()
        panel.set_yticks(range(len(names)), names if panel in panels[:, 0] else [""] * len(names))
        panel.invert_yaxis()
        unit = "MB/s" if THROUGHPUT[workload] == "mb_per_s" else "records/s"
        panel.set_title(f"{workload}, {unit}")
    for panel in panels.flat[len(shown) :]:
        panel.set_visible(False)
    return saved(figure, path, "Throughput of each server, by workload")


def latency(whole: dict[str, Any], path: Path) -> str:
    """How long appends and deliveries took, up to the slowest of a thousand."""
    shown = [name for name in LATENCY if name in whole["medians"]]
    if not shown:
        return ""
    figure, panels = pyplot.subplots(1, len(shown), figsize=(11, 3.2), squeeze=False)
    for panel, workload in zip(panels.flat, shown, strict=True):
        of = whole["medians"][workload]
        names = [name for name in COLOURS if "curve" in of.get(name, {})]
        for name, colour in zip(names, colours(names), strict=True):
            points = [point for point in of[name]["curve"] if 0 < point[0] < 100]
            # Distance from certainty: 50 %, 90 %, 99 % are equally far apart.
            panel.plot(
                [1 / (1 - percent / 100) for percent, _ in points],
                [ms for _, ms in points],
                color=colour,
                label=name,
                linewidth=2 if name == "bottomless" else 1.2,
            )
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks([1 / (1 - nine / 100) for nine in NINES], [f"{n:g}%" for n in NINES])
        panel.minorticks_off()
        panel.set_title(f"{workload}: {LATENCY[workload]}, ms")
    panels.flat[0].legend(fontsize=7)
    return saved(figure, path, "Latency of appends and deliveries, by share")


def growth(whole: dict[str, Any], path: Path) -> str:
    marks = whole["marks"]
    records = [at["records"] for at in marks]
    figure, panels = pyplot.subplots(1, 5, figsize=(11, 2.8))
    versions = whole["versions"]
    panels[4].plot(
        [at["version"] for at in versions], [at["commit_ms"] for at in versions], "o-", color=OURS
    )
    panels[4].set_ylim(bottom=0)
    panels[4].set_title("commit, ms")
    panels[4].set_xlabel("versions of the table")
    for panel, title, keys in zip(
        panels[:4],
        ("append, ms", "commit, ms", "read at the tail, ms", "RSS, MB"),
        (("append_p50_ms", "append_p99_ms"), ("commit_ms",), ("tail_read_p50_ms",), ("rss_mb",)),
        strict=True,
    ):
        for key in keys:
            line = "o--" if "p99" in key else "o-"
            label = key.removeprefix("append_").removesuffix("_ms")
            panel.plot(records, [at[key] for at in marks], line, color=OURS, label=label)
        if len(keys) > 1:
            panel.legend(fontsize=7)
        panel.set_xscale("log")
        panel.set_ylim(bottom=0)
        panel.set_title(title)
        panel.set_xlabel("records in the stream")
    return saved(figure, path, "What a stream costs as it grows")


def soak(whole: dict[str, Any], path: Path) -> str:
    samples = whole["samples"]
    minutes = [sample["at_s"] / 60 for sample in samples]
    figure, panels = pyplot.subplots(2, 3, figsize=(10, 4.6))
    for panel, (key, title) in zip(panels.flat, SOAKED.items(), strict=True):
        pairs = [
            (at, s[key]) for at, s in zip(minutes, samples, strict=True) if s.get(key) is not None
        ]
        panel.plot([at for at, _ in pairs], [value for _, value in pairs], color=OURS, linewidth=1)
        panel.set_ylim(bottom=0)
        panel.set_title(title)
    for panel in panels[1]:
        panel.set_xlabel("minutes")
    return saved(figure, path, "Memory, files and latency under mixed load")


SOAKED = {
    "rss_mb": "RSS, MB",
    "descriptors": "file descriptors",
    "files": "files of the root",
    "append_p99_ms": "append p99, ms",
    "commit_ms": "commit, ms",
    "appends_per_s": "appends/s",
}


def colours(names: list[str]) -> list[str]:
    """A server has the same colour in every plot."""
    return [COLOURS[name] for name in names]


def saved(figure: Figure, path: Path, what: str) -> str:
    for panel in figure.axes:
        tidy(panel)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return f"![{what}](images/{path.name})"


def tidy(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="both", alpha=0.25)
