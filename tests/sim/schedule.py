"""One schedule: a seed, a disk, and one life of the engine after another on it.

The engine is the real one; its disk, clock, event loop and threads are simulated, so the seed
decides everything and the same seed does the same again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

import structlog

from engine import errors
from engine.log import Log
from engine.settings import CommitSettings, EngineSettings, ReadSettings, WalSettings
from engine.write import wal
from tests.sim.checks import check_tables, look_at_all, settle_all
from tests.sim.clients import Clients
from tests.sim.disk import Disk
from tests.sim.life import TEMPERS, Life, draw_faults
from tests.sim.loop import SimClock, SimLoop, SimQueue, SimThread
from tests.sim.oracle import Oracle
from tests.sim.storage import Dead, SimStorage
from tests.sim.trace import Trace
from tests.support.load import LogBroken

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator


class Schedule:
    """What one seed means."""

    def __init__(self, seed: int, *, temper: str | None = None, keeps_lines: bool = False) -> None:
        self.seed = seed
        self.asked_temper = temper
        self.rng = random.Random(seed)
        drawn = self.rng.choice(["mixed", *TEMPERS])
        self.temper = TEMPERS[temper or drawn]
        self.trace = Trace(keeps_lines=keeps_lines)
        self.clock = SimClock()
        self.disk = Disk()
        self.oracle = Oracle()
        self.deaths = 0
        self.cuts = 0
        self.starts = 0
        self.failures = 0
        self._fibers = self.rng.choice([0.0, 0.0, 0.0, 0.3, 0.8])
        self._settings = self._draw_settings()
        self._life = Life(self.rng, self.clock, self.trace)

    def _draw_settings(self) -> EngineSettings:
        rng = self.rng
        return EngineSettings(
            wal=WalSettings(segment_bytes=4096),
            commit=CommitSettings(
                interval_ms=rng.choice([10, 300, 1000]),
                bytes=rng.choice([4096, 1 << 20]),
                threads=rng.choice([1, 2]),
                checkpoint_every=2 if rng.random() < 0.01 else 100_000,
            ),
            read=ReadSettings(chunk_bytes=1024, row_group_bytes=1024, threads=1),
        )

    def run(self) -> None:
        """All lives; LogBroken where a promise was not kept."""
        for _ in range(self.rng.choice([1, 2, 2, 3])):
            self._live(is_last=False)
        self._live(is_last=True)
        if self.rng.random() < 0.3:
            self.disk.root.names.pop("_wal", None)
            self.disk.sync_all()
            self._live(is_last=True)

    # Lives.

    def _live(self, *, is_last: bool) -> None:
        life = self._life = Life(self.rng, self.clock, self.trace)
        self._storage = SimStorage(self.disk, life, self.rng)
        loop = SimLoop(self.clock, self.rng, fibers=self._fibers)
        loop.is_dead = lambda: life.is_dead
        if not is_last:
            if self.rng.random() < 0.8:
                life.dies_at = int(self.rng.choice([20, 100, 300]) * self.rng.random()) + 1
            life.faults = draw_faults(self.rng, self.temper)
        self.trace.note("life", "last" if is_last else "")
        try:
            asyncio.set_event_loop(None)
            self._until_end(loop, self._whole_life(life, is_last=is_last))
        except Dead:
            self._die()
        finally:
            life.is_dead = True
            loop.bury()
            self._storage.leave()
            self.failures += life.struck
        for error in loop.complaints:
            raise LogBroken(f"nobody caught {error!r}") from error

    @staticmethod
    def _until_end(loop: SimLoop, work: Coroutine) -> None:
        task = loop.create_task(work)
        try:
            loop.run_until_complete(task)
        finally:
            if task.done():
                # Looked at, so that nobody complains.
                task.cancelled() or task.exception()

    def _die(self) -> None:
        """Killed, or the power is gone; then somebody starts it again."""
        self.deaths += 1
        if self.rng.random() < self.temper.cuts:
            self.cuts += 1
            self.trace.note("power", "cut")
            self.disk.power_cut(self.rng)
        else:
            self.disk.evict(self.rng)
        self.clock.advance(self.rng.choice([0, 1, 100]))
        self.clock.jump(self.rng.choice([0, 0, -3_600_000, 3_600_000, -1, 1000]))

    async def _whole_life(self, life: Life, *, is_last: bool) -> None:
        storage = self._storage
        log = Log(self._settings, storage, clock=self.clock, rng=self.rng)
        self.starts += 1
        try:
            await log.start()
        except (OSError, errors.Unavailable) as error:
            self.trace.note("start", repr(error))
            if not life.struck:
                raise LogBroken(f"a start on a healthy disk has failed: {error!r}") from error
            return
        except errors.DataCorrupt as error:
            raise LogBroken(f"the start was refused: {error}") from error
        clients = Clients(log, self, SimStorage(self.disk, life, self.rng))
        life.is_calm = True
        await settle_all(clients)
        life.is_calm = False
        if not is_last:
            await clients.work()
            if self.rng.random() < 0.5:
                life.die()
                return
            life.is_calm = True
            await look_at_all(clients)
        await log.stop()
        if not life.struck:
            check_tables(self.oracle, self.disk)


def _drop(_: object, __: str, event: dict) -> dict:
    raise structlog.DropEvent


@contextlib.contextmanager
def simulated_threads() -> Iterator[None]:
    """The WAL's thread and queue are those of the simulation; nothing is printed."""
    configured = structlog.get_config()
    structlog.configure(processors=[_drop])
    try:
        with (
            mock.patch.object(wal, "threading", SimpleNamespace(Thread=SimThread)),
            mock.patch.object(wal, "queue", SimpleNamespace(SimpleQueue=SimQueue)),
        ):
            yield
    finally:
        structlog.configure(**configured)
