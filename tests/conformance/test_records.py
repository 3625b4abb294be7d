"""The records dialect: the original's own cases T1 to T8, its defects D1 to D9, and its refusals.

What it shares with the other dialect is in test_records_shared.py, load (D3, D4) in
test_records_load.py, a failing disk (D11) in tests/crash/test_table_ack.py.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.records import RecordsClient
from tests.support.wire import JSON, LEAKS, Wire, connect, request, serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.support.server import ServerProcess

LONG_POLL_S = 1.0
FAR = "9" * 32
_names = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(
        tmp_path_factory.mktemp("records"), http__long_poll_timeout_ms=int(LONG_POLL_S * 1000)
    ) as process:
        yield process


@pytest.fixture
def records(server: ServerProcess) -> Iterator[RecordsClient]:
    with RecordsClient(server.url) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"records-{next(_names)}"


def data(found: list[tuple[str, bytes]]) -> list[object]:
    return [json.loads(record) for _, record in found]


def soon(action, delay_s: float = 0.3) -> threading.Timer:
    timer = threading.Timer(delay_s, action)
    timer.start()
    return timer


def path_of(name: str, query: str = "") -> str:
    return f"/v1/records/{name}{query}"


# The original's own cases.


def test_t1_post_of_eight_is_answered(records: RecordsClient, name: str) -> None:
    assert len(records.post(name, *range(8))) == 8


def test_t2_read_from_the_beginning_with_a_limit(records: RecordsClient, name: str) -> None:
    offsets = records.post(name, "a", "b", "c")
    assert records.get(name, offset="-", limit=2) == [(offsets[0], b'"a"'), (offsets[1], b'"b"')]


def test_t3_read_after_an_offset(records: RecordsClient, name: str) -> None:
    offsets = records.post(name, "a", "b", "c", "d")
    assert records.get(name, offset=offsets[0], limit=1) == [(offsets[1], b'"b"')]


def test_t4_long_poll_that_is_open_before_the_post(
    server: ServerProcess, records: RecordsClient, name: str
) -> None:
    for expected in (["a", "b"], ["c", "d"]):
        # The first round begins before there is a stream, the second one with a history.
        with ThreadPoolExecutor(1) as pool, RecordsClient(server.url) as reader:
            waiting = pool.submit(reader.get, name, offset="", limit=5, timeout_sec=5)
            time.sleep(0.5)
            assert not waiting.done()
            records.post(name, *expected)
            assert data(waiting.result()) == expected


def test_t5_long_poll_on_a_stream_that_never_comes(records: RecordsClient, name: str) -> None:
    begun = time.monotonic()
    assert records.get(name, timeout_sec=0.5) == []
    assert 0.45 < time.monotonic() - begun < 2


def test_t6_two_posts_are_read_in_order(records: RecordsClient, name: str) -> None:
    records.post(name, 1, 2, 3)
    records.post(name, 4, 5, ack="table")
    assert data(records.get(name, offset="-")) == [1, 2, 3, 4, 5]


def test_t7_versions(client: httpx.Client, records: RecordsClient, name: str) -> None:
    for number, version in enumerate([1, 2, 2]):
        records.post(name, number, version=version)
    old = client.post(path_of(name, "?version=1"), json={"records": ["old"]})
    assert old.status_code == 409
    assert old.json()["error"] == "Producer version too old"
    assert (old.json()["current_version"], old.json()["provided_version"]) == (2, 1)
    records.post(name, 3)
    bad = client.post(path_of(name, "?version=invalid"), json={"records": ["bad"]})
    assert (bad.status_code, bad.json()["error"]) == (400, "Invalid version parameter")
    assert data(records.get(name, offset="-")) == [0, 1, 2, 3]


def test_t8_delete_begins_anew(client: httpx.Client, records: RecordsClient, name: str) -> None:
    last = records.post(name, 1, 2, 3, version=7)[-1]
    assert len(records.get(name, offset="-")) == 3
    for _ in range(2):
        deleted = client.delete(path_of(name))
        assert (deleted.status_code, deleted.json()) == (200, {"success": True})
    assert records.get(name, offset="-") == []
    assert client.post(path_of(name), json={"records": []}).json() == {"version": 0}
    [offset] = records.post(name, 4, version=1)
    assert offset > last
    assert records.get(name, offset="-") == [(offset, b"4")]


# Its defects.


def test_d1_a_killed_server_goes_on(server: ServerProcess, name: str) -> None:
    with RecordsClient(server.url) as before:
        offsets = before.post(name, 1, 2, version=3)
    server.kill9()
    server.restart()
    with RecordsClient(server.url) as after, connect(server) as client:
        offsets += after.post(name, 3)
        assert offsets == sorted(set(offsets))
        assert [offset for offset, _ in after.get(name, offset="-")] == offsets
        assert client.post(path_of(name, "?version=2"), json={"records": [4]}).status_code == 409


def test_d2_any_character_is_a_record(records: RecordsClient, name: str) -> None:
    texts = ["é", "日本", "\U0001f600", "\0", "plain"]
    for text in texts:
        records.post(name, {"v": text})
    assert [value["v"] for value in data(records.get(name, offset="-"))] == texts


def test_d2_records_keep_their_own_bytes(client: httpx.Client, name: str) -> None:
    own = '1.0,1e400,123456789012345678901234567890,{"b":1,"a": 2,"b":3},"\\ud800","é","\\u00e9"'
    body = f'{{"records":[{own}]}}'.encode()
    assert client.post(path_of(name), content=body).status_code == 200
    answer = client.get(path_of(name, "?offset=-")).content
    for one in own.replace(",", "\n", 3).replace('},"', '}\n"').replace('","', '"\n"').split("\n"):
        assert b'"data":' + one.encode() + b"}" in answer


def test_d5_every_offset_can_be_read_after(records: RecordsClient, name: str) -> None:
    offsets = [records.post(name, number)[0] for number in range(12)]
    for index, offset in enumerate(offsets):
        assert data(records.get(name, offset=offset, limit=50)) == list(range(index + 1, 12))


def test_d7_nested_names_are_independent(
    client: httpx.Client, records: RecordsClient, name: str
) -> None:
    for one in (name, f"{name}/b", f"{name}/b/c"):
        records.post(one, one)
    assert client.delete(path_of(name)).status_code == 200
    assert data(records.get(f"{name}/b", offset="-")) == [f"{name}/b"]
    assert data(records.get(f"{name}/b/c", offset="-")) == [f"{name}/b/c"]


def test_d8_posts_beside_deletes_get_a_definite_answer(server: ServerProcess, name: str) -> None:
    """Whether an append comes before or after a delete: it is answered, and stored once or gone."""
    answers: list[int] = []

    def post(number: int) -> None:
        with RecordsClient(server.url) as client:
            ack = "table" if number % 2 else "wal"
            body = b'{"records":[1]}'
            answers.extend(client.call("POST", name, body, ack=ack)[0] for _ in range(20))

    with ThreadPoolExecutor(8) as pool, RecordsClient(server.url) as client:
        running = [pool.submit(post, number) for number in range(8)]
        while not all(one.done() for one in running):
            assert client.call("DELETE", name) == (200, b'{"success":true}')
            time.sleep(0.005)
        for one in running:
            one.result()
        assert len(answers) == 160
        assert set(answers) <= {200, 404}
        assert answers.count(200) > 80
        client.post(name, "still works")


def test_d9_an_old_version_never_lands_behind_a_new_one(server: ServerProcess, name: str) -> None:
    """Many old producers race with one that takes over; all of them are queued beside it."""
    barrier = threading.Barrier(9)

    def old() -> list[int]:
        with RecordsClient(server.url) as client:
            barrier.wait()
            return [client.call("POST", name, b'{"records":["old"]}', version=1)[0]
                    for _ in range(30)]  # fmt: skip

    with ThreadPoolExecutor(8) as pool, RecordsClient(server.url) as client:
        running = [pool.submit(old) for _ in range(8)]
        barrier.wait()
        time.sleep(0.02)
        [taken_over] = client.post(name, "new", version=2)
        answers = [status for one in running for status in one.result()]
        found = client.get(name, offset="-", limit=1000)
    assert set(answers) == {200, 409}
    assert [record for offset, record in found if offset >= taken_over] == [b'"new"']
    assert len(found) == answers.count(200) + 1


# Appends.


def test_empty_append_tells_the_version_and_creates_nothing(
    client: httpx.Client, name: str
) -> None:
    def version(query: str = "") -> httpx.Response:
        return client.post(path_of(name, query), json={"records": []})

    assert version().json() == version("?version=0").json() == {"version": 0}
    assert version("?version=-1").json()["current_version"] == 0
    assert client.head(f"/v1/stream/{name}").status_code == 404
    assert version("?version=5").json() == version().json() == {"version": 5}
    assert client.head(f"/v1/stream/{name}").status_code == 200
    old = version("?version=4")
    assert (old.status_code, old.json()["provided_version"]) == (409, 4)
    assert client.get(path_of(name, "?offset=-")).json() == {"records": []}


def test_first_writers_may_race(server: ServerProcess, name: str) -> None:
    barrier = threading.Barrier(16)

    def post(number: int) -> str:
        with RecordsClient(server.url) as client:
            barrier.wait()
            return client.post(name, number)[0]

    with ThreadPoolExecutor(16) as pool, RecordsClient(server.url) as client:
        offsets = list(pool.map(post, range(16)))
        assert [offset for offset, _ in client.get(name, offset="-", limit=50)] == sorted(offsets)


REFUSED = {
    "empty": ("", b"", 400), "half": ("", b'{"records":', 400), "null": ("", b"null", 400),
    "no-records": ("", b"{}", 400), "records-null": ("", b'{"records":null}', 400),
    "records-text": ("", b'{"records":"x"}', 400), "records-object": ("", b'{"records":{}}', 400),
    "array": ("", b"[1]", 400), "version-4abc": ("?version=4abc", b'{"records":[1]}', 400),
    "version-blank": ("?version=", b'{"records":[1]}', 400),
    "ack": ("?ack=all", b'{"records":[1]}', 400),
    "version-twice": ("?version=1&version=2", b'{"records":[1]}', 400),
    "twice-with-surrogates": ("", b'{"records":["\\ud800"],"a":1,"records":null}', 400),
}  # fmt: skip


@pytest.mark.parametrize(("query", "body", "status"), REFUSED.values(), ids=REFUSED)
def test_append_that_is_refused_creates_nothing(
    client: httpx.Client, name: str, query: str, body: bytes, status: int
) -> None:
    answer = client.post(path_of(name, query), content=body)
    assert_error(answer, status)
    assert client.head(f"/v1/stream/{name}").status_code == 404


def assert_error(answer: httpx.Response, status: int) -> None:
    """This dialect's form: JSON with an error that says what is wrong."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json()["error"]
    assert answer.json()["code"]
    assert not LEAKS.search(answer.text)


