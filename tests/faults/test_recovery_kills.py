"""C3, kill during recovery, and during the recovery from that, five deep: nothing is lost, and
every recovery gives the same answer (I9)."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING

import pytest

from engine.format.names import table_folder
from engine.types import StreamName
from tests.faults.scale import IS_LONG
from tests.support.last_call import LastCall, wait_killed
from tests.support.load import BROKEN, Client, LogBroken, StreamHistory, wait_for
from tests.support.server import ServerProcess
from tests.support.workload import check_table, seed_of_run, segments, table_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faults.ledger import Tally
    from tests.faults.whole import WholeCheck

DEPTH = 5
# A tail of 4 KiB is committed at once, a smaller one never: no timer decides what is in the tables.
ENV = {
    "BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000",
    "BOTTOMLESS_COMMIT__BYTES": "4096",
    "BOTTOMLESS_COMMIT__CHECKPOINT_EVERY": "2",
    "BOTTOMLESS_WAL__SEGMENT_BYTES": "4096",
}
# Never committed, so that no segment is trimmed and no mark moves; two with torn commits.
HELD, TORN_FILE, TORN_ENTRY = "held", "orders", "shop/bestellungen äöü"
GONE = "gone"
# The calls of a delete: into the WAL, synced, the trash made, the folder moved, emptied.
UNMOVED, HALF_EMPTY = 4, 6

Answer = dict[str, tuple[str, list[bytes]]]


class CrashState:
    """What a killed server has left, as rich as it gets, and what its clients were promised."""

    def __init__(self, folder: Path, *, at: int) -> None:
        self.root = folder / "data"
        self.histories = {name: StreamHistory(name) for name in (HELD, TORN_FILE, TORN_ENTRY)}
        self._seq = 0
        last_call = LastCall(folder / "calls", self.root)
        with ServerProcess.start(self.root, env={**ENV, **last_call.env}) as server:
            with Client(server.url) as client:
                self._fill(client)
                last_call.arm(at)
                # The answer may come or not: what is armed comes after the delete is durable.
                with contextlib.suppress(*BROKEN):
                    assert client.call("DELETE", GONE).status == 204
            wait_killed(server)
        assert last_call.last() is not None
        self._tear()

    def _fill(self, client: Client) -> None:
        for name in (*self.histories, GONE):
            client.create(name)
        assert client.append(GONE, b'"%s"' % (b"x" * 5000)).status == 204
        self._wait_version(GONE, 0)
        for version in range(4):
            self._append(client, HELD, 100)
            for name in (TORN_FILE, TORN_ENTRY):
                self._append(client, name, 5000)
                self._wait_version(name, version)
        # A tail above the last commits, in a segment that has room for the delete.
        for name in self.histories:
            self._append(client, name, 100)

    def _append(self, client: Client, name: str, size: int) -> None:
        history, self._seq = self.histories[name], self._seq + 1
        record = f'{{"n":{self._seq},"pad":"{"x" * size}"}}'.encode()
        attempt = history.begin((record,), None)
        reply = client.append(name, attempt.body)
        assert reply.status == 204, reply.body
        history.acknowledge(attempt, reply.tail)

    def _wait_version(self, name: str, version: int) -> None:
        log = self.root / table_folder(StreamName(name)) / "_delta_log"
        entry = log / f"{version:020d}.json"
        # The commit's last call removes the name it was written under.
        wait_for(
            lambda: entry.exists() and not list(log.glob(".*.tmp")), f"version {version} of {name}"
        )

    def _tear(self) -> None:
        """What a power cut may add to a kill: the last commits are torn, and the last frame."""
        folder = self.root / table_folder(StreamName(TORN_FILE))
        files = list(folder.glob("flush_date=*/*.parquet"))
        # With it go the commit after it and the checkpoint that describes it.
        file = sorted(files, key=lambda path: path.stat().st_mtime_ns)[-2]
        file.write_bytes(file.read_bytes()[:-100])
        folder = self.root / table_folder(StreamName(TORN_ENTRY))
        max(folder.glob("_delta_log/*.json")).write_bytes(b"")
        last = segments(self.root)[-1]
        frame = last.read_bytes()[32:80]
        with last.open("ab") as segment:
            segment.write(frame)
        assert len(segments(self.root)) > 3


@pytest.fixture(scope="module")
def state_at(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], CrashState]:
    """What a server leaves that is killed at this call of a delete; made once for all tests."""
    return cache(lambda at: CrashState(tmp_path_factory.mktemp("crash"), at=at))


class Patient:
    """One copy of a crash state, and the server that starts on it."""

    def __init__(self, state: CrashState, folder: Path, *, careless: str = "") -> None:
        self.root = folder / "data"
        self.last_call = LastCall(folder / "calls", self.root)
        env = {**ENV, **self.last_call.env}
        self.server = ServerProcess(self.root, env=env, careless=careless)
        self.restore(state)

    def restore(self, state: CrashState) -> None:
        """Back to the crash."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(state.root, self.root)
        self.histories = deepcopy_of(state.histories)

    def kill_in_start(self, number: int) -> None:
        """A start-up that does not come to this call."""
        self.last_call.forget()
        self.last_call.arm(number)
        self.server.spawn()
        wait_killed(self.server)
        assert self.last_call.last() is not None

    def start(self) -> Answer:
        """A start-up that is left alone, checked; returns what the server says now."""
        self.last_call.forget()
        self.server.restart()
        self.calls = self.last_call.count
        answer = {}
        with Client(self.server.url) as client:
            for name, history in self.histories.items():
                records = client.records(name)
                history.verify(records)
                answer[name] = client.call("HEAD", name).tail, records
            assert client.call("HEAD", GONE).status == 404
        for name, history in self.histories.items():
            check_table(history, table_rows(self.root, name))
        return answer


