"""The engine against the model: any sequence of requests, commits, crashes and restarts.

After each step the engine must answer what the model says, byte for byte and error for error; after
each end of a life everything acknowledged must still be there.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.types import AppendRequest, CreateRequest, ForkRequest, Offset, ProducerStamp
from engine.types import StreamName as Name
from tests.support.model import BYTES, JSON, SMALL, TEXT, Lives, Model

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tests.support.model import ModelStream

# Shrinking a failure may take hypothesis five minutes; a run that passes takes seconds.
pytestmark = pytest.mark.timeout(420)

MEMORY = Path("/dev/shm")
NAMES = st.sampled_from(["a", "b/c", "ü x"])
TYPES = st.sampled_from([JSON, TEXT, BYTES])
JSON_RECORDS = st.one_of(
    st.sampled_from([b"1.0", b"-0", b"1e400", b"null", b'{"a":1,"a":2}', b'{"k": [ ]}']),
    st.integers(0, 10**40).map(lambda number: str(number).encode()),
    st.integers(1, 1500).map(lambda size: b'"' + b"x" * size + b'"'),
)
ARRAYS = st.lists(st.one_of(JSON_RECORDS, st.just(b"[1,2]")), min_size=1, max_size=6)
TEXTS = st.one_of(
    st.text(min_size=1, max_size=20), st.integers(1, 1500).map(lambda size: "é" * size)
)
BINARIES = st.one_of(st.binary(min_size=1, max_size=20), st.integers(1, 1500).map(bytes))
STAMPS = st.builds(ProducerStamp, st.sampled_from("pq"), st.integers(0, 2), st.integers(0, 3))


@st.composite
def bodies(draw: st.DrawFn, content_type: str) -> tuple[bytes, list[bytes]]:
    """A body and the records it stands for."""
    if content_type == JSON:
        if draw(st.booleans()):
            record = draw(JSON_RECORDS)
            return b" " + record + b"\n", [record]
        records = draw(ARRAYS)
        return b"[ " + b" ,\t".join(records) + b"]", records
    data = draw(TEXTS).encode() if content_type == TEXT else draw(BINARIES)
    return data, [data]


class Engine(RuleBasedStateMachine):
    """One engine with many lives, and the model beside it."""

    @initialize(checkpoint_every=st.sampled_from([2, 100]))
    def begin(self, checkpoint_every: int) -> None:
        self.runner = asyncio.Runner()
        self.folder = Path(
            tempfile.mkdtemp(prefix="bottomless-", dir=MEMORY if MEMORY.is_dir() else None)
        )
        commit = SMALL.commit.model_copy(update={"checkpoint_every": checkpoint_every})
        self.lives = Lives(self.folder, SMALL.model_copy(update={"commit": commit}))
        self.model = Model()
        self.highest: dict[str, int] = {}
        self.run(self.lives.start())

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        try:
            # A step that failed is the news; the model has not followed it.
            if sys.exc_info()[0] is None:
                self.check_everything()
                self.run(self.lives.restart())
                self.check_everything()
        finally:
            self.run(self.lives.bury())
            self.runner.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, work: Awaitable[Any]) -> Any:
        return self.runner.run(work)

    def ask(self, verdict: type[Exception] | bool, work: Awaitable[Any]) -> Any:
        """Do it; the engine must agree with the verdict. None where that is an error."""
        if not isinstance(verdict, bool):
            with pytest.raises(verdict) as caught:
                self.run(work)
            assert type(caught.value) is verdict, f"{caught.value!r}"
            return None
        return self.run(work)

    # Requests.

    @rule(name=NAMES, content_type=TYPES, closed=st.booleans(), data=st.data())
    def create(self, name: str, content_type: str, closed: bool, data: st.DataObject) -> None:
        body, records = b"", []
        if data.draw(st.booleans()):
            body, records = data.draw(bodies(content_type))
        self._create(
            name, CreateRequest(content_type=content_type, closed=closed, body=body), records
        )

    @rule(name=NAMES, source=NAMES, place=st.integers(0, 20), sub=st.integers(0, 4), data=st.data())
    def fork(self, name: str, source: str, place: int, sub: int, data: st.DataObject) -> None:
        places = [0]
        body, records = b"", []
        if source in self.model.streams:
            places = self.model.streams[source].boundaries
            places.append(places[-1] + 1)
            if sub == 0 and data.draw(st.booleans()):
                body, records = data.draw(bodies(self.model.streams[source].content_type))
        offset = Offset(places[place % len(places)])
        fork = ForkRequest(Name(source), offset, sub)
        self._create(name, CreateRequest(body=body, fork=fork), records)

    def _create(self, name: str, request: CreateRequest, records: list[bytes]) -> None:
        verdict = self.model.judge_create(name, request)
        result = self.ask(verdict, self.lives.log.create(Name(name), request))
        if result is None:
            return
        assert result.created is verdict
        if verdict:
            if request.fork is None:
                assert result.tail > self.highest.get(name, -1), "an offset was used before"
            self.model.create(name, request, records, result.tail)
        stream = self.model.streams[name]
        assert (result.tail, result.closed) == (stream.tail, stream.closed)

    @rule(
        name=NAMES,
        stamp=st.none() | STAMPS,
        seq=st.none() | st.sampled_from(["1", "2", "10"]),
        close=st.sampled_from([False, False, False, True]),
        data=st.data(),
    )
    def append(
        self,
        name: str,
        stamp: ProducerStamp | None,
        seq: str | None,
        close: bool,
        data: st.DataObject,
    ) -> None:
        content_type = data.draw(TYPES)
        if name in self.model.streams and data.draw(st.integers(0, 9)):
            content_type = self.model.streams[name].content_type
        body, records = data.draw(bodies(content_type))
        request = AppendRequest(content_type, body, close, stamp, seq)
        self._append(name, request, records)

    @rule(name=NAMES, more=st.integers(1, 3), data=st.data())
    def produce(self, name: str, more: int, data: st.DataObject) -> None:
        """What a well-behaved producer sends: the next numbers, each one twice."""
        stream = self.model.streams.get(name)
        if stream is None:
            return
        epoch, seq = stream.producers.get("p", (0, -1))
        for number in range(seq + 1, seq + 1 + more):
            body, records = data.draw(bodies(stream.content_type))
            request = AppendRequest(
                stream.content_type, body, producer=ProducerStamp("p", epoch, number)
            )
            self._append(name, request, records)
            self._append(name, request, records)

    @rule(name=NAMES, stamp=st.none() | STAMPS)
    def close(self, name: str, stamp: ProducerStamp | None) -> None:
        self._append(name, AppendRequest(None, b"", True, stamp), [])

    def _append(self, name: str, request: AppendRequest, records: list[bytes]) -> None:
        verdict = self.model.judge_append(name, request)
        result = self.ask(verdict, self.lives.log.append(Name(name), request))
        if result is None:
            return
        assert result.duplicate is not verdict
        if verdict:
            before = self.model.streams[name].tail
            assert (result.tail > before) if records else (result.tail == before)
            self.model.append(name, request, records, result.tail)
        stream = self.model.streams[name]
        assert (result.tail, result.closed) == (stream.tail, stream.closed)
        if request.producer is not None and request.producer.id in stream.producers:
            known = (result.producer_epoch, result.producer_seq)
            assert known == stream.producers[request.producer.id]

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        verdict = self.model.missing(name) or True
        self._note_highest(name)
        self.ask(verdict, self.lives.log.delete(Name(name)))
        if verdict is True:
            self.model.delete(name)

    @rule(name=NAMES, place=st.integers(0, 20))
    def read(self, name: str, place: int) -> None:
        verdict = self.model.missing(name)
        if verdict is not None:
            self.ask(verdict, self.lives.log.read(Name(name), Offset(0)))
            return
        stream = self.model.streams[name]
        self._check_content(name, stream, stream.boundaries[place % len(stream.boundaries)])

    @rule(name=NAMES, steps=st.sampled_from(["aaaa", "aad", "dc", "adc", "ac", "cc"]))
    def burst(self, name: str, steps: str) -> None:
        """Requests that arrive together share a group, and still are judged one after the other."""
        stream = self.model.streams.get(name)
        if stream is not None and (stream.forks or stream.source):
            return
        log, stream_name = self.lives.log, Name(name)
        create = CreateRequest(content_type=JSON)
        appends = [AppendRequest(JSON, b"[%d,%d]" % (n, n)) for n in range(len(steps))]

        async def together() -> list[Any]:
            calls = {
                "a": lambda number: log.append(stream_name, appends[number]),
                "c": lambda _: log.create(stream_name, create),
                "d": lambda _: log.delete(stream_name),
            }
            work = [calls[step](number) for number, step in enumerate(steps)]
            return await asyncio.gather(*work, return_exceptions=True)

        for step, request, result in zip(steps, appends, self.run(together()), strict=True):
            self._follow_burst(name, step, create if step == "c" else request, result)

    def _follow_burst(self, name: str, step: str, request: Any, result: Any) -> None:
        if step == "a":
            verdict = self.model.judge_append(name, request)
        elif step == "c":
            verdict = self.model.judge_create(name, request)
        else:
            verdict = self.model.missing(name) or True
        if not isinstance(verdict, bool):
            assert type(result) is verdict, f"{step}: {result!r}"
            return
        assert not isinstance(result, Exception), f"{step}: {result!r}"
        if step == "a":
            number = request.body[1:].split(b",")[0]
            assert result.tail > self.model.streams[name].tail
            self.model.append(name, request, [number, number], result.tail)
        elif step == "d":
            self._note_highest(name)
            self.model.delete(name)
        elif verdict:
            assert result.tail > self.highest.get(name, -1), "an offset was used before"
            self.model.create(name, request, [], result.tail)

    def _note_highest(self, name: str) -> None:
        if name in self.model.streams:
            tail = self.model.streams[name].tail
            self.highest[name] = max(self.highest.get(name, -1), tail)

    # Time, commits, ends.

    @rule(milliseconds=st.sampled_from([1, 1000, 86_400_000]))
    def wait(self, milliseconds: int) -> None:
        self.lives.clock.advance(milliseconds)

    @rule(milliseconds=st.sampled_from([1, 1000, 86_400_000]))
    def set_clock_back(self, milliseconds: int) -> None:
        self.lives.clock.jump_wall(-milliseconds)

    @rule(name=NAMES)
    def commit(self, name: str) -> None:
        stream = self.model.streams.get(name)
        if stream is not None and not stream.soft_deleted and stream.appends:
            has_own = stream.tail > stream.base or stream.source is None
            if has_own:
                self.run(self.lives.commit(name))

    @rule()
    def kill(self) -> None:
        self.run(self.lives.crash())
        self.check_everything()

    @rule(seed=st.integers(0, 2**32))
    def cut_power(self, seed: int) -> None:
        self.run(self.lives.crash(random.Random(seed)))
        self.check_everything()

    @rule()
    def restart(self) -> None:
        self.run(self.lives.restart())
        self.check_everything()

    @rule()
    def restart_on_the_tables_alone(self) -> None:
        # A deleted stream's offsets are nowhere then; only the clock keeps them from coming again.
        self.highest.clear()
        self.run(self.lives.restart(without_wal=True))
        self.check_everything()

    # What must be true.

    @invariant()
    def heads_agree(self) -> None:
        if not hasattr(self, "lives"):
            return
        for name, stream in self.model.streams.items():
            if not stream.soft_deleted:
                info = self.lives.log.head(Name(name))
                assert (info.tail, info.closed) == (stream.tail, stream.closed), name
                assert info.content_type == stream.content_type

    def check_everything(self) -> None:
        self.heads_agree()
        for name in ["a", "b/c", "ü x"]:
            verdict = self.model.missing(name)
            if verdict is not None:
                self.ask(verdict, self.lives.log.read(Name(name), Offset(0)))
                continue
            stream = self.model.streams[name]
            for place in {0, stream.boundaries[len(stream.boundaries) // 2]}:
                self._check_content(name, stream, place)

    def _check_content(self, name: str, stream: ModelStream, place: int) -> None:
        content = self.run(self.lives.content(name, place))
        assert content == stream.content(place), f"{name} after {place}"


TestEngine = Engine.TestCase
