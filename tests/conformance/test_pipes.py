"""`bottomless flux` and `tap`: named pipes that are streams, with programs that know files only."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Self

import msgspec
import pytest

import bottomless
from bottomless.commands.pipes import app
from tests.support.server import EXECUTABLE, ServerProcess, child_environment
from tests.support.warm import warm_command
from tests.support.wire import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

WAIT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("pipes")) as process:
        yield process


@pytest.fixture(scope="module", autouse=True)
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that start at once."""
    with warm_command(tmp_path_factory.mktemp("warm")) as folder:
        Pipe.program = folder / "bottomless"
        yield
        Pipe.program = EXECUTABLE


@pytest.fixture
def client(server: ServerProcess) -> Iterator[bottomless.Client]:
    with bottomless.connect(server.url) as client:
        yield client


class Pipe:
    """A running flux or tap; leaving it asks it to stop, and it must end well and be gone."""

    program = EXECUTABLE

    def __init__(self, verb: str, path: Path, stream: str, url: str, *more: str) -> None:
        self.path = path
        self.code = 0
        self.said = b""
        self.child = subprocess.Popen(
            [self.program, verb, path, "--stream", stream, "--server", url, *more],
            stderr=subprocess.PIPE,
            env=child_environment({}),
        )
        deadline = time.monotonic() + WAIT_S
        while not path.exists() and self.child.poll() is None:
            assert time.monotonic() < deadline, "no pipe"
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.child.kill()
        said = self.stop()
        assert error is not None or self.code == 0, said
        assert error is not None or not self.path.exists()

    def stop(self, number: int = signal.SIGTERM) -> bytes:
        """What it said."""
        if self.child.returncode is None:
            self.child.send_signal(number)
            _, self.said = self.child.communicate(timeout=WAIT_S)
            self.code = self.child.returncode
        return self.said


def lines_of(count: int) -> bytes:
    return b"".join(
        b'{"id": %d,  "big": %d, "s": "\xc3\xa9"}\n' % (n, 2**70 + n) for n in range(count)
    )


def read_some(path: Path, size: int) -> bytes:
    """Open it, read so much, close it."""
    with path.open("rb", buffering=0) as file:
        found = b""
        while len(found) < size and (data := file.read(size - len(found))):
            found += data
        return found


def test_pipes_round_trip_of_100_000_lines(
    client: bottomless.Client, server: ServerProcess, tmp_path: Path
) -> None:
    text = lines_of(100_000)
    client.create("round")
    source = Pipe("flux", tmp_path / "in", "round", server.url)
    target = Pipe("tap", tmp_path / "out", "round", server.url)
    with source, target:
        begun_s = time.monotonic()
        writing = threading.Thread(target=(tmp_path / "in").write_bytes, args=(text,))
        writing.start()
        found = read_some(tmp_path / "out", len(text))
        took_s = time.monotonic() - begun_s
        writing.join()
    assert found == text
    assert took_s < 10
    assert source.said.endswith(b"100,000 records stored in round\n")


