"""What every module with a server of its own needs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.wire import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client of the module's server."""
    with connect(server) as made:
        yield made
