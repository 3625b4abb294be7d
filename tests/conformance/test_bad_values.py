"""Offsets, expiry, content types, producers and sequence numbers that break their formats.

The numbers are those of section D of the list of bad inputs.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.wire import (
    BYTES,
    JSON,
    TEXT,
    Canary,
    Reply,
    as_utf8,
    assert_refused,
    exchange,
    request,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.support.server import ServerProcess

PLAIN = "Content-Type: text/plain"
LONG_POLL_S = 0.5
PRODUCERS_MAX = 8
NUMBER_MAX = 2**53 - 1
START = "0000000000000000_0000000000000000"
BEYOND = "9999999999999999_9999999999999999"
NOT_A_NUMBER = {
    "minus": "-1", "plus": "+5", "zero-in-front": "05", "fraction": "5.0", "exponent": "1e3",
    "arabic": "٣", "superscript": "²", "underscore": "1_000", "hex": "0x5", "word": "x",
    "empty": "", "comma": "5,5", "space-inside": "5 5", "2-to-53": str(2**53),
    "2-to-63": str(2**63), "2-to-64": str(2**64), "10-kb": "9" * 10_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(
        tmp_path_factory.mktemp("values"),
        http__long_poll_timeout_ms=int(LONG_POLL_S * 1000),
        limits__producers_per_stream=PRODUCERS_MAX,
    ) as process:
        yield process


@pytest.fixture
def canary(client: httpx.Client) -> Canary:
    return Canary(client, TEXT)


@pytest.fixture(scope="module")
def shared(client: httpx.Client) -> Canary:
    """For refusals only: nothing but good appends ever changes it."""
    return Canary(client, TEXT)


BAD_OFFSETS = {
    "empty": "", "space": "%20", "spaces-around": f"%20{START}%20", "minus-2": "-2", "word": "abc",
    "now-in-capitals": "NOW", "exponent": "1e3", "10-kb": "1" * 10_000, "comma": "1,2",
    "one-half": "0" * 16, "31-digits": "0" * 31, "33-digits": "0" * 33, "parent": "../..",
    "nul": "%00", "crlf": "%0d%0aX-Evil:%201", "dash": START.replace("_", "-"),
    "lf-at-the-end": f"{START}%0a", "arabic": quote("٣" * 16 + "_" + "٣" * 16), "bad-utf8": "%ff",
    "plus": f"+{START}", "minus-one-twice": "-1-1", "twice": f"-1&offset={START}",
    "twice-encoded-name": f"-1&%6fffset={BEYOND}", "short": "0_0", "not-hex": "%zz",
}  # fmt: skip


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"], ids=["", "poll", "sse"])
@pytest.mark.parametrize("offset", BAD_OFFSETS.values(), ids=[f"76-{case}" for case in BAD_OFFSETS])
def test_offset_that_is_none_of_ours_is_refused(
    server: ServerProcess, shared: Canary, offset: str, live: str
) -> None:
    reply = exchange(server, request("GET", f"{shared.path}?offset={offset}{live}"))
    assert_refused(reply, 400)
    assert "x-evil" not in reply.headers


def test_offset_beyond_the_tail_means_caught_up(client: httpx.Client, canary: Canary) -> None:
    """Case 77: nothing, and not for ever."""
    client.post(canary.path, headers=TEXT, content=b"x")
    read = client.get(canary.path, params={"offset": BEYOND})
    assert (read.status_code, read.content) == (200, b"")
    assert read.headers["stream-up-to-date"] == "true"
    begun = time.monotonic()
    polled = client.get(canary.path, params={"offset": BEYOND, "live": "long-poll"})
    assert (polled.status_code, polled.content) == (204, b"")
    assert time.monotonic() - begun < LONG_POLL_S + 2
    with client.stream("GET", f"{canary.path}?offset={BEYOND}&live=sse") as events:
        assert "event: data" not in next(events.iter_text())


def test_offset_of_another_stream_shows_only_this_one(client: httpx.Client) -> None:
    """Case 77."""
    one, other = Canary(client, TEXT), Canary(client, TEXT)
    client.post(one.path, headers=TEXT, content=b"one")
    client.post(other.path, headers=TEXT, content=b"other")
    for offset in (START, one.tail()):
        read = client.get(other.path, params={"offset": offset})
        assert read.status_code == 200
        assert read.content in (b"", b"other")


def test_offset_between_records_reads_what_follows(client: httpx.Client, canary: Canary) -> None:
    """Case 78."""
    client.post(canary.path, headers=TEXT, content=b"a")
    tail = canary.tail()
    epoch, _, counter = tail.partition("_")
    before = f"{int(epoch) - 1:016d}_{int(counter) + 7:016d}"
    assert client.get(canary.path, params={"offset": before}).content == b"a"
    after = f"{epoch}_{int(counter) + 1:016d}"
    assert client.get(canary.path, params={"offset": after}).content == b""
    client.post(canary.path, headers=TEXT, content=b"b")
    assert client.get(canary.path, params={"offset": tail}).content == b"b"


def test_offset_sentinels_work_in_every_mode(client: httpx.Client, canary: Canary) -> None:
    """Case 80."""
    client.post(canary.path, headers=TEXT, content=b"x")
    for offset, body in (("-1", b"x"), ("now", b"")):
        assert client.get(canary.path, params={"offset": offset}).content == body
        polled = client.get(canary.path, params={"offset": offset, "live": "long-poll"})
        assert (polled.status_code, polled.content) == (200 if body else 204, body)
        with client.stream("GET", f"{canary.path}?offset={offset}&live=sse") as events:
            assert ("data:x" in next(events.iter_text())) == bool(body)


@pytest.mark.parametrize(
    "query",
    ["offset=-1&live=foo", "offset=-1&live=", "offset=-1&live=SSE", "live=sse", "live=long-poll",
     "live=true&offset=-1", "offset=-1&live=sse&live=foo"],
)  # fmt: skip
def test_live_that_is_no_mode_is_refused(client: httpx.Client, shared: Canary, query: str) -> None:
    """Case 81."""
    with shared.untouched():
        assert_refused(client.get(f"{shared.path}?{query}"), 400)


def test_live_sse_of_bytes_is_base64(client: httpx.Client) -> None:
    """Case 81."""
    canary = Canary(client, BYTES)
    client.post(canary.path, headers=BYTES, content=b"\x00\xff")
    with client.stream("GET", f"{canary.path}?offset=-1&live=sse") as events:
        assert events.headers["stream-sse-data-encoding"] == "base64"
        assert "data:AP8=\n" in next(events.iter_text())


@pytest.mark.parametrize(
    "cursor", ["9" * 5000, str(NUMBER_MAX), "-5", "x", "", "1.5", "٣", "%0d%0aX:1", "²", "9" * 17]
)
def test_cursor_moves_forward_whatever_is_sent(
    client: httpx.Client, shared: Canary, cursor: str
) -> None:
    """Case 82."""
    path = f"{shared.path}?offset=-1&live=long-poll"
    client.post(shared.path, headers=TEXT, content=b"x")
    plain = client.get(path)
    sent = client.get(f"{path}&cursor={cursor if '%' in cursor else quote(cursor)}")
    if sent.status_code == 400:
        assert_refused(sent, 400)
        return
    assert sent.status_code == 200
    moved = sent.headers["stream-cursor"]
    assert moved.isdigit()
    assert int(moved) >= int(plain.headers["stream-cursor"])
    if cursor == str(NUMBER_MAX):
        assert int(moved) > NUMBER_MAX


@pytest.mark.parametrize(
    "value", NOT_A_NUMBER.values(), ids=[f"83-{case}" for case in NOT_A_NUMBER]
)
def test_ttl_that_is_no_number_is_refused(
    server: ServerProcess, client: httpx.Client, shared: Canary, value: str
) -> None:
    path = f"{shared.path}/ttl"
    assert_refused(put_raw(server, path, f"Stream-TTL: {value}"), 400)
    assert client.head(path).status_code == 404


def put_raw(server: ServerProcess, path: str, *headers: str) -> Reply:
    return exchange(server, request("PUT", path, "Content-Length: 0", *as_utf8(*headers)))


def post_raw(server: ServerProcess, path: str, *headers: str) -> Reply:
    fixed = [PLAIN, "Content-Length: 1"]
    return exchange(server, request("POST", path, *fixed, *as_utf8(*headers), body=b"x"))


def test_ttl_of_zero_is_taken(client: httpx.Client, canary: Canary) -> None:
    """Case 83: and the stream is gone at once."""
    path = f"{canary.path}/ttl"
    assert client.put(path, headers={"stream-ttl": "0"}).status_code == 201
    assert client.get(path).status_code == 404
    assert client.put(path, headers={"stream-ttl": str(NUMBER_MAX)}).status_code == 201
    assert client.head(path).headers["stream-ttl"] == str(NUMBER_MAX)


BAD_TIMES = {
    "year-10000": "10000-01-01T00:00:00Z", "year-0": "0000-01-01T00:00:00Z",
    "february-30": "2026-02-30T00:00:00Z", "leap-second": "2026-06-30T23:59:60Z",
    "no-zone": "2026-01-01T00:00:00", "40-digits": f"2026-01-01T00:00:00.{'1' * 40}Z",
    "no-time": "2026-01-01", "space": "2026-01-01 00:00:00Z", "hour-24": "2026-01-01T24:00:00Z",
    "week": "2026-W01-1T00:00:00Z", "number": "1767225600", "word": "tomorrow", "empty": "",
    "zone-of-a-day": "2026-01-01T00:00:00+24:00", "arabic": "٢٠٢٦-01-01T00:00:00Z",
    "http-date": "Thu, 01 Jan 2026 00:00:00 GMT", "10-kb": "2" * 10_000,
    "zone-with-seconds": "2026-01-01T00:00:00+00:00:01", "eight-bit": "2026-01-01T00:00:00Zé",
}  # fmt: skip


@pytest.mark.parametrize("value", BAD_TIMES.values(), ids=[f"84-{case}" for case in BAD_TIMES])
def test_expiry_that_is_no_time_is_refused(
    server: ServerProcess, client: httpx.Client, shared: Canary, value: str
) -> None:
    path = f"{shared.path}/expires"
    assert_refused(put_raw(server, path, f"Stream-Expires-At: {value}"), 400)
    assert client.head(path).status_code == 404


@pytest.mark.parametrize(
    ("value", "status"),
    [("2001-01-01T00:00:00Z", 404), ("0001-01-01T00:00:00+23:59", 404),
     ("1969-12-31T23:59:59.5Z", 404), ("9999-12-31T23:59:59Z", 200),
     ("9999-12-31T23:59:59-23:59", 200), ("2999-01-01t00:00:00.123456789z", 200)],
    ids=["84-past", "84-year-1", "84-before-1970", "84-year-9999", "84-after-9999", "84-fraction"],
)  # fmt: skip
def test_expiry_at_the_edge_is_taken(
    client: httpx.Client, canary: Canary, value: str, status: int
) -> None:
    """What lies in the past has expired at once; nothing overflows."""
    path = f"{canary.path}/expires"
    assert client.put(path, headers={"stream-expires-at": value}).status_code == 201
    assert client.head(path).status_code == status
    assert client.get(path).status_code == status


def test_ttl_and_expiry_exclude_each_other(client: httpx.Client, shared: Canary) -> None:
    """Case 85."""
    headers = {"stream-ttl": "5", "stream-expires-at": "2999-01-01T00:00:00Z"}
    assert_refused(client.put(f"{shared.path}/both", headers=headers), 400)
    assert client.head(f"{shared.path}/both").status_code == 404


def test_create_again_must_say_the_same(client: httpx.Client, shared: Canary) -> None:
    """Case 86."""
    path = f"{shared.path}/again"
    same = {**TEXT, "stream-ttl": "60"}
    assert client.put(path, headers=same).status_code == 201
    assert client.put(path, headers=same).status_code == 200
    for other in ({**same, **JSON}, {**same, "stream-ttl": "61"}, TEXT, {"stream-ttl": "60"}):
        assert_refused(client.put(path, headers=other), 409)
    assert client.get(path).content == b""


BAD_TYPES = {
    "no-slash": "a", "10-kb": "text/" + "a" * 10_000, "no-subtype": "text/", "no-type": "/plain",
    "comma": "text/plain, text/html", "space": "text /plain", "eight-bit": "text/€",
    "quotes": 'text/plain; charset="utf-8', "tag": "text/<b>", "control": "text/plain;\x01",
    "parameter-without-value": "text/plain; charset", "two-slashes": "text/plain/x",
}  # fmt: skip


@pytest.mark.parametrize("value", BAD_TYPES.values(), ids=[f"87-{case}" for case in BAD_TYPES])
def test_content_type_that_is_malformed_is_refused(
    server: ServerProcess, client: httpx.Client, shared: Canary, value: str
) -> None:
    path = f"{shared.path}/type"
    with shared.untouched():
        assert_refused(put_raw(server, path, f"Content-Type: {value}"), 400)
        assert client.head(path).status_code == 404
        sent = as_utf8(f"Content-Type: {value}", "Content-Length: 1")
        assert_refused(exchange(server, request("POST", shared.path, *sent, body=b"x")), 400)


def test_content_type_is_compared_by_media_type(client: httpx.Client) -> None:
    """Cases 87 and 88."""
    canary = Canary(client, JSON)
    for same in ("application/json;charset=utf-8", "APPLICATION/JSON", "application/json ; a=b"):
        sent = client.post(canary.path, headers={"content-type": same}, content=b"[1]")
        assert sent.status_code == 204, same
        assert client.put(canary.path, headers={"content-type": same}).status_code == 200
    with canary.untouched():
        for other in ("text/html", "application/jsonx", "application/json-seq", "text/json"):
            sent = client.post(canary.path, headers={"content-type": other}, content=b"[1]")
            assert assert_refused(sent, 409) == "content_type_mismatch"
        assert_refused(client.post(canary.path, content=b"[1]"), 400)
        assert_refused(client.post(canary.path, headers={"content-type": ""}, content=b"1"), 400)


def producer(id_: str = "p", epoch: object = 0, seq: object = 0) -> dict[str, str]:
    return {"producer-id": id_, "producer-epoch": str(epoch), "producer-seq": str(seq)}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in producer().items() if name not in names}


BAD_PRODUCERS = {
    "89-id-only": without("producer-epoch", "producer-seq"),
    "89-epoch-only": without("producer-id", "producer-seq"),
    "89-seq-only": without("producer-id", "producer-epoch"),
    "89-no-id": without("producer-id"),
    "89-no-epoch": without("producer-epoch"),
    "89-no-seq": without("producer-seq"),
    "89-empty-id": producer(""),
    "89-id-of-10-kb": producer("p" * 10_000),
    "89-id-of-257-bytes": producer("p" * 257),
    "89-id-with-tab": producer("a\tb"),
    "89-id-not-ascii": producer("€"),
    **{f"90-epoch-{case}": producer(epoch=value) for case, value in NOT_A_NUMBER.items()},
    **{f"90-seq-{case}": producer(seq=value) for case, value in NOT_A_NUMBER.items()},
}


@pytest.mark.parametrize("headers", BAD_PRODUCERS.values(), ids=BAD_PRODUCERS)
def test_producer_that_is_malformed_is_refused(
    server: ServerProcess, shared: Canary, headers: dict[str, str]
) -> None:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    with shared.untouched():
        assert_refused(post_raw(server, shared.path, *lines), 400)


def append(
    client: httpx.Client, canary: Canary, body: bytes, headers: dict[str, str]
) -> httpx.Response:
    return client.post(canary.path, headers={**canary.kind, **headers}, content=body)


def test_producer_is_judged_by_epoch_and_sequence(client: httpx.Client, canary: Canary) -> None:
    """Cases 91 and 92; what is refused leaves no trace, not even in the producer's state."""
    gap = append(client, canary, b"x", producer(seq=1))
    assert assert_refused(gap, 409) == "sequence_gap"
    assert append(client, canary, b"a", producer(epoch=5)).status_code == 200
    with canary.untouched():
        gap = append(client, canary, b"x", producer(epoch=5, seq=2))
        assert assert_refused(gap, 409) == "sequence_gap"
        assert gap.headers["producer-expected-seq"] == "1"
        assert gap.headers["producer-received-seq"] == "2"
        stale = append(client, canary, b"x", producer(epoch=4))
        assert assert_refused(stale, 403) == "stale_epoch"
        assert stale.headers["producer-epoch"] == "5"
        assert_refused(append(client, canary, b"x", producer(epoch=6, seq=1)), 400)
        repeated = append(client, canary, b"another body", producer(epoch=5))
        assert repeated.status_code == 204
        assert_refused(append(client, canary, b"", producer(epoch=5, seq=1)), 400)
        assert_refused(append(client, canary, b"\xff", producer(epoch=5, seq=1)), 400)
    assert append(client, canary, b"b", producer(epoch=5, seq=1)).status_code == 200
    assert canary.read() == b"agoodb"


