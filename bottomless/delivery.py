"""One producer's way out: batches in flight, in order, each stored exactly once.

Several batches are on their way at a time. One that overtakes another is refused by the server (409
with the number it expects) and waits here for its predecessor. A batch whose answer was lost is
sent again with the same number, so that the server drops the second copy.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from bottomless.errors import (
    BottomlessError,
    Conflict,
    DeliveryUnknown,
    Fenced,
    InvalidRequest,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from bottomless.batches import Batch
    from bottomless.formats import Format
    from bottomless.transport import Transport

MODES: Final = ("exactly-once", "at-least-once", "fire-and-forget")
# Epochs are the time in ms, 1024 of them in each: whoever begins later is later, and two who begin
# in the same ms are hardly ever the same. Below 2^53 until the year 2248.
_EPOCHS_PER_MS: Final = 1024
# The second time it waits for the answer to the one before it; after that there is no gap.
_GAPS_MAX: Final = 2


def epoch_of_now() -> int:
    """An epoch above those of whoever began before."""
    return time.time_ns() // 1_000_000 * _EPOCHS_PER_MS + secrets.randbelow(_EPOCHS_PER_MS)


@dataclass(frozen=True, slots=True)
class Delivered:
    """How a batch ended."""

    count: int
    """Values in it."""
    offset: str | None = None
    """The stream's tail after it; None where it failed, or was stored before."""
    error: BottomlessError | None = None
    """Why it failed; None where it is stored."""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer works."""

    id: str = field(default_factory=lambda: f"py-{uuid.uuid4().hex}")
    """Who is writing: one at a time by this name; whoever begins later fences the others off."""
    epoch: int = field(default_factory=epoch_of_now)
    mode: str = "exactly-once"
    """Or ``at-least-once`` (a lost answer may double a batch), ``fire-and-forget`` (never sent
    again)."""
    auto_claim: bool = False
    """Take the name back from whoever has fenced this producer off."""
    batch_bytes: int = 1 << 20
    batch_records: int = 10_000
    linger_ms: float = 5.0
    """How long the first value of a batch waits for others."""
    in_flight: int = 4
    """Batches on their way at a time."""
    buffer_bytes: int = 64 << 20
    """What is not delivered yet; `append` waits above it."""
    on_delivered: Callable[[Delivered], None] | None = None
    """Told of every batch, on the event loop: do not block there."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidRequest(f"mode is one of {', '.join(MODES)}, not {self.mode!r}")
        if min(self.batch_bytes, self.batch_records, self.in_flight, self.buffer_bytes) < 1:
            raise InvalidRequest("batches, requests in flight and the buffer need room for one")


