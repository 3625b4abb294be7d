"""Folder names of tables: ``[A-Za-z0-9_-]`` only, because delta-rs decodes ``%`` in paths (F6).

A plain name is its own folder. Every other name gets ``_-`` and an injective escape; one that would
be too long for a file system gets ``_h-`` and a hash. Folders of our own (``_wal``) never begin so.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from engine.types import StreamName

FOLDER_BYTES_MAX: Final = 200
_PLAIN: Final = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_-]*", re.ASCII)
_KEPT: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")


def table_folder(name: StreamName) -> str:
    """The folder of the stream's table, below the root."""
    if len(name) <= FOLDER_BYTES_MAX and _PLAIN.fullmatch(name):
        return name
    escaped = "_-" + "".join(
        chr(byte) if byte in _KEPT else f"_{byte:02x}" for byte in name.encode("utf-8")
    )
    if len(escaped) <= FOLDER_BYTES_MAX:
        return escaped
    return "_h-" + hashlib.sha256(name.encode("utf-8")).hexdigest()
