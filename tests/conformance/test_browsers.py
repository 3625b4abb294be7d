"""What a browser may do with streams: section G of the list of bad inputs, by row number.

What a page really sees is tested in tests/browser, where there is one; here, what makes it so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.wire import BYTES, JSON, TEXT, Canary, assert_refused, connect, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.support.server import ServerProcess

GOOD = "https://good.example"
SCRIPT = b"<html><script>alert(1)</script></html>"
FOREIGN_ORIGINS = [
    *["null", "https://evil.example", "https://good.example.evil", "https://good.example:444"],
    *[
        "http://good.example",
        "https://GOOD.example",
        "https://good.example/",
        "https://a.good.example",
    ],
    *["", "*", "https://good.example, https://evil.example"],
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Every origin, as it comes."""
    with serving(tmp_path_factory.mktemp("public")) as process:
        yield process


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Two origins only."""
    folder = tmp_path_factory.mktemp("listed")
    origins = f'["{GOOD}", "http://localhost:5173"]'
    with serving(folder, http__cors_origins=origins) as process, connect(process) as client:
        assert client.put("/v1/stream/s", headers=JSON).status_code == 201
        yield client


# 124, 125: what a stream holds is never run.


@pytest.mark.parametrize(
    ("content_type", "is_saved"),
    [
        *[("text/html", False), ("text/html; charset=utf-8", False), ("text/javascript", False)],
        *[("text/html; charset=utf-16", True), ("image/svg+xml", True), ("application/xml", True)],
        *[("application/octet-stream", True), ("application/xhtml+xml", True), ("image/png", True)],
        *[("application/json", False), ("text/plain", False), ("multipart/mixed", True)],
    ],
)
def test_browser_shows_no_stream_as_a_page(
    client: httpx.Client, content_type: str, is_saved: bool
) -> None:
    kind = {"content-type": content_type}
    path = f"/v1/stream/{abs(hash(content_type))}"
    body = b'["<script>"]' if content_type == "application/json" else SCRIPT
    assert client.put(path, headers=kind, content=body).status_code == 201
    for query in ("?offset=-1", "?offset=-1&live=long-poll", "", "?offset=now"):
        response = client.get(path + query)
        assert response.headers["content-type"] == content_type
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-security-policy"] == "sandbox; default-src 'none'"
        disposition = response.headers.get("content-disposition")
        assert disposition == ("attachment" if is_saved else None)
    with client.stream("GET", f"{path}?offset=-1&live=sse") as events:
        assert events.headers["content-type"] == "text/event-stream"
        assert events.headers["x-content-type-options"] == "nosniff"


def test_browser_shows_no_error_as_a_page(client: httpx.Client) -> None:
    for path in ("/v1/stream/<script>alert(1)</script>", "/<script>", "/v1/stream/%00<script>"):
        response = client.get(path)
        assert assert_refused(response, 400, 404)
        assert b"<script" not in response.content


# 126, 127: other people's pages.


def test_browser_lets_every_page_read_without_credentials(client: httpx.Client) -> None:
    canary = Canary(client, JSON)
    for origin in (GOOD, "null", "https://evil.example"):
        response = client.get(f"{canary.path}?offset=-1", headers={"origin": origin})
        assert response.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in response.headers
        assert response.headers["cross-origin-resource-policy"] == "cross-origin"
        exposed = response.headers["access-control-expose-headers"]
        assert {"Stream-Next-Offset", "Stream-Closed", "ETag"} <= set(exposed.split(", "))


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_browser_keeps_foreign_pages_out_of_a_list(listed: httpx.Client, origin: str) -> None:
    for method in ("GET", "POST", "OPTIONS", "DELETE"):
        response = listed.request(method, "/v1/stream/none", headers={"origin": origin})
        assert "access-control-allow-origin" not in response.headers
        assert "access-control-allow-credentials" not in response.headers
        assert "Origin" in response.headers["vary"]
        assert response.headers["cross-origin-resource-policy"] == "same-origin"


def test_browser_lets_listed_pages_in(listed: httpx.Client) -> None:
    origin = {"origin": GOOD}
    for response in (
        listed.get("/v1/stream/s?offset=-1", headers=origin),
        listed.post("/v1/stream/s", headers=origin | JSON, content=b"[1]"),
        listed.get("/v1/stream/none", headers=origin),
        listed.get("/healthz", headers=origin),
        listed.options("/v1/stream/s", headers=origin),
    ):
        assert response.headers["access-control-allow-origin"] == GOOD
        assert "Origin" in response.headers["vary"]
        assert "access-control-allow-credentials" not in response.headers
    other = listed.get("/v1/stream/s", headers={"origin": "http://localhost:5173"})
    assert other.headers["access-control-allow-origin"] == "http://localhost:5173"
    assert "access-control-allow-origin" not in listed.get("/v1/stream/s").headers


# 128: the question before the request.


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "GET", "PATCH"])
@pytest.mark.parametrize("path", ["/v1/stream/none", "/v1/streams", "/metrics", "/nothing"])
def test_browser_preflight_needs_no_token_and_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, guarded: httpx.Client, method: str, path: str
) -> None:
    asked = {
        "origin": GOOD,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization, content-type, stream-closed",
    }
    response = guarded.options(path, headers=asked)
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == "*"
    assert method in response.headers["access-control-allow-methods"].split(", ")
    allowed = response.headers["access-control-allow-headers"].split(", ")
    assert {"authorization", "auth", "content-type", "stream-closed"} <= set(allowed)
    assert guarded.request(method, path).status_code == 401


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server that asks everybody for a token."""
    folder = tmp_path_factory.mktemp("guarded")
    with serving(folder, auth__mode="on") as process, connect(process) as client:
        yield client


# 129: forms of other people's pages.


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"],
)
def test_browser_form_of_another_page_appends_nothing(
    client: httpx.Client, content_type: str
) -> None:
    canary = Canary(client, JSON)
    form = {"origin": "https://evil.example", "cookie": "token=x", "content-type": content_type}
    with canary.untouched():
        response = client.post(canary.path, headers=form, content=b'{"x":"=1"}')
        assert assert_refused(response, 409) == "content_type_mismatch"


def test_browser_has_no_right_by_cookie(guarded: httpx.Client) -> None:
    response = guarded.get("/v1/stream/s", headers={"cookie": "authorization=Bearer x; auth=x"})
    assert assert_refused(response, 401) == "unauthorized"
    assert "set-cookie" not in response.headers


def test_browser_downloads_bytes_whole(client: httpx.Client) -> None:
    canary = Canary(client, BYTES)
    assert client.post(canary.path, headers=BYTES, content=SCRIPT).status_code == 204
    assert canary.read() == SCRIPT
    assert client.get(f"{canary.path}?offset=-1").headers["content-disposition"] == "attachment"
    text = Canary(client, TEXT)
    assert "content-disposition" not in client.get(f"{text.path}?offset=-1").headers
