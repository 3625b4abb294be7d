"""The servers that are measured: how each is found, started on an empty folder, and stopped.

Every peer acknowledges after an fsync, as ours does; that is the only setting that is changed, and
where the default settings are far from what the server can do, a tuned one stands beside it. The
peers are installed by `make bench-peers`; one that is missing is named with the way to get it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent
PEERS = CLONE / ".venv" / "peers"
EXECUTABLE = Path(sys.executable).parent / "bottomless"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

EVERYTHING = frozenset({"append", "producers", "history", "random", "sse", "long-poll", "many"})


@dataclass(frozen=True)
class Subject:
    """A server under measure. In commands and settings {root} and {port} are filled in."""

    name: str
    title: str
    command: tuple[str, ...]
    get: str = "make bench-peers"
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Settings that are files below the root: name and text."""
    history_files: dict[str, str] = field(default_factory=dict)
    """The same where only reads are measured, and syncs would make the writing take for ever."""
    protocol: str = "streams"
    speaks: frozenset[str] = EVERYTHING
    version: tuple[str, ...] = ()
    is_slow: bool = False
    """Left out of a quick run."""

    @property
    def missing(self) -> str:
        """What is not here, or nothing."""
        for part in self.command[:2]:
            if part.startswith("{peers}") and not Path(fill(part)).exists():
                return fill(part)
        program = fill(self.command[0])
        return "" if shutil.which(program) else program

    def told_version(self) -> str:
        """What the server calls itself, or what its package does."""
        if not self.version:
            return ""
        done = subprocess.run(
            [fill(part) for part in self.version], capture_output=True, text=True, check=False
        )
        found = re.search(r"\d+\.\d+\.\d+", done.stdout + done.stderr)
        return found[0] if found else ""


def fill(text: str, root: Path | str = "", port: int = 0) -> str:
    """A part of a command with its places filled in."""
    places = {"{peers}": PEERS, "{here}": HERE, "{root}": root, "{port}": port}
    for place, value in places.items():
        text = text.replace(place, str(value))
    return text


_PACKAGE = "const {version} = JSON.parse(require('fs').readFileSync(process.argv[1])); "
_PACKAGE += "console.log(version)"
_NODE_MODULES = "{peers}/npm/node_modules"
_NATS = "listen: 127.0.0.1:{port}\njetstream { store_dir: '{root}/data', sync_interval: always }\n"
_NATS_READS = _NATS.replace(", sync_interval: always", "")

SUBJECTS = [
    Subject(
        "bottomless",
        "Bottomless",
        (str(EXECUTABLE), "serve", "--root", "{root}/data", "--port", "{port}"),
        version=(str(EXECUTABLE), "--version"),
    ),
    Subject(
        "rust",
        "durable-streams (Rust), WAL",
        (
            *("{peers}/rust/bin/durable-streams-server", "--host", "127.0.0.1", "--port", "{port}"),
            *("--data-dir", "{root}/data", "--durability", "wal"),
        ),
        version=("grep", "-o", "durable-streams [0-9.]*", "{peers}/rust/.crates.toml"),
    ),
    Subject(
        "redis",
        "Redis Streams, appendfsync always",
        (
            *("redis-server", "--bind", "127.0.0.1", "--port", "{port}", "--dir", "{root}"),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
            *("--daemonize", "no"),
        ),
        get="apt-get install redis-server",
        protocol="redis",
        speaks=EVERYTHING - {"producers", "long-poll"},
        version=("redis-server", "--version"),
    ),
    Subject(
        "nats",
        "NATS JetStream, sync always",
        ("{peers}/bin/nats-server", "-c", "{root}/nats.conf"),
        files={"nats.conf": _NATS},
        history_files={"nats.conf": _NATS_READS},
        protocol="nats",
        speaks=EVERYTHING - {"long-poll"},
        version=("{peers}/bin/nats-server", "--version"),
        is_slow=True,
    ),
    Subject(
        "node",
        "Durable Streams reference server (Node)",
        ("node", "{here}/node_server.mjs", _NODE_MODULES, "{root}/data", "{port}"),
        version=("node", "-e", _PACKAGE, f"{_NODE_MODULES}/@durable-streams/server/package.json"),
        is_slow=True,
    ),
    Subject(
        "prisma",
        "Prisma Streams",
        (
            *("{peers}/npm/node_modules/.bin/bun", "run"),
            *(f"{_NODE_MODULES}/@prisma/streams-server/bin/prisma-streams-server", "--no-auth"),
            *("--object-store", "local"),
        ),
        environment={"DS_ROOT": "{root}/data", "PORT": "{port}", "DS_HOST": "127.0.0.1"},
        version=("node", "-e", _PACKAGE, f"{_NODE_MODULES}/@prisma/streams-server/package.json"),
        is_slow=True,
    ),
    Subject(
        "prisma-tuned",
        "Prisma Streams, tuned",
        (
            *("{peers}/npm/node_modules/.bin/bun", "run"),
            *(f"{_NODE_MODULES}/@prisma/streams-server/bin/prisma-streams-server", "--no-auth"),
            *("--object-store", "local"),
        ),
        environment={
            "DS_ROOT": "{root}/data",
            "PORT": "{port}",
            "DS_HOST": "127.0.0.1",
            # Its gate lets two appends in at a time, and its group commit waits for 10 ms.
            "DS_INGEST_CONCURRENCY": "256",
            "DS_INGEST_FLUSH_MS": "1",
        },
        version=("node", "-e", _PACKAGE, f"{_NODE_MODULES}/@prisma/streams-server/package.json"),
    ),
]

