"""One look at a server: a page of its streams, and its counters. Two small requests, once."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import msgspec

from bottomless.client import ListedStream
from bottomless.errors import DataDamaged
from bottomless.top.model import Sample, Totals

if TYPE_CHECKING:
    from bottomless.transport import Transport

_LINE: Final = re.compile(r"^bottomless_(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class Page(msgspec.Struct):
    """The answer of GET /v1/streams."""

    streams: list[ListedStream]
    next: str | None = None
    has_more: bool = False
    now: str | None = None
    started: str = ""


class Sampler:
    """Looks at a server when asked to. One that is patient tries again, as its transport says."""

    def __init__(self, transport: Transport, *, limit: int, is_patient: bool = False) -> None:
        self._get = transport.call if is_patient else transport.once
        self._limit = limit

    async def look(self, name_filter: str) -> Sample:
        """The streams that match and were appended to last; raises where there is no answer."""
        measured = await self._get("GET", "/metrics")
        params = {"order": "newest", "limit": str(self._limit), **query_of(name_filter)}
        response = await self._get("GET", "/v1/streams", params=params)
        at_s = time.monotonic()
        try:
            page = msgspec.json.decode(response.content, type=Page)
        except msgspec.DecodeError as error:
            raise DataDamaged(f"the list of streams cannot be read: {error}") from error
        return Sample(
            at_s=at_s,
            streams=page.streams,
            totals=parse_totals(measured.text),
            started=page.started,
            now=page.now,
            is_cut=page.has_more or page.next is not None,
            scope=name_filter,
        )


def query_of(name_filter: str) -> dict[str, str]:
    """What the server is asked for: ``^shop/`` begins so, ``shop`` holds it somewhere."""
    if name_filter.startswith("^"):
        return {"prefix": name_filter[1:]}
    return {"contains": name_filter} if name_filter else {}


def parse_totals(text: str) -> Totals:
    """The few metrics that are shown; labels are added up."""
    found: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    return Totals(
        records=int(found.get("append_records_total", 0)),
        bytes=int(found.get("append_bytes_total", 0)),
        streams=int(found.get("streams", 0)),
        uncommitted_records=int(found.get("commit_lag_records", 0)),
        uncommitted_bytes=int(found.get("commit_lag_bytes", 0)),
        lag_s=found.get("commit_lag_seconds", 0.0),
        readers=int(found.get("followers", 0)),
    )
