"""What most unit tests start from: one engine with a clock and a storage of the test's own."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.model import Lives

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder in memory where there is one: no test here is about the speed of a disk."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="bottomless-", dir=memory if memory.is_dir() else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def lives(root: Path) -> AsyncIterator[Lives]:
    """An engine that was started, and can be stopped, killed and started again."""
    engine = Lives(root)
    await engine.start()
    yield engine
    await engine.bury()
