"""Bodies to records: what is taken keeps its bytes, what is refused changes nothing."""

from __future__ import annotations

import pytest

from engine.errors import BadJson, BadText, PayloadTooLarge
from engine.settings import LimitSettings
from engine.types import PayloadKind, ProducerStamp, payload_kind
from engine.write.ingest import parse_body
from tests.support.model import BYTES, TEXT, Lives

LIMITS = LimitSettings(body_bytes=1 << 20, records_per_append=1000)
# A long body is counted block by block, of so many bytes.
_BLOCK_BYTES = 1 << 18

EXACT = [
    b"123456789012345678901234567890123456789012345678901234567890",
    b"1.0",
    b"-0",
    b"-0.0",
    b"1e400",
    b"1E+2",
    b"0.1000000000000000055511151231257827021181583404541015625",
    b'{"a":1,"a":2}',
    b'{"b":1,"a":2}',
    b'{ "spaced" : [ 1 , 2 ] }',
    '"😀 ü \u2028"'.encode(),
    b'"\\ud83d\\ude00"',
    b'"\\u0000\\/"',
    b"[]",
    b"[[1],[2,[3]]]",
    b"{}",
    b"null",
    b"true",
    b'""',
]


def split(body: bytes) -> list[bytes]:
    found = parse_body(body, PayloadKind.JSON, LIMITS)
    if found.lengths is None:
        return [found.data] if found.count else []
    records, place = [], 0
    for length in found.lengths.tolist():
        records.append(found.data[place : place + length])
        place += length + 1
    assert place == len(found.data) + 1
    return records


@pytest.mark.parametrize("record", EXACT, ids=repr)
def test_ingest_keeps_the_bytes_of_a_json_record(record: bytes):
    if not record.startswith(b"["):
        assert split(record) == [record]
        assert split(b" \t\r\n" + record + b" \t\r\n") == [record]
    assert split(b"[" + record + b"]") == [record]
    assert split(b" [ 1 ,\n" + record + b"\t, 2 ] ") == [b"1", record, b"2"]


@pytest.mark.parametrize("record", [b'"\\ud800"', b'"\\udc00x"', b'"\\ud800\\u0041"'], ids=repr)
def test_ingest_keeps_an_escaped_lone_surrogate(record: bytes):
    """RFC 8259 allows it, JSON.stringify writes it, and its bytes are plain ASCII."""
    assert split(record) == [record]


def test_ingest_keeps_records_apart_beside_a_lone_surrogate():
    records = [
        b"[1]",
        b"1",
        b'"\\ud800"',
        b'"A"',
        b'"\\u0041"',
        b'{"\\udfff" : [ ]}',
        b'"\\\\ud800"',
    ]
    assert split(b"[ " + b" ,\n".join(records) + b" ]") == records


def test_ingest_refuses_endless_nesting_behind_a_lone_surrogate():
    with pytest.raises(BadJson):
        parse_body(b'["\\ud800",' + b"[" * 200_000, PayloadKind.JSON, LIMITS)


def test_ingest_takes_an_array_apart_one_level():
    assert split(b"[[1,2],[[3]],{}]") == [b"[1,2]", b"[[3]]", b"{}"]
    assert split(b"[]") == []
    assert split(b" [ ] ") == []


@pytest.mark.parametrize(
    "body",
    [
        b"NaN",
        b"[NaN]",
        b"Infinity",
        b"-Infinity",
        b'{"a":NaN}',
        b"[1,]",
        b"[,1]",
        b'{"a":1,}',
        b"1 2",
        b"[1][2]",
        b"{}{}",
        b"01",
        b"+1",
        b"1.",
        b".5",
        b"1e",
        b"0x10",
        b"'a'",
        b"{a:1}",
        b'"a',
        b'"\\x41"',
        b'"\\u12"',
        b'"a\nb"',
        b'"a\x00b"',
        b"nul",
        b"True",
        b"[1",
        b"]",
        b"   ",
        b"\x0b1",
        b"\xef\xbb\xbf1",
        b"\xef\xbb\xbf[1]",
        b"/* no */ 1",
        b'"\xff"',
        b'["\xed\xa0\x80"]',
        b'"\xc0\xaf"',
        b'"\xf4\x90\x80\x80"',
        b"\xff",
        b"\x00",
        "1".encode("utf-16"),
    ],
    ids=repr,
)
def test_ingest_refuses_what_is_not_json(body: bytes):
    with pytest.raises(BadJson):
        parse_body(body, PayloadKind.JSON, LIMITS)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'], ids=repr)