def test_producer_repeated_at_once_is_stored_once(client: httpx.Client, canary: Canary) -> None:
    """Case 93: 50 copies at once, over as many connections as there are threads."""

    def send(_: int) -> int:
        return append(client, canary, b"x", producer()).status_code

    with ThreadPoolExecutor(10) as pool:
        statuses = sorted(pool.map(send, range(50)))
    assert statuses == [200] + [204] * 49
    assert canary.read() == b"x"


def test_producer_that_overtakes_itself_is_told_to_repeat(
    client: httpx.Client, canary: Canary
) -> None:
    """Case 93: 1 before 0 is a gap, and is taken as soon as 0 is there."""
    assert_refused(append(client, canary, b"1", producer(seq=1)), 409)
    assert append(client, canary, b"0", producer(seq=0)).status_code == 200
    assert append(client, canary, b"1", producer(seq=1)).status_code == 200
    assert canary.read() == b"01"


def test_producer_may_use_the_highest_epoch(client: httpx.Client, canary: Canary) -> None:
    """Cases 90 and 94: taken, then it locks this id and no other."""
    assert append(client, canary, b"a", producer(epoch=NUMBER_MAX)).status_code == 200
    with canary.untouched():
        assert_refused(append(client, canary, b"x", producer(epoch=0)), 403)
        assert_refused(
            append(client, canary, b"x", producer(epoch=NUMBER_MAX, seq=NUMBER_MAX)), 409
        )
    assert append(client, canary, b"b", producer("q")).status_code == 200


