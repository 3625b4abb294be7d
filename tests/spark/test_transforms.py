"""The transforms, judged by what comes out: rows in their bins, lines that parse to the record."""

from __future__ import annotations

import base64
import json
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F  # noqa: N812  (the name everybody knows it by)

from engine.format.offset import START, format_stored, make_offset
from engine.types import Offset, PayloadKind
from jobs.common.transforms import (
    BIN,
    COLUMNS,
    as_csv,
    as_ndjson,
    file_schema,
    fingerprint,
    in_offsets,
    into_bins,
    with_key,
)
from tests.support.tables import MONDAY_MS, TableBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

TEXT, BYTES, JSON = PayloadKind.TEXT, PayloadKind.BYTES, PayloadKind.JSON
MONDAY = datetime.fromtimestamp(MONDAY_MS / 1000, UTC)
MOMENT = MONDAY + timedelta(milliseconds=7)
CONTENT_TYPES = {JSON: "application/json", TEXT: "text/plain", BYTES: "image/png"}
Record = tuple[str, datetime, str | None, Any, int]


def record(
    offset: int = 1, *, key: str | None = "k", data: Any = "d", at: datetime = MOMENT, seq: int = 0
) -> Record:
    return (format_stored(Offset(offset)), at, key, data, seq)


def frame(spark: SparkSession, records: Iterable[Record], kind: PayloadKind = TEXT) -> DataFrame:
    return spark.createDataFrame(list(records), file_schema(kind))


def offset_at(epoch_ms: int, counter: int) -> Offset:
    return make_offset(MONDAY_MS + epoch_ms, counter)


# file_schema


@pytest.mark.parametrize("kind", [JSON, TEXT, BYTES])
def test_file_schema_is_what_the_engine_writes(
    spark: SparkSession, tmp_path: Path, kind: PayloadKind
) -> None:
    table = TableBuilder(tmp_path, "orders", content_type=CONTENT_TYPES[kind])
    table.commit(MONDAY_MS, [b'{"a":1}', b'"b"'])
    [path] = table.path.glob("flush_date=*/*.parquet")

    told = spark.read.schema(file_schema(kind)).parquet(str(path))

    # Without a schema Spark takes types and order of the columns from the file itself.
    assert_df_equality(told, spark.read.parquet(str(path)))


# into_bins

# The stored form is compared as text: digits are carried inside the counters and the epochs here.
OFFSETS = [
    *(offset_at(9, counter) for counter in range(1, 121)),
    *(offset_at(10, counter) for counter in range(1, 12)),
    *(offset_at(9999, counter) for counter in range(1, 31)),
    *(offset_at(10_000, counter) for counter in range(1, 40)),
]
LASTS = [offset_at(9, 99), offset_at(9, 100), offset_at(10, 9), offset_at(10_000, 1), OFFSETS[-1]]


def shuffled(offsets: Iterable[Offset]) -> list[Record]:
    records = [record(offset, data=f"data of {offset}") for offset in offsets]
    random.Random(7).shuffle(records)
    return records


def bin_of(offset: str) -> int:
    return min(index for index, last in enumerate(LASTS) if int(offset) <= last)


def collect_bins(rows: DataFrame, lasts: list[Offset]) -> list[Row]:
    """Partition after partition, the rows of each as they lie there."""
    return into_bins(rows, lasts).withColumn("part", F.spark_partition_id()).collect()


def test_into_bins_puts_every_row_whole_into_the_bin_that_bounds_it(spark: SparkSession) -> None:
    records = shuffled(OFFSETS)
    # The column of the partition folders must not come along into the files.
    rows = frame(spark, records).withColumn("flush_date", F.current_date())

    binned = into_bins(rows, LASTS)

    expected = frame(spark, records).collect()
    found = binned.collect()
    assert binned.columns == [*COLUMNS, BIN]
    assert sorted(row[:-1] for row in found) == sorted(map(tuple, expected))
    assert [row[BIN] for row in found] == [bin_of(row.offset) for row in found]
    assert {row[BIN] for row in found} == set(range(len(LASTS)))


def test_into_bins_keeps_each_bin_in_one_partition_in_order(spark: SparkSession) -> None:
    found = collect_bins(frame(spark, shuffled(OFFSETS)).repartition(7), LASTS)

    parts_of: dict[int, set[int]] = {}
    for row in found:
        parts_of.setdefault(row[BIN], set()).add(row.part)
    places = [(row.part, row[BIN], row.offset) for row in found]
    assert all(len(parts) == 1 for parts in parts_of.values())
    assert places == sorted(places)


