"""Records on their way in and out of the command line: every format, byte for byte."""

from __future__ import annotations

import base64
import csv
import io
import random
import re
from typing import TYPE_CHECKING

import msgspec
import pytest

import bottomless
from tests.support.cli import Cli
from tests.support.wire import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.server import ServerProcess

# What a round trip through a parser would change.
DELICATE = [
    b'{"id": 1,  "price": 4.50, "id": 2}',
    b"12345678901234567890123456789",
    b"1.0",
    b"-0",
    b'"\\u00e4\\ud83d \xc3\xa4 \\/ [bold]"',
    b"[]",
    b"[1, [2], {}]",
    b"null",
    b'""',
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("cli")) as process:
        yield process


@pytest.fixture
def cli(server: ServerProcess, tmp_path: Path) -> Cli:
    return Cli(tmp_path, server.url)


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")


@pytest.fixture
def ten(cli: Cli, stream: str) -> list[str]:
    """A stream of ten appends; their offsets."""
    return [cli.ok("append", stream, str(number)).lines[0] for number in range(10)]


# In and out again.


@pytest.mark.parametrize("how", ["lines", "jsonl", "json"])
def test_cli_json_comes_out_as_it_went_in(cli: Cli, stream: str, how: str):
    data = b"[" + b",".join(DELICATE) + b"]" if how == "json" else b"\n".join(DELICATE) + b"\n"
    cli.ok("append", stream, "--input", how, stdin=data)
    for output in ("raw", "jsonl"):
        assert cli.ok("read", stream, "-o", output).out.splitlines() == DELICATE
    out = cli.ok("read", stream, "-o", "json").out
    assert out == b"[\n" + b",\n".join(DELICATE) + b"\n]\n"


@pytest.mark.parametrize(
    ("output", "how"), [("jsonl", "jsonl"), ("jsonl", "lines"), ("raw", "lines"), ("json", "json")]
)
def test_cli_json_goes_from_stream_to_stream(cli: Cli, stream: str, output: str, how: str):
    cli.ok("append", stream, "--", *[record.decode() for record in DELICATE])
    out = cli.ok("read", stream, "-o", output).out
    cli.ok("append", f"{stream}-copy", "--input", how, stdin=out)
    assert cli.ok("read", f"{stream}-copy", "-o", output).out == out


def test_cli_json_that_spans_lines_is_one_record(cli: Cli, stream: str):
    """jsonl has it on one line; json keeps its line ends."""
    record = b'{\n  "a": "b",\r\n  "c": 1\n}'
    cli.ok("append", stream, "--input", "raw", "--type", "json", stdin=record + b"\n")
    cli.ok("append", stream, record.decode())
    assert cli.ok("read", stream, "-o", "jsonl").lines == ['{   "a": "b",    "c": 1 }'] * 2
    out = cli.ok("read", stream, "-o", "json").out
    assert out == b"[\n" + record + b",\n" + record + b"\n]\n"
    cli.ok("append", f"{stream}-copy", "-i", "json", stdin=out)
    assert cli.ok("read", f"{stream}-copy", "-o", "json").out == out


def test_cli_text_keeps_its_lines(cli: Cli, stream: str):
    lines = ["one", " two ", "drei ä", '{"no": "json"', "x\ty"]
    cli.ok("append", stream, "-t", "text", stdin="\n".join(lines).encode() + b"\n\n\n")
    assert cli.ok("read", stream).lines == lines
    out = cli.ok("read", stream, "-o", "jsonl").out
    assert [msgspec.json.decode(line) for line in out.splitlines()] == lines
    cli.ok("append", f"{stream}-copy", "-t", "text", "-i", "jsonl", stdin=out)
    assert cli.ok("read", f"{stream}-copy", "-o", "jsonl").out == out


