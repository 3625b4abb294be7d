"""A program that consumes, in a process of its own, for tests that stop, kill and revive it.

It writes every value it handles into a file, one a line, with one write each: what a killed one has
done is known. ``fenced`` is written where it was told so; then it goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

import bottomless
from tests.support.server import CLONE, child_environment

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from bottomless import Member, Resumable

FENCED = "fenced"


class ConsumingProcess:
    """Owns one child, and signals only that one."""

    def __init__(self, path: Path, url: str, mode: str, stream: str, *options: str) -> None:
        self.path = path
        path.touch()
        command = [sys.executable, "-m", "tests.support.consuming", str(path), url, mode, stream]
        self._child = subprocess.Popen(
            [*command, *options], cwd=CLONE, env=child_environment({}), stdin=subprocess.DEVNULL
        )

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().split()

    @property
    def handled(self) -> list[int]:
        return [int(line) for line in self.lines if line != FENCED]

    def kill9(self) -> None:
        self._child.kill()
        assert self._child.wait(10) == -signal.SIGKILL, "it had ended before"

    def stop(self) -> None:
        """Freeze it, as a long pause of the machine would."""
        self._child.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._child.send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float = 60.0) -> int:
        return self._child.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait(10)


def main() -> None:
    """Consume until the stream is closed and everything in it is handled."""
    parser = argparse.ArgumentParser()
    for name in ("path", "url", "mode", "stream"):
        parser.add_argument(name)
    parser.add_argument("--pause-ms", type=float, default=0.0)
    parser.add_argument("--lease-s", type=float, default=1.0)
    parser.add_argument("--range-records", type=int, default=100)
    parser.add_argument("--commit-records", type=int, default=100)
    args = parser.parse_args()
    file = os.open(args.path, os.O_WRONLY | os.O_APPEND)
    retry = bottomless.Retry(longest_s=0.2)
    with bottomless.connect(args.url, retry=retry) as client, consumer_of(args, client) as consumer:
        is_over = False
        while not is_over:
            with contextlib.suppress(bottomless.Fenced):
                for record in consumer:
                    time.sleep(args.pause_ms / 1000)
                    os.write(file, f"{record.value}\n".encode())
                is_over = True
            if not is_over:
                os.write(file, f"{FENCED}\n".encode())
                is_over = args.mode == "resumable"


def consumer_of(args: argparse.Namespace, client: bottomless.Client) -> Resumable | Member:
    """As the arguments say."""
    if args.mode == "resumable":
        return client.resumable(
            args.stream, "worker", commit_records=args.commit_records, commit_s=None
        )
    return client.balanced(
        args.stream, "workers", lease_s=args.lease_s, range_records=args.range_records
    )


if __name__ == "__main__":
    main()
