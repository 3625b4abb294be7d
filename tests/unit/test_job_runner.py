"""How a job runs: what ends it, what it says then, and that one stream never costs the others.

The jobs that need no Spark stand for all of them: parsing, supervision and report are shared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.job_status import MaintainStatus, load_status, save_status
from engine.storage import LocalStorage
from engine.table.companion import index_versions
from engine.table.replay import load_state
from jobs import check, index, maintain, retain
from jobs.common.args import make_parser, positive_float, positive_int, run_job
from jobs.common.report import Report
from jobs.common.settings import load_settings
from jobs.common.tables import lock_table
from jobs.common.verify import FileFacts, verify_file
from tests.support.clock import ManualClock
from tests.support.tables import DAY_MS, MONDAY_MS, events, small_commits

if TYPE_CHECKING:
    from collections.abc import Callable

CLONE = Path(__file__).resolve().parents[2]
HOUR_MS = 3_600_000
Run = Any


@pytest.fixture
def run(root: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """A job's report; the exit code must be as expected."""

    def run_job(module: Any, *arguments: str, code: int = 0) -> dict[str, Any]:
        found = module.main(["--root", str(root), "--quiet", *arguments])
        printed = capsys.readouterr()
        assert found == code, printed
        return json.loads(printed.out.splitlines()[-1])

    return run_job


def rounds_of(root: Path, clock: ManualClock) -> tuple[maintain.Rounds, Report]:
    report = Report("maintain", is_quiet=True)

    def no_session() -> Any:
        raise AssertionError("nothing here needs Spark")

    return maintain.Rounds(load_settings(None, root), report, no_session, clock), report


