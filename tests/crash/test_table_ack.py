"""Answered by the table: the row is in it, for every other process, and outlives server and log.

And D11 of the original: a disk that fails is told to producers, and leaves nothing half-visible.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from engine.format.names import table_folder
from engine.types import StreamName
from tests.support.load import BROKEN, Client, wait_for
from tests.support.records import RecordsClient
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

# Only what asks for the table gets there before the end of the test.
NEVER = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000"}
WRITERS = 4
READ_TABLE = """
import json, sys
from deltalake import DeltaTable
from pyarrow.dataset import dataset
# to_pyarrow_table leaves threads behind that abort a process which ends at once (delta-rs #2184).
table = dataset(DeltaTable(sys.argv[1]).file_uris()).to_table(columns=["offset", "data"])
rows = sorted((row["offset"], row["data"]) for row in table.to_pylist())
print(json.dumps(rows))
"""


def rows_of(root: Path, name: str) -> dict[str, str]:
    """The table as another process reads it, which knows nothing of this product."""
    path = root / table_folder(StreamName(name))
    done = subprocess.run(
        [sys.executable, "-c", READ_TABLE, str(path)], capture_output=True, check=True, text=True
    )
    rows = json.loads(done.stdout)
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def test_table_ack_means_that_others_see_the_row(tmp_path: Path) -> None:
    with (
        ServerProcess.start(tmp_path / "data", env=NEVER) as server,
        RecordsClient(server.url) as records,
        Client(server.url) as streams,
    ):
        [plain] = records.post("orders/2026", {"n": 0})
        [first, second] = records.post("orders/2026", {"n": 1}, "é", ack="table")
        # What came before lies before it, so it is there too.
        rows = {plain: '{"n": 0}', first: '{"n": 1}', second: '"\\u00e9"'}
        assert rows_of(server.root, "orders/2026") == rows
        appended = streams.append("orders/2026", b"[1.0]", stream_ack="table")
        assert (appended.status, appended.headers["stream-ack"]) == (204, "table")
        rows[appended.tail.replace("_", "")] = "1.0"
        assert rows_of(server.root, "orders/2026") == rows
        records.post("orders/2026", "later")
        assert rows_of(server.root, "orders/2026") == rows


class TableWriter(threading.Thread):
    """Appends with table acks until its server dies; some appends beside it ask for less."""

    def __init__(self, server: ServerProcess, number: int) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.promised: dict[str, bytes] = {}
        self._url = server.url

    def run(self) -> None:
        with RecordsClient(self._url) as client:
            count = 0
            while True:
                count += 1
                text = f'{{"writer":{self.number},"count":{count}}}'.encode()
                body = b'{"records":[%b]}' % text
                try:
                    client.call("POST", "s", body.replace(b"count", b"unsure"))
                    status, answer = client.call("POST", "s", body, ack="table", version=7)
                except BROKEN:
                    return
                assert status == 200, answer
                self.promised[json.loads(answer)["offsets"][0]] = text


def test_table_ack_outlives_the_server_and_its_log(tmp_path: Path) -> None:
    with ServerProcess.start(tmp_path / "data", env=NEVER) as server:
        writers = [TableWriter(server, number) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        wait_for(lambda: all(len(writer.promised) > 10 for writer in writers), "the load")
        server.kill9()
        for writer in writers:
            writer.join(30)
            assert not writer.is_alive()
        promised = {offset: text for one in writers for offset, text in one.promised.items()}
        rows = rows_of(server.root, "s")
        assert promised.items() <= {offset: text.encode() for offset, text in rows.items()}.items()
        shutil.rmtree(server.root / "_wal")
        server.restart()
        with RecordsClient(server.url) as client:
            found = dict(client.pages("s", 1000))
            assert promised.items() <= found.items()
            assert found.keys() == rows.keys()
            # The version was acknowledged with the records, and holds.
            assert client.call("POST", "s", b'{"records":[1]}', version=6)[0] == 409
            [offset] = client.post("s", "after")
            assert offset > max(found)


def test_d11_a_disk_that_fails_is_told_and_leaves_nothing_half_visible(tmp_path: Path) -> None:
    with ServerProcess.start(tmp_path / "data", env=NEVER) as server:
        with RecordsClient(server.url) as client:
            promised = client.post("s", "kept", "x" * 50_000)
            # From here on no file of the server may grow over this, as on a disk that is full.
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
            body = json.dumps({"records": ["y" * 60_000, "never"]}).encode()
            for ack in ("wal", "table"):
                status, answer = client.call("POST", "s", body, ack=ack)
                assert status == 503, answer
                assert json.loads(answer)["code"] == "storage_unavailable"
            assert [offset for offset, _ in client.get("s", offset="-")] == promised
        server.kill9()
        server.restart()
        with RecordsClient(server.url) as client:
            assert [offset for offset, _ in client.get("s", offset="-")] == promised
            client.post("s", "goes on", ack="table")
