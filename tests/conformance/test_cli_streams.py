"""The verbs on streams as a whole, settings, trim and bench, against a real server."""

from __future__ import annotations

import csv
import io
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.cli import Cli
from tests.support.server import CLONE, EXECUTABLE, ServerProcess
from tests.support.wire import serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.guarded import Guarded


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("cli")) as process:
        yield process


@pytest.fixture
def cli(server: ServerProcess, tmp_path: Path) -> Cli:
    return Cli(tmp_path, server.url)


# create, ls, info, close, delete, fork.


def test_cli_create_says_whether_it_is_new(cli: Cli):
    assert "made" in cli.ok("create", "new").err
    assert "there already" in cli.ok("create", "new").err
    done = cli("create", "new", "--type", "text")
    assert (done.code, done.out) == (1, b"")


@pytest.mark.parametrize(
    ("word", "content_type"),
    [
        ("json", "application/json"),
        ("ndjson", "application/x-ndjson"),
        ("csv", "text/csv"),
        ("msgpack", "application/msgpack"),
        ("text", "text/plain; charset=utf-8"),
        ("binary", "application/octet-stream"),
        ("image/png", "image/png"),
    ],
)
def test_cli_create_makes_a_stream_of_that_type(cli: Cli, word: str, content_type: str):
    name = f"typed/{word.replace('/', '-')}"
    cli.ok("create", name, "--type", word, "--ttl", "2h")
    document = cli.ok("info", name, "-o", "json").json
    assert (document["content_type"], document["ttl_seconds"]) == (content_type, 7200)


@pytest.mark.parametrize(
    "arguments",
    [
        ("create",),
        ("create", "a//b"),
        ("create", ""),
        ("create", "x", "--type", "colour"),
        ("create", "x", "--ttl", "soon"),
        ("create", "x", "--ttl", "-1h"),
        ("create", "x", "--colour", "red"),
        ("ls", "-n", "-1"),
        ("ls", "-o", "xml"),
        ("info",),
        ("settings", "x", "y"),
        ("trim", "x"),
        ("bench", "--writers", "0"),
        ("read", "x", "--from", "soon"),
        ("read", "x", "--from", "now", "--since", "1h"),
        ("get", "x", "1"),
        ("tail", "x", "-n", "many"),
        ("append", "x", "1", "--file", "/dev/null"),
        ("append", "x", "--file", "/does/not/exist"),
        ("ls", "--server", "127.0.0.1:1"),
        ("nothing",),
    ],
    ids=" ".join,
)
def test_cli_wrong_call_ends_with_2(cli: Cli, arguments: tuple[str, ...]):
    done = cli(*arguments)
    assert (done.code, done.out) == (2, b"")
    assert done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("info", "never"),
        ("read", "never"),
        ("tail", "never", "-f"),
        ("get", "never", "0" * 32),
        ("seek-time", "never", "1h"),
        ("close", "never"),
        ("delete", "never", "--yes"),
        ("fork", "never", "copy"),
        ("settings", "never"),
        ("trim", "never", "--before", "1h"),
        ("append", "never", "1", "--no-create"),
        ("ls", "--context", "never"),
    ],
    ids=" ".join,
)
def test_cli_of_what_is_not_there_ends_with_3(cli: Cli, arguments: tuple[str, ...]):
    done = cli(*arguments)
    assert (done.code, done.out) == (3, b"")
    assert "never" in done.err
    assert "never" not in cli.ok("ls", "-o", "raw").lines


def test_cli_of_a_server_that_is_not_there_ends_with_5(cli: Cli):
    for verb in (["ls"], ["read", "x"], ["append", "x", "1"], ["bench"], ["top", "--once"]):
        done = cli(*verb, "--server", "http://127.0.0.1:9")
        assert (done.code, done.out) == (5, b""), verb
        assert "http://127.0.0.1:9" in done.err


