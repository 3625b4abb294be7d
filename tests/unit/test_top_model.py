"""From samples to rates: resets, other streams of the same name, steps of clocks, long watches."""

from __future__ import annotations

from typing import Any

import pytest

from bottomless.client import ListedStream
from bottomless.top.model import Board, Model, Rates, Row, Sample, Totals
from bottomless.top.sampling import parse_totals, query_of


def stream(name: str = "s", records: int = 0, size: int = 0, **more: Any) -> ListedStream:
    """A row of the list; it has that much appended."""
    given = {"id": name, "appended_records": records, "appended_bytes": size, **more}
    return ListedStream(name, "application/json", "0_0", False, records, size, 1, **given)


def sample(at_s: float, *streams: ListedStream, **more: Any) -> Sample:
    given = {"totals": Totals(), "started": "life 1", **more}
    return Sample(at_s, streams, **given)


def only(board: Board) -> Row:
    (row,) = board.rows
    return row


def test_model_first_look_has_no_rate():
    board = Model().take(sample(10, stream(records=1_000_000)))
    assert only(board).rates == Rates()
    assert board.watched_s == 0


def test_model_rate_is_the_difference_over_the_time_between_looks():
    model = Model()
    model.take(sample(10, stream(records=100, size=1000), totals=Totals(500, 5000)))
    board = model.take(sample(12, stream(records=150, size=4000), totals=Totals(900, 6000)))
    assert only(board).rates == Rates(25, 1500, 50, 3000, 50, 3000)
    assert board.total == Rates(200, 500, 400, 1000, 400, 1000)
    assert only(model.take(sample(13, stream(records=150, size=4000)))).rates.records_s == 0


def test_model_another_life_of_the_server_is_no_load():
    """Its counters begin with what it found in its log: more than before, or less."""
    for counter in (20, 1_000):
        model = Model()
        model.take(sample(1, stream(records=0)))
        model.take(sample(2, stream(records=100), totals=Totals(100)))
        anew = stream(records=counter)
        board = model.take(sample(3, anew, started="life 2", totals=Totals(counter)))
        assert only(board).rates.records_s is None
        assert board.total.records_s is None
        assert only(board).rates.records_minute == 100
        grown = stream(records=counter + 7)
        after = model.take(sample(4, grown, started="life 2", totals=Totals(counter + 7)))
        assert only(after).rates.records_s == after.total.records_s == 7
        assert only(after).rates.records_minute == 107


def test_model_a_counter_that_falls_is_no_negative_rate():
    """A server that tells no lives: retention takes records away."""
    model = Model()
    for at_s, records in ((1, 500), (2, 100)):
        row = stream(records=records, appended_records=None, appended_bytes=None, id=None)
        board = model.take(sample(at_s, row, started=""))
    assert only(board).rates.records_s is None
    row = stream(records=130, appended_records=None, appended_bytes=None, id=None)
    assert only(model.take(sample(3, row, started=""))).rates.records_s == 30


def test_model_deleted_and_created_again_is_another_stream():
    model = Model()
    model.take(sample(1, stream(records=900)))
    model.take(sample(2, stream(records=1000)))
    board = model.take(sample(3, stream(records=1040, id="other")))
    assert only(board).rates.records_s == 1040
    assert only(board).rates.records_minute == 1040, "nothing of its predecessor"


def test_model_new_stream_counts_from_its_creation_where_that_is_certain():
    old = stream("old")
    new = stream("new", records=50)

    def rate(before: Sample, after: Sample) -> float | None:
        model = Model()
        model.take(before)
        return model.take(after).rows[-1].rates.records_s

    assert rate(sample(1, old), sample(2, old, new)) == 50
    # It may have been there all the time, out of sight.
    assert rate(sample(1, old, is_cut=True), sample(2, old, new)) is None
    assert rate(sample(1, old, scope="x"), sample(2, old, new)) is None
    assert rate(sample(1, old), sample(2, old, new, started="life 2")) is None


def test_model_stream_that_was_out_of_sight_has_the_rate_of_all_that_time():
    model = Model()
    model.take(sample(0, stream("a"), stream("b"), is_cut=True))
    for second in range(1, 10):
        model.take(sample(second, stream("a", records=second), is_cut=True))
    board = model.take(sample(10, stream("b", records=200), is_cut=True))
    assert only(board).rates.records_s == 20


def test_model_minute_and_hour_end_when_they_are_over():
    model = Model()
    records = 0
    for second in range(3 * 3600):
        # 10 a second for an hour, then nothing.
        records += 10 if second < 3600 else 0
        rates = only(model.take(sample(second, stream(records=records)))).rates
        if second == 30:
            assert (rates.records_minute, rates.records_hour) == (300, 300)
        if second == 3599:
            assert (rates.records_minute, rates.records_hour) == (600, 10 * 3599)
        if second == 3629:
            assert rates.records_minute == 300
        if second == 3599 + 1800:
            assert rates.records_hour == pytest.approx(18_000, rel=0.001)
    assert (rates.records_minute, rates.records_hour) == (0, 0)


@pytest.mark.parametrize("interval_s", [0.2, 7.0, 45.0, 600.0])
def test_model_minute_is_right_at_any_interval(interval_s: float):
    model = Model()
    at_s = 0.0
    while at_s < 3 * 3600:
        at_s += interval_s
        rates = only(model.take(sample(at_s, stream(records=round(at_s * 100))))).rates
    assert rates.records_minute == pytest.approx(6_000, rel=0.01)
    assert rates.records_hour == pytest.approx(360_000, rel=0.01)


def test_model_ages_are_by_the_servers_clock_and_never_negative():
    then = "2026-11-18T11:07:43.500+00:00"
    ages = []
    for at_s, now in enumerate(
        ["2026-11-18T11:07:50.000+00:00", "2026-11-18T10:00:00.000+00:00", None]
    ):
        row = only(Model().take(sample(at_s, stream(last_append=then), now=now)))
        ages.append(row.age_s)
    assert ages == [6.5, 0.0, None]


def test_model_a_wall_clock_that_jumps_changes_no_rate():
    model = Model()
    model.take(sample(1, stream(records=0), now="2026-11-18T11:00:00.000+00:00"))
    board = model.take(sample(2, stream(records=10), now="2020-01-01T00:00:00.000+00:00"))
    assert only(board).rates.records_s == 10


def test_model_does_not_take_samples_out_of_their_order():
    model = Model()
    model.take(sample(5))
    for at_s in (5, 4):
        with pytest.raises(ValueError, match="order"):
            model.take(sample(at_s))


def test_totals_are_read_from_the_metrics():
    text = """# HELP bottomless_append_records_total Records made durable.
# TYPE bottomless_append_records_total counter
bottomless_append_records_total 1.2e+06
bottomless_append_bytes_total 34.0
bottomless_append_rejected_total{code="stream_closed"} 9.0
bottomless_append_batch_records_bucket{le="1.0"} 3.0
bottomless_streams 7.0
bottomless_commit_lag_records 5.0
bottomless_commit_lag_bytes 6.0
bottomless_commit_lag_seconds 0.25
bottomless_followers{transport="sse"} 2.0
bottomless_followers{transport="long-poll"} 3.0
something_else 1.0
"""
    assert parse_totals(text) == Totals(1_200_000, 34, 7, 5, 6, 0.25, 5)
    assert parse_totals("") == Totals()


def test_filter_is_asked_of_the_server():
    assert query_of("") == {}
    assert query_of("shop") == {"contains": "shop"}
    assert query_of("^shop/") == {"prefix": "shop/"}