@pytest.mark.parametrize(
    ("header", "status"), [("Content-Encoding: gzip", 415), (f"Content-Length: {1 << 40}", 413)]
)
def test_too_large_and_compressed_bodies_are_refused(
    server: ServerProcess, name: str, header: str, status: int
) -> None:
    with Wire(server.port) as wire:
        wire.send(request("POST", path_of(name), header))
        reply = wire.reply()
        assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
        assert json.loads(reply.body)["error"]


def test_other_methods(client: httpx.Client, records: RecordsClient, name: str) -> None:
    put = client.put(path_of(name), json={})
    assert_error(put, 405)
    assert "/_settings" in put.json()["hint"]
    assert put.headers["allow"] == "GET, HEAD, POST, DELETE, OPTIONS"
    assert_error(client.patch(path_of(name)), 405)
    assert client.options(path_of(name)).status_code == 204
    records.post(name, 1)
    head, got = client.head(path_of(name, "?offset=-")), client.get(path_of(name, "?offset=-"))
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(got.content))


@pytest.mark.parametrize("name", ["", "a/", "/a", "a//b", "a%2fb", "%ff", "..%2fx", "__ds/x"])
def test_names_are_checked_as_in_the_other_dialect(server: ServerProcess, name: str) -> None:
    for method in ("GET", "DELETE"):
        with Wire(server.port) as wire:
            wire.send(request(method, f"/v1/records/{name}"))
            assert wire.reply(method=method).status == 400


