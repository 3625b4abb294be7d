"""`bottomless relay` between any two addresses: bytes, counts, exit codes, signals."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

import bottomless
from bottomless.commands.relay import app as relay_app
from tests.support.cli import Cli
from tests.support.server import CLONE, EXECUTABLE, child_environment
from tests.support.wire import serving
from tests.unit.test_ss import independent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server import ServerProcess

# One JSON value a line, as hostile to whoever parses and writes it anew as it can be.
ODD = b"""\
{"a" : 1,"a":2,  "a" : 3}
12345678901234567890123456789012345678901234567890
[ 1.0 , 1e400, -0, 0.1000000000000000055511151231257827 ]
"\\u00e9\\ud83d\\ude00 \xc3\xa9 \\/ \\u0000"
{"z":1,"y":{"x":[[],{},""]},"":null}
"  spaces inside  "
true
"""
WAIT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("relay")) as process:
        yield process


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path / "config")


@pytest.fixture
def url(server: ServerProcess, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    return f"{server.url}/{name}"


def run(*arguments: str, stdin: bytes = b"") -> bytes:
    """A process of its own, for what goes through its standard input and output."""
    done = subprocess.run(
        [EXECUTABLE, "relay", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=WAIT_S,
        env=child_environment({}),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def relay(cli: Cli, source: object, target: object, *more: str) -> str:
    return cli.ok("relay", "--input", str(source), "--output", str(target), *more).err


def test_relay_file_to_server_to_file_is_identical(cli: Cli, url: str) -> None:
    Path("odd.ndjson").write_bytes(ODD * 50)
    said = relay(cli, "file://./odd.ndjson", url)
    assert said.startswith(f"350 records, {len(ODD) * 50 - 350:,} bytes in ")
    assert "application/json" in said
    relay(cli, url, "file://./back.ndjson")
    assert Path("back.ndjson").read_bytes() == ODD * 50


def test_relay_says_what_a_json_stream_does_not_keep(cli: Cli, url: str) -> None:
    text = b'{"a": 1}  \n\n [2]\r\n"no end"'
    Path("x.ndjson").write_bytes(text)
    said = relay(cli, "file://./x.ndjson", url)
    assert said.startswith("3 records")
    assert "4 lines were blank, without an end, or had white space" in said
    relay(cli, url, "file://./json.ndjson")
    assert Path("json.ndjson").read_bytes() == b'{"a": 1}\n[2]\n"no end"\n'
    # As the same command says, this type keeps all of it.
    assert "lines were" not in relay(cli, "file://./x.ndjson", f"{url}-2", "--type", "ndjson")
    relay(cli, f"{url}-2", "file://./same.ndjson")
    assert Path("same.ndjson").read_bytes() == text


CSV = b'id,name\r\n1,"a ""b"",\nc"\r\n2,\xc3\xbc\n3,no end'
PACKED = b"".join(
    map(
        msgspec.msgpack.encode,
        [{"a": b"\xff" * 300}, [1] * 20, 2**63, None, "ü", msgspec.msgpack.Ext(5, b"x")],
    )
)
NOISE = random.Random(4).randbytes(3_000_000)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.csv", CSV),
        ("x.msgpack", PACKED * 99),
        ("x.bin", NOISE),
        ("x.txt", b"a\n \xc3\xbc\r\nz\n"),
    ],
    ids=["csv", "msgpack", "bin", "txt"],
)
def test_relay_keeps_the_bytes_of_other_formats(cli: Cli, url: str, name: str, data: bytes) -> None:
    Path(name).write_bytes(data)
    relay(cli, f"file://./{name}", url)
    relay(cli, url, f"{url}-again")
    relay(cli, f"{url}-again", f"file://./back-{name}")
    back = Path(f"back-{name}").read_bytes()
    assert back == (data + b"\n" if name == "x.csv" else data)


def test_relay_csv_without_a_server_between_is_identical_to_the_last_byte(
    cli: Cli, url: str
) -> None:
    Path("x.csv").write_bytes(CSV)
    relay(cli, "file://./x.csv", url)
    relay(cli, url, "file://./back.csv")
    assert Path("back.csv").read_bytes() == CSV


def test_relay_through_all_that_is_here_is_identical(cli: Cli, url: str) -> None:
    """File, server, .ss, another server's stream, lines, file."""
    Path("odd.ndjson").write_bytes(ODD * 20)
    relay(cli, "file://./odd.ndjson", url)
    relay(cli, url, "file://./x.ss/orders")
    relay(cli, "file://./x.ss/orders", f"{url}-2")
    lines = run("-i", f"{url}-2", "-o", "stdio:///orders")
    run("-i", "stdio:///orders", "-o", "file://./back.ndjson", stdin=lines)
    assert Path("back.ndjson").read_bytes() == ODD * 20


