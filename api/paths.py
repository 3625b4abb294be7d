"""Where a stream's table lies, for people who open it with other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine import BottomlessError, check_stream_name, table_folder

if TYPE_CHECKING:
    from pathlib import Path

    from api.settings import Settings


def table_path(settings: Settings, name: str) -> Path:
    """The folder of the table; ValueError where no stream can have that name."""
    try:
        checked = check_stream_name(name, bytes_max=settings.limits.name_bytes)
    except BottomlessError as error:
        raise ValueError(error.message) from error
    return settings.root.resolve() / table_folder(checked)
