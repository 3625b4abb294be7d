"""`retain.before`: everything before an offset or a time goes, and it never moves backwards."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from engine.clock import SystemClock
from engine.errors import BadSetting, OffsetTrimmed
from engine.format.offset import format_stored, format_wire, make_offset
from engine.settings import NO_OVERRIDES, RetainSettings, merge_overrides, trim_point
from engine.storage import LocalStorage
from engine.types import Offset, StreamName
from jobs.common.report import Report
from jobs.common.settings import load_settings
from jobs.common.tables import find_table
from jobs.common.work import Worker, plan_trim
from jobs.retain import main as run_retain
from tests.support.model import INTERVAL_MS, until
from tests.support.tables import MONDAY_MS, small_commits

if TYPE_CHECKING:
    from pathlib import Path

    from engine.settings import StreamOverrides
    from jobs.common.tables import StreamTable
    from tests.support.model import Lives

NAME = StreamName("s")
LOW, HIGH = "0" * 31 + "1", "0" * 31 + "2"


def job_view(lives: Lives) -> StreamTable:
    return find_table(LocalStorage(lives.root), "s")


def stored(lives: Lives) -> StreamOverrides:
    return lives.log.stream_settings(NAME)[0]


async def three_files(lives: Lives) -> list[Offset]:
    await lives.create("s")
    offsets = []
    for number in range(3):
        offsets.append((await lives.append("s", b"%d" % number)).tail)
        await lives.commit("s")
        lives.clock.advance(1000)
    return offsets


def retain(lives: Lives) -> dict[str, Any]:
    """The retain job on the stream, with what is set for it."""
    table = job_view(lives)
    worker = Worker(Report("retain", is_quiet=True), SystemClock(), row_group_bytes=1 << 20)
    no_file = lives.folder / "bottomless.toml"
    no_file.write_text("")
    return worker.retain(table, load_settings(no_file, lives.root).retain(table, {}))


async def set_before(lives: Lives, before: str | None) -> None:
    """Set it, and wait until the jobs can see it."""
    await lives.log.change_settings(NAME, {"retain": {"before": before}})
    wanted = stored(lives)
    await until(lambda: lives.clock.advance(INTERVAL_MS) or job_view(lives).overrides == wanted)


# What it can be.


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("", ""),
        (HIGH, HIGH),
        ("0001795067331000_0000000000000007", "00017950673310000000000000000007"),
        ("1970-01-01T00:00:01Z", f"{1000:016d}{0:016d}"),
        ("1970-01-01T01:00:01+01:00", f"{1000:016d}{0:016d}"),
        ("1970-01-02", f"{86_400_000:016d}{0:016d}"),
        ("1969-12-31", "0" * 32),
    ],
)
def test_trim_point_is_an_offset_or_a_time(text: str, offset: str):
    assert trim_point(text) == offset
    assert trim_point(offset) == offset


@pytest.mark.parametrize(
    "text", ["soon", "-2h", "1", "0" * 33, "0" * 31, "\u0660" * 32, "-1", "2026"]
)
def test_trim_point_is_nothing_else(text: str):
    with pytest.raises(BadSetting, match=r"retain\.before"):
        merge_overrides(NO_OVERRIDES, {"retain": {"before": text}})


def test_trim_point_never_moves_backwards():
    high = merge_overrides(NO_OVERRIDES, {"retain": {"before": HIGH, "records": 5}})
    assert high.retain.before == HIGH
    for lower in (LOW, "1970-01-01", ""):
        again = merge_overrides(high, {"retain": {"before": lower, "bytes": 9}})
        assert again.retain.before == HIGH
        assert (again.retain.records, again.retain.bytes) == (5, 9)
    assert merge_overrides(high, {"retain": {"before": "0" * 31 + "3"}}).retain.before > HIGH


@pytest.mark.parametrize("patch", [{"before": None}, None])
def test_trim_point_can_be_taken_back(patch: dict[str, None] | None):
    high = merge_overrides(NO_OVERRIDES, {"retain": {"before": HIGH}})
    assert merge_overrides(high, {"retain": patch}).retain.before is None


# What it does.


def test_plan_trim_takes_files_that_lie_before_the_point(root: Path):
    """Ten files of three records, a second apart."""
    small_commits(root, "s", commits=10, rows=3)
    table = find_table(LocalStorage(root), "s")
    files = sorted(table.state.files.values(), key=lambda file: file.first)

    def count(before: Offset | str) -> int:
        text = before if isinstance(before, str) else format_stored(before)
        found = plan_trim(table, RetainSettings(before=text), now_ms=MONDAY_MS)
        assert found == files[: len(found)], "the oldest go first"
        return len(found)

    assert count("") == 0
    assert count(files[0].first) == 0
    assert count(files[0].last) == 0, "the last record of the first file is not before itself"
    assert count(files[4].first) == 4
    assert count(files[4].last) == 4, "a file goes as a whole, or stays"
    assert count(make_offset(MONDAY_MS + 3000, 0)) == 3
    assert count("2026-11-17T00:00:03Z") == 3
    assert count("2099-01-01") == 10


async def test_retain_trims_what_lies_before_the_point(lives: Lives):
    offsets = await three_files(lives)
    await set_before(lives, format_wire(offsets[2]))

    assert retain(lives)["files_trimmed"] == 2
    lives.clock.advance(INTERVAL_MS)

    assert await lives.records("s") == [b"2"]
    with pytest.raises(OffsetTrimmed) as caught:
        await lives.records("s", offsets[0])
    assert caught.value.earliest == offsets[1]
    assert retain(lives)["files_trimmed"] == 0


async def test_retain_keeps_what_a_fork_reads(lives: Lives):
    offsets = await three_files(lives)
    await lives.fork("fork", "s", offsets[1])
    await lives.commit("s", version=3)
    await set_before(lives, format_stored(offsets[2]))

    assert retain(lives)["files_trimmed"] == 0
    assert await lives.records("fork") == [b"0", b"1"]


async def test_trim_point_is_not_still_to_come(lives: Lives):
    offsets = await three_files(lives)
    known = format_stored(offsets[0])
    await set_before(lives, known)
    later = datetime.fromtimestamp(lives.clock.now_ms() / 1000 + 60, UTC).isoformat()
    for before in (later, "2999-01-01", HIGH.replace("0", "9", 1)):
        with pytest.raises(BadSetting, match="still to come"):
            await lives.log.change_settings(NAME, {"retain": {"before": before}})
    assert stored(lives).retain.before == known
    # Behind a tail of a clock that was ahead, too.
    lives.clock.jump_wall(-60_000)
    behind = format_stored(Offset(offsets[-1] + 1))
    await set_before(lives, behind)
    assert stored(lives).retain.before == behind


@pytest.mark.parametrize("way", ["restart", "rebuild", "crash"])
async def test_trim_point_survives(lives: Lives, way: str):
    offsets = await three_files(lives)
    await set_before(lives, format_stored(offsets[1]))
    if way == "crash":
        await lives.crash()
    else:
        await lives.restart(without_wal=way == "rebuild")
    assert stored(lives).retain.before == format_stored(offsets[1])
    await set_before(lives, format_stored(offsets[0]))
    assert stored(lives).retain.before == format_stored(offsets[1])


def test_retain_takes_a_point_for_one_run(root: Path, capsys: pytest.CaptureFixture[str]):
    small_commits(root, "s", commits=4, rows=3)
    arguments = ["--root", str(root), "--config", str(_empty_config(root)), "--quiet"]
    assert run_retain([*arguments, "--before", "2026-11-17T00:00:02Z"]) == 0
    assert '"files_trimmed":2' in capsys.readouterr().out.replace(" ", "")
    with pytest.raises(SystemExit):
        run_retain([*arguments, "--before", "soon"])
    assert "2026-11-17T14:00:00Z" in capsys.readouterr().err


def _empty_config(root: Path) -> Path:
    path = root.with_name(f"{root.name}.toml")
    path.write_text("")
    return path
