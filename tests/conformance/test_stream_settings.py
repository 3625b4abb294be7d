"""Settings per stream, declared streams and lists, over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deltalake
import httpx
import pytest

from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JSON = {"content-type": "application/json"}


class Api:
    """A client of one server, below /v1."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._client = httpx.Client(trust_env=False, timeout=20)

    def __call__(self, method: str, path: str, **how: Any) -> httpx.Response:
        return self._client.request(method, f"{self.server.url}/v1/{path}", **how)

    def create(self, name: str) -> None:
        assert self("PUT", f"stream/{name}", headers=JSON).status_code == 201

    def append(self, name: str, *records: Any, **headers: str) -> httpx.Response:
        return self("POST", f"stream/{name}", json=list(records), headers=headers)

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with ServerProcess.start(tmp_path_factory.mktemp("settings") / "root") as server:
        client = Api(server)
        yield client
        client.close()


def test_settings_are_shown_changed_and_given_back(api: Api) -> None:
    api.create("a")
    before = api("GET", "stream/a/_settings").json()
    changed = api(
        "PATCH", "stream/a/_settings", json={"ack": "table", "retain": {"records": 10}}
    ).json()
    back = api("PATCH", "stream/a/_settings", json={"ack": None, "retain": None}).json()

    assert before["own"] == {}
    assert before["content_type"] == "application/json"
    assert before["in_force"]["ack"] == "wal"
    assert before["in_force"]["commit"] == {"interval_ms": 1000, "bytes": 8388608}
    assert changed["own"] == {"ack": "table", "retain": {"records": 10}}
    assert changed["in_force"]["retain"]["records"] == 10
    assert back == before


def test_settings_make_an_append_wait_for_the_table(api: Api) -> None:
    """Without a header, and on the short way of small appends."""
    api.create("b")
    api("PATCH", "stream/b/_settings", json={"ack": "table", "commit": {"interval_ms": 3600000}})
    assert api.append("b", 1).headers["stream-ack"] == "table"
    table = deltalake.DeltaTable(str(api.server.root / "b"))
    assert table.to_pyarrow_table(columns=["data"])["data"].to_pylist() == ["1"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'{"ack": "never"}', "ack"),
        (b'{"colour": "red"}', "colour"),
        (b'{"commit": {"interval_ms": 0}}', "commit.interval_ms"),
        (b'{"commit": {"interval_ms": 1e9}}', "commit.interval_ms"),
        (b'{"commit": {"pages": 1}}', "commit.pages"),
        (b'{"commit": 1}', "commit"),
        (b'{"content_type": "text/plain"}', "content_type"),
        (b'{"ttl_seconds": 5}', "ttl_seconds"),
        (b"[" * 5000, "JSON"),
    ],
)
def test_settings_that_are_wrong_are_refused(api: Api, body: bytes, word: str) -> None:
    api("PUT", "stream/c", headers=JSON)
    answer = api("PATCH", "stream/c/_settings", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_setting")
    assert word in answer.json()["detail"]
    assert api("GET", "stream/c/_settings").json()["own"] == {}


def test_settings_of_no_stream_and_other_methods(api: Api) -> None:
    assert api("GET", "stream/never/_settings").status_code == 404
    assert api("PATCH", "stream/never/_settings", json={"ack": "wal"}).status_code == 404
    assert api("GET", "stream/_settings").status_code == 400
    answer = api("DELETE", "stream/c/_settings")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, PATCH, OPTIONS")
    assert api("PATCH", "stream/c/_settings", content=b"x" * 70_000).status_code == 413
    assert api("PUT", "stream/a/_settings/b", headers=JSON).status_code == 400


def test_streams_are_listed_page_by_page(api: Api) -> None:
    for name in ("list/b", "list/a", "list/c ä", "listing"):
        api.create(name)
    api.append("list/b", 1, 2, 3)
    first = api("GET", "streams", params={"prefix": "list/", "limit": 2}).json()
    second = api("GET", "streams", params={"prefix": "list/", "after": first["next"]}).json()

    assert [entry["name"] for entry in first["streams"]] == ["list/a", "list/b"]
    assert [entry["name"] for entry in second["streams"]] == ["list/c ä"]
    assert second["next"] is None
    entry = first["streams"][1]
    assert (entry["records"], entry["content_type"]) == (3, "application/json")
    assert entry["last_append"].startswith("20")
    assert api("HEAD", "stream/list/b").headers["stream-next-offset"] == entry["tail"]
    assert first["streams"][0]["last_append"] is None


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", f"prefix={'x' * 5000}"])
def test_streams_list_refuses_what_it_cannot_do(api: Api, query: str) -> None:
    answer = api("GET", f"streams?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_declared_streams_are_created_once_with_what_they_inherit(tmp_path: Path) -> None:
    config = tmp_path / "bottomless.toml"
    config.write_text("")
    (tmp_path / "streams.toml").write_text(
        '[orders]\ncontent_type = "application/json"\nack = "table"\n'
        '[notes]\ncontent_type = "text/plain"\nttl_seconds = 3600\n'
        '["log*".retain]\nrecords = 5\n'
    )
    args = ("--config", str(config))
    with ServerProcess.start(tmp_path / "root", args=args) as server:
        api = Api(server)
        assert api.append("orders", 1).headers["stream-ack"] == "table"
        assert server.terminate() == 0
        server.restart()
        names = [entry["name"] for entry in api("GET", "streams").json()["streams"]]
        notes = api("GET", "stream/notes/_settings").json()
        api.create("log-1")
        retain = api("GET", "stream/log-1/_settings").json()["in_force"]["retain"]
        records = json.loads(api("GET", "stream/orders?offset=-1").content)
        api.close()

    assert names == ["notes", "orders"]
    assert (notes["content_type"], notes["ttl_seconds"], notes["own"]) == ("text/plain", 3600, {})
    assert retain["records"] == 5
    assert records == [1]
