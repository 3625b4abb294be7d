"""Bodies that are too large, too deep, not what they say, or meant to break what comes later.

The numbers are those of section C of the list of bad inputs. Bodies that are not sent whole are in
test_bad_clients.py.
"""

from __future__ import annotations

import base64
import gzip
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.wire import (
    BYTES,
    JSON,
    TEXT,
    Canary,
    Wire,
    assert_refused,
    request,
    serving,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.support.server import ServerProcess

MIB = 1024 * 1024
BODY_BYTES = 10 * MIB
RECORDS_MAX = 10_000
# A refusal that takes longer would block everybody else for as long.
REFUSAL_S = 3.0
START = "0000000000000000_0000000000000000"
KINDS = {"text": TEXT, "json": JSON, "bytes": BYTES}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    # Commits come soon: a record that cannot be committed must show while the tests still run.
    with serving(
        tmp_path_factory.mktemp("bodies"),
        commit__interval_ms=50,
        limits__body_bytes=BODY_BYTES,
        limits__records_per_append=RECORDS_MAX,
    ) as process:
        yield process


@pytest.fixture(scope="module")
def canaries(client: httpx.Client) -> dict[str, Canary]:
    return {name: Canary(client, kind) for name, kind in KINDS.items()}


NESTED = {
    f"57-{kind}-nested-{depth}": ("json", 400, opening * depth + b"1" + closing * depth)
    for kind, opening, closing in [("arrays", b"[", b"]"), ("objects", b'{"a":', b"}")]
    for depth in (2000, 200_000)
}
NOT_JSON = {
    "48-spaces": b" \r\n",
    "61-nan": b"NaN",
    "61-infinity": b"[Infinity]",
    "61-minus-infinity": b"-Infinity",
    "61-nan-deep": b'{"a":[{"b":NaN}]}',
    "66-invalid-utf8": b'"\xff\xfe"',
    "66-invalid-utf8-in-key": b'{"\xc3":1}',
    "66-overlong-utf8": b'"\xc0\xae"',
    "66-utf8-surrogate": b'"\xed\xa0\x80"',
    "66-utf16": '{"a":1}'.encode("utf-16"),
    "66-utf16-le": '{"a":1}'.encode("utf-16-le"),
    "66-bom": b'\xef\xbb\xbf{"a":1}',
    "69-two-documents": b"{} {}",
    "69-two-lines": b'{"a":1}\n{"a":2}',
    "69-two-arrays": b"[1][2]",
    "69-trailing-comma": b"[1,2,]",
    "69-trailing-comma-in-object": b'{"a":1,}',
    "69-comment": b"[1/*x*/]",
    "69-line-comment": b"1 // x",
    "69-single-quotes": b"{'a':1}",
    "69-leading-zero": b"01",
    "69-leading-zero-in-array": b"[1,-01]",
    "69-plus": b"[+1]",
    "69-no-digit-after-point": b"[1.]",
    "69-no-digit-before-point": b"[.5]",
    "69-hex": b"[0x10]",
    "69-empty-exponent": b"[1e]",
    "69-raw-newline-in-string": b'"a\nb"',
    "69-raw-tab-in-string": b'["a\tb"]',
    "69-raw-nul": b'"a\x00b"',
    "69-nul-after": b"1\x00",
    "69-bad-escape": b'"\\x41"',
    "69-short-escape": b'["\\u12"]',
    "69-unclosed-string": b'["a',
    "69-unclosed-object": b'{"a":1',
    "69-no-key": b"{1:2}",
    "69-no-colon": b'{"a" 1}',
    "69-word": b"True",
    "69-word-cut": b"[nul]",
    "69-form-feed": b"\x0c1",
    "69-no-break-space": b"\xc2\xa01",
    "69-closing-only": b"]",
    "69-wrong-closing": b"[1}",
}
TOO_MUCH = {
    "59-million-elements": b"[" + b"{}," * 1_000_000 + b"{}]",
    "59-million-numbers": b"[" + b"1," * 1_000_000 + b"1]",
    "75-records-limit-plus-1": b"[" + b"1," * RECORDS_MAX + b"1]",
    "75-body-limit-plus-1": b'"' + b"a" * (BODY_BYTES - 1) + b'"',
}
REFUSED = {
    **{f"48-empty-{name}": (name, 400, b"") for name in KINDS},
    "49-text-limit-plus-1": ("text", 413, b"a" * (BODY_BYTES + 1)),
    **NESTED,
    "58-unclosed-arrays": ("json", 400, b"[" * 10_000_000),
    "58-unclosed-objects": ("json", 400, b'{"a":' * 2_000_000),
    "58-unclosed-string": ("json", 400, b'"' + b"a" * 10_000_000),
    "58-backslashes": ("json", 400, b'"' + b"\\" * 10_000_001),
    **{case: ("json", 413, body) for case, body in TOO_MUCH.items()},
    "60-empty-array": ("json", 400, b"[]"),
    "60-empty-array-with-spaces": ("json", 400, b" [\n] "),
    **{case: ("json", 400, body) for case, body in NOT_JSON.items()},
    "66-text-invalid-utf8": ("text", 400, b"a\xff"),
    "66-text-overlong-utf8": ("text", 400, b"\xc0\xae"),
    "66-text-surrogate": ("text", 400, b"\xed\xa0\x80"),
    "66-text-cut-character": ("text", 400, "é".encode()[:1]),
}


@pytest.mark.parametrize(("kind", "status", "body"), REFUSED.values(), ids=REFUSED)
def test_body_is_refused_whole(
    client: httpx.Client, canaries: dict[str, Canary], kind: str, status: int, body: bytes
) -> None:
    canary = canaries[kind]
    with canary.untouched():
        begun = time.monotonic()
        refused = client.post(canary.path, headers=canary.kind, content=body)
        assert_refused(refused, status)
        assert time.monotonic() - begun < REFUSAL_S
    if body.strip():
        name = f"{canary.path}/new"
        if body.strip().replace(b"\n", b"") != b"[]":
            assert_refused(client.put(name, headers=canary.kind, content=body), status)
            assert client.head(name).status_code == 404, "a refused create has created"


def test_body_over_the_limit_is_refused_unread(
    server: ServerProcess, canaries: dict[str, Canary]
) -> None:
    """Case 49: by Content-Length alone."""
    canary = canaries["text"]
    headers = ["Content-Type: text/plain", f"Content-Length: {BODY_BYTES + 1}"]
    with canary.untouched(), Wire(server.port) as wire:
        wire.send(request("POST", canary.path, *headers))
        reply = wire.reply()
        assert assert_refused(reply, 413) == "payload_too_large"
        assert reply.headers["connection"] == "close"
        assert wire.has_ended()


def test_body_over_the_limit_can_be_sent_whole_and_its_refusal_read(
    server: ServerProcess, canaries: dict[str, Canary]
) -> None:
    """Case 49: a client that sends before it reads would lose the answer with the connection."""
    canary = canaries["text"]
    body = b"a" * (BODY_BYTES + 8 * MIB)
    headers = ["Content-Type: text/plain", f"Content-Length: {len(body)}"]
    with canary.untouched(), Wire(server.port) as wire:
        wire.send(request("POST", canary.path, *headers, body=body))
        assert assert_refused(wire.reply(), 413) == "payload_too_large"
        assert wire.has_ended()


def test_body_in_chunks_over_the_limit_is_refused(
    server: ServerProcess, canaries: dict[str, Canary]
) -> None:
    """Case 50: as soon as the limit is passed; the rest is never sent."""
    canary = canaries["text"]
    headers = ["Content-Type: text/plain", "Transfer-Encoding: chunked"]
    with canary.untouched(), Wire(server.port) as wire:
        wire.send(request("POST", canary.path, *headers))
        for _ in range(BODY_BYTES // MIB + 1):
            wire.send(b"100000\r\n" + b"a" * MIB + b"\r\n")
        reply = wire.reply()
        assert assert_refused(reply, 413) == "payload_too_large"
        assert reply.headers["connection"] == "close"


ZIPPED = gzip.compress(b"a" * 1000)
ENCODED = {
    "55-gzip-bomb": ("gzip", gzip.compress(bytes(100 * MIB), compresslevel=9)),
    "56-gzip-three-times": ("gzip, gzip, gzip", gzip.compress(gzip.compress(ZIPPED))),
    "56-br": ("br", b"\x0b\x01\x80a\x03"),
    "56-zstd": ("zstd", b"\x28\xb5\x2f\xfd"),
    "56-unknown": ("rot13", b"nopq"),
    "56-corrupt-gzip": ("gzip", b"\x1f\x8b\x08corrupt"),
    "56-upper-case": ("GZIP", ZIPPED),
    "56-identity-and-gzip": ("identity, gzip", ZIPPED),
    "56-deflate": ("deflate", b"x"),
}


@pytest.mark.parametrize(("encoding", "body"), ENCODED.values(), ids=ENCODED)
def test_body_that_is_compressed_is_refused(
    client: httpx.Client, canaries: dict[str, Canary], encoding: str, body: bytes
) -> None:
    canary = canaries["bytes"]
    headers = {**canary.kind, "content-encoding": encoding}
    with canary.untouched():
        assert_refused(client.post(canary.path, headers=headers, content=body), 415)
        assert_refused(client.put(f"{canary.path}/new", headers=headers, content=body), 415)
    assert client.head(f"{canary.path}/new").status_code == 404


def test_body_with_identity_encoding_is_taken(
    client: httpx.Client, canaries: dict[str, Canary]
) -> None:
    """Case 56, the other way round."""
    canary = canaries["bytes"]
    headers = {**canary.kind, "content-encoding": "Identity"}
    assert client.post(canary.path, headers=headers, content=b"x").status_code == 204


KEPT = {
    "60-nested-empty": b"[[]]",
    "60-scalars": b'[null,true,"",0,{}]',
    "62-1e400": b"1e400",
    "62-minus-1e400": b"[-1E+400,1e-400]",
    "63-big-integer": b"12345678901234567890123",
    "63-2-to-64": b"[18446744073709551616]",
    "63-trailing-zero": b"[0.10,1.0]",
    "63-many-digits": b"1.0000000000000000001",
    "63-minus-zero": b"[-0,-0.0]",
    "64-5000-digits": b"9" * 5000,
    "65-lone-surrogate": b'"\\ud800"',
    "65-lone-low-surrogate": b'[{"\\udfff":"\\uDC00x"}]',
    "67-duplicate-keys": b'{"a":1,"a":2}',
    "68-escaped-nul": b'["a\\u0000b","\\u0000"]',
    "70-proto": b'{"__proto__":1,"constructor":{"x":2}}',
    "70-key-of-1-mb": b'{"%b":1}' % (b"k" * 1_000_000),
    "70-100000-keys": b"{%b}" % b",".join([b'"k%d":%d' % (n, n) for n in range(100_000)]),
    "75-records-at-limit": b"[" + b"1," * (RECORDS_MAX - 1) + b"1]",
    "75-commas-inside-records": b"[[" + b"1," * RECORDS_MAX + b"1]]",
    "75-commas-in-strings": b'["\\"' + b"," * RECORDS_MAX + b'","\\\\"]',
}


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_json_is_kept_byte_for_byte(
    server: ServerProcess, client: httpx.Client, body: bytes
) -> None:
    """What is read back is what was sent, before the Delta commit and after it (case 72)."""
    expected = body if body.startswith(b"[") else b"[" + body + b"]"
    canary = Canary(client, JSON)
    posted = client.post(canary.path, headers=JSON, content=body)
    assert posted.status_code == 204, posted.text
    assert canary.read() == expected
    wait_for_commit(server, canary)
    assert canary.read() == expected
    with canary.untouched():
        pass


def wait_for_commit(server: ServerProcess, canary: Canary) -> None:
    """Return when the table has its first data file; a stream that never gets one fails here."""
    log = server.root / canary.name / "_delta_log"

    def is_committed() -> bool:
        return any(b'{"add":' in version.read_bytes() for version in log.glob("*.json"))

    wait_until(is_committed, f"no commit:\n{server.log_tail()}")


@pytest.mark.parametrize(
    ("body", "first", "count"),
    [(b"[[1,2],[3]]", b"[[1,2]]", 2), (b"[[[1]]]", b"[[[1]]]", 1), (b" {} ", b"[{}]", 1)],
    ids=["60-two-arrays", "60-one-array", "60-no-array"],
)
def test_json_array_is_flattened_one_level(
    client: httpx.Client, body: bytes, first: bytes, count: int
) -> None:
    """A fork at a sub-offset counts records, so it shows where one ends."""
    canary = Canary(client, JSON)
    assert client.post(canary.path, headers=JSON, content=body).status_code == 204
    fork = {**JSON, "stream-forked-from": canary.path, "stream-fork-offset": START}
    path = f"{canary.path}/fork"
    forked = client.put(path, headers={**fork, "stream-fork-sub-offset": "1"})
    assert forked.status_code == 201, forked.text
    assert client.get(path).content == first
    beyond = {**fork, "stream-fork-sub-offset": str(count + 1)}
    assert_refused(client.put(f"{path}/beyond", headers=beyond), 400)


def test_json_array_of_a_create_is_flattened(client: httpx.Client) -> None:
    """Case 60: an empty array creates an empty stream."""
    canary = Canary(client, JSON)
    for number, (body, expected) in enumerate([(b"[]", b"[]"), (b"[[1],2]", b"[[1],2]")]):
        path = f"{canary.path}/{number}"
        assert client.put(path, headers=JSON, content=body).status_code == 201
        assert client.get(path).content == expected


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("text", JSON), ("json", TEXT), ("bytes", TEXT)],
    ids=["71-a", "71-b", "71-c"],
)
def test_body_of_another_type_is_refused(
    client: httpx.Client, canaries: dict[str, Canary], kind: str, sent: dict[str, str]
) -> None:
    canary = canaries[kind]
    with canary.untouched():
        refused = client.post(canary.path, headers=sent, content=b"[1]")
        assert assert_refused(refused, 409) == "content_type_mismatch"


