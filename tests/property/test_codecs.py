"""Codecs under any input: what goes in comes out, what is damaged is noticed."""

from __future__ import annotations

import json
import re

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import assume, example, given
from hypothesis import strategies as st

from engine.errors import BadJson, BadOffset, BadStreamName, DataCorrupt, PayloadTooLarge
from engine.format.batch import Batch
from engine.format.frame import (
    SEGMENT_HEADER_BYTES,
    AppendMeta,
    StreamMeta,
    decode_frames,
    encode_append,
    encode_create,
    encode_delete,
    encode_frame,
    encode_segment_header,
)
from engine.format.names import table_folder
from engine.format.offset import format_stored, format_wire, make_offset, parse_offset
from engine.settings import LimitSettings
from engine.table.parquet import encode_batches, open_file, read_row_group
from engine.types import PayloadKind, check_stream_name
from engine.write.ingest import parse_body

HALVES = st.integers(0, 10**16 - 1)
EPOCHS = st.integers(0, 10**15)
LIMITS = LimitSettings()
RECORDS = st.lists(st.binary(max_size=30), min_size=1, max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def batch_of(first: int, records: list[bytes]) -> Batch:
    if len(records) == 1:
        return Batch(first, 1, records[0])
    lengths = np.array([len(record) for record in records], dtype="<u4")
    return Batch(first, len(records), b",".join(records), lengths)


@given(HALVES, HALVES)
def test_offset_survives_both_spellings(epoch: int, counter: int):
    offset = make_offset(epoch, counter)
    assert parse_offset(format_stored(offset)) == parse_offset(format_wire(offset)) == offset


@given(HALVES, HALVES, HALVES, HALVES)
def test_offset_order_is_string_order(epoch: int, counter: int, epoch2: int, counter2: int):
    one, two = make_offset(epoch, counter), make_offset(epoch2, counter2)
    assert (one < two) == (format_wire(one) < format_wire(two))
    assert (one < two) == (format_stored(one) < format_stored(two))


@given(st.text(max_size=40))
def test_offset_parser_takes_only_what_it_would_write(text: str):
    try:
        offset = parse_offset(text)
    except BadOffset:
        return
    assert text in (format_stored(offset), format_wire(offset))


@given(st.text(min_size=1, max_size=120), st.text(min_size=1, max_size=120))
@example("a/b", "a_2fb")
def test_table_folder_is_plain_and_injective(one: str, two: str):
    try:
        names = [check_stream_name(name, bytes_max=512) for name in (one, two)]
    except BadStreamName:
        assume(False)
    folders = [table_folder(name) for name in names]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,200}", folder) for folder in folders)
    assert (folders[0] == folders[1]) == (one == two)


