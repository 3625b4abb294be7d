"""What the consumers that keep their place read and name."""

from __future__ import annotations

import msgspec
import pytest

from bottomless.bookkeeping import PAGE, group_stream, position_stream, read_page
from bottomless.errors import InvalidRequest


def page(count: int, data: str) -> bytes:
    records = [{"offset": f"{n:032d}", "data": data} for n in range(count)]
    return msgspec.json.encode({"records": records})


@pytest.mark.parametrize(
    ("count", "data", "is_end"),
    [(0, "", True), (3, "x", True), (PAGE, "", False), (50, "x" * 100_000, False)],
    ids=["empty", "short", "full", "cut by its size"],
)
def test_bookkeeping_reads_on_where_an_answer_may_not_be_the_last(
    count: int, data: str, is_end: bool
) -> None:
    found, was_end = read_page(page(count, data))
    assert (len(found), was_end) == (count, is_end)


def test_bookkeeping_gives_no_two_pairs_one_stream() -> None:
    assert position_stream("a/b", "c") == "_positions/c/a/b"
    assert group_stream("a/b", "c") == "_groups/c/a/b"
    for name in ("c/a", "", "..", "-c", "_positions"):
        with pytest.raises(InvalidRequest):
            position_stream("b", name)
        with pytest.raises(InvalidRequest):
            group_stream("b", name)
