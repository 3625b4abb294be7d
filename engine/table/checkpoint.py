"""Checkpoints and log clean-up, left to delta-rs: the engine only says when.

deltalake is imported here and nowhere else, and only when a checkpoint is due: a server whose streams are
young never pays for it.
"""

from __future__ import annotations

from engine.storage import Storage


def write_checkpoint(storage: Storage, folder: str) -> None:
    """Write a checkpoint of the newest version, then drop entries past the table's log retention."""
    from deltalake import DeltaTable  # noqa: PLC0415

    table = DeltaTable(storage.uri(folder))
    table.create_checkpoint()
    table.cleanup_metadata()
