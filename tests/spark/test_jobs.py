"""The jobs on real tables through a real session: what they change, and what nobody notices."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import crc32c
import deltalake
import pytest

from engine.storage import LocalStorage
from engine.table.replay import load_state, replay_log
from jobs import check, compact, index, maintain, replay, retain
from tests.support.tables import DAY_MS, MONDAY_MS, TableBuilder, events, small_commits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
Run = Any


@pytest.fixture
def run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """A job's report, from the root in tmp_path/root; the exit code must be as expected."""
    del spark

    def run_job(module: Any, *arguments: str, code: int = 0) -> dict[str, Any]:
        found = module.main(["--root", str(tmp_path / "root"), "--quiet", *arguments])
        printed = capsys.readouterr()
        assert found == code, printed
        return json.loads(printed.out.splitlines()[-1])

    return run_job


def make(
    tmp_path: Path, name: str = "orders", *, commits: int = 60, rows: int = 50
) -> TableBuilder:
    return small_commits(tmp_path / "root", name, commits=commits, rows=rows)


def rows_of(table: TableBuilder) -> list[tuple[str, str]]:
    found = deltalake.DeltaTable(str(table.path)).to_pyarrow_table(columns=["offset", "data"])
    pairs = zip(found["offset"].to_pylist(), found["data"].to_pylist(), strict=True)
    return sorted(pairs)


def test_compact_keeps_every_row_and_the_second_run_does_nothing(run: Run, tmp_path: Path) -> None:
    table = make(tmp_path)
    before = rows_of(table)

    first = run(compact, "--stream", "orders")
    second = run(compact, "--stream", "orders")

    assert (first["files_in"], first["files_out"], first["rows"]) == (60, 1, 3000)
    assert (second["files_in"], second["version"]) == (0, first["version"])
    assert rows_of(table) == before
    assert run(check)["problems"] == []


def test_compact_says_what_it_would_do_and_does_not(run: Run, tmp_path: Path) -> None:
    table = make(tmp_path)

    report = run(compact, "--dry-run")

    assert (report["dry_run"], report["files_in"], report["files_out"]) == (True, 60, 1)
    assert load_state(table.storage, table.folder).version == table.state.version


