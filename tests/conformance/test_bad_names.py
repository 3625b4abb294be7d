"""Stream names that try to leave the data folder, to look like others, or to break other tools.

The numbers are those of section A of the list of bad inputs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.wire import (
    TEXT,
    Canary,
    Reply,
    assert_refused,
    exchange,
    request,
    serving,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

    from tests.support.server import ServerProcess

NAME_BYTES = 512
SAFE_FOLDER = re.compile(r"[A-Za-z0-9_-]{1,200}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("names"), commit__interval_ms=50) as process:
        yield process


@pytest.fixture(scope="module")
def canary(client: httpx.Client) -> Canary:
    return Canary(client, TEXT)


# What stands after /v1/stream/ on the wire. No client library touches it.
REFUSED = {
    "1-parent-literal": "../../etc/passwd",
    "1-parent-inside": "a/../b",
    "1-parent-at-the-end": "a/..",
    "2-parent-encoded": "%2e%2e/%2e%2e/etc",
    "2-parent-half-encoded": ".%2E/x",
    "4-backslash": "a\\b",
    "4-backslash-encoded": "a%5Cb",
    "4-parent-with-backslash": "..%5c..%5cx",
    "5-slash-encoded": "a%2Fb",
    "5-slash-encoded-lower": "a%2fb",
    "5-parent-with-encoded-slash": "..%2f..%2fetc",
    "6-nul": "a%00b",
    "7-crlf": "a%0d%0aX-Evil:%201",
    "7-lf-at-the-end": "a%0a",
    "8-ff": "%ff",
    "8-fe": "a%fe",
    "8-cut-character": "%c3",
    "8-surrogate": "%ed%a0%80",
    "9-overlong-dots": "%c0%ae%c0%ae/",
    "9-overlong-slash": "a%c0%afb",
    "9-beyond-unicode": "%f4%90%80%80",
    "10-not-hex": "%zz",
    "10-percent-at-the-end": "a%",
    "10-percent-cut": "a%4",
    "11-name-of-513-bytes": "a" * (NAME_BYTES + 1),
    "11-name-of-514-bytes-in-utf8": "%c3%a9" * (NAME_BYTES // 2 + 1),
    "11-path-of-4-kib": "a/" * 2048,
    "14-empty": "",
    "14-slash": "/",
    "14-two-slashes": "//",
    "14-slash-in-front": "/a",
    "14-empty-segment": "a//b",
    "14-dot-segment": "a/./b",
    "14-slash-at-the-end": "a/",
    "15-delta-log": "_delta_log",
    "15-delta-log-inside": "a/_delta_log",
    "15-delta-log-entry": "a/_delta_log/00000000000000000000.json",
    "15-delta-log-encoded": "a/%5fdelta_log",
    "15-checkpoints": "_checkpoints",
    "15-checkpoints-inside": "a/_checkpoints/b",
    "15-reserved": "__ds/subscriptions/x",
    "15-reserved-alone": "__ds",
    "15-reserved-encoded": "%5f%5fds/x",
    "16-dot": ".",
    "16-dot-encoded": "%2e",
    "17-bidi": quote("a\u202eb"),
    "17-bidi-isolate": quote("a\u2066b"),
    "17-zero-width": quote("a\u200bb"),
    "17-byte-order-mark": quote("\ufeffa"),
    "17-soft-hyphen": quote("a\u00adb"),
    "17-delete": "a%7f",
    "17-c1-control": quote("a\u0085b"),
    "17-line-separator": quote("a\u2028b"),
    "17-escape": "%1b[31m",
    "17-tab": "a%09b",
    "17-no-break-space": quote("a\u00a0b"),
    "17-wide-space": quote("a\u3000b"),
    "17-private-use": quote("\ue000"),
    "17-unassigned": quote("\U000e0080"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED)
def test_name_is_refused_and_nothing_is_created(
    server: ServerProcess, client: httpx.Client, canary: Canary, name: str
) -> None:
    before = files_around(server.root)
    with canary.untouched():
        for method in ("PUT", "POST", "GET", "DELETE"):
            reply = ask(server, method, name)
            assert_refused(reply, 400)
            assert "x-evil" not in reply.headers
        assert ask(server, "HEAD", name).status == 400
        fork = {**TEXT, "stream-forked-from": f"/v1/stream/{name}"}
        assert_refused(client.put(f"{canary.path}/fork", headers=fork), 400)
    assert client.head(f"{canary.path}/fork").status_code == 404
    assert files_around(server.root) == before


def ask(server: ServerProcess, method: str, name: str) -> Reply:
    body = b"body" if method in ("PUT", "POST") else b""
    headers = ["Content-Type: text/plain", f"Content-Length: {len(body)}"]
    data = request(method, f"/v1/stream/{name}", *headers, body=body)
    return exchange(server, data, method=method)


def files_around(root: Path) -> set[str]:
    """Beside the data folder and two levels up: where a name that breaks out would show."""
    return {
        str(path)
        for folder in (root.parent, root.parent.parent)
        for path in folder.iterdir()
        if path != root and not path.name.endswith(".log")
    }


def test_url_of_200_kb_is_refused(server: ServerProcess, canary: Canary) -> None:
    """Case 11."""
    with canary.untouched():
        assert_refused(ask(server, "GET", "a" * 200_000), 400, 414, 431)


NAMES = {
    "3-double-encoded-parent": "%2e%2e%2fx",
    "3-double-encoded-nul": "%00",
    "4-literal-2f": "a%2fb",
    "11-512-bytes": "a" * NAME_BYTES,
    "11-256-bytes": "b" * 256,
    "11-400-bytes-in-utf8": "é" * 200,
    "11-deep": "/".join("a" * 256),
    "15-delta-log-other-case": "_DELTA_LOG",
    "15-wal": "_wal",
    "15-wal-inside": "_wal/00000000000000000001.wal",
    "15-lock": "_lock",
    "15-trash": "_trash",
    "16-three-dots": "...",
    "16-dots-in-front": "..x",
    "16-option": "-rf",
    "16-con": "con",
    "16-colon": "a:b",
    "16-s3": "s3:",
    "16-url": "s3:/bucket/x",
    "16-question-mark": "a?b",
    "16-hash": "a#b",
    "16-star": "a*b",
    "16-braces": "{x}",
    "16-quotes": "a'b\"c",
    "16-backtick": "`; DROP TABLE x; --",
    "16-semicolon": "a;b",
    "16-dollar": "${env:HOME}$(id)",
    "16-space": " a b ",
    "16-partition": "flush_date=2026-01-01",
    "16-plus": "a+b",
    "16-our-escape": "_-a_2fb",
    "16-our-hash": "_h-" + "0" * 64,
    "17-emoji": "🚀/😀",
    "17-cjk": "日本/ünï",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_name_that_is_odd_is_one_stream_of_its_own(
    server: ServerProcess, client: httpx.Client, name: str
) -> None:
    path = f"/v1/stream/{quote(name)}"
    created = client.put(path, headers=TEXT, content=b"first")
    assert created.status_code == 201, created.text
    assert created.headers["location"] == f"{server.url}{path}"
    appended = client.post(path, headers=TEXT, content=name.encode())
    assert appended.status_code == 204
    assert client.head(path).headers["stream-next-offset"] == appended.headers["stream-next-offset"]
    assert client.get(path).content == b"first" + name.encode()


def test_names_are_stored_under_safe_folders_only(
    server: ServerProcess, client: httpx.Client
) -> None:
    """Case 4: delta-rs decodes what looks like an escape, so no folder may look like one."""
    made = [f"safe/{name}" for name in NAMES.values() if len(name) < 300]
    before = table_folders(server.root)
    for name in made:
        path = f"/v1/stream/{quote(name)}"
        assert client.put(path, headers=TEXT, content=b"x").status_code == 201
    wait_until(
        lambda: len(table_folders(server.root) - before) >= len(made), "the tables do not come"
    )
    for folder in server.root.iterdir():
        assert SAFE_FOLDER.fullmatch(folder.name), folder


def table_folders(root: Path) -> set[str]:
    return {log.parent.name for log in root.glob("*/_delta_log")}


TWINS = {
    "12-nfc-and-nfd": ("accent-\u00e9", "accent-e\u0301"),
    "13-case": ("Twin", "twin"),
    "13-case-of-folders": ("T/x", "t/x"),
    "17-look-alike": ("paypal", "p\u0430ypal"),
    "18-nested": ("nest", "nest/inner"),
    "18-nested-deeper": ("nest2/a", "nest2/a/b/c"),
}


@pytest.mark.parametrize(("one", "other"), TWINS.values(), ids=TWINS)
def test_names_that_look_alike_or_nest_are_two_streams(
    client: httpx.Client, one: str, other: str
) -> None:
    paths = [f"/v1/stream/{quote(f'twins/{name}')}" for name in (one, other)]
    for path, body in zip(paths, (b"one", b"other"), strict=True):
        assert client.put(path, headers=TEXT, content=body).status_code == 201
    assert [client.get(path).content for path in paths] == [b"one", b"other"]
    assert client.delete(paths[0]).status_code == 204
    assert [client.get(path).status_code for path in paths] == [404, 200]
    assert client.get(paths[1]).content == b"other"
    assert client.put(paths[0], headers=TEXT).status_code == 201
    assert client.get(paths[0]).content == b""


def test_name_is_decoded_once(client: httpx.Client) -> None:
    """Cases 3 and 5: one spelling percent-encoded or not is one stream, decoded twice is not."""
    assert client.put("/v1/stream/once/a%41", headers=TEXT, content=b"x").status_code == 201
    assert client.get("/v1/stream/once/aA").content == b"x"
    assert client.get("/v1/stream/once/%61%41").content == b"x"
    assert client.get("/v1/stream/once/a%2541").status_code == 404


def test_name_used_again_never_shows_old_bytes(client: httpx.Client) -> None:
    """Case 19."""
    path = "/v1/stream/again"
    assert client.put(path, headers=TEXT, content=b"old-1").status_code == 201
    middle = client.head(path).headers["stream-next-offset"]
    assert client.post(path, headers=TEXT, content=b"old-2").status_code == 204
    old = client.get(path)
    assert old.content == b"old-1old-2"
    assert client.delete(path).status_code == 204
    assert_refused(client.get(path, params={"offset": middle}), 404, 410)
    assert client.put(path, headers=TEXT, content=b"new").status_code == 201
    for offset in ("-1", middle, old.headers["stream-next-offset"]):
        read = client.get(path, params={"offset": offset})
        assert (read.status_code, read.content) == (200, b"new")
    stale = client.get(path, headers={"if-none-match": old.headers["etag"]})
    assert (stale.status_code, stale.content) == (200, b"new")