def test_flux_takes_writers_one_after_another_and_at_once(
    client: bottomless.Client, server: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "in"
    with Pipe("flux", path, "writers", server.url):
        assert stat.S_ISFIFO(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for number in range(20):
            path.write_bytes(b"%d\n" % number)
        script = 'for n in $(seq 50); do echo "[$0, $n]" > "$1"; done'
        children = [subprocess.Popen(["bash", "-c", script, str(n), path]) for n in range(3)]
        assert [child.wait(WAIT_S) for child in children] == [0, 0, 0]
        # The last one leaves out its line end.
        path.write_bytes(b'"end"')
    values = [record.value for record in client.read("writers")]
    assert [value for value in values if isinstance(value, int)] == list(range(20))
    for writer in range(3):
        assert [v[1] for v in values if isinstance(v, list) and v[0] == writer] == [*range(1, 51)]
    assert (len(values), values[-1]) == (171, "end")


def test_flux_stores_what_is_in_the_pipe_when_it_is_told_to_stop(
    client: bottomless.Client,
    server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer is not at its end, and wrote while the flux could not run."""
    path = tmp_path / "in"
    # Its own process, which can be stopped.
    monkeypatch.setattr(Pipe, "program", EXECUTABLE)
    flux = Pipe("flux", path, "left", server.url)
    with path.open("wb", buffering=0) as file:
        file.write(b"1\n")
        flux.child.send_signal(signal.SIGSTOP)
        file.write(b"2\n" * 5000)
        flux.child.send_signal(signal.SIGTERM)
        flux.child.send_signal(signal.SIGCONT)
        said = flux.stop(signal.SIGCONT)
    assert (flux.code, path.exists()) == (0, False), said
    assert len(client.read("left")) == 5001


def test_flux_leaves_out_what_is_no_json_and_says_so(
    client: bottomless.Client, server: ServerProcess, tmp_path: Path
) -> None:
    flux = Pipe("flux", tmp_path / "in", "wrong", server.url)
    (tmp_path / "in").write_bytes(b'1\nnope\n2,3\n\n"\xff"\n4\n')
    said = flux.stop()
    assert [record.value for record in client.read("wrong")] == [1, 4]
    assert flux.code == 1
    assert b"line 2 is not JSON" in said
    assert b"3 lines were left out" in said
    assert b"2 records stored in wrong" in said
    assert not (tmp_path / "in").exists()


def test_flux_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with ServerProcess.start(tmp_path / "data") as server:
        path = tmp_path / "in"
        with Pipe("flux", path, "s", server.url), path.open("wb", buffering=0) as file:
            for number in range(100):
                if number == 50:
                    server.kill9()
                    file.write(b"%d\n" % number)
                    server.restart()
                else:
                    file.write(b"%d\n" % number)
        with bottomless.connect(server.url) as client:
            assert [record.value for record in client.read("s")] == list(range(100))


def test_flux_ends_with_a_stream_that_is_closed(
    client: bottomless.Client, server: ServerProcess, tmp_path: Path
) -> None:
    flux = Pipe("flux", tmp_path / "in", "shut", server.url)
    client.close("shut")
    (tmp_path / "in").write_bytes(b"1\n")
    _, said = flux.child.communicate(timeout=WAIT_S)
    assert flux.child.returncode == 1
    assert b"1 records are not stored" in said
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize("verb", ["flux", "tap"])
def test_pipes_go_with_ctrl_c(
    client: bottomless.Client, server: ServerProcess, tmp_path: Path, verb: str
) -> None:
    client.create("idle")
    pipe = Pipe(verb, tmp_path / "p", "idle", server.url)
    pipe.stop(signal.SIGINT)
    assert (pipe.code, (tmp_path / "p").exists()) == (130, False)


@pytest.mark.parametrize("verb", ["flux", "tap"])
def test_pipes_leave_other_files_alone(
    client: bottomless.Client, server: ServerProcess, tmp_path: Path, verb: str
) -> None:
    path = tmp_path / "mine"
    path.write_bytes(b"precious")
    client.create("idle")
    pipe = Pipe(verb, path, "idle", server.url)
    _, said = pipe.child.communicate(timeout=WAIT_S)
    assert (pipe.child.returncode, path.read_bytes()) == (2, b"precious")
    assert b"is there already (Remove it" in said
    # What took the place of the pipe is not ours to remove either.
    path.unlink()
    pipe = Pipe(verb, path, "idle", server.url)
    path.unlink()
    path.write_bytes(b"precious")
    pipe.stop()
    assert path.read_bytes() == b"precious"


def test_tap_needs_a_stream_and_flux_makes_it(
    client: bottomless.Client, server: ServerProcess, tmp_path: Path
) -> None:
    tap = Pipe("tap", tmp_path / "out", "missing", server.url)
    _, said = tap.child.communicate(timeout=WAIT_S)
    assert (tap.child.returncode, said) == (3, b"bottomless: there is no stream 'missing'\n")
    with Pipe("flux", tmp_path / "in", "made", server.url, "--type", "text"):
        (tmp_path / "in").write_bytes(b"a line\nanother\n")
    assert client.info("made").content_type == "text/plain; charset=utf-8"
    assert [record.value for record in client.read("made")] == ["a line", "another"]


def test_tap_begins_anew_for_every_reader_and_goes_on_live(
    client: bottomless.Client, server: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    client.create("live")
    with client.producer("live") as producer:
        for number in range(30_000):
            producer.append(number)
    with Pipe("tap", path, "live", server.url):
        for _ in range(3):
            # Most of what is in the pipe is not read, and not for the next one.
            assert read_some(path, 8) == b"0\n1\n2\n3\n"
        with path.open("rb", buffering=0) as file:
            whole = b"".join(b"%d\n" % number for number in range(30_000))
            found = b""
            while len(found) < len(whole):
                found += file.read(1 << 20)
            assert found == whole
            client.append("live", "new")
            assert file.read(100) == b'"new"\n'
            client.append("live", "newer")
            assert file.read(100) == b'"newer"\n'
    with Pipe("tap", path, "live", server.url, "--from", "newest:1"):
        assert read_some(path, 8) == b'"newer"\n'


def test_tap_ends_with_the_stream_or_where_it_is_told_to(
    client: bottomless.Client, server: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    client.create("ends")
    client.append("ends", 1, 2)
    with Pipe("tap", path, "ends", server.url, "--no-follow"):
        # As a file: whoever reads it comes to its end, every time.
        assert [path.read_bytes() for _ in range(5)] == [b"1\n2\n"] * 5
    client.close("ends")
    with Pipe("tap", path, "ends", server.url):
        assert path.read_bytes() == b"1\n2\n"


def test_tap_has_readers_at_the_same_time(
    client: bottomless.Client, server: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    client.create("both")
    client.append("both", 1, 2)
    with Pipe("tap", path, "both", server.url) as tap:
        with path.open("rb", buffering=0) as one:
            assert one.read(2) == b"1\n"
            with path.open("rb", buffering=0) as two:
                assert (two.read(4), one.read(2)) == (b"1\n2\n", b"2\n")
            client.append("both", 3)
            assert one.read(2) == b"3\n"
        assert read_some(path, 6) == b"1\n2\n3\n"
    assert b" records given to 3 readers\n" in tap.said


LINES = [line for verb in app.registered_commands for line in verb.epilog.lines]  # type: ignore[union-attr]


@pytest.mark.parametrize("line", LINES)
def test_pipes_examples_of_the_help_run(
    client: bottomless.Client, server: ServerProcess, tmp_path: Path, line: str
) -> None:
    client.create("orders")
    client.append("orders", {"id": 1})
    child = subprocess.Popen(
        ["bash", "-c", f"exec {line}"],
        cwd=tmp_path,
        env=child_environment(
            {"BOTTOMLESS_SERVER": server.url, "PATH": f"{Pipe.program.parent}:{os.environ['PATH']}"}
        ),
    )
    path = tmp_path / line.split()[2]
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if "flux" in line:
        path.write_bytes(b'{"id":1}\n')
    else:
        assert b'{"id":1}\n' in read_some(path, 9)
    child.send_signal(signal.SIGTERM)
    assert child.wait(WAIT_S) == 0


ROWS = b'id,text\r\n1,"a\nb"\n2,"say ""hi"""\n'
PACKED = b"".join(map(msgspec.msgpack.encode, [{"a": b"\n\xff"}, [1, 2], "x" * 70_000])) * 20


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("csv", ROWS * 100),
        ("msgpack", PACKED),
        ("ndjson", lines_of(500)),
        ("binary", os.urandom(1 << 20)),
    ],
    ids=["csv", "msgpack", "ndjson", "binary"],
)
def test_pipes_round_trip_of_other_formats(
    client: bottomless.Client, server: ServerProcess, tmp_path: Path, type_: str, data: bytes
) -> None:
    with Pipe("flux", tmp_path / "in", f"as-{type_}", server.url, "--type", type_):
        (tmp_path / "in").write_bytes(data)
    with Pipe("tap", tmp_path / "out", f"as-{type_}", server.url, "--no-follow"):
        assert (tmp_path / "out").read_bytes() == data
    # And it is of that format: the values can be read.
    assert client.read(f"as-{type_}")
