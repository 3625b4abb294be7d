"""The live screen: draws when there are newer figures, a key was pressed, or the size changed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from bottomless.top.controls import Controls, KeyReader
from bottomless.top.terminal import Terminal
from bottomless.top.view import Scene, draw
from bottomless.top.watch import Watch

if TYPE_CHECKING:
    from bottomless.top.sampling import Sampler

_ESCAPE_S: Final = 0.05


class Screen:
    """One run of top on a terminal."""

    def __init__(
        self, sampler: Sampler, controls: Controls, *, server: str, interval_s: float
    ) -> None:
        self._controls = controls
        self._watch = Watch(sampler, lambda: controls.name_filter, interval_s)
        self._scene = Scene(server, interval_s)
        self._keys = KeyReader()
        self._escape: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._ended_by = 0

    async def run(self) -> int:
        """Until a key or a signal ends it; returns the exit code."""
        with Terminal() as terminal:
            terminal.listen(self._pressed, resized=self._changed.set, ended=self._ended)
            watching = asyncio.create_task(self._watch.run(self._changed.set))
            try:
                while not self._controls.is_over:
                    self._changed.clear()
                    self._show(terminal)
                    await self._next_change(watching)
            finally:
                terminal.ignore()
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
        return 128 + self._ended_by if self._ended_by else 0

    def _show(self, terminal: Terminal) -> None:
        # While it is paused counting goes on: the last minute stays the last minute.
        if not self._controls.is_paused or self._scene.board is None:
            self._scene.board = self._watch.board
        self._scene.trouble = self._watch.trouble
        terminal.show(draw(self._scene, self._controls, *terminal.size))

    async def _next_change(self, watching: asyncio.Task[None]) -> None:
        """Until there is something new to draw; raises what ends the watch."""
        change = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({change, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
        if watching.done():
            watching.result()

    def _pressed(self, data: bytes) -> None:
        if self._escape is not None:
            self._escape.cancel()
        self._press(self._keys.feed(data))
        # Escape itself, or the first part of another key: the rest comes at once.
        loop = asyncio.get_running_loop()
        self._escape = loop.call_later(_ESCAPE_S, lambda: self._press(self._keys.flush()))

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            self._controls.press(key)
            self._changed.set()

    def _ended(self, number: int) -> None:
        self._ended_by = number
        self._controls.is_over = True
        self._changed.set()
