"""`bottomless bench`: a quick load on the server, to see what it does from here.

The figures are those of this client too: it is one Python process. bench/run.py measures servers.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bottomless.commands.registry import verb_app
from bottomless.commands.server import Server, server_verb
from bottomless.output import Format, FormatFlag, print_document, say

if TYPE_CHECKING:
    from bottomless.client import AsyncClient
    from bottomless.transport import Transport

app = verb_app()

_JSON: Final = {"content-type": "application/json"}
_FRAME: Final = len('{"data":""}')


@server_verb(
    app,
    "bench",
    "bottomless bench --seconds 1",
    "bottomless bench --writers 4 --batch 1 --bytes 1000 --seconds 0.5 -o json",
)
def bench(
    server: Server,
    writers: Annotated[int, typer.Option(min=1, max=1000, help="Appends at a time.")] = 8,
    bytes_: Annotated[
        int, typer.Option("--bytes", min=_FRAME, max=1 << 20, help="Size of a record.")
    ] = 200,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Records in an append.")] = 100,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600.0, help="How long.")] = 5.0,
    output: FormatFlag = Format.TABLE,
) -> None:
    """Append for some seconds to a stream made for it and deleted at the end; tell how fast it was.

    ack_ms is how long an append took until it was durable, as this client sees it.
    """
    found = asyncio.run(_run(server, writers=writers, size=bytes_, batch=batch, seconds=seconds))
    print_document(found, output)


async def _run(
    server: Server, *, writers: int, size: int, batch: int, seconds: float
) -> dict[str, Any]:
    from bottomless.backoff import Retry
    from bottomless.client import AsyncClient
    from bottomless.transport import Transport, stream_path

    stream = f"bench-{secrets.token_hex(8)}"
    record = b'{"data":"' + secrets.token_hex(size)[: size - _FRAME].encode() + b'"}'
    body = b"[" + b",".join([record] * batch) + b"]"
    retry = Retry(give_up_s=server.wait_s)
    async with (
        AsyncClient(server.url, token=server.token, retry=retry) as client,
        Transport(server.url, token=server.token, retry=retry) as transport,
    ):
        await client.create(stream)
        try:
            begin_s = time.perf_counter()
            end_s = begin_s + seconds
            path = stream_path(stream)
            runs = await asyncio.gather(
                *(_write(transport, path, body, end_s) for _ in range(writers))
            )
            took_s = time.perf_counter() - begin_s
        finally:
            await _clean_up(client, stream)
    acks_ms = sorted(ack_ms for run in runs for ack_ms in run)
    records = len(acks_ms) * batch
    return {
        "writers": writers,
        "batch": batch,
        "record_bytes": size,
        "seconds": round(took_s, 3),
        "appends": len(acks_ms),
        "records": records,
        "records_per_s": round(records / took_s),
        "mb_per_s": round(records * size / took_s / 1e6, 3),
        "ack_ms_p50": _quantile(acks_ms, 0.50),
        "ack_ms_p99": _quantile(acks_ms, 0.99),
        "ack_ms_max": _quantile(acks_ms, 1.0),
    }


async def _write(transport: Transport, path: str, body: bytes, end_s: float) -> list[float]:
    """One writer: as fast as it is answered."""
    acks_ms = []
    while (begin_s := time.perf_counter()) < end_s:
        # Once: an append that was sent again would be counted as a slow one.
        await transport.once("POST", path, content=body, headers=_JSON)
        acks_ms.append((time.perf_counter() - begin_s) * 1000)
    return acks_ms


async def _clean_up(client: AsyncClient, stream: str) -> None:
    from bottomless.errors import BottomlessError

    try:
        # Also after Ctrl-C, which cancels whatever is awaited.
        await asyncio.shield(client.delete(stream))
    except BottomlessError as error:
        say(f"bottomless: {stream} is left over: {error}")


def _quantile(ordered: list[float], share: float) -> float:
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)