def deepcopy_of(histories: dict[str, StreamHistory]) -> dict[str, StreamHistory]:
    """Locks cannot be copied: a history is made anew from what was promised."""
    copies = {}
    for name, history in histories.items():
        copies[name] = StreamHistory(name)
        copies[name]._pending = deepcopy(history._pending)
    return copies


def kill_nested(
    patient: Patient, state: CrashState, todo: deque[list[int]], expected: Answer
) -> int:
    """Every list is a chain of start-ups that are killed; returns how many kills there were."""
    kills = 0
    while True:
        try:
            numbers = todo.popleft()
        except IndexError:
            return kills
        if patient.server.is_running:
            patient.server.kill9()
        patient.restore(state)
        for number in numbers:
            patient.kill_in_start(number)
            kills += 1
        assert patient.start() == expected, numbers


@pytest.mark.parametrize("at", [UNMOVED, HALF_EMPTY] if IS_LONG else [HALF_EMPTY])
@pytest.mark.timeout(3600 if IS_LONG else 300)
@pytest.mark.fault("C3", "kill during recovery, nested five times")
def test_recovery_killed_five_deep_gives_the_same_answer(
    tmp_path: Path,
    tally: Tally,
    whole: WholeCheck,
    state_at: Callable[[int], CrashState],
    at: int,
) -> None:
    rng = random.Random(seed_of_run())
    state = state_at(at)
    patients = [Patient(state, tmp_path / str(index)) for index in range(2 if IS_LONG else 1)]
    first = patients[0]
    with first.server:
        expected = first.start()
        calls = first.calls
        kinds = {call.kind for call in first.last_call.calls() if call.number <= calls}
        first.server.kill9()
        assert first.start() == expected, "a second recovery gives another answer"
        # What any start-up does, also one with nothing to repair.
        calls_min = min(first.calls, calls)
        first.server.kill9()
    begins = range(1, calls + 1) if IS_LONG else [rng.randint(1, calls)]
    chains = [[n, *(rng.randint(1, calls_min) for _ in range(DEPTH - 1))] for n in begins]
    print(f"{calls} calls of a start-up, at least {calls_min}: {sorted(kinds)}; {chains}")
    todo = deque(chains)
    try:
        with ThreadPoolExecutor(len(patients)) as pool:
            works = [pool.submit(kill_nested, one, state, todo, expected) for one in patients]
            tally.tried = sum(work.result() for work in works)
        assert first.server.terminate() == 0
    finally:
        for patient in patients:
            patient.server.close()
    assert tally.tried == DEPTH * len(chains)
    tally.checked = len(chains) * sum(len(h.positions) for h in first.histories.values())
    tally.note = f"{calls} calls in a start-up"
    whole(first.root, first.histories)
    # The state was worth something: everything a start-up repairs was there to be repaired.
    assert kinds >= {"rename segment", "rename entry", "unlink checkpoint", "rename snapshot"}


@pytest.mark.control("C3", "what a recovery replaces is removed before its replacement is there")
def test_oracle_finds_a_recovery_that_cannot_be_repeated(
    tmp_path: Path, state_at: Callable[[int], CrashState]
) -> None:
    state = state_at(HALF_EMPTY)
    patient = Patient(state, tmp_path / "patient", careless="replace-in-place")
    with patient.server:
        patient.start()
        calls = patient.last_call.calls()
        removed = next(call.number for call in calls if call.kind == "unlink segment")
        patient.server.kill9()
        patient.restore(state)
        patient.kill_in_start(removed + 1)
        with pytest.raises(LogBroken, match="was acknowledged at"):
            patient.start()
