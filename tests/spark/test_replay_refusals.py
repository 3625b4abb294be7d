"""What a replay refuses to do: lose records, overwrite streams, wait for nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from engine.format.offset import format_stored
from engine.table.replay import load_state
from jobs import replay, retain
from tests.support.load import Client
from tests.support.server import HOST, ServerProcess, free_port
from tests.support.tables import DAY_MS, MONDAY_MS, TableBuilder, small_commits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

Run = Any
OLD_MS = MONDAY_MS - 5 * DAY_MS


@pytest.fixture
def run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """A job's report; the exit code must be as expected."""
    del spark

    def run_job(module: Any, *arguments: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        found = module.main(["--root", str(tmp_path / "root"), "--quiet", *arguments])
        printed = capsys.readouterr()
        assert found == code, printed
        report: dict[str, Any] = json.loads(printed.out.splitlines()[-1])
        return report

    return run_job


def nowhere() -> str:
    return f"http://{HOST}:{free_port()}/v1/stream/copy"


def numbers(table: TableBuilder, commits: int, *, rows: int = 50) -> None:
    for number in range(commits):
        first = number * rows
        table.commit(OLD_MS + number * 1000, [b'{"n":%d}' % n for n in range(first, first + rows)])


def test_replay_to_a_stream_refuses_a_range_that_was_trimmed(run: Run, tmp_path: Path) -> None:
    """Its batches would have the numbers of others, and the target would drop them as known."""
    table = TableBuilder(tmp_path / "root", "orders")
    numbers(table, 20)
    to_stream = ["--stream", "orders", "--until", "2026-11-15", "--to", "stream", "--output"]
    run(retain, "--stream", "orders", "--records", "950")
    trimmed = format_stored(load_state(table.storage, table.folder).trimmed)

    report = run(replay, *to_stream, nowhere(), code=1)
    dry = run(replay, *to_stream, nowhere(), "--dry-run", code=1)

    assert f"--after {trimmed}" in report["problems"][0]
    assert f"--after {trimmed}" in dry["problems"][0]
    with ServerProcess.start(tmp_path / "target") as server, Client(server.url) as client:
        url = f"{server.url}/v1/stream/copy"
        run(replay, *to_stream, url, "--after", trimmed)
        copied = client.records("copy")
    assert [json.loads(record)["n"] for record in copied] == list(range(50, 1000))


def test_replay_to_a_stream_refuses_a_range_that_is_trimmed_at_that_moment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path / "root", "orders")
    numbers(table, 4)
    enter = replay.StreamSink.__enter__

    def enter_and_trim(self: Any) -> Any:
        run(retain, "--stream", "orders", "--records", "100")
        return enter(self)

    monkeypatch.setattr(replay.StreamSink, "__enter__", enter_and_trim)
    to_stream = ["--stream", "orders", "--until", "2026-11-15", "--to", "stream"]
    report = run(replay, *to_stream, "--output", nowhere(), code=1)

    assert "--after" in report["problems"][0]


@pytest.mark.parametrize("format_", ["parquet", "ndjson", "csv", "delta"])
def test_replay_refuses_to_write_over_the_data_folder(
    run: Run, tmp_path: Path, format_: str
) -> None:
    root = tmp_path / "root"
    tables = [small_commits(root, name, commits=2, rows=3) for name in ("orders", "carts")]
    (tmp_path / "link").symlink_to(root / "carts")
    (tmp_path / "door").symlink_to(tmp_path)
    before = sorted(path for path in root.rglob("*") if path.is_file())

    for output in (
        root,
        root / "carts",
        root / "new" / "folder",
        tmp_path,
        tmp_path / "link",
        tmp_path / "door" / "root" / "carts",
        tmp_path / "elsewhere" / ".." / "root",
    ):
        flags = ["--stream", "orders", "--to", format_, "--output", str(output)]
        for more in (["--overwrite"], ["--dry-run"]):
            report = run(replay, *flags, *more, code=1)
            assert "--output" in report["problems"][0], output
            assert str(root) in report["problems"][0], output

    assert sorted(path for path in root.rglob("*") if path.is_file()) == before
    for table in tables:
        assert load_state(table.storage, table.folder).version == table.state.version


def test_replay_refuses_a_url_where_a_folder_is_wanted(run: Run, tmp_path: Path) -> None:
    small_commits(tmp_path / "root", "orders", commits=2, rows=3)
    for output in (nowhere(), f"file://{tmp_path}/root/orders", f"file:{tmp_path}/out"):
        report = run(replay, "--stream", "orders", "--output", output, "--overwrite", code=1)
        assert "--to stream" in report["problems"][0]


def test_replay_refuses_a_file_where_a_folder_is_wanted(run: Run, tmp_path: Path) -> None:
    small_commits(tmp_path / "root", "orders", commits=2, rows=3)
    taken = tmp_path / "taken"
    taken.write_text("mine")

    for more in ([], ["--overwrite"]):
        report = run(replay, "--stream", "orders", "--output", str(taken), *more, code=1)
        assert "no folder" in report["problems"][0]
    assert taken.read_text() == "mine"


@pytest.mark.parametrize("flag", ["--rate", "--pace"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "fast"])
def test_replay_refuses_a_speed_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    arguments = ["--root", str(tmp_path), "--stream", "orders", flag, value]
    with pytest.raises(SystemExit) as ended:
        replay.main(arguments)
    assert ended.value.code == 2
    assert flag in capsys.readouterr().err
