"""Idempotent producers: one verdict per append, from (epoch, last sequence) alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from engine.errors import BadProducer, SequenceGap, StaleEpoch

if TYPE_CHECKING:
    from engine.types import ProducerStamp


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