@st.composite
def segments(draw: st.DrawFn) -> tuple[bytes, list[list[tuple]], list[int]]:
    """A segment with what it holds and where its frames end."""
    data = encode_segment_header(1)
    frames, ends = [], []
    for lsn in range(1, draw(st.integers(1, 5)) + 1):
        epoch = draw(EPOCHS)
        parts, items = [], []
        for _ in range(draw(st.integers(1, 4))):
            stream_id = draw(st.integers(0, 2**63 - 1))
            kind = draw(st.sampled_from(["append", "create", "delete"]))
            if kind == "append":
                records = draw(st.none() | RECORDS)
                batch = records and batch_of(make_offset(epoch, draw(HALVES) // 2), records)
                meta = draw(st.none() | st.builds(AppendMeta, st.text(), st.integers(0, 2**53)))
                closes = draw(st.booleans())
                previous = make_offset(draw(HALVES), draw(HALVES))
                parts += encode_append(stream_id, previous, batch or None, closes=closes, meta=meta)
                items.append((stream_id, records or [], closes, meta, previous))
            elif kind == "create":
                meta = StreamMeta(stream_id, draw(st.text()), draw(st.text()), 5)
                parts += encode_create(meta)
                items.append((stream_id, meta))
            else:
                parts += encode_delete(stream_id)
                items.append((stream_id,))
        payload = b"".join(parts)
        data += encode_frame(lsn, epoch, len(items), payload) + payload
        frames.append(items)
        ends.append(len(data))
    return data, frames, ends


def items_of(data: bytes) -> list[list[tuple]]:
    found = []
    for frame in decode_frames(data, first_lsn=1, path="p"):
        items = []
        for entry in frame.entries:
            if hasattr(entry, "closes"):
                records = split(entry.batch)
                items.append((entry.stream_id, records, entry.closes, entry.meta, entry.previous))
            elif hasattr(entry, "meta"):
                items.append((entry.stream_id, entry.meta))
            else:
                items.append((entry.stream_id,))
        found.append(items)
    return found


def split(batch: Batch | None) -> list[bytes]:
    if batch is None:
        return []
    return [bytes(batch.skip(index).take(1).data) for index in range(batch.count)]


@given(segments(), st.data())
def test_wal_segment_gives_back_what_was_written_up_to_a_cut(segment, data: st.DataObject):
    written, frames, ends = segment
    assert items_of(written) == frames
    length = data.draw(st.integers(SEGMENT_HEADER_BYTES, len(written)))
    assert items_of(written[:length]) == frames[: sum(end <= length for end in ends)]


@given(segments(), st.data())
def test_wal_segment_with_damage_is_refused_or_loses_only_its_end(segment, data: st.DataObject):
    written, frames, ends = segment
    place = data.draw(st.integers(SEGMENT_HEADER_BYTES, len(written) - 1))
    damaged = bytearray(written)
    damaged[place] ^= data.draw(st.integers(1, 255))
    hit = sum(end <= place for end in ends)
    try:
        found = items_of(bytes(damaged))
    except DataCorrupt:
        assert hit < len(frames) - 1
    else:
        assert found == frames[:hit]
        assert hit == len(frames) - 1


@given(
    st.lists(VALUES | st.text('[]{},:"\\ a') | st.lists(VALUES, max_size=6), max_size=6),
    st.sampled_from([None, 1]),
    st.integers(1, 6),
)
@example([","], None, 1)
@example([[1, 2]], None, 1)
@example(["\\", ",,,,"], None, 2)
@example(['",,,,'], None, 1)
def test_json_body_is_too_large_by_its_records_and_by_nothing_else(values, indent, most: int):
    body = json.dumps(values, indent=indent).encode()
    limits = LimitSettings(records_per_append=most)
    assert counted(body, limits) == (len(values) if len(values) <= most else None)
    # What is no array is one record, whatever it holds.
    assert counted(b'{"a":' + body + b"}", limits) == 1


@given(st.text('[]{}:,"01\\u ', max_size=40).map(str.encode), st.integers(1, 3))
def test_json_text_is_too_large_only_where_it_could_be_taken(body: bytes, most: int):
    """What is no JSON may be refused as either."""
    assume(body)
    try:
        found = counted(body, LimitSettings(records_per_append=most))
    except BadJson:
        return
    try:
        value = json.loads(body)
    except ValueError:
        assert found is None
        return
    count = len(value) if isinstance(value, list) else 1
    assert found == (count if count <= most else None)


def counted(body: bytes, limits: LimitSettings) -> int | None:
    """How many records it holds; None where those are too many."""
    try:
        return parse_body(body, PayloadKind.JSON, limits).count
    except PayloadTooLarge:
        return None


@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 1]), st.booleans())
def test_json_body_gives_back_the_bytes_of_its_records(values, indent, ascii_only: bool):
    body = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode()
    found = parse_body(body, PayloadKind.JSON, LIMITS)
    assert found.count == len(values)
    raw = [bytes(one) for one in msgspec.json.decode(body, type=list[msgspec.Raw])]
    assert found.data == b",".join(raw)
    assert [json.loads(record) for record in raw] == values


@given(
    st.binary(min_size=1, max_size=60) | st.text('[]{}:,"0123456789.eE+-\\u ntf').map(str.encode)
)
def test_json_body_that_is_taken_is_json_for_others(body: bytes):
    assume(body)
    try:
        found = parse_body(body, PayloadKind.JSON, LIMITS)
    except BadJson:
        return

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    value = json.loads(body.decode("utf-8"), parse_constant=refuse)
    assert found.count == (len(value) if isinstance(value, list) else 1)
    json.loads(b"[" + found.data + b"]")


@given(st.data(), st.sampled_from(list(PayloadKind)), st.integers(1, 200))
def test_parquet_gives_back_offsets_and_bytes(data: st.DataObject, kind, row_group_bytes: int):
    texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
    record = (
        st.binary(min_size=1, max_size=60) if kind is PayloadKind.BYTES else texts.map(str.encode)
    )
    counter, batches, expected = 1, [], []
    for _ in range(data.draw(st.integers(1, 6))):
        most = 5 if kind is PayloadKind.JSON else 1
        records = data.draw(st.lists(record, min_size=1, max_size=most))
        first = make_offset(1_760_000_000_000, counter)
        batches.append(batch_of(first, records))
        expected += [(first + index, one) for index, one in enumerate(records)]
        counter += len(records) + data.draw(st.integers(0, 3))
    encoded = encode_batches(batches, kind, row_group_bytes=row_group_bytes)
    file = open_file(pa.BufferReader(encoded))
    found = []
    for index in range(file.metadata.num_row_groups):
        run = read_row_group(file, index, kind)
        found += [(run.offset_at(row), bytes(run.cut(row, row + 1))) for row in range(run.count)]
    assert found == expected
