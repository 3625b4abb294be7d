"""HTTP by hand, for requests that no client library would send, and the rule for every refusal.

Every socket has a time-out, so a server that hangs fails a test instead of stopping it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx

from tests.support.server import HOST, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

TIMEOUT_S = 10.0
PROBLEM_BYTES_MAX = 1024
# What would tell a stranger how the server is built or where its files are.
LEAKS = re.compile(r"Traceback|File \"|\.py\b|site-packages|/tmp/|/work/|/home/|/root/|/dev/shm")
CODE = re.compile(r"[a-z][a-z0-9_]*")
TEXT = {"content-type": "text/plain"}
JSON = {"content-type": "application/json"}
BYTES = {"content-type": "application/octet-stream"}
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Reply:
    """One response as it came over the wire; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class WireClosed(ConnectionError):
    """The server closed the connection where a response should have been."""


class Wire:
    """One connection to a server: sends any bytes, reads whole responses."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((HOST, port))
        self._buffer = b""

    def send(self, data: bytes) -> None:
        """Send; that the server has closed meanwhile is seen when its answer is read."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def reply(self, *, method: str = "POST") -> Reply:
        """The next response; WireClosed if there is none."""
        head = self._read_through(b"\r\n\r\n").decode("latin-1")
        first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1", first
        pairs = [line.split(": ", 1) for line in lines]
        headers = {name.lower(): value for name, value in pairs}
        assert len(headers) == len(pairs), f"a header is sent twice: {lines}"
        code = int(status)
        return Reply(code, headers, self._read_body(method, code, headers))

    def has_ended(self) -> bool:
        """Whether the server closes the connection now, without another byte."""
        try:
            return not self._buffer and self.socket.recv(65536) == b""
        except ConnectionResetError:
            return True

    def read_to_end(self) -> bytes:
        """Everything up to the end of the connection."""
        with contextlib.suppress(ConnectionResetError):
            while chunk := self.socket.recv(65536):
                self._buffer += chunk
        data, self._buffer = self._buffer, b""
        return data

    def read_until(self, mark: bytes) -> bytes:
        """Everything up to and including the mark."""
        return self._read_through(mark)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def _read_body(self, method: str, status: int, headers: dict[str, str]) -> bytes:
        if method == "HEAD" or status in (204, 304) or status < 200:
            return b""
        if "content-length" in headers:
            return self._read_exactly(int(headers["content-length"]))
        assert headers.get("transfer-encoding") == "chunked", headers
        body = b""
        while size := int(self._read_through(b"\r\n"), 16):
            body += self._read_exactly(size)
            assert self._read_exactly(2) == b"\r\n"
        assert self._read_exactly(2) == b"\r\n"
        return body

    def _read_through(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._fill()
        data, _, self._buffer = self._buffer.partition(mark)
        return data + mark

    def _read_exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _fill(self) -> None:
        try:
            chunk = self.socket.recv(65536)
        except ConnectionResetError as error:
            raise WireClosed(f"reset after {self._buffer[:200]!r}") from error
        if not chunk:
            raise WireClosed(f"closed after {self._buffer[:200]!r}")
        self._buffer += chunk


class Canary:
    """A stream that a refused request must leave exactly as it was."""

    def __init__(self, client: httpx.Client, kind: Mapping[str, str]) -> None:
        self.name = f"canary-{next(_numbers)}"
        self.path = f"/v1/stream/{self.name}"
        self.kind = dict(kind)
        self._client = client
        self._good = b'{"good":1}' if kind == JSON else b"good"
        created = client.put(self.path, headers=self.kind)
        assert created.status_code == 201, created.text

    def tail(self) -> str:
        """Where the stream ends now."""
        head = self._client.head(self.path)
        assert head.status_code == 200
        return head.headers["stream-next-offset"]

    def read(self) -> bytes:
        """Everything the stream holds, chunk by chunk."""
        offset, parts = "-1", []
        while True:
            response = self._client.get(self.path, params={"offset": offset})
            assert response.status_code == 200, response.text
            parts.append(response.content)
            offset = response.headers["stream-next-offset"]
            if response.headers.get("stream-up-to-date") == "true":
                return b"".join(parts)

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """Nothing may be appended in here, and a good append must work right after it."""
        before = self.tail()
        yield
        assert self.tail() == before, "a refused request has moved the tail"
        good = self._client.post(self.path, headers=self.kind, content=self._good)
        assert good.status_code == 204, good.text
        assert good.headers["stream-next-offset"] == self.tail() > before


def request(
    method: str, target: str, *headers: str, body: bytes = b"", version: str = "HTTP/1.1"
) -> bytes:
    """A request with one Host and the given headers, framed by nothing else."""
    lines = [f"{method} {target} {version}", "Host: bottomless.test", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def exchange(server: ServerProcess, data: bytes, *, method: str = "POST") -> Reply:
    """Send this over a connection of its own and return the first answer."""
    with Wire(server.port) as wire:
        wire.send(data)
        return wire.reply(method=method)


def as_utf8(*headers: str) -> list[str]:
    """Header lines that go out as UTF-8 bytes, which httpx would not send."""
    return [header.encode().decode("latin-1") for header in headers]


def assert_refused(reply: Reply | httpx.Response, *statuses: int) -> str:
    """One of these statuses and a small problem body without secrets; returns its code."""
    if isinstance(reply, httpx.Response):
        reply = Reply(reply.status_code, dict(reply.headers), reply.content)
    assert reply.status in statuses, (reply.status, reply.body[:300])
    assert reply.headers["content-type"] == "application/problem+json", reply.headers
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert len(reply.body) <= PROBLEM_BYTES_MAX, len(reply.body)
    problem = json.loads(reply.body)
    assert problem["status"] == reply.status
    assert CODE.fullmatch(problem["code"]), problem
    assert not LEAKS.search(reply.body.decode()), problem
    return str(problem["code"])


@contextlib.contextmanager
def serving(folder: Path, **settings: object) -> Iterator[ServerProcess]:
    """A server with these settings that must be alive at the end, stop by itself and log no error.

    A setting is written like ``http__header_timeout_ms=1000``.
    """
    env = {f"BOTTOMLESS_{name.upper()}": str(value) for name, value in settings.items()}
    with ServerProcess.start(folder / "data", env=env) as server:
        yield server
        assert server.is_running, server.log_tail()
        assert server.terminate() == 0, server.log_tail()
    faults = faults_in(server)
    assert not faults, f"{len(faults)} faults in the server's log, the first: {faults[0]}"


def faults_in(server: ServerProcess) -> list[str]:
    """The lines of the server's log that tell of a fault."""
    marks = ('"level": "error"', '"level": "critical"', "Traceback")
    lines = server.log_path.read_text(errors="replace").splitlines()
    return [line for line in lines if any(mark in line for mark in marks)]


def connect(server: ServerProcess) -> httpx.Client:
    """A client that no proxy of the machine stands in the way of."""
    # verify=False: nothing here speaks TLS, and loading certificates takes longer than a test.
    return httpx.Client(base_url=server.url, trust_env=False, verify=False, timeout=TIMEOUT_S)


def wait_until(is_true: Callable[[], bool], what: str, *, timeout_s: float = TIMEOUT_S) -> None:
    """Return when it is true; fail with `what` if it does not become so."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def resident_mib(server: ServerProcess) -> float:
    """The memory the server's process holds."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found, status
    return int(found[1]) / 1024


def is_held(server: ServerProcess, wire: Wire) -> bool:
    """Whether the server still holds its end of this connection.

    Reading would not tell: the kernel goes on to deliver what it had taken before the end.
    """
    local, remote = f":{server.port:04X}", f":{wire.socket.getsockname()[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(local) and fields[2].endswith(remote):
            # A socket that no process holds any more has no inode.
            return fields[9] != "0"
    return False
