"""What a killed server finds damaged: a torn tail is cut, all else is told, nothing is lost.

A start costs seconds, so the folder of a killed server is made once and copied for each damage.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from engine.format.frame import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    decode_frames,
    encode_segment_header,
)
from tests.support.load import Client, wait_for
from tests.support.server import EXECUTABLE, HOST, ServerProcess, child_environment, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Nothing is committed while a test that looks at the WAL runs, nor after each append of the others.
NEVER = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000"}
AT_ONCE = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "10"}
REFUSAL_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """The folder of a killed server with everything in one WAL segment, and its records."""
    root = tmp_path_factory.mktemp("killed") / "data"
    with ServerProcess.start(root, env=NEVER) as server:
        records = fill(server)
        server.kill9()
    return root, records


@pytest.fixture(scope="module")
def killed_after_commits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """As ``killed``, but every append is a commit of its own, none of them known to be durable."""
    root = tmp_path_factory.mktemp("commits") / "data"
    with ServerProcess.start(root, env=AT_ONCE) as server:
        records = fill(server, 1)
        for number in range(5):
            version = version_of(server)
            with Client(server.url) as client:
                reply = client.produce("s", str(number).encode(), ("p", 0, number))
                assert reply.status == 200
            wait_for(lambda version=version: version_of(server) > version, "a commit")
            records.append(str(number).encode())
        server.kill9()
    return root, records


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that is not started yet; what it finds is the test's business."""
    with ServerProcess(tmp_path / "data", env=NEVER) as server:
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


def refusal(server: ServerProcess) -> str:
    """What a server says that must not start; it ends with a code other than 0."""
    with pytest.raises(AssertionError, match=r"the server ended with code [1-9]") as ended:
        server.restart()
    return str(ended.value)


def table_data(server: ServerProcess, name: str = "s") -> list[bytes]:
    """The rows of the Delta table in offset order."""
    table = DeltaTable(server.root / name).to_pyarrow_table(columns=["offset", "data"])
    return [text.encode() for text in table.sort_by("offset").column("data").to_pylist()]


def version_of(server: ServerProcess, name: str = "s") -> int:
    """The newest version in the log, -1 without a table."""
    entries = (server.root / name / "_delta_log").glob("[0-9]*.json")
    return max((int(entry.stem) for entry in entries), default=-1)


@pytest.mark.parametrize("left", ["one byte less", "half a header", "nothing"])
def test_recovery_cuts_only_the_torn_last_frame(
    server: ServerProcess, killed: tuple[Path, list[bytes]], left: str
) -> None:
    root, records = killed
    shutil.copytree(root, server.root)
    segment = segment_of(server)
    begin, end = frame_ends(segment)[-2:]
    kept = {
        "one byte less": end - begin - 1,
        "half a header": FRAME_HEADER_BYTES // 2,
        "nothing": 0,
    }[left]
    segment.write_bytes(segment.read_bytes()[: begin + kept])
    check_goes_on(server, records[:-2])


def check_goes_on(server: ServerProcess, records: list[bytes]) -> None:
    """It starts with these records, takes one more, and keeps all of them over a crash."""
    server.restart()
    with Client(server.url) as client:
        assert client.records("s") == records
        assert client.append("s", b'"after"').status == 204
    server.kill9()
    server.restart()
    with Client(server.url) as client:
        assert client.records("s") == [*records, b'"after"']


def test_recovery_cuts_a_tail_of_zeros(
    server: ServerProcess, killed: tuple[Path, list[bytes]]
) -> None:
    """What a power cut leaves where the size reached the disk before the data."""
    root, records = killed
    shutil.copytree(root, server.root)
    with segment_of(server).open("ab") as file:
        file.write(bytes(5000))
    check_goes_on(server, records)


# Frame 0 creates the stream, 1 to 5 append. The last one cannot be told from a torn one.
@pytest.mark.parametrize(
    ("frame", "place"), [(0, "payload"), (1, "length"), (3, "checksum"), (4, "lsn")]
)
def test_recovery_refuses_a_flipped_bit_in_the_middle(
    server: ServerProcess, killed: tuple[Path, list[bytes]], frame: int, place: str
) -> None:
    shutil.copytree(killed[0], server.root)
    segment = segment_of(server)
    begin, end = frame_ends(segment)[frame : frame + 2]
    position = begin + {"length": 5, "checksum": 9, "lsn": 16, "payload": end - begin - 1}[place]
    data = bytearray(segment.read_bytes())
    data[position] ^= 4
    segment.write_bytes(data)
    output = refusal(server)
    assert f"{segment.name} is damaged at byte {begin}" in output
    assert "hint" in output
    assert "Traceback" not in output
    assert segment.read_bytes() == data, "the evidence was touched"


@pytest.mark.parametrize("size", [SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES - 1, 0])
def test_recovery_takes_a_new_segment_that_holds_no_frame(
    server: ServerProcess, killed: tuple[Path, list[bytes]], size: int
) -> None:
    root, records = killed
    shutil.copytree(root, server.root)
    segment = segment_of(server)
    next_lsn = int(segment.stem) + len(frame_ends(segment)) - 1
    header = encode_segment_header(next_lsn)
    (segment.parent / f"{next_lsn:020d}.wal").write_bytes(header[:size])
    check_goes_on(server, records)


def test_recovery_refuses_a_missing_segment(server: ServerProcess) -> None:
    server.env = {**NEVER, "BOTTOMLESS_WAL__SEGMENT_BYTES": "4096"}
    server.restart()
    with Client(server.url) as client:
        client.create("s")
        for number in range(4):
            assert client.append("s", f'"{number}{"x" * 5000}"'.encode()).status == 204
    server.kill9()
    segments = sorted((server.root / "_wal").glob("*.wal"))
    assert len(segments) >= 3
    segments[1].unlink()
    output = refusal(server)
    assert "segment is missing" in output
    assert "Traceback" not in output


DAMAGES = ["entry empty", "entry cut", "entry gone", "file empty", "file cut", "file gone", "zeros"]


@pytest.mark.parametrize(
    ("damage", "depth"), [*((damage, 1) for damage in DAMAGES), ("entry empty", 3), ("zeros", 3)]
)
def test_recovery_commits_again_what_a_power_cut_took_from_the_table(
    server: ServerProcess,
    killed_after_commits: tuple[Path, list[bytes]],
    damage: str,
    depth: int,
) -> None:
    """F1: commits above the durable mark that came back empty, torn or without their file."""
    root, records = killed_after_commits
    shutil.copytree(root, server.root)
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
    server.restart()
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
    assert second.returncode > 0
    assert "another server uses the data folder" in second.stdout + second.stderr
    assert "Traceback" not in second.stdout + second.stderr
    # The first one did not notice.
    with Client(server.url) as client:
        assert client.records("s") == records
        assert client.append("s", b"1").status == 204
