"""B2 and B3, damaged tables: Parquet, log entries, checkpoints, the index, one damage per stream.

All of them lie in one root, so that a few starts of a real server meet them all. What a server then
answers for a stream is the very records it held, or 500 table_damaged; never others, never fewer.
Where the answer is an error, and wherever a file that somebody reads is not what was written, the
check job names the stream.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.table.companion import GroupBounds, write_index
from jobs import check
from tests.faults.scale import IS_LONG
from tests.support.load import Client, LogBroken
from tests.support.server import ServerProcess
from tests.support.tables import events, small_commits
from tests.support.workload import seed_of_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.faults.ledger import Tally

COMMITS = 6
ROWS = 5
# Nothing may be repaired by a commit while the streams are read.
ENV = {"BOTTOMLESS_COMMIT__INTERVAL_MS": "3600000"}

How = Callable[[Path, random.Random], None]


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def flip_near_the_end(path: Path, rng: random.Random) -> None:
    """The footer of a Parquet file."""
    data = bytearray(path.read_bytes())
    data[-rng.randrange(1, min(2000, len(data)))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(1, path.stat().st_size)])


def empty(path: Path, rng: random.Random) -> None:
    del rng
    path.write_bytes(b"")


def zero(path: Path, rng: random.Random) -> None:
    del rng
    path.write_bytes(bytes(path.stat().st_size))


def delete(path: Path, rng: random.Random) -> None:
    del rng
    path.unlink()


def double(path: Path, rng: random.Random) -> None:
    """A copy under the name that would come next."""
    del rng
    stem, _, rest = path.name.partition(".")
    name = f"{int(stem) + 1:020d}.{rest}" if stem.isdecimal() else f"{stem}-copy.{rest}"
    shutil.copy(path, path.with_name(name))


CHECKPOINT = "_delta_log/*.checkpoint.parquet"
HINT = "_delta_log/_last_checkpoint"
INDEX = "_index/*-*.parquet"
ENTRY = "_delta_log/[0-9]*.json"
PARQUET = "flush_date=*/*.parquet"
# What, which of those that fit, how; the number is how often in a long run.
DAMAGES: list[tuple[str, int, How, int]] = [
    *((PARQUET, 1, how, 1) for how in (cut, empty, zero, delete, double)),
    (PARQUET, 2, flip, 25),
    (PARQUET, -1, flip_near_the_end, 25),
    *((ENTRY, 3, how, 1) for how in (cut, empty, zero, delete)),
    *((ENTRY, -1, how, 1) for how in (cut, empty, zero, delete, double)),
    *((ENTRY, 0, how, 1) for how in (empty, delete)),
    (ENTRY, 4, flip, 25),
    (ENTRY, -1, flip, 12),
    *((CHECKPOINT, 0, how, 1) for how in (cut, empty, zero, delete)),
    (CHECKPOINT, 0, flip, 25),
    *((HINT, 0, how, 1) for how in (cut, empty, zero, delete, flip)),
    *((INDEX, 0, how, 1) for how in (cut, empty, zero, delete)),
    (INDEX, 0, flip, 12),
]


@dataclass(slots=True)
class Patient:
    """A stream, what was done to it, and what came of that."""

    name: str
    what: str
    place: int
    how: How
    records: list[bytes] = field(default_factory=list)
    served: list[bytes] = field(default_factory=list)
    error: str = ""
    problems: list[str] = field(default_factory=list)

    def make(self, root: Path) -> None:
        """A few commits; checkpoint and index, where it has them, are older than the last ones."""
        table = small_commits(root, self.name, commits=COMMITS - 2, rows=ROWS)
        if self.what in (CHECKPOINT, HINT) or "covered" in self.name:
            table.checkpoint()
        if self.what == INDEX:
            groups = {
                path: [GroupBounds(file.rows, file.first, file.last)]
                for path, file in table.state.files.items()
            }
            write_index(table.storage, table.folder, table.state, groups)
        late = [b'{"late":%d}' % number for number in range(2)]
        for number, record in enumerate(late):
            table.commit(1_794_873_700_000 + number, [record])
        self.records = [*events(0, (COMMITS - 2) * ROWS), *late]

    def hurt(self, root: Path, rng: random.Random) -> None:
        self.how(sorted((root / self.name).glob(self.what))[self.place], rng)

    @property
    def is_harmless(self) -> bool:
        """Nothing that anybody needs is lost: a copy too many, or what is made anew."""
        is_spare = self.what in (CHECKPOINT, INDEX) and self.how is delete
        return self.how is double or is_spare or self.what == HINT

    @property
    def is_found(self) -> bool:
        """The check job can know of it. A log whose last entry is gone is a log; only the server
        knows that there was one more. And a flipped bit may be one that means nothing.
        """
        is_end = (self.what, self.place, self.how) == (ENTRY, -1, delete)
        is_flip = self.how in (flip, flip_near_the_end)
        return not is_end and (bool(self.error) or not (self.is_harmless or is_flip))


def patients() -> list[Patient]:
    """One stream per damage, and healthy ones between them."""
    found = []
    for number, (what, place, how, count) in enumerate(DAMAGES):
        found += [
            Patient(f"d{number}-{how.__name__}-{index}", what, place, how)
            for index in range(count if IS_LONG else min(count, 3))
        ]
        if what == ENTRY and place == 3:
            found.append(Patient(f"d{number}-{how.__name__}-covered", what, place, how))
    return found


@dataclass(slots=True)
class Ward:
    """Every patient, after the server and the check job have seen all of them."""

    patients: list[Patient]
    healthy: Patient


@pytest.fixture(scope="module")
def ward(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    """Make, serve once (the snapshot then knows them all), hurt, serve again, check."""
    folder = tmp_path_factory.mktemp("ward")
    root, rng = folder / "data", random.Random(seed_of_run())
    ward = Ward(patients(), Patient("healthy", PARQUET, 0, flip))
    for patient in (*ward.patients, ward.healthy):
        patient.make(root)
    with ServerProcess.start(root, env=ENV) as server:
        assert server.terminate() == 0
        for patient in ward.patients:
            patient.hurt(root, rng)
        server.restart()
        with Client(server.url) as client:
            for patient in (*ward.patients, ward.healthy):
                read(client, patient)
            assert client.append("healthy", b"1").status == 204
        assert server.terminate() == 0
        log = server.log_path.read_text()
    assert "Traceback" not in log, log[-5000:]
    problems = check_job(root, folder / "report", spark)
    for patient in ward.patients:
        # A client is not told what lies where; the log is.
        assert not patient.error or patient.name in log, (patient.name, patient.error)
        patient.problems = [one for one in problems if one.startswith(f"{patient.name}: ")]
    yield ward
    shutil.rmtree(folder)


def read(client: Client, patient: Patient) -> None:
    """Chunk by chunk, until the end or an error."""
    offset = "-1"
    while True:
        reply = client.call("GET", patient.name, query=f"?offset={offset}")
        if reply.status != 200:
            told = json.loads(reply.body)
            if (reply.status, told["code"]) != (500, "table_damaged"):
                raise LogBroken(f"{patient.name}: {reply.status} {told}")
            patient.error = told["detail"]
            return
        patient.served += client.split(reply.body)
        offset = reply.tail
        if reply.headers["stream-up-to-date"] == "true":
            return


def check_job(root: Path, report: Path, spark: SparkSession) -> list[str]:
    """What the job finds: the logs of all, and every byte of the streams whose Parquet was hurt."""
    del spark
    found: list[str] = []
    names = [one.name for one in patients() if one.what == PARQUET]
    some = [] if IS_LONG else [flag for name in names[:6] for flag in ("--stream", name)]
    for flags in ([] if IS_LONG else [["--dry-run"]]) + [some]:
        with report.open("w+") as out, contextlib.redirect_stdout(out):
            code = check.main(["--root", str(root), "--quiet", *flags])
        assert code == 1
        found += json.loads(report.read_text().splitlines()[-1])["problems"]
    return found


def judge(patient: Patient) -> None:
    """LogBroken where it was served what it never held, or less without a word."""
    if patient.error and patient.is_harmless:
        raise LogBroken(f"{patient.name}: {patient.error}")
    expected = patient.records[: len(patient.served)] if patient.error else patient.records
    if patient.served != expected:
        raise LogBroken(f"{patient.name}: serves {len(patient.served)} records, or other ones")


def was_read(patient: Patient) -> bool:
    """In a quick run the check job reads the Parquet of a few streams only."""
    return IS_LONG or patient.what != PARQUET or patient.how in (cut, empty, zero, delete)


def examine(ward: Ward, tally: Tally, *kinds: How) -> None:
    for patient in ward.patients:
        if patient.how not in kinds:
            continue
        tally.tried += 1
        judge(patient)
        tally.checked += len(patient.served)
        if patient.is_found and was_read(patient) and not patient.problems:
            raise LogBroken(f"{patient.name}: {patient.error!r}, and the check job finds nothing")
    assert ward.healthy.served == ward.healthy.records


@pytest.mark.timeout(600)
@pytest.mark.fault("B2", "Parquet, log entries, checkpoints, index: flipped, cut, zeroed")
def test_damaged_table_is_told_or_made_good(ward: Ward, tally: Tally) -> None:
    examine(ward, tally, flip, flip_near_the_end, cut, zero)
    told = sum(bool(one.error) for one in ward.patients)
    tally.note = f"{told} of {len(ward.patients)} damaged streams refused, the others whole"


@pytest.mark.timeout(600)
@pytest.mark.fault("B3", "a Parquet file, log entry, checkpoint, index gone, empty or there twice")
def test_damaged_table_without_one_of_its_files_is_told_or_made_good(
    ward: Ward, tally: Tally
) -> None:
    examine(ward, tally, delete, empty, double)


@pytest.mark.control("B2", "page checksums are not looked at")
def test_oracle_finds_records_of_a_page_that_no_checksum_has_covered(tmp_path: Path) -> None:
    root = tmp_path / "data"
    patient = Patient("s", PARQUET, 0, flip)
    patient.make(root)
    misread(sorted((root / "s").glob(PARQUET))[0])
    with ServerProcess.start(root, env=ENV) as server:
        with Client(server.url) as client:
            read(client, patient)
        judge(patient)
        assert patient.error
        assert server.terminate() == 0
        server.careless = "no-page-checksum"
        patient.served, patient.error = [], ""
        server.restart()
        with Client(server.url) as client:
            read(client, patient)
        with pytest.raises(LogBroken, match="other ones"):
            judge(patient)


def misread(path: Path) -> None:
    """Flip a bit that no decoder stumbles over."""
    data, good = path.read_bytes(), pq.read_table(path, partitioning=None)
    for at in range(len(data) // 4, len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        try:
            now = pq.ParquetFile(pa.BufferReader(bytes(flipped))).read()
        except (OSError, pa.ArrowException):
            continue
        is_quiet = now["offset"].equals(good["offset"]) and now.num_rows == good.num_rows
        if is_quiet and now["data"] != good["data"]:
            with contextlib.suppress(ValueError):
                for text in now["data"].to_pylist():
                    json.loads(text)
                path.write_bytes(flipped)
                return
    raise AssertionError("every flipped bit is noticed by the decoder")
