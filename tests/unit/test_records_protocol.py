"""The records dialect on the wire: what is taken, what is refused, what is answered."""

from __future__ import annotations

import json

import pytest

from api.protocol import NUMBER_MAX, parse_ack, parse_query, parse_stream_path
from api.records import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    is_bare_path,
    parse_get,
    parse_post,
    parse_records_path,
    render_appended,
    render_records,
    render_refusal,
)
from engine import START, Ack, AppendResult, Offset, PayloadKind, RecordsResult
from engine.errors import (
    BadJson,
    BadOffset,
    BadStreamName,
    BottomlessError,
    InvalidRequest,
    OffsetTrimmed,
    TableDamaged,
    VersionTooOld,
)
from engine.settings import LimitSettings

LIMITS = LimitSettings()
SECOND = Offset(10**16 + 2)


def post(body: bytes, query: dict[str, str] | None = None, **headers: bytes):
    sent = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return parse_post(query or {}, sent, LIMITS, body)


def get(**query: str):
    return parse_get(query, timeout_ms_max=60_000)


# Names.


@pytest.mark.parametrize("path", [b"/v1/records/a/b", b"/a/b", b"/v1/records/%61/b", b"/%61/b"])
def test_records_path_names_the_stream(path: bytes) -> None:
    assert parse_records_path(path, bytes_max=512) == "a/b"


@pytest.mark.parametrize(
    "path",
    [b"/", b"/a/", b"//a", b"/v1/records/", b"/v1/records/a/", b"/%", b"/%2f", b"/a%2fb", b"/%ff",
     b"/healthz", b"/%68ealthz", b"/%76%31/stream/s", b"/v%31", b"/metrics/x", b"/__ds/x", b"*"],
)  # fmt: skip
def test_records_path_refuses_what_is_no_name_or_our_own(path: bytes) -> None:
    with pytest.raises(BadStreamName):
        parse_records_path(path, bytes_max=512)


def test_stream_path_needs_its_own_prefix() -> None:
    with pytest.raises(BadStreamName):
        parse_stream_path(b"/v1/records/a", bytes_max=512)


@pytest.mark.parametrize("path", [b"/a", b"/v1x/a", b"/healthzz", b"/", b"/%68ealthz", b"/V1/x"])
def test_bare_path_is_every_path_but_our_own(path: bytes) -> None:
    assert is_bare_path(path)


@pytest.mark.parametrize(
    "path",
    [b"/v1/stream/a", b"/v1/records/a", b"/v1", b"/v1/", b"/healthz", b"/readyz", b"/metrics",
     b"/docs", b"/docs/oauth2-redirect", b"/openapi.json", b"/redoc", b"/console/app.js", b"*"],
)  # fmt: skip
def test_bare_path_is_never_one_of_our_own(path: bytes) -> None:
    assert not is_bare_path(path)


# Appends.


@pytest.mark.parametrize(
    ("body", "records"),
    [
        (b'{"records":[1.0, {"a":1,"a":2}]}', b'[1.0, {"a":1,"a":2}]'),
        (b' {"x":[], "records" : [ "\\ud800" ] } ', b'[ "\\ud800" ]'),
        (b'{"records":[1],"records":[2]}', b"[2]"),
        (b'{"records":["\\ud800"],"a":2,"records":["\\ud801"]}', b'["\\ud801"]'),
        ('{"records":["é"]}'.encode(), '["é"]'.encode()),
        (b'{"records":[[]]}', b"[[]]"),
        (b'{"records":[]}', b""),
        (b'{"records":[ \n]}', b""),
    ],
)
def test_post_hands_on_the_own_bytes_of_the_records(body: bytes, records: bytes) -> None:
    request = post(body)
    assert (request.content_type, request.body) == ("application/json", records)
    assert (request.fence, request.ack, request.close, request.producer) == (None,) * 2 + (
        False,
        None,
    )


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"{", b'{"records":[1}', b"{'records':[]}", b'{"records":[1]} x', b"\xff",
     b'{"records":["\xff"]}', b'{"a":"\xff","records":[]}', b'\xef\xbb\xbf{"records":[]}',
     b'{"records":[NaN]}', b'{"records":[01]}', b"[" * 100_000],
)  # fmt: skip
def test_post_of_no_json_is_refused_before_the_version_is_looked_at(body: bytes) -> None:
    with pytest.raises(BadJson) as caught:
        post(body, {"version": "abc"})
    assert caught.value.message == "Invalid JSON body"


@pytest.mark.parametrize(
    "body", [b"null", b"1", b"[1]", b'"x"', b"{}", b'{"records":null}', b'{"records":"[]"}',
             b'{"records":{}}', b'{"Records":[]}']
)  # fmt: skip
def test_post_without_an_array_of_records_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="records must be an array"):
        post(body)
    with pytest.raises(InvalidRequest, match="Invalid version parameter"):
        post(body, {"version": "abc"})


@pytest.mark.parametrize(
    ("text", "version"), [("0", 0), ("7", 7), ("-1", -1), ("007", 7), (str(NUMBER_MAX), NUMBER_MAX)]
)
def test_version_is_a_whole_number(text: str, version: int) -> None:
    assert post(b'{"records":[]}', {"version": text}).fence == version