def test_into_bins_loses_no_row_that_should_not_be_there(spark: SparkSession) -> None:
    # The caller compares the rows before and after, so these must stay visible.
    beyond, doubled = Offset(OFFSETS[-1] + 5), OFFSETS[3]

    found = collect_bins(frame(spark, shuffled([*OFFSETS, beyond, doubled])), LASTS)

    in_last = [row.offset for row in found if row[BIN] == len(LASTS) - 1]
    assert sorted(int(row.offset) for row in found) == sorted([*OFFSETS, beyond, doubled])
    assert in_last[-1] == format_stored(beyond)


def test_into_bins_of_one_bound_is_one_sorted_run(spark: SparkSession) -> None:
    found = collect_bins(frame(spark, shuffled(OFFSETS)), [OFFSETS[-1]])

    assert [row.offset for row in found] == [format_stored(offset) for offset in OFFSETS]
    assert {(row[BIN], row.part) for row in found} == {(0, 0)}


def test_into_bins_is_written_as_one_sorted_file_per_bin(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = frame(spark, shuffled(OFFSETS)).repartition(3)

    into_bins(rows, LASTS).write.partitionBy(BIN).parquet(str(tmp_path / "out"))

    files = sorted((tmp_path / "out").glob(f"{BIN}=*/*.parquet"))
    found = [pq.ParquetFile(file).read(["offset"])["offset"].to_pylist() for file in files]
    assert [file.parent.name for file in files] == [f"{BIN}={index}" for index in range(5)]
    assert [offset for of_bin in found for offset in of_bin] == [
        format_stored(offset) for offset in OFFSETS
    ]
    assert [of_bin[-1] for of_bin in found] == [format_stored(last) for last in LASTS]


def test_into_bins_takes_a_bin_for_every_day_of_a_year_and_more(spark: SparkSession) -> None:
    # A round is bounded by its bytes and files alone, so a slow stream has as many bins as days.
    lasts = [offset_at(day * 86_400_000, 9) for day in range(500)]

    found = into_bins(frame(spark, [record(last) for last in lasts]), lasts).collect()

    assert sorted((row.offset, row[BIN]) for row in found) == [
        (format_stored(last), index) for index, last in enumerate(lasts)
    ]


# fingerprint


def fingerprints(spark: SparkSession, cases: dict[str, list[Record]]) -> dict[str, tuple[Any, ...]]:
    """Of several sets of rows by one query."""
    schema = file_schema(TEXT).add("case", "string")
    records = [(*row, name) for name, rows in cases.items() for row in rows]
    rows = spark.createDataFrame(records, schema)
    found = rows.groupBy("case").agg(*fingerprint(rows)).collect()
    return {row["case"]: row[1:] for row in found}


def test_fingerprint_is_the_same_in_any_order_and_number_of_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = shuffled(OFFSETS)
    one, many = str(tmp_path / "one"), str(tmp_path / "many")
    frame(spark, sorted(records)).coalesce(1).write.parquet(one)
    frame(spark, records).repartition(5).withColumn("flush_date", F.current_date()).write.parquet(
        many
    )

    read = [spark.read.parquet(path) for path in (one, many)]
    [first, second] = [rows.agg(*fingerprint(rows)).collect() for rows in read]

    assert len(list((tmp_path / "many").glob("*.parquet"))) > 1
    assert first == second
    assert first[0].rows == len(OFFSETS)


def test_fingerprint_differs_when_a_row_is_doubled_lost_or_changed(spark: SparkSession) -> None:
    rows = [record(number, data=f"data {number}", seq=number) for number in range(1, 6)]
    victim, others = rows[2], rows[:2] + rows[3:]
    cases = {
        "as it was": rows,
        "doubled": [*rows, victim],
        "lost": others,
        "one byte of the data": [*others, record(3, data="data 4", seq=3)],
        "one bit of the data": [*others, record(3, data="data 3".replace("d", "e"), seq=3)],
        "a space more": [*others, record(3, data="data 3 ", seq=3)],
        "no data": [*others, record(3, data="", seq=3)],
        "offset": [*others, record(33, data="data 3", seq=3)],
        "no key": [*others, record(3, key=None, data="data 3", seq=3)],
        "empty key": [*others, record(3, key="", data="data 3", seq=3)],
        "other key": [*others, record(3, key="K", data="data 3", seq=3)],
        "a border moved": [*others, record(3, key="kd", data="ata 3", seq=3)],
        "a microsecond": [
            *others,
            record(3, data="data 3", seq=3, at=MOMENT + timedelta(microseconds=1)),
        ],
        "append_seq": [*others, record(3, data="data 3", seq=4)],
        # Each column keeps its values here; only whole rows tell.
        "two swapped": [
            *rows[:3],
            record(4, data="data 5", seq=4),
            record(5, data="data 4", seq=5),
        ],
    }

    found = fingerprints(spark, cases)

    assert len(found) == len(cases)
    assert len(set(found.values())) == len(cases), found


def test_fingerprint_sees_a_pair_that_xor_cancels(spark: SparkSession) -> None:
    a, b = record(1), record(2)

    found = fingerprints(spark, {"one": [a], "pair more": [a, b, b], "thrice": [a, a, a]})

    assert {name: rows for name, (rows, _) in found.items()} == {
        "one": 1,
        "pair more": 3,
        "thrice": 3,
    }
    assert found["pair more"] != found["one"] != found["thrice"]


def test_fingerprint_of_no_rows_says_so(spark: SparkSession) -> None:
    none = frame(spark, [])

    [row] = none.agg(*fingerprint(none)).collect()

    assert row.rows == 0


# in_offsets, with_key


def test_in_offsets_leaves_out_after_and_takes_in_through(spark: SparkSession) -> None:
    after, through = offset_at(9, 99), offset_at(9999, 9)
    records = shuffled(OFFSETS)

    found = in_offsets(frame(spark, records), after=after, through=through)

    inside = [row for row in records if after < int(row[0]) <= through]
    assert [format_stored(after + 1), format_stored(through)] == [min(inside)[0], max(inside)[0]]
    assert_df_equality(found, frame(spark, inside), ignore_row_order=True)


def test_in_offsets_from_the_start_is_everything_and_of_nothing_is_nothing(
    spark: SparkSession,
) -> None:
    rows = frame(spark, shuffled(OFFSETS))

    whole = in_offsets(rows, after=START, through=OFFSETS[-1]).count()
    empty = in_offsets(rows, after=OFFSETS[5], through=OFFSETS[5]).count()

    assert (whole, empty) == (len(OFFSETS), 0)


def test_with_key_takes_the_very_key_only(spark: SparkSession) -> None:
    wanted = 'it\'s "50%" \\ %'
    near = [wanted.upper(), f"{wanted} ", wanted[:-1], "", None]
    records = [record(number, key=key) for number, key in enumerate([wanted, *near, wanted])]

    found = with_key(frame(spark, records), wanted)

    assert_df_equality(found, frame(spark, [records[0], records[-1]]))


def test_with_key_of_the_empty_key_leaves_out_records_without_one(spark: SparkSession) -> None:
    rows = frame(spark, [record(1, key=None), record(2, key="")])

    assert_df_equality(with_key(rows, ""), frame(spark, [record(2, key="")]))


# as_ndjson, as_csv

# What a JSON generator must escape, and what only some of them do.
CONTROLS = "".join(map(chr, range(0x20))) + "\x7f\x80\x85\x9f"
ODD = "\"\\/'<>&\u2028\u2029\u200b\ufeff\ufdd0\ufffe\uffff\ud7ff\ue000\U0001f600\U0010ffff"
TEXTS = {
    "empty": "",
    "quotes": '"',
    "ends in a backslash": "C:\\",
    "looks like JSON": '{"v":"x"}',
    "looks like the end": '"}',
    "lines": "one\ntwo\r\nthree\rfour\n",
    "controls": CONTROLS,
    "odd": ODD,
    "each alone": "".join(f"x{char}" for char in CONTROLS + ODD),
    "combining": "e\u0301 \N{WOMAN}\u200d\N{PERSONAL COMPUTER} \N{THAI CHARACTER SARA AM}",
    "spaces": "  \t ",
    # Generators write through buffers of a few thousand characters: pairs of surrogates and
    # escapes must come through on either side of every border.
    "long": "x" * 20_000,
    "long, emoji": "\U0001f600" * 10_000,
    "long, emoji, shifted": "x" + "\U0001f600" * 10_000,
    "long, escapes": "\x00" * 9000 + '"' * 9001,
}


def lines_of(rows: DataFrame, kind: PayloadKind) -> list[str]:
    """One line per record, as a reader of the file would split them."""
    shaped = as_ndjson(rows, kind)
    assert shaped.dtypes == [("value", "string")]
    lines = [row.value for row in shaped.collect()]
    assert not any("\n" in line or "\r" in line for line in lines)
    return lines


def exactly(text: str) -> Any:
    """JSON with numbers as they are spelled, and with every pair of an object."""
    return json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=tuple)