def test_cli_without_the_right_token_ends_with_4(guarded: Guarded, tmp_path: Path):
    secret = guarded.token("read:mine/")
    url = guarded.server.url
    none, reader = Cli(tmp_path, url), Cli(tmp_path, url, env={"BOTTOMLESS_TOKEN": secret})
    assert none("read", "mine/s").code == 4
    assert reader.ok("read", "mine/s").lines == ['{"x":1}']
    assert none.ok("read", "mine/s", "--token", secret).lines == ['{"x":1}']
    assert reader("append", "mine/s", "1").code == 4
    assert reader("info", "theirs/s").code == 3, "what it may not see is not there"
    # The list is for those who may see all of it: what a reader may know is shown all the same.
    assert reader.ok("info", "mine/s", "-o", "raw").lines
    done = reader("ls")
    assert (done.code, done.out) == (4, b"")
    assert secret not in done.err


def test_cli_ls_filters_pages_and_cuts(cli: Cli):
    names = [f"many/{number:02d}" for number in range(7)]
    for name in names:
        cli.ok("create", name)
    cli.ok("append", "many/03", "1", "2")
    assert cli.ok("ls", "many/", "-o", "raw").lines == names
    assert cli.ok("ls", "many/", "-n", "3", "-o", "raw").lines == names[:3]
    assert cli.ok("ls", "many/", "-n", "0", "-o", "raw").lines == []
    assert cli.ok("ls", "many/none", "-o", "json").json == []
    rows = cli.ok("ls", "many/", "-o", "json").json
    assert [row["name"] for row in rows] == names
    assert [row["records"] for row in rows] == [0, 0, 0, 2, 0, 0, 0]
    lines = cli.ok("ls", "many/", "-o", "jsonl").lines
    assert len(lines) == 7
    table = cli.ok("ls", "many/").lines
    assert table[0].split()[0] == "NAME"
    assert [line.split()[0] for line in table[1:]] == names
    parsed = list(csv.DictReader(io.StringIO(cli.ok("ls", "many/", "-o", "csv").out.decode())))
    assert [row["name"] for row in parsed] == names


def test_cli_info_tells_size_tail_and_settings(cli: Cli):
    tail = cli.ok("append", "known", "1", "2", "3").lines[0]
    document = cli.ok("info", "known", "-o", "json").json
    assert document["tail"] == tail
    assert document["records"] == 3
    assert document["bytes"] > 0
    assert document["in_force"]["ack"] == "wal"
    assert cli.ok("info", "known", "-o", "raw").lines == [tail]
    table = dict(line.split(maxsplit=1) for line in cli.ok("info", "known").lines if " " in line)
    assert table["tail"] == tail
    assert table["in_force.commit.interval_ms"] == "1000"


def test_cli_close_ends_a_stream(cli: Cli):
    cli.ok("append", "ended", "1")
    cli.ok("close", "ended")
    assert cli.ok("info", "ended", "-o", "json").json["closed"] is True
    done = cli("append", "ended", "2")
    assert done.code == 1
    assert "0 records are stored" in done.err
    # Whoever follows comes to the end.
    assert cli.ok("read", "ended", "-f").lines == ["1"]


def test_cli_append_can_close_behind_itself(cli: Cli):
    cli.ok("append", "last-words", "1", "2", "--close")
    assert cli.ok("tail", "last-words", "-f").lines == ["1", "2"]


def test_cli_delete_wants_yes_where_it_cannot_ask(cli: Cli):
    cli.ok("append", "doomed", "1")
    done = cli("delete", "doomed", stdin=b"doomed\n")
    assert done.code == 2
    assert "--yes" in done.err
    assert cli.ok("read", "doomed").lines == ["1"]
    cli.ok("delete", "doomed", "--yes")
    assert cli("info", "doomed").code == 3


def test_cli_fork_shares_what_is_older(cli: Cli):
    cli.ok("append", "trunk", "1")
    first = cli.ok("append", "trunk", "2").lines[0]
    cli.ok("append", "trunk", "3")
    cli.ok("fork", "trunk", "twig")
    cli.ok("fork", "trunk", "branch", "--at", first)
    cli.ok("fork", "trunk", "root", "--at", "1d")
    cli.ok("append", "twig", "4")
    assert cli.ok("read", "twig").lines == ["1", "2", "3", "4"]
    assert cli.ok("read", "branch").lines == ["1", "2"]
    assert cli.ok("read", "root").lines == []
    assert cli.ok("read", "trunk").lines == ["1", "2", "3"]


# settings, trim, bench, version.