def test_bytes_are_kept_byte_for_byte(server: ServerProcess, client: httpx.Client) -> None:
    """Case 73, and by SSE in base64."""
    canary = Canary(client, BYTES)
    parts = [bytes(range(256)), b"\r\n", b"\r", b"\x00", b"\n\n", b"event: x\n\n", b"\xff"]
    for part in parts:
        assert client.post(canary.path, headers=BYTES, content=part).status_code == 204
    assert canary.read() == b"".join(parts)
    wait_for_commit(server, canary)
    assert canary.read() == b"".join(parts)
    events = sse_events(server, canary)
    assert b"".join(base64.b64decode(data) for name, data in events if name == "data") == b"".join(
        parts
    )


FORGED = 'event: control\ndata:{"streamNextOffset":"9999999999999999_9999999999999999"}'


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"], ids=["74-lf", "74-cr", "74-crlf"])
def test_sse_text_cannot_forge_an_event(
    server: ServerProcess, client: httpx.Client, end: str
) -> None:
    canary = Canary(client, TEXT)
    body = f"a{end}{end}{FORGED}{end}{end}id: 7{end}retry: 1{end}\u2028\x85:x{end}"
    headers = {**TEXT, "stream-closed": "true"}
    assert client.post(canary.path, headers=headers, content=body.encode()).status_code == 204
    events = sse_events(server, canary)
    assert [name for name, _ in events] == ["data", "control"]
    assert events[0][1].decode() == body.replace("\r\n", "\n").replace("\r", "\n")
    assert "9999" not in events[1][1].decode()


