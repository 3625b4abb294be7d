"""Requests that are not HTTP, or that two parsers could read differently.

The numbers are those of section B of the list of bad inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.wire import (
    TEXT,
    Canary,
    Reply,
    Wire,
    assert_refused,
    exchange,
    request,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.support.server import ServerProcess

KIB = 1024
BODY_BYTES = 64 * KIB
HEADER_BYTES = 32 * KIB
HEADERS_MAX = 100
CHUNKED = "Transfer-Encoding: chunked"
PLAIN = "Content-Type: text/plain"
ONE_CHUNK = b"4\r\nABCD\r\n0\r\n\r\n"
TLS_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(range(200))
CASE = "{path}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(
        tmp_path_factory.mktemp("framing"),
        http__header_timeout_ms=1000,
        http__body_timeout_ms=1000,
        limits__body_bytes=BODY_BYTES,
    ) as process:
        yield process


@pytest.fixture(scope="module")
def canary(client: httpx.Client) -> Canary:
    return Canary(client, TEXT)


def post(*headers: str, body: bytes = b"", version: str = "HTTP/1.1") -> bytes:
    return request("POST", CASE, PLAIN, *headers, body=body, version=version)


def get(*headers: str, target: str = CASE, version: str = "HTTP/1.1") -> bytes:
    return request("GET", target, *headers, version=version)


def chunked(body: bytes) -> bytes:
    return post(CHUNKED, body=body)


def ask(server: ServerProcess, data: bytes, canary: Canary) -> Reply:
    return exchange(server, data.replace(CASE.encode(), canary.path.encode()))


SMUGGLED = b"0\r\n\r\n" + get()
WRONG_LENGTHS = ["+4", "-1", "0x4", "4e0", "1" + "0" * 23, "", "4, 4", "4,4", "4 4", "٤"]

REFUSED = {
    "20-cl-and-te": (400, post("Content-Length: 6", CHUNKED, body=SMUGGLED)),
    "20-te-and-cl": (400, post(CHUNKED, "Content-Length: 6", body=SMUGGLED)),
    "21-two-different-cl": (400, post("Content-Length: 4", "Content-Length: 5", body=b"ABCDE")),
    "22-two-equal-cl": (400, post("Content-Length: 4", "Content-Length: 4", body=b"ABCD")),
    **{
        f"23-cl-{number}": (
            400,
            post(f"Content-Length: {value}".encode().decode("latin-1"), body=b"ABCD"),
        )
        for number, value in enumerate(WRONG_LENGTHS)
    },
    "24-te-xchunked": (400, post("Transfer-Encoding: xchunked", body=ONE_CHUNK)),
    "24-te-chunked-identity": (400, post("Transfer-Encoding: chunked, identity", body=ONE_CHUNK)),
    "24-te-identity": (400, post("Transfer-Encoding: identity", body=ONE_CHUNK)),
    "24-te-twice": (400, post(CHUNKED, CHUNKED, body=ONE_CHUNK)),
    "24-te-twice-mixed": (400, post("Transfer-Encoding: identity", CHUNKED, body=ONE_CHUNK)),
    "24-te-space-before-colon": (400, post("Transfer-Encoding : chunked", body=ONE_CHUNK)),
    "24-te-empty": (400, post("Transfer-Encoding:", body=ONE_CHUNK)),
    "24-te-vertical-tab": (400, post("Transfer-Encoding: \x0bchunked", body=ONE_CHUNK)),
    "25-te-gzip-chunked": (501, post("Transfer-Encoding: gzip, chunked", body=ONE_CHUNK)),
    "26-te-on-http-1.0": (400, post(CHUNKED, body=ONE_CHUNK, version="HTTP/1.0")),
    "27-chunk-size-not-hex": (400, chunked(b"ZZ\r\nABCD\r\n0\r\n\r\n")),
    "27-chunk-size-negative": (400, chunked(b"-1\r\nABCD\r\n0\r\n\r\n")),
    "27-chunk-size-overflow": (400, chunked(b"FFFFFFFFFFFFFFFFFF\r\nABCD\r\n0\r\n\r\n")),
    "27-chunk-size-prefix": (400, chunked(b"0x4\r\nABCD\r\n0\r\n\r\n")),
    "27-chunk-size-empty": (400, chunked(b"\r\nABCD\r\n0\r\n\r\n")),
    "27-chunk-size-space": (400, chunked(b"4 \r\nABCD\r\n0\r\n\r\n")),
    "27-chunk-longer-than-said": (400, chunked(b"4\r\nABCDE\r\n0\r\n\r\n")),
    "28-lf-between-headers": (400, post("Content-Length: 4\nX-A: 1", body=b"ABCD")),
    "28-lf-after-request-line": (400, b"POST {path} HTTP/1.1\nHost: a\r\n\r\n"),
    "28-lf-after-chunk-size": (400, chunked(b"4\nABCD\r\n0\r\n\r\n")),
    "28-lf-after-chunk": (400, chunked(b"4\r\nABCD\n0\r\n\r\n")),
    "28-lf-after-headers": (400, b"POST {path} HTTP/1.1\r\nHost: a\r\n\nABCD"),
    "29-chunk-extension": (400, chunked(b"4;a=" + b"x" * 100 * KIB + b"\r\nABCD\r\n0\r\n\r\n")),
    "30-obs-fold": (400, post("Content-Length: 4", "X-A: 1\r\n folded", body=b"ABCD")),
    "30-obs-fold-tab": (400, post("Content-Length: 4", "X-A: 1\r\n\tfolded", body=b"ABCD")),
    "30-obs-fold-first": (400, b"POST {path} HTTP/1.1\r\n Host: a\r\nContent-Length: 0\r\n\r\n"),
    "31-nul-in-value": (400, post("Content-Length: 4", "X-A: a\x00b", body=b"ABCD")),
    "31-nul-in-place-of-length": (
        400,
        request("POST", CASE, f"{PLAIN}\x00Content-Length\x00", body=b"ABCD"),
    ),
    "31-bare-cr-in-value": (400, post("Content-Length: 4", "X-A: a\rb", body=b"ABCD")),
    "31-no-name": (400, post("Content-Length: 4", ": value", body=b"ABCD")),
    "31-no-colon": (400, post("Content-Length: 4", "X-A", body=b"ABCD")),
    "31-control-in-name": (400, post("Content-Length: 4", "X\x01A: 1", body=b"ABCD")),
    "32-header-of-100-kb": (431, get("X-A: " + "a" * 100_000)),
    "32-header-of-5-mb": (431, get("X-A: " + "a" * 5_000_000)),
    "32-header-name-of-100-kb": (431, get("a" * 100_000 + ": 1")),
    "32-headers-just-over": (431, get("X-A: " + "a" * HEADER_BYTES)),
    "32-target-of-40-kb": (431, get(target="{path}?" + "a" * 40_000)),
    "33-10000-headers": (431, get(*["X: 1"] * 10_000)),
    "33-one-header-too-many": (431, get(*["X: 1"] * HEADERS_MAX)),
    "34-no-host": (400, b"GET {path} HTTP/1.1\r\n\r\n"),
    "34-two-hosts": (400, get("Host: bottomless.test")),
    "36-http-0.9": ((400, 505), b"GET {path}\r\n\r\n"),
    "36-http-0.9-in-line": ((400, 505), get(version="HTTP/0.9")),
    "36-http-2.0": ((400, 505), get(version="HTTP/2.0")),
    "36-http-1.2": ((400, 505), get(version="HTTP/1.2")),
    "36-http-lower-case": ((400, 505), get(version="http/1.1")),
    "36-http-2-preface": ((400, 505), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "36-tls-hello": (400, TLS_HELLO),
    "40-space-in-target": (400, get(target="{path} x")),
    "40-eight-bit-target": (400, get(target="{path}\xe9")),
    "40-eight-bit-query": (400, get(target="{path}?offset=\xe9")),
    "40-control-in-target": (400, get(target="{path}\x01")),
    "40-nul-in-target": (400, get(target="{path}\x00")),
    "40-no-slash": (400, get(target="v1/stream/a")),
    "41-cr-in-content-type": (400, request("PUT", "/v1/stream/x", "Content-Type: a/b\rX: 1")),
    "41-cr-in-ttl": (400, request("PUT", "/v1/stream/x", "Stream-TTL: 5\rX: 1")),
    "47-if-none-match-of-100-kb": (431, get("If-None-Match: " + '"a",' * 25_000)),
}


@pytest.mark.parametrize(("statuses", "data"), REFUSED.values(), ids=REFUSED)
def test_framing_refuses_and_closes(
    server: ServerProcess, canary: Canary, statuses: int | tuple[int, ...], data: bytes
) -> None:
    with canary.untouched(), Wire(server.port) as wire:
        wire.send(data.replace(CASE.encode(), canary.path.encode()))
        reply = wire.reply()
        assert_refused(reply, *([statuses] if isinstance(statuses, int) else statuses))
        assert reply.headers["connection"] == "close"
        assert wire.has_ended(), "a second answer, or the connection was left open"


@pytest.mark.parametrize(("statuses", "data"), REFUSED.values(), ids=REFUSED)
def test_framing_refuses_the_same_behind_a_good_append(
    server: ServerProcess, canary: Canary, statuses: int | tuple[int, ...], data: bytes
) -> None:
    """What was understood of one head says nothing about another, however alike they look."""
    good = post("Content-Length: 4", body=b"ABCD").replace(CASE.encode(), canary.path.encode())
    with Wire(server.port) as wire:
        wire.send(good)
        assert wire.reply().status == 204
        with canary.untouched():
            wire.send(data.replace(CASE.encode(), canary.path.encode()))
            assert_refused(wire.reply(), *([statuses] if isinstance(statuses, int) else statuses))
            assert wire.has_ended(), "a second answer, or the connection was left open"


def test_framing_refuses_a_header_sent_in_drips(server: ServerProcess, canary: Canary) -> None:
    """Case 32: a limit on what one read brings is no limit."""
    with canary.untouched(), Wire(server.port) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: a\r\nX-A: ")
        for _ in range(40):
            wire.send(b"a" * KIB)
        assert_refused(wire.reply(), 431)


def test_framing_takes_headers_below_the_limit(server: ServerProcess, canary: Canary) -> None:
    data = get("X-A: " + "a" * (HEADER_BYTES - 200), *["X: 1"] * (HEADERS_MAX - 50))
    assert ask(server, data.replace(b"X: 1\r\n" * 50, b""), canary).status == 200
    assert ask(server, get(*["X: 1"] * (HEADERS_MAX - 1)), canary).status == 200


@pytest.mark.parametrize(
    "trailer",
    [b"Stream-Closed: true", b"Content-Type: application/json", b"Content-Length: 2", b"Host: b"],
    ids=["28-closed", "28-content-type", "28-content-length", "28-host"],
)
def test_framing_does_not_take_trailers_for_headers(
    server: ServerProcess, client: httpx.Client, trailer: bytes
) -> None:
    canary = Canary(client, TEXT)
    reply = ask(server, chunked(b"4\r\nABCD\r\n0\r\n" + trailer + b"\r\n\r\n"), canary)
    assert reply.status in (204, 400)
    assert canary.read() == (b"ABCD" if reply.status == 204 else b"")
    with canary.untouched():
        pass


def test_framing_bounds_trailers(server: ServerProcess, canary: Canary) -> None:
    """Cases 32 and 33, after the body instead of before it."""
    with canary.untouched(), Wire(server.port) as wire:
        wire.send(post(CHUNKED).replace(CASE.encode(), canary.path.encode()))
        wire.send(b"4\r\nABCD\r\n0\r\n")
        for _ in range(1000):
            wire.send(b"X-A: " + b"a" * KIB + b"\r\n")
        assert_refused(wire.reply(), 400, 431)


@pytest.mark.parametrize(
    "headers",
    [["Host: evil.test"], ["X-Forwarded-Host: evil.test", "X-Forwarded-Proto: evil"],
     ["Forwarded: for=1.2.3.4;host=evil.test;proto=evil"], ["X-Original-URL: //evil.test/"]],
    ids=["34-host", "45-x-forwarded", "45-forwarded", "45-x-original-url"],
)  # fmt: skip
def test_location_is_not_chosen_by_the_client(
    server: ServerProcess, client: httpx.Client, headers: list[str]
) -> None:
    path = f"{Canary(client, TEXT).path}/new"
    lines = [f"PUT {path} HTTP/1.1", *headers, "Content-Length: 0"]
    if not headers[0].startswith("Host"):
        lines.append("Host: bottomless.test")
    with Wire(server.port) as wire:
        wire.send("\r\n".join([*lines, "", ""]).encode())
        reply = wire.reply()
    assert reply.status == 201
    assert reply.headers["location"] == f"{server.url}{path}"


def test_target_in_absolute_form_names_our_own_path(
    server: ServerProcess, client: httpx.Client
) -> None:
    """Case 35."""
    path = f"{Canary(client, TEXT).path}/new"
    with Wire(server.port) as wire:
        wire.send(request("PUT", f"http://evil.test{path}", "Content-Length: 0"))
        reply = wire.reply()
    if reply.status == 201:
        assert reply.headers["location"] == f"{server.url}{path}"
        assert client.head(path).status_code == 200
    else:
        assert_refused(reply, 400)


@pytest.mark.parametrize("method", ["BREW", "get", "TRACE", "CONNECT", "PATCH", "LINK", "G E T"])
def test_method_that_is_not_ours_is_refused(
    server: ServerProcess, canary: Canary, method: str
) -> None:
    """Case 37."""
    with canary.untouched():
        reply = ask(server, request(method, CASE, "Content-Length: 0"), canary)
        assert_refused(reply, 400, 405, 501)
        assert (reply.status == 405) == ("allow" in reply.headers)


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"])
def test_method_override_is_ignored(server: ServerProcess, canary: Canary, header: str) -> None:
    """Case 38."""
    with canary.untouched():
        assert ask(server, get(f"{header}: DELETE"), canary).status == 200


EARLY = {
    "39-oversize": (413, [PLAIN, f"Content-Length: {BODY_BYTES + 1}"]),
    "39-compressed": (415, [PLAIN, "Content-Length: 4", "Content-Encoding: gzip"]),
    "39-bad-producer": (400, [PLAIN, "Content-Length: 4", "Producer-Id: a"]),
    "39-bad-content-type": (400, ["Content-Type: a", "Content-Length: 4"]),
}


@pytest.mark.parametrize(("status", "headers"), EARLY.values(), ids=EARLY)
def test_expect_continue_is_refused_before_the_body(
    server: ServerProcess, canary: Canary, status: int, headers: list[str]
) -> None:
    with canary.untouched():
        data = request("POST", CASE, "Expect: 100-continue", *headers)
        assert_refused(ask(server, data, canary), status)


def test_expect_continue_is_answered_and_the_body_taken(
    server: ServerProcess, client: httpx.Client
) -> None:
    canary = Canary(client, TEXT)
    with Wire(server.port) as wire:
        wire.send(request("POST", canary.path, "Expect: 100-continue", PLAIN, "Content-Length: 4"))
        assert wire.reply().status == 100
        wire.send(b"ABCD")
        assert wire.reply().status == 204
    assert canary.read() == b"ABCD"


@pytest.mark.parametrize("target", ["/v1/stream/a//b", "/v1/stream/none", "/none"])
def test_head_that_is_refused_has_no_body(
    server: ServerProcess, canary: Canary, target: str
) -> None:
    """A body would be read as the beginning of the next answer."""
    with Wire(server.port) as wire:
        wire.send(request("HEAD", target) + request("GET", canary.path))
        assert wire.reply(method="HEAD").status in (400, 404, 405)
        assert wire.reply().status == 200


def test_expect_continue_that_is_refused_does_not_eat_the_next_request(
    server: ServerProcess, canary: Canary
) -> None:
    """Case 39: a client that is refused does not send its body; what follows is not that body."""
    headers = ["Expect: 100-continue", PLAIN, "Content-Length: 4", "Producer-Id: a"]
    with canary.untouched(), Wire(server.port) as wire:
        wire.send(request("POST", canary.path, *headers))
        assert_refused(reply := wire.reply(), 400)
        if reply.headers.get("connection") != "close":
            wire.send(request("GET", canary.path))
            assert wire.reply().status == 200


@pytest.mark.parametrize(
    "headers",
    [["Upgrade: websocket", "Sec-WebSocket-Version: 7", "Sec-WebSocket-Key: x"],
     ["Upgrade: websocket"],
     ["Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"]],
    ids=["44-websocket-wrong-version", "44-websocket-no-key", "44-h2c"],
)  # fmt: skip
def test_upgrade_is_never_done(server: ServerProcess, canary: Canary, headers: list[str]) -> None:
    with canary.untouched():
        reply = ask(server, get("Connection: Upgrade", *headers), canary)
        assert reply.status in (200, 400, 426)


def test_upgrade_of_an_append_appends_once(server: ServerProcess, client: httpx.Client) -> None:
    """Case 44: what follows the body is not read as anything."""
    canary = Canary(client, TEXT)
    data = post("Connection: Upgrade", "Upgrade: h2c", "Content-Length: 4", body=b"ABCD")
    with Wire(server.port) as wire:
        wire.send(data.replace(CASE.encode(), canary.path.encode()))
        wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + request("DELETE", canary.path))
        assert wire.reply().status in (204, 400)
        assert wire.has_ended()
    assert canary.read() in (b"", b"ABCD")
    with canary.untouched():
        pass


IGNORED = {
    "46-range": ["Range: bytes=0-0"],
    "46-if-range": ["Range: bytes=0-0", 'If-Range: "a"'],
    "46-accept-encoding": ["Accept-Encoding: *;q=0"],
    "46-accept": ["Accept: " + "a/b," * 7000],
    "47-if-none-match": ["If-None-Match: " + '"a",' * 7000],
    "47-if-none-match-open": ['If-None-Match: "a'],
    "47-if-none-match-twice": ['If-None-Match: "a"', 'If-None-Match: "b"'],
}


@pytest.mark.parametrize("headers", IGNORED.values(), ids=IGNORED)
def test_read_ignores_headers_that_are_not_for_it(
    server: ServerProcess, client: httpx.Client, headers: list[str]
) -> None:
    canary = Canary(client, TEXT)
    with canary.untouched():
        pass
    reply = ask(server, get(*headers), canary)
    assert (reply.status, reply.body) == (200, b"good")
    assert "content-encoding" not in reply.headers


def test_answer_to_http_1_0_is_not_chunked(server: ServerProcess, canary: Canary) -> None:
    """Case 26 the other way round: HTTP/1.0 knows no chunks, so the end is the connection's end."""
    with Wire(server.port) as wire:
        wire.send(request("GET", f"{canary.path}?offset=now&live=sse", version="HTTP/1.0"))
        head = wire.read_until(b"\r\n\r\n").lower()
        assert head.startswith(b"http/1.1 200")
        assert b"transfer-encoding" not in head
        assert wire.read_until(b"\n\n").startswith(b"event: control\n")
    assert ask(server, get(version="HTTP/1.0"), canary).headers["connection"] == "close"


