"""Who waits for a stream to change: futures that wait once, and calls that are made each time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Audience:
    """The live readers of one stream that have read all there is."""

    __slots__ = ("_is_telling", "_listeners", "waiters")

    def __init__(self) -> None:
        self.waiters: set[asyncio.Future[bool]] = set()
        # Most streams never have any.
        self._listeners: dict[Callable[[], None], None] | None = None
        self._is_telling = False

    def __bool__(self) -> bool:
        """Somebody is there."""
        return bool(self.waiters or self._listeners)

    def listen(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` after each change, once per group."""
        if self._listeners is None:
            self._listeners = {}
        self._listeners[tell] = None

    def unlisten(self, tell: Callable[[], None]) -> None:
        """Do not call it any more."""
        if self._listeners is not None:
            self._listeners.pop(tell, None)

    def wake(self) -> None:
        """Tell everybody that something changed."""
        waiters, self.waiters = self.waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(True)
        if self._listeners and not self._is_telling:
            # Not at once: the appends of this group are answered first.
            self._is_telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        for tell in list(self._listeners or ()):
            tell()
