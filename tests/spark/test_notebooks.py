"""The notebooks run from the first cell to the last, against a real server and a real table, and
`docs/notebooks.md` shows nothing but their cells.
"""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import polars as pl
import pytest
from nbclient import NotebookClient

from tests.support.load import Client, wait_for
from tests.support.server import ServerProcess
from tests.support.tables import DAY_MS, MONDAY_MS, TableBuilder, events, small_commits
from tests.support.wire import LEAKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_TIMEOUT_S = 120
HOUR_MS = DAY_MS // 24

STORED = 3000
FOLLOWED = 100
"""What the notebook waits for at the live end."""


@pytest.fixture(autouse=True)
def _jupyter_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Kernels leave their connection files where this says, and read nobody's own settings.
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter-config"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def test_notebook_tails_and_queries_a_stream(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess.start(data) as server, Client(server.url) as client:
        client.create("orders")
        append(client, 0, STORED)
        wait_for_rows(data / "orders", STORED)
        writer = threading.Thread(target=append_followed, args=(server.url,))

        def before(source: str) -> None:
            if "long-poll" in source:
                writer.start()
            elif "read_delta" in source:
                writer.join()
                wait_for_rows(data / "orders", STORED + FOLLOWED)

        env = {"BOTTOMLESS_URL": server.url, "BOTTOMLESS_ROOT": str(data)}
        notebook = run_notebook("tail_and_query", tmp_path, env, before)

    assert f"{STORED} records; the last: {{'id': {STORED - 1}," in text_of(notebook, "while True")
    in_all = f"{FOLLOWED} new records; {STORED + FOLLOWED} in all"
    assert in_all in text_of(notebook, "long-poll")
    assert f'{{"id":{STORED + FOLLOWED - 1},' in text_of(notebook, "read_delta")
    item, orders, revenue = best_item(0, STORED + FOLLOWED)
    for query in ("json_decode", "duckdb"):
        assert re.search(rf"{item}\D+{orders}\D+{revenue}", text_of(notebook, query)), query
    assert re.search(r"records\nflushed_at +\n20\d\d-", text_of(notebook, "to_pandas"))


def test_notebook_shows_a_day_of_history(tmp_path: Path, delta_jars: list[Path]) -> None:
    assert delta_jars
    noon, afternoon, records = write_two_days(tmp_path / "data")

    env = {"BOTTOMLESS_ROOT": str(tmp_path / "data"), "SPARK_LOCAL_DIRS": str(tmp_path / "spark")}
    notebook = run_notebook("history", tmp_path, env)

    assert re.search(rf"2026-11-17\s+40\n.*2026-11-18\s+{records}", text_of(notebook, "days"))
    assert f"2026-11-18: {records} records in 24 hours" in text_of(notebook, "max(flush_date)")
    assert "image/png" in outputs_of(notebook, "axes.bar")[0].data
    item, orders, revenue = best_item(noon, afternoon)
    assert re.search(rf"{item}\s+{orders}\s+{revenue}", text_of(notebook, "INTERVAL 12 HOURS"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_as_it_ran(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]

    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert {output.output_type for output in outputs} <= {"execute_result", "display_data"}
    shown = [text for output in outputs for text in output.data.values()]
    assert not [text for text in shown if LEAKS.search(text)]


def test_notebook_page_shows_cells_of_the_notebooks() -> None:
    cells = {cell.source for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells}
    page = (ROOT / "docs" / "notebooks.md").read_text()
    examples = re.findall(r"^```python\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE)

    assert examples
    assert [example for example in examples if example not in cells] == []


def run_notebook(
    name: str,
    folder: Path,
    env: dict[str, str],
    before: Callable[[str], None] = lambda source: None,
) -> NotebookNode:
    """Run every cell in a kernel that works in ``folder``; ``before`` sees each cell's source.

    Raises what a cell raises.
    """
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
        on_cell_execute=lambda cell, cell_index: before(cell.source),
    )
    # A proxy of the machine must not stand between the notebook and its server.
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **env}
    return client.execute(env=environment)


def outputs_of(notebook: NotebookNode, part: str) -> list[NotebookNode]:
    """The outputs of the one cell whose source has ``part`` in it."""
    (cell,) = (cell for cell in notebook.cells if cell.cell_type == "code" and part in cell.source)
    return cell.outputs


def text_of(notebook: NotebookNode, part: str) -> str:
    """What that cell shows, as text."""
    return "\n".join(output.data["text/plain"] for output in outputs_of(notebook, part))


def append(client: Client, begin: int, end: int, step: int = 100) -> None:
    """The events of the range, a few in each append."""
    for first in range(begin, end, step):
        records = events(first, min(first + step, end))
        reply = client.append("orders", b"[" + b",".join(records) + b"]")
        assert reply.status == 204, reply.body


def append_followed(url: str) -> None:
    """What the notebook sees come in live."""
    with Client(url) as client:
        append(client, STORED, STORED + FOLLOWED, step=20)


def wait_for_rows(table: Path, count: int) -> None:
    """Return when the table holds so many rows."""

    def is_there() -> bool:
        return (table / "_delta_log" / f"{0:020d}.json").exists() and (
            pl.scan_delta(str(table)).select(pl.len()).collect().item() == count
        )

    wait_for(is_there, f"{count} rows in the table")


def write_two_days(root: Path) -> tuple[int, int, int]:
    """A quiet day and a busy one; returns the ids of the second noon's hour, and its day's count.

    The busy day has two commits an hour, most of them around noon.
    """
    table: TableBuilder = small_commits(root, "orders", commits=4, rows=10, step_ms=HOUR_MS)
    begin = first = 40
    noon, afternoon = 0, 0
    for half in range(48):
        hour = half // 2
        if half == 24:
            noon = first
        elif half == 26:
            afternoon = first
        rows = 20 + 15 * min(hour, 24 - hour)
        epoch_ms = MONDAY_MS + DAY_MS + half * HOUR_MS // 2
        table.commit(epoch_ms, list(events(first, first + rows)))
        first += rows
    return noon, afternoon, first - begin


def best_item(begin: int, end: int) -> tuple[str, int, str]:
    """The item of the events of the range with the greatest revenue: name, orders, revenue."""
    prices = defaultdict(list)
    for record in events(begin, end):
        found = re.search(rb'"item":"([^"]+)","price":([0-9.]+)', record)
        assert found is not None
        prices[found[1].decode()].append(Decimal(found[2].decode()))
    best = max(prices, key=lambda item: sum(prices[item]))
    return best, len(prices[best]), str(sum(prices[best])).rstrip("0").rstrip(".")