def test_compact_is_not_noticed_by_a_streaming_reader(
    run: Run, spark: SparkSession, tmp_path: Path
) -> None:
    table = make(tmp_path)
    run(compact)
    table.state = load_state(table.storage, table.folder)
    table.commit(MONDAY_MS + DAY_MS // 2, list(events(3000, 3100)))

    query = (
        spark.readStream.format("delta")
        .option("startingVersion", "0")
        .load(str(table.path))
        .writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)

    seen = sorted((row.offset, row.data) for row in spark.table("seen").collect())
    assert seen == rows_of(table)


def test_compact_drops_a_rewrite_that_lost_the_race(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change replaces the inputs between the look at them and the commit."""
    table = make(tmp_path)
    before = rows_of(table)
    rewrite = compact.Worker.compact

    def with_a_rival(self: Any, *arguments: Any) -> Any:
        if self.before_commit is None:
            self.before_commit = lambda: rival(table)
        return rewrite(self, *arguments)

    def rival(table: TableBuilder) -> None:
        from engine.table.change import commit_change, rewrite_of

        state = load_state(table.storage, table.folder)
        [victim] = list(state.files.values())[:1]
        path = victim.path.replace("part-", "part-rival-")
        data = (table.path / victim.path).read_bytes()
        (table.path / path).write_bytes(data)
        twin = type(victim)(path, victim.size, victim.first, victim.last, victim.rows)
        commit_change(
            table.storage, table.folder, state, rewrite_of(state, [victim], [twin]), now_ms=1
        )

    with monkeypatch.context() as patch:
        patch.setattr(compact.Worker, "compact", with_a_rival)
        lost = run(compact)
    again = run(compact)

    assert (lost["lost"], lost["files_out"]) == (1, 0)
    assert (again["litter"], again["files_out"]) == (1, 1)
    assert rows_of(table) == before


def test_compact_goes_on_when_the_server_commits_in_between(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path)
    rewrite = compact.Worker.compact

    def beside_the_server(self: Any, *arguments: Any) -> Any:
        self.before_commit = lambda: table.commit(MONDAY_MS + HOUR_MS, list(events(3000, 3100)))
        return rewrite(self, *arguments)

    monkeypatch.setattr(compact.Worker, "compact", beside_the_server)
    report = run(compact)

    assert report["files_out"] == 1
    assert len(rows_of(table)) == 3100
    assert run(check)["problems"] == []


def test_index_is_what_the_log_says(run: Run, tmp_path: Path) -> None:
    table = make(tmp_path)
    run(compact)

    report = run(index)
    again = run(index)

    storage = LocalStorage(tmp_path / "root")
    assert (report["commits_behind"], again["commits_behind"]) == (61, 0)
    assert load_state(storage, table.folder) == replay_log(storage, table.folder)
    assert run(check)["problems"] == []


def test_retain_trims_by_records_and_vacuums_past_the_horizon(run: Run, tmp_path: Path) -> None:
    table = make(tmp_path)

    report = run(retain, "--records", "1000", "--vacuum-hours", "0")
    again = run(retain, "--records", "1000", "--vacuum-hours", "0")

    assert (report["files_trimmed"], report["rows_trimmed"]) == (40, 2000)
    assert report["files_vacuumed"] == 40
    assert (again["files_trimmed"], again["files_vacuumed"]) == (0, 0)
    assert len(list(table.path.glob("flush_date=*/*.parquet"))) == 20
    assert len(rows_of(table)) == 1000
    assert run(check)["problems"] == []


def test_retain_trims_by_age(run: Run, tmp_path: Path) -> None:
    make(tmp_path)

    report = run(retain, "--age", "1s")

    assert report["rows_trimmed"] == 3000


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "count"])
@pytest.mark.parametrize("commits", [pytest.param(5, id="few"), pytest.param(70, id="by-spark")])
def test_check_finds_damage(run: Run, tmp_path: Path, damage: str, commits: int) -> None:
    table = make(tmp_path, commits=commits)
    [victim] = sorted(table.path.glob("flush_date=*/*.parquet"))[2:3]
    data = bytearray(victim.read_bytes())
    if damage == "flip":
        data[len(data) // 3] ^= 0xFF
        victim.write_bytes(data)
    elif damage == "cut":
        victim.write_bytes(data[:-7])
    elif damage == "missing":
        victim.unlink()
    else:
        entry = table.path / "_delta_log" / f"{2:020d}.json"
        text = entry.read_text().replace('\\"numRecords\\":50', '\\"numRecords\\":49')
        entry.write_text(text)

    report = run(check, code=1)

    assert not report["ok"]
    assert report["problems"]


def test_check_finds_a_lost_commit(run: Run, tmp_path: Path) -> None:
    """Its records lie in a file of their own that the log has lost, in an entry that is whole."""
    table = make(tmp_path, commits=5)
    entry = table.path / "_delta_log" / f"{3:020d}.json"
    kept = [line for line in entry.read_text().splitlines() if not line.startswith('{"add"')]
    info = json.loads(kept[-1])
    info["commitInfo"]["actions"] = len(kept) - 1
    info["commitInfo"]["crc32c"] = crc32c.crc32c("\n".join(kept[:-1]).encode())
    entry.write_text("\n".join([*kept[:-1], json.dumps(info)]) + "\n")

    report = run(check, code=1)

    assert any("the log counts" in problem for problem in report["problems"])


@pytest.mark.parametrize("target", ["ndjson", "csv", "parquet", "delta"])
def test_replay_writes_the_range_once(
    run: Run, spark: SparkSession, tmp_path: Path, target: str
) -> None:
    make(tmp_path)
    output = str(tmp_path / "out")
    arguments = ("--stream", "orders", "--since", "2026-11-17T00:00:10Z")
    arguments += ("--until", "2026-11-17T00:00:20Z", "--to", target, "--output", output)

    first = run(replay, *arguments)
    run(replay, *arguments)

    if target == "ndjson":
        records = [row.value for row in spark.read.text(output).collect()]
        assert json.loads(records[0])["data"]["id"] == 500
    elif target == "csv":
        records = spark.read.options(header="true", escape='"').csv(output).collect()
        assert json.loads(records[0].data)["id"] == 500
    else:
        records = spark.read.format(target).load(output).collect()
    assert len(records) == 500
    assert first["row_groups"] == 10
    assert first["files_scanned"] == 10


def test_replay_filters_by_sql_and_refuses_a_full_folder(run: Run, tmp_path: Path) -> None:
    make(tmp_path)
    output = str(tmp_path / "out")
    where = ("--where", "cast(get_json_object(data, '$.id') as int) % 100 = 0")

    run(replay, "--stream", "orders", *where, "--output", output)
    refused = run(replay, "--stream", "orders", "--output", output, code=1)

    lines = [
        line for part in (tmp_path / "out").glob("part-*") for line in part.read_text().splitlines()
    ]
    assert len(lines) == 30
    assert "--overwrite" in refused["problems"][0]


def test_replay_skips_row_groups_of_a_large_file(run: Run, tmp_path: Path) -> None:
    make(tmp_path, commits=400, rows=200)
    run(compact)

    arguments = ("--since", "2026-11-17T00:01:00Z", "--until", "2026-11-17T00:01:10Z")
    report = run(replay, "--stream", "orders", *arguments, "--output", str(tmp_path / "out"))

    assert report["row_groups_in_files"] > 5
    assert report["row_groups"] <= 2
    assert report["bytes_scanned"] < report["bytes"] / 2


def test_maintain_does_what_is_due_once(run: Run, tmp_path: Path) -> None:
    make(tmp_path, "orders")
    make(tmp_path, "shop/carts", commits=3)

    first = run(maintain, "--once")
    second = run(maintain, "--once")

    done = [(entry["stream"], entry["job"]) for entry in first["streams"]]
    assert done == [("shop/carts", "retain"), ("orders", "retain"), ("orders", "compact")]
    assert second["streams"] == []
    status = json.loads((tmp_path / "root" / "_jobs" / "status.json").read_text())
    assert status["jobs"]["compact"]["succeeded_ms"] > 0


def test_maintain_goes_on_past_a_damaged_stream(run: Run, tmp_path: Path) -> None:
    broken = make(tmp_path, "a-broken")
    make(tmp_path, "orders")
    (broken.path / "_delta_log" / f"{7:020d}.json").write_text("")

    report = run(maintain, "--once", code=1)

    assert any("a-broken" in problem for problem in report["problems"])
    assert any(entry["stream"] == "orders" for entry in report["streams"])