def test_relay_keeps_times_and_keys_where_it_can(cli: Cli, url: str) -> None:
    with bottomless.connect(url.rpartition("/")[0]) as client:
        name = url.rpartition("/")[2]
        client.create(name)
        client.append(name, {"n": 1}, {"n": 2})
        times = [round(record.time.timestamp() * 1000) for record in client.read(name)]
    relay(cli, url, "file://./x.ss")
    _, messages, _ = independent(Path("x.ss").read_bytes())
    assert messages == [
        (name, 0, number, at_ms, b'{"n":%d}' % number)
        for number, at_ms in enumerate(times, start=1)
    ]
    # All keys of one file into another; the lines carry what was in the file.
    relay(cli, "file://./x.ss", "file://./y.ss")
    assert independent(Path("y.ss").read_bytes())[1] == messages
    lines = run("-i", "file://./y.ss", "-o", "stdio:///").splitlines()
    assert [line.partition(b"] ")[2] for line in lines] == [b'{"n":1}', b'{"n":2}']
    assert all(f" | {name} | {n} | 0] ".encode() in line for n, line in enumerate(lines, 1))


def test_relay_reads_lines_of_one_key_up_to_their_end(cli: Cli) -> None:
    lines = (
        b'[2022-01-02T03:04:05 | a] {"n": 1}\n\n{"n": "for all"}\n[b | 7] {"n": "other"}\n'
        b"[2022-01-02T03:04:05.678 | a | 2 | 0] [2]\n"
        b"[SEA_STREAMER_INTERNAL] EOS\n[a] 3\n"
    )
    run("-i", "stdio:///a", "-o", "file://./a.ss/copy", stdin=lines)
    found = independent(Path("a.ss").read_bytes())[1]
    assert [payload for *_, payload in found] == [b'{"n": 1}', b'{"n": "for all"}', b"[2]"]
    assert [at_ms for _, _, _, at_ms, _ in found][::2] == [1641092645000, 1641092645678]
    done = cli("relay", "-i", "file://./a.ss", "-o", "stdio:///a", "--from", "2099-01-01")
    assert done.code == 0
    run("-i", "stdio:///", "-o", "file://./all.ndjson", stdin=lines)
    assert Path("all.ndjson").read_bytes().count(b"\n") == 4


def test_relay_twice_copies_twice_and_goes_on_from_a_place(cli: Cli, url: str) -> None:
    Path("x.ndjson").write_bytes(b"1\n2\n3\n")
    relay(cli, "file://./x.ndjson", url)
    relay(cli, "file://./x.ndjson", url, "--from", "newest:2")
    relay(cli, "file://./x.ndjson", url, "--from", "4")
    relay(cli, url, "file://./y.ndjson")
    assert Path("y.ndjson").read_bytes() == b"1\n2\n3\n2\n3\n3\n"
    relay(cli, url, "file://./z.ndjson", "--from", "newest:1", "--quiet")
    assert Path("z.ndjson").read_bytes() == b"3\n"


