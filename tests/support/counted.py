"""A server that counts what it does, for tests of costs that hold on any machine.

    COUNTED_AT=SOCKET python -m tests.support.counted bottomless serve --root DIR

The product counts none of this; it is done from outside. On the socket a line with the name of a
count begins it, and an empty line ends it and answers with what was found:

* tasks: asyncio tasks that were created,
* calls: functions that Python code called, Python's and C's, in all threads,
* memory: what Python objects held at the end, and at most, beyond what they held at the begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import sys
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import api.server

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path
    from types import FrameType

ADDRESS = "COUNTED_AT"
TIMEOUT_S = 20.0


class Counts:
    """Lives in the server's process; the loop's thread begins and ends a count."""

    def __init__(self) -> None:
        self.is_on = False
        self.found = {"tasks": 0, "calls": 0}

    def begin(self, what: str) -> None:
        self.found = {"tasks": 0, "calls": 0}
        gc.collect()
        if what == "memory":
            tracemalloc.start()
        elif what == "calls":
            sys.setprofile(self.on_call)
        self.is_on = True

    def end(self) -> dict[str, int]:
        self.is_on = False
        sys.setprofile(None)
        found = dict(self.found)
        if tracemalloc.is_tracing():
            gc.collect()
            found["held_bytes"], found["peak_bytes"] = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return found

    def on_call(self, frame: FrameType, event: str, argument: object) -> None:
        if self.is_on and event in ("call", "c_call"):
            self.found["calls"] += 1

    def make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **settings: Any
    ) -> asyncio.Task[Any]:
        self.found["tasks"] += 1
        return asyncio.Task(coroutine, loop=loop, **settings)


def serve_counts(counts: Counts, loop: asyncio.AbstractEventLoop) -> None:
    """Answer on the socket until the process ends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.environ[ADDRESS])
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as file:
                for line in file:
                    answer = on_loop(counts, loop, line.strip())
                    file.write(json.dumps(answer) + "\n")
                    file.flush()


def on_loop(counts: Counts, loop: asyncio.AbstractEventLoop, line: str) -> dict[str, int]:
    done, answer = threading.Event(), {}

    def act() -> None:
        if line:
            counts.begin(line)
        else:
            answer.update(counts.end())
        done.set()

    loop.call_soon_threadsafe(act)
    done.wait()
    return answer


def main() -> None:
    """Put the counters in, then be the command that follows."""
    sys.argv.pop(0)
    counts, run = Counts(), api.server._run
    # The engine's own threads begin later, and are profiled from their begin.
    threading.setprofile(counts.on_call)

    async def run_counted(*arguments: Any) -> int:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(counts.make_task)
        threading.Thread(target=serve_counts, args=(counts, loop), daemon=True).start()
        return await run(*arguments)

    api.server._run = run_counted
    from bottomless.cli import main as bottomless

    bottomless()


class Counter:
    """The test's side of the socket."""

    def __init__(self, address: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect(str(address))
        self._file = self._socket.makefile("rw")

    @contextlib.contextmanager
    def count(self, what: str) -> Iterator[dict[str, int]]:
        """What happens inside; the dictionary is filled at the end."""
        found: dict[str, int] = {}
        self._ask(what)
        yield found
        found.update(self._ask(""))

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _ask(self, line: str) -> dict[str, int]:
        self._file.write(line + "\n")
        self._file.flush()
        answer: dict[str, int] = json.loads(self._file.readline())
        return answer


if __name__ == "__main__":
    main()
