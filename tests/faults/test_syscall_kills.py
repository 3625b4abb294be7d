"""C2, kill at the N-th call that changes the disk, for every N of one cycle of append, WAL, commit,
checkpoint, delete and trim."""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.faults.scale import IS_LONG
from tests.support.last_call import CountedCall, LastCall, wait_killed
from tests.support.lifecycle import Content, LifeStream, observe
from tests.support.load import (
    BROKEN,
    Attempt,
    Client,
    LogBroken,
    StreamHistory,
    producer_headers,
    wait_for,
)
from tests.support.server import ServerProcess
from tests.support.strace import calls_in, strace_wrapper
from tests.support.workload import check_table, seed_of_run, segments, table_rows

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.ledger import Tally
    from tests.faults.whole import WholeCheck

KILLS_QUICK = 5
CHAINS = 2
STREAM = "orders"
APPENDS = 12
# An append that waits for the table makes a commit: no timer decides what the next call is.
TABLE_EVERY = 4
ENV = {
    "BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000",
    "BOTTOMLESS_COMMIT__CHECKPOINT_EVERY": "2",
    "BOTTOMLESS_WAL__SEGMENT_BYTES": "4096",
}
HALVED = ("write", "writev")
# What a cycle must come by, or it proves little.
KINDS = {
    *("create segment", "writev segment", "fdatasync segment", "unlink segment"),
    *("write data file", "write entry", "link entry", "unlink entry"),
    *("write checkpoint", "rename checkpoint", "fsync checkpoint"),
    *("write snapshot", "fsync snapshot", "rename snapshot", "syncfs folder"),
    *("unlink in trash", "rename folder", "mkdir folder"),
}


