"""`bottomless …` as processes: pipes, signals, a terminal, a server that goes away meanwhile."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

import bottomless
from tests.support.cli import Cli
from tests.support.server import EXECUTABLE, ServerProcess, child_environment
from tests.support.warm import warm_command
from tests.support.wire import serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("processes")) as process:
        yield process


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with warm_command(tmp_path_factory.mktemp("warm")) as folder:
        yield f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def environment(server: ServerProcess, path: str, tmp_path: Path) -> dict[str, str]:
    folder = {"BOTTOMLESS_SERVER": server.url, "XDG_CONFIG_HOME": str(tmp_path), "PATH": path}
    return child_environment(folder)


@pytest.fixture
def cli(server: ServerProcess, tmp_path: Path) -> Cli:
    return Cli(tmp_path, server.url)


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    return request.node.name.replace("_", "-")


def shell(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Run it in bash; every program of a pipe counts."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_cli_pipe_carries_a_hundred_thousand_records(
    cli: Cli, environment: dict[str, str], stream: str, tmp_path: Path
):
    data = b"".join(b'{"id": %d, "item": "tea"}\n' % number for number in range(100_000))
    (tmp_path / "in.ndjson").write_bytes(data)
    script = (
        f"cat {tmp_path}/in.ndjson | bottomless append {stream} -q"
        f" && bottomless read {stream} | bottomless append {stream}-2 -q"
        f" && bottomless read {stream}-2 -o jsonl > {tmp_path}/out.ndjson"
    )
    done = shell(script, environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "out.ndjson").read_bytes() == data
    assert cli.ok("info", stream, "-o", "json").json["records"] == 100_000


@pytest.mark.parametrize("output", ["raw", "json", "jsonl", "csv", "table"])
def test_cli_read_ends_quietly_when_nobody_reads_on(
    cli: Cli, environment: dict[str, str], output: str
):
    cli.ok("append", "wide", stdin=b"".join(b"%d\n" % number for number in range(50_000)))
    done = shell(f"bottomless read wide -o {output} | head -1", environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("script", "code", "word"),
    [
        ("bottomless ls > /dev/full", 1, b"No space"),
        ("bottomless read full > /dev/full", 1, b"No space"),
        (f"{EXECUTABLE} append full <&-", 2, b"standard input"),
        ("bottomless append full -F /proc/self/mem", 1, b"error"),
    ],
)
def test_cli_says_what_is_wrong_with_its_files(
    cli: Cli, environment: dict[str, str], script: str, code: int, word: bytes
):
    cli.ok("append", "full", "1")
    done = shell(script, environment)
    assert (done.returncode, done.stdout) == (code, b"")
    assert word in done.stderr
    assert b"Traceback" not in done.stderr
    assert cli.ok("tail", "full", "-n", "1").lines == ["1"]


def test_cli_follow_ends_with_130_and_no_word(
    cli: Cli, server: ServerProcess, environment: dict[str, str], stream: str
):
    cli.ok("append", stream, "1")
    command = ["bottomless", "tail", stream, "-f"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        cli.ok("append", stream, "2")
        assert process.stdout.readline() == b"2\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_cli_append_stores_what_it_took_before_ctrl_c(
    cli: Cli, environment: dict[str, str], stream: str
):
    command = ["bottomless", "append", stream]
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"1\n2\n3\n")
        process.stdin.flush()
        # What was typed is there at once, and not when the input ends.
        wait_until(lambda: cli("read", stream).lines == ["1", "2", "3"], "the records are stored")
        process.send_signal(signal.SIGINT)
        code = process.wait(TIMEOUT_S)
        assert process.stderr is not None
        err = process.stderr.read()
    assert code == 130
    assert b"3 records are stored" in err
    assert b"Traceback" not in err


def test_cli_append_goes_on_over_a_crash_of_the_server(tmp_path: Path, path: str):
    """Killed in the middle and started again: every line once, in order."""
    lines = [b'{"id": %d}' % number for number in range(30_000)]
    with ServerProcess.start(tmp_path / "root") as server:
        environment = child_environment({"BOTTOMLESS_SERVER": server.url, "PATH": path})
        with subprocess.Popen(
            ["bottomless", "append", "s", "-o", "json"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            process.stdin.write(b"\n".join(lines[:15_000]) + b"\n")
            process.stdin.flush()
            with bottomless.connect(server.url) as client:
                wait_until(
                    lambda: any(row.records for row in client.streams()), "the first are stored"
                )
            server.kill9()
            process.stdin.write(b"\n".join(lines[15_000:]) + b"\n")
            process.stdin.flush()
            server.restart()
            out, err = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, err) == (0, b"")
        assert b'"records": 30000' in out
        assert Cli(tmp_path, server.url).ok("read", "s").out.splitlines() == lines


def test_cli_read_ends_with_5_when_the_server_goes_away(tmp_path: Path, path: str):
    """One that follows waits for it; one that reads what is there does not, for long."""
    with ServerProcess.start(tmp_path / "root") as server:
        cli = Cli(tmp_path, server.url)
        cli.ok("append", "s", stdin=b"".join(b"%d\n" % number for number in range(30_000)))
        environment = child_environment({"BOTTOMLESS_SERVER": server.url, "PATH": path})
        with subprocess.Popen(
            ["bottomless", "read", "s", "--wait", "0"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            # The pipe is full and the command waits: most of it is still on the server.
            assert process.stdout.readline() == b"0\n"
            server.kill9()
            out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 5
    assert b"no answer" in err
    assert b"29999" not in out


def test_cli_exit_codes_of_the_installed_command(environment: dict[str, str]):
    """The real program, once: what a script sees."""
    for arguments, code in [
        (["version"], 0),
        (["info", "never"], 3),
        (["info"], 2),
        (["ls", "-s", "http://127.0.0.1:9", "--wait", "0"], 5),
    ]:
        done = subprocess.run(
            [EXECUTABLE, *arguments], env=environment, capture_output=True, timeout=TIMEOUT_S
        )
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr


def test_cli_completes_names(cli: Cli, server: ServerProcess, environment: dict[str, str]):
    for name in ("complete/a", "complete/b", "other"):
        cli.ok("create", name)
    cli.ok("ctx", "add", "one", server.url)
    asked = {"_BOTTOMLESS_COMPLETE": "complete_bash"}
    for words, expected in [
        ("bottomless read complete/", {"complete/a", "complete/b"}),
        ("bottomless see", {"seek-time"}),
        ("bottomless ctx use o", {"one"}),
    ]:
        cword = str(len(words.split()) - 1)
        done = subprocess.run(
            # Its variables are named after the program, so it has to be the installed one.
            [EXECUTABLE],
            env={**environment, **asked, "COMP_WORDS": words, "COMP_CWORD": cword},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert set(done.stdout.split()) == expected, done.stderr


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.shown = b""
        self.process = subprocess.Popen(
            command,
            env={**environment, "TERM": "xterm-256color", "COLUMNS": "100"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            self._read()

    def wait(self) -> int:
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._read()
        while self._read():
            pass
        os.close(self._master)
        return self.process.returncode

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 0.05)
        try:
            data = os.read(self._master, 65536) if ready else b""
        except OSError:
            # The other side is closed.
            return False
        self.shown += data
        return bool(data)


@pytest.mark.parametrize(
    ("typed", "is_deleted"), [("kept", False), ("precious", True), ("", False)]
)
def test_cli_delete_wants_the_name_typed(
    cli: Cli, environment: dict[str, str], typed: str, is_deleted: bool
):
    cli.ok("append", "precious", "1")
    terminal = Terminal(["bottomless", "delete", "precious"], environment)
    terminal.wait_for(b"Type its name")
    terminal.type(f"{typed}\n")
    code = terminal.wait()
    assert code == (0 if is_deleted else 1), terminal.shown
    assert (cli("info", "precious").code == 3) == is_deleted


def test_cli_shows_progress_and_colours_on_a_terminal_only(
    cli: Cli, environment: dict[str, str], stream: str, tmp_path: Path
):
    file = tmp_path / "in.ndjson"
    file.write_bytes(b"".join(b"%d\n" % number for number in range(20_000)))
    terminal = Terminal(["bottomless", "append", stream, "-F", str(file)], environment)
    assert terminal.wait() == 0
    assert b"records" in terminal.shown
    done = shell(f"bottomless append {stream} -F {file}", environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    terminal = Terminal(["bottomless", "ls", stream], environment)
    assert terminal.wait() == 0
    assert b"\x1b[1m" in terminal.shown