def append(body: bytes, *headers: str) -> bytes:
    return post(f"Content-Length: {len(body)}", *headers, body=body)


BAD_SECOND = {
    "43-bad-framing": (400, append(b"two", "Content-Length: 9"), True),
    "43-no-host": (400, b"POST {path} HTTP/1.1\r\nContent-Length: 3\r\n\r\ntwo", True),
    "43-bad-chunk": (400, chunked(b"3\r\ntwo\r\nZZ"), True),
    "43-compressed": (415, append(b"two", "Content-Encoding: gzip"), True),
    "43-bad-producer": (400, append(b"two", "Producer-Id: p"), False),
}


@pytest.mark.parametrize("packets", [1, 3])
@pytest.mark.parametrize(("status", "second", "ends"), BAD_SECOND.values(), ids=BAD_SECOND)
def test_pipeline_with_a_bad_second_request_keeps_order(
    server: ServerProcess,
    client: httpx.Client,
    status: int,
    second: bytes,
    ends: bool,
    packets: int,
) -> None:
    """What the connection's framing survives is answered; after anything else nothing is run."""
    canary = Canary(client, TEXT)
    parts = [append(b"one"), second, append(b"three")]
    with Wire(server.port) as wire:
        for part in [b"".join(parts)] if packets == 1 else parts:
            wire.send(part.replace(CASE.encode(), canary.path.encode()))
        assert wire.reply().status == 204
        assert_refused(wire.reply(), status)
        if ends:
            assert wire.has_ended()
        else:
            assert wire.reply().status == 204
    assert canary.read() == (b"one" if ends else b"onethree")


def test_pipeline_is_answered_in_order(server: ServerProcess, client: httpx.Client) -> None:
    """Case 43."""
    canary = Canary(client, TEXT)
    with Wire(server.port) as wire:
        for number in range(30):
            data = append(b"%d;" % number) + get()
            wire.send(data.replace(CASE.encode(), canary.path.encode()))
        seen = b""
        for number in range(30):
            seen += b"%d;" % number
            assert wire.reply().status == 204
            assert wire.reply().body == seen
