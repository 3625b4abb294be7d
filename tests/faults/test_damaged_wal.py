"""B1, a small write-ahead log with every byte flipped, every length cut, sectors and files gone.

The root is made once, by a real server in three lives: what the first left is in the tables, the
second one's log is known to the snapshot, the third one's is not. Then the engine's own recovery
runs on thousands of damaged copies. A good frame behind the damage proves that it is no crash: the
start is refused. Without one it cannot be told from a torn write, and what is before it must be
there.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine import errors
from engine.clock import SystemClock
from engine.format import frame
from engine.settings import EngineSettings
from engine.storage import LocalStorage
from engine.types import StreamName
from engine.write.recovery import Recovered, Recovery
from tests.faults.careless import PRECAUTIONS
from tests.faults.scale import IS_LONG
from tests.support.load import Client, LogBroken, wait_for
from tests.support.server import ServerProcess
from tests.support.workload import seed_of_run, segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.ledger import Tally

# No commit but those of a clean stop, and two segments for the second life.
ENV = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000", "BOTTOMLESS_WAL__SEGMENT_BYTES": "4096"}
HEADER = frame.SEGMENT_HEADER_BYTES
PADDING = range(28, 32)
"""Bytes of a segment's header that mean nothing."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a client knows of a stream after an answer."""

    records: tuple[bytes, ...] = ()
    """Those that no table holds."""
    tail: str = ""
    is_closed: bool = False
    seq: int = -1
    """Of its producer."""


State = dict[str, Known]


@dataclass(frozen=True, slots=True)
class Place:
    """One frame: in which file, from where to where."""

    file: str
    begin: int
    end: int


@dataclass(slots=True)
class Made:
    """A root, what its log holds after each frame, and where the frames lie."""

    root: Path
    states: list[State] = field(default_factory=list)
    """The first one before any frame: what the tables hold."""
    frames: list[Place] = field(default_factory=list)
    told: int = 0
    """So many frames are known to the snapshot."""

    @property
    def files(self) -> dict[str, bytes]:
        """The log: name and bytes."""
        return {path.name: path.read_bytes() for path in sorted(self.root.glob("_wal/*"))}


class Author:
    """One client, one request at a time: every answer is one frame."""

    def __init__(self) -> None:
        self.states: list[State] = [{}]

    def note(self, name: str, known: Known | None) -> None:
        state = dict(self.states[-1])
        state.pop(name, None)
        if known is not None:
            state[name] = known
        self.states.append(state)

    def create(self, client: Client, name: str) -> None:
        self.note(name, Known(tail=client.create(name).tail))

    def delete(self, client: Client, name: str) -> None:
        assert client.call("DELETE", name).status == 204
        self.note(name, None)

    def append(self, client: Client, name: str, *, is_last: bool = False) -> None:
        now = self.states[-1][name]
        number = len(self.states)
        records = tuple(b'{"n":%d,"i":%d,"pad":"%s"}' % (number, i, b"x" * 120) for i in range(3))
        closing = {"stream_closed": "true"} if is_last else {}
        body = b"[" + b",".join(records) + b"]"
        reply = client.produce(name, body, ("p", 0, now.seq + 1), **closing)
        assert reply.status == 200, (reply.status, reply.body)
        self.note(name, Known(now.records + records, reply.tail, is_last, now.seq + 1))


