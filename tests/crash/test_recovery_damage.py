"""What a killed server finds damaged: torn tails are cut, everything else is told, nothing is lost."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from engine.format.frame import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, decode_frames
from tests.support.load import Client, wait_for
from tests.support.server import EXECUTABLE, HOST, ServerProcess, child_environment, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Nothing is committed while a test that looks at the WAL runs, nor after each append of the others.
NEVER = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000"}
AT_ONCE = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "10"}
REFUSAL_TIMEOUT_S = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that keeps everything in the WAL."""
    with ServerProcess.start(tmp_path / "data", env=NEVER) as server:
        yield server


def segment_of(server: ServerProcess) -> Path:
    return sorted((server.root / "_wal").glob("*.wal"))[-1]


def frame_ends(segment: Path) -> list[int]:
    """Where the frames of a segment end; the first one begins after the header."""
    first_lsn = int(segment.stem)
    data = segment.read_bytes()
    frames = decode_frames(data, first_lsn=first_lsn, path=segment.name)
    return [SEGMENT_HEADER_BYTES, *(frame.end for frame in frames)]


def fill(server: ServerProcess, count: int = 5) -> list[bytes]:
    """A stream with that many appends of two records, one frame each."""
    records = []
    with Client(server.url) as client:
        client.create("s")
        for number in range(count):
            pair = [f'{{"n":{number},"i":{index}}}'.encode() for index in range(2)]
            assert client.append("s", b"[" + b",".join(pair) + b"]").status == 204
            records += pair
    return records


