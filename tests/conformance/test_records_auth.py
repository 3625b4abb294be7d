"""The records dialect behind the gate, at its own path and at the bare one."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest

from api.auth.issue import create_token, revoke_token
from tests.support.wire import connect, serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.server import ServerProcess

SECRET = "the-secret-of-all-0123456789"
PREFIXES = ("/v1/records/", "/")
ONE = {"records": [1]}
NONE = {"records": []}
_names = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(
        tmp_path_factory.mktemp("records-auth"),
        http__bare_records="true",
        auth__mode="on",
        auth__header_secret=SECRET,
        auth__failures_per_minute=100_000,
    ) as process:
        yield process


@pytest.fixture
def everybody(client: httpx.Client) -> httpx.Client:
    """Knows the header of DurableStreams, and so may do everything."""
    client.headers["auth"] = SECRET
    return client


@pytest.fixture
def name() -> str:
    return f"mine/s{next(_names)}"


@pytest.fixture
def holder(server: ServerProcess) -> Iterator[Callable[[str], httpx.Client]]:
    """Makes clients with a token of some scopes; ``token`` on them is its id."""
    made = []

    def make(*scopes: str) -> httpx.Client:
        token, secret = create_token(server.root, "t", scopes, expires=None, rate=None)
        client = connect(server)
        client.headers["authorization"] = f"Bearer {secret}"
        client.token = token.id  # type: ignore[attr-defined]
        wait_until(lambda: client.get("/v1/records/x").status_code != 401, "the token counts")
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.mark.parametrize("prefix", PREFIXES)
def test_without_a_token_nothing_is_told(server: ServerProcess, name: str, prefix: str) -> None:
    with connect(server) as nobody:
        for method in ("GET", "HEAD", "POST", "DELETE", "PUT"):
            refused = nobody.request(method, f"{prefix}{name}", json=ONE)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Bearer")
            assert method == "HEAD" or refused.json()["error"]
        wrong = nobody.get(f"{prefix}{name}", headers={"auth": SECRET[:-1]})
        assert wrong.status_code == 401
        assert nobody.get("/healthz").status_code == 200
        assert nobody.post("/%68ealthz", json=ONE).status_code == 401


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_auth_header_opens_everything(everybody, name: str, prefix: str) -> None:
    assert everybody.post(f"{prefix}{name}", json=ONE).status_code == 200
    assert len(everybody.get(f"{prefix}{name}?offset=-").json()["records"]) == 1
    assert everybody.delete(f"{prefix}{name}").json() == {"success": True}


def test_every_method_needs_its_own_right(everybody, holder, name: str) -> None:
    path = f"/v1/records/{name}"
    reader, appender = holder("read:mine/"), holder("append:mine/")
    maker, deleter = holder("append,create:mine/"), holder("delete:mine/")
    refused = appender.post(path, json=ONE)
    assert (refused.status_code, bool(refused.json()["error"])) == (403, True)
    assert appender.post(path, params={"version": 1}, json=NONE).status_code == 403
    assert everybody.head(f"/v1/stream/{name}").status_code == 404
    assert (
        maker.post(path, json=ONE).status_code == appender.post(path, json=ONE).status_code == 200
    )
    assert len(reader.get(f"{path}?offset=-").json()["records"]) == 2
    for client, methods in (
        (reader, ("POST", "DELETE")), (appender, ("GET", "HEAD", "DELETE")),
        (deleter, ("GET", "POST")),
    ):  # fmt: skip
        for method in methods:
            assert client.request(method, path, json=ONE).status_code == 403, (method, client)
    assert deleter.delete(path).json() == {"success": True}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_foreign_streams_look_like_missing_ones(everybody, holder, prefix: str) -> None:
    everybody.delete("/v1/records/theirs/s")
    everybody.post("/v1/records/theirs/s", json=ONE)
    stranger = holder("read,append,create,delete:mine/")
    for method in ("GET", "POST", "DELETE"):
        answers = [
            stranger.request(method, f"{prefix}{one}", json=ONE)
            for one in ("theirs/s", "theirs/none", "mine", "mines/s")
        ]
        assert {(answer.status_code, answer.content) for answer in answers} == {
            (404, answers[0].content)
        }
    assert len(everybody.get("/v1/records/theirs/s?offset=-").json()["records"]) == 1


def test_revoking_ends_a_wait(server: ServerProcess, everybody, holder, name: str) -> None:
    path = f"/v1/records/{name}"
    everybody.post(path, json=ONE)
    reader = holder("read:mine/")
    with ThreadPoolExecutor(2) as pool:
        begun = time.monotonic()
        waiting = [
            pool.submit(httpx.get, f"{server.url}{one}?timeout_sec=8", headers=reader.headers,
                        trust_env=False, timeout=10)
            for one in (path, f"{path}-none")
        ]  # fmt: skip
        time.sleep(0.3)
        revoke_token(server.root, reader.token)
        assert [one.result().status_code for one in waiting] == [401, 401]
        assert time.monotonic() - begun < 4
