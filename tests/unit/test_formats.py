"""Every format gives back what it took, also several values to a record, and refuses the rest."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import DataDamaged, InvalidRequest
from bottomless.formats import FORMATS, format_of, register_format

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=40,
)
PACKED = st.recursive(
    SCALARS | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=40,
)


def round_trip(content_type: str, values: list[Any]) -> list[Any]:
    format_ = format_of(content_type)
    return list(format_.decode(format_.join([format_.encode(value) for value in values])))


@given(st.lists(TREES, max_size=5))
def test_ndjson_comes_back(values: list[Any]) -> None:
    assert round_trip("application/x-ndjson", values) == values


@given(st.lists(PACKED, max_size=5))
def test_message_pack_comes_back(values: list[Any]) -> None:
    assert round_trip("application/msgpack", values) == values


@pytest.mark.parametrize("length", [0, 31, 32, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("kind", ["text", "bytes", "list", "map"])
def test_message_pack_finds_the_end_of_every_length(kind: str, length: int) -> None:
    made = {
        "text": "x" * length,
        "bytes": b"x" * length,
        "list": [7] * length,
        "map": {str(number): 300 for number in range(length)},
    }
    assert round_trip("application/msgpack", [made[kind], "next"]) == [made[kind], "next"]


def test_message_pack_passes_over_extensions() -> None:
    values = [msgspec.msgpack.Ext(5, b"x" * size) for size in (1, 2, 4, 8, 16, 3, 300, 70_000)]
    assert round_trip("application/msgpack", [*values, 1]) == [*values, 1]


@pytest.mark.parametrize("data", [b"\x92\x01", b"\xd9\x05abc", b"\xc1", b"\xda\x00"])
def test_message_pack_that_is_cut_off_or_none_is_refused(data: bytes) -> None:
    with pytest.raises(DataDamaged):
        list(format_of("application/msgpack").decode(data))


# A CSV row of one empty field is an empty line, which readers skip.
ROWS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))), min_size=2
)


@given(st.lists(ROWS, max_size=5))
def test_csv_comes_back(rows: list[list[str]]) -> None:
    assert round_trip("text/csv", rows) == rows


def test_csv_refuses_text_that_is_not_unicode() -> None:
    with pytest.raises(InvalidRequest, match="cannot be written"):
        format_of("text/csv").encode(["a", "\ud800"])


@pytest.mark.parametrize("row", ["a,b", b"a,b", 5])
def test_csv_takes_rows_only(row: object) -> None:
    with pytest.raises(InvalidRequest, match="a row of CSV"):
        format_of("text/csv").encode(row)


@given(TREES)
def test_json_of_one_value_comes_back(value: Any) -> None:
    format_ = format_of("application/json")
    assert list(format_.decode(format_.encode(value))) == [value]


def test_json_keeps_raw_text() -> None:
    raw = msgspec.Raw(b'{"big": 12345678901234567890123, "one": 1.0}')
    assert format_of("application/json").encode(raw) == bytes(raw)


@pytest.mark.parametrize(
    ("content_type", "value"),
    [
        ("application/json", object()),
        ("application/json", {1: {2j}}),
        ("application/msgpack", 2**70),
        ("text/plain", b"bytes"),
        ("text/plain", "\ud800"),
        ("application/octet-stream", "text"),
    ],
)
def test_values_that_do_not_fit_are_refused(content_type: str, value: object) -> None:
    with pytest.raises(InvalidRequest):
        format_of(content_type).encode(value)


def test_json_has_no_word_for_what_is_no_number() -> None:
    assert format_of("application/json").encode(math.nan) == b"null"


@pytest.mark.parametrize(
    ("content_type", "like"),
    [
        ("application/json; charset=utf-8", "application/json"),
        ("Text/CSV", "text/csv"),
        ("text/html", "text/plain"),
        ("image/png", "application/octet-stream"),
        ("", "application/octet-stream"),
    ],
)
def test_content_types_find_their_format(content_type: str, like: str) -> None:
    assert format_of(content_type) is format_of(like)


def test_formats_can_be_added() -> None:
    class Upper:
        content_types = ("text/x-upper",)
        joins = False

        def encode(self, value: str) -> bytes:
            return value.upper().encode()

        def join(self, parts: Any) -> bytes:
            return b"".join(parts)

        def decode(self, record: bytes) -> Any:
            return (record.decode(),)

    try:
        register_format(Upper())
        assert round_trip("text/x-upper", ["a"]) == ["A"]
    finally:
        del FORMATS["text/x-upper"]
