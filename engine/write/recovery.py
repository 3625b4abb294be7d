"""Start-up: snapshot (or, without one, the tables themselves), then the WAL, then the tables it
touches.

Idempotent, and safe to be killed at any point: nothing is removed before what replaces it is
durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from engine.errors import ChecksumMismatch, DataCorrupt, TableDamaged
from engine.format.frame import (
    SEGMENT_HEADER_BYTES,
    AppendEntry,
    CreateEntry,
    Entry,
    Frame,
    StreamMeta,
    decode_frames,
    decode_segment_header,
)
from engine.format.names import table_folder
from engine.format.offset import epoch_of, make_offset
from engine.job_status import JOBS_FOLDER
from engine.storage import LOCK_PATH, Storage
from engine.streams.registry import Registry
from engine.streams.stream import Stream
from engine.table.actions import ACCESSED_APP, OWNER_APP
from engine.table.replay import entry_path, load_state, recover_state
from engine.table.schema import LOG_FOLDER
from engine.table.state import NO_VERSION
from engine.types import Offset, StreamId, StreamName
from engine.write.segments import Segments
from engine.write.snapshot import Snapshot, StreamSnapshot, load_snapshot
from engine.write.state import (
    adopt_position,
    adopt_table,
    forget_committed_changes,
    meta_of,
)
from engine.write.trash import TRASH_FOLDER
from engine.write.wal import WAL_FOLDER

if TYPE_CHECKING:
    from engine.clock import Clock
    from engine.format.batch import Batch

_log: Final = structlog.get_logger("engine.recovery")


@dataclass(slots=True)
class Recovered:
    """Everything a start-up found."""

    registry: Registry = field(default_factory=Registry)
    segments: Segments = field(default_factory=Segments)
    lsn: int = 0
    epoch: int = 0
    owner: int = 0


class Recovery:
    """One start-up."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._found = Recovered()
        self._snapshot_lsn = 0
        self._deleted: list[tuple[str, int]] = []
        self._batches: dict[StreamId, list[tuple[Offset, Batch]]] = {}

    def run(self) -> Recovered:
        """Rebuild every stream; DataCorrupt where going on could lose acknowledged records."""
        self._storage.make_folder(WAL_FOLDER)
        snapshot = load_snapshot(self._storage)
        if snapshot is None:
            self._scan_tables()
        else:
            self._restore(snapshot)
        self._replay_segments()
        for stream in self._found.registry:
            self._settle(stream)
        self._remove_trash()
        self._find_foreign_folders()
        return self._found

    # Without a snapshot: the tables are the truth.

    def _scan_tables(self) -> None:
        found: dict[StreamId, Stream] = {}
        for folder in self._storage.names(""):
            if not self._storage.exists(f"{folder}/{LOG_FOLDER}"):
                continue
            try:
                state = load_state(self._storage, folder)
                meta = meta_of(state, folder)
            except DataCorrupt as error:
                # Damaged, or a table of somebody else: its name stays taken, the others start.
                _log.error("table left out", folder=folder, error=str(error), hint=error.hint)
                continue
            if meta is None or table_folder(StreamName(meta.name)) != folder:
                continue
            accessed = state.txns.get(ACCESSED_APP, epoch_of(state.committed))
            stream = Stream(meta, source=None, accessed_ms=self._accessed(meta, accessed))
            adopt_table(stream, state)
            stream.durable_version = state.version
            found[stream.id] = stream
            self._found.epoch = max(self._found.epoch, epoch_of(stream.tail))
            self._found.owner = max(self._found.owner, state.txns.get(OWNER_APP, 0))
        self._link(found)

    def _link(self, found: dict[StreamId, Stream]) -> None:
        """Connect forks with their sources, then make all of them visible."""
        for stream in found.values():
            source_id = stream.meta.fork_source_id
            if source_id is not None:
                stream.source = found.get(StreamId(source_id))
                if stream.source is None:
                    stream.fault = TableDamaged(
                        f"the stream {stream.name} was forked from {stream.meta.fork_source_name},"
                        " whose table is missing",
                        hint="Restore the source's folder from a copy.",
                    )
        for stream in found.values():
            self._found.registry.add(stream)

    # With a snapshot: the streams as of the last trim.

    def _restore(self, snapshot: Snapshot) -> None:
        found = {}
        for saved in snapshot.streams:
            stream = self._restore_stream(saved)
            found[stream.id] = stream
        self._link(found)
        self._snapshot_lsn = self._found.lsn = snapshot.lsn
        self._found.epoch = snapshot.epoch
        self._found.owner = snapshot.owner
        self._deleted += snapshot.trash

    def _restore_stream(self, saved: StreamSnapshot) -> Stream:
        accessed_ms = self._accessed(saved.meta, saved.accessed_ms)
        stream = Stream(saved.meta, source=None, accessed_ms=accessed_ms)
        stream.begin_at(Offset(int(saved.tail)))
        stream.committed = Offset(int(saved.committed))
        stream.version = stream.durable_version = saved.version
        stream.closed, stream.closed_by = saved.closed, saved.closed_by
        stream.stream_seq, stream.soft_deleted = saved.stream_seq, saved.soft_deleted
        stream.fence = saved.fence
        stream.adopt_settings(saved.settings)
        stream.producers = dict(saved.producers)
        if saved.uncommitted:
            stream.state_changed = True
            stream.producers_changed = set(stream.producers)
        return stream

    def _accessed(self, meta: StreamMeta, accessed_ms: int) -> int:
        """The last access on this process's monotonic clock; a clock that jumped cannot make it
        negative.
        """
        idle_ms = max(0, self._clock.now_ms() - accessed_ms)
        window_ms = idle_ms if meta.ttl_seconds is None else meta.ttl_seconds * 1000
        return self._clock.monotonic_ms() - min(idle_ms, window_ms)

    # The WAL.

    def _replay_segments(self) -> None:
        names = [name for name in self._storage.names(WAL_FOLDER) if name.endswith(".wal")]
        expected: int | None = None
        for name in names:
            path = f"{WAL_FOLDER}/{name}"
            is_last = name == names[-1]
            data = self._storage.read(path)
            first_lsn = decode_segment_header(data, path=path)
            if first_lsn is None:
                if not is_last:
                    raise ChecksumMismatch(f"the header of {path} is missing")
                self._storage.remove(path)
                return
            if first_lsn != (self._snapshot_lsn + 1 if expected is None else expected):
                self._check_begin(path, first_lsn, expected)
            end, expected = self._replay_segment(path, data, first_lsn)
            if is_last and end == SEGMENT_HEADER_BYTES:
                # Begun and never written: the next group will begin it again.
                self._found.segments.forget([first_lsn])
                self._storage.remove(path)
                return
            if end < len(data) and not is_last:
                raise ChecksumMismatch(
                    f"WAL segment {path} is damaged at byte {end}, and later segments follow",
                    hint="Restore the file from a copy, or move it aside to accept the loss.",
                )
            if is_last:
                # Cut the torn frame, and write again what an unlucky page cache may only pretend to
                # have on disk (F5).
                self._storage.replace(path, data[:end])

    def _check_begin(self, path: str, first_lsn: int, expected: int | None) -> None:
        if expected is None and first_lsn <= self._snapshot_lsn + 1:
            return
        raise ChecksumMismatch(
            f"WAL segment {path} begins at {first_lsn}, but {expected or self._snapshot_lsn + 1}"
            " comes next: a segment is missing",
            hint="Restore the missing file of the _wal folder.",
        )

    def _replay_segment(self, path: str, data: bytes, first_lsn: int) -> tuple[int, int]:
        end, lsn = SEGMENT_HEADER_BYTES, first_lsn - 1
        needs: dict[StreamId, Offset] = {}
        for frame in decode_frames(data, first_lsn=first_lsn, path=path):
            end, lsn = frame.end, frame.lsn
            self._found.lsn = max(self._found.lsn, lsn)
            self._found.epoch = max(self._found.epoch, frame.epoch)
            for entry in frame.entries:
                self._replay(entry, frame, needs)
        self._found.segments.recovered(first_lsn, end, needs)
        return end, lsn + 1

    def _replay(self, entry: Entry, frame: Frame, needs: dict[StreamId, Offset]) -> None:
        registry = self._found.registry
        is_new = frame.lsn > self._snapshot_lsn
        if isinstance(entry, CreateEntry):
            if is_new and registry.by_id(entry.stream_id) is None:
                self._replay_create(entry, frame.epoch)
            return
        stream = registry.by_id(entry.stream_id)
        if isinstance(entry, AppendEntry):
            if stream is not None:
                self._replay_append(stream, entry, frame, is_new=is_new)
                if entry.batch is not None:
                    needs[stream.id] = entry.batch.last
        elif is_new:
            self._found.epoch = max(self._found.epoch, frame.epoch + 1)
            if stream is not None:
                gone = registry.remove(stream)
                self._deleted += [(victim.folder, victim.id) for victim in gone]

    def _replay_create(self, entry: CreateEntry, epoch: int) -> None:
        meta = entry.meta
        source_id = meta.fork_source_id
        source = None if source_id is None else self._found.registry.by_id(StreamId(source_id))
        stream = Stream(meta, source=source, accessed_ms=self._accessed(meta, epoch))
        stream.begin_at(stream.fork_offset if source_id is not None else make_offset(epoch, 0))
        if source_id is not None and source is None:
            stream.fault = TableDamaged(f"the source of the fork {stream.name} is missing")
        self._found.registry.add(stream)
        if source is not None:
            source.state_changed = True

    def _replay_append(
        self, stream: Stream, entry: AppendEntry, frame: Frame, *, is_new: bool
    ) -> None:
        if entry.batch is not None and entry.batch.last > stream.committed:
            self._batches.setdefault(stream.id, []).append((entry.previous, entry.batch))
            stream.begin_tail(entry.batch.last)
        if is_new:
            stream.apply_append(closes=entry.closes, meta=entry.meta)
            stream.accessed_ms = max(stream.accessed_ms, self._accessed(stream.meta, frame.epoch))

    # The tables the WAL has records for.

    def _settle(self, stream: Stream) -> None:
        batches = self._batches.pop(stream.id, [])
        if stream.fault is not None:
            return
        try:
            # A commit of the last run may lie above the durable mark, with records or without.
            next_entry = entry_path(stream.folder, stream.version + 1)
            if batches or stream.needs_commit or self._storage.exists(next_entry):
                self._open_table(stream)
            position = stream.committed
            for previous, batch in batches:
                if batch.last <= stream.committed:
                    continue
                if previous != position:
                    raise TableDamaged(
                        f"records of {stream.name} are missing between its table and the WAL",
                        hint="Restore the table's folder from a copy.",
                        table_ends=str(position),
                        wal_begins=str(previous),
                    )
                stream.buffer.append(batch)
                position = batch.last
            stream.begin_tail(position)
            forget_committed_changes(stream)
        except DataCorrupt as error:
            # One damaged stream does not keep the others from starting.
            _log.error("stream is damaged", stream=stream.name, error=str(error), hint=error.hint)
            stream.fault = error

    def _open_table(self, stream: Stream) -> None:
        if not self._storage.exists(f"{stream.folder}/{LOG_FOLDER}"):
            if stream.durable_version == NO_VERSION:
                return
            raise TableDamaged(f"the table of {stream.name} is missing")
        mark = stream.durable_version
        state = recover_state(self._storage, stream.folder, durable_version=mark)
        meta = meta_of(state, stream.folder)
        if meta is not None and meta.id == stream.id:
            adopt_position(stream, state)
        elif stream.durable_version != NO_VERSION:
            raise TableDamaged(f"the folder of {stream.name} holds another table")

    # What was deleted.

    def _remove_trash(self) -> None:
        used = {stream.folder for stream in self._found.registry}
        for folder, stream_id in self._deleted:
            if not self._storage.exists(folder):
                continue
            state = recover_state(self._storage, folder, durable_version=NO_VERSION)
            meta = meta_of(state, folder)
            # A folder without a log is what a first commit leaves that was cut short.
            is_litter = meta is None and folder not in used
            if is_litter or (meta is not None and meta.id == stream_id):
                self._storage.make_folder(TRASH_FOLDER)
                self._storage.rename(folder, f"{TRASH_FOLDER}/{folder}-{stream_id:x}")
        self._storage.remove_folder(TRASH_FOLDER)

    def _find_foreign_folders(self) -> None:
        ours = {stream.folder for stream in self._found.registry}
        ours |= {WAL_FOLDER, TRASH_FOLDER, LOCK_PATH, JOBS_FOLDER}
        self._found.registry.foreign_folders = set(self._storage.names("")) - ours