def test_cli_text_with_lines_in_it_goes_through_jsonl(cli: Cli, stream: str):
    text = "one\ntwo\n\nthree"
    cli.ok("append", stream, text, "-t", "text")
    cli.ok("append", stream, "-i", "raw", stdin=text.encode())
    out = cli.ok("read", stream, "-o", "jsonl").out
    assert [msgspec.json.decode(line) for line in out.splitlines()] == [text, text]
    cli.ok("append", f"{stream}-copy", "-t", "text", "-i", "jsonl", stdin=out)
    assert cli.ok("read", f"{stream}-copy", "-o", "json").json == [text, text]


@pytest.mark.parametrize("size", [1, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_cli_bytes_go_through_unchanged(cli: Cli, stream: str, tmp_path: Path, size: int):
    data = random.Random(size).randbytes(size)
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    cli.ok("append", stream, "--file", str(path), "--type", "binary")
    assert cli.ok("read", stream).out == data
    cli.ok("append", f"{stream}-2", "-i", "raw", stdin=data)
    assert cli.ok("read", f"{stream}-2", "-o", "raw").out == data
    out = cli.ok("read", stream, "-o", "jsonl").out
    parts = [base64.b64decode(msgspec.json.decode(line)) for line in out.splitlines()]
    assert b"".join(parts) == data
    cli.ok("append", f"{stream}-3", "-i", "jsonl", "-t", "image/png", stdin=out)
    assert cli.ok("read", f"{stream}-3").out == data


def test_cli_csv_rows_of_a_csv_stream(cli: Cli, stream: str):
    data = b'id,item\n1,"tea, ""green"""\n2,"two\nlines"\n3,\n'
    cli.ok("append", stream, "-t", "csv", stdin=data)
    assert cli.ok("read", stream).out == data.replace(b"\n1,", b"\r\n1,").replace(
        b'"\n2', b'"\r\n2'
    ).replace(b'"\n3,\n', b'"\r\n3,\r\n')
    rows = [["id", "item"], ["1", 'tea, "green"'], ["2", "two\nlines"], ["3", ""]]
    out = cli.ok("read", stream, "-o", "jsonl").out
    assert [msgspec.json.decode(line) for line in out.splitlines()] == rows
    cli.ok("append", f"{stream}-copy", "-t", "csv", "-i", "jsonl", stdin=out)
    assert cli.ok("read", f"{stream}-copy", "-o", "json").json == rows


def test_cli_csv_becomes_objects(cli: Cli, stream: str):
    cli.ok("append", stream, "-i", "csv", stdin=b'id,item\n1,"tea\nand milk"\n2,\n')
    found = [msgspec.json.decode(line) for line in cli.ok("read", stream).lines]
    assert found == [{"id": "1", "item": "tea\nand milk"}, {"id": "2", "item": ""}]


def test_cli_ndjson_keeps_the_bytes_of_its_lines(cli: Cli, stream: str):
    cli.ok("append", stream, "-t", "ndjson", stdin=b"\n".join(DELICATE) + b"\n")
    for output in ("raw", "jsonl"):
        assert cli.ok("read", stream, "-o", output).out.splitlines() == DELICATE
    assert cli.ok("read", stream, "-n", "2", "-o", "raw").out.splitlines() == DELICATE[:2]
    assert cli.ok("tail", stream, "-n", "1").out.splitlines() == DELICATE[-1:]


def test_cli_message_pack_goes_in_and_out_as_json(cli: Cli, stream: str):
    values = [{"a": [1, 2.5, None]}, "text", 7]
    data = b"".join(msgspec.json.encode(value) + b"\n" for value in values)
    cli.ok("append", stream, "-t", "msgpack", stdin=data)
    assert cli.ok("read", stream, "-o", "jsonl").out == data
    packed = cli.ok("read", stream).out
    assert packed == b"".join(map(msgspec.msgpack.encode, values))
    cli.ok("append", f"{stream}-copy", "-t", "msgpack", "-i", "raw", stdin=packed)
    assert cli.ok("read", f"{stream}-copy", "-o", "jsonl").out == data


# What is wrong.


@pytest.mark.parametrize(
    ("arguments", "data", "words"),
    [
        ((), b'{"a": 1}\n\n{"b": \n', ["line 3", "not JSON", "1 records are stored"]),
        ((), b"hello\n", ["line 1", "--type text"]),
        ((), b'"\xff"\n', ["line 1", "UTF-8"]),
        (("-i", "json"), b"[1, 2", ["not JSON"]),
        (
            ("-i", "csv"),
            b"a,b\n1,2\n3\n",
            ["line 3", "1 values for 2 columns", "1 records are stored"],
        ),
        (("-i", "csv"), b"a,a\n1,2\n", ["same name"]),
        (("-t", "text"), b"ok\n\xff\n", ["line 2", "UTF-8", "1 records are stored"]),
        (("-t", "text", "-i", "jsonl"), b"1\n", ["line 1", "a string"]),
        (("-t", "text", "-i", "csv"), b"a\n1\n", ["cannot become text/plain"]),
        (("-t", "binary", "-i", "jsonl"), b'"%"\n', ["line 1", "base64"]),
        (("-t", "csv", "-i", "jsonl"), b"{}\n", ["line 1", "an array"]),
    ],
)
def test_cli_append_says_what_is_wrong_and_where(
    cli: Cli, stream: str, arguments: tuple[str, ...], data: bytes, words: list[str]
):
    done = cli("append", stream, *arguments, stdin=data)
    assert (done.code, done.out) == (2, b"")
    for word in words:
        assert word in done.err
    is_there = stream in cli.ok("ls", "-o", "raw").lines
    assert is_there == any("stored" in word and not word.startswith("0") for word in words)


def test_cli_append_of_nothing_makes_an_empty_stream(cli: Cli, stream: str):
    done = cli.ok("append", stream, stdin=b"\n\n")
    assert done.out == b""
    assert "2 empty lines" in done.err
    assert cli.ok("read", stream).out == b""


def test_cli_append_to_a_stream_of_another_type_is_refused(cli: Cli, stream: str):
    cli.ok("append", stream, "1")
    assert cli("append", stream, "x", "--type", "text").code == 2
    assert cli.ok("read", stream).lines == ["1"]


def test_cli_append_tells_what_it_did(cli: Cli, stream: str):
    document = cli.ok("append", stream, "1", "2", "-o", "json").json
    assert (document["stream"], document["records"]) == (stream, 2)
    assert document["tail"] == cli.ok("info", stream, "-o", "raw").lines[0]
    assert cli.ok("append", stream, "3", "--quiet").out == b""


def test_cli_append_by_a_name_fences_the_one_before(cli: Cli, server: ServerProcess, stream: str):
    with bottomless.connect(server.url) as client:
        first = client.producer(stream, id="me")
        first.append(1)
        first.flush()
        cli.ok("append", stream, "2", "--producer", "me")
        first.append(3)
        with pytest.raises(bottomless.Fenced):
            first.flush()
    assert cli.ok("read", stream).lines == ["1", "2"]


# Where reads begin and end.


def test_cli_read_begins_where_it_is_told(cli: Cli, stream: str, ten: list[str]):
    def read(*arguments: str) -> str:
        return "".join(cli.ok("read", stream, *arguments).lines)

    assert read() == read("--from", "beginning") == "0123456789"
    assert read("--from", "0" * 32) == "0123456789"
    assert read("--from", "newest:3") == "789"
    assert read("--from", ten[4]) == "456789", "that record is the first"
    assert read("--from", f"{ten[4][:16]}_{ten[4][16:]}") == "456789"
    assert read("--after", ten[4]) == "56789"
    assert read("--since", "1h") == read("--from", "1h") == "0123456789"
    assert read("--since", "2999-01-01") == ""
    assert read("--since", "2020-01-01T00:00:00Z", "-n", "2") == "01"
    assert read("--until", ten[4]) == "0123"
    assert read("--from", ten[2], "--until", ten[4]) == "23"
    assert read("--until", "1h") == ""
    assert read("--until", "now") == "0123456789"
    assert read("-n", "0") == ""
    assert read("--from", "now", "--until", "now") == ""


def test_cli_tail_shows_the_last(cli: Cli, stream: str, ten: list[str]):
    assert cli.ok("tail", stream).lines == list("0123456789")
    assert cli.ok("tail", stream, "-n", "3").lines == list("789")
    assert cli.ok("tail", stream, "-n", "0").lines == []
    assert cli.ok("tail", stream, "-n", "99").lines == list("0123456789")


def test_cli_get_shows_one_record(cli: Cli, stream: str, ten: list[str]):
    assert cli.ok("get", stream, ten[6]).lines == ["6"]
    done = cli.ok("get", stream, ten[6], "-o", "jsonl", "--offsets").json
    assert (done["offset"], done["data"]) == (ten[6], 6)
    for other in (f"{int(ten[6]) + 1:032d}", f"{int(ten[9]) + 1:032d}", "0" * 32):
        done = cli("get", stream, other)
        assert (done.code, done.out) == (3, b"")


def test_cli_seek_time_finds_the_first_record_of_a_time(cli: Cli, stream: str, ten: list[str]):
    rows = cli.ok("read", stream, "-o", "json", "--offsets").json
    for row in rows:
        found = cli.ok("seek-time", stream, row["time"]).lines[0]
        # Several may have been stored in that millisecond.
        assert found == min(other["offset"] for other in rows if other["time"] == row["time"])
        assert cli.ok("get", stream, found).code == 0
        rest = cli.ok("read", stream, "--from", found).lines
        assert rest == [str(number) for number in range(10) if ten[number] >= found]
    assert cli.ok("seek-time", stream, "1d", "-o", "json").json["offset"] == ten[0]
    assert cli("seek-time", stream, "2999-01-01").code == 3
    assert cli("seek-time", stream, "soon").code == 2


# How it looks.


def test_cli_read_shows_offsets_and_times(cli: Cli, stream: str, ten: list[str]):
    lines = cli.ok("read", stream, "-o", "jsonl", "--offsets").out.splitlines()
    rows = [msgspec.json.decode(line) for line in lines]
    assert [row["offset"] for row in rows] == ten
    assert [row["data"] for row in rows] == list(range(10))
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]{8}\.\d{3}Z", row["time"]) for row in rows)
    assert cli.ok("read", stream, "-o", "json", "--offsets").json == rows
    parsed = csv.DictReader(io.StringIO(cli.ok("read", stream, "-o", "csv").out.decode()))
    expected = [{**row, "data": str(row["data"])} for row in rows]
    assert list(parsed) == expected
    table = [line.split() for line in cli.ok("read", stream, "-o", "table").lines]
    assert table[0] == ["OFFSET", "TIME", "DATA"]
    assert table[1:] == [list(row.values()) for row in expected]


def test_cli_read_of_nothing_is_a_whole_document(cli: Cli, stream: str):
    cli.ok("create", stream)
    assert cli.ok("read", stream, "-o", "json").json == []
    assert cli.ok("read", stream, "-o", "csv").lines == ["offset,time,data"]
    assert cli.ok("read", stream, "-o", "jsonl").out == b""


def test_cli_table_obeys_no_record(cli: Cli, stream: str):
    """Colours, titles and line ends of a record are shown, not done."""
    cli.ok("append", stream, "\x1b[31mred\x1b]0;title\x07\u202e [bold]x[/]", "-t", "text")
    (line,) = cli.ok("read", stream, "-o", "table").lines[1:]
    assert "\x1b" not in line
    assert "\x07" not in line
    assert "\u202e" not in line
    assert "\\x1b[31mred" in line
    assert "[bold]x[/]" in line
