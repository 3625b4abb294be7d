"""The load of the soak: every kind of client at once, each at a steady, moderate pace.

Clients of live streams check what they get: each record carries a number, and none may be missing,
come twice or come late.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

import httpx

import bottomless

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

JSON = {"content-type": "application/json"}
PAD = "x" * 150
PLAIN_STREAMS = 4
PROBLEMS_MAX = 20
LATENCIES_KEPT = 1000
DRAIN_TICKS = 150


class Load:
    """Runs until told to stop; `done` counts, `latencies` are of the last thousand appends."""

    def __init__(self, url: str, pace: float) -> None:
        self.url = url
        self.pace = pace
        self.done: Counter[str] = Counter()
        self.latencies: deque[float] = deque(maxlen=LATENCIES_KEPT)
        self.problems: list[str] = []
        self.is_ending = False
        self._http = httpx.AsyncClient(
            base_url=f"{url}/v1/stream/", trust_env=False, timeout=60, limits=httpx.Limits()
        )
        self._tails: dict[str, int] = {}

    async def run(self, stopped: asyncio.Event) -> None:
        """Everything at once; at the end live readers get what is still on its way."""
        await self._create("live", "plain-text", "plain-bytes")
        await self._create(*(f"plain-{number}" for number in range(PLAIN_STREAMS)))
        readers = [
            self._watched(self._follow_events),
            self._watched(self._follow_events),
            self._watched(self._follow_polls),
            self._watched(self._consume),
        ]
        writers = [
            self._every(20, self._append_single),
            self._every(20, self._append_live),
            self._every(3, self._append_batch),
            self._every(5, self._append_other_kinds),
            self._every(1, self._catch_up),
            self._every(2, self._churn),
            self._watched(self._produce),
        ]
        reading = [asyncio.create_task(each) for each in readers]
        writing = [asyncio.create_task(each) for each in writers]
        await stopped.wait()
        self.is_ending = True
        await asyncio.gather(*writing)
        for _ in range(DRAIN_TICKS):
            if not self._behind():
                break
            await asyncio.sleep(0.1)
        if behind := self._behind():
            self._tell(f"live readers did not get everything: {behind}")
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        await self._http.aclose()

    def _behind(self) -> dict[str, int]:
        wanted = self.done["live"]
        return {name: wanted - got for name, got in self._tails.items() if got < wanted}

    def _tell(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    async def _every(self, times_a_second: float, act: Callable[[int], Awaitable[None]]) -> None:
        """At a steady pace; what takes longer than its turn is not made up for."""
        gap = 1 / (times_a_second * self.pace)
        for number in itertools.count():
            if self.is_ending:
                return
            begun = time.perf_counter()
            try:
                await act(number)
            except (httpx.HTTPError, AssertionError, bottomless.BottomlessError) as error:
                self._tell(f"{act.__name__}: {error!r}"[:300])
            await asyncio.sleep(max(0, gap - (time.perf_counter() - begun)))

    async def _watched(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            await act()
        except (httpx.HTTPError, AssertionError, bottomless.BottomlessError) as error:
            self._tell(f"{act.__name__}: {error!r}"[:300])

    async def _create(self, *streams: str) -> None:
        for stream in streams:
            kinds = {"plain-text": "text/plain", "plain-bytes": "application/octet-stream"}
            kind = kinds.get(stream, "application/json")
            response = await self._http.put(stream, headers={"content-type": kind})
            assert response.status_code in (200, 201), response.text

    async def _append(self, stream: str, body: bytes, kind: str = "application/json") -> None:
        begun = time.perf_counter()
        response = await self._http.post(stream, content=body, headers={"content-type": kind})
        assert response.status_code == 204, f"{stream}: {response.status_code} {response.text}"
        self.latencies.append(time.perf_counter() - begun)
        self.done["appends"] += 1

    async def _append_single(self, number: int) -> None:
        await self._append(f"plain-{number % PLAIN_STREAMS}", record(number))
        self.done["records"] += 1

    async def _append_live(self, number: int) -> None:
        """The stream that is followed: its numbers have no gap, so a failed append is repeated."""
        del number
        await self._append("live", record(self.done["live"]))
        self.done["live"] += 1

    async def _append_batch(self, number: int) -> None:
        body = b"[" + b",".join(record(number * 100 + place) for place in range(100)) + b"]"
        await self._append(f"plain-{number % PLAIN_STREAMS}", body)
        self.done["records"] += 100

    async def _append_other_kinds(self, number: int) -> None:
        await self._append("plain-text", f"line {number} {PAD}\n".encode(), "text/plain")
        await self._append(
            "plain-bytes", number.to_bytes(8, "big") * 25, "application/octet-stream"
        )

    async def _catch_up(self, number: int) -> None:
        """A stream from the oldest record that retention left, to its end."""
        offset, stream = "-1", f"plain-{number % PLAIN_STREAMS}"
        while True:
            response = await self._http.get(stream, params={"offset": offset})
            if response.status_code == 410:
                # Trimmed between two chunks: go on where the server says that the stream begins.
                offset = response.headers["stream-earliest-offset"]
                continue
            assert response.status_code == 200, f"{response.status_code} {response.text}"
            self.done["read_bytes"] += len(response.content)
            offset = response.headers["stream-next-offset"]
            if response.headers.get("stream-up-to-date") == "true":
                break
        self.done["reads"] += 1

    async def _churn(self, number: int) -> None:
        """A stream's whole life."""
        stream = f"short-{number}"
        await self._create(stream)
        await self._append(stream, record(number))
        response = await self._http.get(stream, params={"offset": "-1"})
        assert f'"n":{number},'.encode() in response.content, response.text
        response = await self._http.delete(stream)
        assert response.status_code == 204, response.text
        self.done["short_streams"] += 1

    async def _produce(self) -> None:
        """The client library, exactly once."""
        async with bottomless.connect_async(self.url) as client:
            async with await client.producer("produced") as producer:
                for number in itertools.count():
                    if self.is_ending:
                        break
                    await producer.append({"n": number, "pad": PAD})
                    self.done["records"] += 1
                    await asyncio.sleep(1 / (50 * self.pace))
            assert producer.failed == 0, f"{producer.failed} records were not stored"

    async def _follow_events(self) -> None:
        name = f"sse-{len(self._tails)}"
        self._tails[name] = 0
        offset = "-1"
        while True:
            query = {"offset": offset, "live": "sse"}
            async with self._http.stream("GET", "live", params=query) as response:
                assert response.status_code == 200, response.status_code
                async for line in response.aiter_lines():
                    if line.startswith("data:["):
                        self._see(name, json.loads(line[5:]))
                    elif line.startswith('data:{"streamNextOffset"'):
                        offset = json.loads(line[5:])["streamNextOffset"]

    async def _follow_polls(self) -> None:
        name = f"long-poll-{len(self._tails)}"
        self._tails[name] = 0
        query = {"offset": "-1", "live": "long-poll"}
        while True:
            response = await self._http.get("live", params=query)
            assert response.status_code in (200, 204), response.text
            if response.status_code == 200:
                self._see(name, response.json())
            query["offset"] = response.headers["stream-next-offset"]
            query["cursor"] = response.headers.get("stream-cursor", "")

    async def _consume(self) -> None:
        name = f"consumer-{len(self._tails)}"
        self._tails[name] = 0
        async with bottomless.connect_async(self.url) as client:
            async for found in client.consumer("live", "beginning"):
                self._see(name, [found.value])

    def _see(self, name: str, records: list[dict[str, int]]) -> None:
        for each in records:
            expected = self._tails[name]
            if each["n"] != expected:
                self._tell(f"{name} got record {each['n']} where {expected} was next")
            self._tails[name] = each["n"] + 1
            self.done["events"] += 1


def record(number: int) -> bytes:
    return f'{{"n":{number},"pad":"{PAD}"}}'.encode()
