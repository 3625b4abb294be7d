"""One stream, two dialects: what one writes the other reads, byte for byte, and every rule holds in
both. Also what both have besides: since, acks, and what is left after a trim.
"""

from __future__ import annotations

import itertools
import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from engine.storage import LocalStorage
from engine.table.change import commit_change, trim_of
from jobs.common.tables import find_table
from tests.support.load import producer_headers
from tests.support.records import RecordsClient
from tests.support.wire import BYTES, JSON, TEXT, Wire, request, serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.support.server import ServerProcess

LONG_POLL_S = 0.3
_names = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(
        tmp_path_factory.mktemp("shared"),
        http__long_poll_timeout_ms=int(LONG_POLL_S * 1000),
        http__sse_lifetime_ms=1000,
    ) as process:
        yield process


@pytest.fixture
def records(server: ServerProcess) -> Iterator[RecordsClient]:
    with RecordsClient(server.url) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"shared-{next(_names)}"


def stream(name: str, query: str = "") -> str:
    return f"/v1/stream/{name}{query}"


def record(name: str, query: str = "") -> str:
    return f"/v1/records/{name}{query}"


def stamp(seq: int, epoch: int = 0) -> dict[str, str]:
    headers = producer_headers(("p", epoch, seq))
    return {key.replace("_", "-"): value for key, value in headers.items()}


# Bytes.

OWN = ["1.0", "1E400", "-0", "123456789012345678901234567890", '{"b":1,"a": 2,"b":3}', '"é"',
       '"\\u00e9"', '"\\ud800"', "null", "true", "[]", "[1, [2]]", '""']  # fmt: skip


def test_records_of_one_dialect_are_read_in_the_other(client: httpx.Client, name: str) -> None:
    joined = ",".join(OWN)
    posted = client.post(record(name), content=f'{{"records":[{joined}]}}'.encode())
    assert posted.status_code == 200
    assert client.get(stream(name)).text == f"[{joined}]"
    appended = client.post(stream(name), content=f"[{joined}]".encode(), headers=JSON)
    assert appended.status_code == 204
    answer = client.get(record(name, "?offset=-&limit=100")).text
    parts = answer.removeprefix('{"records":[').removesuffix("]}").split(',{"offset":"')
    found = [part.removeprefix('{"offset":"').partition('","data":') for part in parts]
    assert [data.removesuffix("}") if index else data[:-1]
            for index, (_, _, data) in enumerate(found)] == OWN * 2  # fmt: skip
    assert found[-1][0] == appended.headers["stream-next-offset"].replace("_", "")
    assert posted.json()["offsets"] == [offset for offset, _, _ in found[: len(OWN)]]


def test_offsets_mean_the_same_in_both(
    client: httpx.Client, records: RecordsClient, name: str
) -> None:
    offsets = records.post(name, 0, 1, 2, 3)
    spellings = (offsets[1], f"{offsets[1][:16]}_{offsets[1][16:]}")
    for offset in spellings:
        assert client.get(stream(name, f"?offset={offset}")).json() == [2, 3]
        assert [json.loads(data) for _, data in records.get(name, offset=offset)] == [2, 3]
    tail = client.head(stream(name)).headers["stream-next-offset"]
    assert tail.replace("_", "") == offsets[-1]
    assert records.get(name, offset=tail) == []


def test_text_and_bytes_are_shown_and_not_taken(client: httpx.Client, name: str) -> None:
    for kind, body, shown in (
        (TEXT, 'é "x"\n\0'.encode(), {"data": 'é "x"\n\0'}),
        (BYTES, b"\0\xff", {"data": "AP8=", "encoding": "base64"}),
    ):
        one = f"{name}-{kind['content-type'].partition('/')[0]}"
        client.put(stream(one), headers=kind)
        for _ in range(2):
            client.post(stream(one), headers=kind, content=body)
        found = client.get(record(one, "?offset=-")).json()["records"]
        assert [{key: item[key] for key in item if key != "offset"} for item in found] == [
            shown
        ] * 2
        refused = client.post(record(one), json={"records": [1]})
        assert (refused.status_code, refused.json()["code"]) == (409, "content_type_mismatch")
        assert refused.json()["error"]


# Rules.