class Deliverer(Protocol):
    """Where a producer's batches go: a server (`Delivery`) or another backend."""

    epoch: int
    error: BottomlessError | None

    @property
    def takes_many(self) -> bool:
        """Whether a batch may hold several values."""

    @property
    def has_room(self) -> bool:
        """Whether one more batch may go."""

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way."""

    def send(self, batch: Batch, *, closes: bool = False) -> None:
        """Send it behind those before it."""

    def begin_anew(self, epoch: int) -> None:
        """After a failure."""

    async def close_stream(self) -> None:
        """Tell readers that nothing more comes."""

    async def cancel(self) -> None:
        """Give up what is on its way."""

    async def finish(self) -> None:
        """Give back what it holds; may be called twice."""


class Delivery:
    """Lives on one event loop."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        content_type: str,
        options: ProducerOptions,
        *,
        format_: Format,
        done: Callable[[Batch], None],
    ) -> None:
        self._transport = transport
        self._path = path
        self._content_type = content_type
        self._mode = options.mode
        self._id = options.id
        self._auto_claim = options.auto_claim
        self._join = format_.join
        self.takes_many = format_.joins
        self._done = done
        # Without numbers only one request at a time keeps the order.
        self._in_flight_max = 1 if options.mode == "at-least-once" else options.in_flight
        self._in_flight: deque[Batch] = deque()
        self._stale: list[Batch] = []
        self._highest_refusal = 0
        self._has_delivered = False
        self.epoch = options.epoch
        self.next_seq = 0
        self.error: BottomlessError | None = None

    @property
    def has_room(self) -> bool:
        """Whether one more batch may go."""
        return self.error is None and not self._stale and len(self._in_flight) < self._in_flight_max

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way."""
        return not self._in_flight and not self._stale

    def send(self, batch: Batch, *, closes: bool = False) -> None:
        """Send it behind those before it; ``done`` is told how it ended."""
        batch.epoch, batch.seq = self.epoch, self.next_seq
        self.next_seq += 1
        batch.sent.clear()
        before = self._in_flight[-1] if self._in_flight else None
        self._in_flight.append(batch)
        batch.task = asyncio.get_running_loop().create_task(
            self._deliver(batch, before, closes=closes), name=f"batch {batch.number}"
        )

    def begin_anew(self, epoch: int) -> None:
        """After a failure: a new epoch, in which the numbers begin at 0."""
        assert self.is_idle
        self.epoch, self.next_seq, self.error = epoch, 0, None
        self._has_delivered = False

    async def close_stream(self) -> None:
        """Close it; doing it twice is doing it once."""
        await self._transport.call("POST", self._path, headers={"stream-closed": "true"})

    async def cancel(self) -> None:
        """Give up what is on its way."""
        tasks = [batch.task for batch in self._in_flight if batch.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def finish(self) -> None:
        """The connections are the client's."""

    async def _deliver(self, batch: Batch, before: Batch | None, *, closes: bool) -> None:
        is_stale = False
        try:
            is_stale = not await self._try(batch, before, closes=closes)
        except BottomlessError as error:
            batch.error = error
        except asyncio.CancelledError:
            batch.error = Unavailable("the producer was stopped before this was delivered")
            raise
        finally:
            batch.sent.set()
            self._in_flight.remove(batch)
            if is_stale:
                self._stale.append(batch)
            else:
                self._end(batch)
            if self._stale and not self._in_flight:
                self._claim()

    def _end(self, batch: Batch) -> None:
        if batch.error is None:
            self._has_delivered = True
        elif self._mode != "fire-and-forget" and self.error is None:
            self.error = batch.error
        self._done(batch)

    async def _try(self, batch: Batch, before: Batch | None, *, closes: bool) -> bool:
        """Until it is stored; False where another epoch is wanted."""
        backoff = self._transport.retry.begin()
        body = self._join(batch.parts)
        if before is not None:
            # Each goes on a connection of its own. Sent side by side one overtakes another and is
            # refused, and so are all behind it: then everything goes twice.
            await before.sent.wait()
        gaps = 0
        while True:
            try:
                return await self._post(batch, body, closes=closes)
            except Conflict as error:
                gaps += 1
                if error.code != "sequence_gap" or before is None or gaps > _GAPS_MAX:
                    raise
                batch.sent.clear()
                if not await self._is_next(before, error, must_end=gaps == _GAPS_MAX):
                    return False
            except Unavailable as error:
                batch.sent.clear()
                batch.is_doubtful = batch.is_doubtful or error.status != 429
                if self._mode == "fire-and-forget":
                    raise
                await backoff.pause(error)

    async def _post(self, batch: Batch, body: bytes, *, closes: bool) -> bool:
        """One try; False where another epoch is wanted."""
        headers = self._headers(batch, closes=closes)
        try:
            response = await self._transport.post(self._path, body, headers, sent=batch.sent.set)
        except Fenced as error:
            if not self._may_claim(batch, error):
                raise
            return False
        return self._is_ours(batch, response)

    async def _is_next(self, before: Batch, gap: Conflict, *, must_end: bool) -> bool:
        """It has overtaken the one before it: wait until that one is sent again, or has ended;
        False where it was refused.
        """
        assert before.task is not None
        await before.sent.wait()
        if must_end:
            await asyncio.wait([before.task])
        if before.error is not None:
            raise before.error from gap
        return before not in self._stale

    def _is_ours(self, batch: Batch, response: httpx.Response) -> bool:
        if self._mode != "exactly-once" or response.status_code != 204 or batch.is_doubtful:
            batch.offset = response.headers.get("stream-next-offset")
            return True
        # Known already, though it was sent only once: somebody else has this id and epoch.
        if not self._may_claim(batch, None):
            raise Fenced(f"another producer has the id {self._id!r} and the same epoch")
        return False

    def _may_claim(self, batch: Batch, error: Fenced | None) -> bool:
        """Take the id over? Not by guessing, and not from somebody who came later."""
        if self._mode != "exactly-once":
            return False
        if batch.is_doubtful:
            raise DeliveryUnknown(
                f"another producer took over the id {self._id!r} while the answer to a batch of"
                f" {batch.count} was lost: it may be stored or not",
                hint="Look at the stream's end before you send it again.",
            ) from error
        current = 0 if error is None else int(error.headers.get("producer-epoch", "0"))
        self._highest_refusal = max(self._highest_refusal, current, self.epoch)
        return self._auto_claim or not self._has_delivered

    def _claim(self) -> None:
        """All that were refused go again, in their order, in an epoch of our own."""
        batches, self._stale = sorted(self._stale, key=lambda batch: batch.number), []
        if self.error is not None:
            for batch in batches:
                batch.error = self.error
                self._done(batch)
            return
        self.epoch, self.next_seq = self._highest_refusal + 1, 0
        for batch in batches:
            self.send(batch)

    def _headers(self, batch: Batch, *, closes: bool) -> dict[str, str]:
        headers = {"content-type": self._content_type}
        if self._mode == "exactly-once":
            headers["producer-id"] = self._id
            headers["producer-epoch"] = str(batch.epoch)
            headers["producer-seq"] = str(batch.seq)
        if closes:
            headers["stream-closed"] = "true"
        return headers
