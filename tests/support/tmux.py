"""A real terminal: a program in a tmux of its own, keys for it, and what is on its screen."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

POLL_INTERVAL_S = 0.05
needs_tmux = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed (apt-get install tmux)"
)


class Terminal:
    """A shell command in a terminal. Leaving the ``with`` block ends it and its tmux."""

    def __init__(
        self, command: str, *, width: int = 150, height: int = 24, env: Mapping[str, str] = {}
    ) -> None:
        # A socket's path must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="tmux-"))
        self._env = {**os.environ, "LANG": "C.UTF-8", "SHELL": "/bin/sh", **env}
        self._env.pop("TMUX", None)
        try:
            self._tmux("new-session", "-d", "-x", str(width), "-y", str(height), command)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def press(self, *keys: str) -> None:
        """Keys by their names (``Enter``, ``Down``), or as characters."""
        self._tmux("send-keys", *keys)

    def screen(self) -> str:
        """What is seen now."""
        return self._tmux("capture-pane", "-p")

    def resize(self, width: int, height: int) -> None:
        """As if somebody dragged the corner of the window."""
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def ask(self, what: str) -> str:
        """A property of the terminal, e.g. ``alternate_on``."""
        return self._tmux("display-message", "-p", f"#{{{what}}}").strip()

    def wait_for(
        self, is_there: Callable[[str], object], what: str, *, timeout_s: float = 20.0
    ) -> str:
        """The screen, as soon as it is as wanted."""
        deadline = time.monotonic() + timeout_s
        while True:
            seen = self.screen()
            if is_there(seen):
                return seen
            assert time.monotonic() < deadline, f"not seen in {timeout_s} s: {what}\n{seen}"
            time.sleep(POLL_INTERVAL_S)

    def close(self) -> None:
        """End the program and its terminal. Safe to call twice."""
        if self._folder.exists():
            self._run("kill-server", check=False)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _tmux(self, *arguments: str) -> str:
        return self._run(*arguments, check=True)

    def _run(self, *arguments: str, check: bool) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-f", "/dev/null", "-S", str(self._folder / "s"), *arguments],
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout
