"""How the command line reads places and shows results: pure functions."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from bottomless.commands.inputs import json_items, json_of
from bottomless.commands.moments import moment_of, offset_of, seconds_of, start_of
from bottomless.commands.registry import EXIT_CODES, PANELS, VERBS, Examples, exit_code
from bottomless.errors import (
    BottomlessError,
    Conflict,
    DeliveryUnknown,
    Fenced,
    Gone,
    InvalidRequest,
    NotAllowed,
    NotFound,
    Unavailable,
)
from bottomless.output import cell, csv_line, flatten, harmless
from bottomless.positions import After, Newest, Since
from bottomless.transport import NoAnswer

OFFSET = "00017950673310000000000000000007"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", "beginning"),
        ("now", "live"),
        ("live", "live"),
        ("newest:3", Newest(3)),
        (OFFSET, After("00017950673310000000000000000006")),
        ("0001795067331000_0000000000000007", After("00017950673310000000000000000006")),
        ("0" * 32, "beginning"),
        ("1h", Since("1h")),
        ("-30d", Since("-30d")),
        ("2026-11-17", Since(datetime(2026, 11, 17, tzinfo=UTC))),
        ("2026-11-17T14:00:00Z", Since(datetime(2026, 11, 17, 14, tzinfo=UTC))),
        (
            "2026-11-17T14:00:00+02:00",
            Since(datetime(2026, 11, 17, 14, tzinfo=timezone(timedelta(hours=2)))),
        ),
    ],
)
def test_start_is_read_as_people_type_it(text: str, start: object):
    assert start_of(text) == start


@pytest.mark.parametrize(
    "text", ["", "soon", "newest:", "newest:x", "1", "1y", OFFSET[1:], "\u0663h"]
)
def test_start_is_nothing_else(text: str):
    with pytest.raises(InvalidRequest, match="beginning"):
        start_of(text)


def test_offset_of_a_time_lies_before_its_records():
    assert offset_of(OFFSET) == OFFSET
    assert offset_of("1970-01-01T00:00:01.5Z") == f"{1500:016d}{0:016d}"
    assert offset_of("1969-01-01") == "0" * 32
    assert offset_of("1d") < offset_of("1h") < offset_of("now")
    assert moment_of("2026-11-17T14:00:00") == datetime(2026, 11, 17, 14, tzinfo=UTC)


def test_durations_are_read():
    assert [seconds_of(text) for text in ("90s", "15m", "2h", "30d", "4w")] == [
        90,
        900,
        7200,
        2_592_000,
        2_419_200,
    ]
    for text in ("-1h", "1", "h", "1h30m", ""):
        with pytest.raises(InvalidRequest):
            seconds_of(text)


def test_json_is_taken_apart_byte_for_byte():
    half = rb'"\ud83d"'
    items = [b"1.0", b'{"a":  [1, 2]}', half, rb'"\\ud83d"', b'"a,b]"', b"[]"]
    assert json_items(b" [" + b" ,\n".join(items) + b" ]\n") == items
    assert json_items(b' {"a": 1.0} ') == [b'{"a": 1.0}']
    assert json_items(b"[ ]") == []
    assert bytes(json_of(b" " + half + b"\n")) == half
    for wrong in (b"", b"[1", b"1 2", rb'"\ud8"', b"[1,]", b"NaN", b"[" * 100_000):
        with pytest.raises(InvalidRequest):
            json_items(wrong)


def test_cells_and_names():
    assert [cell(value) for value in (None, True, False, 1, 1.5, 0.0, "x")] == [
        *("", "yes", "no"),
        *("1", "1.5", "0", "x"),
    ]
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}
    assert harmless("a\x1b[1mb\nc\u202e\x9b") == "a\\x1b[1mb\\nc\\u202e\\x9b"
    assert csv_line(["a,b", 'c"d', "e\nf", "ä"]) == '"a,b","c""d","e\nf",ä\n'.encode()


def test_exit_codes_are_those_that_are_documented():
    codes = {
        BottomlessError: 1,
        Conflict: 1,
        Fenced: 1,
        DeliveryUnknown: 1,
        InvalidRequest: 2,
        NotFound: 3,
        Gone: 3,
        NotAllowed: 4,
        Unavailable: 5,
        NoAnswer: 5,
    }
    for kind, code in codes.items():
        assert exit_code(kind("x")) == code
        assert code in EXIT_CODES
    assert exit_code(ValueError("x")) is None


def test_every_verb_has_a_place_in_the_list():
    assert set(VERBS) <= {verb for verbs in PANELS.values() for verb in verbs}


def test_examples_escape_what_would_be_markup():
    examples = Examples("echo [1]", "b")
    assert examples.lines == ("echo [1]", "b")
    assert "echo \\[1]" in examples


def test_serve_starts_without_what_the_other_verbs_need():
    """Neither the client library nor a table of rich is imported before a verb wants it."""
    program = (
        "import sys; import bottomless.cli, typer;"
        "typer.main.get_command(bottomless.cli.app);"
        "heavy = {'httpx', 'rich', 'msgspec', 'bottomless.client', 'bottomless.commands.streams'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"
