"""After a clean stop the tables are everything: without _wal and _lock nothing is missing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.load import Client, wait_for
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"
SHOWN = ("content-type", "stream-next-offset", "stream-ttl", "stream-expires-at", "stream-closed")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess.start(tmp_path / "data") as server:
        yield server


def rebuild(server: ServerProcess) -> None:
    """Stop cleanly, delete everything local but the tables, start again."""
    assert server.terminate() == 0, server.log_tail()
    assert not list((server.root / "_wal").glob("*.wal")), "a clean stop leaves no segments"
    shutil.rmtree(server.root / "_wal")
    (server.root / "_lock").unlink()
    server.restart()


def shown(server: ServerProcess, names: list[str]) -> dict[str, list[object]]:
    """What HEAD and GET say about streams."""
    found: dict[str, list[object]] = {}
    with Client(server.url) as client:
        for name in names:
            head = client.call("HEAD", name)
            body = client.read(name).body if head.status == 200 else b""
            found[name] = [head.status, *(head.headers[key] for key in SHOWN), body]
    return found


def check_kept(server: ServerProcess, names: list[str]) -> None:
    """The same before and after."""
    before = shown(server, names)
    rebuild(server)
    assert shown(server, names) == before


def test_rebuild_keeps_streams_with_their_settings(server: ServerProcess) -> None:
    with Client(server.url) as client:
        client.create("json", b'[1.0,{"b":1,"a":123456789012345678901234567890}]')
        client.create("text", "häß\n".encode(), TEXT)
        client.create("shop/bestellungen äöü/%&'", bytes(range(256)), BYTES)
        client.create("ttl", b"1", stream_ttl="3600")
        client.create("expires", b"1", stream_expires_at="2099-01-31T12:00:00+01:00")
        client.create("closed", b"[1,2]", stream_closed="true")
        for name in ("text", "json"):
            client.append(name, b"7", TEXT if name == "text" else "application/json")
    check_kept(server, ["json", "text", "shop/bestellungen äöü/%&'", "ttl", "expires", "closed"])


def test_rebuild_keeps_streams_without_records(server: ServerProcess) -> None:
    with Client(server.url) as client:
        client.create("empty")
        client.create("empty-ttl", stream_ttl="86400")
        client.create("empty-closed", stream_closed="true")
        client.create("empty-array", b"[]")
    check_kept(server, ["empty", "empty-ttl", "empty-closed", "empty-array"])


def test_rebuild_keeps_producers(server: ServerProcess) -> None:
    with Client(server.url) as client:
        client.create("s")
        for seq in range(3):
            assert client.produce("s", b"[1,2]", ("p", 4, seq)).status == 200
        assert client.produce("s", b"3", ("odd:epoch :seq", 0, 0)).status == 200
        before = client.records("s")
    rebuild(server)
    with Client(server.url) as client:
        for producer, seq in (
            (("p", 4, 2), "2"),
            (("p", 4, 0), "2"),
            (("odd:epoch :seq", 0, 0), "0"),
        ):
            repeat = client.produce("s", b"99", producer)
            assert (repeat.status, repeat.headers["producer-seq"]) == (204, seq)
        gap = client.produce("s", b"99", ("p", 4, 4))
        assert (gap.status, gap.headers["producer-expected-seq"]) == (409, "3")
        stale = client.produce("s", b"99", ("p", 3, 0))
        assert (stale.status, stale.headers["producer-epoch"]) == (403, "4")
        assert client.records("s") == before
        assert client.produce("s", b"4", ("p", 4, 3)).status == 200
        assert client.records("s") == [*before, b"4"]


def test_rebuild_keeps_who_closed_a_stream(server: ServerProcess) -> None:
    with Client(server.url) as client:
        client.create("s")
        closing = client.produce("s", b"1", ("p", 0, 0), stream_closed="true")
        assert (closing.status, closing.is_closed) == (200, True)
    rebuild(server)
    with Client(server.url) as client:
        repeat = client.produce("s", b"1", ("p", 0, 0), stream_closed="true")
        assert (repeat.status, repeat.is_closed, repeat.tail) == (204, True, closing.tail)
        other = client.produce("s", b"2", ("p", 0, 1))
        assert (other.status, other.is_closed, other.tail) == (409, True, closing.tail)
        assert client.append("s", b"2").status == 409
        assert client.records("s") == [b"1"]


def test_rebuild_keeps_stream_seq(server: ServerProcess) -> None:
    with Client(server.url) as client:
        client.create("s")
        assert client.append("s", b"1", stream_seq="b").status == 204
    rebuild(server)
    with Client(server.url) as client:
        for late in ("a", "b", "Z"):
            assert client.append("s", b"2", stream_seq=late).status == 409, late
        assert client.append("s", b"2", stream_seq="ba").status == 204
        assert client.records("s") == [b"1", b"2"]


def test_rebuild_gives_greater_offsets_than_before(server: ServerProcess) -> None:
    with Client(server.url) as client:
        tails = {name: client.create(name).tail for name in ("full", "empty", "deleted")}
        tails["full"] = client.append("full", b"[1,2,3]").tail
        tails["deleted"] = client.append("deleted", b"[1,2,3]").tail
        assert client.call("DELETE", "deleted").status == 204
    rebuild(server)
    with Client(server.url) as client:
        assert client.call("HEAD", "deleted").status == 404
        assert client.create("deleted").tail > tails["deleted"]
        assert client.records("deleted") == []
        for name in tails:
            assert client.append(name, b"4").tail > tails[name], name
        assert client.records("full", tails["full"]) == [b"4"]
        assert client.records("empty", tails["empty"]) == [b"4"]


def test_rebuild_keeps_forks(server: ServerProcess) -> None:
    with Client(server.url) as client:
        client.create("source")
        middle = client.append("source", b"[1,2]").tail
        client.append("source", b"[3,4]")
        of_source = {"stream_forked_from": "/v1/stream/source"}
        client.create("fork", b"5", stream_fork_offset=middle, **of_source)
        client.create("empty-fork", stream_fork_offset=middle, **of_source)
        client.create("sub", stream_fork_offset=middle, stream_fork_sub_offset="1", **of_source)
        client.create("deep", b"6", stream_forked_from="/v1/stream/fork")
        assert client.records("sub") == [b"1", b"2", b"3"]
    names = ["source", "fork", "empty-fork", "sub", "deep"]
    check_kept(server, names)
    with Client(server.url) as client:
        client.append("source", b'"later"')
        client.append("fork", b"7")
        assert client.records("fork") == [b"1", b"2", b"5", b"7"]
        assert client.records("deep") == [b"1", b"2", b"5", b"6"]
        repeat = client.call("PUT", "fork", stream_fork_offset=middle, **of_source)
        assert repeat.status == 200, repeat.body


@pytest.mark.parametrize("is_open", [True, False], ids=["before", "after"])
def test_rebuild_keeps_a_deleted_source_as_long_as_forks_need_it(
    server: ServerProcess, is_open: bool
) -> None:
    """Deleted before the rebuild, or (with the fork found again) after it."""
    with Client(server.url) as client:
        client.create("source", b"[1,2]")
        client.create("fork", b"3", stream_forked_from="/v1/stream/source")
        if is_open:
            assert client.call("DELETE", "source").status == 204
    rebuild(server)
    with Client(server.url) as client:
        if not is_open:
            assert client.call("DELETE", "source").status == 204
        for method in ("HEAD", "GET", "DELETE"):
            assert client.call(method, "source").status == 410, method
        assert client.append("source", b"9").status == 410
        put = client.call("PUT", "source", content_type="application/json")
        assert put.status == 409
        assert client.records("fork") == [b"1", b"2", b"3"]
        # The last fork takes its source with it.
        assert client.call("DELETE", "fork").status == 204
        wait_for(lambda: client.call("HEAD", "source").status == 404)
        client.create("source", b'"new"')
        assert client.records("source") == [b'"new"']
    rebuild(server)
    with Client(server.url) as client:
        assert client.records("source") == [b'"new"']
        assert client.call("HEAD", "fork").status == 404


def test_rebuild_twice_changes_nothing(server: ServerProcess) -> None:
    with Client(server.url) as client:
        client.create("s", b"[1,2]")
        client.create("t", stream_ttl="3600")
        client.produce("s", b"3", ("p", 0, 0))
    for _ in range(2):
        check_kept(server, ["s", "t"])
    with Client(server.url) as client:
        assert client.produce("s", b"3", ("p", 0, 0)).status == 204
