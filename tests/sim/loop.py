"""Time, the event loop and threads of a simulated process: one thing runs at a time, and the seed
says which.

Work for executors and for the thread of the WAL is a job. A job runs in one go, or it is a fiber: a
real thread that runs only while the loop waits for it, and lets others run between its steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from engine.errors import BottomlessError
from tests.sim.storage import Dead

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

BEGIN_MS = 1_760_000_000_000
DEFAULT_WORKERS = 6
TURNS_MAX = 20_000


class Stuck(AssertionError):
    """Somebody waits for ever."""


class SimClock:
    """A monotonic clock that runs as things happen, and a wall clock that is set now and then."""

    def __init__(self) -> None:
        self._us = 5_000_000_000
        self._wall_us = BEGIN_MS * 1000 - self._us

    def now_ms(self) -> int:
        """Wall clock."""
        return (self._us + self._wall_us) // 1000

    def monotonic_ms(self) -> int:
        """Monotonic clock."""
        return self._us // 1000

    def monotonic_s(self) -> float:
        """The same in seconds."""
        return self._us / 1_000_000

    def sleep_s(self, seconds: float) -> None:
        """Waiting costs no time."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Time passes on both clocks."""
        self._us += max(0, int(seconds * 1_000_000))

    def jump(self, milliseconds: int) -> None:
        """Somebody sets the wall clock, but never before 1970."""
        self._wall_us = max(self._wall_us + milliseconds * 1000, 1_000_000_000 - self._us)


class Idle(BaseException):
    """The thread of the WAL has nothing to do; it is begun anew when it has."""


class Fiber:
    """A thread that runs only while ``step`` waits for it."""

    idle: ClassVar[list[Fiber]] = []
    current: ClassVar[Fiber | None] = None

    def __init__(self) -> None:
        # Plain locks: this is done often, and a semaphore costs twice as much.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._work: Callable[[], None] = bool
        self._is_done = True
        threading.Thread(target=self._run, name="fiber", daemon=True).start()

    @classmethod
    def begin(cls, work: Callable[[], None]) -> Fiber:
        """One that will do this work, which must not raise."""
        fiber = cls.idle.pop() if cls.idle else cls()
        fiber._work, fiber._is_done = work, False
        return fiber

    def _run(self) -> None:
        while True:
            self._go.acquire()
            self._work()
            self._is_done = True
            self._back.release()

    def step(self) -> bool:
        """Run up to the next pause; True at the end of the work."""
        Fiber.current = self
        self._go.release()
        self._back.acquire()
        Fiber.current = None
        if self._is_done:
            self.idle.append(self)
        return self._is_done

    def pause(self) -> None:
        """Called by the work: let the others run."""
        self._back.release()
        self._go.acquire()
        Fiber.current = self


class Job:
    """Blocking work and the future that waits for it, or the thread of the WAL."""

    def __init__(self, work: Callable[[], Any], tell: Callable[[Any, BaseException | None], None]):
        self._work = work
        self._tell = tell
        self._fiber: Fiber | None = None
        self.pool: object = None
        self.begin_s = 0.0
        self.is_begun = False

    def step(self, *, in_steps: bool) -> bool:
        """Go on; True if it has ended. The first call says how it runs."""
        if not self.is_begun:
            self.is_begun = True
            if not in_steps:
                self._run()
                return True
            self._fiber = Fiber.begin(self._run)
        assert self._fiber is not None
        return self._fiber.step()

    def _run(self) -> None:
        try:
            result = self._work()
        except (Dead, Idle):
            self._tell(None, None)
        except BaseException as error:  # noqa: BLE001  (whoever waits gets it)
            self._tell(None, error)
        else:
            self._tell(result, None)


