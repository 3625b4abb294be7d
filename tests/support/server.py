"""A real server in its own process, for tests that stop, kill and restart it.

Owns exactly one child at a time and signals only that child. Nothing here sleeps for luck: every
wait polls for a fact, has a deadline, and fails with the tail of the server's log.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

HOST = "127.0.0.1"
CLONE = Path(__file__).resolve().parents[2]
EXECUTABLE = Path(sys.executable).parent / "bottomless"

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.02
LOG_TAIL_BYTES = 8_000


class ServerProcess:
    """`bottomless serve` on a free port, with its data in `root` and its output in `log_path`.

    The port stays the same over a restart, so that clients can go on. Use it as a context manager:
    leaving it kills a server that still runs, without asserting anything about it.
    """

    def __init__(
        self,
        root: Path,
        *,
        env: Mapping[str, str] | None = None,
        args: tuple[str, ...] = (),
        log_path: Path | None = None,
        careless: str = "",
        wrapper: tuple[str, ...] = (),
    ) -> None:
        self.root = root
        self.port = free_port()
        self.env = dict(env or {})
        self.args = args
        self.log_path = log_path or root.with_name(f"{root.name}.server.log")
        self.careless = careless
        """Precautions that are taken away from this server (tests/faults/careless.py)."""
        self.wrapper = wrapper
        """A command in front of the server's own, e.g. strace; it must not become the child."""
        self._child: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        root: Path,
        *,
        env: Mapping[str, str] | None = None,
        args: tuple[str, ...] = (),
        log_path: Path | None = None,
        careless: str = "",
        wrapper: tuple[str, ...] = (),
    ) -> Self:
        """Start a server and wait until it answers; nothing is left running if it does not."""
        server = cls(
            root, env=env, args=args, log_path=log_path, careless=careless, wrapper=wrapper
        )
        server.spawn()
        try:
            server.wait_ready()
        except BaseException:
            server.close()
            raise
        return server

    @property
    def url(self) -> str:
        """The address of the server, without a slash at the end."""
        scheme = "https" if "BOTTOMLESS_HTTP__TLS_CERT" in self.env else "http"
        return f"{scheme}://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running child."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the child was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def spawn(self) -> None:
        """Start the child and return at once. Use `wait_ready` to know when it answers."""
        assert not self.is_running, "the server runs already"
        program = [str(EXECUTABLE)]
        if self.careless:
            program = [sys.executable, "-m", "tests.faults.careless", self.careless]
        command = [
            *[*self.wrapper, *program, "serve", "--root", str(self.root)],
            *["--host", HOST, "--port", str(self.port), *self.args],
        ]
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(self.env),
                cwd=CLONE,
            )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when /readyz answers 200; fail if the child ends or the time is over."""
        deadline = time.monotonic() + timeout_s
        last = "no answer yet"
        # trust_env=False: a proxy of the machine must not stand between the test and its server.
        with httpx.Client(trust_env=False, verify=False, timeout=2.0) as client:
            while time.monotonic() < deadline:
                child = self._running()
                if (code := child.poll()) is not None:
                    raise AssertionError(self._explain(f"the server ended with code {code}"))
                try:
                    response = client.get(f"{self.url}/readyz")
                except httpx.TransportError as error:
                    last = repr(error)
                else:
                    if response.status_code == 200:
                        return
                    last = f"{response.status_code} {response.text[:200]}"
                time.sleep(POLL_INTERVAL_S)
        raise AssertionError(self._explain(f"not ready after {timeout_s} s: {last}"))

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Ask the server to stop (SIGTERM) and return its exit code; kill it if it does not."""
        child = self._running()
        child.send_signal(signal.SIGTERM)
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.close()
            raise AssertionError(self._explain(f"still up {timeout_s} s after SIGTERM")) from None
        self._child = None
        return code

    def kill9(self) -> None:
        """End the server as a crash would: SIGKILL, no chance to write anything."""
        child = self._running()
        child.kill()
        code = child.wait(STOP_TIMEOUT_S)
        self._child = None
        # Any other code means that it had ended before, which a crash test must not overlook.
        assert code == -signal.SIGKILL, self._explain(f"it had ended before, with code {code}")

    def restart(self) -> None:
        """Start again on the same root and port, after `terminate` or `kill9`."""
        self.spawn()
        self.wait_ready()

    def close(self) -> None:
        """Make sure that no child is left. Safe to call at any time."""
        if self._child is not None:
            if self._child.poll() is None:
                self._child.kill()
            self._child.wait()
            self._child = None

    def log_tail(self) -> str:
        """The end of what all runs of this server wrote."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._child is not None, "the server was not started, or was stopped"
        return self._child

    def _explain(self, what: str) -> str:
        return f"{what}\n--- end of {self.log_path.name} ---\n{self.log_tail()}"


def free_port() -> int:
    """A port that nothing listens on now. The kernel does not hand it out again soon."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without its own server settings, plus the extra ones."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BOTTOMLESS_")}
    return {**kept, "PYTHONUNBUFFERED": "1", **extra}
