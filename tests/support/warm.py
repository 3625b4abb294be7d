"""Many `bottomless …` in shells, without the second that each start of Python takes.

A process that has everything imported waits on a socket. The program called `bottomless` in
`folder` hands it its arguments, environment and open files; it forks, and the child is the command:
a process of its own, with real pipes, signals and an exit code.

    python -m tests.support.warm SOCKET
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TIMEOUT_S = 30.0
# Without site packages Python is there in a few milliseconds.
_DOOR = """#!{python} -SEI
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({path!r})
call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(line, [len(call).to_bytes(4, "big")], [0, 1, 2])
line.sendall(call)
for handle in (0, 1, 2):
    os.close(handle)
answers = line.makefile("rb")
child = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _frame: os.kill(child, number))
code = int(answers.readline())
os._exit(code) if code >= 0 else os.kill(os.getpid(), -code)
"""


@contextlib.contextmanager
def warm_command(folder: Path) -> Iterator[Path]:
    """A folder for PATH, with a `bottomless` that starts at once."""
    path = folder / "warm.sock"
    door = folder / "bin" / "bottomless"
    door.parent.mkdir()
    door.write_text(_DOOR.format(python=sys.executable, path=str(path)))
    door.chmod(0o755)
    command = [sys.executable, "-m", "tests.support.warm", str(path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not path.exists():
                assert process.poll() is None, "the warm process has ended"
                assert time.monotonic() < deadline, "the warm process did not start"
                time.sleep(0.01)
            yield door.parent
        finally:
            process.terminate()


def main(path: str) -> None:
    """Wait for calls; each one is a child that lives beside the others."""
    from bottomless import cli

    # What the verbs import when they are called.
    from bottomless.blocking import Client  # noqa: F401
    from bottomless.commands.registry import VERBS

    for module in set(VERBS.values()):
        __import__(module)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(16)
    Path(f"{path}.new").rename(path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(line, cli.main)
        line.close()


def _attend(line: socket.socket, run: object) -> None:
    """Be the parent of one command, and tell its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, handles, _, _ = socket.recv_fds(line, 4, 3)
    answers = line.makefile("rb")
    arguments, folder, environment = json.loads(answers.read(int.from_bytes(size, "big")))
    child = os.fork()
    if child == 0:
        line.close()
        _become(arguments, folder, environment, handles)
        run()
        os._exit(0)
    for handle in handles:
        os.close(handle)
    line.sendall(f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        line.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(
    arguments: list[str], folder: str, environment: dict[str, str], handles: list[int]
) -> None:
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["bottomless", *arguments]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    main(sys.argv[1])
