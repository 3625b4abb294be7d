"""SeaStreamer's line format: its eight valid and two invalid forms, and lines that come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.backends.lines import Line, format_line, parse_line
from bottomless.errors import DataDamaged

PAYLOAD = b'{ "payload": "anything" }'
SECOND_MS = 1_641_092_645_000


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        (b"", Line(PAYLOAD)),
        (b"[2022-01-02T03:04:05] ", Line(PAYLOAD, SECOND_MS)),
        (
            b"[2022-01-02T03:04:05.678 | my-fancy_topic.1] ",
            Line(PAYLOAD, SECOND_MS + 678, "my-fancy_topic.1"),
        ),
        (b"[2022-01-02T03:04:05 | my-topic | 123] ", Line(PAYLOAD, SECOND_MS, "my-topic", 123)),
        (
            b"[2022-01-02T03:04:05 | my-topic | 123 | 4] ",
            Line(PAYLOAD, SECOND_MS, "my-topic", 123, 4),
        ),
        (b"[my-topic] ", Line(PAYLOAD, None, "my-topic")),
        (b"[my-topic | 123] ", Line(PAYLOAD, None, "my-topic", 123)),
        (b"[my-topic | 123 | 4] ", Line(PAYLOAD, None, "my-topic", 123, 4)),
        (b"[2022-01-02T03:04:05.1] ", Line(PAYLOAD, SECOND_MS + 100)),
        (b"[2022-01-02T03:04:05.123456789]", Line(PAYLOAD, SECOND_MS + 123)),
        (b"[1] ", Line(PAYLOAD, None, "1")),
    ],
)
def test_ss_lines_valid_headers(head: bytes, wanted: Line) -> None:
    assert parse_line(head + PAYLOAD) == wanted


@pytest.mark.parametrize(
    "head",
    [
        b"[ ]",
        b"[a b]",
        b"[2022-01-02T03:04:05 | 1 | x]",
        b"[2022-13-02T03:04:05]",
        b"[k | 1 | 2 | 3]",
        b'["an", "array"]',
        b"[k |]",
    ],
)
def test_ss_lines_invalid_headers_are_refused(head: bytes) -> None:
    with pytest.raises(DataDamaged, match="is no header"):
        parse_line(head + b" x")


def test_ss_lines_without_a_whole_bracket_are_payloads() -> None:
    assert parse_line(b"[1, 2").payload == b"[1, 2"
    assert parse_line(b"[]").payload == b"[]"
    assert parse_line(b"").payload == b""


@given(
    st.binary().filter(lambda data: b"\n" not in data),
    st.integers(0, 253_402_300_799_999),
    st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_ss_lines_come_back(
    payload: bytes, at_ms: int, key: str, sequence: int, shard: int
) -> None:
    for line in (
        Line(payload, at_ms),
        Line(payload, at_ms, key),
        Line(payload, at_ms, key, sequence),
        Line(payload, at_ms, key, sequence, shard),
        Line(payload, None, key, sequence, shard),
    ):
        assert parse_line(format_line(line)) == line