def test_as_ndjson_makes_any_text_a_json_string(spark: SparkSession) -> None:
    records = [record(n, key=text, data=text) for n, text in enumerate(TEXTS.values())]

    lines = lines_of(frame(spark, records), TEXT)

    for name, row, line in zip(TEXTS, records, lines, strict=True):
        assert json.loads(line) == {
            "offset": row[0],
            "flushed_at": "2026-11-17T00:00:00.007Z",
            "key": row[2],
            "data": row[3],
        }, name


def test_as_ndjson_keeps_the_bytes_of_a_json_record(spark: SparkSession) -> None:
    documents = [
        "123456789012345678901234567890",
        '{"float":1.0,"exponent":1E400,"small":1e-7,"minus":-0,"many":0.1000000000000000055511}',
        '{"twice":1,"twice":2}',
        '{ "spaced" : [ 1 ,2 ] }\t',
        r'"\u00e9\ud83d\ude00\u0000\/\n\r\\n\ud800"',
        '"\u2028\u2029\x7f\U0001f600é$1\\\\"',
        '""',
        "null",
        "false",
        json.dumps({"long": "x" * 20_000}),
    ]
    records = [record(n, data=text) for n, text in enumerate(documents)]

    lines = lines_of(frame(spark, records, JSON), JSON)

    for text, line in zip(documents, lines, strict=True):
        assert line.endswith(f',"data":{text}}}')
        assert dict(exactly(line))["data"] == exactly(text)


