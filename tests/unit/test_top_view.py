"""What is on the screen, and what keys do to it: without a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from bottomless.errors import InvalidRequest
from bottomless.top import figures
from bottomless.top.columns import COLUMNS, SORT_KEYS, find_sort_key, fitting, select
from bottomless.top.controls import Controls, KeyReader
from bottomless.top.model import Board, Rates, Row, Totals
from bottomless.top.view import Scene, draw, once_table
from tests.unit.test_top_model import stream

NOW = "2026-11-18T11:07:43.793+00:00"


def row(name: str, records_s: float | None = None, **more: Any) -> Row:
    return Row(stream(name, **more), Rates(records_s=records_s), age_s=None)


def board(*rows: Row, **more: Any) -> Board:
    given = {"is_cut": False, "watched_s": 3.0, "now": NOW, "scope": "", **more}
    return Board(rows, Rates(), Totals(streams=len(rows)), **given)


def lines(scene: Scene, controls: Controls, width: int = 100, height: int = 24) -> list[str]:
    return draw(scene, controls, width, height).plain.split("\n")


def names(rows: list[Row]) -> list[str]:
    return [row.stream.name for row in rows]


def press(controls: Controls, *keys: str) -> None:
    for key in keys:
        controls.press(key)


# Figures.


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.04, "0.0"),
        (0.5, "0.5"),
        (9.94, "9.9"),
        (9.96, "10"),
        (9999, "9,999"),
        (9999.6, "10.0k"),
        (99_949, "99.9k"),
        (99_950, "100k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (123_456_789, "123M"),
    ],
)
def test_figures_count(value: float | None, text: str):
    assert figures.count(value) == text


def test_figures_sizes_ages_and_lags():
    sizes = [None, 0, 999, 999.6, 12_345, 5_000_000_000_000]
    assert [figures.size(value) for value in sizes] == [
        *["-", "0 B", "999 B", "1.00 kB", "12.3 kB", "5.00 TB"]
    ]
    ages = [None, 0.4, 1, 99.9, 100, 5999, 6000, 172_800]
    assert [figures.age(value) for value in ages] == [
        *["-", "now", "1s", "99s", "1m", "99m", "1h", "2d"]
    ]
    lags = [None, 0, 250, 999.6, 9_949, 9_951, 180_000]
    assert [figures.lag(value) for value in lags] == ["-", "0", "250ms", "1.0s", "9.9s", "9s", "3m"]


def test_figures_fit_their_columns():
    huge = 10**19 - 1
    for column in COLUMNS:
        if column.key not in {"tail"}:
            assert len(column.text(huge)) <= max(column.width, 8) or column.key in {"last", "lag"}
            assert len(column.text(999_499)) <= column.width, column.key


# Order and filter.


def test_select_sorts_ties_by_name_and_the_unknown_last():
    rows = [row("c", 5), row("x", None), row("a", 5), row("b", 9)]
    assert names(select(rows)) == ["b", "a", "c", "x"]
    assert names(select(rows, reverse=True)) == ["a", "c", "b", "x"]
    assert names(select(rows, sort="name")) == ["a", "b", "c", "x"]
    assert names(select(rows, sort="name", reverse=True)) == ["x", "c", "b", "a"]


def test_select_puts_the_latest_append_first():
    rows = [replace(row("old"), age_s=90.0), replace(row("new"), age_s=1.0), row("never")]
    assert names(select(rows, sort="last")) == ["new", "old", "never"]


@pytest.mark.parametrize("key", SORT_KEYS)
def test_select_sorts_by_every_column(key: str):
    rows = [row(name, 1.0, commit_lag_ms=3, readers=1, writers=0) for name in ("b", "a")]
    assert sorted(names(select(rows, sort=key))) == ["a", "b"]


def test_select_filters_by_part_or_beginning():
    rows = [row("shop/orders"), row("web/shop"), row("web/hits")]
    assert names(select(rows, name_filter="shop")) == ["shop/orders", "web/shop"]
    assert names(select(rows, name_filter="^shop")) == ["shop/orders"]
    assert names(select(rows, name_filter="nothing")) == []


def test_sort_key_may_be_begun_and_must_be_clear():
    assert find_sort_key("B/S") == "B/s"
    assert find_sort_key("read") == "readers"
    for text in ("", "re", "colour"):
        with pytest.raises(InvalidRequest, match="rec/s"):
            find_sort_key(text)


def test_columns_give_way_to_the_name_but_never_the_sorted_one():
    for width in (30, 40, 80, 120, 200):
        name_width, columns = fitting(width, "writers")
        assert "writers" in {column.key for column in columns}
        assert name_width + sum(column.width + 1 for column in columns) == width
    assert len(fitting(200, "rec/s")[1]) == len(COLUMNS)
    assert [column.key for column in fitting(44, "rec/s")[1]] == ["rec/s", "B/s", "last"]


# Keys.


def test_keys_are_read_also_when_they_come_in_parts():
    keys = KeyReader()
    assert keys.feed(b"q\x1b[A\x1b[B\x1bOA\x1b[5~\x7f\r") == [
        *["q", "up", "down", "up", "page up", "backspace", "enter"]
    ]


def test_keys_escape_is_itself_when_nothing_follows():
    keys = KeyReader()
    assert (keys.feed(b"\x1b"), keys.flush(), keys.flush()) == ([], ["escape"], [])
    assert keys.feed(b"a\x1b") == ["a"]
    assert keys.feed(b"[B\x1b\x1b") == ["down", "escape"]
    assert keys.flush() == ["escape"]
    assert (keys.feed(b"\x1b["), keys.flush()) == ([], ["escape", "["])


def test_keys_split_sequences_characters_and_unknown_ones():
    keys = KeyReader()
    assert keys.feed(b"a\x1b[") == ["a"]
    assert keys.feed(b"6~b") == ["page down", "b"]
    assert keys.feed("ä".encode()[:1]) == []
    assert keys.feed("ä".encode()[1:]) == ["ä"]
    assert keys.feed(b"\x1b[1;5C\xff") == ["unknown", "\ufffd"]


def test_controls_sort_reverse_pause_and_quit():
    controls = Controls()
    press(controls, "s", "r", " ")
    assert (controls.sort, controls.reverse, controls.is_paused) == ("B/s", True, True)
    press(controls, "p", "x", "q")
    assert (controls.is_paused, controls.is_over) == (False, True)
    for _ in SORT_KEYS:
        press(controls, "s")
    assert controls.sort == "B/s", "round and round"


def test_controls_type_a_filter_and_take_it_back():
    controls = Controls(selected=5)
    press(controls, "/", *"shoq", "backspace", "p", "enter")
    assert (controls.name_filter, controls.selected, controls.prompt) == ("shop", 0, "")
    press(controls, "/", *"xyz", "escape")
    assert controls.name_filter == "shop"
    assert not controls.is_over
    press(controls, "/", "\x15", *"quit", "enter")
    assert (controls.name_filter, controls.is_over) == ("quit", False)
    press(controls, "escape")
    assert controls.name_filter == ""


def test_controls_order_and_rows_by_name_and_number():
    controls = Controls()
    press(controls, "o", *"writers", "enter", "n", *"12", "enter")
    assert (controls.sort, controls.rows_max, controls.message) == ("writers", 12, "")
    press(controls, "o", *"colour", "enter")
    assert (controls.sort, "no column" in controls.message) == ("writers", True)
    press(controls, "n", *"many", "enter")
    assert (controls.rows_max, "no number" in controls.message) == (12, True)
    press(controls, "n", "0", "enter")
    assert controls.rows_max is None


# The screen.


def test_screen_shows_only_the_streams_in_view_and_scrolls_to_the_marked_one():
    scene, controls = Scene("http://s", 1.0), Controls(sort="name")
    scene.board = board(*(row(f"s{number:05d}") for number in range(10_000)))
    first = lines(scene, controls)
    assert len(first) == 24
    assert [line[:6] for line in first if line.startswith("s0")] == [
        f"s{number:05d}" for number in range(17)
    ]
    press(controls, "end")
    assert "s09999" in "\n".join(lines(scene, controls))
    assert scene.top_line == 9_983
    press(controls, *["up"] * 17)
    assert (controls.selected, scene.top_line) == (9_982, 9_983)
    lines(scene, controls)
    assert scene.top_line == 9_982
    controls.rows_max = 3
    assert len([line for line in lines(scene, controls) if line.startswith("s0")]) == 3


@pytest.mark.parametrize(("width", "height"), [(200, 50), (80, 24), (30, 10), (10, 3), (1, 1)])
def test_screen_fits_terminals_of_any_size(width: int, height: int):
    scene, controls = Scene("http://127.0.0.1:4437", 1.0, trouble="no answer"), Controls()
    scene.board = board(*(row(f"{'名' * 40}{number}", 5.0) for number in range(40)), is_cut=True)
    for keys in ((), ("?",), ("x", "/", "a"), ("escape", "o", "?", "enter")):
        press(controls, *keys)
        shown = lines(scene, controls, width, height)
        assert all(cell_len(line) <= max(width, 30) for line in shown)
        assert len(shown) <= max(height, 2)


def test_screen_says_what_it_does_not_know_and_cannot_show():
    scene, controls = Scene("http://s", 1.0), Controls(name_filter="shop", is_paused=True)
    assert "waiting" in lines(scene, controls)[1]
    scene.board = board(row("shop\x1b[2J", 3.0), is_cut=True)
    scene.trouble = "no answer, trying again"
    text = "\n".join(lines(scene, controls, 160))
    for part in ("filter shop", "the latest 1 of more", "PAUSED", "no answer", "shop?[2J"):
        assert part in text
    assert "\x1b" not in text
    controls.name_filter = "nothing"
    assert "asking the server" in "\n".join(lines(scene, controls))
    scene.board = board(scope="nothing")
    assert "no stream matches" in "\n".join(lines(scene, controls))
    controls.name_filter, scene.board = "", board()
    assert "no streams" in "\n".join(lines(scene, controls))


def test_screen_of_an_older_server_has_gaps_not_zeros():
    old = stream("s", appended_records=None, appended_bytes=None, id=None)
    scene, controls = Scene("http://s", 1.0), Controls()
    scene.board = board(Row(old, Rates(7.0, 0.0, 7.0, 0.0, 7.0, 0.0), None))
    (line,) = [line for line in lines(scene, controls, 200) if line.startswith("s ")]
    # B/s, B/min, B/h, last, lag, readers, writers: unknown.
    assert line.split().count("-") == 7
    assert line.split()[1] == "7"


def test_once_table_is_whole_and_says_where_it_is_cut():
    long = "a" * 60
    found = board(row(long, 5.0), row("b", 1.0), is_cut=True)
    shown = once_table(found, select(found.rows)[:1], Controls())
    assert "1 shown, of the latest 2: there are more" in shown[0]
    assert shown[2].startswith(long)
    assert len(shown) == 3
    whole = board(row("a", 5.0))
    assert "shown" not in once_table(whole, select(whole.rows), Controls())[0]