class SimLoop(asyncio.BaseEventLoop):
    """Callbacks in their order, jobs in between, and time jumps to where something happens."""

    def __init__(self, clock: SimClock, rng: random.Random, *, fibers: float) -> None:
        super().__init__()
        self._sim_clock = clock
        self._rng = rng
        self._fibers = fibers
        """Share of the jobs that run in steps."""
        self.jobs: list[Job] = []
        self.threads: list[SimThread] = []
        self.is_dead: Callable[[], bool] = bool
        self.turns = 0
        self.complaints: list[BaseException] = []
        """What nobody has caught."""
        self.set_exception_handler(self._complain)

    def _complain(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not self.is_dead() and not isinstance(error, BottomlessError):
            self.complaints.append(error)

    def time(self) -> float:
        """The simulated monotonic clock."""
        return self._sim_clock.monotonic_s()

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(  # type: ignore[override]
        self, executor: ThreadPoolExecutor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Queue the work; it may begin at once or much later."""
        future = self.create_future()

        def tell(result: Any, error: BaseException | None) -> None:
            if not self.is_dead():
                self.call_soon(_settle, future, result, error)

        job = Job(lambda: func(*args), tell)
        job.pool = executor
        if self._rng.random() < 0.2:
            job.begin_s = self.time() + self._rng.choice([0.001, 0.01, 0.1, 1.0, 4.0])
        self.jobs.append(job)
        return future

    # What runs next.

    def _run_once(self) -> None:
        if self.is_dead():
            raise Dead
        self._wake_threads()
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise Stuck(f"after {TURNS_MAX} turns somebody still waits")
        runnable, later = self._runnable()
        if not self._ready and not runnable:
            self._jump(later)
        self._take_due()
        if runnable and (not self._ready or self._rng.random() < 0.5):
            self._step_job(self._rng.choice(runnable))
            return
        count = len(self._ready)
        if count > 1 and self._rng.random() < 0.3:
            count = self._rng.randint(1, count)
        for _ in range(count):
            handle = self._ready.popleft()
            if not handle._cancelled:
                handle._run()
            if self.is_dead():
                raise Dead

    def _runnable(self) -> tuple[list[Job], list[float]]:
        """Jobs that are under way or may begin; and when others begin that have a thread."""
        now_s = self.time()
        busy: dict[object, int] = {}
        for job in self.jobs:
            busy[job.pool] = busy.get(job.pool, 0) + job.is_begun
        found, later = [], []
        for job in self.jobs:
            if job.is_begun:
                found.append(job)
            elif busy[job.pool] < getattr(job.pool, "_max_workers", DEFAULT_WORKERS):
                busy[job.pool] += 1
                if job.begin_s > now_s:
                    later.append(job.begin_s)
                else:
                    found.append(job)
        return found, later

    def _step_job(self, job: Job) -> None:
        if job.step(in_steps=self._rng.random() < self._fibers):
            self.jobs.remove(job)

    def _wake_threads(self) -> None:
        for thread in self.threads:
            job = thread.wake()
            if job is not None:
                self.jobs.append(job)

    def _jump(self, times: list[float]) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(self._scheduled)._scheduled = False
        if self._scheduled:
            times.append(self._scheduled[0]._when)
        if not times:
            raise Stuck("everything waits, and nothing will ever happen")
        self._sim_clock.advance(min(times) - self.time() + 0.000_002)

    def _take_due(self) -> None:
        now_s = self.time()
        while self._scheduled and (
            self._scheduled[0]._cancelled or self._scheduled[0]._when <= now_s
        ):
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            if handle._cancelled:
                self._timer_cancelled_count -= 1
            else:
                self._ready.append(handle)

    def finish(self, thread: SimThread) -> None:
        """Run a thread to its end while the loop itself is blocked."""
        while not thread.is_over:
            self._wake_threads()
            for job in [job for job in self.jobs if job.pool is thread]:
                self._step_job(job)
            if self.is_dead():
                raise Dead

    def bury(self) -> None:
        """After a death: end what is half way, so that nothing is left behind."""
        for job in self.jobs:
            while job.is_begun and not job.step(in_steps=True):
                pass
        self.jobs.clear()
        for task in asyncio.all_tasks(self):
            # It is not lost by mistake.
            task._log_destroy_pending = False
            with contextlib.suppress(RuntimeError):
                task.get_coro().close()
        self.close()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class SimQueue:
    """queue.SimpleQueue for the thread of the WAL: ends the turn where the real one would wait."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, item: Any) -> None:
        """Add; the loop will see it."""
        self.items.append(item)

    def get(self) -> Any:
        """The next one."""
        if not self.items:
            raise Idle
        return self.items.pop(0)


class SimThread:
    """threading.Thread for the WAL: its target is called whenever its queue holds something."""

    def __init__(self, *, target: Callable[[], None], name: str, daemon: bool) -> None:
        del name, daemon
        self._target = target
        self._queue: SimQueue = target.__self__._queue  # type: ignore[attr-defined]
        self._job: Job | None = None
        self.is_over = False

    def start(self) -> None:
        """The loop of this moment runs it."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self._loop = loop
        loop.threads.append(self)

    def join(self) -> None:
        """Blocks the loop."""
        self._loop.finish(self)

    def wake(self) -> Job | None:
        """A job, if there is work and nobody does it."""
        if self._job is not None or not self._queue.items or self.is_over:
            return None
        self._job = Job(self._work, self._ended)
        self._job.pool = self
        return self._job

    def _work(self) -> bool:
        self._target()
        return True

    def _ended(self, result: Any, error: BaseException | None) -> None:
        self._job = None
        self.is_over = self.is_over or result is True
        if error is not None:
            raise error
