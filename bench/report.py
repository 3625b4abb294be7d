"""Writes the latest results into docs/performance.md, between its marks, and plots beside it.

    make bench-report

Reads what is there of bench/results/latest.json, growth.json, storage.json and soak.json.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import plots
from goals import BEHIND, GOALS, MAIN_FIGURE, behind_in
from subjects import BY_NAME, CLONE, SUBJECTS
from workloads import TITLES

sys.path.insert(0, str(CLONE))
from tests.support.costs import table as costs_table

PAGE = CLONE / "docs" / "performance.md"
IMAGES = CLONE / "docs" / "images"
RESULTS = CLONE / "bench" / "results"
UNITS = {"records_per_s": "records/s", "mb_per_s": "MB/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms"}
COLUMNS = {
    "W1-1": ("records_per_s", "p50_ms", "p99_ms"),
    "W1-64": ("records_per_s", "p50_ms", "p99_ms"),
    "W1s": ("p50_ms", "p99_ms"),
    "W2": ("records_per_s", "p50_ms", "p99_ms"),
    "W3": ("records_per_s", "p50_ms", "p99_ms"),
    "W4-1": ("mb_per_s",),
    "W4-4": ("mb_per_s",),
    "W4-cold": ("mb_per_s",),
    "W5-sse": ("p50_ms", "p99_ms"),
    "W5-poll": ("p50_ms", "p99_ms"),
    "W6": ("creates_per_s", "appends_per_s", "rss_mb"),
    "W7": ("p50_ms", "p99_ms"),
}
NAMES = {**UNITS, "creates_per_s": "creates/s", "appends_per_s": "appends/s", "rss_mb": "RSS MB"}


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    text = replaced(PAGE.read_text(), "costs", costs_table())
    for name, write in PARTS.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            mark = "bench" if name == "latest" else name
            text = replaced(text, mark, write(json.loads(path.read_text())))
            print(f"{mark}: {path.relative_to(CLONE)}")
    PAGE.write_text(text)
    return 0


def replaced(text: str, mark: str, inside: str) -> str:
    begin, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->"
    found, count = re.subn(
        f"({begin}).*?({end})",
        lambda match: f"{match[1]}{inside.strip()}\n{match[2]}",
        text,
        flags=re.DOTALL,
    )
    assert count == 1, f"{PAGE} has not one place for {mark}"
    return found


def compare(whole: dict[str, Any]) -> str:
    """The peers: goals, one table of all workloads, plots."""
    medians, machine = whole["medians"], whole["machine"]
    noise = sorted(line["other_cpu"] for line in whole["measurements"] if "other_cpu" in line)
    parts = [
        f"Measured {whole['when'][:10]}: {machine['cores']} cores ({machine['cpu']}),"
        f" {machine['memory_gb']} GB, {machine['filesystem']}, Linux {machine['kernel']}, Python"
        f" {machine['python']}; {whole['scale']['rounds']} rounds, client in"
        f" {whole['client'].capitalize()}."
    ]
    if noise:
        share = noise[len(noise) // 2]
        parts[0] += f" Others used {share:.0%} of the cores meanwhile (median)."
    left_out = [f"{title} ({why})" for title, why in whole["left_out"].items()]
    if left_out:
        parts.append(f"Not measured: {'; '.join(left_out)}.")
    parts += ["### Goals", goals_table(medians)]
    others = [name for name in BEHIND if any(name in of for of in medians.values())]
    if others:
        titles = ", ".join(BY_NAME[name].title for name in others)
        but = "; ".join(behind_in(medians))
        parts.append(f"Ahead of {titles} in every workload{f' but: {but}' if but else ''}.")
    parts += ["### All workloads", all_table(whole)]
    parts.append(plots.throughput(whole, IMAGES / "throughput.svg"))
    parts.append(plots.latency(whole, IMAGES / "latency.svg"))
    return "\n\n".join(part for part in parts if part)


def goals_table(medians: dict[str, Any]) -> str:
    lines = ["| workload | figure | goal | measured | |", "|---|---|---|--:|---|"]
    for goal in GOALS:
        value = goal.measured(medians)
        name = f"| {goal.workload} | {NAMES[goal.figure]} | {goal.text} |"
        if value is None:
            lines.append(f"{name} | not measured |")
        else:
            lines.append(f"{name} {value:.2f} | {'met' if goal.is_met(value) else 'not met'} |")
    return "\n".join(lines)


def all_table(whole: dict[str, Any]) -> str:
    """A row per workload and figure, a column per server."""
    medians, servers = whole["medians"], whole["servers"]
    also = {"floor": {"title": "fdatasync"}, "baseline": {"title": "bare ASGI, stores nothing"}}
    columns = {**servers, **also}
    columns = {
        name: about for name, about in columns.items() if any(name in of for of in medians.values())
    }
    heads = [f"{about['title']} {about.get('version', '')}".strip() for about in columns.values()]
    lines = [f"| | | {' | '.join(heads)} |", f"|---|---|{'--:|' * len(columns)}"]
    for workload, figures in COLUMNS.items():
        for figure in figures:
            of = medians.get(workload, {})
            cells = [shown(of.get(name, {}), workload, figure) for name in columns]
            if any(cells):
                title = f"{workload}: {TITLES[workload]}" if figure == figures[0] else ""
                lines.append(f"| {title} | {NAMES[figure]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def in_order(servers: dict[str, Any]) -> dict[str, Any]:
    return {subject.name: servers[subject.name] for subject in SUBJECTS if subject.name in servers}


def shown(of: dict[str, Any], workload: str, figure: str) -> str:
    if "failed" in of:
        return "failed"
    value = of.get(figure)
    if value is None:
        return ""
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    errors = sum(of.get(name, 0) for name in ("errors", "appends_errors", "creates_errors"))
    return f"{text} ({errors:.0f} errors)" if errors and figure == MAIN_FIGURE[workload] else text


def growth(whole: dict[str, Any]) -> str:
    heads = ["records", "versions", "append p50 / p99 ms", "CPU µs an append", "commit ms"]
    heads += ["read at the tail p50 ms", "RSS MB"]
    lines = [f"| {' | '.join(heads)} |", "|" + "--:|" * len(heads)]
    lines += [
        f"| {at['records']:,} | {at['versions']:,} | {at['append_p50_ms']:.2f} /"
        f" {at['append_p99_ms']:.2f} | {at['append_cpu_us']:.0f} | {at['commit_ms']:.1f} |"
        f" {at['tail_read_p50_ms']:.2f} | {at['rss_mb']:.0f} |"
        for at in whole["marks"]
    ]
    head = f"Measured {whole['when'][:10]}: one stream, records of {whole['record_bytes']} bytes."
    head += " A commit is of one record, from sending it to its acknowledgement by the table."
    versions = [f"{at['version']:,}: {at['commit_ms']:.1f}" for at in whole["versions"]]
    last = f"Such a commit (ms) in a stream of that many versions: {', '.join(versions)}."
    return "\n\n".join([head, "\n".join(lines), last, plots.growth(whole, IMAGES / "growth.svg")])


def storage(whole: dict[str, Any]) -> str:
    lines = ["| events | bytes each | sent MB | Parquet MB | share |", "|---|--:|--:|--:|--:|"]
    lines += [
        f"| {kind['kind']} | {kind['mean_bytes']:.0f} | {kind['sent'] / 1e6:.1f} |"
        f" {kind['parquet'] / 1e6:.1f} | {kind['share']:.2f} |"
        for kind in whole["kinds"]
    ]
    goal = "met" if all(kind["share"] <= 0.35 for kind in whole["kinds"]) else "not met"
    head = f"Measured {whole['when'][:10]}, {whole['records']:,} events of each kind."
    head += f" Goal: at most 0.35; {goal}."
    return f"{head}\n\n" + "\n".join(lines)


def soak(whole: dict[str, Any]) -> str:
    verdict = "flat" if whole["passed"] else "NOT flat"
    head = (
        f"Run of {whole['when'][:10]}, {whole['minutes']:g} minutes: {verdict}."
        f" {whole['done']['appends']:,} appends, {whole['done']['reads']:,} reads,"
        f" {whole['done']['events']:,} events to live readers; {whole['beside']}. Others used"
        f" {whole['other_cpu']:.0%} of the cores."
    )
    lines = ["| | begin | end | drift | bound | |", "|---|--:|--:|--:|--:|---|"]
    lines += [
        f"| {check['what']} | {check['begin']:.4g} | {check['end']:.4g} | {check['drift']:+.3g} |"
        f" {check['bound']:g} | {'ok' if check['ok'] else '**over**'} |"
        for check in whole["checks"]
    ]
    return "\n\n".join([head, "\n".join(lines), plots.soak(whole, IMAGES / "soak.svg")])


PARTS = {"latest": compare, "growth": growth, "storage": storage, "soak": soak}

if __name__ == "__main__":
    sys.exit(main())