def test_cli_settings_are_shown_changed_and_given_back(cli: Cli):
    cli.ok("create", "told")
    changes = ("ack=table", "commit.interval_ms=200", "retain.records=10")
    document = cli.ok("settings", "told", *changes, "-o", "json").json
    expected = {"ack": "table", "commit": {"interval_ms": 200}, "retain": {"records": 10}}
    assert document["own"] == expected
    document = cli.ok("settings", "told", "ack=null", "commit.interval_ms=null", "-o", "json").json
    assert (document["own"], document["in_force"]["ack"]) == ({"retain": {"records": 10}}, "wal")
    assert "in_force.retain.records\t10" in cli.ok("settings", "told", "-o", "raw").lines
    for wrong in ("ack=soon", "commit.interval_ms=0", "colour=red"):
        done = cli("settings", "told", wrong)
        assert done.code == 2
        assert wrong.partition("=")[0] in done.err


def test_cli_trim_gives_up_what_retain_then_removes(cli: Cli, server: ServerProcess):
    cli.ok("create", "long")
    cli.ok("settings", "long", "ack=table")
    offsets = [cli.ok("append", "long", str(number)).lines[0] for number in range(3)]

    done = cli.ok("trim", "long", "--before", offsets[2], "-o", "raw")
    assert done.lines == [offsets[2]]
    assert "retain" in done.err
    lower = cli.ok("trim", "long", "--before", offsets[1], "-o", "raw")
    assert lower.lines == [offsets[2]]
    assert "without effect" in lower.err
    assert cli.ok("read", "long").lines == ["0", "1", "2"], "until retain has run"

    command = [EXECUTABLE, "retain", "--root", server.root, "--stream", "long", "--quiet"]

    def is_trimmed() -> bool:
        # The setting reaches the table with the stream's next commit.
        job = subprocess.run(command, capture_output=True, cwd=CLONE, timeout=60)
        assert job.returncode == 0, (job.returncode, job.stdout, job.stderr)
        return b'"files_trimmed": 2' in job.stdout or b'"files_trimmed":2' in job.stdout

    wait_until(is_trimmed, "the retain job trims two files")
    wait_until(lambda: cli("read", "long").lines == ["2"], "the server sees the trim")
    done = cli("read", "long", "--after", offsets[0])
    assert done.code == 3
    assert cli.ok("read", "long", "--from", offsets[2]).lines == ["2"]
    assert cli.ok("read", "long", "--since", "1h").lines == ["2"]


def test_cli_trim_of_all_there_is_and_of_what_is_to_come(cli: Cli):
    tail = cli.ok("append", "whole", "1").lines[0]
    document = cli.ok("trim", "whole", "--before", "now", "-o", "json").json
    assert document == {"stream": "whole", "before": f"{int(tail) + 1:032d}"}
    for later in ("2999-01-01", "9" * 32):
        done = cli("trim", "whole", "--before", later)
        assert done.code == 2
        assert "still to come" in done.err
    own = cli.ok("settings", "whole", "-o", "json").json["own"]
    assert own["retain"]["before"] == document["before"]


def test_cli_bench_measures_and_leaves_nothing(cli: Cli):
    arguments = ("--seconds", "0.3", "--writers", "3", "--batch", "10", "--bytes", "50")
    found = cli.ok("bench", *arguments, "-o", "json").json
    assert found["records"] == found["appends"] * 10 > 0
    assert 0.3 <= found["seconds"] < 5
    assert found["records_per_s"] == pytest.approx(found["records"] / found["seconds"], rel=0.02)
    assert 0 < found["ack_ms_p50"] <= found["ack_ms_p99"] <= found["ack_ms_max"]
    assert [name for name in cli.ok("ls", "-o", "raw").lines if name.startswith("bench-")] == []


def test_cli_version_is_that_of_the_package(cli: Cli):
    text = (CLONE / "pyproject.toml").read_text()
    (version,) = cli.ok("version", "-o", "raw").lines
    assert f'version = "{version}"' in text
    assert cli.ok("--version").lines == [version]


def test_cli_name_that_is_no_text_is_a_wrong_call(cli: Cli):
    done = cli("info", "\udcff")
    assert (done.code, done.out) == (2, b"")
    assert "UTF-8" in done.err