def refusal(server: ServerProcess) -> tuple[int, str]:
    """Exit code and output of a server that must not start."""
    begun = server.log_path.stat().st_size
    server.spawn()
    child = server._running()
    try:
        code = child.wait(REFUSAL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it started: {server.log_tail()}")
    return code, server.log_path.read_bytes()[begun:].decode()


def table_data(server: ServerProcess, name: str = "s") -> list[bytes]:
    """The rows of the Delta table in offset order."""
    table = DeltaTable(server.root / name).to_pyarrow_table(columns=["offset", "data"])
    return [text.encode() for text in table.sort_by("offset").column("data").to_pylist()]


def version_of(server: ServerProcess, name: str = "s") -> int:
    """The newest version in the log, -1 without a table."""
    entries = (server.root / name / "_delta_log").glob("[0-9]*.json")
    return max((int(entry.stem) for entry in entries), default=-1)


@pytest.mark.parametrize("left", ["one byte less", "half", "header only", "half a header", "none"])
def test_recovery_cuts_only_the_torn_last_frame(server: ServerProcess, left: str) -> None:
    records = fill(server)
    server.kill9()
    segment = segment_of(server)
    begin, end = frame_ends(segment)[-2:]
    keep = {
        "one byte less": end - 1,
        "half": (begin + end) // 2,
        "header only": begin + FRAME_HEADER_BYTES,
        "half a header": begin + FRAME_HEADER_BYTES // 2,
        "none": begin,
    }[left]
    segment.write_bytes(segment.read_bytes()[:keep])
    server.restart()
    with Client(server.url) as client:
        assert client.records("s") == records[:-2]
        assert client.append("s", b'"after"').status == 204
    server.kill9()
    server.restart()
    with Client(server.url) as client:
        assert client.records("s") == [*records[:-2], b'"after"']


def test_recovery_cuts_a_tail_of_zeros(server: ServerProcess) -> None:
    """What a power cut leaves where the size reached the disk before the data."""
    records = fill(server)
    server.kill9()
    segment = segment_of(server)
    with segment.open("ab") as file:
        file.write(bytes(5000))
    server.restart()
    with Client(server.url) as client:
        assert client.records("s") == records


# The frames: 0 creates the stream, 1 to 5 append. The last one cannot be told from a torn one.
@pytest.mark.parametrize("frame", [0, 1, 3, 4])
@pytest.mark.parametrize("place", ["length", "checksum", "lsn", "payload"])
def test_recovery_refuses_a_flipped_bit_in_the_middle(
    server: ServerProcess, frame: int, place: str
) -> None:
    fill(server)
    server.kill9()
    segment = segment_of(server)
    begin, end = frame_ends(segment)[frame : frame + 2]
    position = begin + {"length": 5, "checksum": 9, "lsn": 16, "payload": end - begin - 1}[place]
    data = bytearray(segment.read_bytes())
    data[position] ^= 4
    segment.write_bytes(data)
    code, output = refusal(server)
    assert code not in (0, None)
    assert f"{segment.name} is damaged at byte {begin}" in output
    assert "hint" in output
    assert "Traceback" not in output
    assert segment.read_bytes() == data, "the evidence was touched"


@pytest.mark.parametrize("size", [SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES - 1, 0])
def test_recovery_takes_a_new_segment_that_holds_no_frame(server: ServerProcess, size: int) -> None:
    records = fill(server)
    # A start begins a new segment with its first append.
    server.kill9()
    server.restart()
    with Client(server.url) as client:
        assert client.append("s", b'"cut"').status == 204
    server.kill9()
    assert len(list((server.root / "_wal").glob("*.wal"))) == 2
    segment = segment_of(server)
    segment.write_bytes(segment.read_bytes()[:size])
    server.restart()
    with Client(server.url) as client:
        assert client.records("s") == records
        assert client.append("s", b'"after"').status == 204
    server.kill9()
    server.restart()
    with Client(server.url) as client:
        assert client.records("s") == [*records, b'"after"']


def test_recovery_refuses_a_missing_segment(server: ServerProcess) -> None:
    for number in range(3):
        with Client(server.url) as client:
            client.create(f"s{number}", b"[1,2]")
        server.kill9()
        if number < 2:
            server.restart()
    segments = sorted((server.root / "_wal").glob("*.wal"))
    assert len(segments) == 3
    segments[1].unlink()
    code, output = refusal(server)
    assert code not in (0, None)
    assert "segment is missing" in output
    assert "Traceback" not in output


DAMAGES = ["entry empty", "entry cut", "entry gone", "file empty", "file cut", "file gone", "zeros"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("depth", [1, 3])
def test_recovery_commits_again_what_a_power_cut_took_from_the_table(
    tmp_path: Path, damage: str, depth: int
) -> None:
    """F1: commits above the durable mark that came back empty, torn or without their file."""
    with ServerProcess.start(tmp_path / "data", env=AT_ONCE) as server:
        records = fill(server, 1)
        for number in range(5):
            # One commit for each append, so that there are versions to damage.
            version = version_of(server)
            with Client(server.url) as client:
                reply = client.produce("s", str(number).encode(), ("p", 0, number))
                assert reply.status == 200
            wait_for(lambda version=version: version_of(server) > version, "a commit")
            records.append(str(number).encode())
        server.kill9()
        hurt(server.root / "s", damage, depth)
        server.restart()
        with Client(server.url) as client:
            assert client.records("s") == records
            assert client.produce("s", b"4", ("p", 0, 4)).status == 204
            assert client.produce("s", b"5", ("p", 0, 5)).status == 200
        assert server.terminate() == 0
        assert table_data(server) == [*records, b"5"]


def hurt(table: Path, damage: str, depth: int) -> None:
    """Damage the ``depth`` newest commits."""
    entries = sorted((table / "_delta_log").glob("[0-9]*.json"))[-depth:]
    files = sorted(table.glob("*/*.parquet"))[-depth:]
    what, how = damage.split() if " " in damage else ("both", damage)
    for path in [*(entries if what != "file" else []), *(files if what != "entry" else [])]:
        data = path.read_bytes()
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes({"empty": b"", "cut": data[:-7], "zeros": bytes(len(data))}[how])


def test_server_refuses_a_root_that_another_one_uses(server: ServerProcess) -> None:
    records = fill(server)
    command = [str(EXECUTABLE), "serve", "--root", str(server.root), "--host", HOST]
    second = subprocess.run(
        [*command, "--port", str(free_port())],
        capture_output=True,
        text=True,
        env=child_environment(NEVER),
        timeout=REFUSAL_TIMEOUT_S,
        check=False,
    )
    assert second.returncode not in (0, None)
    assert "another server uses the data folder" in second.stdout + second.stderr
    assert "Traceback" not in second.stdout + second.stderr
    # The first one did not notice.
    with Client(server.url) as client:
        assert client.records("s") == records
        assert client.append("s", b"1").status == 204
