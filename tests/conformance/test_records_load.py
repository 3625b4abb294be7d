"""The records dialect under load: every 200 has as many offsets as records, each readable once.

T1 to T8 are in test_records.py; here are the original's defects that only numbers show (D3, D4).
BOTTOMLESS_LOAD_SECONDS=60 runs it for a minute.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.records import RecordsClient
from tests.support.wire import connect, serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server import ServerProcess

SECONDS = float(os.environ.get("BOTTOMLESS_LOAD_SECONDS", "5"))
WRITERS = 64
RECORDS = 5030
LIMITS = (1, 7, 700, 1000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("records-load")) as process:
        yield process


class Writer(threading.Thread):
    """Appends one record after another, and remembers what it was promised."""

    def __init__(self, url: str, number: int, ends_at: float) -> None:
        super().__init__(daemon=True)
        self.promised: dict[str, bytes] = {}
        self.error: Exception | None = None
        self._url = url
        self._number = number
        self._ends_at = ends_at

    def run(self) -> None:
        try:
            with RecordsClient(self._url) as client:
                while time.monotonic() < self._ends_at:
                    record = {"writer": self._number, "number": len(self.promised)}
                    [offset] = client.post("load", record)
                    self.promised[offset] = json.dumps(record).encode()
        except Exception as error:  # noqa: BLE001  (the test looks at it)
            self.error = error


@pytest.mark.timeout(SECONDS * 3 + 120)
def test_d3_what_64_writers_were_promised_is_read_once(server: ServerProcess) -> None:
    begun = time.monotonic()
    writers = [Writer(server.url, number, begun + SECONDS) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(SECONDS + 60)
    elapsed = time.monotonic() - begun
    assert [writer.error for writer in writers if writer.error] == []
    promised: dict[str, bytes] = {}
    for writer in writers:
        assert writer.promised, "a writer never got through"
        assert list(writer.promised) == sorted(writer.promised)
        promised |= writer.promised
    count = sum(len(writer.promised) for writer in writers)
    print(f"\n{WRITERS} writers, {elapsed:.1f} s: {count} records, {count / elapsed:.0f} a second")
    with RecordsClient(server.url) as client:
        found = client.pages("load", 10_000)
    assert len(found) == len(promised) == count
    assert dict(found) == promised


def test_d4_pages_of_any_size_skip_nothing(server: ServerProcess) -> None:
    """In many flushes; read from the tail, and once more from the table."""
    with RecordsClient(server.url) as client:
        promised: list[str] = []
        while len(promised) < RECORDS:
            size = min(RECORDS - len(promised), 1 + len(promised) % 97)
            promised += client.post("pages", *range(len(promised), len(promised) + size))
        for limit in LIMITS:
            check_pages(client, promised, limit)
        client.post("pages-end", 0, ack="table")
        wait_until(lambda: lag_of(server) == 0, "the records are not in the table")
        for limit in LIMITS:
            check_pages(client, promised, limit)


def check_pages(client: RecordsClient, promised: list[str], limit: int) -> None:
    found = client.pages("pages", limit)
    assert [offset for offset, _ in found] == promised
    assert [data for _, data in found] == [b"%d" % number for number in range(RECORDS)]


def lag_of(server: ServerProcess) -> float:
    """Records that are not yet in a table."""
    with connect(server) as client:
        text = client.get("/metrics").text
    [line] = [
        line for line in text.splitlines() if line.startswith("bottomless_commit_lag_records ")
    ]
    return float(line.split()[1])
