"""How many bytes a stream's table takes, of the bytes that were sent: typical JSON events.

    make bench-storage

Three kinds of events, each into a stream of its own, as a producer sends them: some hundred at a
time, committed by the server's own settings. What is sent counts as NDJSON, a line per event.
Results go to bench/results/storage.json.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import tempfile
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from growth import JSON, settle
from pyarrow.parquet import ParquetFile
from subjects import BY_NAME, CLONE, Running

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 500
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
PATHS = [
    "/",
    "/api/cart",
    "/api/orders",
    "/api/products",
    "/api/search",
    "/login",
    "/assets/app.js",
]
AGENTS = [
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 19_1 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
    "Mozilla/5.0 (X11; Linux x86_64; rv:144.0) Gecko/20100101 Firefox/144.0",
    "curl/8.16.0",
]
ITEMS = ["tea", "cake", "jam", "bread", "butter", "coffee", "honey", "milk"]
HOSTS = [f"web-{number:02d}.eu-west" for number in range(20)]


def request_of(source: random.Random, number: int) -> dict[str, Any]:
    """A line of a web server's log."""
    return {
        "ts": moment(number),
        "method": source.choice(["GET", "GET", "GET", "GET", "POST", "PUT"]),
        "path": source.choice(PATHS),
        "status": source.choice([200] * 12 + [304, 404, 500]),
        "bytes": int(source.lognormvariate(8, 1.5)),
        "ms": round(source.lognormvariate(3, 1), 2),
        "ip": f"10.{source.randrange(8)}.{source.randrange(256)}.{source.randrange(256)}",
        "agent": source.choice(AGENTS),
    }


def order_of(source: random.Random, number: int) -> dict[str, Any]:
    """A business event, with random ids."""
    lines = [
        {"sku": item, "count": source.randrange(1, 5), "price": source.randrange(100, 5000) / 100}
        for item in source.sample(ITEMS, source.randrange(1, 4))
    ]
    return {
        "type": source.choice(["order.created", "order.paid", "order.shipped"]),
        "id": str(uuid.UUID(int=source.getrandbits(128), version=4)),
        "at": moment(number),
        "customer": f"c-{int(source.paretovariate(0.6)) % 100_000:06d}",
        "lines": lines,
        "total": round(sum(line["count"] * line["price"] for line in lines), 2),
        "currency": source.choice(["EUR", "EUR", "EUR", "USD", "GBP"]),
    }


def reading_of(source: random.Random, number: int) -> dict[str, Any]:
    """A metric."""
    return {
        "name": source.choice(["cpu.busy", "memory.used", "disk.read", "net.sent"]),
        "host": source.choice(HOSTS),
        "time": moment(number),
        "value": round(source.gauss(50, 12), 3),
        "tags": {"region": "eu-west-1", "service": source.choice(["shop", "search", "mail"])},
    }


KINDS: dict[str, Callable[[random.Random, int], dict[str, Any]]] = {
    "web requests": request_of,
    "orders": order_of,
    "metric readings": reading_of,
}


def moment(number: int) -> str:
    """A hundred events a second."""
    at = BEGIN + timedelta(milliseconds=10 * number)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=200_000, help="events of each kind")
    parser.add_argument("--folder", type=Path, default=CLONE / ".venv" / "bench" / "data")
    parser.add_argument("--results", type=Path, default=CLONE / "bench/results/storage.json")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="storage-", dir=options.folder) as root,
        Running(BY_NAME["bottomless"], Path(root)) as server,
    ):
        kinds = [measure(server, kind, options.records) for kind in KINDS]
    whole = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "records": options.records,
        "kinds": kinds,
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(whole, indent=1) + "\n")
    return 0


def measure(server: Running, kind: str, records: int) -> dict[str, Any]:
    stream = kind.replace(" ", "-")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("PUT", f"/v1/stream/{stream}", headers=JSON)
    connection.getresponse().read()
    source, sent = random.Random(kind), 0
    for first in range(0, records, BATCH):
        events = [
            json.dumps(KINDS[kind](source, number), separators=(",", ":")).encode()
            for number in range(first, min(first + BATCH, records))
        ]
        sent += sum(len(event) + 1 for event in events)
        connection.request("POST", f"/v1/stream/{stream}", b"[" + b",".join(events) + b"]", JSON)
        response = connection.getresponse()
        response.read()
        assert response.status == 204, response.status
    connection.close()
    settle(server, stream)
    table = server.root / "data" / stream
    files = list(table.rglob("*.parquet"))
    files = [path for path in files if "_delta_log" not in path.parts]
    stored = sum(ParquetFile(path).metadata.num_rows for path in files)
    assert stored == records + 1, f"{stored} rows for {records} events and the last one"
    parquet = sum(path.stat().st_size for path in files)
    found = {
        "kind": kind,
        "mean_bytes": round(sent / records, 1),
        "sent": sent,
        "parquet": parquet,
        "files": len(files),
        "log": sum(path.stat().st_size for path in (table / "_delta_log").iterdir()),
        "share": round(parquet / sent, 3),
    }
    print(json.dumps(found), flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