def test_ingest_refuses_endless_nesting_without_a_crash(opening: bytes):
    with pytest.raises(BadJson):
        parse_body(opening * 100_000, PayloadKind.JSON, LIMITS)
    closing = b"]" * 200_000
    with pytest.raises(BadJson):
        parse_body(b"[" * 200_000 + closing, PayloadKind.JSON, LIMITS)


def test_ingest_refuses_text_that_is_not_utf8():
    assert parse_body("ü".encode(), PayloadKind.TEXT, LIMITS).data == "ü".encode()
    for body in (b"\xff", b"\xed\xa0\x80", "ü".encode("latin-1")):
        with pytest.raises(BadText):
            parse_body(body, PayloadKind.TEXT, LIMITS)
        assert parse_body(body, PayloadKind.BYTES, LIMITS).data == body


def test_ingest_refuses_what_is_too_large():
    for kind in PayloadKind:
        with pytest.raises(PayloadTooLarge):
            parse_body(b"1" * (LIMITS.body_bytes + 1), kind, LIMITS)
    with pytest.raises(PayloadTooLarge):
        parse_body(b"[" + b"1," * 1000 + b"1]", PayloadKind.JSON, LIMITS)
    assert parse_body(b"[" + b"1," * 999 + b"1]", PayloadKind.JSON, LIMITS).count == 1000


@pytest.mark.parametrize("shift", range(-4, 3))
@pytest.mark.parametrize(
    "mark", [b'"', b'\\"', b"\\\\", b'",[', b'",{"', b'",[],"'], ids=lambda mark: mark.decode()
)
def test_ingest_counts_records_of_a_long_body(mark: bytes, shift: int):
    """What begins in one block of the count and ends in the next one is still one thing."""
    commas = b"," * 2000
    closing = {
        b'"': b"",
        b'",[': b"1" + b",1" * 2000 + b"]",
        b'",{"': b'":[1' + b",1" * 2000 + b"]}",
    }
    end = closing.get(mark, commas + b'"')
    body = b'["' + b"x" * (_BLOCK_BYTES - 2 + shift) + mark + end
    count = {b'"': 1, b'",[': 2, b'",{"': 2, b'",[],"': 3}.get(mark, 1)
    for more in (0, 1, 1000 - count, 1001 - count):
        whole = body + b",1" * more + b"]"
        if count + more > LIMITS.records_per_append:
            with pytest.raises(PayloadTooLarge):
                parse_body(whole, PayloadKind.JSON, LIMITS)
        else:
            assert parse_body(whole, PayloadKind.JSON, LIMITS).count == count + more


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("application/json", PayloadKind.JSON),
        ("Application/JSON; charset=utf-8", PayloadKind.JSON),
        ("text/plain", PayloadKind.TEXT),
        ('text/csv; charset="UTF-8"', PayloadKind.TEXT),
        ("text/plain; charset=latin-1", PayloadKind.BYTES),
        ("application/octet-stream", PayloadKind.BYTES),
        ("application/jsonl", PayloadKind.BYTES),
        ("image/png", PayloadKind.BYTES),
    ],
)
def test_payload_kind_follows_the_media_type(content_type: str, kind: PayloadKind):
    assert payload_kind(content_type) is kind


async def test_ingest_to_table_and_back_keeps_every_byte(lives: Lives):
    await lives.create("j")
    await lives.append("j", b"[" + b",".join(EXACT) + b"]")
    await lives.create("t", TEXT)
    await lives.append("t", "zwei\x00 Zeilen\r\n😀".encode())
    await lives.create("b", BYTES)
    await lives.append("b", bytes(range(256)))
    for _ in range(2):
        assert await lives.records("j") == EXACT
        assert await lives.content("t") == "zwei\x00 Zeilen\r\n😀".encode()
        assert await lives.content("b") == bytes(range(256))
        await lives.restart(without_wal=True)


async def test_ingest_that_refuses_a_body_changes_no_state(lives: Lives):
    await lives.create("s")
    tail = lives.log.head("s").tail
    stamp = ProducerStamp("p", 0, 0)
    for body in (b"{", b"\xff"):
        with pytest.raises(BadJson):
            await lives.append("s", body, producer=stamp, stream_seq="z", close=True)
    assert lives.log.head("s").tail == tail
    assert not (await lives.append("s", b"1", producer=stamp, stream_seq="a")).duplicate
