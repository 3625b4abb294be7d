"""Which files are joined: enough to keep a table small, never so much that rows are rewritten for
nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.format.offset import epoch_of, make_offset
from engine.settings import CompactSettings
from engine.table.actions import DataFile
from jobs.common.plan import Bin, plan_compaction, rounds_of
from tests.support.tables import DAY_MS, MONDAY_MS

LATER_MS = MONDAY_MS + 1000 * DAY_MS
EAGER = CompactSettings(files_min=2, settle_seconds=0)


def small(number: int, rows: int = 10, *, size: int = 1000, step_ms: int = 1000) -> DataFile:
    """The flush of one step."""
    epoch_ms = MONDAY_MS + number * step_ms
    first, last = make_offset(epoch_ms, 1), make_offset(epoch_ms, rows)
    return DataFile(f"flush-{number}", size, first, last, rows)


def plan(files: list[DataFile], config: CompactSettings, now_ms: int = LATER_MS) -> list[list[str]]:
    bins = plan_compaction(files, config, now_ms=now_ms)
    return [[file.path for file in bin_.files] for bin_ in bins]


def paths(begin: int, end: int) -> list[str]:
    return [f"flush-{number}" for number in range(begin, end)]


@dataclass
class Table:
    """A stream that gets a small file per step, and how often the rows of each file were
    rewritten.
    """

    config: CompactSettings
    files: list[DataFile] = field(default_factory=list)
    rewrites: dict[str, int] = field(default_factory=dict)
    bytes_per_row: int = 10
    step_ms: int = 1000
    steps: int = 0

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def small(self) -> list[DataFile]:
        """Files that are not good yet."""
        config = self.config
        return [
            file
            for file in self.files
            if file.size * 2 < config.target_file_bytes and file.rows * 2 <= config.rows_max
        ]

    def flush(self, rows: int) -> None:
        size = rows * self.bytes_per_row
        self._add(small(self.steps, rows, size=size, step_ms=self.step_ms), rewrites=0)
        self.steps += 1

    def compact(self) -> None:
        bins = self.plan()
        check_bins(bins, self.files, self.config)
        for bin_ in bins:
            path = f"joined-{self.steps}-{bin_.first}"
            joined = DataFile(path, bin_.bytes, bin_.first, bin_.last, bin_.rows)
            self.files = [file for file in self.files if file not in bin_.files]
            self._add(joined, rewrites=1 + max(self.rewrites[file.path] for file in bin_.files))

    def plan(self) -> list[Bin]:
        return plan_compaction(self.files, self.config, now_ms=LATER_MS)

    def _add(self, file: DataFile, *, rewrites: int) -> None:
        self.files.append(file)
        self.rewrites[file.path] = rewrites


def check_bins(bins: list[Bin], files: list[DataFile], config: CompactSettings) -> None:
    """Each bin is a run of neighbours of one day; no file is in two of them."""
    ordered = sorted(files, key=lambda file: file.first)
    joined = [file for bin_ in bins for file in bin_.files]
    assert len(joined) == len(set(joined))
    assert joined == sorted(joined, key=lambda file: file.first)
    for bin_ in bins:
        begin = ordered.index(bin_.files[0])
        assert tuple(ordered[begin : begin + len(bin_.files)]) == bin_.files
        assert {file.partition for file in bin_.files} == {bin_.partition}
        assert len(bin_.files) > 1
        assert bin_.rows <= config.rows_max
        assert (bin_.first, bin_.last) == (bin_.files[0].first, bin_.files[-1].last)
        assert epoch_of(bin_.first) // DAY_MS == epoch_of(bin_.last) // DAY_MS


# Examples.


def test_plan_joins_neighbours_when_there_are_enough():
    config = CompactSettings(files_min=8)
    files = [small(number) for number in range(8)]
    assert plan(files[:7], config) == []
    assert plan(files, config) == [paths(0, 8)]
    assert plan(files[::-1], config) == [paths(0, 8)]


def test_plan_of_nothing_is_empty():
    assert plan([], EAGER) == []


def test_plan_leaves_files_that_are_young():
    config = CompactSettings(files_min=2, settle_seconds=10)
    files = [small(number) for number in range(20)]
    now_ms = MONDAY_MS + 19_000
    assert plan(files, config, now_ms) == [paths(0, 10)]
    assert plan(files, config, now_ms + 10_000) == [paths(0, 20)]


def test_plan_never_joins_two_days():
    step_ms = DAY_MS // 4
    files = [small(number, step_ms=step_ms) for number in range(10)]
    assert plan(files, EAGER) == [paths(0, 4), paths(4, 8), paths(8, 10)]


def test_plan_leaves_a_file_of_half_the_target():
    config = CompactSettings(files_min=2, target_file_bytes=10_000)
    files = [small(number) for number in range(7)]
    files[3] = small(3, size=5000)
    assert plan(files, config) == [paths(0, 3), paths(4, 7)]
    files[3] = small(3, size=4999)
    assert plan(files, config) == [paths(0, 7)]


def test_plan_leaves_a_file_with_more_rows_than_all_others():
    files = [small(number, rows=10) for number in range(7)]
    files[3] = small(3, rows=61)
    assert plan(files, EAGER) == [paths(0, 3), paths(4, 7)]
    files[3] = small(3, rows=60)
    assert plan(files, EAGER) == [paths(0, 7)]


def test_plan_cuts_bins_at_the_target_and_joins_a_small_rest_to_the_last():
    config = CompactSettings(files_min=2, target_file_bytes=10_000)
    files = [small(number) for number in range(34)]
    assert plan(files, config) == [paths(0, 10), paths(10, 20), paths(20, 34)]
    files = [small(number) for number in range(35)]
    assert plan(files, config) == [paths(0, 10), paths(10, 20), paths(20, 30), paths(30, 35)]


def test_plan_goes_on_past_files_of_exactly_the_limits():
    """D6 of DurableStreams: its compaction got stuck for ever behind such a file."""
    config = EAGER.model_copy(update={"rows_max": 5000, "target_file_bytes": 10_000_000})
    limits = [small(0, 5000), small(1, 10, size=10_000_000), small(2, 2500), small(3, 2501)]
    assert plan([*limits, *(small(number) for number in range(4, 24))], config) == [paths(4, 24)]
    five = [small(number, 1000) for number in range(5)]
    assert plan([*five, *(small(number) for number in range(5, 25))], config) == [
        paths(0, 5),
        paths(5, 25),
    ]


def test_plan_never_makes_a_file_of_more_rows_than_allowed():
    config = CompactSettings(files_min=2, rows_max=100)
    files = [small(number, rows=30) for number in range(7)]
    assert plan(files, config) == [paths(0, 3), paths(3, 6)]


def test_rounds_hold_every_bin_once_and_are_bounded():
    config = CompactSettings(round_bytes=1 << 20)
    bins = [
        Bin(tuple(small(10 * number + index, size=100_000) for index in range(size)))
        for number, size in enumerate([3, 3, 4, 5, 9, 2, 2])
    ]
    rounds = rounds_of(bins, config)
    assert [bin_ for bins_of_round in rounds for bin_ in bins_of_round] == bins
    assert [len(bins_of_round) for bins_of_round in rounds] == [3, 1, 1, 2]


def test_rounds_take_a_bin_that_is_larger_than_a_round():
    config = CompactSettings(round_bytes=1 << 20)
    huge = Bin((small(0, size=1 << 30), small(1)))
    assert rounds_of([huge], config) == [[huge]]
    assert rounds_of([], config) == []


def test_rounds_hold_no_more_bins_than_spark_can_search():
    bins = [Bin((small(2 * number), small(2 * number + 1))) for number in range(1201)]
    assert list(map(len, rounds_of(bins, EAGER))) == [500, 500, 201]


# A stream that lives long.


def test_plan_keeps_an_even_stream_small_at_little_cost():
    """10,000 flushes, compacted after every 8th: what a slow stream does in three hours."""
    table = Table(CompactSettings(files_min=8))
    for step in range(1, 10_001):
        table.flush(10)
        if step % 8 == 0:
            table.compact()
            assert len(table.files) <= 8 * (math.log2(step) + 1)
    rewritten = sum(table.rewrites[file.path] * file.rows for file in table.files)
    assert rewritten / table.rows <= math.log2(table.rows)
    assert max(table.rewrites[file.path] for file in table.files) <= math.log2(table.rows) + 1


CONFIGS = st.builds(
    CompactSettings,
    target_file_bytes=st.sampled_from([4096, 20_000, 1 << 30]),
    files_min=st.integers(2, 9),
    rows_max=st.sampled_from([100, 333, 10**7]),
    settle_seconds=st.just(0),
)
FLUSHES = st.one_of(
    st.lists(st.integers(1, 1), max_size=150),
    st.lists(st.integers(1, 20), max_size=150),
    st.lists(st.sampled_from([1, 4, 16, 64, 256]), max_size=150),
)


@settings(max_examples=150, deadline=None)
@given(
    config=CONFIGS,
    flushes=FLUSHES,
    every=st.integers(1, 40),
    bytes_per_row=st.sampled_from([1, 10, 500]),
    step_ms=st.sampled_from([1000, DAY_MS // 30]),
)
def test_plan_of_any_stream_keeps_its_promises(
    config: CompactSettings, flushes: list[int], every: int, bytes_per_row: int, step_ms: int
):
    table = Table(config, bytes_per_row=bytes_per_row, step_ms=step_ms)
    for step, rows in enumerate(flushes, start=1):
        table.flush(rows)
        if step % every == 0:
            table.compact()
            assert table.plan() == [], "a second run must do nothing"
            check_count(table)
    assert table.rows == sum(flushes)
    if flushes:
        worst = max(table.rewrites[file.path] for file in table.files)
        assert worst <= math.log2(table.rows) + 1


def check_count(table: Table) -> None:
    """Small files between two good ones: the largest of them has more rows than the others, and so
    on at either side of it. That allows for at most files_min * sqrt(rows) of them.
    """
    ordered = sorted(table.files, key=lambda file: file.first)
    waiting = set(table.small)
    run: list[DataFile] = []
    for file in [*ordered, None]:
        is_next = file in waiting and (not run or run[-1].partition == file.partition)
        if not is_next:
            rows = sum(part.rows for part in run)
            assert len(run) <= table.config.files_min * math.sqrt(rows)
            run = []
        if file in waiting:
            run.append(file)