# Reads.


@pytest.mark.parametrize(
    "query",
    ["offset=abc", "offset=0", "offset=-1", "limit=0", "limit=-1", "limit=2.5", "limit=x",
     "timeout_sec=x", "timeout_sec=nan", "since=x", "since=", "since=-1h&offset=-",
     "offset=-&offset=-"],
)  # fmt: skip
def test_read_that_is_refused(client: httpx.Client, name: str, query: str) -> None:
    assert_error(client.get(path_of(name, f"?{query}")), 400)


def test_read_without_an_offset_is_of_what_comes_next(records: RecordsClient, name: str) -> None:
    records.post(name, *range(25))
    assert records.get(name) == records.get(name, offset="") == []
    assert records.get(name, timeout_sec=-1) == records.get(name, timeout_sec="") == []
    assert data(records.get(name, offset="-")) == list(range(10))
    assert data(records.get(name, offset="-", limit="")) == list(range(10))
    assert data(records.get(name, offset="-", limit=99_999_999_999)) == list(range(25))
    assert data(records.get(name, offset="-", consumer_id="me", limit=1)) == [0]


def test_read_is_bounded_in_bytes(client: httpx.Client, records: RecordsClient, name: str) -> None:
    for _ in range(5):
        records.post(name, "x" * 3_000_000)
    answer = client.get(path_of(name, "?offset=-&limit=10000"))
    assert 3 <= len(answer.json()["records"]) < 5
    assert len(records.pages(name, 1000)) == 5


