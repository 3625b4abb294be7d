"""The streams' tables as a job sees them: found below the root, opened, locked for one job."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from engine.errors import BottomlessError, StreamNotFound, Unavailable
from engine.format.names import table_folder
from engine.job_status import JOBS_FOLDER
from engine.storage import LocalStorage
from engine.table.replay import load_state, replay_log
from engine.table.schema import LOG_FOLDER
from engine.types import PayloadKind, StreamName, check_stream_name, payload_kind
from engine.write.state import meta_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from engine.format.frame import StreamMeta
    from engine.settings import StreamOverrides
    from engine.table.state import TableState

_NAME_BYTES_MAX: Final = 4096


class StreamBusy(Unavailable):
    """Another job works on the stream."""

    code = "stream_busy"


@dataclass(slots=True)
class StreamTable:
    """One stream's table at the version a job has seen last."""

    storage: LocalStorage
    folder: str
    meta: StreamMeta
    state: TableState

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.meta.name

    @property
    def overrides(self) -> StreamOverrides:
        """What the stream has of its own among the settings."""
        return settings_of(self.state)

    @property
    def kind(self) -> PayloadKind:
        """How records are stored."""
        return payload_kind(self.meta.content_type)

    @property
    def path(self) -> Path:
        """The table's folder."""
        return self.storage.root / self.folder

    @property
    def bytes(self) -> int:
        """Size of the live files."""
        return sum(file.size for file in self.state.files.values())

    @property
    def rows(self) -> int:
        """Records in the live files."""
        return sum(file.rows for file in self.state.files.values())

    def refresh(self, *, from_log: bool = False) -> None:
        """Look at the newest version; from the log alone, for whoever checks the index."""
        self.state = (replay_log if from_log else load_state)(self.storage, self.folder)


def open_root(root: Path) -> LocalStorage:
    """The data folder; StreamNotFound where there is none, for a job must not make one."""
    if not root.is_dir():
        raise StreamNotFound(
            f"there is no data folder {root}", hint="Name the server's folder with --root."
        )
    return LocalStorage(root.resolve())


def open_table(storage: LocalStorage, folder: str) -> StreamTable | None:
    """The table in a folder; None where it is not the table of a stream.

    Pinned: should the stream be deleted and created anew, the job never touches the new table.
    """
    try:
        storage = storage.pin(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not storage.exists(f"{folder}/{LOG_FOLDER}"):
        return None
    state = load_state(storage, folder)
    meta = meta_of(state, folder)
    if meta is None or table_folder(StreamName(meta.name)) != folder:
        return None
    return StreamTable(storage, folder, meta, state)


def find_table(storage: LocalStorage, name: str) -> StreamTable:
    """The table of a stream; StreamNotFound where it has none."""
    checked = check_stream_name(name, bytes_max=_NAME_BYTES_MAX)
    table = open_table(storage, table_folder(checked))
    if table is None:
        raise StreamNotFound(
            f"the stream {name} has no table below {storage.root}",
            hint="Its first commit makes it, a second after its first record.",
        )
    return table


def find_folders(storage: LocalStorage, names: list[str] | None) -> list[str]:
    """Folders of the named streams, or of all of them; our own folders begin with one letter
    more than an underscore.
    """
    if names:
        return [find_table(storage, name).folder for name in names]
    return [folder for folder in storage.names("") if storage.exists(f"{folder}/{LOG_FOLDER}")]


@contextlib.contextmanager
def lock_table(storage: LocalStorage, folder: str) -> Iterator[None]:
    """One job per stream. An flock: it ends with the process, however that ends."""
    storage.make_folder(JOBS_FOLDER)
    path = storage.root / JOBS_FOLDER / f"{folder}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StreamBusy(
                f"another job works on {folder}", hint="Wait for it, or stop `maintain`."
            ) from error
        yield
    finally:
        os.close(descriptor)


def explain(error: BottomlessError) -> str:
    """The message, and what to do."""
    return error.message if error.hint is None else f"{error.message} ({error.hint})"