BASELINE = Subject(
    "baseline",
    "a bare ASGI app on uvicorn that stores nothing",
    (sys.executable, "{here}/baseline.py", "{port}"),
    speaks=frozenset({"append"}),
)
BY_NAME = {subject.name: subject for subject in (*SUBJECTS, BASELINE)}


class Running:
    """One server, on a folder of the caller's. Leaving it stops the server, whatever happened."""

    def __init__(self, subject: Subject, root: Path) -> None:
        self.subject = subject
        self.root = root
        self.port = free_port()
        self.ready_s = 0.0
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._child is not None, "the server was not started"
        return self._child.pid

    def start(self, *, with_history: bool = False) -> None:
        """Return once it takes connections and answers."""
        subject = self.subject
        files = subject.history_files if with_history else {}
        for name, text in {**subject.files, **files}.items():
            (self.root / name).write_text(fill(text, self.root, self.port))
        (self.root / "data").mkdir(exist_ok=True)
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith("BOTTOMLESS_")
        }
        own = {key: fill(value, self.root, self.port) for key, value in subject.environment.items()}
        begun = time.perf_counter()
        with (self.root / "server.log").open("ab") as log:
            self._child = subprocess.Popen(
                [fill(part, self.root, self.port) for part in subject.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**kept, **own},
                cwd=self.root,
            )
        deadline = begun + START_TIMEOUT_S
        while not self._answers():
            assert self._child.poll() is None, self._explain("has ended")
            assert time.perf_counter() < deadline, self._explain("does not answer")
            time.sleep(0.02)
        self.ready_s = round(time.perf_counter() - begun, 3)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what does not follow."""
        if self._child is None:
            return
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
        self._child.wait()
        self._child = None

    def __enter__(self) -> Running:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 1) as s,
        ):
            s.settimeout(5)
            if self.subject.protocol == "nats":
                return s.recv(4) == b"INFO"
            if self.subject.protocol == "redis":
                # While it loads its file it answers -LOADING.
                s.sendall(b"PING\r\n")
                return s.recv(5) == b"+PONG"
            s.sendall(b"HEAD /v1/stream/nobody HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")
            return s.recv(12).startswith(b"HTTP/1.1")
        return False

    def _explain(self, what: str) -> str:
        log = (self.root / "server.log").read_text(errors="replace")
        return f"{self.subject.title} {what}:\n{log[-2000:]}"


def create_stream(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until a server of ours answers, then make the stream `bench`."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/stream/bench",
        method="PUT",
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 30
    while True:
        try:
            opener.open(request, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
