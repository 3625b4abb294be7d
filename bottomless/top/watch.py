"""Looks at a server again and again: the newest figures, or why there are none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from bottomless.errors import BottomlessError, NotAllowed, Unavailable
from bottomless.top.model import Model
from bottomless.transport import NoAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from bottomless.top.model import Board, Sample

_SLOW_S: Final = 2.0
_REST_S: Final = 0.05


class Looks(Protocol):
    """A Sampler."""

    async def look(self, name_filter: str) -> Sample:
        """One look; raises where there is no answer."""


class Watch:
    """One look per interval; a server that is away is asked again, for ever."""

    def __init__(self, sampler: Looks, wanted: Callable[[], str], interval_s: float) -> None:
        self._sampler = sampler
        self._wanted = wanted
        """The filter, as it is now."""
        self._interval_s = interval_s
        self._model = Model()
        self._failures = 0
        self.board: Board | None = None
        self.trouble = ""
        """Why there are no newer figures; nothing where there are."""

    async def run(self, changed: Callable[[], None]) -> None:
        """For ever, and never for more than half of the time; raises what no patience helps."""
        loop = asyncio.get_running_loop()

        def tell_slow() -> None:
            self.trouble = "no answer yet, waiting"
            changed()

        while True:
            begun_s = loop.time()
            warning = loop.call_later(max(_SLOW_S, self._interval_s), tell_slow)
            try:
                await self.look()
            finally:
                warning.cancel()
            changed()
            took_s = loop.time() - begun_s
            await asyncio.sleep(max(self._interval_s - took_s, took_s, _REST_S))

    async def look(self) -> None:
        """Once."""
        try:
            sample = await self._sampler.look(self._wanted())
        except Unavailable as error:
            self._failures += 1
            why = "no answer" if isinstance(error, NoAnswer) else error.message
            self.trouble = f"{why}, trying again ({self._failures})"
        except BottomlessError as error:
            # Wrong from the beginning, it will not become right: a token, an address.
            if self.board is None or isinstance(error, NotAllowed):
                raise
            self.trouble = f"trying again: {error}"
        else:
            self._failures, self.trouble = 0, ""
            board = self._model.take(sample)
            # A filter may have been typed meanwhile: these are the streams of the one before it.
            if self.board is None or board.scope == self._wanted():
                self.board = board
