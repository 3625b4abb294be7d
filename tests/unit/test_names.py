"""Folder names and offsets: injective, ordered, and safe for every tool that sees them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from engine.errors import BadOffset, BadStreamName
from engine.format.names import table_folder
from engine.format.offset import (
    counter_of,
    epoch_of,
    format_stored,
    format_wire,
    make_offset,
    parse_offset,
    stored_column,
)
from engine.types import check_stream_name

TRICKY = [
    "a", "A", "a-b", "a_b", "_a", "-a", "a/b", "a%2fb", "a%2Fb", "a_2fb", "_-a", "_h-a", "a b",
    "a+b", "a.b", "ü", "u\u0308", "😀", "a\u00a0b", "x" * 200, "x" * 201, "x" * 512, "ü" * 100,
    "_wal", "_trash", "_lock", "_delta_log_", "a/_b", "a_/b", "a//b"[:3], "snapshot", "%00", "a:b",
]  # fmt: skip


def test_table_folder_is_injective_and_plain():
    folders = {}
    for name in set(TRICKY):
        folder = table_folder(name)
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,200}", folder), name
        assert folder not in {"_wal", "_trash", "_lock", "_aside"}
        assert folders.setdefault(folder, name) == name
    assert table_folder("orders-2024_x") == "orders-2024_x"


@pytest.mark.parametrize(
    "name",
    ["", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "a/./b", "_delta_log", "a/_delta_log/b",
     "__ds", "__ds/x", "a\\b", "a\x00b", "a\nb", "a\u200bb", "a\u202eb", "\ud800", "x" * 513,
     "a\u2028b", "\ue000"],
)  # fmt: skip
def test_stream_name_that_could_be_misread_is_refused(name: str):
    with pytest.raises(BadStreamName):
        check_stream_name(name, bytes_max=512)


def test_stream_name_that_is_harmless_is_taken():
    for name in ["a", "a/b", "ü", "__dsx", "a b", "x" * 512, "a/__ds", "😀"]:
        assert check_stream_name(name, bytes_max=512) == name


def test_offset_orders_agree():
    pairs = [(0, 0), (0, 1), (1, 0), (5, 10**16 - 1), (6, 0), (10**16 - 1, 10**16 - 1)]
    offsets = [make_offset(*pair) for pair in pairs]
    for form in (format_stored, format_wire):
        texts = [form(offset) for offset in offsets]
        assert texts == sorted(texts)
        assert [parse_offset(text) for text in texts] == offsets
    assert [(epoch_of(offset), counter_of(offset)) for offset in offsets] == pairs
    epochs, counters = (np.array(half) for half in zip(*pairs, strict=True))
    stored = [key.decode() for key in stored_column(epochs, counters).tolist()]
    assert stored == [format_stored(offset) for offset in offsets]


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "now", "1" * 31, "1" * 33, "1" * 16 + "-" + "1" * 16, "\u0661" * 32,
     " " + "1" * 31, "1" * 32 + "\n", "1" * 16 + "_" + "1" * 15, "1" * 16 + "_" + "1" * 16 + "\n"],
)  # fmt: skip
def test_offset_that_is_not_ours_is_refused(text: str):
    with pytest.raises(BadOffset):
        parse_offset(text)