def test_waiter_gets_only_what_is_behind_its_offset(
    server: ServerProcess, records: RecordsClient, name: str
) -> None:
    last = records.post(name, "old")[-1]
    with (
        ThreadPoolExecutor(2) as pool,
        RecordsClient(server.url) as far,
        RecordsClient(server.url) as near,
    ):
        never = pool.submit(far.get, name, offset=FAR, timeout_sec=1)
        coming = pool.submit(near.get, name, offset=last, timeout_sec=5)
        time.sleep(0.3)
        records.post(name, "new")
        assert data(coming.result()) == ["new"]
        assert never.result() == []


def test_waiter_goes_on_with_the_successor_of_a_deleted_stream(
    server: ServerProcess, client: httpx.Client, records: RecordsClient, name: str
) -> None:
    last = records.post(name, "old")[-1]
    with ThreadPoolExecutor(1) as pool, RecordsClient(server.url) as reader:
        waiting = pool.submit(reader.get, name, offset=last, timeout_sec=5)
        time.sleep(0.2)
        client.delete(path_of(name))
        time.sleep(0.2)
        assert not waiting.done()
        records.post(name, "new")
        assert data(waiting.result()) == ["new"]


def followers(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    mark = 'bottomless_followers{transport="records"} '
    return sum(float(line.removeprefix(mark)) for line in lines if line.startswith(mark))


def test_client_that_goes_away_frees_its_waiter(
    server: ServerProcess, client: httpx.Client, records: RecordsClient, name: str
) -> None:
    records.post(name, 1)
    before = followers(client)
    with Wire(server.port) as present, Wire(server.port) as absent:
        present.send(request("GET", path_of(name, "?timeout_sec=50")))
        absent.send(request("GET", path_of(f"{name}-absent", "?timeout_sec=50")))
        wait_until(lambda: followers(client) == before + 1, "nobody waits")
    wait_until(lambda: followers(client) == before, "the waiter stays")


def test_timeout_has_a_bound_of_its_own(server: ServerProcess, name: str) -> None:
    """Longer than the server's own patience with long polls, which is for the other dialect."""
    with RecordsClient(server.url) as reader, RecordsClient(server.url) as writer:
        timer = soon(lambda: writer.post(name, 1), LONG_POLL_S + 0.3)
        assert data(reader.get(name, timeout_sec=1e6)) == [1]
        timer.join()


# The bare path.


def test_bare_path_is_off_by_default(client: httpx.Client, name: str) -> None:
    answer = client.post(f"/{name}", json={"records": [1]})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert client.head(f"/v1/stream/{name}").status_code == 404


def test_bare_path_serves_what_is_not_the_servers_own(tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("bare")
    with (
        serving(folder, http__bare_records="true") as server,
        RecordsClient(server.url, prefix="/") as bare,
        connect(server) as client,
    ):
        offsets = bare.post("your-stream", 1, 2)
        assert [offset for offset, _ in bare.get("your-stream", offset="-")] == offsets
        assert client.get("/v1/stream/your-stream").json() == [1, 2]
        assert len(client.get(path_of("your-stream", "?offset=-")).json()["records"]) == 2
        bare.post("a/b ü", 1)
        assert client.get("/v1/stream/a/b%20%C3%BC").json() == [1]
        assert client.delete("/your-stream").json() == {"success": True}
        for own in ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/redoc"):
            assert client.get(own).status_code == 200
            assert not client.get(own).content.startswith(b'{"records"')
            assert client.post(own, json={"records": [1]}).status_code == 405
        assert client.post("/v1/stream/x", json=[1], headers=JSON).status_code == 404
        assert client.get("/v1/nothing").json()["code"] == "not_found"
        for bad in ("/", "/a/", "/%68ealthz", "/%76%31/stream/x"):
            assert_error(client.post(bad, json={"records": [1]}), 400)
