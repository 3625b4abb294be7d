"""The simulated disk keeps what was synced and nothing it need not keep."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.sim.disk import Disk, File

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = range(300)


def after_cuts(prepare: Callable[[Disk], None]) -> list[Disk]:
    """The same disk after power cuts with different luck."""
    disks = []
    for seed in SEEDS:
        disk = Disk()
        prepare(disk)
        disk.power_cut(random.Random(seed))
        disks.append(disk)
    return disks


def content(disk: Disk, path: str) -> bytes | None:
    node = disk.find(path)
    return bytes(node.data) if isinstance(node, File) else None


def test_disk_keeps_a_synced_file_in_a_synced_folder() -> None:
    def prepare(disk: Disk) -> None:
        file = disk.create("f")
        file.append(b"x" * 3000)
        file.sync()
        disk.sync_folder(disk.root)

    assert {content(disk, "f") for disk in after_cuts(prepare)} == {b"x" * 3000}


def test_disk_loses_a_synced_file_whose_name_was_not_synced() -> None:
    def prepare(disk: Disk) -> None:
        file = disk.create("f")
        file.append(b"x")
        file.sync()

    assert {content(disk, "f") for disk in after_cuts(prepare)} == {b"x", None}


def test_disk_tears_what_was_not_synced() -> None:
    def prepare(disk: Disk) -> None:
        file = disk.create("f")
        disk.sync_folder(disk.root)
        file.append(b"a" * 600)
        file.sync()
        file.append(b"b" * 1500)

    found = {content(disk, "f") for disk in after_cuts(prepare)}
    assert all(data is not None and data[:512] == b"a" * 512 for data in found)
    assert {b"a" * 600, b"a" * 600 + b"b" * 1500, b"a" * 600 + bytes(1500)} <= found
    # A later sector without an earlier one.
    assert any(data[600:1024] == bytes(424) and b"b" in data[1024:] for data in found if data)
    assert any(len(data) % 512 and len(data) < 2100 for data in found if data)


def test_disk_reorders_names_but_never_tears_a_rename() -> None:
    def prepare(disk: Disk) -> None:
        for name in ("old", "new"):
            file = disk.create(name)
            file.append(name.encode())
            file.sync()
        disk.sync_folder(disk.root)
        node = disk.find("new")
        disk.change((disk.root, "new", None), (disk.root, "old", node))
        disk.create("later")

    found = {
        (content(disk, "old"), content(disk, "new"), disk.find("later") is not None)
        for disk in after_cuts(prepare)
    }
    before, after = (b"old", b"new"), (b"new", None)
    assert found == {(*pair, later) for pair in (before, after) for later in (True, False)}


@pytest.mark.parametrize("forgets", [False, True])
def test_disk_says_that_all_is_well_after_a_sync_has_failed(forgets: bool) -> None:
    lost = 0
    for seed in SEEDS:
        disk = Disk()
        file = disk.create("f")
        disk.sync_folder(disk.root)
        file.append(b"x" * 2000)
        file.fail_sync(random.Random(seed))
        file.sync()
        assert bytes(file.data) == b"x" * 2000
        if forgets:
            file.forget_cached()
        else:
            disk.power_cut(random.Random(seed))
        lost += bytes(file.data) != b"x" * 2000
    assert lost > len(SEEDS) / 2
