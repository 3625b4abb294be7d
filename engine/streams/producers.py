"""Idempotent producers: one verdict per append, from (epoch, last sequence) alone; and which of
them are at work.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from engine.errors import BadProducer, SequenceGap, StaleEpoch
from engine.format.offset import epoch_of

if TYPE_CHECKING:
    from engine.types import Offset, ProducerStamp

ACTIVE_MS: Final = 60_000
"""A producer that stored something so recently counts as a writer."""


class ProducerState(msgspec.Struct, frozen=True):
    """The newest life of a producer and the highest sequence number accepted from it."""

    epoch: int
    seq: int


def is_duplicate(state: ProducerState | None, stamp: ProducerStamp) -> bool:
    """False: accept and advance. True: seen before, store nothing. Everything else is an error."""
    if state is None:
        if stamp.seq != 0:
            raise SequenceGap(expected=0, received=stamp.seq)
        return False
    if stamp.epoch < state.epoch:
        raise StaleEpoch(current=state.epoch)
    if stamp.epoch > state.epoch:
        if stamp.seq != 0:
            raise BadProducer(
                "a new producer epoch must begin at sequence 0",
                hint=f"Send Producer-Seq: 0 with Producer-Epoch: {stamp.epoch}.",
            )
        return False
    if stamp.seq <= state.seq:
        return True
    if stamp.seq > state.seq + 1:
        raise SequenceGap(expected=state.seq + 1, received=stamp.seq)
    return False


class ActiveProducers:
    """Who has stored something within the last minute, by the time that is in the offsets.

    Also where nobody asks it does not grow: every append lets go of one that is older.
    """

    __slots__ = ("_tails",)

    def __init__(self) -> None:
        self._tails: OrderedDict[str, Offset] = OrderedDict()

    def saw(self, producer_id: str, tail: Offset) -> None:
        """It has stored something; the stream ends there now."""
        self._tails[producer_id] = tail
        self._tails.move_to_end(producer_id)
        self._drop_one(epoch_of(tail) - ACTIVE_MS)

    def count(self, now_ms: int) -> int:
        """How many there are."""
        while self._drop_one(now_ms - ACTIVE_MS):
            pass
        return len(self._tails)

    def _drop_one(self, since_ms: int) -> bool:
        oldest = next(iter(self._tails), None)
        if oldest is None or epoch_of(self._tails[oldest]) >= since_ms:
            return False
        del self._tails[oldest]
        return True
