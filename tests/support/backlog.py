"""A write-ahead log that has grown for long: written with the engine's own encoder, which is faster
than any client. Digests made on the way tell what has to be in the streams.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from engine.format.batch import SEPARATOR, Batch
from engine.format.frame import (
    AppendMeta,
    StreamMeta,
    decode_frames,
    encode_append,
    encode_create,
    encode_frame,
    encode_segment_header,
)
from engine.format.offset import make_offset
from engine.storage import LocalStorage
from engine.streams.producers import ProducerState
from engine.types import Offset, StreamId
from engine.write.snapshot import SNAPSHOT_PATH, StreamSnapshot, encode_snapshot, load_snapshot
from tests.support.load import JSON
from tests.support.workload import segments

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
PRODUCER = "filler"
APPEND_BYTES = 128 << 10
BIG = tuple(f"big/{number}" for number in range(4))
SMALL = tuple(f"small/{number}" for number in range(40))


@dataclass(slots=True)
class Filled:
    """A stream of the backlog: what it must hold in the end."""

    meta: StreamMeta
    tail: Offset
    digest: Any = field(default_factory=hashlib.sha256)
    count: int = 0
    seq: int = -1
    last: bytes = b""

    def append(self, epoch: int, records: list[bytes]) -> list[bytes | memoryview]:
        """An append as the server would have encoded it."""
        lengths = np.array([len(record) for record in records], dtype="<u4")
        previous, first = self.tail, make_offset(epoch, 1)
        batch = Batch(first, len(records), SEPARATOR.join(records), lengths)
        self.tail, self.last = batch.last, records[-1]
        self.seq += 1
        self.count += len(records)
        for record in records:
            self.digest.update(record + b"\n")
        meta = AppendMeta(PRODUCER, 0, self.seq)
        return encode_append(StreamId(self.meta.id), previous, batch, closes=False, meta=meta)


class Filler:
    """Goes on with the log of a killed server."""

    def __init__(self, root: Path, seed: int, *, segment_bytes: int) -> None:
        self.streams: dict[str, Filled] = {}
        self._rng = random.Random(seed)
        self._root = root
        self._segment_bytes = segment_bytes
        self._pool = self._rng.randbytes(MIB).hex().encode()
        segment = segments(root)[-1]
        frames = list(
            decode_frames(segment.read_bytes(), first_lsn=int(segment.stem), path=segment.name)
        )
        self._lsn, self._epoch = frames[-1].lsn, frames[-1].epoch + 1
        self.bytes = 0

    def fill(self, size: int) -> None:
        """Segments of ``size`` bytes in all: a few streams with most of it, many with a little."""
        names, weights = BIG + SMALL, [100] * len(BIG) + [1] * len(SMALL)
        while self.bytes < size:
            salt = self._rng.getrandbits(64)
            path = self._root / "_wal" / f"{self._lsn + 1:020d}.wal"
            with path.open("wb") as file:
                file.write(encode_segment_header(self._lsn + 1, salt=salt))
                while file.tell() < self._segment_bytes and self.bytes + file.tell() < size:
                    parts: list[bytes | memoryview] = []
                    chosen = set(self._rng.choices(names, weights, k=8))
                    count = sum(self._entry(name, parts) for name in sorted(chosen))
                    payload = b"".join(parts)
                    self._lsn, self._epoch = self._lsn + 1, self._epoch + 1
                    file.write(encode_frame(self._lsn, self._epoch, count, payload, salt=salt))
                    file.write(payload)
                self.bytes += file.tell()

    def _entry(self, name: str, parts: list[bytes | memoryview]) -> int:
        epoch, count = self._epoch + 1, 1
        stream = self.streams.get(name)
        if stream is None:
            meta = StreamMeta(self._rng.getrandbits(63), name, JSON, epoch)
            stream = self.streams[name] = Filled(meta, make_offset(epoch, 0))
            parts += encode_create(meta)
            count = 2
        records = []
        room = APPEND_BYTES
        while room > 0:
            begin = self._rng.randrange(MIB)
            pad = self._pool[begin : begin + self._rng.choice([20, 200, 2000, 8000])]
            records.append(b'{"n":%d,"pad":"%s"}' % (stream.count + len(records), pad))
            room -= len(records[-1])
        parts += stream.append(epoch, records)
        return count

    def tell_snapshot(self) -> None:
        """As if the last snapshot had been saved at the end: it knows all that the log holds."""
        storage = LocalStorage(self._root)
        snapshot = load_snapshot(storage)
        assert snapshot is not None
        streams = [
            StreamSnapshot(
                meta=stream.meta,
                tail=str(stream.tail),
                committed=str(make_offset(stream.meta.created_at_ms, 0)),
                version=-1,
                accessed_ms=0,
                producers={PRODUCER: ProducerState(0, stream.seq)},
                uncommitted=True,
            )
            for stream in self.streams.values()
        ]
        told = msgspec.structs.replace(
            snapshot, lsn=self._lsn, epoch=self._epoch, streams=[*snapshot.streams, *streams]
        )
        storage.replace(SNAPSHOT_PATH, encode_snapshot(told))
