"""A client of the records dialect: what a program written for DurableStreams does, and no more."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, urlencode, urlsplit

import msgspec

if TYPE_CHECKING:
    from types import TracebackType

TIMEOUT_S = 20.0


class Found(msgspec.Struct):
    """One record as it was read, with its own bytes."""

    offset: str
    data: msgspec.Raw


class Answer(msgspec.Struct):
    """The body of a read."""

    records: list[Found]


_decode_answer = msgspec.json.Decoder(Answer).decode


class RecordsClient:
    """One kept-alive connection."""

    def __init__(self, url: str, prefix: str = "/v1/records/") -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
        self._prefix = prefix

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def call(self, method: str, name: str, body: bytes = b"", **query: object) -> tuple[int, bytes]:
        """One request."""
        path = f"{self._prefix}{quote(name, safe='/')}?{urlencode(query)}"
        self._connection.request(method, path, body)
        response = self._connection.getresponse()
        return response.status, response.read()

    def post(self, name: str, *records: object, **query: object) -> list[str]:
        """Append; the offsets. Fails unless there are as many as records."""
        status, body = self.call("POST", name, json.dumps({"records": records}).encode(), **query)
        assert status == 200, (status, body)
        offsets = json.loads(body)["offsets"]
        assert len(offsets) == len(records), (records, body)
        assert offsets == sorted(offsets)
        return offsets

    def get(self, name: str, **query: object) -> list[tuple[str, bytes]]:
        """Read: offsets, and the records' own bytes."""
        status, body = self.call("GET", name, **query)
        assert status == 200, (status, body)
        return [(found.offset, bytes(found.data)) for found in _decode_answer(body).records]

    def pages(self, name: str, limit: int) -> list[tuple[str, bytes]]:
        """Read everything, page by page, as the original's README says."""
        found: list[tuple[str, bytes]] = []
        offset = "-"
        while page := self.get(name, offset=offset, limit=limit):
            assert len(page) <= limit
            found += page
            offset = page[-1][0]
        return found