def tables_hold(state: State) -> State:
    return {name: Known((), one.tail, one.is_closed, one.seq) for name, one in state.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Three lives of a server; in memory where possible, for thousands of starts are to come."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="damaged-", dir=memory if memory.is_dir() else None))
    made = Made(folder / "data")
    log_path = tmp_path_factory.mktemp("made") / "server.log"
    with ServerProcess.start(made.root, env=ENV, log_path=log_path) as server:
        author = first_life(server)
        made.told = second_life(server, author)
        third_life(server, author)
    made.states = author.states
    for path in segments(made.root):
        begin = HEADER
        for one in frame.decode_frames(path.read_bytes(), first_lsn=int(path.stem), path=path.name):
            made.frames.append(Place(path.name, begin, one.end))
            begin = one.end
    # Every request is one frame, and there are three files.
    assert len(made.frames) == len(made.states) - 1
    assert len(segments(made.root)) == 3
    yield made
    shutil.rmtree(folder)


def first_life(server: ServerProcess) -> Author:
    author = Author()
    with Client(server.url) as client:
        author.create(client, "tabled")
        author.append(client, "tabled")
        author.create(client, "doomed")
    assert server.terminate() == 0
    author.states = [tables_hold(author.states[-1])]
    return author


def second_life(server: ServerProcess, author: Author) -> int:
    server.restart()
    with Client(server.url) as client:
        for name in ("fresh", "shop/ä", "brief"):
            author.create(client, name)
        for name in ("tabled", "fresh", "shop/ä", "brief", "tabled", "fresh", "shop/ä", "fresh"):
            author.append(client, name)
        author.append(client, "shop/ä", is_last=True)
        author.delete(client, "brief")
        author.delete(client, "doomed")
    server.kill9()
    return len(author.states) - 1


def third_life(server: ServerProcess, author: Author) -> None:
    """Its start saves a snapshot that knows the log of the second life, which stays."""
    server.restart()
    with Client(server.url) as client:
        author.create(client, "late")
        for name in ("late", "tabled", "fresh", "late"):
            author.append(client, name)
    server.kill9()


@dataclass(slots=True)
class Trial:
    """One damaged copy after another, and what recovery made of it."""

    made: Made
    root: Path
    refused: int = 0
    cut: int = 0
    faults: int = 0
    checked: int = 0

    def run(self, files: dict[str, bytes], *, is_doubled: bool = False) -> None:
        """LogBroken where anything but the promised comes out."""
        allowed = None if is_doubled else self._allowed(files)
        folder = self.root / "_wal"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        settings = EngineSettings()
        recovery = Recovery(LocalStorage(self.root), SystemClock(), settings, rng=random.Random(0))
        try:
            found = recovery.run()
        except errors.DataCorrupt as error:
            self._check_refusal(error, files, allowed)
        else:
            if allowed is None and self._faulty(found):
                # The oldest segments may be gone because they were trimmed: each stream is asked
                # whether it misses records of them.
                self.faults += 1
                allowed = len(self.made.frames)
            elif allowed is None:
                raise LogBroken(
                    f"a good frame follows the damage, and it starts: {self.what(files)}"
                )
            elif self._faulty(found):
                raise LogBroken(f"streams are refused that lack nothing: {self.what(files)}")
            self._check_state(found, allowed)
            self.cut += allowed < len(self.made.frames)

    def what(self, files: dict[str, bytes]) -> list[str]:
        """What is not as it was."""
        found = []
        for name, data in self.made.files.items():
            now = files.get(name)
            if now is None:
                found.append(f"{name} is gone")
            elif now != data:
                pairs = zip(data, now, strict=False)
                at = next((i for i, (old, new) in enumerate(pairs) if old != new), len(now))
                found.append(f"{name} has {len(now)} bytes of {len(data)}, other ones from {at} on")
        return found

    def _allowed(self, files: dict[str, bytes]) -> int | None:
        """How many frames must be there; None if the start must be refused."""
        good = [self._is_good(place, files) for place in self.made.frames]
        count = good.index(False) if False in good else len(good)
        if any(good[count:]) or count < self.made.told:
            return None
        for name, data in self.made.files.items():
            if not name.endswith(".wal"):
                is_same = files.get(name) == data
            elif name in files and len(files[name]) >= HEADER:
                was, now = (bytearray(both[:HEADER]) for both in (data, files[name]))
                for index in PADDING:
                    was[index] = now[index] = 0
                # A header may only be lost with all of its frames.
                is_same = was == now or not any(good[index] for index in self._frames_of(name))
            else:
                is_same = True
            if not is_same:
                return None
        return count

    def _frames_of(self, name: str) -> list[int]:
        return [index for index, place in enumerate(self.made.frames) if place.file == name]

    @staticmethod
    def _faulty(found: Recovered) -> bool:
        return any(stream.fault is not None for stream in found.registry)

    def _is_good(self, place: Place, files: dict[str, bytes]) -> bool:
        data = self.made.files[place.file]
        now = files.get(place.file, b"")
        return now[place.begin : place.end] == data[place.begin : place.end]

    def _check_refusal(
        self, error: errors.DataCorrupt, files: dict[str, bytes], allowed: int | None
    ) -> None:
        if allowed is not None:
            raise LogBroken(f"{allowed} good frames are refused: {error.message}")
        assert "_wal/" in error.message, error.message
        assert error.hint, error.message
        for name, data in files.items():
            assert (self.root / "_wal" / name).read_bytes() == data, "the evidence was touched"
        self.refused += 1

    def _check_state(self, found: Recovered, count: int) -> None:
        expected = self.made.states[count]
        names = {stream.name for stream in found.registry}
        if names != set(expected):
            raise LogBroken(f"after {count} frames there are {names}, not {set(expected)}")
        for name, known in expected.items():
            stream = found.registry.visible(StreamName(name))
            assert stream is not None
            if stream.fault is not None:
                assert isinstance(stream.fault, errors.TableDamaged)
                assert stream.fault.hint
                continue
            batches = stream.buffer.batches()
            records = [one for b in batches for one in Client.split(b"[" + bytes(b.data) + b"]")]
            seq = stream.producers["p"].seq if stream.producers else -1
            tail = f"{stream.tail:032d}"
            now = Known(tuple(records), f"{tail[:16]}_{tail[16:]}", stream.closed, seq)
            if now != known:
                raise LogBroken(f"{name} after {count} frames is {now}, not {known}")
            self.checked += known.seq + 1


@pytest.fixture
def trial(made: Made) -> Iterator[Trial]:
    root = made.root.with_name("trial")
    shutil.copytree(made.root, root)
    yield Trial(made, root)
    shutil.rmtree(root)


def changed(made: Made, name: str, begin: int, data: bytes) -> dict[str, bytes]:
    """The log with bytes of one file replaced."""
    files = made.files
    old = files[name]
    files[name] = old[:begin] + data + old[begin + len(data) :]
    return files


def flips(made: Made) -> list[tuple[str, int, int]]:
    """File, position, bits: all of them, or some of every file."""
    rng = random.Random(seed_of_run())
    sizes = {name: len(data) for name, data in made.files.items()}
    every = [(name, at) for name, size in sizes.items() for at in range(size)]
    if IS_LONG:
        return [(name, at, bits) for name, at in every for bits in (1 << rng.randrange(8), 0xFF)]
    some = rng.sample(every, 300) + [(name, at) for name, at in every if at < HEADER]
    return [(name, at, 1 << rng.randrange(8)) for name, at in some]


def flipped(made: Made, name: str, at: int, bits: int) -> dict[str, bytes]:
    return changed(made, name, at, bytes([made.files[name][at] ^ bits]))


@pytest.mark.timeout(900)
@pytest.mark.fault("B1", "every byte of a small write-ahead log flipped")
def test_damaged_wal_with_a_flipped_byte_is_refused_or_torn(
    made: Made, trial: Trial, tally: Tally
) -> None:
    for name, at, bits in flips(made):
        trial.run(flipped(made, name, at, bits))
        tally.tried += 1
    tally.checked = trial.checked
    tally.note = f"{trial.refused} refused, {trial.cut} times only the last frame was cut"
    assert trial.refused > tally.tried // 2
    assert trial.cut > 0


@pytest.mark.timeout(900)
@pytest.mark.fault("B1", "cut at every length, sectors zeroed")
def test_damaged_wal_that_is_cut_anywhere_is_refused_or_torn(
    made: Made, trial: Trial, tally: Tally
) -> None:
    rng = random.Random(seed_of_run())
    cuts = [(name, size) for name, data in made.files.items() for size in range(len(data))]
    if not IS_LONG:
        ends = [(place.file, place.end) for place in made.frames]
        whole = {name: len(data) for name, data in made.files.items()}
        at_ends = [(name, end) for name, end in ends if end < whole[name]]
        short = [(name, size) for name, size in cuts if size <= HEADER]
        cuts = rng.sample(cuts, 100) + at_ends + short
    for name, size in cuts:
        files = made.files
        files[name] = files[name][:size]
        trial.run(files)
    zeroed = [
        (name, begin, length)
        for name, data in made.files.items()
        for length in (HEADER, 512, 4096)
        for begin in range(0, len(data), length)
    ]
    for name, begin, length in zeroed if IS_LONG else rng.sample(zeroed, 60):
        rest = len(made.files[name]) - begin
        trial.run(changed(made, name, begin, bytes(min(length, rest))))
    tally.tried = len(cuts) + (len(zeroed) if IS_LONG else 60)
    tally.checked = trial.checked
    assert min(trial.refused, trial.cut) > 0


@pytest.mark.fault("B3", "a file of the write-ahead log is gone, empty, or there twice")
def test_damaged_wal_without_one_of_its_files_is_refused(
    made: Made, trial: Trial, tally: Tally
) -> None:
    for name in made.files:
        without = made.files
        data = without.pop(name)
        trial.run(without)
        trial.run({**made.files, name: b""})
        if name.endswith(".wal"):
            trial.run({**made.files, f"{10**9:020d}.wal": data}, is_doubled=True)
        tally.tried += 3
    tally.checked = trial.checked
    # Without the oldest segment; every other loss refuses the start.
    assert trial.faults == 1


@pytest.mark.fault("B1", "what a real server says, and its way out")
def test_damaged_wal_refuses_the_start_and_names_the_way_out(
    made: Made, tmp_path: Path, tally: Tally
) -> None:
    place, last = made.frames[1], made.frames[-1].file
    wounds = {
        f"_wal/{place.file} is damaged at byte {place.begin}": (place.file, place.end - 1),
        f"the header of _wal/{last}": (last, 9),
        "_wal/snapshot is damaged": ("snapshot", 40),
    }
    with ServerProcess(tmp_path / "data", env=ENV) as server:
        shutil.copytree(made.root, server.root)
        for message, (name, at) in wounds.items():
            data = flipped(made, name, at, 4)[name]
            (server.root / "_wal" / name).write_bytes(data)
            server.spawn()
            wait_for(lambda: not server.is_running, "the refusal", 60)
            with pytest.raises(AssertionError, match=r"ended with code [1-9]") as ended:
                server.wait_ready()
            assert message in str(ended.value)
            assert "_wal folder" in str(ended.value), "no way out"
            assert "Traceback" not in str(ended.value)
            (server.root / "_wal" / name).write_bytes(made.files[name])
            tally.tried += 1
        # The way out: without the folder the tables tell the rest.
        (server.root / "_wal").rename(tmp_path / "aside")
        server.restart()
        with Client(server.url) as client:
            # What was deleted meanwhile had left its folder already.
            head, known = client.call("HEAD", "tabled"), made.states[0]["tabled"]
            assert (head.status, head.tail) == (200, known.tail)
            assert len(client.records("tabled")) == 3
            tally.checked += known.seq + 1


@pytest.mark.control("B1", "a frame is whole if its length fits")
def test_oracle_finds_records_that_no_checksum_has_covered(
    made: Made, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "_is_whole", frame._is_whole)
    PRECAUTIONS["no-checksum"]()
    trial.run(made.files)
    place = next(place for place in made.frames if place.file == made.frames[-1].file)
    at = made.files[place.file].index(b"xxx", place.begin)
    with pytest.raises(LogBroken):
        trial.run(flipped(made, place.file, at, 1))


@pytest.mark.control("B1", "a bad frame is cut off wherever it is")
def test_oracle_finds_frames_that_were_cut_from_the_middle(
    made: Made, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "_refuse_if_frames_follow", frame._refuse_if_frames_follow)
    PRECAUTIONS["cut-anywhere"]()
    trial.run(made.files)
    place = made.frames[-2]
    with pytest.raises(LogBroken, match="a good frame follows"):
        trial.run(flipped(made, place.file, place.end - 1, 1))