class Cycles:
    """One client that does the same again and again, over all lives of one server."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.has_commits = True
        """Whether appends to the stream that stays ever reach its table."""
        self.history = StreamHistory(STREAM)
        self.lives: list[LifeStream] = []
        self._seq = 0
        self._in_flight: Attempt | None = None

    def create(self) -> None:
        """The stream that stays."""
        with Client(self.server.url) as client:
            self.history.tail = client.create(STREAM).tail

    def run(self) -> bool:
        """One cycle up to its trim; False if the server has died in it."""
        oldest = segments(self.server.root)
        try:
            with Client(self.server.url) as client:
                for number in range(APPENDS):
                    is_last = number % TABLE_EVERY == TABLE_EVERY - 1
                    self._append(client, to_table=is_last and self.has_commits)
                self._live(client)
        except BROKEN:
            return False
        # A server that does not trim any more has been killed, or fails the test here.
        gone = oldest[0] if oldest else segments(self.server.root)[0]
        wait_for(lambda: not gone.exists() or not self.server.is_running, "a trim", 60)
        return self.server.is_running

    def _append(self, client: Client, *, to_table: bool) -> None:
        pad = "x" * 900
        records = tuple(
            f'{{"id":"{self._seq}/{index}","pad":"{pad}"}}'.encode()
            for index in range(1 + self._seq % 2)
        )
        attempt = self.history.begin(records, ("client", 0, self._seq))
        self._in_flight = attempt
        self._send(client, attempt, 200, stream_ack="table" if to_table else "wal")

    def _send(self, client: Client, attempt: Attempt, status: int, **headers: str) -> None:
        assert attempt.producer is not None
        headers |= producer_headers(attempt.producer)
        reply = client.append(STREAM, attempt.body, **headers)
        assert reply.status == status, (reply.status, reply.body)
        if status == 200:
            self.history.acknowledge(attempt, reply.tail)
        self._seq = attempt.producer[2] + 1
        self._in_flight = None

    def _live(self, client: Client) -> None:
        """A stream with a table that comes and goes."""
        stream = LifeStream(f"life/{len(self.lives)}")
        self.lives.append(stream)
        grown = Content((b'{"n":1}', b'{"n":2}'))
        stream.possible.append(Content(grown.records[:1]))
        client.create(stream.name, grown.records[0])
        stream.possible = [stream.possible[-1], grown]
        reply = client.append(stream.name, grown.records[1], stream_ack="table")
        assert reply.status == 204, (reply.status, reply.body)
        stream.possible = [grown, None]
        assert client.call("DELETE", stream.name).status == 204
        stream.possible = [None]

    def check(self, rows: list[tuple[str, bytes]]) -> None:
        """After a restart: every promise so far; then what was in flight is sent again."""
        with Client(self.server.url) as client:
            stored = self.history.verify(client.records(STREAM))
            check_table(self.history, rows)
            for stream in self.lives:
                stream.verify(observe(client, stream))
                if stream.now is not None:
                    # What was cut short would never be committed, and keep the WAL for ever.
                    assert client.call("DELETE", stream.name).status == 204
                    stream.possible = [None]
            attempt = self._in_flight
            if attempt is not None:
                is_stored = any(attempt is other for other in stored)
                if not is_stored:
                    attempt = self.history.begin(attempt.records, attempt.producer)
                self._send(client, attempt, 204 if is_stored else 200)
                self._send(client, attempt, 204)
                self.history.verify(client.records(STREAM))


class Chain:
    """A server that is killed, restarted, checked, and killed again somewhere else."""

    def __init__(self, folder: Path, *, careless: str = "", wrapper: tuple[str, ...] = ()) -> None:
        self.root = folder / "data"
        self.last_call = LastCall(folder / "calls", self.root)
        env = {**ENV, **self.last_call.env}
        self.server = ServerProcess(self.root, env=env, careless=careless, wrapper=wrapper)
        self.cycles = Cycles(self.server)

    def start(self) -> None:
        """The first life."""
        self.server.restart()
        self.cycles.create()

    def calls_of_a_cycle(self) -> list[CountedCall]:
        """A cycle without a kill, to see what can be killed."""
        before = self.last_call.count
        assert self.cycles.run(), self.server.log_tail()
        return [call for call in self.last_call.calls() if call.number > before]

    def kill(self, number: int, *, half: bool = False) -> CountedCall | None:
        """Kill at this call of a cycle, restart and check; None where a cycle has fewer calls."""
        self.last_call.arm(number, half=half)
        if self.cycles.run():
            self.last_call.disarm()
            if self.server.is_running:
                return None
        wait_killed(self.server)
        last = self.last_call.last()
        self.last_call.forget()
        rows = table_rows(self.root, STREAM)
        self.server.restart()
        self.cycles.check(rows)
        return last


def work_of(chain: Chain, todo: deque[tuple[int, bool]], killed: list[CountedCall]) -> None:
    """Kill until nothing is to do; a write that was the last call is done again by half."""
    while True:
        try:
            number, half = todo.popleft()
        except IndexError:
            return
        last = chain.kill(number, half=half)
        if last is None:
            continue
        killed.append(last)
        if IS_LONG and not half and last.name in HALVED:
            todo.append((number, True))


def kill_at_missing(
    chain: Chain, calls: list[CountedCall], killed: list[CountedCall], rng: random.Random
) -> None:
    """The trim comes once a second, so its calls move about in a cycle: aim until they are hit."""
    for _ in range(100):
        missing = KINDS - {call.kind for call in killed}
        places = [place for place, call in enumerate(calls, 1) if call.kind in missing]
        if not places:
            return
        last = chain.kill(max(1, rng.choice(places) + rng.randint(-3, 3)))
        killed += [] if last is None else [last]


@pytest.mark.timeout(3600 if IS_LONG else 300)
@pytest.mark.fault("C2", "kill at the N-th call that changes the disk")
def test_server_killed_at_each_call_keeps_every_promise(
    tmp_path: Path, tally: Tally, whole: WholeCheck
) -> None:
    rng = random.Random(seed_of_run())
    chains = [Chain(tmp_path / str(index)) for index in range(CHAINS if IS_LONG else 1)]
    killed: list[CountedCall] = []
    with contextlib.ExitStack() as stack:
        for chain in chains:
            stack.enter_context(chain.server)
            chain.start()
            calls = chain.calls_of_a_cycle()
        seen = Counter(call.kind for call in calls)
        assert seen.keys() >= KINDS, KINDS - seen.keys()
        todo = deque((number, False) for number in range(1, len(calls) + 1))
        if not IS_LONG:
            # One from each part of the cycle.
            part = len(calls) / KILLS_QUICK
            starts = [int(index * part) for index in range(KILLS_QUICK)]
            chosen = [start + rng.randint(1, int(part)) for start in starts]
            todo = deque((number, rng.random() < 0.5) for number in chosen)
        with ThreadPoolExecutor(len(chains)) as pool:
            works = [pool.submit(work_of, chain, todo, killed) for chain in chains]
            for work in works:
                work.result()
        if IS_LONG:
            kill_at_missing(chains[0], calls, killed, rng)
        tally.tried = len(killed)
        tally.checked = sum(len(chain.cycles.history.positions) for chain in chains)
        for chain in chains:
            chain.last_call.forget()
            assert chain.server.terminate() == 0
            whole(chain.root, {STREAM: chain.cycles.history})
    print(f"{len(calls)} calls: {dict(seen)}; killed at {Counter(call.kind for call in killed)}")
    tally.note = f"{len(calls)} calls in a cycle, {len({call.kind for call in killed})} sorts hit"
    if IS_LONG:
        assert {call.kind for call in killed} >= KINDS
    assert len(killed) >= (0.8 * len(calls) if IS_LONG else KILLS_QUICK - 1)


@pytest.mark.control("C2", "a group is acknowledged before it is written")
def test_oracle_finds_an_ack_before_the_write(tmp_path: Path) -> None:
    chain = Chain(tmp_path, careless="ack-first")
    chain.cycles.has_commits = False
    with chain.server:
        chain.start()
        with pytest.raises(LogBroken, match="was acknowledged at"):
            chain.kill(12)


@pytest.mark.control("C2", "a WAL segment is removed before its records are committed")
def test_oracle_finds_a_segment_that_went_too_early(tmp_path: Path) -> None:
    chain = Chain(tmp_path, careless="early-trim")
    chain.cycles.has_commits = False
    with chain.server:
        chain.start()
        assert "unlink segment" in {call.kind for call in chain.calls_of_a_cycle()}
        with pytest.raises(AssertionError, match="table_damaged"):
            chain.kill(5)


# What strace is asked for: everything that changes a folder or a file, whoever makes it.
TRACED = (
    "write,writev,pwrite64,pwritev,pwritev2,fdatasync,fsync,syncfs,sync_file_range,rename,renameat,"
    "renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat,open,openat,creat,"
    "truncate,ftruncate,fallocate,copy_file_range,sendfile,mknod,mknodat"
)
OF_DESCRIPTOR = re.compile(r"(?:write|sync|ftruncate|fallocate|copy_file_range|sendfile)")


def test_no_call_escapes_the_count(tmp_path: Path) -> None:
    """strace, from outside, sees the very calls that are counted: each N is tried."""
    log = tmp_path / "strace.log"
    chain = Chain(tmp_path, wrapper=strace_wrapper(log, trace=TRACED))
    with chain.server:
        chain.start()
        chain.calls_of_a_cycle()
        assert chain.server.terminate() == 0
    root = f"{chain.root}/"
    traced: Counter[tuple[str, str]] = Counter()
    for call in calls_in(log):
        name, path = seen_by_strace(call.name, call.rest)
        if path.startswith(root):
            traced[name, path.removeprefix(root)] += 1
    calls = [call for call in chain.last_call.calls() if call.path]
    assert traced == Counter((call.name, call.path.removeprefix("/")) for call in calls)


def seen_by_strace(name: str, rest: str) -> tuple[str, str]:
    """The call as last_call.c names it, and its path; no path where it only looks."""
    links = re.findall(r"<(/[^>]*)>", rest)
    if OF_DESCRIPTOR.search(name):
        return name.replace("pwrite64", "pwrite"), links[0] if links else ""
    if name.startswith("open"):
        name = "create" if re.search(r"O_CREAT|O_TRUNC", rest) else ""
    name = "rmdir" if "AT_REMOVEDIR" in rest else re.sub(r"at2?$", "", name)
    quoted = re.findall(r'"([^"]*)"', rest)[-1]
    path = quoted if quoted.startswith("/") else f"{links[0]}/{quoted}"
    return name, path if name else ""
