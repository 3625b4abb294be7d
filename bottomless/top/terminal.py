"""The terminal: keys as they are pressed, and everything as it was before, however top ends."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
import termios
import tty
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console
from rich.live import Live

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.text import Text

_READ_BYTES: Final = 4096
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminal:
    """A whole screen, until the ``with`` block is left."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A name that the terminal has no letters for must not end everything.
            sys.stdout.reconfigure(errors="replace")
        self._console = Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._input)
        try:
            tty.setcbreak(self._input)
            changed = termios.tcgetattr(self._input)
            # Ctrl-Z would leave a shell on a screen that is not its own.
            changed[6][termios.VSUSP] = b"\x00"
            termios.tcsetattr(self._input, termios.TCSADRAIN, changed)
            self._live.start()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        size = self._console.size
        return size.width, size.height

    def show(self, screen: Text) -> None:
        """Draw over what is there: nothing is cleared, so nothing flickers."""
        self._live.update(screen, refresh=True)

    def listen(
        self,
        pressed: Callable[[bytes], None],
        *,
        resized: Callable[[], None],
        ended: Callable[[int], None],
    ) -> None:
        """Call these on the event loop; ``ended`` with the signal that asks for the end."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                data = os.read(self._input, _READ_BYTES)
            except OSError:
                data = b""
            if data:
                pressed(data)
            else:
                # The terminal is gone.
                loop.remove_reader(self._input)
                ended(signal.SIGHUP)

        loop.add_reader(self._input, read)
        loop.add_signal_handler(signal.SIGWINCH, resized)
        for number in _ENDING:
            loop.add_signal_handler(number, ended, number)

    def ignore(self) -> None:
        """Listen no more."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._input)
        for number in (signal.SIGWINCH, *_ENDING):
            loop.remove_signal_handler(number)

    def _restore(self) -> None:
        try:
            # Nobody may be there any more to see it.
            with contextlib.suppress(OSError):
                self._live.stop()
        finally:
            if self._before is not None:
                with contextlib.suppress(termios.error):
                    termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