def test_producer_ids_are_bounded_per_stream(client: httpx.Client, canary: Canary) -> None:
    """Case 95: known ids go on, other streams too."""
    for number in range(PRODUCERS_MAX):
        assert append(client, canary, b"x", producer(f"p{number}")).status_code == 200
    with canary.untouched():
        for number in range(20):
            refused = append(client, canary, b"x", producer(f"q{number}"))
            assert assert_refused(refused, 429) == "too_many_producers"
            assert int(refused.headers["retry-after"]) > 0
    assert append(client, canary, b"x", producer("p0", seq=1)).status_code == 200
    assert append(client, Canary(client, TEXT), b"x", producer("q0")).status_code == 200


def test_stream_seq_must_grow_byte_by_byte(client: httpx.Client, canary: Canary) -> None:
    """Case 96."""
    for value in ("1", "10", "2", "B", "a", "a!"):
        assert append(client, canary, b"x", {"stream-seq": value}).status_code == 204, value
        with canary.untouched():
            for not_greater in (value, "0"):
                refused = append(client, canary, b"x", {"stream-seq": not_greater})
                assert assert_refused(refused, 409) == "sequence_regressed"


@pytest.mark.parametrize(
    "value", ["", "9" * 10_000, "a" * 257, "a\tb"], ids=["96-empty", "96-10-kb", "96-257", "96-tab"]
)
def test_stream_seq_that_is_malformed_is_refused(
    client: httpx.Client, shared: Canary, value: str
) -> None:
    with shared.untouched():
        assert_refused(append(client, shared, b"x", {"stream-seq": value}), 400)


def test_stream_seq_beyond_ascii_is_compared_as_bytes(
    server: ServerProcess, canary: Canary
) -> None:
    """Case 96: as UTF-8, U+FF5E is less than U+1F600; as UTF-16 it would be greater."""
    values = ["~", "é", "\uff5e", "\U0001f600", "\uff5e"]
    replies = [post_raw(server, canary.path, f"Stream-Seq: {value}") for value in values]
    assert [reply.status for reply in replies] == [204, 204, 204, 204, 409]
    assert_refused(replies[-1], 409)


def test_append_to_a_stream_that_takes_none_is_refused(client: httpx.Client) -> None:
    """Case 97: closed, deleted, expired."""
    closed, deleted, expired = [f"{Canary(client, TEXT).path}/{n}" for n in range(3)]
    headers = {**TEXT, "stream-closed": "true"}
    assert client.put(closed, headers=headers, content=b"x").status_code == 201
    tail = client.head(closed).headers["stream-next-offset"]
    refused = client.post(closed, headers=TEXT, content=b"y")
    assert assert_refused(refused, 409) == "stream_closed"
    assert refused.headers["stream-closed"] == "true"
    assert refused.headers["stream-next-offset"] == tail
    assert_refused(client.post(closed, headers=JSON, content=b"y"), 409)
    assert client.get(closed).content == b"x"
    assert client.put(deleted, headers=TEXT).status_code == 201
    assert client.delete(deleted).status_code == 204
    assert client.put(expired, headers={**TEXT, "stream-ttl": "0"}).status_code == 201
    for path in (deleted, expired):
        assert_refused(client.post(path, headers=TEXT, content=b"y"), 404, 410)
        assert_refused(client.delete(path), 404, 410)


TWICE = {
    "87-content-type": ["Content-Type: text/plain"],
    "87-content-type-other": ["Content-Type: application/json"],
    "89-producer-id": ["Producer-Id: a", "Producer-Id: b", "Producer-Epoch: 0", "Producer-Seq: 0"],
    "90-producer-seq": ["Producer-Id: a", "Producer-Epoch: 0", *["Producer-Seq: 0"] * 2],
    "90-producer-epoch": ["Producer-Id: a", "Producer-Seq: 0", *["Producer-Epoch: 0"] * 2],
    "96-stream-seq": ["Stream-Seq: a", "Stream-Seq: b"],
    "97-stream-closed": ["Stream-Closed: false", "Stream-Closed: true"],
    "56-content-encoding": ["Content-Encoding: identity", "Content-Encoding: gzip"],
}


@pytest.mark.parametrize("headers", TWICE.values(), ids=TWICE)
def test_header_sent_twice_is_refused(
    server: ServerProcess, shared: Canary, headers: list[str]
) -> None:
    with shared.untouched():
        assert_refused(post_raw(server, shared.path, *headers), 400)
