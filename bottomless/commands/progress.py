"""A bar on standard error while something long goes on, where that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def load_progress(size: int | None, *, is_wanted: bool) -> Iterator[Callable[[int, int], None]]:
    """Call it with the records that are stored and the bytes that were read of ``size``."""
    if not is_wanted or not sys.stderr.isatty():
        yield lambda _records, _place: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.fields[records]:,} records"),
        BarColumn(),
        *((TaskProgressColumn(),) if size else ()),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=size, records=0)
        yield lambda records, place: bar.update(task, completed=place, records=records)