def test_producers_are_the_same_in_both(client: httpx.Client, name: str) -> None:
    body = {"records": [1, 2]}
    first = client.post(record(name), json=body, headers=stamp(0))
    assert (first.status_code, len(first.json()["offsets"])) == (200, 2)
    assert (first.headers["producer-epoch"], first.headers["producer-seq"]) == ("0", "0")
    again = client.post(record(name), json=body, headers=stamp(0))
    assert (again.status_code, again.json()) == (200, {"offsets": [], "duplicate": True})
    assert client.post(stream(name), content=b"[1,2]", headers=JSON | stamp(0)).status_code == 204
    assert client.post(stream(name), content=b"[3]", headers=JSON | stamp(1)).status_code == 200
    assert client.post(record(name), json=body, headers=stamp(1)).json()["duplicate"]
    gap = client.post(record(name), json=body, headers=stamp(7))
    assert (gap.status_code, gap.json()["code"]) == (409, "sequence_gap")
    assert gap.headers["producer-expected-seq"] == "2"
    client.post(record(name), json={"records": [4]}, headers=stamp(0, epoch=1))
    stale = client.post(stream(name), content=b"[5]", headers=JSON | stamp(2))
    assert stale.status_code == 403
    assert client.get(stream(name)).json() == [1, 2, 3, 4]
    empty = client.post(record(name), json={"records": []}, headers=stamp(1, epoch=1))
    assert empty.status_code == 400


@pytest.mark.parametrize("closing", ["stream", "records"])
def test_closed_is_closed_in_both(client: httpx.Client, name: str, closing: str) -> None:
    client.post(record(name), json={"records": [1]})
    close = {"stream-closed": "true"}
    if closing == "stream":
        assert client.post(stream(name), headers=close).status_code == 204
    else:
        closed = client.post(record(name), json={"records": []}, headers=close)
        assert (closed.status_code, closed.headers["stream-closed"]) == (200, "true")
    for body in ({"records": [2]}, {"records": [3]}):
        refused = client.post(record(name), json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "stream_closed")
    raised = client.post(record(name, "?version=3"), json={"records": []})
    assert (raised.status_code, raised.json()["code"]) == (409, "stream_closed")
    begun = time.monotonic()
    end = client.get(record(name, "?timeout_sec=5"))
    assert (end.json(), end.headers["stream-closed"]) == ({"records": []}, "true")
    assert time.monotonic() - begun < 2, "nobody waits at the end of a closed stream"
    assert client.get(stream(name)).json() == [1]


def test_ttl_ends_a_stream_for_both(client: httpx.Client, name: str) -> None:
    client.put(stream(name), headers=JSON | {"stream-ttl": "1"})
    [first] = client.post(record(name), json={"records": [1]}).json()["offsets"]
    wait_until(lambda: client.head(stream(name)).status_code == 404, "it does not expire")
    assert client.get(record(name, "?offset=-")).json() == {"records": []}
    [second] = client.post(record(name), json={"records": [2]}).json()["offsets"]
    assert second > first
    assert client.get(stream(name)).json() == [2]
    assert "stream-ttl" not in client.head(stream(name)).headers


def test_version_holds_while_the_other_dialect_writes(client: httpx.Client, name: str) -> None:
    client.post(record(name, "?version=3"), json={"records": [1]})
    assert client.post(stream(name), content=b"[2]", headers=JSON).status_code == 204
    assert client.post(record(name, "?version=2"), json={"records": [3]}).status_code == 409


# Since.


def test_since_means_the_same_everywhere(
    client: httpx.Client, records: RecordsClient, name: str
) -> None:
    records.post(name, "old")
    time.sleep(0.02)
    [offset] = records.post(name, "first")
    records.post(name, "second")
    epoch_ms = int(offset[:16])
    moment = datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds")
    zulu = moment.replace("+00:00", "Z")
    for query in (
        f"since={zulu}",
        f"since={moment.replace('+', '%2B')}",
        f"offset={epoch_ms:016d}{0:016d}",
    ):
        shown = [item["data"] for item in client.get(record(name, f"?{query}")).json()["records"]]
        assert shown == ["first", "second"], query
        catch_up = client.get(stream(name, f"?{query}"))
        assert catch_up.json() == ["first", "second"]
        assert client.get(stream(name, f"?{query}&live=long-poll")).json() == ["first", "second"]
        assert '["first","second"]' in client.get(stream(name, f"?{query}&live=sse")).text
        if query.startswith("since"):
            assert catch_up.headers["cache-control"] == "no-store"
    for query in ("since=-1h", "since=2020-01-01", "since=1970-01-01T00:00:00Z"):
        assert len(records.get(name, since=query.partition("=")[2])) == 3
        assert client.get(stream(name, f"?{query}")).json() == ["old", "first", "second"]
    assert client.get(stream(name, "?since=2100-01-01")).json() == []
    assert records.get(name, since="now") == records.get(f"{name}-none", since="-1h") == []


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
@pytest.mark.parametrize(
    "since", ["x", "", "-1", "-1y", "2026-13-01", "-1h&offset=-1", "now&since=now"]
)
def test_since_that_is_unclear_is_refused(
    client: httpx.Client, name: str, since: str, live: str
) -> None:
    client.put(stream(name), headers=JSON)
    assert client.get(stream(name, f"?since={since}{live}")).status_code == 400