def test_as_ndjson_makes_one_line_of_a_json_record_of_many(spark: SparkSession) -> None:
    documents = [
        json.dumps({"a": [1, {"b": "x\ny"}], "c": 1.0}, indent=2),
        '\r\n{"a":\r1,\n\n\n"b":\r\n[123456789012345678901234567890,\n1.0]}\r\n',
        "1\n",
    ]
    records = [record(n, data=text) for n, text in enumerate(documents)]

    lines = lines_of(frame(spark, records, JSON), JSON)

    found = [dict(exactly(line))["data"] for line in lines]
    assert found == [exactly(text) for text in documents]


def test_as_ndjson_tells_no_key_from_an_empty_one(spark: SparkSession) -> None:
    keys = [None, "", "null", '"', "a\nb"]
    rows = [record(n, key=key, data="{}") for n, key in enumerate(keys)]

    lines = lines_of(frame(spark, rows, JSON), JSON)

    assert [json.loads(line)["key"] for line in lines] == keys


PAYLOADS = [b"", b"\x00", b"\xff\xfe", bytes(range(200)), bytes(range(256)) * 300]


def test_as_ndjson_makes_base64_of_bytes_without_line_breaks(spark: SparkSession) -> None:
    # MIME breaks lines after 76 characters, and Spark follows it.
    rows = [record(n, data=bytearray(data)) for n, data in enumerate(PAYLOADS)]

    found = [json.loads(line)["data"] for line in lines_of(frame(spark, rows, BYTES), BYTES)]

    assert found == [base64.b64encode(data).decode() for data in PAYLOADS]


def test_as_ndjson_is_one_line_per_record_in_a_file(spark: SparkSession, tmp_path: Path) -> None:
    records = [record(n, key=text, data=text) for n, text in enumerate(TEXTS.values())]

    as_ndjson(frame(spark, records).coalesce(1), TEXT).write.text(str(tmp_path / "out"))

    [file] = (tmp_path / "out").glob("part-*")
    lines = file.read_bytes().removesuffix(b"\n").split(b"\n")
    assert [json.loads(line)["data"] for line in lines] == list(TEXTS.values())


def test_as_csv_has_a_column_for_each_field_and_text_as_it_is(spark: SparkSession) -> None:
    texts = ['a "quoted", text', "two\nlines", "", '{"a": 1.0}', "x" * 9000]
    keys = ["k", None, "", "a,b", '"']
    records = [record(n, key=keys[n], data=text) for n, text in enumerate(texts)]

    found = as_csv(frame(spark, records), TEXT)

    expected = [
        (offset, "2026-11-17T00:00:00.007Z", key, data) for offset, _, key, data, _ in records
    ]
    schema = "offset string, flushed_at string, key string, data string"
    assert_df_equality(found, spark.createDataFrame(expected, schema), ignore_nullable=True)


def test_as_csv_makes_base64_of_bytes_without_line_breaks(spark: SparkSession) -> None:
    rows = [record(n, data=bytearray(data)) for n, data in enumerate(PAYLOADS)]

    found = as_csv(frame(spark, rows, BYTES), BYTES)

    expected = [
        (offset, "2026-11-17T00:00:00.007Z", key, base64.b64encode(bytes(data)).decode())
        for offset, _, key, data, _ in rows
    ]
    schema = "offset string, flushed_at string, key string, data string"
    assert_df_equality(found, spark.createDataFrame(expected, schema), ignore_nullable=True)
