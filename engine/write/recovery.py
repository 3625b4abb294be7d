"""Start-up: snapshot (or, without one, the tables themselves), then the WAL, then the tables it
touches.

Idempotent, and safe to be killed at any point: nothing is removed before what replaces it is
durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog

from engine import metrics
from engine.errors import (
    BottomlessError,
    ChecksumMismatch,
    CommitUnknown,
    DataCorrupt,
    Fenced,
    TableDamaged,
    Unavailable,
)
from engine.format.frame import (
    SEGMENT_HEADER_BYTES,
    WAY_OUT,
    AppendEntry,
    CreateEntry,
    Entry,
    Frame,
    StreamMeta,
    decode_frames,
    decode_segment_header,
    end_of_frames,
    holds_frames,
)
from engine.format.names import table_folder
from engine.format.offset import epoch_of, make_offset
from engine.job_status import JOBS_FOLDER
from engine.storage import LOCK_PATH, Storage
from engine.streams.registry import Registry
from engine.streams.stream import Stream
from engine.table.actions import ACCESSED_APP, OWNER_APP
from engine.table.commit import commit
from engine.table.replay import entry_path, load_state, recover_state
from engine.table.schema import LOG_FOLDER
from engine.table.state import NO_VERSION, TableState
from engine.types import Offset, StreamId, StreamName
from engine.write.backlog import Backlog, Held
from engine.write.segments import Segments
from engine.write.snapshot import Snapshot, StreamSnapshot, load_snapshot
from engine.write.state import (
    adopt_position,
    adopt_table,
    commit_request,
    forget_committed_changes,
    held_txns,
    meta_of,
    producer_txns,
)
from engine.write.trash import TRASH_FOLDER
from engine.write.wal import WAL_FOLDER

if TYPE_CHECKING:
    import random

    from engine.clock import Clock
    from engine.format.batch import Batch
    from engine.settings import EngineSettings

# Whatever keeps a commit from being made loses nothing: the WAL holds it all.
_COMMIT_FAILED: Final = (Unavailable, CommitUnknown, Fenced, OSError)
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

    def __init__(
        self, storage: Storage, clock: Clock, settings: EngineSettings, *, rng: random.Random
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._settings = settings
        self._rng = rng
        self._found = Recovered()
        self._snapshot_lsn = 0
        self._deleted: list[tuple[str, int]] = []
        self._backlog = Backlog()
        self._opened: set[StreamId] = set()
        """Streams whose table has been taken over."""

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
        next_lsn: int | None = None
        for name in names:
            next_lsn = self._take_segment(name, next_lsn, is_last=name == names[-1])

    def _take_segment(self, name: str, expected: int | None, *, is_last: bool) -> int | None:
        """Replay one file; returns the LSN that comes next. Only the last one may be torn."""
        path = f"{WAL_FOLDER}/{name}"
        data = self._storage.read(path)
        first_lsn = decode_segment_header(data, path=path)
        if first_lsn is None:
            if not is_last or holds_frames(data, first_lsn=_lsn_of(name)):
                raise ChecksumMismatch(f"the header of {path} is missing", hint=WAY_OUT)
            self._check_end(path, expected)
            self._storage.remove(path)
            return expected
        if first_lsn != (self._snapshot_lsn + 1 if expected is None else expected):
            self._check_begin(path, first_lsn, expected)
        end, next_lsn = end_of_frames(data, first_lsn=first_lsn, path=path)
        if end < len(data) and not is_last:
            raise ChecksumMismatch(
                f"WAL segment {path} is damaged at byte {end}, and later segments follow",
                hint=WAY_OUT,
            )
        if is_last:
            self._check_end(path, next_lsn)
            if end == SEGMENT_HEADER_BYTES:
                # Begun and never written: the next group will begin it again.
                self._storage.remove(path)
                return next_lsn
            # Cut the torn frame, and write again what an unlucky page cache may only pretend to
            # have on disk (F5): before any of it may go into a table.
            self._storage.replace(path, data[:end])
        self._replay_segment(path, data[:end], first_lsn)
        return next_lsn

    def _check_begin(self, path: str, first_lsn: int, expected: int | None) -> None:
        if expected is None and first_lsn <= self._snapshot_lsn + 1:
            return
        raise ChecksumMismatch(
            f"WAL segment {path} begins at {first_lsn}, but {expected or self._snapshot_lsn + 1}"
            " comes next: a segment is missing",
            hint=f"Restore the missing file of the _wal folder. {WAY_OUT}",
        )

    def _check_end(self, path: str, next_lsn: int | None) -> None:
        """The newest segment is never trimmed, so it reaches as far as the snapshot."""
        if next_lsn is not None and next_lsn <= self._snapshot_lsn:
            raise ChecksumMismatch(
                f"the write-ahead log ends at {next_lsn - 1} in {path}, but the snapshot knows of"
                f" {self._snapshot_lsn}: its end is missing",
                hint=WAY_OUT,
            )

    def _replay_segment(self, path: str, data: bytes, first_lsn: int) -> None:
        needs: dict[StreamId, Offset] = {}
        for frame in decode_frames(data, first_lsn=first_lsn, path=path):
            self._found.lsn = max(self._found.lsn, frame.lsn)
            self._found.epoch = max(self._found.epoch, frame.epoch)
            for entry in frame.entries:
                self._replay(entry, frame, needs)
            if self._backlog.is_full:
                self._relieve()
        self._found.segments.recovered(first_lsn, len(data), needs)

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
                for victim in registry.remove(stream):
                    self._deleted.append((victim.folder, victim.id))
                    self._backlog.take(victim.id)

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
        if entry.batch is not None:
            if entry.batch.last > stream.committed and stream.fault is None:
                self._backlog.add(entry)
            stream.begin_tail(entry.batch.last)
        if is_new:
            stream.apply_append(closes=entry.closes, meta=entry.meta)
            stream.accessed_ms = max(stream.accessed_ms, self._accessed(stream.meta, frame.epoch))

    # The tables the WAL has records for.

    def _settle(self, stream: Stream) -> None:
        held = self._backlog.take(stream.id)
        try:
            if stream.fault is not None:
                raise stream.fault
            # A commit of the last run may lie above the durable mark, with records or without.
            next_entry = entry_path(stream.folder, stream.version + 1)
            if held.batches or stream.needs_commit or self._storage.exists(next_entry):
                self._open_table(stream)
            for batch in _missing(stream, held):
                stream.buffer.append(batch)
            batches = stream.buffer.batches()[-1:]
            position = batches[0].last if batches else stream.committed
            if position < stream.tail:
                raise _gap(stream, position, stream.tail)
            if position > stream.tail and stream.table is not None:
                # The log has lost its end: what the table says is newer.
                adopt_table(stream, stream.table)
            forget_committed_changes(stream)
        except BottomlessError as error:
            # One damaged stream does not keep the others from starting.
            _log.error("stream is damaged", stream=stream.name, error=str(error), hint=error.hint)
            stream.fault = error

    def _open_table(self, stream: Stream) -> bool:
        """Take over where the table stands, once; returns whether the stream may commit to it."""
        if stream.id in self._opened:
            return True
        if not self._storage.exists(f"{stream.folder}/{LOG_FOLDER}"):
            if stream.durable_version == NO_VERSION:
                return True
            raise TableDamaged(f"the table of {stream.name} is missing")
        mark = stream.durable_version
        state = recover_state(self._storage, stream.folder, durable_version=mark)
        meta = meta_of(state, stream.folder)
        if meta is not None and meta.id == stream.id:
            adopt_position(stream, state)
            self._opened.add(stream.id)
        elif stream.durable_version != NO_VERSION:
            raise TableDamaged(f"the folder of {stream.name} holds another table")
        else:
            return state.version == NO_VERSION
        return True

    # A backlog that is larger than the memory.

    def _relieve(self) -> None:
        """Commit the largest parts of the backlog, as the committer would have done.

        Each commit is whole and names its end, so a start-up that is killed here goes on from
        there. The WAL is left as it is: only the trimmer forgets anything of it.
        """
        try:
            if self._deleted:
                self._remove_trash()
            for stream_id in self._backlog.to_commit():
                stream = self._found.registry.by_id(stream_id)
                assert stream is not None
                self._commit_held(stream, self._backlog.take(stream_id))
        except _COMMIT_FAILED as error:
            _log.warning(
                "the backlog cannot be committed; it is kept in memory",
                error=str(error),
                hint="Nothing is lost. Free or repair the disk of the tables.",
            )
            self._backlog.lift_bound()
        self._backlog.relieved()

    def _commit_held(self, stream: Stream, held: Held) -> None:
        try:
            is_free = self._open_table(stream)
            batches = _missing(stream, held)
            if not is_free:
                # What lies there belongs to a stream that will be deleted.
                self._backlog.put_back(stream.id, held)
            elif batches:
                self._commit(stream, batches, held)
        except DataCorrupt as error:
            # Told when everything is known: the stream may still be deleted.
            stream.fault = error
        except _COMMIT_FAILED:
            # It may be there although it seems to have failed (F3): the table is read again.
            self._opened.discard(stream.id)
            self._backlog.put_back(stream.id, held)
            raise

    def _commit(self, stream: Stream, batches: list[Batch], held: Held) -> None:
        """Records and the producers they came from; all other state follows when all is known.

        So do the forks: until then retention has to leave everything.
        """
        state = stream.table or TableState()
        now_ms = self._clock.now_ms()
        request = commit_request(
            stream,
            self._settings,
            owner=max(self._found.owner + 1, state.txns.get(OWNER_APP, 0)),
            now_ms=now_ms,
            accessed_ms=0,
            token=f"{now_ms:013d}-{self._rng.getrandbits(64):016x}",
        )
        request = replace(
            request,
            batches=batches,
            tail=batches[-1].last,
            txns={**producer_txns(held.producers), **held_txns(batches[-1].last)},
            configuration=request.configuration if stream.version == NO_VERSION else None,
        )
        for version, entry in commit(self._storage, stream.folder, state, request):
            state.apply(entry, version)
        metrics.commits.inc()
        stream.state_changed = True
        self._opened.add(stream.id)
        adopt_position(stream, state)

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
        self._deleted.clear()

    def _find_foreign_folders(self) -> None:
        ours = {stream.folder for stream in self._found.registry}
        ours |= {WAL_FOLDER, TRASH_FOLDER, LOCK_PATH, JOBS_FOLDER}
        self._found.registry.foreign_folders = set(self._storage.names("")) - ours


def _missing(stream: Stream, held: Held) -> list[Batch]:
    """What the table does not hold; TableDamaged where records between the two are missing."""
    position = stream.committed
    found = []
    for previous, batch in held.batches:
        if batch.last <= stream.committed:
            continue
        if previous != position:
            raise _gap(stream, position, previous)
        found.append(batch)
        position = batch.last
    return found


def _gap(stream: Stream, position: Offset, wal_position: Offset) -> TableDamaged:
    return TableDamaged(
        f"records of {stream.name} are missing between its table and the WAL",
        hint="Restore the table's folder and the _wal folder from a copy. To go on without what is"
        " missing, move the whole _wal folder aside: the tables tell the rest.",
        table_ends=str(position),
        wal_begins=str(wal_position),
    )


def _lsn_of(name: str) -> int:
    """The first LSN of a segment as its name tells it."""
    digits = name.removesuffix(".wal")
    return int(digits) if digits.isdecimal() else 0