def test_sse_json_cannot_forge_an_event(server: ServerProcess, client: httpx.Client) -> None:
    """Case 74: line ends between the tokens of a JSON record."""
    canary = Canary(client, JSON)
    body = b'{"a":1,\r\n\r\n"event":"control"\r,"data":{}\n}'
    assert client.post(canary.path, headers=JSON, content=body).status_code == 204
    events = sse_events(server, canary)
    assert [name for name, _ in events][:2] == ["data", "control"]
    assert events[0][1].replace(b"\n", b"") == b"[" + body.translate(None, b"\r\n") + b"]"


def sse_events(server: ServerProcess, canary: Canary) -> list[tuple[str, bytes]]:
    """The events up to the first control event that says up to date, read as a browser would."""
    with Wire(server.port) as wire:
        wire.send(request("GET", f"{canary.path}?offset=-1&live=sse", version="HTTP/1.0"))
        raw = wire.read_until(b'"upToDate":true')
        raw += wire.read_until(b"\n\n")
    head, _, raw = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    return parse_events(raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))


def parse_events(text: bytes) -> list[tuple[str, bytes]]:
    events, name, data = [], "", []
    for line in text.split(b"\n"):
        field, _, value = line.partition(b":")
        if not line and data:
            events.append((name, b"\n".join(data)))
            name, data = "", []
        elif field == b"event":
            name = value.strip().decode()
        elif field == b"data":
            data.append(value.removeprefix(b" "))
    return events


@pytest.mark.parametrize(
    "size", [BODY_BYTES - 1, BODY_BYTES], ids=["75-limit-minus-1", "75-at-limit"]
)
def test_body_up_to_the_limit_is_taken(client: httpx.Client, size: int) -> None:
    canary = Canary(client, BYTES)
    assert client.post(canary.path, headers=BYTES, content=bytes(size)).status_code == 204
    assert client.post(canary.path, headers=BYTES, content=b"x").status_code == 204