@pytest.mark.parametrize(
    "text", ["", " ", "abc", "4abc", "4.9", "+4", "1e3", "٣", "1_0", "--1", "9" * 17, str(2**53)]
)
def test_version_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Invalid version parameter"):
        post(b'{"records":[]}', {"version": text})


def test_ack_may_be_asked_for_in_two_ways() -> None:
    assert parse_ack("table", None) is parse_ack(None, b"table") is Ack.TABLE
    assert parse_ack("wal", b"wal") is Ack.WAL
    assert parse_ack(None, None) is None


@pytest.mark.parametrize(
    ("query", "header"),
    [("wal", b"table"), ("", None), ("TABLE", None), (None, b"all"), (None, b"")],
)
def test_ack_that_is_unclear_is_refused(query: str | None, header: bytes | None) -> None:
    with pytest.raises(InvalidRequest):
        parse_ack(query, header)


@pytest.mark.parametrize("name", ["ack", "limit", "offset", "since", "timeout_sec", "version"])
def test_parameters_that_decide_are_given_once(name: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_query(f"{name}=1&x=1&x=2&%{ord(name[0]):x}{name[1:]}=1".encode())


# Reads.


def test_get_without_parameters_wants_what_comes_next() -> None:
    for query in (get(), get(offset="", limit="", timeout_sec="")):
        assert (query.position, query.since) == (None, None)
        assert (query.limit, query.timeout_ms) == (LIMIT_DEFAULT, 0)


def test_get_takes_offsets_in_both_spellings() -> None:
    assert get(offset="-").position == START
    assert get(offset=f"{SECOND:032d}").position == SECOND
    assert get(offset="0000000000000001_0000000000000002").position == SECOND


@pytest.mark.parametrize("offset", ["0", "$", "abc", "-1", "now", "9" * 31, "9" * 33, " -", "--"])
def test_get_refuses_offsets_of_nobody(offset: str) -> None:
    with pytest.raises(BadOffset):
        get(offset=offset)


def test_get_takes_an_offset_or_a_moment() -> None:
    assert get(since="-2h", offset="").since == "-2h"
    with pytest.raises(BadOffset):
        get(since="-2h", offset="-")


@pytest.mark.parametrize(
    ("text", "limit"), [("1", 1), ("0010", 10), ("10001", LIMIT_MAX), ("9" * 5000, LIMIT_MAX)]
)
def test_limit_has_a_bound(text: str, limit: int) -> None:
    assert get(limit=text).limit == limit


@pytest.mark.parametrize("text", ["0", "000", "-1", "2.5", "x", "1e3", "٣", "+5", " 5"])
def test_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        get(limit=text)


@pytest.mark.parametrize(
    ("text", "timeout_ms"),
    [("0", 0), ("-5", 0), ("0.25", 250), (".5", 500), ("2.", 2000), ("1e1", 10_000),
     ("61", 60_000), ("1e999", 60_000), ("-1e999", 0)],
)  # fmt: skip
def test_timeout_is_a_number_of_seconds_within_its_bound(text: str, timeout_ms: int) -> None:
    assert get(timeout_sec=text).timeout_ms == timeout_ms


@pytest.mark.parametrize("text", ["x", "nan", "inf", "1_0", "٣", "5s", "0x5", " 1", "1" * 65])
def test_timeout_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        get(timeout_sec=text)


# Answers.


@pytest.mark.parametrize(
    ("kind", "record", "rendered"),
    [
        (PayloadKind.JSON, b'{"a": 1.0}', b'"data":{"a": 1.0}'),
        (PayloadKind.TEXT, 'é "x"\n\0'.encode(), '"data":"é \\"x\\"\\n\\u0000"'.encode()),
        (PayloadKind.BYTES, b"\0\xff", b'"data":"AP8=","encoding":"base64"'),
    ],
)
def test_records_are_rendered_by_the_kind_of_their_stream(
    kind: PayloadKind, record: bytes, rendered: bytes
) -> None:
    result = RecordsResult(kind, [(SECOND, record)] * 2, SECOND, closed=False)
    one = b'{"offset":"00000000000000010000000000000002",' + rendered + b"}"
    assert render_records(result) == b'{"records":[' + one + b"," + one + b"]}"


def test_appended_records_have_an_offset_each() -> None:
    answer = json.loads(render_appended(AppendResult(tail=SECOND, closed=False, count=2)))
    assert answer == {"offsets": [f"{SECOND - 1:032d}", f"{SECOND:032d}"]}
    again = json.loads(render_appended(AppendResult(tail=SECOND, closed=False, duplicate=True)))
    assert again == {"offsets": [], "duplicate": True}


def test_refusal_of_an_old_version_has_the_words_of_the_original() -> None:
    status, _, body = render_refusal(VersionTooOld(current=2, provided=1))
    answer = json.loads(body)
    assert status == 409
    assert answer["error"] == "Producer version too old"
    assert (answer["current_version"], answer["provided_version"]) == (2, 1)


@pytest.mark.parametrize(
    ("error", "status"), [(OffsetTrimmed(5), 410), (TableDamaged("at /some/path"), 500)]
)
def test_refusals_are_json_with_an_error(error: BottomlessError, status: int) -> None:
    found, headers, body = render_refusal(error)
    assert found == status
    assert dict(headers)[b"content-type"] == b"application/json"
    assert len(headers) == len(dict(headers))
    answer = json.loads(body)
    assert answer["code"] == error.code
    assert "path" not in answer["error"]
