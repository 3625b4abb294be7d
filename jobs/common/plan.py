"""Which files a compaction joins: pure arithmetic on what the log says.

Neighbours of one day are joined. A file takes part only if the result has at least twice its rows,
so a row is rewritten at most log2(rows) times, however long the stream lives.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from engine.format.offset import epoch_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.settings import CompactSettings
    from engine.table.actions import DataFile
    from engine.types import Offset

# One rewrite is one log entry with a line per file; and Spark's driver holds a path for each.
_ROUND_FILES_MAX: Final = 20_000
# Spark compiles the search for a row's bin; from 1000 bins on the code is too large for the JVM.
_ROUND_BINS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Bin:
    """Neighbouring files of one day that become one file."""

    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Rows of the new file."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Bytes that are read."""
        return sum(file.size for file in self.files)

    @property
    def first(self) -> Offset:
        """The first offset of the new file."""
        return self.files[0].first

    @property
    def last(self) -> Offset:
        """The last offset of the new file."""
        return self.files[-1].last

    @property
    def partition(self) -> str:
        """The day."""
        return self.files[0].partition


def plan_compaction(
    files: Iterable[DataFile], settings: CompactSettings, *, now_ms: int
) -> list[Bin]:
    """Bins in offset order; empty where nothing is worth a rewrite."""
    settled_ms = now_ms - settings.settle_seconds * 1000
    ordered = sorted(files, key=lambda file: file.first)
    bins: list[Bin] = []
    for _, of_day in groupby(ordered, key=lambda file: file.partition):
        run: list[DataFile] = []
        for file in of_day:
            if _is_good(file, settings) or epoch_of(file.last) > settled_ms:
                bins += _plan_run(run, settings)
                run = []
            else:
                run.append(file)
        bins += _plan_run(run, settings)
    return bins


def rounds_of(bins: list[Bin], settings: CompactSettings) -> list[list[Bin]]:
    """Bins in groups, each of which is rewritten and committed at once."""
    rounds: list[list[Bin]] = []
    size = count = 0
    for bin_ in bins:
        is_full = size + bin_.bytes > settings.round_bytes
        is_full = is_full or count + len(bin_.files) > _ROUND_FILES_MAX
        if not rounds or is_full or len(rounds[-1]) == _ROUND_BINS_MAX:
            rounds.append([])
            size = count = 0
        rounds[-1].append(bin_)
        size, count = size + bin_.bytes, count + len(bin_.files)
    return rounds


def _is_good(file: DataFile, settings: CompactSettings) -> bool:
    return file.size * 2 >= settings.target_file_bytes or file.rows * 2 > settings.rows_max


def _plan_run(run: list[DataFile], settings: CompactSettings) -> list[Bin]:
    """Join neighbours that are all small. One that has more rows than all the others together
    would be rewritten for little: it is left out, and the run goes on at either side of it.
    """
    pending = [run]
    bins: list[Bin] = []
    while pending:
        part = pending.pop()
        if len(part) < settings.files_min:
            continue
        largest = max(range(len(part)), key=lambda index: part[index].rows)
        if 2 * part[largest].rows > sum(file.rows for file in part):
            pending += [part[largest + 1 :], part[:largest]]
        else:
            bins += _split(part, settings)
    return sorted(bins, key=lambda bin_: bin_.first)


def _split(run: list[DataFile], settings: CompactSettings) -> list[Bin]:
    """Cut a run where a bin has reached the target; a small rest joins the last bin."""
    bins: list[list[DataFile]] = [[]]
    size = rows = 0
    for file in run:
        if bins[-1] and rows + file.rows > settings.rows_max:
            bins.append([])
            size = rows = 0
        bins[-1].append(file)
        size, rows = size + file.size, rows + file.rows
        if size >= settings.target_file_bytes:
            bins.append([])
            size = rows = 0
    if not bins[-1]:
        bins.pop()
    if len(bins) > 1 and 2 * size < settings.target_file_bytes:
        joined = bins[-2] + bins[-1]
        if sum(file.rows for file in joined) <= settings.rows_max:
            bins[-2:] = [joined]
    return [Bin(tuple(files)) for files in bins if len(files) > 1]