@pytest.mark.parametrize(
    ("source", "target", "code", "said"),
    [
        ("file://./nothing.ndjson", "URL", 3, "there is no file nothing.ndjson"),
        ("URL-none", "file://./y.ndjson", 3, "there is no stream"),
        ("file://./bad.ndjson", "URL", 1, "line 2 is not JSON"),
        ("file://./x.csv", "file://./x.csv", 2, "are the same"),
        ("ftp://x/y", "URL", 2, "is no address"),
        ("http://127.0.0.1:4437", "URL", 2, "is no address of a stream"),
        ("file://./x.csv", "URL-json", 2, "text/csv"),
        ("http://127.0.0.1:1/x", "file://./y.ndjson", 5, "no answer"),
        ("stdio:///a/b", "file://./y.ndjson", 2, "is no stream key"),
    ],
)
def test_relay_exit_codes(
    cli: Cli, server: ServerProcess, source: str, target: str, code: int, said: str
) -> None:
    Path("bad.ndjson").write_bytes(b"1\n1,2\n3\n")
    Path("x.csv").write_bytes(b"a,b\n")
    url = f"{server.url}/codes"
    with bottomless.connect(server.url) as client:
        client.create("codes-json")
        done = cli("relay", "-i", source.replace("URL", url), "-o", target.replace("URL", url))
        assert done.code == code, done.err
        assert said in done.err
        assert not Path("y.ndjson").exists()
        # A first record that is wrong leaves no empty stream behind.
        assert "codes" not in [row.name for row in client.streams()]


def test_relay_that_fails_half_way_has_stored_what_was_before(cli: Cli, url: str) -> None:
    """The first chunk of a file is stored although the second one is bad, and the count is told."""
    good = b'{"n":1}\n' * 200_000
    Path("x.ndjson").write_bytes(good + b"nope\n")
    done = cli("relay", "-i", "file://./x.ndjson", "-o", url)
    assert done.code == 1
    assert "line 200001 is not JSON" in done.err
    with bottomless.connect(url.rpartition("/")[0]) as client:
        stored = next(row for row in client.streams() if row.name == url.rpartition("/")[2]).records
    assert f"; {stored} records are stored" in done.err
    assert stored > 100_000


def test_relay_into_head_ends_quietly(url: str, server: ServerProcess, tmp_path: Path) -> None:
    with bottomless.connect(server.url) as client, client.producer("many") as producer:
        for number in range(20_000):
            producer.append({"n": number, "pad": "x" * 100})
    command = f"{EXECUTABLE} relay -i {server.url}/many -o stdio:///many | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        check=False,
        timeout=WAIT_S,
        env=child_environment({}),
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b'| many | 1 | 0] {"n":0,"pad":"' + b"x" * 100 + b'"}\n')


LINES = relay_app.registered_commands[0].epilog.lines  # type: ignore[union-attr]


@pytest.mark.parametrize("line", LINES)
def test_relay_examples_of_the_help_run(line: str, server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "orders.ndjson").write_bytes(ODD)
    with bottomless.connect(server.url) as client:
        client.append("orders", 1) if client.create("orders") else None
    path = f"{EXECUTABLE.parent}:{os.environ['PATH']}"
    script = line.replace("http://127.0.0.1:4437", server.url)
    assert script != line
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        capture_output=True,
        check=False,
        timeout=WAIT_S,
        env=child_environment({"PATH": path}),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert b" records, " in done.stderr or b"] 1" in done.stdout


def wait_for(path: Path, data: bytes) -> None:
    deadline = time.monotonic() + WAIT_S
    while not (path.exists() and path.read_bytes() == data):
        assert time.monotonic() < deadline, path.read_bytes() if path.exists() else "no file"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_relay_follows_until_it_is_told_to_stop(
    url: str, server: ServerProcess, tmp_path: Path, number: signal.Signals
) -> None:
    name = f"follow-{number}"
    with bottomless.connect(server.url) as client:
        client.append(name, 1) if client.create(name) else None
        child = subprocess.Popen(
            [
                EXECUTABLE,
                "relay",
                "-i",
                f"{server.url}/{name}",
                "-o",
                f"file://{tmp_path}/y.ndjson",
                "-f",
            ],
            stderr=subprocess.PIPE,
            env=child_environment({}),
            cwd=CLONE,
        )
        wait_for(tmp_path / "y.ndjson", b"1\n")
        client.append(name, 2)
        wait_for(tmp_path / "y.ndjson", b"1\n2\n")
    os.kill(child.pid, number)
    _, said = child.communicate(timeout=WAIT_S)
    assert child.returncode == (130 if number == signal.SIGINT else 0), said
    assert said.startswith(b"2 records, 2 bytes in ")
