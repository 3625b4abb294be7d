"""How a job that runs for ever ends: by SIGTERM or SIGINT, or with the JVM that has started it.

The signal becomes an exception at once, also while Spark works: a job may be killed at any moment,
so it may also be interrupted at any moment.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

from jobs.common.session import is_child_of_spark

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_PARENT_POLL_S: Final = 0.5


class Stopped(BaseException):
    """A signal says that it is enough. No KeyboardInterrupt: Py4J would log that with a trace."""


class Stop:
    """While it is entered, the first signal raises Stopped; those after it do nothing."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._left = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.arm()
        if is_child_of_spark():
            threading.Thread(target=self._watch, args=(os.getppid(),), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        if not self._told.is_set():
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def arm(self) -> None:
        """Once more after a session was opened: PySpark sets a handler of its own for SIGINT."""
        if not self._told.is_set():
            for number in _SIGNALS:
                signal.signal(number, self._interrupt)

    def wait(self, seconds: float) -> None:
        """Sleep until the time is over or a signal interrupts."""
        self._left.wait(seconds)

    def _interrupt(self, *_: object) -> None:
        self._told.set()
        # What follows only cleans up and reports: a second Ctrl-C shall not cut that off.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    def _watch(self, parent: int) -> None:
        """`spark-submit` is a JVM that has Python as its child, and hands no signal on to it."""
        while not self._left.wait(_PARENT_POLL_S):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return
