"""How a stream's state is kept in its table, so that tables alone can rebuild every stream.

Numbers go into txn actions, which are replaced in one step with the data; what is fixed or rare
goes into the table's properties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from engine.errors import TableDamaged
from engine.format.frame import StreamMeta
from engine.format.offset import COUNTER_BASE, counter_of, epoch_of
from engine.settings import StreamOverrides
from engine.streams.producers import ProducerState
from engine.table.actions import (
    ACCESSED_APP,
    HELD_COUNTER_APP,
    HELD_EPOCH_APP,
    PRODUCER_APP,
)
from engine.table.commit import CommitRequest
from engine.table.schema import STATE_PROPERTY, STREAM_PROPERTY, table_properties
from engine.table.state import NO_VERSION, TableState
from engine.types import ProducerStamp

if TYPE_CHECKING:
    from engine.settings import EngineSettings
    from engine.streams.stream import Stream
    from engine.types import Offset

_EPOCH_SUFFIX: Final = ":epoch"
_SEQ_SUFFIX: Final = ":seq"


class RareState(msgspec.Struct, frozen=True, omit_defaults=True):
    """State that seldom changes; kept as JSON in a table property."""

    closed: bool = False
    closed_by: ProducerStamp | None = None
    stream_seq: str | None = None
    soft_deleted: bool = False
    fence: int = 0
    settings: str | None = None


def commit_request(
    stream: Stream,
    settings: EngineSettings,
    *,
    owner: int,
    now_ms: int,
    accessed_ms: int,
    token: str,
) -> CommitRequest:
    """Everything durable that the stream's table does not hold yet."""
    txns = producer_txns({id_: stream.producers[id_] for id_ in sorted(stream.producers_changed)})
    if stream.meta.ttl_seconds is not None:
        txns[ACCESSED_APP] = accessed_ms
    if stream.state_changed:
        txns |= held_txns(stream.held)
    is_first = stream.version == NO_VERSION
    return CommitRequest(
        stream_id=stream.id,
        stream_name=stream.name,
        kind=stream.kind,
        batches=stream.buffer.batches(),
        tail=stream.tail,
        owner=owner,
        now_ms=now_ms,
        created_at_ms=stream.meta.created_at_ms,
        row_group_bytes=settings.read.row_group_bytes,
        file_token=token,
        txns=txns,
        configuration=_properties(stream, settings) if is_first or stream.state_changed else None,
    )


def producer_txns(producers: dict[str, ProducerState]) -> dict[str, int]:
    """The numbers that keep the state of producers."""
    txns = {}
    for producer_id, state in producers.items():
        txns[f"{PRODUCER_APP}{producer_id}{_EPOCH_SUFFIX}"] = state.epoch
        txns[f"{PRODUCER_APP}{producer_id}{_SEQ_SUFFIX}"] = state.seq
    return txns


def held_txns(position: Offset) -> dict[str, int]:
    """The numbers that tell retention to leave everything up to a position."""
    return {HELD_EPOCH_APP: epoch_of(position), HELD_COUNTER_APP: counter_of(position)}


def _properties(stream: Stream, settings: EngineSettings) -> dict[str, str]:
    return {
        **table_properties(
            checkpoint_every=settings.commit.checkpoint_every,
            log_retention_days=settings.commit.log_retention_days,
        ),
        STREAM_PROPERTY: msgspec.json.encode(stream.meta).decode(),
        STATE_PROPERTY: msgspec.json.encode(_rare_state(stream)).decode(),
    }


def _rare_state(stream: Stream) -> RareState:
    return RareState(
        closed=stream.closed,
        closed_by=stream.closed_by,
        stream_seq=stream.stream_seq,
        soft_deleted=stream.soft_deleted,
        fence=stream.fence,
        settings=stream.settings_json,
    )


def settings_of(state: TableState) -> StreamOverrides:
    """The stream's own settings, as its table has them."""
    text = _stored_rare_state(state).settings
    return StreamOverrides() if text is None else StreamOverrides.model_validate_json(text)


def _stored_rare_state(state: TableState) -> RareState:
    return msgspec.json.decode(state.configuration.get(STATE_PROPERTY, "{}"), type=RareState)


def meta_of(state: TableState, folder: str) -> StreamMeta | None:
    """The stream a table belongs to; None for a table that is not ours."""
    text = state.configuration.get(STREAM_PROPERTY)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=StreamMeta)
    except msgspec.DecodeError as error:
        raise TableDamaged(f"the stream property of the table in {folder} is damaged") from error


def adopt_table(stream: Stream, state: TableState) -> None:
    """Take over everything the table knows."""
    rare = _stored_rare_state(state)
    stream.begin_at(state.committed)
    stream.closed = rare.closed
    stream.closed_by = rare.closed_by
    stream.stream_seq = rare.stream_seq
    stream.soft_deleted = rare.soft_deleted
    stream.fence = rare.fence
    stream.adopt_settings(rare.settings)
    stream.producers = _producers(state.txns)
    adopt_position(stream, state)


def adopt_position(stream: Stream, state: TableState) -> None:
    """Take over only where the table stands."""
    stream.table = state
    stream.version = state.version
    stream.committed = state.committed


def forget_committed_changes(stream: Stream) -> None:
    """After a replay: what the table holds already need not be committed again."""
    if stream.table is None:
        return
    is_held = stream.table.held == stream.held
    if is_held and _stored_rare_state(stream.table) == _rare_state(stream):
        stream.state_changed = False
    stored = _producers(stream.table.txns)
    stream.producers_changed = {
        producer_id
        for producer_id in stream.producers_changed
        if stored.get(producer_id) != stream.producers[producer_id]
    }


def _producers(txns: dict[str, int]) -> dict[str, ProducerState]:
    found = {}
    for app_id, epoch in txns.items():
        if app_id.startswith(PRODUCER_APP) and app_id.endswith(_EPOCH_SUFFIX):
            producer_id = app_id[len(PRODUCER_APP) : -len(_EPOCH_SUFFIX)]
            seq = txns.get(f"{PRODUCER_APP}{producer_id}{_SEQ_SUFFIX}", 0)
            found[producer_id] = ProducerState(epoch, seq)
    return found


assert COUNTER_BASE < 2**63, "both halves of an offset fit into a txn number"
