"""What must be true at the start of every life, at its end, and of the tables after a stop."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine import errors
from engine.format.names import table_folder
from engine.types import StreamName
from tests.sim.clients import NAMES
from tests.sim.disk import File
from tests.support.load import LogBroken

if TYPE_CHECKING:
    from engine.log import Log
    from tests.sim.clients import Clients
    from tests.sim.disk import Disk
    from tests.sim.oracle import Oracle, Seen, State

KEPT_FOR_FORKS = "kept for its forks"


async def settle_all(clients: Clients) -> None:
    """After a start: everything is there that must be, and what is open is decided."""
    oracle, log = clients.oracle, clients.log
    infos = {name: _look_up(log, name) for name in NAMES}
    oracle.choose(lambda state: _fits(state, infos), f"there is {infos}")
    for stream, is_kept in list(oracle.state.values()):
        if is_kept:
            continue
        info = infos[stream.name]
        stream.is_leaving = False
        stream.id = info.id
        # A durable trim is in force after a start. One that was not synced yet may be undone by a
        # power cut, although readers have seen it.
        stream.gone_to, stream.gone_at = stream.trims[0], oracle.tick()
        oracle.require(await clients.look(stream), stream, "it cannot be read")
        stream.settle()
        oracle.settle_close(stream, is_closed=info.closed)
        own = log.stream_settings(StreamName(stream.name))[0]
        found = own.model_dump(exclude_defaults=True, exclude_none=True)
        oracle.require(found in stream.settings, stream, f"its settings are {found}")
        stream.settings = [found]
    oracle.note_gone()


async def look_at_all(clients: Clients) -> None:
    """Before a stop, with nothing failing: all can be read, also after errors."""
    for stream, is_kept in list(clients.oracle.state.values()):
        if not is_kept and not stream.is_leaving:
            clients.oracle.require(await clients.look(stream), stream, "it cannot be read")


def _look_up(log: Log, name: str) -> Any:
    try:
        return log.head(StreamName(name))
    except errors.StreamNotFound:
        return None
    except errors.StreamGone:
        return KEPT_FOR_FORKS
    except errors.BottomlessError as error:
        raise LogBroken(f"{name}: {error!r}") from error


def _fits(state: State, infos: dict[str, Any]) -> bool:
    for name, info in infos.items():
        stream, is_kept = state.get(name, (None, False))
        if stream is None or is_kept:
            if info != (KEPT_FOR_FORKS if is_kept else None):
                return False
        elif info in (None, KEPT_FOR_FORKS):
            return False
        elif stream.id is None:
            known = {one.id for one, _ in state.values()}
            if info.id in known or info.content_type != stream.content_type:
                return False
        elif stream.id != info.id:
            return False
    return True


def check_tables(oracle: Oracle, disk: Disk) -> None:
    """After a clean stop the tables alone hold everything, once and in order (I6)."""
    for stream, _ in oracle.state.values():
        start = max(stream.fork_offset, *stream.trims)
        rows = table_rows(disk, table_folder(StreamName(stream.name)))
        rows = sorted(item for item in rows if item[0] > start)
        oracle.verify(stream, start, rows, since=oracle.tick(), floor=len(stream.seen))


def table_rows(disk: Disk, folder: str) -> Seen:
    """What a reader of Delta finds that knows nothing of the engine: file by file, as committed."""
    log = disk.folder(f"{folder}/_delta_log")
    files: dict[str, None] = {}
    for name in sorted(name for name in log.names if name.endswith(".json")):
        entry = log.names[name]
        assert isinstance(entry, File)
        for line in bytes(entry.data).splitlines():
            action = json.loads(line)
            if "add" in action:
                files[action["add"]["path"]] = None
            if "remove" in action:
                files.pop(action["remove"]["path"], None)
    return [row for path in files for row in file_rows(bytes(disk.file(f"{folder}/{path}").data))]


@lru_cache(maxsize=64)
def file_rows(data: bytes) -> Seen:
    """The rows of one Parquet file; the same files are looked at again and again."""
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        table = file.read(columns=["offset", "data"], use_threads=False)
    offsets, records = (table.column(name).to_pylist() for name in ("offset", "data"))
    return [
        (int(offset), record if isinstance(record, bytes) else record.encode())
        for offset, record in zip(offsets, records, strict=True)
    ]
