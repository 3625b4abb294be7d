"""Failed syncs: told once by the kernel, whose memory then holds what the disk does not."""

from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING

import pytest

from engine.storage import LocalStorage
from engine.table.replay import entry_path, recover_state
from tests.support.tables import MONDAY_MS, TableBuilder

if TYPE_CHECKING:
    from pathlib import Path


class Libc:
    """Sync errors as the kernel tells them: once."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)

    def syncfs(self, descriptor: int) -> int:
        del descriptor
        return self.answers.pop(0)


def test_sync_error_of_an_earlier_life_does_not_end_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path / "data")
    ctypes.set_errno(errno.EIO)
    monkeypatch.setattr(storage, "_libc", Libc(-1, 0, -1))
    storage.lock()
    storage.sync_all()
    with pytest.raises(OSError, match="Input/output"):
        storage.sync_all()


class Forgetful(LocalStorage):
    """Some files are whole in memory and empty on the disk."""

    empty: frozenset[str] = frozenset()

    def forget_cached(self, path: str) -> None:
        super().forget_cached(path)
        if path in self.empty:
            self.replace(path, b"")


def test_entry_above_the_durable_mark_is_read_from_the_disk(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "data", "s")
    for number in range(3):
        table.commit(MONDAY_MS + number, [b"1"])
    storage = Forgetful(tmp_path / "data")
    storage.empty = frozenset({entry_path(table.folder, 1), entry_path(table.folder, 2)})
    assert recover_state(storage, table.folder, durable_version=0).version == 0
    assert not storage.exists(entry_path(table.folder, 1))