# What ends a job.


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), pa.ArrowInvalid("not Parquet\nat all")]
)
def test_run_job_tells_an_unexpected_error_in_its_report(
    error: Exception, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(*_: Any) -> None:
        raise error

    code = run_job("index", make_parser("index", ""), work, ["--root", str(root)])

    printed = capsys.readouterr()
    report = json.loads(printed.out.splitlines()[-1])
    assert (code, report["ok"]) == (1, False)
    assert report["problems"] == [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
    assert "Traceback" not in printed.err


def test_run_job_ends_quietly_where_nobody_reads(root: Path) -> None:
    small_commits(root, "orders", commits=2, rows=2)
    read_end, write_end = os.pipe()
    os.close(read_end)

    done = subprocess.run(
        [sys.executable, "jobs/index.py", "--root", str(root)],
        cwd=CLONE,
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )

    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5"])
def test_positive_int_refuses(text: str) -> None:
    parser = make_parser("test", "")
    parser.add_argument("--number", type=positive_int)
    with pytest.raises(SystemExit) as raised:
        parser.parse_args(["--number", text])
    assert raised.value.code == 2


@pytest.mark.parametrize("text", ["0", "-0.5", "nan", "inf", "x"])
def test_positive_float_refuses(text: str) -> None:
    parser = make_parser("test", "")
    parser.add_argument("--number", type=positive_float)
    with pytest.raises(SystemExit) as raised:
        parser.parse_args(["--number", text])
    assert raised.value.code == 2


def test_positive_numbers_are_taken() -> None:
    assert (positive_int("3"), positive_float("0.5")) == (3, 0.5)


def test_maintain_refuses_an_interval_of_nothing(root: Path) -> None:
    with pytest.raises(SystemExit) as raised:
        maintain.main(["--root", str(root), "--interval", "0"])
    assert raised.value.code == 2


# One stream never costs the others.


@pytest.mark.parametrize("module", [index, retain])
@pytest.mark.parametrize("trouble", ["busy", "damaged", "foreign", "parquet", "missing"])
def test_jobs_go_on_past_a_stream_in_trouble(
    run: Run, root: Path, module: Any, trouble: str
) -> None:
    first = small_commits(root, "aaa", commits=3, rows=2)
    last = small_commits(root, "bbb", commits=3, rows=2)
    arguments: tuple[str, ...] = ()
    if trouble == "busy":
        with lock_table(LocalStorage(root), "aaa"):
            report = run(module, code=1)
    else:
        if trouble == "damaged":
            (first.path / "_delta_log" / f"{1:020d}.json").write_text("")
        elif trouble == "foreign":
            (root / "alien" / "_delta_log").mkdir(parents=True)
            (root / "alien" / "_delta_log" / f"{0:020d}.json").write_text("not ours\n")
        elif trouble == "parquet":
            victim = sorted(first.path.glob("flush_date=*/*.parquet"))[0]
            victim.write_bytes(b"x" * victim.stat().st_size)
        else:
            arguments = ("--stream", "zzz", "--stream", "bbb")
        # Retention reads no data file, so it has nothing to complain of there.
        is_noticed = (module, trouble) != (retain, "parquet")
        report = run(module, *arguments, code=int(is_noticed))

    assert "bbb" in [entry["stream"] for entry in report["streams"]]
    assert len(report["problems"]) <= 1
    if module is index:
        assert index_versions(last.storage, "bbb") == [2]


def test_jobs_take_a_stream_that_goes_meanwhile_for_gone(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted in the moment between the listing of its log and the read of an entry."""
    delete_while_read(root, monkeypatch)
    report = run(index)
    assert [entry["stream"] for entry in report["streams"]] == ["bbb"]


def delete_while_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_commits(root, "aaa", commits=3, rows=2)
    small_commits(root, "bbb", commits=3, rows=2)
    read = LocalStorage.read

    def read_too_late(self: LocalStorage, path: str) -> bytes:
        if path.startswith("aaa/_delta_log/"):
            shutil.rmtree(root / "aaa", ignore_errors=True)
        return read(self, path)

    monkeypatch.setattr(LocalStorage, "read", read_too_late)


# maintain.


def test_maintain_takes_a_stream_that_goes_meanwhile_for_gone(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_while_read(root, monkeypatch)
    report = run(maintain, "--once")
    assert {entry["stream"] for entry in report["streams"]} == {"bbb"}


def test_maintain_goes_on_where_its_status_cannot_be_written(run: Run, root: Path) -> None:
    small_commits(root, "orders", commits=3, rows=2)
    (root / "_jobs" / "status.json").mkdir(parents=True)

    report = run(maintain, "--once", code=1)

    assert [entry["job"] for entry in report["streams"]] == ["retain"]
    assert any("status" in problem for problem in report["problems"])


def test_maintain_counts_a_failure_of_the_delta_library(run: Run, root: Path) -> None:
    """A table without a protocol: our engine reads it, delta-rs writes no checkpoint of it."""
    broken = small_commits(root, "aaa", commits=3, rows=2)
    small_commits(root, "bbb", commits=3, rows=2)
    entry = broken.path / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    kept = [line for line in lines if "protocol" not in line]
    kept[-1]["commitInfo"]["actions"] -= len(lines) - len(kept)
    # Otherwise the engine would find the change by the entry's checksum.
    del kept[-1]["commitInfo"]["crc32c"]
    entry.write_text("".join(json.dumps(line) + "\n" for line in kept))

    report = run(maintain, "--once", code=1)

    assert [problem for problem in report["problems"] if problem.startswith("aaa: retain: ")]
    assert [entry["stream"] for entry in report["streams"]] == ["bbb"]
    assert load_status(LocalStorage(root)).jobs["retain"].failures == 1


def test_maintain_waits_for_a_stream_that_has_no_table_yet(root: Path) -> None:
    clock = ManualClock(MONDAY_MS + DAY_MS)
    rounds, report = rounds_of(root, clock)

    rounds.run(["later"])
    small_commits(root, "later", commits=3, rows=2)
    clock.advance(HOUR_MS)
    rounds.run(["later"])

    assert [(entry["stream"], entry["job"]) for entry in report.streams] == [("later", "retain")]


def test_maintain_visits_every_stream_though_one_is_trimmed_in_each_round(root: Path) -> None:
    clock = ManualClock(MONDAY_MS)
    busy = small_commits(root, "busy", commits=3, rows=2, begin_ms=MONDAY_MS - DAY_MS)
    small_commits(root, "quiet", commits=3, rows=2, begin_ms=MONDAY_MS - DAY_MS)
    (root / "bottomless.toml").write_text("")
    (root / "streams.toml").write_text("[busy.retain]\nrecords = 1\n")
    report = Report("maintain", is_quiet=True)
    settings = load_settings(root / "bottomless.toml", root)
    rounds = maintain.Rounds(settings, report, lambda: pytest.fail("no Spark"), clock)

    for number in range(12):  # Six hours.
        busy.state = load_state(busy.storage, "busy")
        busy.commit(MONDAY_MS - HOUR_MS + number * 1000, list(events(number, number + 1)))
        rounds.run(None)
        clock.advance(HOUR_MS // 2)

    visits = [entry["stream"] for entry in report.streams if entry["job"] == "retain"]
    assert visits.count("busy") == 12
    assert visits.count("quiet") == 6


def test_maintain_remembers_its_visits_over_a_restart(root: Path) -> None:
    clock = ManualClock(MONDAY_MS)
    small_commits(root, "orders", commits=3, rows=2, begin_ms=MONDAY_MS - DAY_MS)
    rounds_of(root, clock)[0].run(None)
    clock.advance(HOUR_MS // 2)
    rounds, report = rounds_of(root, clock)

    rounds.run(None)

    assert report.streams == []


def test_maintain_of_one_stream_is_no_visit_of_the_others(root: Path) -> None:
    clock = ManualClock(MONDAY_MS)
    small_commits(root, "one", commits=3, rows=2, begin_ms=MONDAY_MS - DAY_MS)
    small_commits(root, "two", commits=3, rows=2, begin_ms=MONDAY_MS - DAY_MS)
    named, report_named = rounds_of(root, clock)
    named.run(["one"])
    named.run(["one"])
    rounds, report = rounds_of(root, clock)

    rounds.run(None)

    assert [entry["stream"] for entry in report_named.streams] == ["one"]
    assert sorted(entry["stream"] for entry in report.streams) == ["one", "two"]


def test_status_has_room_for_two_writers(root: Path) -> None:
    errors: list[Exception] = []

    def write() -> None:
        storage = LocalStorage(root)
        try:
            for number in range(200):
                save_status(storage, MaintainStatus(round_ms=number))
        except OSError as error:
            errors.append(error)

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert errors == []
    assert load_status(LocalStorage(root)).round_ms == 199
    assert [path.name for path in (root / "_jobs").iterdir()] == ["status.json"]


# check.


def test_check_takes_an_index_older_than_the_cleaned_log_for_whole(run: Run, root: Path) -> None:
    table = small_commits(root, "orders", commits=3, rows=2)
    run(index)
    for number in range(5):
        table.commit(MONDAY_MS + 10_000 + number * 1000, list(events(number, number + 1)))
    table.checkpoint()
    for version in range(6):  # What clean-up of the log does after a month.
        (table.path / "_delta_log" / f"{version:020d}.json").unlink()

    assert run(check, "--dry-run")["problems"] == []


def test_check_still_finds_an_index_that_lies(run: Run, root: Path) -> None:
    table = small_commits(root, "orders", commits=3, rows=2)
    other = small_commits(root.with_name(root.name + "-x"), "orders", commits=3, rows=3)
    try:
        index.main(["--root", str(other.storage.root), "--quiet"])
        shutil.copytree(other.path / "_index", table.path / "_index")
    finally:
        shutil.rmtree(other.storage.root)

    assert "the index" in run(check, "--dry-run", code=1)["problems"][0]


def test_check_finds_a_damaged_index(run: Run, root: Path) -> None:
    table = small_commits(root, "orders", commits=3, rows=2)
    run(index)
    [path] = (table.path / "_index").iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    [problem] = run(check, "--dry-run", code=1)["problems"]

    assert "index" in problem
    assert "cannot be read" in problem


@pytest.mark.parametrize("damage", ["short", "no statistics", "other column", "empty", "number"])
def test_verify_reports_every_damage(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "odd.parquet"
    columns: dict[str, list[Any]] = {"offset": ["0" * 32], "data": ["x"]}
    options: dict[str, Any] = {}
    if damage == "short":
        columns["offset"] = ["0" * 31]
    elif damage == "no statistics":
        options["write_statistics"] = False
    elif damage == "other column":
        columns = {"other": ["x"]}
    elif damage == "empty":
        columns = {"offset": [], "data": []}
    else:
        columns["offset"] = [7]
    pq.write_table(pa.table(columns), path, **options)
    size = path.stat().st_size

    _, problem = verify_file(FileFacts("odd", str(path), size, "0" * 32, "0" * 32, 1, "json"))

    assert problem
    assert "\n" not in problem