def test_since_waits_for_what_comes(
    server: ServerProcess, records: RecordsClient, name: str
) -> None:
    with Wire(server.port) as reader:
        reader.send(request("GET", record(name, "?since=now&timeout_sec=5")))
        time.sleep(0.1)
        [offset] = records.post(name, "new")
        found = json.loads(reader.reply(method="GET").body)["records"]
    assert found == [{"offset": offset, "data": "new"}]


def test_what_was_trimmed_is_gone_in_both(
    server: ServerProcess, client: httpx.Client, records: RecordsClient, name: str
) -> None:
    offsets = [records.post(name, number, ack="table")[0] for number in range(4)]
    table = find_table(LocalStorage(server.root), name)
    doomed = sorted(table.state.files.values(), key=lambda file: file.first)[:3]
    change = trim_of(table.state, doomed)
    now_ms = int(time.time() * 1000)
    commit_change(table.storage, table.folder, table.state, change, now_ms=now_ms)

    def answer() -> httpx.Response:
        return client.get(record(name, f"?offset={offsets[0]}"))

    wait_until(lambda: answer().status_code == 410, "the trim does not show")
    gone = answer().json()
    assert (gone["code"], bool(gone["error"])) == ("offset_trimmed", True)
    assert answer().headers["stream-earliest-offset"].replace("_", "") == offsets[2]
    assert [json.loads(data) for _, data in records.get(name, offset="-")] == [3]
    # A moment before what is left is no offset of anybody: it begins with the oldest there is.
    assert [json.loads(data) for _, data in records.get(name, since="-1h")] == [3]
    for live in ("", "&live=long-poll"):
        assert client.get(stream(name, f"?since=-1h{live}")).json() == [3]
    assert "[3]" in client.get(stream(name, "?since=-1h&live=sse")).text


# Acks.


@pytest.mark.parametrize("ack", ["wal", "table"])
@pytest.mark.parametrize("place", ["query", "header"])
def test_ack_is_given_as_asked(client: httpx.Client, name: str, ack: str, place: str) -> None:
    query = f"?ack={ack}" if place == "query" else ""
    headers = {"stream-ack": ack} if place == "header" else {}
    posted = client.post(record(name, query), json={"records": [1]}, headers=headers)
    assert (posted.status_code, posted.headers["stream-ack"]) == (200, ack)
    posted = client.post(stream(name, query), content=b"[2]", headers=JSON | headers)
    assert (posted.status_code, posted.headers["stream-ack"]) == (204, ack)
    produced = {**JSON, **headers, **stamp(0)}
    for status in (200, 204):
        again = client.post(stream(name, query), content=b"[3]", headers=produced)
        assert (again.status_code, again.headers["stream-ack"]) == (status, ack)


def test_ack_is_told_without_being_asked_for(client: httpx.Client, name: str) -> None:
    assert client.post(record(name), json={"records": [1]}).headers["stream-ack"] == "wal"
    plain = client.post(stream(name), content=b"[2]", headers=JSON)
    assert plain.headers["stream-ack"] == "wal"
    assert "Stream-Ack" in plain.headers["access-control-expose-headers"]


@pytest.mark.parametrize("ack", ["", "disk", "TABLE", "wal,table"])
def test_ack_of_no_kind_is_refused(client: httpx.Client, name: str, ack: str) -> None:
    client.put(stream(name), headers=JSON)
    for headers, query in (({"stream-ack": ack}, ""), ({}, f"?ack={ack}")):
        assert (
            client.post(record(name, query), json={"records": [1]}, headers=headers).status_code
            == 400
        )
        appended = client.post(stream(name, query), content=b"[1]", headers=JSON | headers)
        assert appended.status_code == 400
    both = client.post(
        stream(name, "?ack=wal"), content=b"[1]", headers=JSON | {"stream-ack": "table"}
    )
    assert both.status_code == 400
    assert client.get(stream(name)).json() == []


def test_openapi_tells_of_the_dialect(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"get", "post", "delete"} <= paths["/v1/records/{name}"].keys()
