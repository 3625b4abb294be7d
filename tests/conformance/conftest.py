"""What every module with a server of its own needs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.guarded import Guarded
from tests.support.wire import connect, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client of the module's server."""
    with connect(server) as made:
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server that asks for tokens."""
    folder = tmp_path_factory.mktemp("auth")
    with serving(folder, auth__mode="on", auth__failures_per_minute=100_000) as server:
        made = Guarded(server)
        yield made
        made.close()
