"""Who may do what, against a real server: section F of the list of bad inputs, by row number.

Elsewhere: 119, 120 and 138 in test_auth_life.py; 113, 117 and 118 in tests/unit/test_gate.py and
test_jwt.py, because they need no network. Of 116, subscriptions and jobs have no routes yet.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.guarded import WRONG, Guarded, bearer_line
from tests.support.wire import (
    JSON,
    TEXT,
    Reply,
    Wire,
    assert_refused,
    connect,
    exchange,
    request,
)

if TYPE_CHECKING:
    import httpx


@pytest.fixture(scope="module")
def reader(guarded: Guarded) -> httpx.Client:
    return guarded.client("read:mine/", "read:a/")


# 111, 112: tokens that are none.

BAD_CREDENTIALS = {
    "none": [],
    "empty": ["Authorization:"],
    "bearer-empty": ["Authorization: Bearer"],
    "bearer-space": ["Authorization: Bearer "],
    "bearer-in-small": ["Authorization: bearer {}"],
    "basic": ["Authorization: Basic {}"],
    "no-scheme": ["Authorization: {}"],
    "twice": ["Authorization: Bearer {}", "Authorization: Bearer {}"],
    "wrong-and-right": [f"Authorization: Bearer {WRONG}", "Authorization: Bearer {}"],
    "both-headers": ["Authorization: Bearer {}", "auth: {}"],
    "wrong": [f"Authorization: Bearer {WRONG}"],
    "wrong-auth": [f"auth: {WRONG}"],
    "cookie": ["Cookie: token={}; authorization={}"],
    "proxy": ["Proxy-Authorization: Bearer {}"],
    "non-ascii": ["Authorization: Bearer \xd0\xba\xd0\xbb\xd1\x8e\xd1\x87"],
    "20-kb": ["Authorization: Bearer " + "x" * 20_000],
}


@pytest.mark.parametrize("case", BAD_CREDENTIALS)
def test_auth_refuses_whatever_is_no_token(guarded: Guarded, case: str):
    secret = guarded.admin.headers["authorization"].split()[1]
    lines = [line.replace("{}", secret) for line in BAD_CREDENTIALS[case]]
    quick = ["Content-Type: application/json", "Content-Length: 3"]
    for data, method in [
        (request("GET", "/v1/stream/ab?offset=-1", *lines), "GET"),
        (request("HEAD", "/v1/stream/ab", *lines), "HEAD"),
        (request("POST", "/v1/stream/ab", *quick, *lines, body=b"[1]"), "POST"),
        (request("PUT", "/v1/stream/new", *lines, "Content-Length: 0"), "PUT"),
        (request("DELETE", "/v1/stream/ab", *lines), "DELETE"),
        (request("GET", "/metrics", *lines), "GET"),
    ]:
        reply = exchange(guarded.server, data, method=method)
        assert reply.status == 401
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert reply.headers["cache-control"] == "no-store"
        if method != "HEAD":
            assert assert_refused(reply, 401) == "unauthorized"
    assert guarded.admin.get("/v1/stream/ab?offset=-1").content == b'[{"x":1}]'
    assert guarded.admin.head("/v1/stream/new").status_code == 404


@pytest.mark.parametrize("key", ["apiKey", "access_token", "token", "auth", "authorization"])
def test_auth_takes_no_token_from_the_url(guarded: Guarded, key: str):
    secret = guarded.admin.headers["authorization"].split()[1]
    with connect(guarded.server) as client:
        response = client.get("/v1/stream/ab", params={"offset": "-1", key: secret})
    assert assert_refused(response, 401) == "unauthorized"


@pytest.mark.parametrize(("token", "status"), [("x" * 2**20, 431), ("a\0b", 400), ("a\x7f", 400)])
def test_auth_never_sees_headers_that_are_not_http(guarded: Guarded, token: str, status: int):
    # Row 112 says 401; these do not become a request at all, and so say less about it.
    data = request("GET", "/v1/stream/ab?offset=-1", f"Authorization: Bearer {token}")
    reply = exchange(guarded.server, data, method="GET")
    assert reply.status in (status, 401)
    assert b'{"x":1}' not in reply.body


# 114: what a token may not.


def test_auth_reads_with_read_only(guarded: Guarded, reader: httpx.Client):
    assert reader.get("/v1/stream/a/b?offset=-1").content == b'[{"x":1}]'
    assert reader.head("/v1/stream/mine/s").status_code == 200
    before = guarded.admin.head("/v1/stream/mine/s").headers["stream-next-offset"]
    for response in (
        guarded.append(reader, "mine/s"),
        guarded.append(reader, "mine/s", **{"stream-closed": "true"}),
        reader.put("/v1/stream/mine/s", headers=JSON),
        reader.put("/v1/stream/mine/new", headers=JSON),
        reader.delete("/v1/stream/mine/s"),
    ):
        assert assert_refused(response, 403) == "forbidden"
    assert guarded.admin.head("/v1/stream/mine/s").headers["stream-next-offset"] == before
    assert guarded.admin.head("/v1/stream/mine/new").status_code == 404


def test_auth_appends_with_append_only(guarded: Guarded):
    writer = guarded.client("append:mine/s")
    for headers in ({}, {"x-not-plain": "1"}):
        assert guarded.append(writer, "mine/s", **headers).status_code == 204
    for response in (
        writer.get("/v1/stream/mine/s?offset=-1"),
        writer.get("/v1/stream/mine/s?offset=-1&live=sse"),
        writer.delete("/v1/stream/mine/s"),
        writer.put("/v1/stream/mine/s", headers=JSON),
    ):
        assert assert_refused(response, 403) == "forbidden"
    assert writer.head("/v1/stream/mine/s").status_code == 403


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *[("a/b", 200), ("ab", 404), ("a", 404), ("A/b", 404), ("%61/b", 200), ("%41/b", 404)],
        # The name is decoded once; what would be a second spelling of it is nobody's name.
        *[
            ("a/..%2fab", 400),
            ("a/../ab", 400),
            ("a%2fb", 400),
            ("a//b", 400),
            ("a/%2e%2e/ab", 400),
        ],
    ],
)
def test_auth_ends_a_prefix_at_a_slash(reader: httpx.Client, path: str, status: int):
    wire = request("GET", f"/v1/stream/{path}?offset=-1", *bearer_line(reader))
    with Wire(reader.base_url.port or 0) as connection:
        connection.send(wire)
        reply = connection.reply(method="GET")
    assert reply.status == status


def test_auth_needs_to_read_what_it_forks(guarded: Guarded, reader: httpx.Client):
    creator = guarded.client("create:mine/", "read:mine/", "append:theirs/")
    fork = {**JSON, "stream-forked-from": "/v1/stream/mine/s"}
    assert creator.put("/v1/stream/mine/fork", headers=fork).status_code == 201
    bodies = set()
    for source in ("theirs/s", "theirs/missing", "ab", "nothing"):
        fork = {**JSON, "stream-forked-from": f"/v1/stream/{source}"}
        response = creator.put("/v1/stream/mine/fork-2", headers=fork)
        assert assert_refused(response, 404) == "stream_not_found"
        bodies.add(response.content)
    assert len(bodies) == 1
    assert guarded.admin.head("/v1/stream/mine/fork-2").status_code == 404


# 115, 116: foreign streams.

FOREIGN = {
    "read": ("GET", "?offset=-1", {}, b""),
    "read-offset": ("GET", "?offset=0000000000000000_0000000000000001", {}, b""),
    "read-bad-offset": ("GET", "?offset=what", {}, b""),
    "long-poll": ("GET", "?offset=now&live=long-poll&cursor=1", {}, b""),
    "sse": ("GET", "?offset=-1&live=sse", {}, b""),
    "etag": ("GET", "?offset=-1", {"if-none-match": "*"}, b""),
    "head": ("HEAD", "", {}, b""),
    "delete": ("DELETE", "", {}, b""),
    "create": ("PUT", "", JSON, b""),
    "append": ("POST", "", JSON, b'[{"x":1}]'),
    "append-slow": ("POST", "", {**JSON, "x-not-plain": "1"}, b'[{"x":1}]'),
    "append-empty": ("POST", "", JSON, b""),
    "append-other-type": ("POST", "", TEXT, b"x"),
    "close": ("POST", "", {"stream-closed": "true"}, b""),
    "producer": (
        *("POST", ""),
        {**JSON, "producer-id": "p", "producer-epoch": "0", "producer-seq": "0"},
        b"[1]",
    ),
    "compressed": ("POST", "", {**JSON, "content-encoding": "gzip"}, b"[1]"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_auth_tells_nothing_about_foreign_streams(
    guarded: Guarded, reader: httpx.Client, case: str
):
    method, query, headers, body = FOREIGN[case]
    replies = [
        reader.request(method, f"/v1/stream/{name}{query}", headers=headers, content=body)
        for name in ("theirs/s", "theirs/t")
    ]
    for reply in replies:
        assert reply.status_code == 404
        reply.headers.pop("date", None)
    assert replies[0].headers == replies[1].headers
    assert replies[0].content == replies[1].content
    if method != "HEAD":
        assert assert_refused(replies[0], 404) == "stream_not_found"
    assert guarded.admin.get("/v1/stream/theirs/s?offset=-1").content == b'[{"x":1}]'


# 121, 122, 123: everything that is not a stream; caches.


@pytest.mark.parametrize(
    "path",
    [
        *["/metrics", "/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect", "/v1/streams"],
        *["/v1/tokens", "/", "/nothing", "/healthz/", "/%68ealthz", "//healthz", "/v1/%73tream/ab"],
        *["/debug", "/readyz/../metrics", "/healthz;/metrics"],
    ],
)
def test_auth_guards_every_path_of_the_operator(guarded: Guarded, reader: httpx.Client, path: str):
    def ask(*lines: str, method: str = "GET") -> Reply:
        return exchange(guarded.server, request(method, path, *lines), method=method)

    assert assert_refused(ask(), 401) == "unauthorized"
    assert ask(method="POST").status == 401
    assert assert_refused(ask(*bearer_line(reader)), 403) == "forbidden"
    allowed = ask(*bearer_line(guarded.admin))
    assert allowed.status in (200, 307, 404), allowed.body
    assert allowed.headers["cache-control"] == "no-store"


def test_auth_leaves_the_health_routes_open(guarded: Guarded):
    with connect(guarded.server) as client:
        for path in ("/healthz", "/readyz", "/healthz?token=x"):
            assert client.get(path).json() == {"status": "ok"}


def test_auth_keeps_private_records_out_of_shared_caches(guarded: Guarded, reader: httpx.Client):
    assert guarded.admin.put("/v1/stream/mine/big", headers=TEXT).status_code == 201
    # More than a chunk, so that the first one is whole and may be kept.
    for _ in range(2):
        big = guarded.admin.post("/v1/stream/mine/big", headers=TEXT, content=b"x" * 1_100_000)
        assert big.status_code == 204
    caching = {
        "mine/s?offset=-1": "private, no-cache",
        "mine/s?offset=now": "no-store",
        "mine/s?offset=-1&live=long-poll": "private, no-cache",
        "mine/big?offset=-1": "private, max-age=60, stale-while-revalidate=300",
    }
    for path, expected in caching.items():
        response = reader.get(f"/v1/stream/{path}")
        assert response.status_code == 200
        assert response.headers["cache-control"] == expected
        assert "Authorization" in response.headers["vary"]
    with reader.stream("GET", "/v1/stream/mine/s?offset=-1&live=sse") as sse:
        assert sse.headers["cache-control"] == "private, no-cache"
    for path in ("theirs/s?offset=-1", "mine/none?offset=-1"):
        response = reader.get(f"/v1/stream/{path}")
        assert response.headers["cache-control"] == "no-store"
        assert "Authorization" in response.headers["vary"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "GET"])
def test_auth_mints_no_token_over_http(guarded: Guarded, method: str):
    body = json.dumps({"name": "x", "scopes": ["admin:*"]})
    for path in ("/v1/tokens", "/v1/token", "/_auth/tokens.json"):
        response = guarded.admin.request(method, path, content=body)
        assert response.status_code in (404, 405)


def test_auth_settings_are_read_with_read_and_changed_with_admin(
    guarded: Guarded, reader: httpx.Client
):
    path = "/v1/stream/mine/s/_settings"
    assert reader.get(path).status_code == 200
    assert reader.patch(path, json={"ack": "wal"}).json()["code"] == "forbidden"
    assert reader.get("/v1/stream/theirs/s/_settings").status_code == 404
    assert reader.patch("/v1/stream/theirs/s/_settings", json={}).status_code == 404
    assert reader.get("/v1/streams").status_code == 403
    assert guarded.admin.patch(path, json={"ack": "wal"}).status_code == 200
    listed = guarded.admin.get("/v1/streams?prefix=mine/").json()["streams"]
    assert "mine/s" in [stream["name"] for stream in listed]
